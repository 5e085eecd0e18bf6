"""What an audit (`landonce verify`) needs of a sink: its tables, what they hold, and how records become their rows. Read-only.

Topics are labels, ranges are half-open. A sink that can be audited implements `Sink.held`. What reads for an audit shares no code with
what writes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from landonce.protocol.ranges import Partition

if TYPE_CHECKING:
    from landonce.read.changes import Changes
    from landonce.read.decoding import Decoding
    from landonce.read.route import Routing
    from landonce.read.schema.fields import Schema

Offsets = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
LAST = 2**63 - 1
PLACE, OFFSET = "__landonce_place", "__landonce_offset"
"""Columns beside the keys of a table: the number of the partition, and the offset in it."""
UNKNOWN = -1
"""The place of a row whose coordinates belong to no judged partition."""


class RowRecipe(Protocol):
    """As much of a recipe as says what records become."""

    @property
    def source(self) -> Schema:
        """What a record is decoded to before expressions."""

    @property
    def decoding(self) -> Decoding: ...

    @property
    def select(self) -> tuple[str, ...]: ...

    @property
    def where(self) -> str | None: ...

    @property
    def transforms(self) -> bool:
        """Whether there are expressions."""

    @property
    def describes_records(self) -> bool:
        """Whether a record lands if and only if it can be decoded to `source`."""


class HeldTables(ABC):
    """The tables of a pipeline, opened for one audit."""

    @property
    @abstractmethod
    def recipe(self) -> RowRecipe:
        """What becomes of records."""

    @property
    @abstractmethod
    def routing(self) -> Routing:
        """Which tables a record goes to."""

    def identity(self, table: str) -> tuple[str, ...]:
        """The columns that name a row of the table, if records change rows."""
        del table
        return ()

    @property
    def changes(self) -> Changes | None:
        """How records change rows; None if they are rows."""
        return None

    @abstractmethod
    def known(self) -> Iterable[str]:
        """The tables that are known before any record is read: they may hold rows without a record."""

    @abstractmethod
    def open(self, table: str) -> Held | HeldKeys:
        """A known table, or one that a record names. It may not exist."""

    @abstractmethod
    def schema(self, table: str) -> Schema | None:
        """The columns that landonce fills; None if the table does not exist."""

    def lost(self, table: str) -> Schema | None:
        """For a table that does not exist: what records for it were decoded to if it should exist; None if they are dead letters."""
        del table
        return None

    def close(self) -> None:  # noqa: B027  a sink may have nothing to close
        """Closes what was opened for the audit."""


@dataclass(frozen=True)
class CountedOffsets:
    """Distinct offsets in order, and how often each of them is there."""

    offsets: Offsets
    counts: Offsets

    @staticmethod
    def none() -> CountedOffsets:
        return CountedOffsets(np.empty(0, np.int64), np.empty(0, np.int64))

    @staticmethod
    def of(offsets: Offsets) -> CountedOffsets:
        distinct, counts = np.unique(offsets, return_counts=True)
        return CountedOffsets(distinct, counts.astype(np.int64))

    def between(self, first: int, end: int) -> CountedOffsets:
        low, high = np.searchsorted(self.offsets, (first, end))
        return CountedOffsets(self.offsets[low:high], self.counts[low:high])

    def without(self, offsets: Collection[int]) -> CountedOffsets:
        """The same, but for these."""
        if not offsets:
            return self
        left = ~np.isin(self.offsets, np.fromiter(offsets, np.int64, len(offsets)))
        return CountedOffsets(self.offsets[left], self.counts[left])


@dataclass(frozen=True)
class Reference:
    """One entry of a snapshot's manifests that registers a data file."""

    snapshot: int
    at: str | None
    """When that snapshot was committed; None if it has expired."""
    manifest: str


@dataclass(frozen=True)
class FileSpan:
    """Rows of one partition in a file: `rows` of them, with offsets in `[first, end)`."""

    partition: Partition
    first: int
    end: int
    rows: int
    """Counted once per registration."""

    @staticmethod
    def of(partition: Partition, offsets: Offsets) -> FileSpan:
        return FileSpan(partition, int(offsets.min()), int(offsets.max()) + 1, len(offsets))

    def plus(self, other: FileSpan) -> FileSpan:
        return FileSpan(self.partition, min(self.first, other.first), max(self.end, other.end), self.rows + other.rows)


@dataclass(frozen=True)
class Doubled:
    """A data file that is registered more than once, so each of its rows counts that many times."""

    path: str
    references: tuple[Reference, ...]
    spans: tuple[FileSpan, ...] = ()

    def holds(self, partition: Partition) -> bool:
        return any(each.partition == partition for each in self.spans)


class AuditedTable(ABC):
    """One table, opened for an audit."""

    name: str

    @abstractmethod
    def values(self) -> HeldValues:
        """The values in the table."""

    def doubled(self) -> tuple[Doubled, ...]:
        """Data files that are registered more than once. Of a table whose rows records change: call it after `HeldKeys.rows`."""
        return ()

    def as_of(self) -> str:
        """The state that is audited, if a table has several."""
        return ""

    def notes(self) -> tuple[str, ...]:
        """What a reader of the report must know about this table."""
        return ()


class Held(AuditedTable):
    """The coordinates in one table."""

    @abstractmethod
    def counted(self, partition: Partition, first: int, end: int) -> CountedOffsets:
        """Every offset in `[first, end)` and how often it occurs."""

    @abstractmethod
    def repeated(self, partition: Partition, first: int, end: int) -> CountedOffsets:
        """Only those that occur more than once."""

    @abstractmethod
    def count(self, partition: Partition, first: int, end: int = LAST) -> int:
        """The number of rows, duplicates included."""

    @abstractmethod
    def lowest(self, partition: Partition, first: int, end: int = LAST) -> int | None:
        """The lowest offset in the table."""

    @abstractmethod
    def partitions(self, labels: Iterable[str]) -> tuple[tuple[str, int, int], ...]:
        """(label, partition, rows) of everything under these labels."""

    @property
    def replaces_rows(self) -> bool:
        """Whether a newer row may legitimately have replaced an expected one."""
        return False


class NoRows(Held):
    """A table that does not exist."""

    def __init__(self, name: str) -> None:
        self.name = name

    def counted(self, partition: Partition, first: int, end: int) -> CountedOffsets:
        del partition, first, end
        return CountedOffsets.none()

    repeated = counted

    def count(self, partition: Partition, first: int, end: int = LAST) -> int:
        del partition, first, end
        return 0

    def lowest(self, partition: Partition, first: int, end: int = LAST) -> int | None:
        del partition, first, end
        return None

    def partitions(self, labels: Iterable[str]) -> tuple[tuple[str, int, int], ...]:
        del labels
        return ()

    def values(self) -> HeldValues:
        return NoValues(self.name)


@dataclass(frozen=True)
class Piece:
    """A bounded number of rows with their values. `_offset` says which record each belongs to."""

    rows: pa.Table
    absent: frozenset[str] = frozenset()
    """Columns that these rows were written without, before the table had them."""
    single: frozenset[str] = frozenset()
    """Columns whose numbers were written as floats, before the column became one of doubles."""


class HeldValues(ABC):
    """The values in one table."""

    name: str

    @abstractmethod
    def read(self, partition: Partition, first: int, end: int, names: Sequence[str]) -> Iterator[Piece]:
        """The rows with offsets in `[first, end)`, with these columns. Ranges of a partition come in order."""

    def comparable(self, name: str, expected: pa.Array) -> pa.Array:
        """What a column should hold, in the form in which this table returns values."""
        del name
        return expected

    def filled(self, name: str) -> bool:
        """Whether the table fills the column itself if a record holds nothing for it."""
        del name
        return False


class NoValues(HeldValues):
    """Of a table that does not exist."""

    def __init__(self, name: str) -> None:
        self.name = name

    def read(self, partition: Partition, first: int, end: int, names: Sequence[str]) -> Iterator[Piece]:
        del partition, first, end, names
        return iter(())


class HeldKeys(AuditedTable):
    """The keys in one table whose rows records change."""

    @abstractmethod
    def rows(self, places: Mapping[Partition, int]) -> pa.Table | None:
        """The key of every row with the coordinates of its last change, in the columns
        `PLACE` and `OFFSET`; None if there is no row. `places` numbers the partitions."""


def plain(keys: pa.Table) -> pa.Table:
    """Key columns in common types, so that they compare equal, with 64-bit offsets that cannot overflow."""
    return pa.table([_plain(column) for column in keys.columns], names=keys.column_names)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(pa.chunked_array([each.storage for each in column.chunks], kind.storage_type))
    if pt.is_dictionary(kind):
        return _plain(column.cast(kind.value_type))
    if pt.is_integer(kind):
        return column if pt.is_uint64(kind) else column.cast(pa.int64())
    if pt.is_string(kind):
        return column.cast(pa.large_string())
    if pt.is_binary(kind) or pt.is_fixed_size_binary(kind):
        return column.cast(pa.binary()).cast(pa.large_binary())
    return column


def each_text(array: pa.Array, spell: Any) -> pa.Array:
    """The same values with every string in one spelling. Each distinct string is converted once."""
    type_ = array.type
    if pt.is_string(type_):
        coded = array.dictionary_encode()
        spelled = pa.array([spell(each) for each in coded.dictionary.to_pylist()], pa.string())
        return pc.take(spelled, coded.indices)
    if pt.is_list(type_):
        array = pa.concat_arrays([array, array.slice(0, 0)]) if array.offset else array
        mask = array.is_null() if array.null_count else None
        return pa.ListArray.from_arrays(array.offsets, each_text(array.values, spell), mask=mask)
    return array
