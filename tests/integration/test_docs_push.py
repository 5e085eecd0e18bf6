"""The page on pushes is true, and so is the example that follows files. Neither needs a broker."""

from __future__ import annotations

import os
import shlex
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from pages import run_page

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(240)]
EXAMPLE = Path(__file__).parents[2] / "examples" / "file-tailer"


def test_the_page_is_true(tmp_path: Path) -> None:
    assert run_page("push.md", None, (), tmp_path, spark=False) == 4


def test_the_example_is_true(tmp_path: Path) -> None:
    for name in ("tail.py", "write.py"):
        shutil.copy(EXAMPLE / name, tmp_path)
    shown = (EXAMPLE / "README.md").read_text().partition("```console\n$ ")[2].partition("```")[0]
    for step in shown.split("\n$ "):
        command, _, printed = step.partition("\n")
        program, *words = shlex.split(command)
        started = [sys.executable if program == "python" else program, *words]
        done = subprocess.run(started, cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"$ {command}\n{done.stderr}"
        assert sorted(done.stdout.splitlines()) == sorted(printed.strip().splitlines())  # threads, in any order
    with closing(sqlite3.connect(tmp_path / "lines.db")) as connection:
        found = connection.execute("SELECT line, count(*) FROM lines GROUP BY line").fetchall()
    assert len(found) == 1000
    assert sum(count for _, count in found) == 1510
