"""One folder or file per format: bytes become Arrow columns, or rejects with a reason. Here is what a format is, and what its decoder returns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from landonce.read.schema.fields import Schema

Indexes = npt.NDArray[np.int64]


class Reject(NamedTuple):
    """``index`` points into the decoded array; ``reason`` holds no content of the record."""

    index: int  # type: ignore[assignment]  # hides `tuple.index`, which nothing calls
    reason: str


@dataclass(frozen=True)
class Decoded:
    """Row ``i`` of ``table`` came from input ``kept[i]``. Every other input is rejected or filtered; order is preserved."""

    table: pa.Table
    kept: Indexes
    rejects: tuple[Reject, ...] = ()
    filtered: Indexes = field(default_factory=lambda: np.empty(0, np.int64))

    def is_whole(self, count: int) -> bool:
        """Whether each of `count` records became one row."""
        return len(self.kept) == count and not self.rejects and not len(self.filtered)


@dataclass
class Collected:
    """What became of the inputs so far, in any order; `result` puts it in order."""

    schema: pa.Schema
    tables: list[pa.Table] = field(default_factory=list)
    kept: list[Indexes] = field(default_factory=list)
    filtered: list[Indexes] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)

    def keep(self, rows: Indexes, columns: list[pa.Array]) -> None:
        self.kept.append(rows)
        self.tables.append(pa.Table.from_arrays(columns, schema=self.schema))

    def reject(self, row: int, reason: str) -> None:
        self.rejects.append(Reject(int(row), reason))

    def add(self, decoded: Decoded, rows: Indexes) -> None:
        """Adds the result of decoding some of the inputs: those at ``rows``."""
        self.kept.append(rows[decoded.kept])
        self.tables.append(decoded.table)
        self.rejects += [Reject(int(rows[at]), reason) for at, reason in decoded.rejects]

    def result(self) -> Decoded:
        kept, filtered = (np.concatenate([np.empty(0, np.int64), *each]) for each in (self.kept, self.filtered))
        table = pa.concat_tables(self.tables) if self.tables else self.schema.empty_table()
        if (np.diff(kept) < 0).any():
            order = np.argsort(kept)
            kept, table = kept[order], table.combine_chunks().take(pa.array(order))
        return Decoded(table, kept, tuple(sorted(self.rejects)), np.sort(filtered))


class Decoder(Protocol):
    """Decodes the values of records to the fields of one schema. It may keep what it learns; a row never depends on that."""

    def decode(self, values: pa.BinaryArray) -> Decoded: ...


class Format(ABC):
    """How the values of records hold their fields. Picklable, hashable, and its repr hides secrets."""

    @abstractmethod
    def decoder(self, schema: Schema, *, max_record_bytes: int) -> Decoder:
        """Raises `ValueError` or `TypeError` if no record of this format can become these fields."""

    @abstractmethod
    def decisive(self) -> tuple[object, ...]:
        """What decides which rows records become, as JSON: it is part of every plan's fingerprint."""

    @property
    def written(self) -> pa.DataType | None:
        """The type in which its decoders give any value as the record writes it. None: values have types of their own."""
        return None

    def fields(self, values: Sequence[bytes]) -> Schema | None:
        """The fields that the format itself knows of these records. None: their JSON shows them."""
        del values
        return None
