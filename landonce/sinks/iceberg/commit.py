"""The atomic commit: load, judge, build, send; and all of it again when another writer was faster.

The judgement is made on the same metadata that the attempt is built on, and the catalog accepts the attempt only while the
branch's head is still the one of that metadata. PyIceberg's own commit is not used: it would rebuild a stale append on the new
head and send it without a check. A commit without an answer is not settled here: the next attempt finds the commit's mark in the
table (`Verdict.DONE`), or does not.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Operation, SnapshotSummaryCollector, Summary, update_snapshot_summaries
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotRefUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.table.update.snapshot import _MergeAppendFiles
from pyiceberg.typedef import EMPTY_DICT
from pyspark.sql import SparkSession

from landonce.config.secrets import redact
from landonce.errors import ConfigError, TableReplaced, TableUnfit, TargetUnavailable
from landonce.failpoints import reach
from landonce.protocol.marks import TableView, Verdict
from landonce.sinks.iceberg import jvm
from landonce.sinks.iceberg.catalog import CatalogSpec, catalog_errors
from landonce.sinks.iceberg.marks import copy_name, copy_of, look_at
from landonce.sinks.iceberg.table import unwritable
from landonce.sinks.snapshot import table_view

_BY_PYICEBERG = 2
"""The newest format version in which PyIceberg makes snapshots."""
_CONFLICTS = 50
"""Attempts in a row that other writers may win before the driver gets an error; it then waits, and tries again."""
_UNRACED = 10
"""Attempts in a row that a catalog may refuse on one and the same metadata: no other writer can be the reason."""


@dataclass(frozen=True)
class Attempt:
    """One request to the catalog, and how to remove its files if it is refused."""

    updates: tuple[TableUpdate, ...]
    requirements: tuple[TableRequirement, ...]
    snapshot: int
    discard: Callable[[], None] = field(default=lambda: None)
    staged: bool = False
    """The snapshot is in the table already, on a branch of its own."""


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

    @property
    def catalog(self) -> Catalog:
        """Connects at first use."""
        return self.open()

    def load(self) -> Table:
        """The table as it is now."""
        table = self.find()
        if table is None:
            raise TableReplaced(
                f"the table {self.identifier} does not exist.",
                safe="Nothing was written.",
                command="restore the table; or start again with `landonce run {file}`: with `create: true`, "
                "landonce creates a new table and delivers everything that Kafka still holds",
            )
        return table

    def find(self) -> Table | None:
        """The table as it is now. None if it does not exist."""
        with catalog_errors(self.spec):
            try:
                return self.catalog.load_table(self.identifier)
            except NoSuchTableError:
                return None

    def commit(
        self, judge: Callable[[Table], Verdict], build: Callable[[Table], Attempt]
    ) -> tuple[Verdict, int, Table]:
        """Tries until an attempt is accepted, or the judgement is not `GO`. Returns the judgement, the new snapshot's id and the table."""
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
            verdict = judge(table)
            if verdict is not Verdict.GO:
                return verdict, 0, table
            attempt = build(table)
            reach("attempt.before")
            try:
                self.send(table, attempt)
            except CommitFailedException as error:
                # A gateway that sends a request twice gets this answer too: look before removing the attempt's files.
                refused, why = attempt, str(error)
                time.sleep(random.uniform(0.01, 0.05) * min(conflict + 1, 20))  # noqa: S311  not a secret
                continue
            reach("attempt.after")
            return Verdict.GO, attempt.snapshot, table
        if unraced == _UNRACED:
            raise TargetUnavailable(
                f"the catalog {self.spec.name} refuses to commit to {self.identifier}, although nobody else commits to "
                f"it: {redact(why)}"
            )
        raise TargetUnavailable(f"other writers of {self.identifier} were faster {_CONFLICTS} times in a row.")

    def send(self, table: Table, attempt: Attempt) -> None:
        """One request. `CommitFailedException`: refused, and nothing changed."""
        with catalog_errors(self.spec):
            if table.metadata.format_version < 3 or self.spec.kind == "rest":
                self._send_by_pyiceberg(table, attempt)
            elif self.session is None:
                raise _too_new(table, self.identifier)
            else:
                with jvm.own_session(self.session(), self.spec) as mine:
                    jvm.commit(mine, self.spec, self.identifier, attempt.requirements, attempt.updates)
                table.refresh()

    def _send_by_pyiceberg(self, table: Table, attempt: Attempt) -> None:
        """Snapshots are numbered over all branches, so a commit to another branch makes an attempt stale too, as does one that was
        rolled back since. The head does not show that, and PyIceberg raises `ValueError` for it."""
        try:
            table._do_commit(attempt.updates, attempt.requirements)
        except ValueError as error:
            if self.load().metadata_location == table.metadata_location:
                raise
            raise CommitFailedException(str(error)) from None

    def view(self, table: Table) -> TableView:
        """What the table says of the pipeline."""
        return table_view(self.identifier, look_at(table, self.pipeline, self.branch))

    def head(self, table: Table) -> int | None:
        ref = table.metadata.refs.get(self.branch)
        return ref.snapshot_id if ref is not None else None

    def ensure_branch(self) -> None:
        """Creates the branch at the head of the main one, so that its readers see the whole table. A table without a
        snapshot gets an empty one first: PyIceberg's catalogs refuse any other branch on it."""
        if self.branch == MAIN_BRANCH:
            return
        why = ""
        for _ in range(_UNRACED):
            table = self.load()
            main = table.metadata.refs.get(MAIN_BRANCH)
            there = table.metadata.refs.get(self.branch)
            if there is not None and there.snapshot_ref_type is not SnapshotRefType.BRANCH:
                raise ConfigError(f"sink.iceberg.branch: {self.branch!r} is a tag of {self.identifier}, not a branch.")
            if there is not None or (main is None and not by_pyiceberg(table)):
                return
            made = self._branching(table, main.snapshot_id) if main is not None else self._first_snapshot(table)
            try:
                self.send(table, made)
            except CommitFailedException as error:  # somebody else did it, or part of it; or nobody may
                why = str(error)
        raise TargetUnavailable(f"the branch {self.branch} of {self.identifier} could not be created: {redact(why)}")

    def _branching(self, table: Table, snapshot: int) -> Attempt:
        """The branch, at this snapshot."""
        updates = (_points(table, self.branch, snapshot),)
        return Attempt(updates, (_still(table), _head_is(self.branch, None)), snapshot)

    def _first_snapshot(self, table: Table) -> Attempt:
        """An empty snapshot on the main branch of a table without any. It carries no mark: no pipeline wrote to that branch."""
        updates, snapshot, _ = self._snapshot(table, MAIN_BRANCH, (), {})
        return Attempt(
            (*updates, _points(table, MAIN_BRANCH, snapshot)), (_still(table), _head_is(MAIN_BRANCH, None)), snapshot
        )

    def appending(
        self, table: Table, files: Sequence[DataFile], summary: Mapping[str, str], properties: Mapping[str, str]
    ) -> Attempt:
        """New files, the mark in the summary, its copy in the properties: one commit. No files: an empty snapshot."""
        if not by_pyiceberg(table):
            raise _too_new(table, self.identifier)
        updates, snapshot, discard = self._snapshot(table, self.branch, files, summary)
        copied = {**properties, copy_name(self.pipeline, self.branch): copy_of(summary, snapshot)}
        return Attempt(
            (*updates, _points(table, self.branch, snapshot), SetPropertiesUpdate(updates=copied)),
            (_still(table), _head_is(self.branch, self.head(table))),
            snapshot,
            discard,
        )

    def _snapshot(
        self, table: Table, branch: str, files: Sequence[DataFile], summary: Mapping[str, str]
    ) -> tuple[tuple[TableUpdate, ...], int, Callable[[], None]]:
        """The updates that add a snapshot without moving the branch to it, its id, and what removes its metadata files."""
        producer = _Append(Operation.APPEND, _Unchanged(table), table.io, branch, None, dict(summary))
        for each in files:
            producer.append_data_file(each)
        with catalog_errors(self.spec):
            updates, _ = producer._commit()
        adding = tuple(each for each in updates if not isinstance(each, SetSnapshotRefUpdate))
        return adding, producer.snapshot_id, producer.discard

    def publishing(
        self, table: Table, staged: int, stage: str, summary: Mapping[str, str], properties: Mapping[str, str]
    ) -> Attempt:
        """Moves the branch to a snapshot that was staged on its present head, and on no other."""
        copied = {**properties, copy_name(self.pipeline, self.branch): copy_of(summary, staged)}
        return Attempt(
            (
                _points(table, self.branch, staged),
                SetPropertiesUpdate(updates=copied),
                RemoveSnapshotRefUpdate(ref_name=stage),  # type: ignore[call-arg]
            ),
            (_still(table), _head_is(self.branch, self.head(table))),
            staged,
            staged=True,
        )


def by_pyiceberg(table: Table) -> bool:
    """Whether PyIceberg makes snapshots of the table."""
    return bool(table.metadata.format_version <= _BY_PYICEBERG)


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


class _Append(_MergeAppendFiles):
    """PyIceberg's append, with files of more than one partition spec, and with small manifests merged unless the table
    forbids it: otherwise every commit would take a little longer than the one before."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        merging = self._transaction.table_metadata.properties.get("commit.manifest-merge.enabled", "true")
        self._merge_enabled = str(merging).lower() == "true"

    def _manifests(self) -> list[ManifestFile]:
        by_spec: dict[int, list[DataFile]] = {}
        for each in self._added_data_files:
            by_spec.setdefault(each.spec_id, []).append(each)
        added = [self._manifest(spec_id, files) for spec_id, files in sorted(by_spec.items())]
        return self._process_manifests(added + self._existing_manifests())

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        """Manifests of a former spec that PyIceberg cannot write are kept as they are: the spec's column may be gone."""
        schema, specs = self.schema(), self._transaction.table_metadata.specs()
        kept = {number for number, spec in specs.items() if unwritable(schema, spec)}
        merged = super()._process_manifests([each for each in manifests if each.partition_spec_id not in kept])
        return merged + [each for each in manifests if each.partition_spec_id in kept]

    def _manifest(self, spec_id: int, files: Sequence[DataFile]) -> ManifestFile:
        with self.new_manifest_writer(self.spec(spec_id)) as writer:
            for each in files:
                writer.add(
                    ManifestEntry.from_args(
                        status=ManifestEntryStatus.ADDED,
                        snapshot_id=self._snapshot_id,
                        sequence_number=None,
                        file_sequence_number=None,
                        data_file=each,
                    )
                )
        return writer.to_manifest_file()

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        """Leaves out single partitions: PyIceberg would write them by the default spec, which need not be that of the
        files, and it cannot write every year."""
        collector = SnapshotSummaryCollector()
        for each in self._added_data_files:
            collector.metrics.add_file(each)
        metadata, parent = self._transaction.table_metadata, self._parent_snapshot_id
        previous = metadata.snapshot_by_id(parent) if parent is not None else None
        return update_snapshot_summaries(
            summary=Summary(operation=self._operation, **collector.build(), **snapshot_properties),
            previous_summary=previous.summary if previous is not None else None,
        )

    def discard(self) -> None:
        """Deletes the metadata files of an attempt that was refused."""
        for path in (*self._written_manifests, *self._written_manifest_lists):
            try:
                self._io.delete(path)
            except OSError:
                continue


def _still(table: Table) -> AssertTableUUID:
    return AssertTableUUID(uuid=table.metadata.table_uuid)


def _head_is(branch: str, snapshot: int | None) -> AssertRefSnapshotId:
    return AssertRefSnapshotId(ref=branch, snapshot_id=snapshot)  # type: ignore[call-arg]


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
