"""One branch of one table, and the atomic commit to it: load, judge, build, send; and all of it again when another writer was faster.

The judgement is made on the same metadata that the attempt is built on, and the catalog accepts the attempt only while the
branch's head is still the one of that metadata. PyIceberg's own commit is not used: it would rebuild a stale append on the new
head and send it without a check. A commit without an answer is not settled here: the next attempt finds the commit's mark in the
table (`Verdict.DONE`), or does not.

A table carries marks in the summaries of its snapshots, and a copy in its properties. Where it is its own ledger,
`sinks.snapshot.TableLedger` keeps the position there.
"""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from urllib.parse import urlsplit

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
    ManifestWriterV2,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Operation, SnapshotSummaryCollector, Summary, update_snapshot_summaries
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.table.update.snapshot import _ManifestMergeManager, _MergeAppendFiles
from pyiceberg.typedef import EMPTY_DICT, TableVersion
from pyiceberg.types import IntegerType, ListType, NestedField, StructType
from pyspark.sql import SparkSession

from landonce.config.secrets import redact
from landonce.errors import ConfigError, Fenced, SeekRefused, TableUnfit, TargetUnavailable
from landonce.failpoints import reach
from landonce.protocol.ledger import Note
from landonce.protocol.marks import Mark, TableView, Verdict, verdict
from landonce.protocol.operate import kept_notes
from landonce.protocol.own_ledger import OwnView
from landonce.sinks.iceberg import spark
from landonce.sinks.iceberg.catalog import CatalogSpec, catalog_errors
from landonce.sinks.iceberg.files import StagedFile, WrittenFile
from landonce.sinks.iceberg.marks import copy_name, copy_of, journal_name, look_at, to_summary
from landonce.sinks.iceberg.table import unwritable
from landonce.sinks.snapshot import Judge, MarkedTable, no_such_table, table_view

_CONFLICTS = 50
"""Attempts in a row that other writers may win before the driver gets an error; it then waits, and tries again."""
_UNRACED = 10
"""Attempts in a row that a catalog may refuse on one and the same metadata: no other writer can be the reason."""
_KEPT_NOTES = 100


@dataclass(frozen=True)
class Attempt:
    """One request to the catalog, and how to remove its files if it is refused."""

    updates: tuple[TableUpdate, ...]
    requirements: tuple[TableRequirement, ...] = ()
    snapshot: int = 0
    """The one that it adds, if it adds one."""
    discard: Callable[[], None] = field(default=lambda: None)
    staged: bool = False
    """The snapshot is in the table already, on a branch of its own."""


Step = Callable[[Table], Attempt | Verdict]
"""Judges the table as it is, and makes an attempt on that very metadata; or says why none is to be made."""
Build = Callable[[Table, Mapping[str, str], Mapping[str, str]], Attempt]
"""Makes an attempt of the table, a mark's summary and table properties."""
Building = Callable[[tuple[WrittenFile, ...]], Build]
"""How a commit of these files is made."""


@dataclass(frozen=True)
class TableBranch:
    """One branch of one table, for one pipeline."""

    spec: CatalogSpec
    open: Callable[[], Catalog]
    identifier: str
    branch: str
    pipeline: str
    session: Callable[[], SparkSession] | None = None
    """Spark with Iceberg's runtime: PyIceberg alone does not commit to a table of format version 3."""

    def load(self) -> Table:
        """The table as it is now."""
        table = self.find()
        if table is None:
            raise no_such_table(self.identifier)
        return table

    def find(self) -> Table | None:
        """The table as it is now. None if it does not exist."""
        with catalog_errors(self.spec):
            try:
                return self.open().load_table(self.identifier)
            except NoSuchTableError:
                return None

    def commit(self, step: Step) -> tuple[Verdict, Table]:
        """Tries until an attempt is accepted (`GO`), or `step` makes none. Returns the verdict and the table."""
        refused: Attempt | None = None
        built_on, unraced, why = "", 0, ""
        for conflict in range(_CONFLICTS):
            table = self.load()
            unraced = unraced + 1 if table.metadata_location == built_on else 0
            if unraced == _UNRACED:
                break
            built_on = table.metadata_location
            if refused is not None and (refused.staged or table.metadata.snapshot_by_id(refused.snapshot) is None):
                refused.discard()
            attempt = step(table)
            if isinstance(attempt, Verdict):
                return attempt, table
            try:
                self.send(table, attempt)
            except CommitFailedException as error:
                # A gateway that sends a request twice gets this answer too: look before removing the attempt's files.
                refused, why = attempt, str(error)
                time.sleep(random.uniform(0.01, 0.05) * min(conflict + 1, 20))  # noqa: S311  not a secret
                continue
            return Verdict.GO, table
        if unraced == _UNRACED:
            raise TargetUnavailable(
                f"the catalog {self.spec.name} refuses to commit to {self.identifier}, although nobody else commits to "
                f"it: {redact(why)}"
            )
        raise TargetUnavailable(f"other writers of {self.identifier} were faster {_CONFLICTS} times in a row.")

    def send(self, table: Table, attempt: Attempt) -> None:
        """One request. `CommitFailedException`: refused, and nothing changed.

        Snapshots are numbered over all branches, so a commit to another branch makes an attempt stale too, as does one that was
        rolled back since. The head does not show that, and PyIceberg raises `ValueError` for it.
        """
        with catalog_errors(self.spec):
            try:
                if table.metadata.format_version < 3 or self.spec.kind == "rest":
                    table._do_commit(attempt.updates, attempt.requirements)
                elif self.session is None:
                    raise _too_new(table, self.identifier)
                else:
                    with spark.own_session(self.session(), self.spec) as mine:
                        spark.commit(mine, self.spec, self.identifier, attempt.requirements, attempt.updates)
                    table.refresh()
            except ValueError as error:
                if self.load().metadata_location == table.metadata_location:
                    raise
                raise CommitFailedException(str(error)) from None

    def look(self, table: Table, *, vouching: bool = False) -> OwnView:
        """What the table says of the pipeline. `vouching`: an operator accepts the last commit."""
        with catalog_errors(self.spec):
            return look_at(table, self.pipeline, self.branch, vouching=vouching)

    def view(self, table: Table) -> TableView:
        """The same, as of one table of a fan-out."""
        return table_view(self.identifier, self.look(table))

    def head(self, table: Table, branch: str | None = None) -> int | None:
        ref = table.metadata.refs.get(branch or self.branch)
        return ref.snapshot_id if ref is not None else None

    def ensure_branch(self) -> None:
        """Creates the branch at the head of the main one, so that its readers see the whole table. A table without a
        snapshot gets an empty one first: PyIceberg's catalogs refuse any other branch on it."""

        def step(table: Table) -> Attempt | Verdict:
            main, there = self.head(table, MAIN_BRANCH), table.metadata.refs.get(self.branch)
            if there is not None and there.snapshot_ref_type is not SnapshotRefType.BRANCH:
                raise ConfigError(f"sink.iceberg.branch: {self.branch!r} is a tag of {self.identifier}, not a branch.")
            if there is not None or (main is None and not by_pyiceberg(table)):
                return Verdict.DONE
            if main is not None:
                return self._moving(table, self.branch, main)
            added, snapshot, discard = self._snapshot(table, MAIN_BRANCH, (), {})  # without a mark: it is nobody's
            return self._moving(table, MAIN_BRANCH, snapshot, added, discard=discard)

        if self.branch != MAIN_BRANCH:
            while self.commit(step)[0] is Verdict.GO:
                continue

    def drop_stages(self, epoch: int) -> None:
        """Removes the staging branches that earlier epochs of the pipeline left behind."""

        def step(table: Table) -> Attempt | Verdict:
            left = spark.left_behind(table.metadata.refs, self.pipeline, epoch)
            return Attempt(tuple(map(spark.removed, left))) if left else Verdict.DONE

        self.commit(step)

    def appending(
        self,
        table: Table,
        summary: Mapping[str, str],
        properties: Mapping[str, str],
        files: Sequence[DataFile] = (),
        base: int | None = None,
    ) -> Attempt:
        """New files, the mark in the summary, its copy in the properties: one commit. No files: an empty snapshot. `base`: an earlier
        snapshot that it follows, instead of the head; refused if that expired meanwhile."""
        if not by_pyiceberg(table):
            raise _too_new(table, self.identifier)
        updates, snapshot, discard = self._snapshot(table, self.branch, files, summary, base=base)
        if base is not None:
            updates = (_points(table, self.branch, base), *updates)
        copied = {**properties, copy_name(self.pipeline, self.branch): copy_of(summary, snapshot)}
        copy = SetPropertiesUpdate(updates=copied)
        return self._moving(table, self.branch, snapshot, updates, (copy,), discard)

    def dropping(self, table: Table, paths: Collection[str]) -> Attempt:
        """A snapshot without these delete files, and with the same rows. It carries no mark."""
        updates, snapshot, discard = self._snapshot(table, self.branch, (), {}, paths)
        return self._moving(table, self.branch, snapshot, updates, discard=discard)

    def _moving(
        self,
        table: Table,
        branch: str,
        snapshot: int,
        before: tuple[TableUpdate, ...] = (),
        after: tuple[TableUpdate, ...] = (),
        discard: Callable[[], None] = lambda: None,
        *,
        staged: bool = False,
    ) -> Attempt:
        """Moves a branch to this snapshot, if it is still where it is in the table. `before`, `after`: what changes with it, in this order."""
        head = AssertRefSnapshotId(ref=branch, snapshot_id=self.head(table, branch))  # type: ignore[call-arg]
        requirements = (AssertTableUUID(uuid=table.metadata.table_uuid), head)
        return Attempt((*before, _points(table, branch, snapshot), *after), requirements, snapshot, discard, staged)

    def _snapshot(
        self,
        table: Table,
        branch: str,
        files: Sequence[DataFile],
        summary: Mapping[str, str],
        dropped: Collection[str] = (),
        base: int | None = None,
    ) -> tuple[tuple[TableUpdate, ...], int, Callable[[], None]]:
        """The updates that add a snapshot without moving the branch to it, its id, and what removes its metadata files."""
        producer = _Append(_operation(files), _Unchanged(table), table.io, branch, None, dict(summary))
        for each in files:
            producer.append_data_file(each)
        producer.dropped = frozenset(dropped)
        if base is not None:
            producer._parent_snapshot_id = base
        with catalog_errors(self.spec):
            updates, _ = producer._commit()
        adding = tuple(each for each in updates if not isinstance(each, SetSnapshotRefUpdate))
        return adding, producer.snapshot_id, producer.discard

    def staging(
        self,
        table: Table,
        summary: Mapping[str, str],
        properties: Mapping[str, str],
        files: Sequence[StagedFile] = (),
        how: spark.Append | spark.Merge | None = None,
        base: int | None = None,
    ) -> Attempt:
        """The same, with a snapshot that Spark stages on the branch's present head, or on an earlier one (`base`). It is published on that
        head, and on no other."""
        assert self.session is not None
        session, spec, name = self.session(), self.spec, self.identifier
        stage = spark.StageOf(self.pipeline, int(summary["landonce.epoch"]), int(summary["landonce.batch"])).new_name()
        staged = spark.stage(
            session,
            spec,
            name,
            stage,
            base or self.head(table),
            [each.path for each in files],
            how or spark.Append(),
            summary,
            table.metadata.current_schema_id,
            table.io.properties,
        )
        copied = {**properties, copy_name(self.pipeline, self.branch): copy_of(summary, staged)}
        after = (SetPropertiesUpdate(updates=copied), spark.removed(stage))
        discard = partial(spark.drop_stage, session, spec, name, stage)
        return self._moving(table, self.branch, staged, (), after, discard, staged=True)

    def empty(
        self, table: Table, summary: Mapping[str, str], properties: Mapping[str, str], base: int | None = None
    ) -> Attempt:
        """The same without files: by PyIceberg, or by Spark if PyIceberg does not write the table's format version."""
        if by_pyiceberg(table) or self.session is None:
            return self.appending(table, summary, properties, base=base)
        return self.staging(table, summary, properties, base=base)


def by_pyiceberg(table: Table) -> bool:
    """Whether PyIceberg makes snapshots of the table."""
    return bool(table.metadata.format_version <= 2)


def _too_new(table: Table, name: str) -> TableUnfit:
    return TableUnfit(
        f"{name} is of format version {table.metadata.format_version}, which only Spark's own writer can commit to.",
        safe="Nothing was changed.",
        command="landonce run {file}",
    )


class _Unchanged(Transaction):
    """A transaction without changes of its own. PyIceberg's copies all of the table's metadata at every access, so a commit
    would take longer with every snapshot that the table keeps."""

    @property
    def table_metadata(self) -> TableMetadata:
        return self._table.metadata


def _operation(files: Iterable[DataFile]) -> Operation:
    """What a snapshot that adds these files does to the table's rows."""
    contents = {each.content for each in files}
    if contents <= {DataFileContent.DATA}:
        return Operation.APPEND
    return Operation.OVERWRITE if DataFileContent.DATA in contents else Operation.DELETE


_EQUALITY_IDS = 135


class _DeletesWriter(ManifestWriterV2):
    """PyIceberg writes manifests of data files only. Those of delete files say so, and hold the ids of key columns, which PyIceberg would
    write as longs; Java reads them as the ints that Iceberg's specification names."""

    def _with_partition(self, format_version: TableVersion) -> Schema:
        """The schema of an entry."""
        entry = super()._with_partition(format_version)
        return Schema(*(_with_short_ids(each) for each in entry.fields))

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def _with_short_ids(field: NestedField) -> NestedField:
    kind = field.field_type
    if isinstance(kind, StructType):
        return field.model_copy(update={"field_type": StructType(*map(_with_short_ids, kind.fields))})
    if field.field_id == _EQUALITY_IDS and isinstance(kind, ListType):
        return field.model_copy(update={"field_type": kind.model_copy(update={"element_type": IntegerType()})})
    return field


class _Append(_MergeAppendFiles):
    """PyIceberg's append, with files of more than one partition spec, with delete files, and with small manifests merged unless
    the table forbids it: otherwise every commit would take a little longer than the one before."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        merging = self._transaction.table_metadata.properties.get("commit.manifest-merge.enabled", "true")
        self._merge_enabled = str(merging).lower() == "true"
        self.dropped: frozenset[str] = frozenset()
        """The paths of delete files that the snapshot leaves out."""

    def _existing_manifests(self) -> list[ManifestFile]:
        found = super()._existing_manifests()
        if not self.dropped:
            return found
        return [left for each in found for left in self._without_dropped(each)]

    def _without_dropped(self, manifest: ManifestFile) -> tuple[ManifestFile, ...]:
        """The manifest, or one in its place that says which of its files are dropped by this snapshot."""
        if manifest.content != ManifestContent.DELETES:
            return (manifest,)
        entries = self.fetch_manifest_entry(manifest, discard_deleted=True)
        if not any(each.data_file.file_path in self.dropped for each in entries):
            return (manifest,)
        with self.new_deletes_writer(self.spec(manifest.partition_spec_id)) as writer:
            for each in entries:
                if each.data_file.file_path in self.dropped:
                    writer.delete(each)
                    self._deleted_data_files.add(each.data_file)
                else:
                    writer.existing(each)
        return (writer.to_manifest_file(),)

    def _manifests(self) -> list[ManifestFile]:
        alike: dict[tuple[bool, int], list[DataFile]] = {}
        for each in self._added_data_files:
            alike.setdefault((each.content is not DataFileContent.DATA, each.spec_id), []).append(each)
        added = []
        for (deletes, spec_id), files in sorted(alike.items()):
            with (self.new_deletes_writer if deletes else self.new_manifest_writer)(self.spec(spec_id)) as writer:
                for each in files:
                    entry = ManifestEntry.from_args(
                        status=ManifestEntryStatus.ADDED,
                        snapshot_id=self._snapshot_id,
                        sequence_number=None,
                        file_sequence_number=None,
                        data_file=each,
                    )
                    writer.add(entry)
            added.append(writer.to_manifest_file())
        return self._process_manifests(added + self._existing_manifests())

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        """Manifests of a former spec that PyIceberg cannot write are kept as they are: the spec's column may be gone."""
        schema, specs = self.schema(), self._transaction.table_metadata.specs()
        kept = {number for number, spec in specs.items() if unwritable(schema, spec)}
        ours = [each for each in manifests if each.partition_spec_id not in kept]
        of_data = [each for each in ours if each.content == ManifestContent.DATA]
        of_deletes = [each for each in ours if each.content == ManifestContent.DELETES]
        merging = self._target_size_bytes, self._min_count_to_merge, self._merge_enabled
        return [
            *super()._process_manifests(of_data),
            *_ManifestMergeManager(*merging, _DeletesOf(self)).merge_manifests(of_deletes),  # type: ignore[arg-type]
            *(each for each in manifests if each.partition_spec_id in kept),
        ]

    def new_deletes_writer(self, spec: PartitionSpec) -> ManifestWriter:
        output = self.new_manifest_output()
        return _DeletesWriter(spec, self.schema(), output, self._snapshot_id, self._compression)

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        """Leaves out single partitions: PyIceberg would write them by the default spec, which need not be that of the
        files, and it cannot write every year."""
        collector = SnapshotSummaryCollector()
        for each in self._added_data_files:
            collector.metrics.add_file(each)
        for each in self._deleted_data_files:
            collector.metrics.remove_file(each)
        metadata, parent = self._transaction.table_metadata, self._parent_snapshot_id
        previous = metadata.snapshot_by_id(parent) if parent is not None else None
        summary = update_snapshot_summaries(
            summary=Summary(operation=self._operation, **collector.build(), **snapshot_properties),
            previous_summary=previous.summary if previous is not None else None,
        )
        if self.dropped:  # the totals of a replacement are not what PyIceberg adds up
            return Summary(operation=Operation.REPLACE, **summary.additional_properties)
        return summary

    def discard(self) -> None:
        """Deletes the metadata files of an attempt that was refused."""
        for path in (*self._written_manifests, *self._written_manifest_lists):
            try:
                self._io.delete(path)
            except OSError:
                continue


@dataclass(frozen=True)
class _DeletesOf:
    """What merging manifests asks of a snapshot, with manifests of delete files."""

    producer: _Append

    @property
    def snapshot_id(self) -> int:
        return self.producer.snapshot_id

    def spec(self, spec_id: int) -> PartitionSpec:
        return self.producer.spec(spec_id)

    def fetch_manifest_entry(self, manifest: ManifestFile, discard_deleted: bool = True) -> list[ManifestEntry]:
        return self.producer.fetch_manifest_entry(manifest, discard_deleted)

    def new_manifest_writer(self, spec: PartitionSpec) -> ManifestWriter:
        return self.producer.new_deletes_writer(spec)


def _points(table: Table, branch: str, snapshot: int) -> SetSnapshotRefUpdate:
    """Keeps the branch's own rules of retention, which would be lost otherwise."""
    ref = table.metadata.refs.get(branch)
    return SetSnapshotRefUpdate(
        ref_name=branch,  # type: ignore[call-arg]
        type=SnapshotRefType.BRANCH,
        snapshot_id=snapshot,
        max_ref_age_ms=ref.max_ref_age_ms if ref is not None else None,
        max_snapshot_age_ms=ref.max_snapshot_age_ms if ref is not None else None,
        min_snapshots_to_keep=ref.min_snapshots_to_keep if ref is not None else None,
    )


def check_visible(table: str, io: FileIO, files: Iterable[DataFile]) -> None:
    """Raises if workers wrote to a disk of their own: the table would name files that nobody else can read."""
    for path in (each.file_path for each in files):
        if urlsplit(path).scheme in ("", "file") and not io.new_input(path).exists():
            raise TableUnfit(
                f"{table}: a worker wrote {path}, and on the driver's machine there is no such file: its warehouse is not a place "
                "that all machines share.",
                safe="Nothing was committed.",
                command="put the warehouse where driver and workers see the same files",
            )


class IcebergTable(MarkedTable[WrittenFile]):
    """A place in a catalog, and how commits to it are made."""

    def __init__(self, place: TableBranch, building: Building | None = None, *, vouching: bool = False) -> None:
        """Without `building`, PyIceberg adds data files. `vouching`: an operator accepts the last commit,
        though the history that would show it is cut off."""
        self.name = place.identifier
        self.place = place
        self._building = building or self._plainly
        self._vouching = vouching
        self.loaded: Table | None = None
        """The table as `view` saw it last."""

    def view(self) -> OwnView | None:
        self.loaded = self.place.find()
        return None if self.loaded is None else self._look(self.loaded)

    def commit(
        self,
        judge: Judge,
        mark: Mark,
        files: tuple[WrittenFile, ...],
        *,
        valid_through: int | None = None,
        note: Note | None = None,
    ) -> tuple[Verdict, OwnView]:
        build = self._building(files)

        def step(seen: Table) -> Attempt | Verdict:
            judged = judge(self._look(seen))
            if judged is not Verdict.GO:
                return judged
            summary = to_summary(replace(mark, commit=str(uuid.uuid4())), valid_through)
            attempt = build(seen, summary, self._noted(seen, note))
            reach("attempt.before")
            return attempt

        self.place.ensure_branch()
        judged, table = self.place.commit(step)
        if judged is Verdict.GO:
            reach("attempt.after")
        return judged, self._look(table)

    def journal(self) -> tuple[Note, ...]:
        table = self.place.find()
        return () if table is None else self._notes(table)

    def _plainly(self, files: tuple[WrittenFile, ...]) -> Build:
        data = [each for each in files if isinstance(each, DataFile)]
        assert len(data) == len(files), "only a driver with Spark commits staged files"
        return partial(self.place.appending, files=data) if data else self.place.empty

    def _look(self, table: Table) -> OwnView:
        return self.place.look(table, vouching=self._vouching)

    def _noted(self, table: Table, note: Note | None) -> dict[str, str]:
        if note is None:
            return {}
        notes = [[each.at, each.action, each.detail] for each in kept_notes((*self._notes(table), note), _KEPT_NOTES)]
        name = journal_name(self.place.pipeline, self.place.branch)
        return {name: json.dumps(notes, separators=(",", ":"))}

    def _notes(self, table: Table) -> tuple[Note, ...]:
        name = journal_name(self.place.pipeline, self.place.branch)
        return tuple(Note(*each) for each in json.loads(table.metadata.properties.get(name, "[]")))


def returning(place: TableBranch, head: int, base: int) -> Build:
    """Makes an empty snapshot after an earlier one, and moves the branch to it: the table has the rows of the earlier one again. Refused
    if the branch is not where it was looked at: what somebody committed since would be lost, too."""

    def build(table: Table, summary: Mapping[str, str], properties: Mapping[str, str]) -> Attempt:
        if place.head(table) != head or table.metadata.snapshot_by_id(base) is None:
            raise SeekRefused(
                f"the table {place.identifier} changed during this command: another writer committed to it, or snapshots expired.",
                safe="Nothing was changed.",
                command="run the same command again",
            )
        return place.empty(table, summary, properties, base)

    return build


def restate(place: TableBranch, seen: TableView, mark: Mark) -> None:
    """Sets a table's position by an empty snapshot with a mark, unless the table has changed since it was `seen`. The
    mark ends any doubt about the position."""

    def judge(own: OwnView) -> Verdict:
        now = table_view(place.identifier, own)
        return verdict(seen, replace(now, uncertain=now.uncertain and not seen.uncertain), mark.state)

    judged, _ = IcebergTable(place).commit(judge, mark, ())
    if judged is Verdict.MOVED:
        raise Fenced(
            f"the table {place.identifier} changed during this command: a driver runs, or the table was rolled back "
            "again.",
            safe="The ledger has the decision, and nothing was written to this table.",
            command="stop the driver, then run the same command again",
        )
