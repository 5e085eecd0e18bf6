"""The decoder of a table: for records that are rows, or records that describe changes of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import Message

from landonce.read.changes.decode import ChangeDecoder, Changes
from landonce.read.formats.json.decode import JsonDecoder, Reject
from landonce.read.schema.fields import Schema

Indexes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Decoded:
    """The result of a decoder: rows, the indexes of their records, and the rejected and filtered records."""

    table: pa.Table
    kept: Indexes
    rejects: tuple[tuple[int, str], ...] = ()
    filtered: Indexes = field(default_factory=lambda: np.zeros(0, np.int64))

    def is_whole(self, count: int) -> bool:
        """Whether each of `count` records became one row. (Each is kept, rejected or filtered.)"""
        return len(self.kept) == count and not self.rejects and not len(self.filtered)


Decode = Callable[[pa.BinaryArray, list[Message]], Decoded]
"""Decodes records for one table."""


@lru_cache(maxsize=512)
def decoder_of(
    schema: Schema, identity: tuple[str, ...] = (), changes: Changes | None = None, *, max_record_bytes: int
) -> Decode:
    """Cached per worker and table, because a decoder learns how a topic writes its times."""
    if changes is None:
        return _of_rows(JsonDecoder(schema, max_record_bytes=max_record_bytes))
    return _of_changes(ChangeDecoder(schema, identity, changes, max_record_bytes=max_record_bytes))


def decode_by(
    schema: Schema, identity: tuple[str, ...] = (), changes: Changes | None = None, *, max_record_bytes: int
) -> Decode:
    """Like `decoder_of`, created when the first records come: rows of a query need none."""

    def decode(values: pa.BinaryArray, messages: list[Message]) -> Decoded:
        return decoder_of(schema, identity, changes, max_record_bytes=max_record_bytes)(values, messages)

    return decode


def _of_rows(decoder: JsonDecoder) -> Decode:
    def decode(values: pa.BinaryArray, messages: list[Message]) -> Decoded:
        del messages
        found = decoder.decode(values)
        return Decoded(found.table, _indexes(found.kept), _reasons(found.rejects))

    return decode


def _of_changes(decoder: ChangeDecoder) -> Decode:
    def decode(values: pa.BinaryArray, messages: list[Message]) -> Decoded:
        found = decoder.decode(values, pa.array(list(map(Message.key, messages)), pa.binary()))
        return Decoded(found.table, _indexes(found.kept), _reasons(found.rejects), _indexes(found.filtered))

    return decode


def _indexes(found: pa.Int64Array) -> Indexes:
    return np.asarray(found.to_numpy(), np.int64)


def _reasons(rejects: tuple[Reject, ...]) -> tuple[tuple[int, str], ...]:
    return tuple((each.index, each.reason) for each in rejects)
