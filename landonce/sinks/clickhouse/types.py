"""Which ClickHouse type holds which Arrow type exactly. Pure.

There are three types for a column: what a decoder must produce (`arrow`), the type in which values are sent (`wire`), and the
column's own type, to which ClickHouse converts the wire type. A type that Arrow cannot hold exactly is refused by name; values are
never approximated. ClickHouse must never convert a value that was not checked before: it clips, wraps and truncates.

    ClickHouse                      Arrow                                    wire
    ──────────────────────────────  ───────────────────────────────────────  ────────────────────
    Bool, (U)Int8..64, Float32/64   bool, (u)int8..64, float, double         the same
    (U)Int128, (U)Int256            JSON text of an integer                  String
    BFloat16                        float with 8 significant bits            Float32
    Interval…                       int64                                    Int64
    String                          string; bytes (see `nested`)             String
    FixedString(n)                  string of at most n bytes; n bytes       String
    Enum8/16, UUID, IPv4, IPv6      string, of a closed set or a pattern     String
    Time, Time64(p)                 string of a pattern                      String
    Date, Date32                    date32                                   the same
    DateTime, DateTime64(p)         timestamp of the next finer unit, UTC    the same
    Decimal(p, s)                   decimal128 up to 38 digits, else 256     the same
    Array(T), QBit(T, n)            list of T                                Array(wire of T)
    Map(K, V)                       map                                      Map(wire of K, wire of V)
    Tuple(a T, …)                   struct                                   Tuple(a wire of T, …)
    Tuple(T, …), Point              struct with the names 1, 2, …            Tuple(wire of T, …)
    JSON                            JSON text of an object                   String
    Variant(T, …), Dynamic          JSON text                                Tuple(Array(wire of T), …)
    Nested(a T, …)                  list of structs                          Array(Tuple(a wire of T, …))
    Ring, Polygon, …                lists of Points                          Array(…)
    Nullable, LowCardinality        what is inside                           Nullable only
    SimpleAggregateFunction(f, T)   that of T                                wire of T
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import pyarrow as pa

from landonce.read.schema.fields import JSON, KEY, VALUE, Field, Judge, Schema, UnsupportedType, is_uuid, landed
from landonce.read.schema.texts import is_key, is_textual
from landonce.sinks.clickhouse.address import quoted
from landonce.sinks.clickhouse.documents import KeptWhole, OneOf
from landonce.sinks.clickhouse.nested import may_be_absent
from landonce.sinks.patterns import IPV4, IPV6

UUID = r"(?i)[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"

_PATTERNS = {"UUID": UUID, "IPv4": IPV4, "IPv6": IPV6}
_UNITS = ("s", "ms", "ms", "ms", "us", "us", "us", "ns", "ns", "ns")
_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_PLAIN: dict[str, pa.DataType] = {
    "Bool": pa.bool_(),
    "Int8": pa.int8(),
    "Int16": pa.int16(),
    "Int32": pa.int32(),
    "Int64": pa.int64(),
    "UInt8": pa.uint8(),
    "UInt16": pa.uint16(),
    "UInt32": pa.uint32(),
    "UInt64": pa.uint64(),
    "Float32": pa.float32(),
    "Float64": pa.float64(),
    "String": pa.string(),
    "Date": pa.date32(),
    "Date32": pa.date32(),
}
_WIDE = {
    **{f"Int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (128, 256)},
    **{f"UInt{bits}": (0, 2**bits - 1) for bits in (128, 256)},
}
_GEO = {
    "Point": "Tuple(Float64, Float64)",
    "Ring": "Array(Point)",
    "LineString": "Array(Point)",
    "MultiPoint": "Array(Point)",
    "MultiLineString": "Array(LineString)",
    "Polygon": "Array(Ring)",
    "MultiPolygon": "Array(Polygon)",
}
VIRTUAL = frozenset(
    [
        "_part",
        "_part_index",
        "_part_starting_offset",
        "_part_uuid",
        "_part_offset",
        "_part_granule_offset",
        "_part_data_version",
        "_partition_id",
        "_partition_value",
        "_sample_factor",
        "_disk_name",
        "_distance",
        "_row_exists",
        "_block_number",
        "_block_offset",
        "_table",
        "_database",
        "_shard_num",
    ]
)
"""Columns that ClickHouse itself adds to tables. Queries of a table with a column `_part` of its own fail: not even its rows can be counted."""
_UNITS_OF_INTERVALS = "Nanosecond Microsecond Millisecond Second Minute Hour Day Week Month Quarter Year"
_INTERVALS = frozenset(f"Interval{unit}" for unit in _UNITS_OF_INTERVALS.split())
_ORDER = (
    *("Bool", "Int8", "UInt8", "Int16", "UInt16", "Int32", "UInt32", "Int64", "UInt64", "Int128", "UInt128", "Int256"),
    *("UInt256", "Decimal", "BFloat16", "Float32", "Float64", "UUID", "IPv4", "IPv6", "Date", "Date32", "DateTime"),
    *("DateTime64", "Time", "Time64", "Enum8", "Enum16", "FixedString", "String", "LowCardinality", "Tuple", "Array"),
    *("Map", "JSON"),
)
"""In this order the types of a Variant are tried."""
_OF_DYNAMIC = (
    *("Bool", "Int64", "UInt64", "Float64", "String", "Array(Nullable(Bool))", "Array(Nullable(Int64))"),
    *("Array(Nullable(UInt64))", "Array(Nullable(Float64))", "Array(Nullable(String))", "Array(JSON)", "JSON"),
)
"""What a Dynamic gets: the types that ClickHouse itself takes for JSON."""
_TIME = r"-?(?:[0-9]{2}|[1-9][0-9]{2}):[0-5][0-9]:[0-5][0-9]"
_DAY = 86_400
_DATE_BOUNDS = {"Date": (0, 65_535), "Date32": (-25_567, 120_529)}
_MOST_FIXED = 256
"""ClickHouse makes no longer `FixedString` without a setting."""
_DATETIME_BOUNDS = (0, 2**32 - 1)
_DATETIME64_BOUNDS = (-25_567 * _DAY, 120_530 * _DAY - 1)


_NO_NULL = (
    "an object that holds a NOT NULL field is a Tuple, and ClickHouse takes no NULL for one: it must be NOT NULL itself"
)


@dataclass(frozen=True)
class Mapped:
    """One ClickHouse type and its Arrow type, with the limits of what it can hold: see `read.schema.fields.Field`."""

    arrow: pa.DataType
    wire: str
    nullable: bool = False
    allowed: frozenset[str] | None = None
    pattern: str | None = None
    scale: int | None = None
    digits: int | None = None
    bounds: tuple[int, int] | None = None
    most_bytes: int | None = None
    bits: int | None = None
    items: int | None = None
    called: str = ""
    judge: Judge | None = None
    members: tuple[str, ...] = ()
    """The types of a Variant or a Dynamic, in the order in which they are tried."""
    inner: tuple[tuple[str, Mapped], ...] = ()
    """The elements of a Tuple, or the key and value of a Map, if one of them has limits."""
    unguarded: bool = False
    """ClickHouse itself would take a value outside of these limits, and change it."""
    parsed: bool = False
    """ClickHouse converts texts to it, or to a part of it, and cannot convert an empty one."""

    def field(self, name: str, *, required: bool, nested: bool = False) -> Field:
        """What a decoder must produce."""
        return Field(
            name=name,
            type=self.arrow,
            required=required,
            allowed=self.allowed,
            pattern=self.pattern,
            bounds=self.bounds,
            digits=self.digits,
            most_bytes=self.most_bytes,
            bits=self.bits,
            items=self.items,
            called=self.called,
            judge=self.judge,
            scale=None if nested else self.scale,
            inner=tuple(each.field(part, required=not each.nullable, nested=True) for part, each in self.inner),
        )

    @property
    def checked_again(self) -> bool:
        """Whether values are checked again before they are sent."""
        return self.unguarded or any(each.checked_again for _, each in self.inner)


@lru_cache(maxsize=4096)
def map_type(text: str) -> Mapped:
    """The Arrow type for a type as ClickHouse writes it."""
    try:
        type_ = parse_type(text)
        return _map_type(type_)
    except (ValueError, IndexError) as error:  # a type of a later version, in a syntax that is not known here
        raise UnsupportedType(f"{text} is not a type that landonce knows") from error


def _map_type(type_: TypeName) -> Mapped:
    name, arguments = type_.name, type_.arguments
    if name in _PLAIN and not arguments:
        bounds = _DATE_BOUNDS.get(name)
        return Mapped(_PLAIN[name], name, bounds=bounds, unguarded=bounds is not None)
    if name in _WIDE:
        return Mapped(JSON, "String", bounds=_WIDE[name], called=name, unguarded=True, parsed=True)
    if name == "BFloat16":
        return Mapped(pa.float32(), "Float32", bits=8, called=name, unguarded=True)
    if name in _INTERVALS:
        return Mapped(pa.int64(), "Int64")
    if name in _PATTERNS:
        return Mapped(pa.string(), "String", pattern=_PATTERNS[name], called=name, parsed=True)
    if name in ("Time", "Time64"):
        digits = int(arguments[0]) if arguments else 0
        pattern = rf"{_TIME}(?:\.[0-9]{{1,{digits}}}0*)?" if digits else _TIME
        return Mapped(pa.string(), "String", pattern=pattern, called=str(type_), unguarded=True, parsed=True)
    if name in ("Enum8", "Enum16"):
        members = frozenset(unquote(argument.rsplit("=", 1)[0].strip()) for argument in arguments)
        return Mapped(pa.string(), "String", allowed=members)
    if name == "FixedString":
        return Mapped(pa.string(), "String", most_bytes=int(arguments[0]))
    if name == "Decimal":
        precision, scale = map(int, arguments)
        make = pa.decimal128 if precision <= 38 else pa.decimal256
        return Mapped(make(precision, scale), str(type_))
    if name == "DateTime":
        moments = pa.timestamp("s", tz="UTC")
        return Mapped(moments, str(type_), scale=0, digits=0, bounds=_DATETIME_BOUNDS, unguarded=True)
    if name == "DateTime64":
        scale = int(arguments[0])
        unit = _UNITS[scale]
        low, end = (second * 10 ** _DIGITS[unit] for second in (_DATETIME64_BOUNDS[0], _DATETIME64_BOUNDS[1] + 1))
        bounds = (max(low, -(2**63)), min(end - 1, 2**63 - 1))
        moments = pa.timestamp(unit, tz="UTC")
        return Mapped(moments, str(type_), scale=scale, digits=scale, bounds=bounds, unguarded=True)
    return _containing(type_)


def _containing(type_: TypeName) -> Mapped:
    """A type that is made of others."""
    name, arguments = type_.name, type_.arguments
    if name == "LowCardinality":
        return map_type(arguments[0])
    if name == "SimpleAggregateFunction":
        return map_type(arguments[1])
    if name == "JSON":
        return Mapped(JSON, "String", called=name, judge=_documents(type_), unguarded=True, parsed=True)
    if name == "Variant":
        ranks = {each: rank for rank, each in enumerate(_ORDER)}
        return _one_of(type_, sorted(arguments, key=lambda each: ranks.get(parse_type(each).name, len(ranks))))
    if name == "Dynamic":
        return _one_of(type_, _OF_DYNAMIC)
    if name == "Nullable":
        inner = map_type(arguments[0])
        return replace(inner, nullable=True, wire=f"Nullable({inner.wire})")
    if name in _GEO:
        return map_type(_GEO[name])
    if name == "Array":
        return _array(map_type(arguments[0]), type_)
    if name == "QBit":
        return replace(_array(map_type(arguments[0]), type_), items=int(arguments[1]), unguarded=True)
    if name == "Tuple":
        return _tuple(type_)
    if name == "Nested":
        return _array(_tuple(type_), type_)
    if name == "Map":
        return _map(type_)
    raise UnsupportedType(f"{type_} cannot be decoded exactly")


_PATH = re.compile(r"(?:`(?:[^`\\]|\\.)+`|\w+)(?:\.(?:`(?:[^`\\]|\\.)+`|\w+))*")
_OF_PATHS = ("Bool", "String", "Float64", *(f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)))
"""Types that ClickHouse reads from a document as landonce does. It reads times, for one, in its own way."""


def _documents(type_: TypeName) -> KeptWhole:
    """What a JSON type keeps: it may give paths types of their own, and leave out others."""
    typed, skipped = [], []
    for each in type_.arguments:
        if re.match(r"max_dynamic_\w+ *=", each):
            continue
        skips = each.startswith("SKIP ")
        text = each.removeprefix("SKIP ").strip()
        path = _PATH.match(text)
        rest = text[path.end() :].strip() if path is not None else ""
        if path is None or bool(rest) == skips:  # SKIP REGEXP, or a syntax of a later version
            raise UnsupportedType(f"{type_} cannot be decoded exactly: it skips paths by a pattern")
        parts = re.findall(r"`(?:[^`\\]|\\.)+`|\w+", path[0])
        names = tuple(name for part in parts for name in unquote(part).split("."))
        if skips:
            skipped.append(names)
        else:
            typed.append((names, _of_path(rest, type_)))
    return KeptWhole(tuple(typed), tuple(skipped))


def _of_path(text: str, type_: TypeName) -> Field:
    inner = parse_type(text)
    while inner.name in ("Array", "Nullable", "LowCardinality"):
        inner = inner.inner
    if inner.name not in _OF_PATHS:
        raise UnsupportedType(
            f"{type_} cannot be decoded exactly: ClickHouse reads {inner} from a document in its own way"
        )
    mapped = map_type(text)
    return replace(mapped.field("v", required=not mapped.nullable, nested=True), called=text)


def _one_of(type_: TypeName, members: Sequence[str]) -> Mapped:
    """A type whose values have one of several types. The kind of a JSON value does not always decide on one: the order does."""
    mapped = [map_type(each) for each in members]
    if any(each.members for each in mapped):
        raise UnsupportedType(f"{type_} cannot be decoded exactly")
    judge = OneOf(tuple(each.field("v", required=True, nested=True) for each in mapped), type_.name)
    wire = f"Tuple({', '.join(f'Array({each.wire})' for each in mapped)})"
    return Mapped(JSON, wire, nullable=True, called=type_.name, judge=judge, members=tuple(members), unguarded=True)


def _array(inner: Mapped, type_: TypeName) -> Mapped:
    if inner.items is not None:
        raise UnsupportedType(f"{type_} cannot be decoded exactly")
    _refuse_inside(inner, type_)
    item = pa.field("item", inner.arrow, nullable=inner.nullable)
    return replace(inner, arrow=pa.list_(item), wire=f"Array({inner.wire})", nullable=False, scale=None, parsed=False)


def _refuse_inside(inner: Mapped, type_: TypeName) -> None:
    """What can be sent only as a whole column. ClickHouse converts what is inside of a NULL, too, which is empty."""
    if inner.members:
        raise UnsupportedType(f"{type_} cannot be sent: a Variant or a Dynamic must be a column of its own")
    if inner.nullable and inner.parsed and pa.types.is_struct(inner.arrow):
        raise UnsupportedType(f"{type_} cannot be sent: it has a Nullable(Tuple) with texts that ClickHouse parses")


def _tuple(type_: TypeName) -> Mapped:
    elements = list(type_.elements())
    named = all(name for name, _ in elements)
    if not elements or (not named and any(name for name, _ in elements)):
        raise UnsupportedType(f"{type_} cannot be decoded exactly")
    parts = [(name or str(at), map_type(element)) for at, (name, element) in enumerate(elements, 1)]
    for _, inner in parts:
        _refuse_inside(inner, type_)
    fields = [pa.field(name, inner.arrow, nullable=inner.nullable) for name, inner in parts]
    wires = [f"{quoted(name)} {inner.wire}" if named else inner.wire for name, inner in parts]
    parsed = any(inner.parsed and not inner.nullable for _, inner in parts)
    return Mapped(pa.struct(fields), f"Tuple({', '.join(wires)})", inner=_if_limited(parts), parsed=parsed)


def _map(type_: TypeName) -> Mapped:
    key, value = (map_type(each) for each in type_.arguments)
    _refuse_inside(value, type_)
    of_keys = landed(key.arrow)
    if not is_key(of_keys):
        raise UnsupportedType(f"{type_} cannot be decoded exactly: JSON has no such keys")
    key = replace(key, arrow=of_keys, scale=None)
    parts = [(KEY, key), (VALUE, value)]
    entries = pa.map_(key.arrow, pa.field("value", value.arrow, nullable=value.nullable))
    return Mapped(entries, f"Map({key.wire}, {value.wire})", inner=_if_limited(parts))


def _if_limited(parts: list[tuple[str, Mapped]]) -> tuple[tuple[str, Mapped], ...]:
    """The parts, if one of them cannot hold all that its Arrow type can."""
    for _, each in parts:
        of_strings = (each.allowed, each.pattern, each.most_bytes, each.judge)
        if each.unguarded or each.inner or any(limit is not None for limit in of_strings):
            return tuple(parts)
    return ()


def column_type(type_: pa.DataType, *, required: bool) -> str:
    """The ClickHouse type for a declared field. ClickHouse has no NULL for nested types: see `nested`."""
    plain = _clickhouse_type(type_)
    if required or may_be_absent(type_):
        return plain
    if pa.types.is_struct(type_):
        raise UnsupportedType(_NO_NULL)
    return f"Nullable({plain})"


def unfit(type_: pa.DataType, path: str, *, required: bool) -> Iterator[tuple[str, str]]:
    """Every part of a field that has no column type, by its path, with the reason."""
    if pa.types.is_list(type_):
        yield from unfit(type_.value_type, f"{path}[]", required=not type_.value_field.nullable)
    elif pa.types.is_struct(type_):
        if not required and not may_be_absent(type_):
            yield path, _NO_NULL
        for each in type_:
            yield from unfit(each.type, f"{path}.{each.name}", required=not each.nullable)
    elif pa.types.is_map(type_):
        yield from unfit(type_.item_type, f"{path}.*", required=not type_.item_field.nullable)
    else:
        try:
            _clickhouse_type(type_)
        except UnsupportedType as why:
            yield path, str(why)


def instead_of(declared: Schema) -> Schema | None:
    """The same fields as ClickHouse can hold them: objects are required, what JSON holds as text is text, and fields without a type are
    left out."""
    made = [(each, _instead(each.type)) for each in declared.fields]
    fields = [
        replace(
            each,
            type=type_,
            required=each.required or pa.types.is_struct(type_),
            scale=each.scale if type_ == each.type else None,
        )
        for each, type_ in made
        if type_ is not None
    ]
    return Schema(tuple(fields)) if fields else None


def _instead(type_: pa.DataType) -> pa.DataType | None:
    if pa.types.is_list(type_):
        inner = _instead(type_.value_type)
        return pa.list_(_required_object(type_.value_field, inner)) if inner is not None else None
    if pa.types.is_struct(type_):
        children = [(each, _instead(each.type)) for each in type_]
        known = [_required_object(each, inner) for each, inner in children if inner is not None]
        return pa.struct(known) if known else None
    try:
        _clickhouse_type(type_)
        return type_
    except UnsupportedType:
        return pa.string() if is_textual(type_) else None


def _required_object(field: pa.Field, type_: pa.DataType) -> pa.Field:
    return field.with_type(type_).with_nullable(field.nullable and not pa.types.is_struct(type_))


def _clickhouse_type(type_: pa.DataType) -> str:
    if type_ == JSON:
        return "String"
    for name, arrow in _PLAIN.items():
        if arrow == type_ and name != "Date":
            return name
    if pa.types.is_timestamp(type_):
        return f"DateTime64({_DIGITS[type_.unit]}, 'UTC')"
    if pa.types.is_time(type_):
        return f"Time64({_DIGITS[type_.unit]})"
    if pa.types.is_decimal128(type_) or pa.types.is_decimal256(type_):
        return f"Decimal({type_.precision}, {type_.scale})"
    if is_uuid(type_):
        return "UUID"
    if pa.types.is_binary(type_):
        return "String"
    if pa.types.is_fixed_size_binary(type_):
        return f"FixedString({type_.byte_width})" if 0 < type_.byte_width <= _MOST_FIXED else "String"
    if pa.types.is_list(type_):
        item = type_.value_field
        return f"Array({column_type(item.type, required=not item.nullable)})"
    if pa.types.is_struct(type_):
        elements = (f"{quoted(each.name)} {column_type(each.type, required=not each.nullable)}" for each in type_)
        return f"Tuple({', '.join(elements)})"
    if pa.types.is_map(type_):
        value = column_type(type_.item_type, required=not type_.item_field.nullable)
        return f"Map({_clickhouse_type(type_.key_type)}, {value})"
    raise UnsupportedType(f"{re.sub(r'<.*', '', str(type_))} has no ClickHouse type here")


_HEAD = re.compile(r"\s*(\w+)\s*")
_ELEMENT = re.compile(r"(`(?:[^`\\]|\\.)+`|\w+)\s+(?=[A-Za-z])")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "f": "\f"}


@dataclass(frozen=True)
class TypeName:
    """A type's name and its arguments, as they are spelled."""

    name: str
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}({', '.join(self.arguments)})" if self.arguments else self.name

    @property
    def inner(self) -> TypeName:
        """The type that this one wraps."""
        return parse_type(self.arguments[0])

    def elements(self) -> Iterator[tuple[str, str]]:
        """A tuple's elements as (name, type); the name is empty where there is none."""
        for argument in self.arguments:
            found = _ELEMENT.match(argument)
            yield (unquote(found[1]), argument[found.end() :]) if found else ("", argument)


def parse_type(text: str) -> TypeName:
    """One level of a type: its name and the text of each argument."""
    head = _HEAD.match(text)
    if head is None:
        raise ValueError(f"not a ClickHouse type: {text!r}")
    rest = text[head.end() :].strip()
    if not rest:
        return TypeName(head[1])
    if not (rest.startswith("(") and rest.endswith(")")):
        raise ValueError(f"not a ClickHouse type: {text!r}")
    return TypeName(head[1], tuple(split_list(rest[1:-1])))


def split_list(text: str) -> list[str]:
    """The parts of a list, cut at the commas outside of brackets and quotes. Ends at a closing bracket that was not opened in it."""
    parts, depth, start, quote, escaped = [], 0, 0, "", False
    for at, character in enumerate(text):
        if escaped or character == "\\":
            escaped = not escaped
        elif quote:
            quote = "" if character == quote else quote
        elif character in "'`\"":
            quote = character
        elif character == "(":
            depth += 1
        elif character == ")" and depth == 0:
            text = text[:at]
            break
        elif character == ")":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts


def unquote(text: str) -> str:
    """The string behind a literal or an identifier in backticks; anything else is returned as it is."""
    if len(text) < 2 or text[0] not in "'`" or text[-1] != text[0]:
        return text
    body = text[1:-1].replace(text[0] * 2, text[0])
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), body, flags=re.DOTALL)
