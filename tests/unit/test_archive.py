"""Java's archive of Spark's classes: used where it is, and never needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from landonce.engine.spark import archive


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.touch(mode=0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    return tmp_path


def test_without_one_java_is_reported_nothing(prefix: Path) -> None:
    assert archive.java_options() == ""


def test_one_that_is_there_is_used_with_leave_to_do_without(prefix: Path) -> None:
    path = archive._path()
    assert path is not None
    path.parent.mkdir()
    path.touch()
    assert f"-XX:SharedArchiveFile={path} -Xshare:auto" in archive.java_options()
    assert archive.make() == path


def test_another_java_needs_another_one(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = archive._path()
    other = prefix / "other" / "bin" / "java"
    other.parent.mkdir(parents=True)
    other.touch(mode=0o755)
    monkeypatch.setenv("JAVA_HOME", str(prefix / "other"))
    assert archive._path() != before


def test_a_rehearsal_that_fails_leaves_nothing(prefix: Path) -> None:
    assert archive.make() is None, "this Java is an empty file"
    assert not list((prefix / "landonce").iterdir())


def test_where_nothing_can_be_written_or_there_is_no_java_there_is_none(
    prefix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(prefix / "nowhere"))
    assert archive.make() is None
    assert archive.java_options() == ""
