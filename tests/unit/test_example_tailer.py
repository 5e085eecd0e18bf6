"""The example that follows files: which file is which, when inodes are used again and files are truncated."""

from __future__ import annotations

import importlib.util
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

import landonce

EXAMPLE = Path(__file__).parents[2] / "examples" / "file-tailer" / "tail.py"


@pytest.fixture(scope="module")
def tail() -> Any:
    spec = importlib.util.spec_from_file_location("tail", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def once(in_folder: Path, tail: Any) -> Iterator[landonce.ExactlyOnceSink]:
    del in_folder
    with tail.open_sink("sqlite:///lines.db") as sink:
        yield sink


LOG = Path("access.log")


def landed() -> list[str]:
    with closing(sqlite3.connect("lines.db")) as connection:
        return [line for (line,) in connection.execute("SELECT line FROM lines ORDER BY rowid")]


def landed_by_now() -> set[str]:
    with suppress(sqlite3.OperationalError):  # there is no table yet
        return {*landed()}
    return set()


def write(*lines: str) -> int:
    """The same inode with other content: what comes of a file that is truncated, or deleted before another gets its inode."""
    LOG.write_text("".join(f"{line}\n" for line in lines))
    return LOG.stat().st_ino


@pytest.mark.parametrize("others", [["b1"], ["b1", "b2"], ["b1", "b2", "b3"]], ids=["shorter", "as long", "longer"])
def test_a_new_file_with_the_inode_of_an_old_one_is_read_whole(
    tail: Any, once: landonce.ExactlyOnceSink, others: list[str]
) -> None:
    inode = write("a1", "a2")
    assert tail.tail(once, LOG) == 2
    assert write(*others) == inode
    assert tail.tail(once, LOG) == len(others)
    assert landed() == ["a1", "a2", *others]


@pytest.mark.parametrize("now", [["header"], ["header", "b1", "b22"]], ids=["shorter", "longer"])
def test_a_file_that_was_written_again_with_the_same_first_line_is_refused(
    tail: Any, once: landonce.ExactlyOnceSink, now: list[str]
) -> None:
    write("header", "a1", "a2")
    assert tail.tail(once, LOG) == 3
    write(*now)
    with pytest.raises(tail.WrittenAnew, match=r"access\.log: it has landed up to byte 13, .* truncated or"):
        tail.tail(once, LOG)
    assert landed() == ["header", "a1", "a2"]


def test_two_files_with_the_same_first_line_are_two(tail: Any, once: landonce.ExactlyOnceSink) -> None:
    write("header", "a1")
    assert tail.tail(once, LOG) == 2
    LOG.rename("access.log.1")
    write("header", "b1")
    assert [tail.tail(once, each) for each in (Path("access.log.1"), LOG)] == [0, 2]
    assert landed() == ["header", "a1", "header", "b1"]


def test_a_file_waits_until_its_first_line_is_whole(tail: Any, once: landonce.ExactlyOnceSink) -> None:
    for text, lines in (("", 0), ("a", 0), ("a1\nb", 1), ("a1\nb1\n", 1)):
        LOG.write_text(text)
        assert tail.tail(once, LOG) == lines
    assert landed() == ["a1", "b1"]


def test_one_that_follows_ends_with_a_sentence_though_other_files_go_on(tail: Any, in_folder: Path) -> None:
    """And it waits for a file that is renamed before there is a new one."""
    (in_folder / "other.log").write_text("o1\n")
    (in_folder / "access.log").write_text("header\na1\n")
    command = [sys.executable, str(EXAMPLE), "--follow", "other.log", "access.log"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            pause = threading.Event()
            while landed_by_now() != {"o1", "header", "a1"}:
                assert process.poll() is None
                pause.wait(0.1)
            (in_folder / "other.log").rename(in_folder / "other.log.1")
            pause.wait(1.5)
            assert process.poll() is None, "it waits for the next file"
            write("header")
            _, said = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 1
    *before, last = said.splitlines()
    assert last.startswith("access.log: it has landed up to byte 10")
    assert all(each.endswith("the table was altered, and has to be examined again") for each in before), (
        "SQLite, at the start"
    )
