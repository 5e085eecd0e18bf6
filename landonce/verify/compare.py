"""Compares the values of one table, stretch by stretch: every row with what its record decodes to.

Rows are found by their coordinates, also if records change rows: a row has the coordinates of its last change, so that
change must have written its values. The audits of coordinates and keys report missing and additional rows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from landonce.protocol.ranges import Partition
from landonce.read.changes.decode import OPERATION
from landonce.read.changes.images import DELETE
from landonce.sinks.audit import HeldValues, Offsets, Piece
from landonce.verify.bounds import Bounds
from landonce.verify.judge import Fates, Fault, Place
from landonce.verify.partition import LISTED, PartitionReport
from landonce.verify.values import as_type, differing, shown

_OFFSET = "_offset"


@dataclass(frozen=True)
class Difference:
    """One value that differs from its record."""

    partition: Partition
    offset: int
    column: str
    expected: str
    found: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "topic": self.partition.topic,
            "partition": self.partition.number,
            "offset": self.offset,
            "column": self.column,
            "expected": self.expected,
            "found": self.found,
        }


@dataclass
class Compared:
    """What a comparison of values found in one table."""

    rows: int = 0
    values: int = 0
    differing: Counter[str] = field(default_factory=Counter)
    """The number of values that differ, by column."""
    empty: Counter[str] = field(default_factory=Counter)
    """The number of these where the table holds NULL."""
    absent: Counter[str] = field(default_factory=Counter)
    """Rows that were written before the table had a column, and were not compared in it."""
    filled: Counter[str] = field(default_factory=Counter)
    """Rows whose records hold nothing for a column with a default of the table: not compared in it."""
    listed: list[Difference] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "values": self.values,
            "differing": dict(self.differing),
            "written_before_the_column": dict(self.absent),
            "filled_by_the_table": dict(self.filled),
            "differences": [each.to_dict() for each in self.listed],
        }


class ValueAudit:
    """Compares the values of one table. Memory is bounded by a window of the topic and a piece of the table."""

    def __init__(self, held: HeldValues) -> None:
        self._held = held
        self._changed: dict[Partition, PartitionReport] = {}
        self.compared = Compared()

    def compare(self, table: str, bound: Bounds, first: int, end: int, fates: Fates) -> None:
        """One stretch."""
        offsets, rows = _expected(table, fates)
        if not len(offsets):
            return
        changed = [np.empty(0, np.int64)]
        for piece in self._held.read(bound.label, first, end, rows.column_names):
            found = np.asarray(piece.rows.column(_OFFSET).to_numpy(), np.int64)
            at = np.minimum(np.searchsorted(offsets, found), len(offsets) - 1)
            known = offsets[at] == found
            if known.any():
                there = piece.rows.filter(pa.array(known))
                of_records = rows.take(pa.array(at[known]))
                changed.append(self._piece(bound, found[known], of_records, replace(piece, rows=there)))
        report = PartitionReport(bound.partition, bound.label.topic, bound.start, bound.end)
        report = self._changed.setdefault(bound.partition, report)
        report.note(Fault.CHANGED, Place.TARGET, np.unique(np.concatenate(changed)))

    def note(self, bound: Bounds, report: PartitionReport) -> None:
        """Adds what was found to the report of a partition."""
        if bound.partition in self._changed:
            report.faults.update(self._changed[bound.partition].faults)

    def _piece(self, bound: Bounds, offsets: Offsets, rows: pa.Table, piece: Piece) -> Offsets:
        """The offsets of the rows that differ."""
        changed = np.zeros(len(offsets), np.bool_)
        self.compared.rows += len(offsets)
        for name in rows.column_names:
            if name in piece.absent:
                self.compared.absent[name] += len(offsets)
            else:
                changed[self._column(bound, name, offsets, rows, piece)] = True
        return offsets[changed]

    def _column(self, bound: Bounds, name: str, offsets: Offsets, rows: pa.Table, piece: Piece) -> Offsets:
        """The rows that differ in one column."""
        expected = self._held.comparable(name, _whole(rows.column(name)))
        found = _whole(piece.rows.column(name))
        judged = np.arange(len(offsets))
        if expected.null_count and self._held.filled(name):
            judged = np.flatnonzero(expected.is_valid().to_numpy(zero_copy_only=False))
            self.compared.filled[name] += len(offsets) - len(judged)
            expected, found = expected.take(pa.array(judged)), found.take(pa.array(judged))
        self.compared.values += len(judged)
        bad = differing(expected, found, single=name in piece.single)
        if len(bad):
            self.compared.differing[name] += len(bad)
            self.compared.empty[name] += pc.sum(found.take(pa.array(bad)).is_null()).as_py() or 0
            self._list(bound, name, offsets[judged], expected, found, bad)
        return judged[bad]

    def _list(
        self, bound: Bounds, name: str, offsets: Offsets, expected: pa.Array, found: pa.Array, bad: Offsets
    ) -> None:
        like = as_type(found, expected.type)
        shown_found = like if like is not None else found
        for at in bad[: max(0, LISTED - len(self.compared.listed))].tolist():
            texts = shown(expected, at), shown(shown_found, at)
            self.compared.listed.append(Difference(bound.label, int(offsets[at]), name, *texts))


def _expected(table: str, fates: Fates) -> tuple[Offsets, pa.Table]:
    """What the rows should hold, by their offsets. Deletions have no row."""
    offsets = fates.offsets[fates.lands.get(table, np.empty(0, np.int64))]
    rows = fates.rows.get(table)
    if rows is not None:
        return offsets, rows
    changes = fates.changes.get(table)
    if changes is None:
        return np.empty(0, np.int64), pa.table({})
    kept = pc.not_equal(changes.column(OPERATION), DELETE)
    left = changes.filter(kept).drop_columns([OPERATION])
    return offsets[kept.to_numpy()], left


def _whole(column: pa.ChunkedArray) -> pa.Array:
    chunk = column.combine_chunks()
    return chunk.chunk(0) if isinstance(chunk, pa.ChunkedArray) else chunk
