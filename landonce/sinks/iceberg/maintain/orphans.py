"""Which files may be deleted that no snapshot names. Pure.

A file's name says which epoch and batch of the pipeline wrote it. Its driver had looked at the table before, and its
commit is refused if the table's mark is not the one that it saw. A driver writes under an epoch past those of all marks
that it saw, or under its own with a later batch. So, with M the newest mark of the pipeline in the table:

    file of (epoch, batch)       then
    ───────────────────────────  ─────────────────────────────────────────────────────────────────────────────────────
    at or before M               its driver looked before M was there, or made M: it can never commit this file
    after M, by a driver that    it may still be paused before its commit, and nothing in this table refuses it: deleted
    another one took over from   only after a long time
    after M, by the driver that  in flight, or left by a crash, which the next start makes an earlier driver's: never
    has the pipeline now

The table's own mark counts: in a fan-out, an older driver may still commit to a table that the newer one has not committed to
yet. If a pipeline works on several branches of the table, all their marks have to agree, since a name says nothing of branches.

Files are listed before the metadata is loaded, so one that is committed in between is seen to be named by a snapshot.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType

from landonce.sinks.iceberg.maintain.files import FoundFile
from landonce.sinks.iceberg.marks import copy_name, own_view
from landonce.sinks.iceberg.staging import stage_of
from landonce.sinks.snapshot import origin_of

Moment = tuple[int, int]
"""An epoch, and a batch in it."""


@dataclass(frozen=True)
class Bounds:
    """How far a table is, for one pipeline."""

    mark: Moment | None = None
    """The newest mark; the lowest of them, if there are several branches. None if a branch has no valid mark."""
    owner: int = 0
    """The epoch of the driver that has the pipeline now."""

    def passed(self, at: Moment) -> bool:
        """Whether the table is past that batch, so that nothing of it can be committed any more."""
        return self.mark is not None and at <= self.mark

    def dead(self, at: Moment, age: timedelta, limit: timedelta) -> bool:
        """Whether a file that no snapshot names may be deleted."""
        return self.passed(at) or (at[0] < self.owner and age > limit)


def bounds(metadata: TableMetadata, pipeline: str, branch: str, ledger_epoch: int | None = None) -> Bounds:
    """From the marks of the pipeline's branch, and of others that it works on: those have a copy of the mark.

    `ledger_epoch`: the epoch in the ledger, if that is not the table.
    """
    others = [
        name
        for name, ref in metadata.refs.items()
        if ref.snapshot_ref_type is SnapshotRefType.BRANCH
        and name != branch
        and copy_name(pipeline, name) in metadata.properties
    ]
    views = [own_view(metadata, pipeline, name) for name in (branch, *others)]
    marks = [(view.mark.state.epoch, view.mark.batch) if view.mark is not None else None for view in views]
    owners = [view.last.state.epoch if view.last is not None else 0 for view in views]
    if ledger_epoch is not None:
        owners[0] = ledger_epoch
    known = [mark for mark in marks if mark is not None]
    return Bounds(min(known) if len(known) == len(views) else None, min(owners))


def moment_of(name: str, pipeline: str) -> Moment | None:
    """The epoch and batch in which the pipeline wrote a file of this name; None for files of others."""
    origin = origin_of(name) if name.startswith(f"landonce-{pipeline}-e") else None
    return (origin.epoch, origin.batch) if origin is not None and origin.pipeline == pipeline else None


@dataclass(frozen=True)
class Orphans:
    """The pipeline's files that no snapshot names."""

    dead: tuple[FoundFile, ...] = ()
    waiting: tuple[FoundFile, ...] = ()
    """Perhaps in flight."""


def orphans(
    found: Iterable[FoundFile], named: Collection[str], pipeline: str, at: Bounds, now: datetime, limit: timedelta
) -> Orphans:
    """Sorts the files that were listed. `named`: the names of all files of all snapshots, wherever they are."""
    dead: list[FoundFile] = []
    waiting: list[FoundFile] = []
    for each in found:
        moment = moment_of(each.name, pipeline)
        if moment is None or each.name in named:
            continue
        (dead if at.dead(moment, now - each.modified, limit) else waiting).append(each)
    return Orphans(tuple(dead), tuple(waiting))


def dead_stages(metadata: TableMetadata, pipeline: str, at: Bounds) -> tuple[str, ...]:
    """Staging branches of the pipeline that will never be published. Like files, their names state epoch and batch."""
    whose = {name: stage_of(name) for name in metadata.refs}
    return tuple(
        sorted(
            name
            for name, of in whose.items()
            if of is not None and of.pipeline == pipeline and at.passed((of.epoch, of.batch))
        )
    )
