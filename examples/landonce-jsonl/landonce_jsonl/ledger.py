"""A ledger in a folder: one file per pipeline holds the state and the journal, and is replaced as a whole.

A change takes the folder's lock, compares the stored state with the driver's, writes a temporary file and renames it.
So a change is there whole or not at all, and of two drivers one is `Fenced`. All drivers must run on one machine.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from landonce.errors import ConfigError
from landonce.plugin import (
    Ledger,
    LedgerState,
    Note,
    check_change,
    check_order,
    fenced,
    key,
    state_from_text,
    state_to_text,
)


class FolderLedger(Ledger):
    """Keeps one pipeline's state in one file of a folder."""

    def __init__(self, folder: Path, pipeline: str) -> None:
        self.pipeline = pipeline
        self._folder = folder
        self._path = folder / f"{quote(pipeline, safe='')}.json"

    def load(self) -> LedgerState | None:
        return self._read()[0]

    def create(self, state: LedgerState) -> LedgerState:
        if state.pipeline != self.pipeline:
            raise ValueError(f"this ledger keeps {self.pipeline!r}, not {state.pipeline!r}")
        check_order(state)
        with self._locked():
            seen = self.load()
            if seen is None:
                self._write(state, ())
        return seen or state

    def change(self, old: LedgerState, new: LedgerState, note: Note | None = None) -> LedgerState:
        check_change(self.pipeline, old, new)
        with self._locked():
            seen, notes = self._read()
            if seen is None or key(seen) != key(old):
                raise fenced(old, seen)
            self._write(new, notes if note is None else (*notes, note))
        return new

    def journal(self) -> tuple[Note, ...]:
        return self._read()[1]

    def close(self) -> None:
        """Nothing is open between two calls."""

    def _read(self) -> tuple[LedgerState | None, tuple[Note, ...]]:
        try:
            state, *notes = self._path.read_text().splitlines()
        except FileNotFoundError:
            return None, ()
        return state_from_text(state), tuple(Note(*json.loads(each)) for each in notes)

    def _write(self, state: LedgerState, notes: tuple[Note, ...]) -> None:
        lines = [state_to_text(state), *(json.dumps([each.at, each.action, each.detail]) for each in notes)]
        aside = self._path.with_suffix(".aside")
        with aside.open("w") as file:
            file.write("\n".join(lines))
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, self._path)
        folder = os.open(self._folder, os.O_RDONLY)  # the rename must be on disk before the change counts
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if not self._folder.is_dir():
            raise ConfigError(f"there is no folder {self._folder}.", command=f"mkdir -p {self._folder}")
        with (self._folder / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def open_ledger(pipeline: str, folder: Path, path: str) -> FolderLedger:
    """For a pipeline file: `ledger: {plugin: {name: folder, options: {path: ledgers}}}`, relative to the file."""
    return FolderLedger(folder / path, pipeline)
