"""Rows with their coordinates: `_topic`, `_partition` and `_offset` stand in front of what a record was decoded to."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from landonce.protocol.ranges import Partition, label_of

COORDINATES = ("_topic", "_partition", "_offset")
"""Beside every row, through every transform. `_topic` is the topic's label: its name, unless it was rebased."""
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


def in_order(rows: pa.Table) -> pa.Table:
    """Sorted by topic, partition and offset."""
    rows = rows.unify_dictionaries().combine_chunks()
    keyed = pa.table(
        {"t": rows.column("_topic").cast(pa.string()), "p": rows.column("_partition"), "o": rows.column("_offset")}
    )
    order = pc.sort_indices(keyed, sort_keys=[("t", "ascending"), ("p", "ascending"), ("o", "ascending")])
    return rows.take(order)


def records_of(rows: pa.Table) -> int:
    """How many records these rows (in order) came from: a change may be two rows."""
    if not rows.num_rows:
        return 0
    topics = rows.column("_topic").cast(pa.string()).combine_chunks()
    another = np.asarray(pc.not_equal(topics[1:], topics[:-1]).to_numpy(zero_copy_only=False), np.bool_)
    for name in ("_partition", "_offset"):
        another = another | (np.diff(rows.column(name).to_numpy()) != 0)
    return 1 + int(np.count_nonzero(another))


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
