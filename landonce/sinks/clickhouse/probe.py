"""Reads which rows are in the table: the only proof that landonce accepts after a doubt.

Reads the coordinates inside the ranges, without FINAL and without a cache, from a replica that is up to date. The token proves nothing:
it can outlive its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from landonce.protocol.ranges import Partition, Range
from landonce.protocol.settle import Presence
from landonce.sinks.clickhouse.address import TableName, quoted
from landonce.sinks.clickhouse.connection import Connection
from landonce.sinks.clickhouse.keyed import as_rows, replaced, still_there
from landonce.sinks.clickhouse.table import COORDINATE_TYPES, Table, key_columns, to_evaluate
from landonce.sinks.contract import COORDINATES, Probe

_RANGES_PER_QUESTION = 500
Numbers = npt.NDArray[np.int64]


def probe(connection: Connection, table: Table, rows: pa.Table, ranges: Sequence[Range]) -> Probe:
    """Which of these rows the table holds, and whether atomic inserts can have left it so."""
    if rows.num_rows == 0:
        return Probe(Presence(0, 0), pa.array([], pa.bool_()))
    bring_up_to_date(connection, table)
    line = Line.of(ranges)
    if table.sign_column:
        return _of_pairs(connection, table, rows, line, ranges)
    seen = compare(line.numbers(rows), line.numbers(found_in(connection, table, ranges)))
    if table.key:
        return _of_changes(connection, table, rows, line, seen)
    return of_added(
        seen,
        lambda: torn(connection, table, rows.filter(pa.array(seen.missing)), ranges),
        resend_harmless=table.resend_harmless,
    )


def of_added(seen: Comparison, torn: Callable[[], bool], *, resend_harmless: bool) -> Probe:
    """Of rows that are only added. `torn`: asked where some are there and others are not."""
    lacking = int(np.count_nonzero(seen.missing))
    presence = Presence(
        expected=len(seen.missing),
        missing=lacking,
        torn=lacking > 0 and seen.found_any and torn(),
        duplicated=0 if resend_harmless else seen.duplicated,
    )
    return Probe(presence, pa.array(seen.missing))


def _of_pairs(connection: Connection, table: Table, changes: pa.Table, line: Line, ranges: Sequence[Range]) -> Probe:
    """Of a Collapsing table. A block lands whole, and the newest row of a key stays. So one added row proves the block. A block that only takes
    rows away has landed if they are gone."""
    rows = as_rows(changes, table)
    added = rows.filter(pc.equal(rows.column(table.sign_column), 1))
    if not added.num_rows:
        absent = rows.num_rows > 0 and still_there(connection, table, rows)
        return _whole(changes, absent=absent)
    seen = compare(line.numbers(added), line.numbers(found_in(connection, table, ranges)))
    lacking = int(np.count_nonzero(seen.missing))
    return _whole(changes, absent=lacking > 0, torn=0 < lacking < added.num_rows, duplicated=seen.duplicated)


def _whole(changes: pa.Table, *, absent: bool, torn: bool = False, duplicated: int = 0) -> Probe:
    """The probe of a block that is there whole or not at all."""
    count = changes.num_rows
    missing = pa.array(np.full(count, absent))
    return Probe(Presence(count, count if absent else 0, torn=torn, duplicated=duplicated), missing)


def _of_changes(connection: Connection, table: Table, changes: pa.Table, line: Line, seen: Comparison) -> Probe:
    """Of a Replacing table that records change. Merges remove rows that a newer row of their key replaced. One row of a block proves that all of
    it landed, since blocks land whole. If none is left, the block may never have been sent, and is sent again: an older row never wins."""
    lacking = changes.filter(pa.array(seen.missing))
    if not lacking.num_rows:
        return Probe(Presence(changes.num_rows, 0), pa.array(seen.missing))
    newer = compare(line.numbers(lacking), line.numbers(replaced(connection, table, as_rows(lacking, table))))
    absent = int(np.count_nonzero(newer.missing))
    presence = Presence(changes.num_rows, absent, unproven=not (absent or seen.found_any))
    if not seen.found_any:
        return Probe(presence, pa.array(seen.missing))
    missing = seen.missing.copy()
    missing[seen.missing] = newer.missing
    return Probe(presence, pa.array(missing))


def count(connection: Connection, table: TableName, ranges: Sequence[Range], sign: str = "") -> int:
    """How many rows the replica that answers holds in these ranges, without those that take others away."""
    added = f" AND {quoted(sign)} = 1" if sign else ""
    return sum(
        connection.one(f"SELECT count() FROM {table.sql} WHERE ({wanted}){added}", parameters)  # noqa: S608
        for wanted, parameters in _questions(ranges)
    )


def bring_up_to_date(connection: Connection, table: Table) -> None:
    """A replica that lags behind does not show all rows."""
    if table.replicated:
        connection.do(f"SYSTEM SYNC REPLICA {table.name.sql} LIGHTWEIGHT")


def found_in(connection: Connection, table: Table, ranges: Sequence[Range]) -> pa.Table:
    """The coordinates in these ranges that the table holds."""
    columns = "toString(_topic) AS _topic_text, toInt32(_partition), _offset"
    added = f" AND {quoted(table.sign_column)} = 1" if table.sign_column else ""
    tables = [
        connection.ask(f"SELECT {columns} FROM {table.name.sql} WHERE ({wanted}){added}", parameters)  # noqa: S608
        for wanted, parameters in _questions(ranges)
    ]
    return pa.concat_tables(each.rename_columns(list(COORDINATES)).cast(pa.schema(COORDINATE_TYPES)) for each in tables)


def _questions(ranges: Sequence[Range]) -> Iterator[tuple[str, dict[str, str]]]:
    for start in range(0, len(ranges), _RANGES_PER_QUESTION):
        some = ranges[start : start + _RANGES_PER_QUESTION]
        yield where((each.partition, each.first, each.end) for each in some)


def torn(connection: Connection, table: Table, missing: pa.Table, ranges: Sequence[Range]) -> bool:
    """Whether one table partition holds some rows of these ranges and lacks others: no insert leaves that behind."""
    if not table.partition_key:
        return True
    partition = f"SELECT DISTINCT toString(tuple({table.partition_key}))"
    held: set[str] = set()
    for wanted, parameters in _questions(ranges):
        found = connection.ask(f"{partition} FROM {table.name.sql} WHERE {wanted}", parameters)
        held.update(found.column(0).to_pylist())
    # The server computes the partitions of the missing rows, too, as for an insert.
    source, rows = to_evaluate(table, key_columns(table), missing)
    return not held.isdisjoint(connection.ask(f"{partition} FROM {source}", rows=rows).column(0).to_pylist())


# Coordinates as SQL, and as numbers. Within the ranges of a block every coordinate has a number: the partitions are put on one line, one behind
# the other, and a record's number is its place on it. So sets of coordinates are compared as sets of integers, without a Python loop over rows.


def where(wanted: Iterable[tuple[Partition, int, int | None]]) -> tuple[str, dict[str, str]]:
    """Ranges as one condition and its parameters."""
    topics: dict[str, str] = {}
    parts = []
    for partition, first, end in wanted:
        name = topics.setdefault(partition.topic, f"topic_{len(topics)}")
        upper = "" if end is None else f" AND _offset < {int(end)}"
        number = int(partition.number)
        parts.append(f"(_topic = {{{name}:String}} AND _partition = {number} AND _offset >= {int(first)}{upper})")
    return " OR ".join(parts), {name: topic for topic, name in topics.items()}


@dataclass(frozen=True)
class Line:
    """All partitions of some ranges, one behind the other."""

    partitions: tuple[Partition, ...]
    lows: Numbers
    highs: Numbers
    bases: Numbers

    @staticmethod
    def of(ranges: Sequence[Range]) -> Line:
        spans: dict[Partition, tuple[int, int]] = {}
        for each in ranges:
            low, high = spans.get(each.partition, (each.first, each.end))
            spans[each.partition] = (min(low, each.first), max(high, each.end))
        partitions = tuple(sorted(spans))
        lows = np.array([spans[each][0] for each in partitions], np.int64)
        highs = np.array([spans[each][1] for each in partitions], np.int64)
        bases = np.concatenate([np.zeros(1, np.int64), np.cumsum(highs - lows)[:-1]]) if partitions else lows
        return Line(partitions, lows, highs, bases)

    def numbers(self, rows: pa.Table) -> Numbers:
        """The number of each row's coordinate. Every row must be within the ranges."""
        topics = sorted({each.topic for each in self.partitions})
        keys = np.array([(topics.index(each.topic) << 32) | each.number for each in self.partitions], np.int64)
        topic = pc.index_in(rows.column("_topic").cast(pa.string()), value_set=pa.array(topics, pa.string()))
        wanted = (_plain(pc.fill_null(topic, -1)) << 32) | _plain(rows.column("_partition"))
        order = np.argsort(keys)
        at = order[np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)]
        offsets = _plain(rows.column("_offset"))
        if not np.all((keys[at] == wanted) & (offsets >= self.lows[at]) & (offsets < self.highs[at])):
            raise ValueError("a row lies outside of the ranges of its block")
        return np.asarray(self.bases[at] + offsets - self.lows[at], np.int64)


@dataclass(frozen=True)
class Comparison:
    """A mask of the expected coordinates that are missing, and how many were found more than once."""

    missing: npt.NDArray[np.bool_]
    found_any: bool
    duplicated: int


def compare(expected: Numbers, found: Numbers) -> Comparison:
    """Which expected coordinates were found. Others may be there too, of records that were compacted away since."""
    there, counts = np.unique(found, return_counts=True)
    return Comparison(
        missing=~np.isin(expected, there, assume_unique=False),
        found_any=len(there) > 0,
        duplicated=int(np.count_nonzero(counts > 1)),
    )


def _plain(column: pa.ChunkedArray | pa.Array) -> Numbers:
    return np.asarray(column.cast(pa.int64()).to_numpy(), np.int64)
