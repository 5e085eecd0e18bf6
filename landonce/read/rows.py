"""Rows of tables: with their coordinates in front, fitted to a table.

The coordinates are the columns `_topic`, `_partition` and `_offset`. A row fits a table if every value converts to the table's type without loss; if
not, only this row is rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from landonce.protocol.ranges import Partition, label_of
from landonce.protocol.reasons import Reason
from landonce.read.formats import Decoded, Indexes, Reject
from landonce.read.schema.fields import Schema
from landonce.read.schema.values import add_reasons, fit

COORDINATES = ("_topic", "_partition", "_offset")
"""Columns of every row, kept by every transform. `_topic` is the topic's label: its name, unless it was rebased."""
CHANGE = "_change"
"""The column by which rows that are brought to a user's own sink say what they do to a row of the target: I, U or D."""
_AT = "__landonce_at"
NOWHERE = -1
"""The floor of a table that takes no rows at all."""
_SCHEMA = pa.schema(
    [("_topic", pa.dictionary(pa.int32(), pa.string())), ("_partition", pa.int32()), ("_offset", pa.int64())]
)
NO_ROWS = pa.Table.from_batches([], _SCHEMA)


def with_coordinates(rows: pa.Table, partition: Partition, offsets: pa.Int64Array, label: str) -> pa.Table:
    """The rows with their coordinates in front."""
    count = len(offsets)
    topic = pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([label], pa.string()))
    number = pa.array(np.full(count, partition.number, np.int32))
    return pa.Table.from_arrays([topic, number, offsets, *rows.columns], schema=pa.schema([*_SCHEMA, *rows.schema]))


def records_of(rows: pa.Table) -> int:
    """How many records these rows, which are in order, came from: one change may be two rows."""
    if not rows.num_rows:
        return 0
    topics = rows.column("_topic").cast(pa.string()).combine_chunks()
    another = np.asarray(pc.not_equal(topics[1:], topics[:-1]).to_numpy(zero_copy_only=False), np.bool_)
    for name in ("_partition", "_offset"):
        another = another | (np.diff(rows.column(name).to_numpy()) != 0)
    return 1 + int(np.count_nonzero(another))


def ends_by_key(rows: pa.Table, key: Sequence[str]) -> tuple[Indexes, Indexes]:
    """The indexes of the first and of the last row of each key, in order. Arrow cannot group by an extension type: a UUID is grouped by its
    sixteen bytes."""
    keyed = pa.table({_AT: pa.array(np.arange(rows.num_rows))})
    for name in key:
        column = rows.column(name)
        if isinstance(column.type, pa.BaseExtensionType):
            column = pa.chunked_array([each.storage for each in column.chunks], column.type.storage_type)
        keyed = keyed.append_column(name, column)
    found = keyed.group_by(list(key)).aggregate([(_AT, "min"), (_AT, "max")])
    first, last = (np.sort(np.asarray(found.column(f"{_AT}_{each}").to_numpy(), np.int64)) for each in ("min", "max"))
    return first, last


def from_floors(rows: pa.Table, floors: Mapping[Partition, int], labels: Mapping[str, str]) -> pa.Table:
    """The rows at or above the floors of their partitions."""
    keep = np.ones(rows.num_rows, np.bool_)
    topics = rows.column("_topic").cast(pa.string())
    for partition, floor in floors.items():
        label = label_of(labels, partition)
        here = pc.and_(pc.equal(topics, label), pc.equal(rows.column("_partition"), partition.number))
        below = pc.less(rows.column("_offset"), floor) if floor != NOWHERE else pa.scalar(True)
        keep &= ~np.asarray(pc.and_(here, below).to_numpy(), np.bool_)
    return rows if keep.all() else rows.filter(pa.array(keep))


def highest_offsets(rows: pa.Table, topics: Mapping[str, str]) -> dict[Partition, int]:
    """The highest offset of each partition. `topics`: their names by their labels."""
    plain = rows.select(list(COORDINATES)).set_column(0, "_topic", rows.column("_topic").cast(pa.string()))
    highest = plain.group_by(["_topic", "_partition"]).aggregate([("_offset", "max")]).to_pylist()
    return {
        Partition(topics.get(each["_topic"], each["_topic"]), each["_partition"]): each["_offset_max"]
        for each in highest
    }


KEEP = "__landonce_keep"
"""The boolean column of `where`."""


def chosen(rows: pa.Table) -> pa.Table:
    """The rows that `where` keeps."""
    return rows.filter(pc.fill_null(rows.column(KEEP).combine_chunks().cast(pa.bool_()), False))


Fit = Callable[[pa.Table], Decoded]
"""Converts rows with coordinates to the types of one table."""
Refuses = Callable[[pa.Table], Mapping[int, Reason]]
"""The rows that a table cannot hold although their types fit: the reason by index."""


def fit_to(target: Schema, refuses: Refuses | None = None) -> Fit:
    """The `Fit` for a table with these columns."""

    def fit_rows(rows: pa.Table) -> Decoded:
        table, misfits = conform(rows, target, COORDINATES)
        kept = np.delete(np.arange(rows.num_rows), [at for at, _ in misfits])
        refused = refuses(table) if refuses is not None else {}
        rejects = (*misfits, *(Reject(int(kept[at]), reason) for at, reason in refused.items()))
        return Decoded(table, kept, rejects)

    return fit_rows


def as_is(rows: pa.Table) -> Decoded:
    """The `Fit` of a target that takes any columns."""
    return Decoded(rows, np.arange(rows.num_rows))


def conform(rows: pa.Table, target: Schema, kept: tuple[str, ...]) -> tuple[pa.Table, list[Reject]]:
    """The rows in the table's types, without those that do not fit; and the index and reason of each of those.

    `kept` are columns that pass unchanged. Columns that the table does not have are left out: names were checked before
    the start.
    """
    reasons: dict[int, Reason] = {}
    columns = {name: rows.column(name) for name in kept}
    for each in target.fields:
        if each.name not in rows.column_names:
            continue
        array = rows.column(each.name).combine_chunks()
        fitted, faults = fit(array, each)
        add_reasons(reasons, faults, each.name)
        columns[each.name] = fitted
    table = target.without_unfilled(pa.table(columns))
    if reasons:
        keep = np.ones(rows.num_rows, dtype=np.bool_)
        keep[list(reasons)] = False
        table = table.filter(pa.array(keep))
    return table, [Reject(at, reason) for at, reason in sorted(reasons.items())]
