"""Maintenance of a pipeline's tables, one after the other: compact, expire, delete what nobody needs.

Every step is safe beside a running pipeline. A table whose maintenance fails does not keep the others from theirs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import partial

from pyiceberg.table import Table
from pyspark.sql import SparkSession

from landonce.errors import ConfigError, LandonceError
from landonce.protocol.ledger import LedgerState
from landonce.sinks.iceberg.commit import TableBranch
from landonce.sinks.iceberg.maintain.compact import Compacted, Wanted, census, compact
from landonce.sinks.iceberg.maintain.expire import Policy, Removal, expiry, pipelines_of, remove
from landonce.sinks.iceberg.maintain.files import (
    Files,
    delete,
    files_of,
    files_only_in,
    folders_of,
    listed,
    shares_location,
)
from landonce.sinks.iceberg.maintain.orphans import Bounds, bounds, dead_stages, orphans
from landonce.sinks.iceberg.maintain.report import Deleted, TableReport
from landonce.sinks.iceberg.sink import IcebergSink, catalog_exists, table_names
from landonce.sinks.operations import Sessions, Upkeep, Watch
from landonce.sinks.parts import Parts
from landonce.sinks.snapshot import TableLedger

_NO_GC = "`gc.enabled` is false: its files may be another table's, so nothing of it expires and nothing is deleted"
_SHARED = (
    "another table's metadata lies in its folder (it was renamed, or dropped with its files kept, and this one was made in its place): files "
    "here may be that table's, so orphans were not searched for"
)
_OUTSIDE = "its data folder is outside of its own and may be shared with other tables: it was not searched for orphans"


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

    def run(self) -> TableReport:
        """Compacts, expires, deletes. Files are listed before the metadata that decides about them is loaded, see `orphans`."""
        candidates, compacted = self._compact() if self.options.compact else (0, Compacted())
        table = self.place.load()
        if table.properties.get("gc.enabled", "true").lower() == "false":
            return TableReport(self._name, self.options.dry, candidates, compacted, notes=(_NO_GC,))
        folders = folders_of(table, shared=not self.alone)
        self.say("listing files")
        shared = shares_location(table)
        found = listed(table, folders, self.others) if not shared else ()
        before, removed = self._remove()
        after = before if self.options.dry else self.place.load()
        self.say("reading manifests")
        kept = self._named(after, removed.expiry.ids if self.options.dry else ())
        gone = files_only_in(before.io, before.metadata, removed.expiry.ids, kept)
        now, named = datetime.now(timezone.utc), kept.names() | gone.names()
        limit = self.options.orphans_older_than
        left = orphans(found, named, self.place.pipeline, self._bounds(after), now, limit)
        return TableReport(
            table=self._name,
            dry=self.options.dry,
            candidates=candidates,
            compacted=compacted,
            removed=removed,
            expired=self._delete(after, {**gone.data, **gone.metadata}.items()),
            orphans=self._delete(after, ((each.path, each.size) for each in left.dead)),
            waiting=len(left.waiting),
            notes=(*((_OUTSIDE,) if len(folders) == 1 else ()), *((_SHARED,) if shared else ())),
        )

    @property
    def _name(self) -> str:
        return self.place.identifier

    def _compact(self) -> tuple[int, Compacted]:
        place, options = self.place, self.options
        found = census(place.load(), place.branch, options.target)
        candidates = found.files if found.vectors or found.deletes else found.small
        if options.dry or not (candidates or found.many_manifests):
            return candidates, Compacted()
        self.say(f"compacting {candidates} files")
        wanted = Wanted(place.branch, options.target, options.where)
        return candidates, compact(self.session(), place.spec, place.identifier, found, wanted)

    def _remove(self) -> tuple[Table, Removal]:
        if self.options.dry:
            table = self.place.load()
            return table, self._removal(table)
        self.say("expiring snapshots")
        return remove(self.session, self.place.spec, self.place.load, self._removal)

    def _removal(self, table: Table) -> Removal:
        """Abandoned staging branches go now, and their snapshots once they are old."""
        options, metadata = self.options, table.metadata
        stages = dead_stages(metadata, self.place.pipeline, self._bounds(table))
        left = {name: ref for name, ref in metadata.refs.items() if name not in stages}
        age = options.expire_older_than
        age_ms = age // timedelta(milliseconds=1) if age is not None else None
        policy = Policy.of(table.properties, age_ms, options.keep_last, options.retired)
        return Removal(expiry(metadata.model_copy(update={"refs": left}), policy, time.time_ns() // 10**6), stages)

    def _bounds(self, table: Table) -> Bounds:
        return bounds(table.metadata, self.place.pipeline, self.place.branch, self.ledger_epoch)

    def _named(self, table: Table, without: Iterable[int]) -> Files:
        """The files that the remaining snapshots name."""
        gone = set(without)
        left = [each for each in table.metadata.snapshots if each.snapshot_id not in gone]
        metadata = table.metadata.model_copy(update={"snapshots": left})
        return files_of(table.io, metadata, lambda done, all_: self.say(f"reading manifests: {done} of {all_}"))

    def _delete(self, table: Table, files: Iterable[tuple[str, int]]) -> Deleted:
        sizes = dict(files)
        failed = 0
        if sizes and not self.options.dry:
            self.say(f"deleting {len(sizes)} files")
            failed = delete(table, sizes)
        return Deleted(len(sizes) - failed, sum(sizes.values()), failed)


def maintain(
    parts: Parts, sink: IcebergSink, options: Upkeep, watch: Watch, sessions: Sessions, tables: tuple[str, ...] = ()
) -> tuple[TableReport, ...]:
    """Maintains the named tables, or all that the pipeline writes. Spark is started only if it is needed."""
    if not catalog_exists(sink):
        return ()
    ledger = None if isinstance(parts.ledger, TableLedger) else parts.ledger.load()
    names = table_names(sink, ledger)
    there = _there(sink, names)
    ours = _ours(sink, ledger, names, there)
    unknown = sorted(set(tables) - set(ours))
    if unknown:
        raise ConfigError(f"--table: the pipeline writes no {', '.join(unknown)}; it writes {', '.join(ours)}.")
    wanted = tables or ours
    reports = []
    with sessions(sink.spark_conf()) as session:
        for number, name in enumerate(wanted, 1):
            others = tuple(table.location() for other, table in there.items() if other != name)
            task = TableMaintenance(
                place=sink.place(name),
                options=options,
                session=session,
                say=partial(watch.step, name),
                ledger_epoch=_epoch(parts, ledger),
                others=others,
                alone=sink.config.one_table,
            )
            reports.append(_run(task, there=name in there))
            watch.done(reports[-1], number, len(wanted))
    return tuple(reports)


def _there(sink: IcebergSink, names: tuple[str, ...]) -> dict[str, Table]:
    """The tables that exist."""
    found = {name: sink.place(name).find() for name in names}
    return {name: table for name, table in found.items() if table is not None}


def _ours(
    sink: IcebergSink, ledger: LedgerState | None, names: tuple[str, ...], there: Mapping[str, Table]
) -> tuple[str, ...]:
    """A table whose name fits the template may be somebody else's: it is ours if it carries a mark, or if the ledger knows it."""
    known = {*sink.static, *(dict(ledger.tables) if ledger is not None else ())}
    marked = {each for each, table in there.items() if sink.pipeline in pipelines_of(table.metadata)}
    return tuple(each for each in names if each in known | marked)


def _epoch(parts: Parts, ledger: LedgerState | None) -> int | None:
    """None if the table is the ledger. A lost ledger (0) says nothing about drivers that were superseded."""
    if isinstance(parts.ledger, TableLedger):
        return None
    return ledger.epoch if ledger is not None else 0


def _run(task: TableMaintenance, *, there: bool) -> TableReport:
    if not there:
        return TableReport(task.place.identifier, notes=("the table is not there",))
    try:
        return task.run()
    except LandonceError as error:
        return TableReport(task.place.identifier, error=error.what, exit_code=error.exit_code)
