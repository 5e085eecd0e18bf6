"""Confluent's framing of Protobuf: a zero byte, the id of the schema, and which message of the schema follows.

    00 | id: 4 bytes, big-endian | indexes: a count and so many numbers, as zigzag varints; 0 alone means [0] | message

A schema is a `.proto` file. The indexes lead to a message in it: [1, 0] is the first message inside its second one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from landonce.protocol.reasons import Code, Reason
from landonce.read.formats import Indexes

_MOST_INDEXES = 100
_LONGEST_NUMBER = 10


class Frame(NamedTuple):
    """What a framing says."""

    schema_id: int
    indexes: tuple[int, ...]


class BadFrame(ValueError):
    """The message is the reason for a dead letter."""


def frame_of(value: bytes) -> tuple[Frame, int]:
    """The framing at the start of a value, and its length."""
    if not value or value[0] != 0:
        raise BadFrame("does not begin with the zero byte of Confluent's framing")
    if len(value) < 6:
        raise BadFrame("ends inside Confluent's framing")
    count, at = _number(value, 5)
    if not 0 <= count <= _MOST_INDEXES:
        raise BadFrame("has invalid message indexes in Confluent's framing")
    indexes = []
    for _ in range(count):
        index, at = _number(value, at)
        if index < 0:
            raise BadFrame("has invalid message indexes in Confluent's framing")
        indexes.append(index)
    return Frame(int.from_bytes(value[1:5], "big"), tuple(indexes) or (0,)), at


def frames(rows: Indexes, records: pa.BinaryArray) -> Iterator[tuple[Frame | Reason, Indexes, pa.BinaryArray]]:
    """Records by their framing, without it; or the reason why they have none.

    A framing says itself where it ends. So records that begin with the same bytes as one framing have that framing.
    """
    while len(rows):
        first = records[0].as_py()
        try:
            frame, length = frame_of(first)
        except BadFrame as error:
            yield Reason(str(error), Code.BAD_FRAME), rows[:1], records.slice(0, 1)
            rows, records = rows[1:], records.slice(1)
            continue
        same = pc.starts_with(records, pattern=first[:length])
        chosen = np.asarray(same.to_numpy(zero_copy_only=False), np.bool_)
        longest = pc.max(pc.binary_length(records)).as_py()
        yield frame, rows[chosen], pc.binary_slice(records.filter(same), length, max(longest, length + 1))
        rows, records = rows[~chosen], records.filter(pc.invert(same))


def _number(value: bytes, at: int) -> tuple[int, int]:
    found = 0
    for step in range(_LONGEST_NUMBER):
        if at >= len(value):
            raise BadFrame("ends inside Confluent's framing")
        byte = value[at]
        at += 1
        found |= (byte & 0x7F) << (7 * step)
        if byte < 0x80:
            return (found >> 1) ^ -(found & 1), at
    raise BadFrame("has invalid message indexes in Confluent's framing")
