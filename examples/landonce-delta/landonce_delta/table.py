"""The Delta table as the driver sees it: read it, and try one commit on top of exactly what was read."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction

from landonce.errors import TargetUnavailable
from landonce.plugin import (
    COORDINATES,
    Field,
    Finding,
    Level,
    Mark,
    Note,
    Schema,
    Seen,
    SnapshotTable,
    kept_notes,
    mark_to_text,
)
from landonce_delta.marks import Names, in_words, own_view, same_words, transactions

_COORDINATES = [("_topic", pa.string()), ("_partition", pa.int32()), ("_offset", pa.int64())]
_NOTES = 100
_PLAIN = 2
"""The newest version for writers in which a table cannot ask for anything that landonce does not do."""
_HARMLESS = {"appendOnly", "invariants", "timestampNtz"}


@dataclass(frozen=True)
class StagedFile:
    """A file that a worker wrote, and that no commit names yet."""

    path: str
    size: int
    rows: int


class DeltaLog(SnapshotTable[StagedFile, DeltaTable]):
    """One table, for one pipeline. Each look reads the log again."""

    def __init__(self, uri: str, options: dict[str, str], pipeline: str) -> None:
        self.name = uri
        self._options = options
        self._names = Names(pipeline)

    def creation(self, columns: Schema) -> str:
        return f"{self.name} ({', '.join([*COORDINATES, *(each.name for each in columns.fields)])})"

    def create(self, columns: Schema) -> None:
        fields = [*(pa.field(*each) for each in _COORDINATES), *columns.arrow]
        with telling(self.name):
            DeltaTable.create(self.name, pa.schema(fields), mode="ignore", storage_options=self._options)

    def schema(self) -> Schema:
        found = pa.schema(self._load().schema().to_arrow())
        columns = [each for each in found if each.name not in COORDINATES]
        return Schema(tuple(Field(each.name, each.type, required=not each.nullable) for each in columns))

    def check(self) -> tuple[Finding, ...]:
        table = self._load()
        return (*unfit(table), Finding(Level.OK, f"{self.name}: the table is its own ledger"))

    def look(self) -> Seen | None:
        with telling(self.name):
            if not DeltaTable.is_deltatable(self.name, self._options):
                return None
            table = self._load()
            return Seen(own_view(table, self._names), table)

    def attempt(self, seen: Seen, mark: Mark, files: Sequence[StagedFile], note: Note | None) -> bool:
        """The commit makes the version after the one that was seen, or fails: delta-rs must not try again by itself."""
        table: DeltaTable = seen.version
        properties = CommitProperties(
            custom_metadata={self._names.text: mark_to_text(mark)},
            max_commit_retries=0,
            app_transactions=transactions(self._names, mark.state, table.version() + 1),
        )
        known = table.metadata().configuration
        try:
            with telling(self.name):
                if note is None and same_words(known.get(self._names.text), mark.state):
                    table.create_write_transaction(
                        [added(each) for each in files], "append", table.schema(), commit_properties=properties
                    )
                elif files:
                    raise ValueError("a batch changes numbers only")
                else:
                    changed = {self._names.text: in_words(mark.state), **self._noted(known, note)}
                    table.alter.set_table_properties(changed, raise_if_not_exists=False, commit_properties=properties)
        except CommitFailedError:
            return False
        return True

    def holds(self, labels: tuple[str, ...]) -> bool:
        table = self._load()
        with telling(self.name):
            if "_topic" not in [each.name for each in table.schema().fields]:
                return False
            return table.to_pyarrow_dataset().head(1, filter=ds.field("_topic").isin(labels)).num_rows > 0

    def journal(self) -> tuple[Note, ...]:
        if self.look() is None:
            return ()
        text = self._load().metadata().configuration.get(self._names.journal, "[]")
        return tuple(Note(*each) for each in json.loads(text))

    def _noted(self, known: dict[str, str], note: Note | None) -> dict[str, str]:
        if note is None:
            return {}
        notes = [*(Note(*each) for each in json.loads(known.get(self._names.journal, "[]"))), note]
        kept = [[each.at, each.action, each.detail] for each in kept_notes(notes, _NOTES)]
        return {self._names.journal: json.dumps(kept)}

    def _load(self) -> DeltaTable:
        with telling(self.name):
            return DeltaTable(self.name, storage_options=self._options)


def added(file: StagedFile) -> AddAction:
    stats = json.dumps({"numRecords": file.rows})
    return AddAction(file.path, file.size, {}, int(time.time() * 1000), True, stats)


def unfit(table: DeltaTable) -> Iterable[Finding]:
    """What a table asks of its writers and landonce does not do."""
    columns = {each.name: each for each in table.schema().fields}
    for name, type_ in _COORDINATES:
        if name not in columns or pa.schema(table.schema().to_arrow()).field(name).type != type_:
            yield Finding(Level.REFUSED, f"the table has no column {name} of type {type_}", f"add the column {name}")
    if table.metadata().partition_columns:
        yield Finding(Level.REFUSED, "the table is partitioned", "name a table without partitions")
    protocol = table.protocol()
    asked = set(protocol.writer_features or ()) - _HARMLESS
    if asked or _PLAIN < protocol.min_writer_version < 7:
        what = ", ".join(sorted(asked)) or f"version {protocol.min_writer_version} of the protocol"
        yield Finding(Level.REFUSED, f"the table asks its writers for {what}", "name a table without it")
    for name in table.metadata().configuration:
        if name.startswith("delta.constraints.") or name == "delta.setTransactionRetentionDuration":
            yield Finding(Level.REFUSED, f"the table has the property {name}", f"remove the property {name}")
    if any("delta.invariants" in each.metadata for each in columns.values()):
        yield Finding(Level.REFUSED, "a column of the table has an invariant", "remove the invariant")


@contextmanager
def telling(uri: str) -> Iterator[None]:
    """delta-rs' errors in landonce's words."""
    try:
        yield
    except CommitFailedError:
        raise
    except (DeltaError, OSError) as error:
        raise TargetUnavailable(f"{uri}: {error}") from error
