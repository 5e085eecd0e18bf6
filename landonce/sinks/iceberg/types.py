"""Iceberg's types and Arrow's: which corresponds to which, exactly; and which field of a record goes to which column. Pure.

    Iceberg                          Arrow                               in JSON
    ───────────────────────────────  ──────────────────────────────────  ───────────────────────────────────────
    boolean, int, long               bool, int32, int64                  the same
    float, double                    float, double                       a number that is finite in its type
    decimal(p, s)                    decimal128(p, s)                    a number, or a string that holds one
    date, time                       date32, time64(us)                  YYYY-MM-DD, HH:MM:SS[.ffffff]
    timestamp, timestamptz           timestamp(us) without zone, or UTC  ISO 8601; without a zone it means UTC
    timestamp_ns, timestamptz_ns     timestamp(ns) without zone, or UTC  the same
    string, uuid                     string, uuid                        a string
    string with a doc (`json_note`)  string                              any value: its JSON text
    binary, fixed(n)                 binary, fixed_size_binary(n)        base64, of n bytes
    struct, list                     struct, list                        an object, an array
    map                              map                                 an object: its keys are strings in JSON
    unknown, geometry, geography     none: records must leave it out     nothing
    a map whose keys JSON lacks      none, as above                      nothing

No value is approximated. A column that no record can fill exactly, whole or in part, stays NULL: a record with a value for it is a
dead letter, and a table in which it is required, without a default, is refused. PyIceberg does not read tables with a column of the type variant.

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
from pyiceberg.table.name_mapping import MappedField
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    GeographyType,
    GeometryType,
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
from landonce.read.evolution import RESERVED
from landonce.read.schema.ddl import UnfitFields
from landonce.read.schema.fields import (
    JSON,
    VALUE,
    Field,
    Names,
    Path,
    Schema,
    UnsupportedType,
    as_declared,
    is_uuid,
    json_note,
    parts,
    spelled,
    with_note,
    with_text,
)
from landonce.read.schema.texts import is_key

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
    JSON: StringType(),
}
COORDINATE_TYPES: dict[str, IcebergType] = {TOPIC: StringType(), PARTITION: IntegerType(), OFFSET: LongType()}
_MOST_DIGITS = 38
_NOT_IN_SPARK = (TimeType, TimestampNanoType, TimestamptzNanoType, GeometryType, GeographyType)
"""Spark 4.0 cannot open a table with a column of such a type."""
_INSTEAD_OF_MAP = "take map<string, …>, or a list of structs with a key and a value"


def renamed(rows: pa.Table) -> pa.Table:
    """Rows with landonce's names of the coordinates, under the names that Iceberg tables have."""
    return rows.rename_columns([PARTITION if name == "_partition" else name for name in rows.column_names])


def schema_of(table_schema: TableSchema, *, coordinates: bool) -> Schema:
    """What the decoder must produce for a table. With `coordinates`, the table must have their columns: landonce itself fills them."""
    faults = coordinate_faults(table_schema) if coordinates else ()
    if faults:
        asked = ", ".join(
            f"{name} {'bigint' if kind == LongType() else kind}" for name, kind in COORDINATE_TYPES.items()
        )
        raise TableUnfit(
            f"the table cannot hold the coordinates of its rows: {'; '.join(faults)}.",
            safe="Nothing was written.",
            command=f"add the columns ({asked})",
        )
    mine = [each for each in table_schema.fields if not (coordinates and each.name in COLUMNS)]
    faulty = {each.name: [*_faults(each.field_type, each.name)] for each in mine}
    required = {each.name: each.required and each.write_default is None for each in mine}
    bad = [what for each in mine if required[each.name] for what in faulty[each.name]]
    if bad:
        raise TableUnfit(
            "landonce cannot fill these required columns exactly: " + "; ".join(bad) + ".",
            safe="Nothing was written.",
            command="make each of them optional, give it another type, or move it to a table of its own",
        )
    if all(faulty.values()):
        raise TableUnfit("the table has no column that a record could fill.", safe="Nothing was written.")
    return Schema(
        tuple(
            Field.unfilled(each.name, each.field_type)
            if faulty[each.name]
            else Field(each.name, _field_type(each), required=required[each.name])
            for each in mine
        )
    )


def _field_type(field: NestedField) -> pa.DataType:
    return with_note(_arrow_type(field.field_type), field.doc)


def _arrow_type(type_: IcebergType) -> pa.DataType:
    """The Arrow type for a type of a table in which there are no faults."""
    if isinstance(type_, DecimalType):
        return pa.decimal128(type_.precision, type_.scale)
    if isinstance(type_, FixedType):
        return pa.binary(len(type_))
    if type_ in _PLAIN:
        return _PLAIN[type_]
    parts = [pa.field(each.name, _field_type(each), nullable=each.optional) for each in parts_of(type_)]
    if isinstance(type_, StructType):
        return pa.struct(parts)
    return pa.list_(*parts) if isinstance(type_, ListType) else pa.map_(*parts)


def _faults(type_: IcebergType, path: str) -> Iterator[str]:
    """Every place in a column that cannot be decoded."""
    if isinstance(type_, MapType):
        key = type_.key_type
        known = isinstance(key, FixedType | DecimalType) or (key in _PLAIN and is_key(_PLAIN[key]))
        if not known:
            yield f"{path}: keys in JSON are strings, and {key} is not written as one; {_INSTEAD_OF_MAP}"
            return
    elif type_ not in _PLAIN and not isinstance(type_, StructType | ListType | DecimalType | FixedType):
        yield f"{path}: {type_} cannot be decoded exactly; take string or binary"
    for each in parts_of(type_):
        yield from _faults(each.field_type, f"{path}.{each.name}")


def not_in_spark(type_: IcebergType, path: str = "") -> Iterator[str]:
    """Every place in a schema or type for which Spark has no type. Spark cannot open the table then, whatever records fill."""
    if isinstance(type_, _NOT_IN_SPARK):
        yield f"{path} {type_}"
    for each in parts_of(type_):
        yield from not_in_spark(each.field_type, f"{path}.{each.name}".lstrip("."))


def parts_of(type_: IcebergType) -> tuple[NestedField, ...]:
    """What is inside a type: the fields of a struct, `element` of a list, `key` and `value` of a map."""
    if isinstance(type_, StructType):
        return type_.fields
    if isinstance(type_, ListType):
        return (type_.element_field,)
    return (type_.key_field, type_.value_field) if isinstance(type_, MapType) else ()


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


def iceberg_schema(declared: Schema, *, identity: tuple[str, ...], by_spark: bool = False) -> TableSchema:
    """The schema of a table that is to be created. The identity is required, and so are the structs around it. `by_spark`: Spark itself
    has to know the types."""
    faults = [fault for each in declared.fields for fault in unfit(each.type, each.name, by_spark=by_spark)]
    if faults:
        raise UnfitFields(faults, with_text(declared, {path for path, _ in faults}))
    ids = itertools.count(1)
    fields: list[NestedField] = []
    for each in declared.fields:
        if each.name in RESERVED:
            raise ConfigError(f"a column cannot be called {each.name}: landonce or Iceberg's readers use that name.")
        column = pa.struct([pa.field(each.name, each.type, nullable=not each.required)])
        fields += parts_of(iceberg_type(column, ids, identity))
    fields += [NestedField(next(ids), name, type_, required=False) for name, type_ in COORDINATE_TYPES.items()]
    schema = TableSchema(*fields)
    named = []
    for name in identity:
        try:
            field = schema.find_field(name)
        except ValueError:
            known = ", ".join(schema.column_names)
            raise ConfigError(f"sink.iceberg.identity: there is no column {name!r}; there are {known}.") from None
        try:
            TableSchema(*fields, identifier_field_ids=[field.field_id])
        except ValueError:
            raise ConfigError(
                f"sink.iceberg.identity: {name!r} is of type {field.field_type}, or is inside a list or a map, and cannot "
                "identify a row. Use columns that hold a single value and no fractions."
            ) from None
        named.append(field.field_id)
    return TableSchema(*fields, identifier_field_ids=named)


def iceberg_type(type_: pa.DataType, ids: Iterator[int], identity: tuple[str, ...] = ()) -> IcebergType:
    """The type of a column that is to be created for values of this type, in which nothing is `unfit`. `identity`: paths that begin inside it."""
    if pt.is_struct(type_):
        fields = []
        for each in type_:
            number, prefix = next(ids), f"{each.name}."
            below = tuple(path.removeprefix(prefix) for path in identity if path.startswith(prefix))
            required = not each.nullable or bool(below) or each.name in identity
            kind, doc = iceberg_type(each.type, ids, below), doc_of(each.type)
            fields.append(NestedField(number, each.name, kind, required=required, doc=doc))
        return StructType(*fields)
    if pt.is_list(type_):
        number = next(ids)
        return ListType(number, iceberg_type(type_.value_type, ids), element_required=not type_.value_field.nullable)
    if pt.is_map(type_):
        key, value = next(ids), next(ids)
        kinds = iceberg_type(type_.key_type, ids), iceberg_type(type_.item_type, ids)
        return MapType(key, kinds[0], value, kinds[1], value_required=not type_.item_field.nullable)
    return _single_type(type_)


def _single_type(type_: pa.DataType) -> IcebergType:
    """Raises `UnsupportedType`."""
    if pt.is_decimal(type_):
        if type_.precision > _MOST_DIGITS:
            raise UnsupportedType(f"it has more digits than the {_MOST_DIGITS} of an Iceberg decimal")
        return DecimalType(type_.precision, type_.scale)
    if pt.is_timestamp(type_):
        if type_.unit == "ns":
            raise UnsupportedType(
                "times with nanoseconds need format version 3, in which Spark cannot open the table; TIMESTAMP(6) is possible"
            )
        type_ = pa.timestamp("us", tz=type_.tz)
    if pt.is_time(type_) and type_.unit != "ns":
        return TimeType()
    if pt.is_fixed_size_binary(type_) and not is_uuid(type_):
        return FixedType(type_.byte_width)
    if type_ not in _MADE:
        raise UnsupportedType(f"{spelled(type_)} has no Iceberg type")
    return _MADE[type_]


def unfit(type_: pa.DataType, path: str, *, by_spark: bool = False) -> Iterator[tuple[str, str]]:
    """Every part of a field that has no type in a table that is to be created, by its path, with the reason."""
    for place, each in parts(type_, path):
        if pt.is_nested(each):
            continue
        try:
            made = _single_type(each)
            if by_spark and isinstance(made, _NOT_IN_SPARK):
                yield place, f"Spark's own writer is needed for this table, and has no type for {made}"
        except UnsupportedType as why:
            yield place, str(why)


def doc_of(type_: pa.DataType) -> str | None:
    """The doc of a field of this type. Fields of structs have docs of their own; elements of lists and values of maps have none."""
    return json_note(type_, into_structs=False) or None


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
    try:
        mapping = table.name_mapping()
    except ValueError:
        raise TableUnfit(
            f"the table's property {TableProperties.DEFAULT_NAME_MAPPING} is not a name mapping.",
            safe="Nothing was written.",
            command="correct the property, or remove it",
        ) from None
    names = _names_by_id(mapping) if mapping is not None else {}
    columns = {each.name: each for each in table.schema().fields}
    asked = declared.by_name() if declared is not None else {}
    fields = []
    for field in schema_of(table.schema(), coordinates=coordinates).fields:
        column, more = columns[field.name], asked.get(field.name)
        type_, required, scale = field.type, field.required, field.scale
        if more is not None:
            type_ = as_declared(type_, more.type)
            timed = pt.is_timestamp(field.type) or pt.is_date32(field.type)
            required, scale = required or more.required, more.scale if timed else None
        aliases = names.get(column.field_id, ())
        fields.append(
            replace(
                field,
                type=type_,
                required=required,
                scale=scale,
                aliases=aliases if aliases != (column.name,) else (),
                inner_aliases=tuple(_inner_names(column.field_type, (), names)),
            )
        )
    try:
        return Schema(tuple(fields), fold_case=fold_case)
    except ValueError as error:
        raise TableUnfit(
            f"the names of the table's columns are not distinct: {error}.",
            safe="Nothing was written.",
            command="rename a column"
            + (f", correct the table's property {TableProperties.DEFAULT_NAME_MAPPING}" if names else "")
            + (", or set `case_insensitive: false` in {file}" if fold_case else ""),
        ) from None


def _names_by_id(fields: Iterable[MappedField]) -> dict[int, Names]:
    found: dict[int, Names] = {}
    for each in fields:
        if each.field_id is not None and each.names:
            found[each.field_id] = tuple(each.names)
        found.update(_names_by_id(each.fields))
    return found


def _inner_names(type_: IcebergType, path: Path, names: Mapping[int, Names]) -> Iterator[tuple[Path, Names]]:
    """The other names of fields of structs inside a column. Keys, elements and values have no names in records."""
    for each in parts_of(type_):
        here = (*path, each.name)
        if isinstance(type_, StructType) and names.get(each.field_id, (each.name,)) != (each.name,):
            yield here, names[each.field_id]
        if not isinstance(type_, MapType) or each.name == VALUE:
            yield from _inner_names(each.field_type, here, names)
