"""A table at one snapshot of a branch, pinned when it is opened: its live files, which rows of them are deleted, and the rows that are left.

Deletes are position deletes (v2) and deletion vectors (v3); each delete file is read once. A delete applies to data files that are not
newer than it, by sequence number: if a file was registered again after the delete, only the first registration is affected. Equality
deletes are refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property

import numpy as np
import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot, ancestors_of
from pyiceberg.types import LongType, NestedField, StringType
from pyroaring import BitMap64

from landonce.config.secrets import redact
from landonce.errors import TableUnfit, TargetUnavailable
from landonce.sinks.audit import Reference
from landonce.sinks.iceberg.catalog import CatalogSpec, catalog_errors
from landonce.sinks.iceberg.held_files import FileColumns, MayHold, Positions, Projected

COORDINATES = ("_topic", "_kafka_partition", "_offset")
"""Iceberg's readers have their own column `_partition`."""
_LISTED = 10
_POSITION_DELETES = FileColumns(
    Schema(
        NestedField(2147483546, "file_path", StringType(), required=True),
        NestedField(2147483545, "pos", LongType(), required=True),
    )
)


@dataclass(frozen=True)
class LiveFile:
    """An entry of a manifest that counts in the snapshot."""

    file: DataFile
    sequence: int
    reference: Reference


@dataclass(frozen=True)
class Files:
    """All live entries of a snapshot."""

    data: tuple[LiveFile, ...] = ()
    deletes: tuple[LiveFile, ...] = ()

    def doubled(self) -> dict[str, tuple[Reference, ...]]:
        """Data files that more than one live entry registers, and these entries."""
        found: dict[str, list[Reference]] = defaultdict(list)
        for each in self.data:
            found[each.file.file_path].append(each.reference)
        return {path: tuple(them) for path, them in sorted(found.items()) if len(them) > 1}


def pinned(table: Table, branch: str) -> Snapshot | None:
    """The branch's newest snapshot; None if there is none, or no such branch."""
    reference = table.metadata.refs.get(branch)
    return table.metadata.snapshot_by_id(reference.snapshot_id) if reference is not None else None


def live_files(table: Table, snapshot: Snapshot) -> Files:
    """Every manifest of the snapshot, read once."""
    times = {each.snapshot_id: commit_time(each) for each in table.metadata.snapshots}
    data: list[LiveFile] = []
    deletes: list[LiveFile] = []
    for manifest in snapshot.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            by = entry.snapshot_id or manifest.added_snapshot_id or 0
            live = LiveFile(
                entry.data_file, entry.sequence_number or 0, Reference(by, times.get(by), manifest.manifest_path)
            )
            (data if entry.data_file.content == DataFileContent.DATA else deletes).append(live)
    _refuse_equality(table, deletes)
    return Files(tuple(data), tuple(deletes))


def _refuse_equality(table: Table, deletes: Iterable[LiveFile]) -> None:
    found = [each for each in deletes if each.file.content == DataFileContent.EQUALITY_DELETES]
    if found:
        raise TableUnfit(
            f"{'.'.join(table.name())} has {len(found)} equality delete files, the first of them added by snapshot "
            f"{found[0].reference.snapshot}: landonce writes none and cannot read them, so it does not know which rows count.",
            safe="An audit changes nothing.",
            command="rewrite the table's data files with the deletes applied (Spark: rewrite_data_files), then verify again",
        )


def rolled_back(table: Table, branch: str) -> tuple[Snapshot, ...]:
    """Snapshots that were the head of `main` and are no longer in its history. Other branches have no log."""
    head = pinned(table, branch)
    if branch != MAIN_BRANCH or head is None:
        return ()
    history = {each.snapshot_id for each in ancestors_of(head, table.metadata)}
    known = {each.snapshot_id: each for each in table.metadata.snapshots}
    were = dict.fromkeys(each.snapshot_id for each in table.metadata.snapshot_log)
    return tuple(known[each] for each in were if each in known and each not in history)


def commit_time(snapshot: Snapshot) -> str:
    return datetime.fromtimestamp(snapshot.timestamp_ms / 1000, timezone.utc).isoformat(timespec="milliseconds")


def described(snapshots: Iterable[Snapshot]) -> str:
    """The text for some snapshots: ids and commit times."""
    listed = [f"{each.snapshot_id} ({commit_time(each)})" for each in snapshots]
    more = f" and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
    return ", ".join(listed[:_LISTED]) + more


class Deletes:
    """All deletes of a snapshot, as one bitmap for each delete file and data file."""

    def __init__(self, io: FileIO, files: Iterable[LiveFile]) -> None:
        self._found: dict[str, list[tuple[int, BitMap64]]] = defaultdict(list)
        for sequence, file in {each.file.file_path: (each.sequence, each.file) for each in files}.values():
            for path, positions in _read(io, file).items():
                self._found[path].append((sequence, positions))

    def of(self, live: LiveFile) -> Positions:
        """The positions of its deleted rows, in order."""
        union = BitMap64()
        for sequence, positions in self._found.get(live.file.file_path, ()):
            if sequence >= live.sequence:
                union |= positions
        return np.array(union.to_array(), np.int64)


def _read(io: FileIO, file: DataFile) -> dict[str, BitMap64]:
    found: dict[str, BitMap64] = defaultdict(BitMap64)
    if file.file_format == FileFormat.PUFFIN:
        with io.new_input(file.file_path).open() as stream:
            puffin = PuffinFile(stream.read())
        for vector in deletion_vectors_from_puffin_file(puffin):
            found[vector.referenced_data_file] |= _bitmap(vector.to_vector())
        return found
    for batch in _POSITION_DELETES.flat(io, file):
        paths = batch.column("file_path").dictionary_encode()
        indices = paths.indices.to_numpy(zero_copy_only=False)
        for at, path in enumerate(paths.dictionary.to_pylist()):
            found[path] |= _bitmap(batch.column("pos").filter(pa.array(indices == at)))
    return found


def _bitmap(positions: pa.Array | pa.ChunkedArray) -> BitMap64:
    return BitMap64(np.asarray(positions.to_numpy()).astype(np.uint64))


class PinnedTable:
    """A missing table or branch has no rows; `notes` say so."""

    def __init__(
        self, spec: CatalogSpec, identifier: str, branch: str = "main", catalog: Catalog | None = None
    ) -> None:
        self.name = identifier
        self._branch = branch
        self._table = _load(spec, catalog, identifier)
        self._snapshot = pinned(self._table, branch) if self._table is not None else None

    @cached_property
    def files(self) -> Files:
        """Every live entry of every manifest."""
        if self._table is None or self._snapshot is None:
            return Files()
        with self._reading("its metadata"):
            return live_files(self._table, self._snapshot)

    def rows(self, names: Sequence[str]) -> Iterator[tuple[LiveFile, pa.RecordBatch]]:
        """These columns of every live entry, file by file: a file that is registered twice comes twice."""
        if self._table is None or not self.files.data:
            return
        columns = FileColumns(self._schema(names), self._table.metadata.name_mapping())
        for live in self.files.data:
            with self._reading(f"{live.file.file_path}, which snapshot {live.reference.snapshot} registered,"):
                for batch in columns.flat(self._table.io, live.file, self._deletes.of(live)):
                    yield live, batch

    def has(self, name: str) -> bool:
        """Whether the pinned snapshot has the column."""
        return self._snapshot is not None and name in self._pinned_schema().column_names

    def pieces(self, live: LiveFile, names: Sequence[str], may_hold: MayHold) -> Iterator[Projected]:
        """These columns of one live entry with everything inside; skips row groups of Parquet that are not needed."""
        assert self._table is not None
        columns = FileColumns(self._schema(names), self._table.metadata.name_mapping())
        with self._reading(f"{live.file.file_path}, which snapshot {live.reference.snapshot} registered,"):
            yield from columns.of(self._table.io, live.file, self._deletes.of(live), may_hold)

    def as_of(self) -> str:
        return (
            f"snapshot {described((self._snapshot,))} of branch {self._branch!r}" if self._snapshot is not None else ""
        )

    def notes(self) -> tuple[str, ...]:
        if self._table is None:
            return (f"{self.name}: there is no such table.",)
        if self._snapshot is None:
            return (f"{self.name}: there is no snapshot on branch {self._branch!r}.",)
        undone = rolled_back(self._table, self._branch)
        if not undone:
            return ()
        return (f"{self.name}: rolled back and not in the branch's history any more: snapshot {described(undone)}.",)

    @cached_property
    def _deletes(self) -> Deletes:
        assert self._table is not None
        with self._reading("its deletes"):
            return Deletes(self._table.io, self.files.deletes)

    def _schema(self, names: Sequence[str]) -> Schema:
        """These columns in the schema of the pinned snapshot."""
        schema = self._pinned_schema()
        absent = [each for each in names if each not in schema.column_names]
        if absent:
            raise TableUnfit(
                f"{self.name} has no column {', '.join(absent)}, so its rows cannot be identified.",
                safe="An audit changes nothing.",
                command="compare row counts yourself, or land into a table with coordinates",
            )
        return Schema(*(schema.find_field(each) for each in names))

    def _pinned_schema(self) -> Schema:
        assert self._table is not None
        assert self._snapshot is not None
        return self._table.schemas().get(self._snapshot.schema_id or 0, self._table.schema())

    @contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise TableUnfit(
                f"{self.name}: {what} cannot be read, because a file is missing: {redact(str(error))}",
                safe="An audit changes nothing. Something else deleted a file that a snapshot names.",
                command="restore the file, or roll the table back to a snapshot before it",
            ) from None
        except OSError as error:
            raise TargetUnavailable(f"{self.name}: {what} could not be read: {redact(str(error))[:500]}") from None
        except (pa.ArrowException, ValueError, NotImplementedError) as error:
            raise TableUnfit(
                f"{self.name}: {what} cannot be read: {redact(str(error))[:500]}", safe="An audit changes nothing."
            ) from None


def _load(spec: CatalogSpec, catalog: Catalog | None, identifier: str) -> Table | None:
    with catalog_errors(spec):
        try:
            return (catalog or spec.open()).load_table(identifier)
        except NoSuchTableError:
            return None
