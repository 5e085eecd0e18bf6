"""How the bytes of records become fields, whatever the table: one `Decoding` for all records of a pipeline.

A decoder is for records that are rows, or for records that describe changes of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import methodcaller

import pyarrow as pa

from landonce.config.convert import Conversion, Convert
from landonce.config.formats import RecordFormat
from landonce.read.changes import ChangeDecoder, Changes
from landonce.read.convert.decode import Conversions, Fitted
from landonce.read.convert.rules import Rule
from landonce.read.formats import Decoded, Format
from landonce.read.formats.avro.decode import avro_of
from landonce.read.formats.json.decode import MAX_RECORD_BYTES, Json
from landonce.read.formats.protobuf.format import protobuf_of
from landonce.read.formats.text.csv import Csv
from landonce.read.formats.text.plain import Framed, Plain
from landonce.read.kafka.records import Record
from landonce.read.record_columns import KEY, RECORD_COLUMNS, RecordColumns
from landonce.read.schema.fields import Schema

Decode = Callable[[pa.BinaryArray, Sequence[Record]], Decoded]
"""Decodes records for one table."""
_key = methodcaller("key")


@dataclass(frozen=True)
class Decoding:
    """What a pipeline file says about the bytes of records."""

    format: Format = field(default_factory=Json)
    keys: Format = field(default_factory=Json)
    """The format of keys that become a struct."""
    max_record_bytes: int = MAX_RECORD_BYTES
    convert: Conversions = field(default_factory=Conversions)

    @property
    def values(self) -> Format:
        """The format of values, with the conversions."""
        return Fitted(self.format, self.convert) if self.convert else self.format

    def decisive(self) -> tuple[object, ...]:
        """What decides which rows records become, as JSON."""
        return *self.values.decisive(), *self.keys.decisive(), self.max_record_bytes

    def with_limit(self, max_record_bytes: int) -> Decoding:
        return replace(self, max_record_bytes=max_record_bytes)


def format_of(section: RecordFormat) -> Format:
    """The format of this section."""
    if section.json_ is not None:
        return Json() if section.json_.framing == "none" else Framed(Json())
    if (csv := section.csv or section.tsv) is not None:
        return Csv(csv.columns, csv.delimiter, csv.quote, csv.null)
    if section.avro is not None:
        return avro_of(section.avro)
    if section.protobuf is not None:
        return protobuf_of(section.protobuf)
    return Plain(text=section.string is not None)


def conversions_of(section: Convert) -> Conversions:
    """The conversions of this section."""
    named = tuple((path, _rule(each)) for path, each in section.fields_.items())
    return Conversions(_rule(section.default), named)


def _rule(section: Conversion) -> Rule | None:
    return Rule(section.epoch, section.empty is None) if section.mode == "fit" else None


@lru_cache(maxsize=512)
def decoder_of(
    schema: Schema, decoding: Decoding, identity: tuple[str, ...] = (), changes: Changes | None = None
) -> Decode:
    """Cached per worker and table, because a decoder learns how a topic writes its times."""
    limit = decoding.max_record_bytes
    own = [each for each in schema.fields if each.name in RECORD_COLUMNS]
    if isinstance(decoding.format, Plain) and not own:
        raise ValueError("records of the formats raw and string have no fields: the table needs the column _value")
    if isinstance(decoding.keys, Plain) and any(each.name == KEY and pa.types.is_struct(each.type) for each in own):
        raise ValueError("field '_key': keys of the formats raw and string have no fields")
    if changes is None and own:
        return RecordColumns(schema, decoding.values, decoding.keys, max_record_bytes=limit)
    if changes is None:
        decoder = decoding.values.decoder(schema, max_record_bytes=limit)
        return lambda values, _: decoder.decode(values)
    of_changes = ChangeDecoder(schema, identity, changes, max_record_bytes=limit)
    return lambda values, messages: of_changes.decode(values, pa.array(list(map(_key, messages)), pa.binary()))


def decode_by(
    schema: Schema, decoding: Decoding, identity: tuple[str, ...] = (), changes: Changes | None = None
) -> Decode:
    """Like `decoder_of`, created when the first records come: rows of a query need none."""
    return lambda values, messages: decoder_of(schema, decoding, identity, changes)(values, messages)
