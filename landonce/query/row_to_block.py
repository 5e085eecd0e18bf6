"""Which block a row belongs to, and which task a block: expressions that Spark evaluates for every row.

They look up in arrays, by the number of the partition, so a row costs the same however many partitions there are, and the
code that Spark makes of them does not grow.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from pyspark.sql import Column
from pyspark.sql import functions as sql

from landonce.protocol.ranges import Partition, Range
from landonce.sinks.contract import COORDINATES

STRAY = "landonce found a row outside of its batch: "
"""What the job fails with for a row that belongs to no block; its coordinates follow."""
_NOT_NOW = -1
_SEED, _WORD = 42, 0xFFFFFFFF


def block_of(blocks: Sequence[Range], ranges: Sequence[Range]) -> Column:
    """The index of a row's block; less than zero where it is delivered already or comes later. `ranges` are those of the whole
    batch, one of a partition; a row that lies in none of them fails the job."""
    slots = _Slots(ranges)
    layers = _layers(blocks)
    inside = [slots.when(layer) for layer in layers]
    return sql.coalesce(*inside, slots.when([(each, _NOT_NOW) for each in ranges]), _refused())


def place(block: Column, count: int) -> Column:
    """A number for each block that Spark's shuffle sends to a task of its own. Two in one task would be slower, not wrong."""
    return sql.get(_array(numbers(count), "int"), block)


class _Slots:
    """A number for each partition of some topics, and arrays by it."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        widths: dict[str, int] = {}
        for partition in (each.partition for each in ranges):
            widths[partition.topic] = max(widths.get(partition.topic, 0), partition.number + 1)
        self._begins: dict[str, int] = {}
        self._count = 0
        for topic, width in widths.items():
            self._begins[topic] = self._count
            self._count += width
        at = sql.array_position(_array(list(widths), "string"), sql.col("_topic")).cast("int") - 1
        number = sql.col("_partition")
        known = (number >= 0) & (number < sql.get(_array(list(widths.values()), "int"), at))
        self._slot = sql.when(known, sql.get(_array(list(self._begins.values()), "int"), at) + number)

    def when(self, told: Sequence[tuple[Range, int]]) -> Column:
        """What is told of the range that a row lies in; null if it lies in none. A partition has one at most."""
        firsts, ends, values = [0] * self._count, [0] * self._count, [_NOT_NOW] * self._count
        for each, value in told:
            at = self._begins[each.partition.topic] + each.partition.number
            firsts[at], ends[at], values[at] = each.first, each.end, value
        offset = sql.col("_offset")
        inside = (offset >= self._of(firsts)) & (offset < self._of(ends))
        return sql.when(inside, sql.get(_array(values, "int"), self._slot))

    def _of(self, values: Sequence[int]) -> Column:
        return sql.get(_array(values, "bigint"), self._slot)


def _layers(blocks: Sequence[Range]) -> list[list[tuple[Range, int]]]:
    """The blocks with their indexes: the first of each partition, the second of each, and so on."""
    layers: list[list[tuple[Range, int]]] = []
    seen: dict[Partition, int] = {}
    for index, block in enumerate(blocks):
        depth = seen[block.partition] = seen.get(block.partition, -1) + 1
        if depth == len(layers):
            layers.append([])
        layers[depth].append((block, index))
    return layers


def _array(values: Sequence[object], kind: str) -> Column:
    """A constant: Spark evaluates it once. As one text, for a call of Spark's for every value would take longer than the batch."""
    return sql.split(sql.lit(",".join(map(str, values))), ",").cast(f"array<{kind}>")


def _refused() -> Column:
    told = sql.to_json(sql.struct(*COORDINATES), {"ignoreNullFields": "false"})
    return sql.raise_error(sql.concat(sql.lit(STRAY), told)).cast("int")


@lru_cache(maxsize=64)
def numbers(count: int) -> tuple[int, ...]:
    """Of each of so many tasks, a number that Spark's shuffle by hash sends there."""
    found: dict[int, int] = {}
    for number in range(100 * count):
        found.setdefault(_hashed(number) % count, number)
        if len(found) == count:
            break
    return tuple(found.get(at, at) for at in range(count))


def _hashed(number: int) -> int:
    """Spark's Murmur3 of an INT, with the seed of its shuffles."""
    key = _turned(number * 0xCC9E2D51, 15) * 0x1B873593 & _WORD
    value = (_turned(_SEED ^ key, 13) * 5 + 0xE6546B64 & _WORD) ^ 4
    value = (value ^ value >> 16) * 0x85EBCA6B & _WORD
    value = (value ^ value >> 13) * 0xC2B2AE35 & _WORD
    value ^= value >> 16
    return value - (value >> 31 << 32)


def _turned(value: int, by: int) -> int:
    value &= _WORD
    return (value << by | value >> 32 - by) & _WORD
