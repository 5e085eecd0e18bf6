"""One folder or file per format: bytes become Arrow columns, or rejects with a reason. Here is what each of them returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

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
