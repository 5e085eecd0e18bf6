"""How the bytes of records become fields, whatever the table: one `Decoding` for all records of a pipeline.

A decoder is for records that are rows, or for records that describe changes of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import methodcaller

import pyarrow as pa

from landonce.read.changes import ChangeDecoder, Changes
from landonce.read.formats import Decoded, Format
from landonce.read.formats.json.decode import MAX_RECORD_BYTES, Json
from landonce.read.kafka.records import Record
from landonce.read.schema.fields import Schema

Decode = Callable[[pa.BinaryArray, Sequence[Record]], Decoded]
"""Decodes records for one table."""
_key = methodcaller("key")


@dataclass(frozen=True)
class Decoding:
    """What a pipeline file says about the bytes of records."""

    format: Format = field(default_factory=Json)
    max_record_bytes: int = MAX_RECORD_BYTES

    def decisive(self) -> tuple[object, ...]:
        """What decides which rows records become, as JSON."""
        return *self.format.decisive(), self.max_record_bytes

    def with_limit(self, max_record_bytes: int) -> Decoding:
        return replace(self, max_record_bytes=max_record_bytes)


@lru_cache(maxsize=512)
def decoder_of(
    schema: Schema, decoding: Decoding, identity: tuple[str, ...] = (), changes: Changes | None = None
) -> Decode:
    """Cached per worker and table, because a decoder learns how a topic writes its times."""
    limit = decoding.max_record_bytes
    if changes is None:
        decoder = decoding.format.decoder(schema, max_record_bytes=limit)
        return lambda values, _: decoder.decode(values)
    of_changes = ChangeDecoder(schema, identity, changes, max_record_bytes=limit)
    return lambda values, messages: of_changes.decode(values, pa.array(list(map(_key, messages)), pa.binary()))


def decode_by(
    schema: Schema, decoding: Decoding, identity: tuple[str, ...] = (), changes: Changes | None = None
) -> Decode:
    """Like `decoder_of`, created when the first records come: rows of a query need none."""
    return lambda values, messages: decoder_of(schema, decoding, identity, changes)(values, messages)
