"""One table: compact, expire, delete what nobody needs, in this order and safe at every step beside a running pipeline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from pyiceberg.table import Table
from pyspark.sql import SparkSession

from landonce.sinks.iceberg.commit import Place
from landonce.sinks.iceberg.maintain import storage
from landonce.sinks.iceberg.maintain.census import census
from landonce.sinks.iceberg.maintain.compact import Compacted, Wanted, compact
from landonce.sinks.iceberg.maintain.expire import Removal, remove
from landonce.sinks.iceberg.maintain.keep import Policy, expiry
from landonce.sinks.iceberg.maintain.orphans import Bounds, Found, Orphans, bounds, dead_stages, orphans
from landonce.sinks.iceberg.maintain.references import Files, files_of, files_only_in
from landonce.sinks.iceberg.maintain.report import Deleted, TableReport
from landonce.sinks.operations import Upkeep

_NO_GC = "`gc.enabled` is false: its files may be another table's, so nothing of it expires and nothing is deleted"
_SHARED = (
    "another table's metadata lies in its folder (it was renamed, or dropped with its files kept, and this one was made in its place): files "
    "here may be that table's, so orphans were not searched for"
)
_OUTSIDE = "its data folder is outside of its own and may be shared with other tables: it was not searched for orphans"


@dataclass(frozen=True)
class Tender:
    """Whoever looks after one table."""

    place: Place
    options: Upkeep
    session: Callable[[], SparkSession]
    """Spark with Iceberg's runtime, started when it is first asked for."""
    say: Callable[[str], None]
    ledger_epoch: int | None = None
    """Where the ledger is not the table."""
    others: tuple[str, ...] = ()
    """Where the pipeline's other tables are."""
    alone: bool = True
    """The pipeline writes no other table."""

    def tend(self) -> TableReport:
        """All of it. Files are listed before the metadata is loaded that decides about them, see `orphans`."""
        candidates, compacted = self._compact() if self.options.compact else (0, Compacted())
        table = self.place.load()
        if table.properties.get("gc.enabled", "true").lower() == "false":
            return TableReport(self._name, self.options.dry, candidates, compacted, notes=(_NO_GC,))
        folders = storage.folders_of(table, shared=not self.alone)
        self.say("listing files")
        shared = storage.shares_location(table)
        found = storage.listed(table, folders, self.others) if not shared else ()
        before, removed = self._remove()
        after = before if self.options.dry else self.place.load()
        self.say("reading manifests")
        kept = self._named(after, removed.expiry.ids if self.options.dry else ())
        gone = files_only_in(before.io, before.metadata, removed.expiry.ids, kept)
        left = self._orphans(after, found, kept.names() | gone.names())
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
        """Staging branches of the dead go first, and what they led to when it is old."""
        options, metadata = self.options, table.metadata
        stages = dead_stages(metadata, self.place.pipeline, self._bounds(table))
        left = {name: ref for name, ref in metadata.refs.items() if name not in stages}
        age = options.expire_older_than
        policy = Policy.of(table.properties, _ms(age) if age is not None else None, options.keep_last, options.retired)
        return Removal(expiry(metadata.model_copy(update={"refs": left}), policy, time.time_ns() // 10**6), stages)

    def _bounds(self, table: Table) -> Bounds:
        return bounds(table.metadata, self.place.pipeline, self.place.branch, self.ledger_epoch)

    def _named(self, table: Table, without: Iterable[int]) -> Files:
        """What the snapshots that are left name."""
        gone = set(without)
        left = [each for each in table.metadata.snapshots if each.snapshot_id not in gone]
        metadata = table.metadata.model_copy(update={"snapshots": left})
        return files_of(table.io, metadata, lambda done, all_: self.say(f"reading manifests: {done} of {all_}"))

    def _orphans(self, table: Table, found: Iterable[Found], named: set[str]) -> Orphans:
        now, limit = datetime.now(timezone.utc), self.options.orphans_older_than
        return orphans(found, named, self.place.pipeline, self._bounds(table), now, limit)

    def _delete(self, table: Table, files: Iterable[tuple[str, int]]) -> Deleted:
        sizes = dict(files)
        failed = 0
        if sizes and not self.options.dry:
            self.say(f"deleting {len(sizes)} files")
            failed = storage.delete(table, sizes)
        return Deleted(len(sizes) - failed, sum(sizes.values()), failed)


def _ms(age: timedelta) -> int:
    return int(age.total_seconds() * 1000)
