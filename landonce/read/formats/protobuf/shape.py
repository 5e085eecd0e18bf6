"""How the fields of a message become the fields of a schema: decided once per message type, before any record is read.

| field | becomes |
|---|---|
| integers | integers and decimals; floats, if they hold the value exactly; a timestamp or date with a ``scale`` |
| float, double | floats, with NaN and infinity |
| bool | boolean |
| string | string; decimal; timestamp, date, time and UUID as JSON writes them |
| bytes | bytes, bytes of a fixed length, UUID |
| enum | its name as a string, or its number as an integer |
| Timestamp | timestamp |
| Duration | decimal, in seconds |
| wrappers | what their value becomes |
| other messages | struct of the fields with the same names |
| any message, repeated field or map | JSON, or its text as a string; there Timestamp, Duration, FieldMask and StringValue are without quotes |
| any of the above | JSON; integers as numbers, enums as their names, bytes as base64 |
| single values | by the field's rule (`convert`), what that makes of them |
| repeated | list; a tuple of parts without names, if it has as many elements |
| map | map; keys that are no strings become strings if the map has such keys |

A field of the schema that the message does not have is null. Anything else is a `Misfit`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from landonce.read.convert.rules import takes
from landonce.read.formats.protobuf.parts import (
    ZEROS,
    Absent,
    Duration,
    EnumPart,
    FieldPart,
    JsonOfMany,
    JsonTextPart,
    List,
    MapPart,
    Positions,
    Scalar,
    Struct,
    Timestamp,
    Wrapper,
)
from landonce.read.formats.protobuf.source import Descriptor
from landonce.read.formats.protobuf.wire import BYTES, ENUM, GROUP, INT32, MESSAGE, STRING, Wire
from landonce.read.schema.fields import (
    JSON,
    KEY,
    VALUE,
    Field,
    Place,
    Schema,
    by_record_name,
    folded,
    is_uuid,
    landed,
    spelled,
)

TIMESTAMP, DURATION = "google.protobuf.Timestamp", "google.protobuf.Duration"
WRAPPERS = frozenset(
    f"google.protobuf.{each}Value"
    for each in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_BARE_TEXT = (TIMESTAMP, DURATION, "google.protobuf.FieldMask")
_FLOATS, _BOOL = (1, 2), 8
_INTEGERS = (3, 4, 5, 6, 7, 13, 15, 16, 17, 18)


@dataclass(frozen=True)
class Misfit:
    """A field that can never become what the schema wants."""

    path: str
    problem: str

    def __str__(self) -> str:
        return f"field {self.path!r} {self.problem}"


@dataclass(frozen=True)
class Shape:
    """How a message becomes a row. If there are misfits, it does not."""

    root: Struct
    misfits: tuple[Misfit, ...]


def shape_of(descriptor: Descriptor, schema: Schema) -> Shape:
    """What each field of the schema is made of."""
    building = _Building(schema.fold_case, [])
    limits = [(each.place(), each) for each in schema.fields]
    root = building.struct(descriptor, pa.struct(list(schema.arrow)), limits, "")
    return Shape(root, tuple(building.misfits))


@dataclass(frozen=True)
class _Building:
    fold_case: bool
    misfits: list[Misfit]

    def struct(
        self, descriptor: Descriptor, type_: pa.DataType, inside: Iterable[tuple[Place, Field]], path: str
    ) -> Struct:
        """`inside`: the places of the struct's fields, and the limits of each."""
        places = dict(inside)
        wanted = by_record_name(places, self.fold_case)
        parts: dict[str, FieldPart] = {}
        needed: set[int] = set()
        for each in descriptor.fields:
            place = wanted.get(folded(each.name, self.fold_case))
            if place is None:
                continue
            here = _inside(path, place.name)
            if place.name in parts:
                self.misfits.append(Misfit(here, f"is two fields of {descriptor.full_name}"))
            parts[place.name] = self.field(each, place, places[place], here)
            needed.add(each.number)
        wires = _with_oneofs(descriptor, {part.wire.number: part.wire for part in parts.values()}, needed)
        children = tuple(parts.get(child.name) or Absent(child.type) for child in type_)
        paths = tuple(_inside(path, child.name) for child in type_)
        required = tuple(each for each in wires if descriptor.fields_by_number[each.number].is_required)
        names = dict.fromkeys(each.oneof for each in wires if each.oneof is not None)
        oneofs = tuple(tuple(each for each in wires if each.oneof == name) for name in names)
        return Struct(Wire(0, MESSAGE, path, inside=wires), type_, children, paths, required, oneofs)

    def field(self, field: Any, place: Place, limits: Field, path: str) -> FieldPart:
        type_ = place.type
        if field.is_repeated and field.type != GROUP and (pt.is_string(type_) or type_ == JSON):
            plain = BYTES if field.message_type is not None else None
            return JsonOfMany(replace(_wire(field, path, plain), repeated=True), _leaf(limits, path, type_), field)
        if _is_map(field):
            return self.map(field, place, limits, path) if pt.is_map(type_) else self.misfit(field, type_, path)
        if field.is_repeated and place.positional and field.type != GROUP:
            parts = [(f"{path}[{at}]", each) for at, each in enumerate(place.inside)]
            items = tuple(self.single(field, each, limits.inside(each.name), where) for where, each in parts)
            return Positions(replace(items[0].wire, repeated=True, oneof=None), landed(type_), items, path)
        if field.is_repeated:
            if not pt.is_list(type_):
                return self.misfit(field, type_, path)
            item = self.single(field, place.inside[0], limits, f"{path}[]")
            return List(replace(item.wire, repeated=True, oneof=None), landed(type_), item, limits.items, path)
        part = self.single(field, place, limits, path)
        if isinstance(part, JsonTextPart) and part.wire.oneof is None:
            return replace(part, wire=replace(part.wire, repeated=True), pieces=True)
        return part

    def map(self, field: Any, place: Place, limits: Field, path: str) -> FieldPart:
        entry = field.message_type.fields_by_name
        type_ = place.type
        as_text = pt.is_string(type_.key_type) and entry["key"].type != STRING
        key_place = Place(KEY, type_.key_type, False, (KEY,))
        if as_text:
            key: FieldPart = Scalar(
                _wire(entry["key"], path), _leaf(limits.inside(KEY), path, type_.key_type), written=True
            )
        else:
            key = self.single(entry["key"], key_place, limits.inside(KEY), path)
        value = self.single(entry["value"], place.inside[0], limits.inside(VALUE), path)
        key, value = _always(key), _always(value)
        wire = Wire(field.number, MESSAGE, path, repeated=True, inside=(key.wire, value.wire))
        return MapPart(wire, landed(type_), key, value, path)

    def single(self, field: Any, place: Place, limits: Field, path: str) -> FieldPart:
        """One value: of a field, in a list, in a map."""
        type_ = place.type
        if field.message_type is not None:
            return self.message(field, place, limits, path)
        leaf = _leaf(limits, path, type_)
        wire = _wire(field, path)
        # What is absent is no value for a column that takes none.
        zero = None if field.has_presence or field.is_repeated or not leaf.is_filled else ZEROS[wire.type]
        if field.type == ENUM:
            names: dict[int, str] = {}
            for each in field.enum_type.values:
                names.setdefault(each.number, each.name)
            if pt.is_string(type_) or pt.is_integer(type_) or type_ == JSON:
                return EnumPart(wire, leaf, zero, tuple(sorted(names.items())), field.enum_type.full_name)
        elif can_become(field.type, leaf):
            return Scalar(wire, leaf, zero, utf8=field.type == STRING)
        elif leaf.rule is not None and takes(_own(field.type), type_, leaf.rule):
            return Scalar(wire, leaf, zero, utf8=field.type == STRING, by_rule=True)
        return self.misfit(field, type_, path)

    def message(self, field: Any, place: Place, limits: Field, path: str) -> FieldPart:
        type_, descriptor = place.type, field.message_type
        name = descriptor.full_name
        wire = _wire(field, path)
        kind = descriptor.fields_by_name["value"].type if name in WRAPPERS else None
        by_rule = kind is not None and limits.rule is not None and takes(_own(kind), type_, limits.rule)
        single = kind is not None and (type_ == JSON or kind == STRING or by_rule)
        if (pt.is_string(type_) or type_ == JSON) and field.type == MESSAGE and not single:
            bare = name in _BARE_TEXT and type_ != JSON
            return JsonTextPart(replace(wire, type=BYTES), _leaf(limits, path, type_), descriptor, bare)
        if pt.is_struct(type_):
            inside = [(each, limits.inside(each.name)) for each in place.inside]
            made = self.struct(descriptor, landed(type_), inside, path)
            return replace(made, wire=replace(wire, inside=made.wire.inside))
        if name in WRAPPERS:
            value = self.single(descriptor.fields_by_name["value"], place, limits, path)
            return Wrapper(replace(wire, inside=(value.wire,)), value)
        if name == TIMESTAMP and (pt.is_timestamp(type_) or (pt.is_date32(type_) and limits.rule is not None)):
            return Timestamp(replace(wire, inside=_SECONDS), _leaf(limits, path, type_))
        if name == DURATION and pt.is_decimal(type_):
            return Duration(replace(wire, inside=_SECONDS), _leaf(limits, path, type_))
        return self.misfit(field, type_, path)

    def misfit(self, field: Any, type_: pa.DataType, path: str) -> FieldPart:
        self.misfits.append(Misfit(path, f"is {kind_of(field)}, which cannot become {spelled(type_)}"))
        return Absent(landed(type_), _wire(field, path))


_SECONDS = (Wire(1, 3, "seconds"), Wire(2, INT32, "nanos"))


def kind_of(field: Any) -> str:
    """A field's type, as a `.proto` file writes it."""
    if _is_map(field):
        entry = field.message_type.fields_by_name
        return f"map<{kind_of(entry['key'])}, {kind_of(entry['value'])}>"
    if field.message_type is not None:
        name = str(field.message_type.full_name)
    elif field.type == ENUM:
        name = f"enum {field.enum_type.full_name}"
    else:
        name = _KINDS[field.type]
    return f"repeated {name}" if field.is_repeated else name


_KINDS = {
    1: "double",
    2: "float",
    3: "int64",
    4: "uint64",
    5: "int32",
    6: "fixed64",
    7: "fixed32",
    8: "bool",
    9: "string",
    12: "bytes",
    13: "uint32",
    15: "sfixed32",
    16: "sfixed64",
    17: "sint32",
    18: "sint64",
}


def can_become(kind: int, leaf: Field) -> bool:
    """Whether values of this type can become the field's."""
    type_ = leaf.type
    if type_ == JSON:
        return not leaf.unquoted or kind in _INTEGERS or kind == STRING
    if kind in _INTEGERS:
        ticks = leaf.scale is not None and (pt.is_timestamp(type_) or pt.is_date32(type_))
        return bool(pt.is_integer(type_) or pt.is_floating(type_) or pt.is_decimal(type_) or ticks)
    if kind in _FLOATS:
        return bool(pt.is_floating(type_))
    if kind == _BOOL:
        return bool(pt.is_boolean(type_))
    if kind == STRING:
        temporal = pt.is_timestamp(type_) or pt.is_date32(type_) or pt.is_time64(type_)
        return bool(pt.is_string(type_) or pt.is_decimal(type_) or temporal or is_uuid(type_))
    return bool(pt.is_binary(type_) or pt.is_fixed_size_binary(type_) or is_uuid(type_))


def _own(kind: int) -> pa.DataType:
    """The type that values have themselves, for rules, which do not ask for its width."""
    if kind in _INTEGERS or kind in _FLOATS:
        return pa.int64() if kind in _INTEGERS else pa.float64()
    return {_BOOL: pa.bool_(), STRING: pa.string()}.get(kind, pa.binary())


def _leaf(limits: Field, path: str, type_: pa.DataType) -> Field:
    """The limits of one value, under the name that reasons use."""
    scale = limits.scale if pt.is_timestamp(type_) or pt.is_date32(type_) else None
    return replace(limits, name=path, type=type_, required=False, aliases=(), inner_aliases=(), inner=(), scale=scale)


def _always(part: FieldPart) -> FieldPart:
    """An entry of a map has both of its fields: if one is absent, it has its zero."""
    if isinstance(part, Scalar | EnumPart):
        return replace(part, zero=part.zero if part.zero is not None else ZEROS[part.wire.type])
    if isinstance(part, JsonTextPart | Timestamp | Duration | Wrapper | Struct):
        return replace(part, always=True)
    return part


def _with_oneofs(descriptor: Descriptor, wires: dict[int, Wire], needed: set[int]) -> tuple[Wire, ...]:
    """The fields, and the other members of their oneofs; members of a oneof are beside each other."""
    found: dict[int, Wire] = {}
    for each in descriptor.fields:
        if each.number not in needed or each.number in found:
            continue
        around = each.containing_oneof
        members = around.fields if around is not None else [each]
        for member in members:
            plain = BYTES if member.type == MESSAGE else None
            found[member.number] = wires.get(member.number) or _wire(member, member.name, plain)
    return tuple(found.values())


def _wire(field: Any, path: str, type_: int | None = None) -> Wire:
    plain = {STRING: BYTES, ENUM: INT32}.get(field.type, field.type)
    oneof = field.containing_oneof
    several = oneof is not None and len(oneof.fields) > 1
    return Wire(field.number, type_ or plain, path, oneof=oneof.name if several else None)


def _is_map(field: Any) -> bool:
    return bool(field.message_type is not None and field.message_type.GetOptions().map_entry)


def _inside(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
