"""The columns `_key`, `_headers`, `_timestamp`, `_value` and `_record_type`: what a record is beside the fields of its value.

Any table may have them, under any format. Keys and values are bytes; where the column is text, they must be UTF-8. A key may also be a
struct, which is decoded by the format of keys, or a number, a time and so on, which is read from the key's text, or from Avro.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from operator import methodcaller
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from landonce.config.dedup import RECORD_TYPE
from landonce.errors import ConfigError
from landonce.protocol.reasons import UNREADABLE, Code, Reason, missing, of_field
from landonce.read.formats import Decoded, Decoder, Format, Indexes, Reject
from landonce.read.kafka.records import KafkaMessage, header_pairs, read_headers
from landonce.read.schema.fields import Field, Schema, landed, spelled
from landonce.read.schema.texts import cast_or_null
from landonce.read.schema.values import Fault, add_reasons, check_plain, fit, from_plain, unless

KEY, HEADERS, TIMESTAMP, VALUE = "_key", "_headers", "_timestamp", "_value"
RECORD_COLUMNS = {
    KEY: pa.binary(),
    HEADERS: pa.map_(pa.string(), pa.binary()),
    TIMESTAMP: pa.timestamp("ms", tz="UTC"),
    VALUE: pa.binary(),
    RECORD_TYPE: pa.string(),
}
"""Their types, where no table has others."""
BYTES = (KEY, HEADERS, VALUE)
"""Those that hold bytes, where a table has no other type for them."""
_NOT_TEXT = Reason("is not valid UTF-8", Code.NOT_UTF8)
_UNREADABLE_NAME = of_field(HEADERS, Reason("cannot be read: the name of a header is not valid UTF-8", Code.NOT_UTF8))
_key, _timestamp = methodcaller("key"), methodcaller("timestamp")


def record_fields(names: Sequence[str]) -> tuple[Field, ...]:
    """Fields for these columns, in their usual types."""
    return tuple(Field(name, RECORD_COLUMNS[name]) for name in names)


def without_record_columns(schema: Schema) -> Schema:
    """The fields of the value alone."""
    return replace(schema, fields=tuple(each for each in schema.fields if each.name not in RECORD_COLUMNS))


def as_bytes(type_: pa.DataType) -> pa.DataType:
    """The type with bytes in place of text, if it is text, or what headers become."""
    return _with_content(type_, pa.binary())


def as_strings(type_: pa.DataType) -> pa.DataType:
    """The type with text in place of bytes."""
    return _with_content(type_, pa.string())


def _with_content(type_: pa.DataType, content: pa.DataType) -> pa.DataType:
    if _is_content(type_):
        return content
    if pt.is_map(type_) and _is_content(type_.item_type):
        return pa.map_(type_.key_type, type_.item_field.with_type(content))
    if _is_pairs(type_):
        name, value = type_.value_type
        return pa.list_(type_.value_field.with_type(pa.struct([name, value.with_type(content)])))
    return type_


class RecordColumns:
    """Decodes records for a schema that has some of these columns."""

    def __init__(self, schema: Schema, format_: Format, keys: Format, *, max_record_bytes: int) -> None:
        self._schema = schema
        self._own = tuple(each for each in schema.fields if each.name in RECORD_COLUMNS)
        rest = tuple(each for each in schema.fields if each.name not in RECORD_COLUMNS)
        self._decoder: Decoder | None = None
        if rest:
            self._decoder = format_.decoder(replace(schema, fields=rest), max_record_bytes=max_record_bytes)
        self._keys: Decoder | None = None
        self._format = format_
        for each in self._own:
            if each.name == RECORD_TYPE and not format_.has_types:
                raise ValueError(
                    f"field {RECORD_TYPE!r}: only the schemas of Avro and Protobuf name the type of a record"
                )
            if each.name == KEY and pt.is_struct(each.type):
                if not keys.has_fields:
                    raise ValueError(f"field {KEY!r}: keys of the formats raw and string have no fields")
                parts = replace(schema, fields=tuple(_part(each, part) for part in each.type))
                self._keys = keys.decoder(parts, max_record_bytes=max_record_bytes)
            elif each.name == KEY and not pt.is_binary(each.type) and not keys.is_text:
                alone = keys.alone()
                if alone is None:
                    raise ConfigError(
                        f"source.kafka.key_format: the column {KEY} is {spelled(each.type)}, and keys of this format have fields.",
                        safe="Nothing was read.",
                        command=f"make {KEY} a STRUCT of these fields, or BINARY for the key's bytes, or correct `key_format` in {{file}}",
                    )
                self._keys = alone.decoder(replace(schema, fields=(each,)), max_record_bytes=max_record_bytes)
            else:
                _check(each)

    def __call__(self, values: pa.BinaryArray, messages: Sequence[KafkaMessage]) -> Decoded:
        everything = np.arange(len(values), dtype=np.int64)
        decoded = self._decoder.decode(values) if self._decoder is not None else None
        kept: Indexes = decoded.kept if decoded is not None else everything
        columns: dict[str, pa.ChunkedArray | pa.Array] = {}
        if decoded is not None:
            columns = dict(zip(decoded.table.column_names, decoded.table.columns, strict=True))
        chosen = messages if len(kept) == len(messages) else [messages[at] for at in kept]
        reasons: dict[int, Reason] = {}
        for each in self._own:
            columns[each.name], faults = self._column(each, values, kept, chosen)
            for row, reason in faults.items():
                reasons.setdefault(row, reason)
        table = pa.Table.from_arrays([columns[each.name] for each in self._schema.fields], schema=self._schema.arrow)
        rejects = [*(decoded.rejects if decoded is not None else ())]
        if reasons:
            good = np.ones(len(kept), np.bool_)
            good[list(reasons)] = False
            rejects += [Reject(int(kept[at]), reason) for at, reason in reasons.items()]
            table, kept = table.filter(pa.array(good)), kept[good]
        filtered = decoded.filtered if decoded is not None else np.empty(0, np.int64)
        return Decoded(table, kept, tuple(sorted(rejects)), filtered)

    def _column(
        self, field: Field, values: pa.BinaryArray, kept: Indexes, messages: Sequence[KafkaMessage]
    ) -> tuple[pa.Array, dict[int, Reason]]:
        if field.name == TIMESTAMP:
            moments = [at if kind else None for kind, at in map(_timestamp, messages)]
            return _fitted(pa.array(moments, pa.int64()).cast(RECORD_COLUMNS[TIMESTAMP]), field)
        if field.name == HEADERS:
            return _header_column(messages, field)
        if field.name == RECORD_TYPE:
            number, types = self._format.types_of(values.take(pa.array(kept)))
            names = pa.array([each.name for each in types], pa.string())
            return _fitted(names.take(pa.array(number, mask=number < 0)), field)
        if field.name == VALUE:
            return _bytes(values.take(pa.array(kept)) if len(kept) < len(values) else values, field)
        keys = pa.array(list(map(_key, messages)), pa.binary())
        return self._decoded(keys, field) if self._keys is not None else _bytes(keys, field)

    def _decoded(self, keys: pa.BinaryArray, field: Field) -> tuple[pa.Array, dict[int, Reason]]:
        assert self._keys is not None
        there = np.flatnonzero(keys.is_valid().to_numpy(zero_copy_only=False))
        decoded = self._keys.decode(keys.take(pa.array(there)))
        reasons = {}
        for at, why in decoded.rejects:
            path = f"{KEY}.{why.field}" if why.field not in ("", KEY) else KEY
            reasons[int(there[at])] = Reason(f"its key: {why}", Code.BAD_KEY, path)
        parts = [each.combine_chunks() for each in decoded.table.columns]
        is_struct = pt.is_struct(field.type)
        found = pa.StructArray.from_arrays(parts, fields=list(landed(field.type))) if is_struct else parts[0]
        places = np.full(len(keys), -1, np.int64)
        places[there[decoded.kept]] = np.arange(len(decoded.kept))
        column = found.take(pa.array(places, mask=places < 0))
        if field.required:
            empty = keys.is_null().to_numpy(zero_copy_only=False)
            reasons.update({int(at): missing(KEY) for at in np.flatnonzero(empty)})
        return column, reasons


def _part(field: Field, part: pa.Field) -> Field:
    """A part of a struct as a field of its own, with its limits and its names in records."""
    known = next((each for each in field.inner if each.name == part.name), Field(part.name, part.type))
    inner = {path: names for path, names in field.inner_aliases if path[0] == part.name}
    return replace(
        known,
        type=part.type,
        required=not part.nullable,
        aliases=inner.get((part.name,), ()),
        inner_aliases=tuple((path[1:], names) for path, names in inner.items() if len(path) > 1),
    )


def _check(field: Field) -> None:
    type_ = field.type
    if field.name == TIMESTAMP and not pt.is_timestamp(type_) and not pt.is_integer(type_):
        raise ValueError(f"field {TIMESTAMP!r}: a record's timestamp cannot become {type_}")
    if field.name == HEADERS:
        pair = (pt.is_map(type_) and pt.is_string(type_.key_type) and _is_content(type_.item_type)) or _is_pairs(type_)
        if not pair and not pt.is_string(type_):
            raise ValueError(
                f"field {HEADERS!r}: headers become a MAP<STRING, …>, an array of pairs, or JSON text, not {type_}"
            )
    if field.name == RECORD_TYPE and not pt.is_string(type_):
        raise ValueError(f"field {RECORD_TYPE!r}: the type of a record is text, not {type_}")
    if field.name == VALUE and not _is_content(type_):
        raise ValueError(f"field {VALUE!r}: the value of a record is bytes or text, not {type_}")
    if field.name == KEY and not pt.is_binary(type_):
        check_plain(field)


def _is_content(type_: pa.DataType) -> bool:
    return bool(pt.is_binary(type_) or pt.is_string(type_))


def _is_pairs(type_: pa.DataType) -> bool:
    """Spark's form: headers may repeat, and keep their order."""
    if not pt.is_list(type_) or not pt.is_struct(type_.value_type) or type_.value_type.num_fields != 2:
        return False
    name, content = type_.value_type
    return bool(pt.is_string(name.type)) and _is_content(content.type)


def _bytes(column: pa.BinaryArray, field: Field) -> tuple[pa.Array, dict[int, Reason]]:
    """Bytes as what the column holds."""
    if pt.is_binary(field.type):
        return _fitted(column, field)
    text = cast_or_null(column, pa.string())
    unreadable = unless(pa.compute.or_(text.is_valid(), column.is_null()), _NOT_TEXT)
    values, faults = from_plain(text, field)
    return values, _reasons([*unreadable, *faults], field)


def _header_column(messages: Sequence[KafkaMessage], field: Field) -> tuple[pa.Array, dict[int, Reason]]:
    """One record after the other: there are few headers, and no kernel for them. The last of equal names counts, unless pairs are kept."""
    type_, reasons = field.type, dict[int, Reason]()
    wants_text = pt.is_string(type_) or pt.is_string(type_.item_type if pt.is_map(type_) else type_.value_type[1].type)
    found: list[Any] = []
    for row, message in enumerate(messages):
        pairs: list[tuple[str, Any]] = [*header_pairs(read_headers(message))]
        if pairs == [UNREADABLE]:
            reasons[row] = _UNREADABLE_NAME
            pairs = []
        elif wants_text:
            try:
                pairs = [(name, content.decode() if content is not None else None) for name, content in pairs]
            except UnicodeDecodeError:
                reasons[row] = of_field(HEADERS, _NOT_TEXT)
                pairs = []
        if pt.is_string(type_):
            found.append(json.dumps(dict(pairs), ensure_ascii=False))
        elif pt.is_map(type_):
            found.append(list(dict(pairs).items()))
        else:
            name, content = (part.name for part in type_.value_type)
            found.append([{name: one, content: two} for one, two in pairs])
    column, faults = _fitted(pa.array(found, type_), field)
    return column, {**faults, **reasons}


def _fitted(column: pa.Array, field: Field) -> tuple[pa.Array, dict[int, Reason]]:
    values, faults = fit(column, field)
    return values, _reasons(faults, field)


def _reasons(faults: Sequence[Fault], field: Field) -> dict[int, Reason]:
    found: dict[int, Reason] = {}
    add_reasons(found, faults, field.name)
    return found
