"""Which row a record changes, whatever else it holds: by its value, or else by its Kafka key, as a tombstone would name it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from landonce.read.changes import Changes
from landonce.read.decoding import Decoding, decoder_of
from landonce.read.kafka.records import KafkaMessage
from landonce.read.schema.fields import Schema

Identity = tuple[Any, ...]
_TOMBSTONES = Changes("upsert")


@dataclass(frozen=True)
class Identities:
    """Of the records of a pipeline."""

    schema: Schema
    decoding: Decoding
    key: tuple[str, ...]
    changes: Changes

    def of(self, records: Sequence[KafkaMessage]) -> list[Identity | None]:
        """None for a record that tells it in neither."""
        values = pa.array([each.value() for each in records], pa.binary())
        by_value = self._decoded(self.changes, values, records)
        by_key = self._decoded(_TOMBSTONES, pa.nulls(len(records), pa.binary()), records)
        return [by_value.get(at, by_key.get(at)) for at in range(len(records))]

    def _decoded(
        self, changes: Changes, values: pa.BinaryArray, records: Sequence[KafkaMessage]
    ) -> dict[int, Identity]:
        schema = replace(self.schema, fields=tuple(each for each in self.schema.fields if each.name in self.key))
        with suppress(ValueError):  # keys of this format have no fields
            decoded = decoder_of(schema, self.decoding, self.key, changes)(values, records)
            columns = [_comparable(decoded.table.column(name)).to_pylist() for name in self.key]
            return dict(zip(decoded.kept.tolist(), zip(*columns, strict=True), strict=True))
        return {}


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Times as numbers: Python knows no year beyond 9999."""
    if not pt.is_temporal(column.type):
        return column
    return column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
