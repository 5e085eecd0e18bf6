"""The decoder of a table: records that are rows, or records that say how rows change."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa
from confluent_kafka import Message

from landonce.read.changes.decode import ChangeDecoder, Changes
from landonce.read.fanout import Decode, Rows
from landonce.read.formats.json.decode import JsonDecoder
from landonce.read.schema.fields import Schema


@lru_cache(maxsize=512)
def decoder_of(schema: Schema, identity: tuple[str, ...], changes: Changes | None, max_record_bytes: int) -> Decode:
    """One per worker and table: it learns how a topic writes its times."""
    if changes is not None:
        decoder = ChangeDecoder(schema, identity, changes, max_record_bytes=max_record_bytes)

        def decode_changes(values: pa.BinaryArray, messages: list[Message]) -> Rows:
            told = decoder.decode(values, pa.array(list(map(Message.key, messages)), pa.binary()))
            return Rows(
                told.table,
                _plain(told.kept),
                tuple((each.index, each.reason) for each in told.rejects),
                _plain(told.filtered),
            )

        return decode_changes
    plain = JsonDecoder(schema, max_record_bytes=max_record_bytes)

    def decode(values: pa.BinaryArray, messages: list[Message]) -> Rows:
        del messages
        told = plain.decode(values)
        return Rows(told.table, _plain(told.kept), tuple((each.index, each.reason) for each in told.rejects))

    return decode


def _plain(indexes: pa.Int64Array) -> np.ndarray:
    return np.asarray(indexes.to_numpy(), np.int64)
