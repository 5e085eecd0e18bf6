"""`scripts/green` notes the commit that a command passed on: only of a clean work tree, and only if it passed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

GREEN = Path(__file__).parents[2] / "scripts" / "green"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / ".gitignore").write_text("build/\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "first")
    return tmp_path


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def green(folder: Path, *command: str) -> tuple[int, str, Path]:
    done = subprocess.run([GREEN, "quick", *command], cwd=folder, check=False, capture_output=True, text=True)
    return done.returncode, done.stdout, folder / "build" / "green-quick"


def test_a_clean_tree_that_passed(tree: Path) -> None:
    code, said, note = green(tree, "true")
    assert (code, note.read_text().strip()) == (0, git(tree, "rev-parse", "HEAD")), said


@pytest.mark.parametrize(
    ("before", "command", "code", "said"),
    [
        ("", "exit 3", 3, ""),
        ("new", "true", 0, "was not clean"),
        ("", "touch new", 0, "changed meanwhile"),
        ("", "git -c user.name=t -c user.email=t@t commit -q --allow-empty -m second", 0, "changed meanwhile"),
    ],
)
def test_nothing_is_written_otherwise(before: str, command: str, code: int, said: str, tree: Path) -> None:
    if before:
        (tree / before).touch()
    ended, printed, note = green(tree, "sh", "-c", command)
    assert (ended, note.exists()) == (code, False)
    assert said in printed
