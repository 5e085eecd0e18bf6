"""Maintenance of a pipeline's tables, one after the other: compact, expire, delete what nobody needs; and a report of it.

Every step is safe beside a running pipeline. A table whose maintenance fails does not keep the others from theirs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

from pyiceberg.table import Table
from pyspark.sql import SparkSession

from landonce.errors import ConfigError, LandonceError
from landonce.protocol.ledger import LedgerState
from landonce.sinks.iceberg.commit import TableBranch
from landonce.sinks.iceberg.maintain.compact import Compacted, census, compact, drop_dangling
from landonce.sinks.iceberg.maintain.expire import ExpiryPolicy, Removal, expiry, remove
from landonce.sinks.iceberg.maintain.files import (
    bounds,
    dead_stages,
    delete,
    files_of,
    files_only_in,
    folders_of,
    listed,
    orphans,
    shares_location,
)
from landonce.sinks.iceberg.marks import pipelines_of
from landonce.sinks.iceberg.sink import IcebergSink, catalog_exists, table_names
from landonce.sinks.operations import Sessions, Upkeep, UpkeepWatch
from landonce.sinks.parts import Parts
from landonce.sinks.snapshot import TableLedger

_NO_GC = "`gc.enabled` is false: its files may be another table's, so nothing of it expires and nothing is deleted"
_SHARED = (
    "another table's metadata lies in its folder (it was renamed, or dropped with its files kept, and this one was made in its place): files "
    "here may be that table's, so orphans were not searched for"
)
_OUTSIDE = "its data folder is outside of its own and may be shared with other tables: it was not searched for orphans"
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


@dataclass(frozen=True)
class Deleted:
    """Files that are gone."""

    files: int = 0
    bytes: int = 0
    failed: int = 0
    """Files that the storage did not delete. The next run finds them again if landonce named them."""


@dataclass(frozen=True)
class MaintenanceReport:
    """What was done to one table, or would be."""

    table: str
    dry: bool = False
    candidates: int = 0
    """Files that compaction rewrote, or would."""
    compacted: Compacted = field(default_factory=Compacted)
    removed: Removal = field(default_factory=Removal)
    expired: Deleted = field(default_factory=Deleted)
    orphans: Deleted = field(default_factory=Deleted)
    waiting: int = 0
    """Files that no snapshot names and that may be in flight."""
    notes: tuple[str, ...] = ()
    error: str = ""
    """Why the table was left as it is."""
    exit_code: int = 0

    def lines(self) -> list[str]:
        """For people: a line for each thing that was done, or would be."""
        if self.error:
            return [f"left as it is: {self.error}"]
        failed = self.expired.failed + self.orphans.failed
        notes = [*self.compacted.notes, *self.notes]
        if failed:
            notes.append(f"the storage did not delete {failed} files")
        sentences = filter(None, (self._compaction(), self._expiry(), self._orphans()))
        return [*sentences, *(f"note: {each}" for each in notes)] or ["nothing to do"]

    def _compaction(self) -> str:
        made = self.compacted
        if self.dry:
            return f"compaction would look at {self.candidates} files" if self.candidates else ""
        parts = []
        if made.rewritten:
            parts.append(f"{made.rewritten} data files ({size(made.bytes)}) became {made.added}")
        if made.deletes:
            parts.append(f"{made.deletes} delete files were rewritten or dropped")
        if made.manifests:
            parts.append(f"{made.manifests} manifests were rewritten")
        return f"compacted: {', '.join(parts)}" if parts else ""

    def _expiry(self) -> str:
        expiry, gone, parts = self.removed.expiry, self.expired, []
        if expiry.ids:
            would = "would expire" if self.dry else "expired"
            parts.append(f"{would}: {len(expiry.ids)} snapshots, with {gone.files} files ({size(gone.bytes)})")
        if expiry.for_positions:
            whose = ", ".join(expiry.pipelines)
            parts.append(f"{expiry.for_positions} old snapshots are kept, for they lead to the position of {whose}")
        return "; ".join(parts)

    def _orphans(self) -> str:
        parts, gone, branches = [], self.orphans, len(self.removed.branches)
        if gone.files or branches:
            both = (f"{gone.files} orphan files ({size(gone.bytes)})", f"{branches} staging branches")
            named = " and ".join(text for text, count in zip(both, (gone.files, branches), strict=True) if count)
            parts.append(f"{'would delete' if self.dry else 'deleted'}: {named}")
        if self.waiting:
            parts.append(f"{self.waiting} files may be in flight and stay")
        return "; ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        made, expiry = self.compacted, self.removed.expiry
        return {
            "table": self.table,
            "compaction": {
                "candidates": self.candidates,
                "rewritten_files": made.rewritten,
                "rewritten_bytes": made.bytes,
                "added_files": made.added,
                "rewritten_delete_files": made.deletes,
                "rewritten_manifests": made.manifests,
            },
            "expiry": {
                "snapshots": len(expiry.ids),
                "deleted_files": self.expired.files,
                "deleted_bytes": self.expired.bytes,
                "kept_for_positions": expiry.for_positions,
                "positions_of": list(expiry.pipelines),
            },
            "orphans": {
                "deleted_files": self.orphans.files,
                "deleted_bytes": self.orphans.bytes,
                "perhaps_in_flight": self.waiting,
                "staging_branches": len(self.removed.branches),
            },
            "not_deleted": self.expired.failed + self.orphans.failed,
            "notes": [*made.notes, *self.notes],
            "error": self.error,
        }


def size(count: int) -> str:
    """Bytes for people."""
    value, unit = float(count), 0
    while value >= 1000 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.{min(unit, 1)}f} {_UNITS[unit]}"


@dataclass(frozen=True)
class TableMaintenance:
    """The maintenance of one table."""

    place: TableBranch
    options: Upkeep
    session: Callable[[], SparkSession]
    """Spark with Iceberg's runtime, started when it is first asked for."""
    say: Callable[[str], None]
    ledger_epoch: int | None = None
    """Set if the ledger is not the table."""
    others: tuple[str, ...] = ()
    """The locations of the pipeline's other tables."""
    alone: bool = True
    """The pipeline writes no other table."""

    def run(self) -> MaintenanceReport:
        """Compacts, expires, deletes. Files are listed before the metadata that decides about them is loaded, see `files`."""
        place, options = self.place, self.options
        candidates, compacted = self._compact() if options.compact else (0, Compacted())
        table = place.load()
        if table.properties.get("gc.enabled", "true").lower() == "false":
            return MaintenanceReport(place.identifier, options.dry, candidates, compacted, notes=(_NO_GC,))
        folders = folders_of(table, shared=not self.alone)
        self.say("listing files")
        shared = shares_location(table)
        found = listed(table, folders, self.others) if not shared else ()
        if options.dry:
            before = after = place.load()
            removed = self._removal(before)
        else:
            self.say("expiring snapshots")
            before, removed = remove(self.session, place.spec, place.load, self._removal)
            after = place.load()
        self.say("reading manifests")
        expired = set(removed.expiry.ids)
        left = [each for each in after.metadata.snapshots if each.snapshot_id not in expired]
        kept = files_of(
            after.io,
            after.metadata.model_copy(update={"snapshots": left}),
            lambda done, all_: self.say(f"reading manifests: {done} of {all_}"),
        )
        gone = files_only_in(before.io, before.metadata, expired, kept)
        now, named = datetime.now(timezone.utc), kept.names() | gone.names()
        at = bounds(after.metadata, place.pipeline, place.branch, self.ledger_epoch)
        sorted_ = orphans(found, named, place.pipeline, at, now, options.orphans_older_than)
        return MaintenanceReport(
            table=place.identifier,
            dry=options.dry,
            candidates=candidates,
            compacted=compacted,
            removed=removed,
            expired=self._delete(after, {**gone.data, **gone.metadata}),
            orphans=self._delete(after, {each.path: each.size for each in sorted_.dead}),
            waiting=len(sorted_.waiting),
            notes=(*((_OUTSIDE,) if len(folders) == 1 else ()), *((_SHARED,) if shared else ())),
        )

    def _compact(self) -> tuple[int, Compacted]:
        place, options = self.place, self.options
        found = census(place.load(), place.branch, options.target)
        candidates = found.files if found.vectors or found.deletes or found.equality else found.small
        if options.dry or not (candidates or found.many_manifests):
            return candidates, Compacted()
        self.say(f"compacting {candidates} files")
        done = compact(self.session(), place.spec, place.identifier, found, place.branch, options.target, options.where)
        return candidates, replace(done, deletes=done.deletes + drop_dangling(place)) if found.equality else done

    def _removal(self, table: Table) -> Removal:
        """Abandoned staging branches go now, and their snapshots once they are old."""
        options, metadata, place = self.options, table.metadata, self.place
        at = bounds(metadata, place.pipeline, place.branch, self.ledger_epoch)
        stages = dead_stages(metadata, place.pipeline, at)
        left = {name: ref for name, ref in metadata.refs.items() if name not in stages}
        age = options.expire_older_than
        age_ms = age // timedelta(milliseconds=1) if age is not None else None
        policy = ExpiryPolicy.of(table.properties, age_ms, options.keep_last, options.retired)
        return Removal(expiry(metadata.model_copy(update={"refs": left}), policy, time.time_ns() // 10**6), stages)

    def _delete(self, table: Table, sizes: Mapping[str, int]) -> Deleted:
        failed = 0
        if sizes and not self.options.dry:
            self.say(f"deleting {len(sizes)} files")
            failed = delete(table, sizes)
        return Deleted(len(sizes) - failed, sum(sizes.values()), failed)


def maintain(
    parts: Parts,
    sink: IcebergSink,
    options: Upkeep,
    watch: UpkeepWatch,
    sessions: Sessions,
    tables: tuple[str, ...] = (),
) -> tuple[MaintenanceReport, ...]:
    """Maintains the named tables, or all that the pipeline writes. Spark is started only if it is needed."""
    if not catalog_exists(sink):
        return ()
    own = isinstance(parts.ledger, TableLedger)
    state = None if own else parts.ledger.load()
    # A lost ledger (0) says nothing about drivers that were superseded.
    epoch = None if own else state.epoch if state is not None else 0
    names = table_names(sink, state)
    there = tables_there(sink, names)
    ours = tables_of(sink, state, names, there)
    unknown = sorted(set(tables) - set(ours))
    if unknown:
        raise ConfigError(f"--table: the pipeline writes no {', '.join(unknown)}; it writes {', '.join(ours)}.")
    wanted = tables or ours
    reports: list[MaintenanceReport] = []
    with sessions(sink.spark_conf()) as session:
        for number, name in enumerate(wanted, 1):
            others = tuple(table.location() for other, table in there.items() if other != name)
            say = partial(watch.step, name)
            task = TableMaintenance(sink.place(name), options, session, say, epoch, others, sink.config.one_table)
            try:
                missing = MaintenanceReport(name, notes=("the table is not there",))
                reports.append(task.run() if name in there else missing)
            except LandonceError as error:
                reports.append(MaintenanceReport(name, error=error.what, exit_code=error.exit_code))
            watch.done(reports[-1], number, len(wanted))
    return tuple(reports)


def tables_there(sink: IcebergSink, names: Iterable[str]) -> dict[str, Table]:
    """The tables that exist."""
    found = {name: sink.place(name).find() for name in names}
    return {name: table for name, table in found.items() if table is not None}


def tables_of(
    sink: IcebergSink, state: LedgerState | None, names: tuple[str, ...], there: Mapping[str, Table]
) -> tuple[str, ...]:
    """A table whose name fits the template may be somebody else's: it is ours if it carries a mark, or if the ledger knows it."""
    known = {*sink.static, *(dict(state.tables) if state is not None else ())}
    marked = {each for each, table in there.items() if sink.pipeline in pipelines_of(table.metadata)}
    return tuple(each for each in names if each in known | marked)
