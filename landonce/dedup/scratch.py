"""Runs of ids as local files, mapped into memory. All of it can be fetched from the store again."""

from __future__ import annotations

import mmap
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np

from landonce.config.dedup import MOST_CACHED
from landonce.dedup.runs import FIRST_SEEN, KEY_BYTES, Keys, Segment, damaged, digest_of
from landonce.errors import ConfigError, RunGone
from landonce.protocol.dedup import ListedRun

_STALE_S = 600
"""The age in seconds at which a temporary file is taken for that of a killed process, and removed."""
_UNUSED_S = 24 * 3600
"""The age in seconds at which a file that nobody opened is removed: batches open every run that counts. A file that is opened later is fetched
again."""
_SWEEP_EVERY = 3600.0
_checked: dict[Path, int] = {}
"""The inodes of files whose digest was checked in this process."""


def scratch_folder(lineage: str) -> Path:
    """The default folder for the runs of one store on this machine."""
    return _private(Path(tempfile.gettempdir()) / f"landonce-dedup-{os.getuid()}") / lineage


def remove_old_stores(root: Path, but: Path) -> None:
    """Removes what nobody used lately of other stores on this machine: those that were lost, and those whose pipelines run no more."""
    for folder in root.iterdir() if root.is_dir() else ():
        if folder == but or folder.is_symlink() or not folder.is_dir():
            continue
        with suppress(OSError):  # another process removes the same, or uses it
            quiet = _age(folder) > _UNUSED_S
            for path in folder.iterdir():
                if _age(path) > _UNUSED_S:
                    path.unlink(missing_ok=True)
            if quiet:
                folder.rmdir()


def _age(path: Path) -> float:
    """Seconds since it was used last."""
    return time.time() - path.stat().st_mtime


class Scratch:
    """A folder of runs as files, shared by the processes of one user on one machine.

    A file gets its name once it is complete and its digest is checked, so a killed process leaves no half file under
    that name. A file holds what the digest covers: all high halves, all low halves, all of `first_seen`.
    """

    def __init__(self, folder: Path, *, most_bytes: int = MOST_CACHED) -> None:
        self.folder = _private(folder)
        self.most_bytes = most_bytes
        self._in_use: WeakValueDictionary[Path, mmap.mmap] = WeakValueDictionary()
        self._fetched_bytes = most_bytes
        """Since files were removed last."""
        self._sweep_after = 0.0

    def open(self, run: ListedRun, fetch: Callable[[], Iterable[Segment]]) -> Keys:
        """The run, mapped. The digest of its file is checked once per process; a damaged file is fetched again.

        Raises `RunGone` if the store no longer has the run, and `StoreDamaged` if the store's bytes are wrong twice.
        """
        path = self._path(run)
        keys = self._map(path, run, path) or self._fetch(path, run, fetch) or self._fetch(path, run, fetch)
        if keys is None:
            raise damaged(run)
        return keys

    def remove(self, runs: Iterable[ListedRun]) -> None:
        """Removes the files of runs that were merged or have expired. Processes that have them mapped keep them."""
        for run in runs:
            self._path(run).unlink(missing_ok=True)

    def _path(self, run: ListedRun) -> Path:
        if not run.run.replace("-", "").isalnum():
            raise damaged(run)
        return self.folder / f"{run.run}.keys"

    def _map(self, file: Path, run: ListedRun, path: Path) -> Keys | None:
        """A file that is, or will be, at `path`. None if there is none, or if it is damaged."""
        if not run.rows:
            return Keys(np.empty(0, "<u8"), np.empty(0, "<u8"), np.empty(0, FIRST_SEEN))
        try:
            with file.open("rb") as opened:
                if os.fstat(opened.fileno()).st_size != run.rows * KEY_BYTES:
                    return None
                inode = os.fstat(opened.fileno()).st_ino
                os.utime(opened.fileno())  # used now: what was not used for longest is removed first
                mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            return None
        halves = np.frombuffer(mapped, "<u8", 2 * run.rows)
        keys = Keys(halves[: run.rows], halves[run.rows :], np.frombuffer(mapped, FIRST_SEEN, offset=16 * run.rows))
        if _checked.get(path) != inode:
            if digest_of(keys) != run.digest:
                return None
            _checked[path] = inode
        self._in_use[path] = mapped
        return keys

    def _fetch(self, path: Path, run: ListedRun, fetch: Callable[[], Iterable[Segment]]) -> Keys | None:
        """Writes the run to a temporary file, checks it, and renames it. None if the fetched bytes are wrong."""
        _private(self.folder)  # one that was not used for a day may be gone
        temporary = self.folder / f"{run.run}.{uuid.uuid4().hex}.tmp"
        try:
            if not _write(temporary, run, fetch()):
                raise RunGone(f"The run {run.run} of shard {run.shard} is no longer in the store: list the runs again.")
            keys = self._map(temporary, run, path)
            if keys is not None:
                with suppress(FileNotFoundError):  # removed as stale while this process was paused; the mapping stays
                    temporary.replace(path)
                self._fetched_bytes += run.rows * KEY_BYTES
                if self._fetched_bytes > self.most_bytes // 16 or time.monotonic() > self._sweep_after:
                    self._remove_unused()
                    self._fetched_bytes, self._sweep_after = 0, time.monotonic() + _SWEEP_EVERY
            return keys
        finally:
            temporary.unlink(missing_ok=True)

    def _remove_unused(self) -> None:
        """Removes files that nobody opened for a day, then files down to the limit, least recently used first; none that this process has
        mapped."""
        files = []
        for path in self.folder.iterdir():
            with suppress(FileNotFoundError):
                files.append((path.stat().st_mtime, path.stat().st_size, path))
        total = sum(size for _, size, _ in files)
        for used_at, size, path in sorted(files):
            unused = path not in self._in_use if path.suffix == ".keys" else used_at < time.time() - _STALE_S
            if unused and (total > self.most_bytes or path.suffix != ".keys" or used_at < time.time() - _UNUSED_S):
                path.unlink(missing_ok=True)
                total -= size
        for gone in _checked.keys() - {path for _, _, path in files}:
            if gone.parent == self.folder:
                del _checked[gone]


def _write(file: Path, run: ListedRun, segments: Iterable[Segment]) -> bool:
    """Whether there was any segment."""
    at = 0
    with file.open("xb") as opened:
        for segment in segments:
            keys = len(segment.ids) // 16
            halves = memoryview(segment.ids)
            columns = ((halves[: 8 * keys], 8), (halves[8 * keys :], 8), (segment.first_seen, FIRST_SEEN.itemsize))
            start = 0
            for column, width in columns:
                opened.seek(start + at * width)
                opened.write(column)
                start += run.rows * width
            at += keys
    return at > 0


def _private(folder: Path) -> Path:
    """The folder, made if needed, that only this user can read or change: its files decide what is a duplicate."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or folder.is_symlink():
        raise ConfigError(
            f"The folder {folder} belongs to another user, or is a link.",
            safe="Nothing was read from it.",
            command="remove it, or set TMPDIR to a folder of your own",
        )
    if found.st_mode & 0o077:
        folder.chmod(0o700)
    return folder
