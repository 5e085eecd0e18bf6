"""Iceberg's types and Arrow's: which stand for which, exactly; and which field of a record goes to which column. Pure.

    Iceberg                          Arrow                               in JSON
    ───────────────────────────────  ──────────────────────────────────  ───────────────────────────────────────
    boolean, int, long               bool, int32, int64                  the same
    float, double                    float, double                       a number that is finite in its type
    decimal(p, s)                    decimal128(p, s)                    a number, or a string that holds one
    date, time                       date32, time64(us)                  YYYY-MM-DD, HH:MM:SS[.ffffff]
    timestamp, timestamptz           timestamp(us) without zone, or UTC  ISO 8601; without a zone it means UTC
    timestamp_ns, timestamptz_ns     timestamp(ns) without zone, or UTC  the same
    string, uuid                     string, uuid                        a string
    binary, fixed(n)                 binary, fixed_size_binary(n)        base64, of n bytes
    struct, list                     struct, list                        an object, an array
    map                              map                                 an object: its keys are strings in JSON

A type that JSON cannot express exactly is refused by name, never approximated.

Fields are matched to columns by the table's name mapping (`schema.name-mapping.default`): a column that it gives names has these
and no other. Every other column has its own name. The same holds for nested fields. If case does not matter, it does not for either.

The coordinates are called `_topic`, `_kafka_partition` and `_offset`. Iceberg's readers reserve `_partition`, beside `_file` and
`_pos`: Spark can neither read nor merge nor compact a table with a column of that name.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import pyarrow as pa
import pyarrow.types as pt
from pyiceberg.schema import Schema as TableSchema
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.name_mapping import MappedField, NameMapping
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from landonce.errors import ConfigError, TableUnfit
from landonce.read.formats.json.values import is_textual
from landonce.read.schema.evolution import RESERVED
from landonce.read.schema.fields import ELEMENT, KEY, VALUE, Field, Names, Path, Schema, is_uuid

TOPIC, PARTITION, OFFSET = "_topic", "_kafka_partition", "_offset"
COLUMNS = (TOPIC, PARTITION, OFFSET)
_PLAIN: dict[IcebergType, pa.DataType] = {
    BooleanType(): pa.bool_(),
    IntegerType(): pa.int32(),
    LongType(): pa.int64(),
    FloatType(): pa.float32(),
    DoubleType(): pa.float64(),
    DateType(): pa.date32(),
    TimeType(): pa.time64("us"),
    TimestampType(): pa.timestamp("us"),
    TimestamptzType(): pa.timestamp("us", tz="UTC"),
    TimestampNanoType(): pa.timestamp("ns"),
    TimestamptzNanoType(): pa.timestamp("ns", tz="UTC"),
    StringType(): pa.string(),
    UUIDType(): pa.uuid(),
    BinaryType(): pa.binary(),
}
_MADE: dict[pa.DataType, IcebergType] = {
    **{arrow: type_ for type_, arrow in _PLAIN.items()},
    pa.int8(): IntegerType(),
    pa.int16(): IntegerType(),
    pa.uint8(): IntegerType(),
    pa.uint16(): IntegerType(),
    pa.uint32(): LongType(),
    pa.uint64(): DecimalType(20, 0),
}
COORDINATE_TYPES: dict[str, IcebergType] = {TOPIC: StringType(), PARTITION: IntegerType(), OFFSET: LongType()}
_INSTEAD_OF_MAP = "take map<string, …>, or a list of structs with a key and a value"


def renamed(rows: pa.Table) -> pa.Table:
    """Rows with landonce's names of the coordinates, under the names that Iceberg tables have."""
    return rows.rename_columns([PARTITION if name == "_partition" else name for name in rows.column_names])


class Unsupported(Exception):
    """A type that cannot be decoded exactly. The message is a sentence about it."""


def schema_of(table_schema: TableSchema, *, coordinates: bool) -> Schema:
    """What the decoder must produce for a table. With `coordinates`, the table must have their columns: landonce itself fills them."""
    if coordinates:
        _refuse_without_coordinates(table_schema)
    mine = [each for each in table_schema.fields if not (coordinates and each.name in COLUMNS)]
    bad = [what for each in mine for what in _faults(each.field_type, each.name)]
    if bad:
        raise TableUnfit(
            "landonce cannot fill these columns exactly: " + "; ".join(bad) + ".",
            safe="Nothing was written.",
            command="give each of them another type, or move it to a table of its own",
        )
    if not mine:
        raise TableUnfit("the table has no column that a record could fill.", safe="Nothing was written.")
    return Schema(tuple(Field(each.name, arrow_type(each.field_type), required=each.required) for each in mine))


def arrow_type(type_: IcebergType) -> pa.DataType:
    """The Arrow type for a type of a table."""
    if why := _why_not(type_):
        raise Unsupported(why)
    if isinstance(type_, StructType):
        return pa.struct([_arrow_field(each.name, each) for each in type_.fields])
    if isinstance(type_, ListType):
        return pa.list_(_arrow_field(ELEMENT, type_.element_field))
    if isinstance(type_, MapType):
        return pa.map_(_arrow_field(KEY, type_.key_field), _arrow_field(VALUE, type_.value_field))
    if isinstance(type_, DecimalType):
        return pa.decimal128(type_.precision, type_.scale)
    if isinstance(type_, FixedType):
        return pa.binary(len(type_))
    return _PLAIN[type_]


def _arrow_field(name: str, field: NestedField) -> pa.Field:
    return pa.field(name, arrow_type(field.field_type), nullable=field.optional)


def _why_not(type_: IcebergType) -> str:
    """Why a type itself cannot be decoded, apart from the types inside it; empty if it can."""
    if isinstance(type_, MapType):
        key = type_.key_type
        textual = isinstance(key, FixedType) or (key in _PLAIN and (key == StringType() or is_textual(_PLAIN[key])))
        return "" if textual else f"keys in JSON are strings, and {key} is not written as one; {_INSTEAD_OF_MAP}"
    known = type_ in _PLAIN or isinstance(type_, StructType | ListType | DecimalType | FixedType)
    return "" if known else f"{type_} cannot be decoded exactly; take string or binary"


def _faults(type_: IcebergType, path: str) -> Iterator[str]:
    """Every place in a column that cannot be decoded."""
    if why := _why_not(type_):
        yield f"{path}: {why}"
    else:
        for name, inner in _inside(type_):
            yield from _faults(inner, f"{path}.{name}")


def _inside(type_: IcebergType) -> list[tuple[str, IcebergType]]:
    if isinstance(type_, StructType):
        return [(each.name, each.field_type) for each in type_.fields]
    if isinstance(type_, ListType):
        return [(ELEMENT, type_.element_type)]
    if isinstance(type_, MapType):
        return [(KEY, type_.key_type), (VALUE, type_.value_type)]
    return []


def _refuse_without_coordinates(table_schema: TableSchema) -> None:
    faults = coordinate_faults(table_schema)
    if faults:
        asked = ", ".join(
            f"{name} {'bigint' if kind == LongType() else kind}" for name, kind in COORDINATE_TYPES.items()
        )
        raise TableUnfit(
            f"the table cannot hold the coordinates of its rows: {'; '.join(faults)}.",
            safe="Nothing was written.",
            command=f"add the columns ({asked})",
        )


def coordinate_faults(table_schema: TableSchema) -> tuple[str, ...]:
    """Which coordinate columns are missing or of a type that does not hold them."""
    there = {each.name: each.field_type for each in table_schema.fields}
    faults = []
    for name, wanted in COORDINATE_TYPES.items():
        if name not in there:
            faults.append(f"{name} is missing")
        elif there[name] != wanted and not (name == PARTITION and there[name] == LongType()):
            faults.append(f"{name} is {there[name]}, not {wanted}")
    return tuple(faults)


def iceberg_schema(declared: Schema, *, identity: tuple[str, ...]) -> TableSchema:
    """The schema of a table that is to be created. The identity is required, and so are the structs around it."""
    ids = itertools.count(1)
    fields = [_table_field(each, identity, ids) for each in declared.fields]
    fields += [NestedField(next(ids), name, type_, required=False) for name, type_ in COORDINATE_TYPES.items()]
    plain = TableSchema(*fields)
    named = [_identifier(plain, name) for name in identity]
    return TableSchema(*fields, identifier_field_ids=named)


def _table_field(declared: Field, identity: tuple[str, ...], ids: Iterator[int]) -> NestedField:
    if declared.name in RESERVED:
        raise ConfigError(f"a column cannot be called {declared.name}: landonce or Iceberg's readers use that name.")
    number = next(ids)
    try:
        type_ = iceberg_type(declared.type, ids, tuple(_below(identity, declared.name)))
    except Unsupported as why:
        raise ConfigError(f"field {declared.name!r}: {why}.") from None
    return NestedField(number, declared.name, type_, required=declared.required or _leads(declared.name, identity))


def iceberg_type(type_: pa.DataType, ids: Iterator[int], identity: tuple[str, ...] = ()) -> IcebergType:
    """The type of a column that is to be created for values of this type. `identity`: paths that begin inside it."""
    if pt.is_struct(type_):
        fields = []
        for each in type_:
            number = next(ids)
            inner = iceberg_type(each.type, ids, tuple(_below(identity, each.name)))
            required = not each.nullable or _leads(each.name, identity)
            fields.append(NestedField(number, each.name, inner, required=required))
        return StructType(*fields)
    if pt.is_list(type_):
        number = next(ids)
        return ListType(number, iceberg_type(type_.value_type, ids), element_required=not type_.value_field.nullable)
    if pt.is_map(type_):
        key, value = next(ids), next(ids)
        kinds = iceberg_type(type_.key_type, ids), iceberg_type(type_.item_type, ids)
        return MapType(key, kinds[0], value, kinds[1], value_required=not type_.item_field.nullable)
    return _primitive(type_)


def _primitive(type_: pa.DataType) -> IcebergType:
    if pt.is_decimal(type_):
        if type_.precision > 38:
            raise Unsupported(f"{type_} has more digits than the 38 of an Iceberg decimal")
        return DecimalType(type_.precision, type_.scale)
    if pt.is_timestamp(type_) and type_.unit in ("s", "ms"):
        type_ = pa.timestamp("us", tz=type_.tz)
    if pt.is_fixed_size_binary(type_) and not is_uuid(type_):
        return FixedType(type_.byte_width)
    if type_ not in _MADE:
        raise Unsupported(f"{type_} has no Iceberg type")
    return _MADE[type_]


def _leads(name: str, identity: tuple[str, ...]) -> bool:
    return any(each == name or each.startswith(f"{name}.") for each in identity)


def _below(identity: tuple[str, ...], name: str) -> Iterator[str]:
    return (each.removeprefix(f"{name}.") for each in identity if each.startswith(f"{name}."))


def _identifier(schema: TableSchema, name: str) -> int:
    try:
        field = schema.find_field(name)
    except ValueError:
        known = ", ".join(schema.column_names)
        raise ConfigError(f"sink.iceberg.identity: there is no column {name!r}; there are {known}.") from None
    try:
        TableSchema(*schema.fields, identifier_field_ids=[field.field_id])
    except ValueError:
        raise ConfigError(
            f"sink.iceberg.identity: {name!r} is of type {field.field_type}, or is inside a list or a map, and cannot "
            "identify a row. Use columns that hold a single value and no fractions."
        ) from None
    return field.field_id


def widens(now: IcebergType, wide: IcebergType) -> bool:
    """Whether the second type holds every value of the first, and Iceberg reads files of the first as the second."""
    if isinstance(now, DecimalType) and isinstance(wide, DecimalType):
        return now.scale == wide.scale and now.precision < wide.precision
    return (now, wide) in ((IntegerType(), LongType()), (FloatType(), DoubleType()))


def schema_for(table: Table, *, coordinates: bool, fold_case: bool = False, declared: Schema | None = None) -> Schema:
    """What the decoder must produce for a table, and under which names records hold it.

    `declared` may ask for more: that a field is present, and the unit of a time that is an integer, which Iceberg's types do
    not state.
    """
    schema = schema_of(table.schema(), coordinates=coordinates)
    by_name = declared.by_name() if declared is not None else {}
    stricter = Schema(tuple(_declared(each, by_name.get(each.name)) for each in schema.fields))
    return with_names(stricter, table.schema(), _mapping(table), fold_case=fold_case)


def _declared(column: Field, declared: Field | None) -> Field:
    if declared is None:
        return column
    timed = pt.is_timestamp(column.type) or pt.is_date32(column.type)
    scale = declared.scale if timed else None
    return replace(column, required=column.required or declared.required, scale=scale)


def with_names(schema: Schema, table_schema: TableSchema, mapping: NameMapping | None, *, fold_case: bool) -> Schema:
    """The schema of a table, with the names that records use."""
    names = _names_by_id(mapping) if mapping is not None else {}
    columns = {each.name: each for each in table_schema.fields}
    fields = tuple(_named(each, columns[each.name], names) for each in schema.fields)
    try:
        return Schema(fields, fold_case=fold_case)
    except ValueError as error:
        raise TableUnfit(
            f"the names of the table's columns cannot be told apart: {error}.",
            safe="Nothing was written.",
            command="rename a column"
            + (f", correct the table's property {TableProperties.DEFAULT_NAME_MAPPING}" if names else "")
            + (", or set `case_insensitive: false` in {file}" if fold_case else ""),
        ) from None


def _mapping(table: Table) -> NameMapping | None:
    try:
        return table.name_mapping()
    except ValueError:
        raise TableUnfit(
            f"the table's property {TableProperties.DEFAULT_NAME_MAPPING} is not a name mapping.",
            safe="Nothing was written.",
            command="correct the property, or remove it",
        ) from None


def _names_by_id(fields: Iterable[MappedField]) -> dict[int, Names]:
    found: dict[int, Names] = {}
    for each in fields:
        if each.field_id is not None and each.names:
            found[each.field_id] = tuple(each.names)
        found.update(_names_by_id(each.fields))
    return found


def _named(field: Field, column: NestedField, names: Mapping[int, Names]) -> Field:
    inside = tuple(
        (path, names[each.field_id]) for path, each in _inner_fields(column.field_type, ()) if each.field_id in names
    )
    inner = tuple((path, aliases) for path, aliases in inside if aliases != (path[-1],))
    aliases = names.get(column.field_id, (column.name,))
    return replace(field, aliases=aliases if aliases != (column.name,) else (), inner_aliases=inner)


def _inner_fields(type_: IcebergType, path: Path) -> Iterator[tuple[Path, NestedField]]:
    """The fields of structs inside a column. Elements and values have no names in records."""
    if isinstance(type_, StructType):
        for each in type_.fields:
            yield (*path, each.name), each
            yield from _inner_fields(each.field_type, (*path, each.name))
    elif isinstance(type_, ListType):
        yield from _inner_fields(type_.element_type, (*path, ELEMENT))
    elif isinstance(type_, MapType):
        yield from _inner_fields(type_.value_type, (*path, VALUE))
