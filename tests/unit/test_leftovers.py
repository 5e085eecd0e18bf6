"""What a killed driver left is removed at the next start, and what a living one uses is not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

SCRIPT = """
import sys
from landonce.engine.spark.temp_dirs import temporary_folder
folder = temporary_folder()
(folder / "blockmgr").mkdir()
(folder / "blockmgr" / "block").write_text("x" * 1000)
print(folder, flush=True)
sys.stdin.read()
"""


def start(monkeypatch: pytest.MonkeyPatch, place: Path) -> tuple[subprocess.Popen[str], Path]:
    monkeypatch.setenv("TMPDIR", str(place))
    process = subprocess.Popen([sys.executable, "-c", SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_the_next_start_clears_what_a_killed_one_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed, left = start(monkeypatch, tmp_path)
    living, used = start(monkeypatch, tmp_path)
    try:
        assert left.parent == used.parent == tmp_path
        assert (left / "blockmgr" / "block").exists(), "it is in use"
        end(killed)
        assert (left / "blockmgr" / "block").exists(), "nobody could clear it"
        third, own = start(monkeypatch, tmp_path)
        end(third)
        assert not left.exists()
        assert (used / "blockmgr" / "block").exists(), "its process lives"
        assert own.exists()
    finally:
        end(living)


def test_what_others_keep_there_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    half_made, alike = tmp_path / "landonce-java-new", tmp_path / "landonce-java-file"
    half_made.mkdir()
    alike.write_text("mine")
    process, _ = start(monkeypatch, tmp_path)
    end(process)
    assert half_made.is_dir()
    assert alike.read_text() == "mine"


STARTING = """
import os, signal
from pathlib import Path
import landonce.engine.spark.session as session
from landonce.config.model import Spark
session._start_java = lambda: os.kill(os.getpid(), signal.SIGKILL)
session.open_session("leftovers", Spark(conf={"spark.hadoop.fs.s3a.secret.key": "canary"}))
"""


def files_with(place: Path, text: str) -> Sequence[Path]:
    return [each for each in place.rglob("*") if each.is_file() and text in each.read_text(errors="replace")]


def test_settings_with_secrets_do_not_outlive_a_driver_that_is_killed_while_java_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    killed = subprocess.run([sys.executable, "-c", STARTING], capture_output=True, text=True)
    assert killed.returncode == -9, killed.stderr
    [file] = files_with(tmp_path, "canary")
    assert file.stat().st_mode & 0o077 == 0, "others may read it"
    process, _ = start(monkeypatch, tmp_path)
    end(process)
    assert files_with(tmp_path, "canary") == []
