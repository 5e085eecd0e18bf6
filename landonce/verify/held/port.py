"""The port: what the audit needs from a table. Topics are labels, ranges are half-open. Read-only."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from landonce.protocol.ranges import Partition
from landonce.verify.judge import Counted, Offsets

LAST = 2**63 - 1


@dataclass(frozen=True)
class Reference:
    """One entry of a snapshot's manifests that registers a data file."""

    snapshot: int
    at: str | None
    """When that snapshot was committed; None if it has expired."""
    manifest: str


@dataclass(frozen=True)
class Span:
    """Rows of one partition in a file: `rows` of them, with offsets in `[first, end)`."""

    partition: Partition
    first: int
    end: int
    rows: int
    """Counted once per registration."""

    @staticmethod
    def of(partition: Partition, offsets: Offsets) -> Span:
        return Span(partition, int(offsets.min()), int(offsets.max()) + 1, len(offsets))

    def plus(self, other: Span) -> Span:
        return Span(self.partition, min(self.first, other.first), max(self.end, other.end), self.rows + other.rows)


@dataclass(frozen=True)
class Doubled:
    """A data file that is registered more than once, so each of its rows counts that many times."""

    path: str
    references: tuple[Reference, ...]
    spans: tuple[Span, ...] = ()

    def holds(self, partition: Partition) -> bool:
        return any(each.partition == partition for each in self.spans)


class Held(ABC):
    """The coordinates in one table."""

    name: str

    @abstractmethod
    def counted(self, partition: Partition, first: int, end: int) -> Counted:
        """Every offset in `[first, end)` and how often it occurs."""

    @abstractmethod
    def repeated(self, partition: Partition, first: int, end: int) -> Counted:
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

    def doubled(self) -> tuple[Doubled, ...]:
        """Data files that are registered more than once."""
        return ()

    def as_of(self) -> str:
        """The state that is audited, if a table has several."""
        return ""

    def notes(self) -> tuple[str, ...]:
        """What a reader of the report must know about this table."""
        return ()


@dataclass(frozen=True)
class Piece:
    """A bounded number of rows with their values. `OFFSET` says which record each belongs to."""

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


class HeldKeys(ABC):
    """The keys in one table whose rows records change."""

    name: str

    @abstractmethod
    def rows(self, places: Mapping[Partition, int]) -> pa.Table | None:
        """The key of every row with the coordinates of its last change, as `judge_keys` takes them; None if there is
        no row. `places` numbers the partitions."""

    @abstractmethod
    def doubled(self) -> tuple[Doubled, ...]:
        """Data files that are registered more than once. Call it after `rows`."""

    @abstractmethod
    def as_of(self) -> str:
        """The state that is audited."""

    @abstractmethod
    def notes(self) -> tuple[str, ...]:
        """What a reader of the report must know about this table."""
