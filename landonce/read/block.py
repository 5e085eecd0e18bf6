"""One block, read and decoded: rows in (topic, partition, offset) order with their coordinates, and what was rejected.

Memory is bounded by the block. Every record that was read is either a row or a reject.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Message

from landonce.errors import BlockTooLarge
from landonce.protocol.ranges import Partition, Range, label_of
from landonce.read.formats.json.decode import JsonDecoder
from landonce.read.kafka.records import Records, read
from landonce.read.schema.fields import Schema

_COORDINATES = pa.schema(
    [("_topic", pa.dictionary(pa.int32(), pa.string())), ("_partition", pa.int32()), ("_offset", pa.int64())]
)


_SPARE = 8


@dataclass(frozen=True)
class Rejected:
    """A record that cannot land, where it stands, and why."""

    partition: Partition
    offset: int
    reason: str


@dataclass
class Harvest:
    """What a block held."""

    rows: pa.Table
    read: int = 0
    bytes_read: int = 0
    rejected: list[Rejected] = field(default_factory=list)
    messages: dict[tuple[Partition, int], Message] = field(default_factory=dict)
    """The rejected records themselves."""
    latest: dict[Partition, int] = field(default_factory=dict)
    """The latest timestamp in each partition, in milliseconds, where they were asked for."""


def harvest(
    ranges: tuple[Range, ...],
    options: Mapping[str, Any],
    schema: Schema,
    labels: Mapping[str, str],
    *,
    max_record_bytes: int,
    most_bytes: int,
    timestamps: bool = False,
) -> Harvest:
    """Reads and decodes a block, chunk by chunk."""
    decoder = _decoder(schema, max_record_bytes)
    result = Harvest(pa.table([]))
    tables = []
    for records in read(ranges, options):
        if result.bytes_read > most_bytes:
            raise too_large(ranges, result.read, result.bytes_read, most_bytes)
        tables.append(_decode(decoder, records, labels, result))
        if timestamps:
            note_latest(records, result.latest)
    empty = with_coordinates(schema.arrow.empty_table(), Partition("", 0), pa.array([], pa.int64()), "")
    rows = pa.concat_tables([empty, *tables]) if tables else empty
    result.rows = in_order(rows) if len(ranges) > 1 else rows
    return result


def note_latest(records: Records, latest: dict[Partition, int]) -> None:
    """Timestamps need not be in order, so all of them are looked at."""
    newest = max(map(Message.timestamp, records.messages))[1]
    latest[records.partition] = max(newest, latest.get(records.partition, newest))


@lru_cache(maxsize=4)
def _decoder(schema: Schema, max_record_bytes: int) -> JsonDecoder:
    """One per worker: it learns how a topic writes its times."""
    return JsonDecoder(schema, max_record_bytes=max_record_bytes)


def too_large(ranges: tuple[Range, ...], read_so_far: int, bytes_read: int, most_bytes: int) -> BlockTooLarge:
    """What a worker says before a block fills its memory. The rest is taken to be twice as large as what was read."""
    each = bytes_read / max(read_so_far, 1)
    fitting = max(1, int(most_bytes / _SPARE / each))
    rest = max(0, sum(piece.span for piece in ranges) - read_so_far)
    enough = math.ceil((bytes_read + 2 * each * rest) / _SPARE / 2**20)
    return BlockTooLarge(
        f"the block that begins with {ranges[0]} holds more than {most_bytes // 10**6} MB: its records are much larger "
        "than those before.",
        safe="Nothing of it was sent.",
        command=f"set `batch.block_bytes: {enough}MiB` (a worker takes up to {_SPARE} times that) and `batch.block_rows: {fitting}` in {{file}}, "
        "then `landonce run {file}`: the block is written as it is, and later ones are smaller. Where a worker has not so much memory: "
        "`block_rows` alone, then `landonce state rebase {file} --drop-pending`, unless a block of the plan is in the target",
    )


def _decode(decoder: JsonDecoder, records: Records, labels: Mapping[str, str], result: Harvest) -> pa.Table:
    decoded = decoder.decode(records.values)
    result.read += len(records.values)
    result.bytes_read += records.values.nbytes
    offsets = records.offsets
    for reject in decoded.rejects:
        offset = offsets[reject.index].as_py()
        result.rejected.append(Rejected(records.partition, offset, reject.reason))
        result.messages[records.partition, offset] = records.messages[reject.index]
    kept = offsets.take(decoded.kept) if decoded.rejects else offsets
    return with_coordinates(decoded.table, records.partition, kept, label_of(labels, records.partition))


def with_coordinates(rows: pa.Table, partition: Partition, offsets: pa.Int64Array, label: str) -> pa.Table:
    """The rows with `_topic`, `_partition` and `_offset` in front."""
    count = len(offsets)
    topic = pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([label], pa.string()))
    number = pa.array(np.full(count, partition.number, np.int32))
    return pa.Table.from_arrays(
        [topic, number, offsets, *rows.columns], schema=pa.schema([*_COORDINATES, *rows.schema])
    )


def in_order(rows: pa.Table) -> pa.Table:
    """Sorted by topic, partition and offset."""
    rows = rows.unify_dictionaries().combine_chunks()
    keyed = pa.table(
        {"t": rows.column("_topic").cast(pa.string()), "p": rows.column("_partition"), "o": rows.column("_offset")}
    )
    order = pc.sort_indices(keyed, sort_keys=[("t", "ascending"), ("p", "ascending"), ("o", "ascending")])
    return rows.take(order)


def find(
    wanted: Iterable[Rejected], ranges: tuple[Range, ...], options: Mapping[str, Any]
) -> dict[tuple[Partition, int], Message]:
    """Reads a block once more for the records behind these rejects. Rare: only for what Spark or a cast rejected."""
    sought = {(each.partition, each.offset) for each in wanted}
    found: dict[tuple[Partition, int], Message] = {}
    if sought:
        for records in read(ranges, options):
            for message in records.messages:
                key = (records.partition, message.offset())
                if key in sought:
                    found[key] = message
    return found
