"""How the bytes of records become fields, whatever the table: one `Decoding` for all records of a pipeline.

A decoder is for records that are rows, or for records that describe changes of rows. `Identities` tells which row a record changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import methodcaller
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from landonce.config.dedup import RECORD_TYPE
from landonce.config.source import Conversion, Convert, RecordFormat
from landonce.read.changes import ChangeDecoder, Changes, WithBefore
from landonce.read.convert.decode import Conversions, fitted
from landonce.read.evolution import without_column
from landonce.read.formats import Decoded, Format, Reject
from landonce.read.formats.avro.decode import avro_of
from landonce.read.formats.json.decode import MAX_RECORD_BYTES, Json
from landonce.read.formats.protobuf.format import protobuf_of
from landonce.read.formats.text.csv import Csv
from landonce.read.formats.text.plain import Framed, Plain
from landonce.read.kafka.records import KafkaMessage
from landonce.read.record_columns import RECORD_COLUMNS, RecordColumns
from landonce.read.schema.fields import ConversionRule, Schema

Decode = Callable[[pa.BinaryArray, Sequence[KafkaMessage]], Decoded]
"""Decodes records for one table."""
_LOOK_EVERY = 50_000
"""After so many records, a few are looked at for fields without a column."""
_key = methodcaller("key")


@dataclass(frozen=True)
class Decoding:
    """What a pipeline file says about the bytes of records."""

    format: Format = field(default_factory=Json)
    keys: Format = field(default_factory=Json)
    """The format of keys that become a struct."""
    max_record_bytes: int = MAX_RECORD_BYTES
    convert: Conversions = field(default_factory=Conversions)
    notices: bool = False
    """Whether to look for fields without a column. The file does not say which fields are to land."""

    @property
    def values(self) -> Format:
        """The format of values, with the conversions."""
        return fitted(self.format, self.convert)

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


def _rule(section: Conversion) -> ConversionRule | None:
    return ConversionRule(section.epoch, section.empty is None) if section.mode == "fit" else None


@lru_cache(maxsize=512)
def decoder_of(
    schema: Schema, decoding: Decoding, identity: tuple[str, ...] = (), changes: Changes | None = None
) -> Decode:
    """Cached per worker and table, because a decoder learns how a topic writes its times."""
    decode = _decoder(schema, decoding, identity, changes)
    if all(each.is_filled for each in schema.fields):
        return decode

    def without_unfilled(values: pa.BinaryArray, messages: Sequence[KafkaMessage]) -> Decoded:
        rows = decode(values, messages)
        return replace(rows, table=schema.without_unfilled(rows.table))

    return without_unfilled


def _decoder(schema: Schema, decoding: Decoding, identity: tuple[str, ...], changes: Changes | None) -> Decode:
    limit = decoding.max_record_bytes
    own = [each for each in schema.fields if each.name in RECORD_COLUMNS]
    if changes is None and not decoding.format.has_fields and not own:
        raise ValueError("records of the formats raw and string have no fields: the table needs the column _value")
    if changes is None and own:
        return RecordColumns(schema, decoding.values, decoding.keys, max_record_bytes=limit)
    if changes is None:
        decoder = decoding.values.decoder(schema, max_record_bytes=limit)
        return lambda values, _: decoder.decode(values)
    format_, convert = decoding.format, decoding.convert
    plainly = ChangeDecoder(schema, identity, changes, format_, decoding.keys, convert, max_record_bytes=limit)
    of_changes = WithBefore(plainly, schema, identity, changes, format_, convert, limit) if changes.before else plainly
    return lambda values, messages: of_changes.decode(values, pa.array(list(map(_key, messages)), pa.binary()))


@dataclass(frozen=True)
class BesideChanges:
    """Decodes changes of rows, with what each record is beside its value: `_key`, `_headers`, `_timestamp` and `_value`, of deletions too."""

    changes: Decode
    columns: RecordColumns
    names: tuple[str, ...]
    """The fields in their order."""

    @staticmethod
    def of(schema: Schema, decoding: Decoding, identity: tuple[str, ...], changes: Changes) -> Decode:
        """Raises `ValueError` where the schema, the key or the changes do not go with each other."""
        own = tuple(each for each in schema.fields if each.name in RECORD_COLUMNS)
        if not own:
            return decode_by(schema, decoding, identity, changes)
        if any(each.name == RECORD_TYPE for each in own):
            raise ValueError(f"the field {RECORD_TYPE} does not go with `changes`")
        rest = replace(schema, fields=tuple(each for each in schema.fields if each not in own))
        limit = decoding.max_record_bytes
        columns = RecordColumns(replace(schema, fields=own), decoding.values, decoding.keys, max_record_bytes=limit)
        names = tuple(each.name for each in schema.fields)
        return BesideChanges(decode_by(rest, decoding, identity, changes), columns, names)

    def __call__(self, values: pa.BinaryArray, messages: Sequence[KafkaMessage]) -> Decoded:
        found = self.changes(values, messages)
        beside = self.columns(values.take(pa.array(found.kept)), [messages[at] for at in found.kept])
        rows = found.table.take(pa.array(beside.kept))
        columns = {name: table.column(name) for table in (rows, beside.table) for name in table.column_names}
        order = [*(name for name in rows.column_names if name not in self.names), *self.names]
        rejects = (Reject(int(found.kept[at]), reason) for at, reason in beside.rejects)
        return replace(
            found,
            table=pa.table({name: columns[name] for name in order}),
            kept=found.kept[beside.kept],
            rejects=tuple(sorted([*found.rejects, *rejects])),
        )


def decode_by(
    schema: Schema, decoding: Decoding, identity: tuple[str, ...] = (), changes: Changes | None = None
) -> Decode:
    """Like `decoder_of`, created when the first records come: rows of a query need none. It looks for fields without a column
    in the first records that it gets, and then in one of many calls; not in the envelopes of changes."""
    enveloped = changes is not None and changes.mode in ("debezium", "dms")
    operation = changes.field if changes is not None and changes.mode == "operation" else None
    unseen = _LOOK_EVERY

    def decode(values: pa.BinaryArray, messages: Sequence[KafkaMessage]) -> Decoded:
        nonlocal unseen
        rows = decoder_of(schema, decoding, identity, changes)(values, messages)
        unseen += len(values)
        if not decoding.notices or enveloped or unseen < _LOOK_EVERY:
            return rows
        unseen = 0
        found = without_column(values, schema, decoding.format)
        return replace(rows, without_column=tuple(".".join(each) for each in found if each != (operation,)))

    return decode


Identity = tuple[Any, ...]
_TOMBSTONES = Changes("upsert")


@dataclass(frozen=True)
class Identities:
    """Which row each record of a pipeline changes: by its value, or else by its Kafka key, as a tombstone would name it."""

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
            columns = []
            for name in self.key:
                column = decoded.table.column(name)
                if pt.is_temporal(column.type):  # as a number: Python knows no year beyond 9999
                    column = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
                columns.append(column.to_pylist())
            return dict(zip(decoded.kept.tolist(), zip(*columns, strict=True), strict=True))
        return {}
