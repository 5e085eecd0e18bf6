"""Single values: from Avro's encoding to the Arrow type that it means, and from there to the type of a table's column.

A value lands exactly or not at all. What is converted: integers to wider and narrower ones, to decimals, and to floats
that hold them exactly; a float to a double, and a double to the nearest float; times to other units; a string to a date, time, UUID or decimal;
strings and bytes to each other; a date, time or UUID to its text. At the end: the columns that schemas suggest, if none are declared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from landonce.protocol.reasons import Code, Reason
from landonce.read.formats.avro.cursor import NO_SYMBOL, Bytes, Cursor, Longs
from landonce.read.formats.avro.schema import (
    Array,
    Enum,
    Fixed,
    Logical,
    Map,
    Node,
    Primitive,
    Record,
    Union,
    branch_names,
    records_in,
)
from landonce.read.schema.fields import Field, Schema, is_uuid
from landonce.read.schema.texts import as_text, cast_or_null, decimals, fixed, from_text, mask_of, matching
from landonce.read.schema.values import not_valid, settle_value, unfit_value

DURATION = pa.struct([pa.field(name, pa.int64(), nullable=False) for name in ("months", "days", "millis")])
_PLAIN = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_UNITS = {"millis": "ms", "micros": "us", "nanos": "ns"}
_NUMBER = r"\A[+-]?[0-9]+(?:\.[0-9]+)?\z"
_DAY = {"ms": 86_400_000, "us": 86_400_000_000}
Leaf = Primitive | Fixed | Enum
Convert = Callable[[pa.Array], pa.Array]
"""Null where a value cannot be converted."""


def meaning(node: Leaf) -> pa.DataType:
    """The Arrow type of an Avro type."""
    if isinstance(node, Enum):
        return pa.string()
    logical = node.logical
    if logical is None:
        return _PLAIN[node.kind] if isinstance(node, Primitive) else pa.binary(node.size)
    if logical.name == "decimal":
        return (pa.decimal128 if logical.precision <= 38 else pa.decimal256)(logical.precision, logical.scale)
    if logical.name in ("date", "uuid", "duration"):
        return {"date": pa.date32(), "uuid": pa.uuid(), "duration": DURATION}[logical.name]
    kind, _, unit = logical.name.rpartition("-")
    if kind == "time":
        return pa.time32("ms") if unit == "millis" else pa.time64("us")
    return pa.timestamp(_UNITS[unit], None if kind.startswith("local") else "UTC")


def read(node: Leaf, cursor: Cursor, where: str) -> pa.Array:
    """The next value of each row, by the node's own meaning."""
    if isinstance(node, Enum):
        index = cursor.longs(where)
        wrong = (index < 0) | (index >= len(node.symbols))
        if wrong.any():
            cursor.fail(wrong, where, NO_SYMBOL)
            index[wrong] = 0
        return pa.array(node.symbols, pa.string()).take(pa.array(index))
    if isinstance(node, Fixed):
        return _of_fixed(node, cursor.fixed(node.size, where), cursor, where)
    if node.kind == "null":
        return pa.nulls(len(cursor))
    if node.kind == "boolean":
        flags = cursor.fixed(1, where)[:, 0]
        cursor.fail((flags > 1), where, Reason("is neither true nor false", Code.MALFORMED))
        return pa.array(flags == 1)
    if node.kind in ("float", "double"):
        width = 4 if node.kind == "float" else 8
        return pa.array(np.ascontiguousarray(cursor.fixed(width, where)).view(f"<f{width}").reshape(-1))
    if node.kind in ("int", "long"):
        type_, values = meaning(node), cursor.ints(where) if node.kind == "int" else cursor.longs(where)
        if pt.is_time(type_):
            wrong = (values < 0) | (values >= _DAY[type_.unit])
            if wrong.any():
                cursor.fail(wrong, where, Reason("is not a time of day", Code.OUT_OF_RANGE))
                values = np.where(wrong, 0, values)
        array = pa.array(values)
        return (array.cast(pa.int32()) if node.kind == "int" else array).cast(type_)
    if node.logical is not None and node.logical.name == "decimal":
        return _decimals(cursor.body.data, *cursor.spans(where), node.logical, cursor, where)
    found = cursor.binaries(where)
    if node.kind == "bytes":
        return found
    text = _checked(found, cast_or_null(found, pa.string()), cursor, where, Reason("is not valid UTF-8", Code.NOT_UTF8))
    if node.logical is None:
        return text
    return _checked(text, from_text(text, pa.uuid()), cursor, where, not_valid("UUID"))


def _checked(before: pa.Array, after: pa.Array, cursor: Cursor, where: str, problem: Reason) -> pa.Array:
    """The converted values; a value that became null ends its record."""
    if after.null_count != before.null_count:
        cursor.fail(mask_of(pc.and_(after.is_null(), before.is_valid())), where, problem)
    return after


def _of_fixed(node: Fixed, rows: Bytes, cursor: Cursor, where: str) -> pa.Array:
    count = len(rows)
    if node.logical is not None and node.logical.name == "decimal":
        ends = np.arange(1, count + 1) * node.size
        data = np.append(rows.reshape(-1), np.uint8(0))
        return _decimals(data, ends - node.size, ends, node.logical, cursor, where)
    if node.logical is not None and node.logical.name == "duration":
        parts = np.ascontiguousarray(rows).view("<u4").reshape(-1, 3).astype(np.int64)
        return pa.StructArray.from_arrays([pa.array(parts[:, at].copy()) for at in range(3)], fields=list(DURATION))
    if node.size == 0:
        return pa.array([b""] * count, pa.binary(0))
    data = pa.py_buffer(np.ascontiguousarray(rows))
    array = pa.Array.from_buffers(pa.binary(node.size), count, [None, data])
    return pa.ExtensionArray.from_storage(pa.uuid(), array) if node.logical is not None else array


def _decimals(data: Bytes, start: Longs, end: Longs, logical: Logical, cursor: Cursor, where: str) -> pa.Array:
    """Two's complement with the highest byte first, of any length. `data`: one byte or more follow the last of them."""
    type_ = meaning(Primitive("bytes", logical))
    width = type_.byte_width
    size = end - start
    cursor.fail(size == 0, where, Reason("is a decimal without any byte", Code.MALFORMED))
    first = data[np.minimum(start, len(data) - 1)]
    sign = np.where((size > 0) & (first >= 0x80), np.uint8(0xFF), np.uint8(0))
    words = np.repeat(sign, width).reshape(-1, width)
    for place in range(min(width, int(size.max(initial=0)))):
        here = end - 1 - place
        words[:, place] = np.where(place < size, data[np.maximum(here, 0)], sign)
    wide = np.zeros(len(size), np.bool_)
    for row in np.flatnonzero(size > width):  # bytes that do not fit must repeat the sign
        above = data[start[row] : end[row] - width]
        wide[row] = bool((above != sign[row]).any()) or (words[row, -1] >= 0x80) != (sign[row] != 0)
    words[wide] = 0
    array = pa.Array.from_buffers(type_, len(size), [None, pa.py_buffer(np.ascontiguousarray(words))])
    limit = pa.scalar(Decimal((0, (9,) * logical.precision, -logical.scale)), type_)
    wide |= ~mask_of(pc.and_(pc.less_equal(array, limit), pc.greater_equal(array, pc.negate(limit))))
    cursor.fail(wide, where, Reason(f"has more than {logical.precision} digits", Code.OUT_OF_RANGE))
    return array


def promotion(writer: Leaf, reader: Leaf) -> Convert | None:
    """How Avro makes a value of the reader's type from one of the writer's. None: it does not."""
    wrote, wanted = meaning(writer), meaning(reader)
    if wrote == wanted and type(writer) is type(reader):
        return same
    if not (isinstance(writer, Primitive) and isinstance(reader, Primitive)):
        return _exactly(wrote, wanted) if isinstance(writer, Fixed) and isinstance(reader, Fixed) else None
    order = ("int", "long", "float", "double")
    if writer.kind in order and reader.kind in order and order.index(writer.kind) <= order.index(reader.kind):
        if pt.is_temporal(wrote) and pt.is_temporal(wanted):
            return _exactly(wrote, wanted)
        plain = _PLAIN[reader.kind]
        return lambda array: array.cast(_PLAIN[writer.kind]).cast(plain, safe=False).cast(wanted)
    if {writer.kind, reader.kind} <= {"bytes", "string"}:
        return _exactly(wrote, wanted)
    return None


def conversion(found: pa.DataType, field: Field, type_: pa.DataType) -> Convert | None:
    """How a value of this Arrow type becomes one of a column's type. None: it does not."""
    if pt.is_integer(found) and field.scale is not None and (pt.is_timestamp(type_) or pt.is_date32(type_)):
        return lambda array: settle_value(array.cast(pa.int64()), type_, field)[0]
    return _exactly(found, type_)


def limits(array: pa.Array, type_: pa.DataType, field: Field, cursor: Cursor, where: str) -> None:
    """Ends the records whose values a target cannot hold, although their type fits."""
    for fault in unfit_value(array, type_, field):
        cursor.fail(fault.rows, where, fault.problem)


def same(array: pa.Array) -> pa.Array:
    return array


def _exactly(found: pa.DataType, type_: pa.DataType) -> Convert | None:
    if found == type_:
        return same
    if pt.is_null(found):
        return lambda array: pa.nulls(len(array), type_)
    if pt.is_integer(found):
        return _from_integer(type_)
    if pt.is_floating(found) and (pt.is_float32(type_) or pt.is_float64(type_)):
        return lambda array: _float(array, type_)
    if pt.is_string(found):
        if pt.is_timestamp(type_) or pt.is_date32(type_) or pt.is_time64(type_) or is_uuid(type_):
            return lambda array: from_text(array, type_)
        if pt.is_decimal(type_):  # as Protobuf's strings: digits with an optional point, and no exponent
            return lambda array: decimals(matching(array, _NUMBER), type_)
        return _from_bytes(type_, lambda array: array.cast(pa.binary()))
    if pt.is_binary(found):
        return _from_bytes(type_, same)
    if pt.is_fixed_size_binary(found):
        if is_uuid(type_):
            return (lambda array: pa.ExtensionArray.from_storage(type_, array)) if found.byte_width == 16 else None
        return _from_bytes(type_, lambda array: array.cast(pa.binary()))
    if pt.is_decimal(found) and pt.is_decimal(type_):
        return lambda array: cast_or_null(array, type_)
    if pt.is_timestamp(found) and pt.is_timestamp(type_):
        # Without a zone means UTC, as in JSON.
        return lambda array: cast_or_null(array.cast(pa.int64()).cast(pa.timestamp(found.unit, type_.tz)), type_)
    if pt.is_time(found) and pt.is_time(type_):
        return lambda array: cast_or_null(array, type_)
    if found == DURATION and pt.is_struct(type_):  # a column that may be null may have parts that are
        same_parts = [each.name for each in type_] == [each.name for each in DURATION]
        whole = same_parts and all(pt.is_integer(each.type) for each in type_)
        return (lambda array: cast_or_null(array, type_)) if whole else None
    if (is_uuid(found) or pt.is_temporal(found)) and pt.is_string(type_):
        return as_text
    return None


def _from_integer(type_: pa.DataType) -> Convert | None:
    if pt.is_integer(type_):
        return lambda array: cast_or_null(array, type_)
    if pt.is_float32(type_) or pt.is_float64(type_):
        return lambda array: _exact_float(array, type_)
    if pt.is_decimal(type_) and type_.scale <= 57:
        wide = pa.decimal256(19 + type_.scale, type_.scale)
        return lambda array: cast_or_null(array.cast(pa.int64()).cast(wide), type_)
    return None


def _exact_float(array: pa.Array, type_: pa.DataType) -> pa.Array:
    made = array.cast(type_, safe=False)
    fits = pc.and_(
        pc.less(pc.abs(made.cast(pa.float64())), 2.0**63),
        pc.equal(made.cast(pa.float64()).cast(pa.int64(), safe=False), array.cast(pa.int64())),
    )
    return pc.if_else(fits, made, pa.scalar(None, type_))


def _float(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """The nearest float. A number that becomes infinite, or 0, does not fit."""
    made = array.cast(type_, safe=False)
    fits = pc.and_(
        pc.or_(pc.is_finite(made), pc.invert(pc.is_finite(array))), pc.or_(pc.not_equal(made, 0), pc.equal(array, 0))
    )
    return made if pc.all(fits, min_count=0).as_py() else pc.if_else(fits, made, pa.scalar(None, type_))


def _from_bytes(type_: pa.DataType, bytes_of: Convert) -> Convert | None:
    if pt.is_binary(type_):
        return bytes_of
    if pt.is_string(type_):
        return lambda array: cast_or_null(bytes_of(array), type_)
    if pt.is_fixed_size_binary(type_):
        return lambda array: fixed(bytes_of(array), type_)
    return None


_NULL = Primitive("null")
_NUMBERS = ("int", "long", "float", "double")


def fields_of(schemas: Sequence[Node]) -> Schema:
    """The fields of all of these schemas. Raises `TypeError` if they do not agree, or are no records.

    A field that one of them lacks may be null. Numbers of different types become the wider one.
    """
    records = [record for each in schemas for record in _records(each)]
    for each in records:
        _refuse_empty(each)
    tables = [pa.schema(_members(each)) for each in records]
    try:
        joined = pa.unify_schemas(tables, promote_options="permissive")
    except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
        raise TypeError(f"the Avro schemas of these records do not agree: {error}") from None
    everywhere = {each.name for each in joined if all(each.name in table.names for table in tables)}
    return Schema(
        tuple(Field(each.name, each.type, required=not each.nullable and each.name in everywhere) for each in joined)
    )


def _records(node: Node) -> list[Record]:
    branches = [each for each in node.branches if each != _NULL] if isinstance(node, Union) else [node]
    records = [each for each in branches if isinstance(each, Record)]
    if len(records) < len(branches) or not all(each.fields for each in records):
        raise TypeError("the Avro schema is not a record with fields")
    return records


def _refuse_empty(record: Record) -> None:
    """JSON text holds a record without fields, and no other column does."""
    if not record.fields:
        raise TypeError(f"the Avro type {record.name} is a record without fields, which no column holds")
    for each in record.fields:
        for inner, _ in records_in(each.type):
            _refuse_empty(inner)


def _members(record: Record) -> list[pa.Field]:
    made = []
    for each in record.fields:
        type_, nullable = type_of(each.type)
        made.append(pa.field(each.name, type_, nullable))
    return made


def type_of(node: Node) -> tuple[pa.DataType, bool]:
    """The type of a column, and whether it may be null."""
    if isinstance(node, Union):
        kinds = [each for each in node.branches if each != _NULL]
        nullable = len(kinds) < len(node.branches)
        made = _union(kinds)
        return (_loose(made) if nullable else made), nullable
    if isinstance(node, Record):
        return pa.struct(_members(node)), False
    if isinstance(node, Array):
        type_, nullable = type_of(node.items)
        return pa.list_(pa.field("element", type_, nullable)), False
    if isinstance(node, Map):
        type_, nullable = type_of(node.values)
        return pa.map_(pa.string(), pa.field("value", type_, nullable)), False
    if node == _NULL:
        return pa.string(), True
    made = meaning(node)  # in a type that every sink has: times in microseconds, unless they are finer
    if pt.is_time(made):
        return pa.time64("us"), False
    return (pa.timestamp("us", made.tz) if pt.is_timestamp(made) and made.unit == "ms" else made), False


def _loose(type_: pa.DataType) -> pa.DataType:
    """A struct that may be null, with parts that may be: some targets have no other way to say that it is."""
    return pa.struct([pa.field(each.name, _loose(each.type)) for each in type_]) if pt.is_struct(type_) else type_


def _union(kinds: Sequence[Node]) -> pa.DataType:
    """One type as it is; numbers as the widest; several types as a struct with a field for each, as in Avro's JSON."""
    if not kinds:
        return pa.string()
    if len(kinds) == 1:
        return type_of(kinds[0])[0]
    plain = [each.kind for each in kinds if isinstance(each, Primitive) and each.logical is None]
    if len(plain) == len(kinds) and all(each in _NUMBERS for each in plain):
        widest = max(plain, key=_NUMBERS.index)
        exact = widest in ("int", "long") or "long" not in plain
        return (
            meaning(Primitive("double" if widest == "float" and "int" in plain else widest))
            if exact
            else _struct(kinds)
        )
    return _struct(kinds)


def _struct(kinds: Sequence[Node]) -> pa.DataType:
    names = branch_names(kinds)
    return pa.struct([pa.field(name, type_of(each)[0]) for name, each in zip(names, kinds, strict=True)])
