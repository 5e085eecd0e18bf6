"""A folder for what Java puts aside: blocks of Spark's, native libraries out of jars. A JVM clears it when it ends; one that is
killed cannot, so the next start does it."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "landonce-java-"
_held: list[int] = []
"""Locks of this process. The system releases them when it is gone, however it went."""


def temporary_folder() -> Path:
    """A new folder, of this process for as long as it lives. Those of processes that are gone are removed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        _remove_if_left(folder)
    made = Path(tempfile.mkdtemp(prefix=_PREFIX))
    lock = os.open(made / "new", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.rename(made / "new", _lock_of(made))  # nobody sees the lock before it is taken
    _held.append(lock)
    return made


def _remove_if_left(folder: Path) -> None:
    try:
        lock = os.open(_lock_of(folder), os.O_RDWR | os.O_NOFOLLOW)
    except OSError:  # another user's, or not made yet, or gone by now
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:  # its process lives
        pass
    finally:
        os.close(lock)


def _lock_of(folder: Path) -> Path:
    return folder / "lock"
