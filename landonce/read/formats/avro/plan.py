"""How bodies of one writer's schema become the columns of a table: decided once per schema, then run over many records.

A writer's schema is resolved to a reader's by Avro's rules: fields by name or the reader's alias, defaults for fields
that the writer lacks, promotions, symbols by name or the reader's default. Without a reader's schema the writer's is
also the reader's. Then the table's columns are taken from the reader's fields. Whatever cannot become its column is a
`Mismatch`: in a branch of a union only for the records that use the branch, elsewhere for all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from landonce.protocol.reasons import Code, Reason
from landonce.read.convert.rules import converted, takes
from landonce.read.formats.avro import values
from landonce.read.formats.avro.cursor import (
    NO_SYMBOL,
    Body,
    Cursor,
    Faults,
    branches,
    entry_of,
    inside,
    items,
    skip,
)
from landonce.read.formats.avro.schema import (
    NO_DEFAULT,
    Array,
    Enum,
    Fixed,
    Map,
    Member,
    Named,
    Node,
    Primitive,
    Record,
    Union,
    branch_names,
    encode,
    kind_of,
)
from landonce.read.formats.avro.values import type_of
from landonce.read.schema.fields import JSON, KEY, VALUE, ConversionRule, Field, Place, Schema, folded, landed, spelled
from landonce.read.schema.texts import is_textual, json_texts, mask_of
from landonce.read.schema.values import KEY_TWICE, NULL_INSIDE, repeated, settle_keys, unfitting

_NULL = Primitive("null")


class Mismatch(TypeError):
    """These records cannot become these columns. The message is the reason of the rejects."""


class DecodePlan(Protocol):
    def read(self, cursor: Cursor) -> pa.Array:
        """The next value of each row in the column's type. Rows with a fault hold anything."""


@dataclass(frozen=True)
class _Target:
    """Where a value goes: its type, its place with the names in records, and its limits."""

    place: Place
    field: Field
    fold_case: bool
    where: str

    @property
    def type(self) -> pa.DataType:
        """The type of the column, where JSON is text."""
        return landed(self.place.type)

    def child(self, place: Place, field: Field, where: str) -> _Target:
        return replace(self, place=place, field=field, where=where)


def plan(writer: Node, reader: Node | None, schema: Schema) -> DecodePlan:
    """Raises `Mismatch`."""
    row = pa.struct(list(schema.arrow))
    # The row is a struct whose parts have their own limits.
    top = _Target(Place("", row, False, (), schema.places()), Field("", row, inner=schema.fields), schema.fold_case, "")
    return _Required(_plan(writer, reader or writer, top), "")


def _plan(writer: Node, reader: Node, to: _Target) -> DecodePlan:
    if to.place.type == JSON:
        return _json(writer, reader, to)
    if isinstance(writer, Union):
        return _Branches(tuple(_branch(each, reader, to) for each in writer.branches), to)
    if isinstance(reader, Union):
        return _into_union(writer, reader, to)
    if to.field.rule is not None and pt.is_string(to.type) and isinstance(reader, Record | Array | Map):
        return _json(writer, reader, to)
    if isinstance(writer, Primitive) and writer == reader == _NULL:
        return _Nulls(to.type)
    if isinstance(writer, Record) and isinstance(reader, Record) and _named_alike(writer, reader):
        return _record(writer, reader, to)
    if isinstance(writer, Array) and isinstance(reader, Array):
        if to.place.positional:  # as the parts of a tuple, as in JSON
            plans = []
            for at, place in enumerate(to.place.inside):
                part = to.child(place, to.field.inside(place.name), f"{to.where}[{at}]")
                plans.append(_required(_plan(writer.items, reader.items, part), part))
            return _Positions(tuple(plans), writer, to)
        if not pt.is_list(to.type):
            raise _unfit(reader, to)
        inner = to.child(to.place.inside[0], to.field, f"{to.where}[]")
        item = _plan(writer.items, reader.items, inner)
        return _List(item if to.type.value_field.nullable else _Required(item, inner.where), writer, to)
    if isinstance(writer, Map) and isinstance(reader, Map):
        return _map(writer, reader, to)
    if isinstance(writer, Primitive | Fixed | Enum) and isinstance(reader, Primitive | Fixed | Enum):
        return _leaf(writer, reader, to)
    raise _unresolved(writer, reader, to)


def _branch(writer: Node, reader: Node, to: _Target) -> DecodePlan:
    try:
        return _plan(writer, reader, to)
    except Mismatch as error:
        return _Never(Reason(str(error), Code.SCHEMA_MISMATCH), writer, to.type)


def _into_union(writer: Node, reader: Union, to: _Target) -> DecodePlan:
    """The branch of the same type, which equal full names decide; or else the first that the value can be promoted to."""
    names = dict(zip(reader.branches, branch_names(reader.branches), strict=True))
    tags = set(branch_names([each for each in reader.branches if each != _NULL]))
    # A struct with one field for each type of the union, as in Avro's JSON.
    tagged = pt.is_struct(to.type) and len(tags) > 1 and all(child.name in tags for child in to.type)
    first: Mismatch | None = None
    for each in _candidates(writer, reader.branches):
        try:
            if not tagged or each == _NULL:
                return _plan(writer, each, to)
            for at, place in enumerate(to.place.inside):
                if place.name == names[each]:
                    part = to.child(place, to.field.inside(place.name), inside(to.where, place.name))
                    return _Tagged(_plan(writer, each, part), at, to.type)
            raise Mismatch(f"field {to.where!r} is {_spelled(each)}, which {spelled(to.type)} has no field for")
        except Mismatch as error:
            first = first or error
    assert first is not None
    raise first


def _candidates(writer: Node, branches: tuple[Node, ...]) -> list[Node]:
    """What the value may be resolved to, the best first. A branch that is the writer's own, or has its full name, is the
    only one."""
    if writer in branches:
        return [writer]
    alike = [each for each in branches if kind_of(each) == kind_of(writer) and _named_alike(writer, each)]
    if isinstance(writer, Named):
        own: list[Node] = [each for each in alike if isinstance(each, Named) and each.name == writer.name]
        if own:
            return own
        alike.sort(key=lambda each: not isinstance(each, Named) or writer.name not in each.aliases)
    return [*alike, *(each for each in branches if each not in alike)]


def _named_alike(writer: Node, reader: Node) -> bool:
    if not isinstance(writer, Named) or not isinstance(reader, Named):
        return True
    names = {each.rpartition(".")[2] for each in (reader.name, *reader.aliases)}
    return writer.name.rpartition(".")[2] in names


def _unresolved(writer: Node, reader: Node, to: _Target) -> Mismatch:
    what = f"field {to.where!r}" if to.where else "the record"
    return Mismatch(f"{what} is {_spelled(writer)} in its own schema, and {_spelled(reader)} in the reader's")


def _unfit(node: Node, to: _Target) -> Mismatch:
    what = f"field {to.where!r}" if to.where else "the record"
    target = spelled(to.type) if to.where else "not a record"
    return Mismatch(
        f"{what} is {_spelled(node)} in the Avro schema, " + (f"the column {target}" if to.where else target)
    )


def _spelled(node: Node) -> str:
    name = kind_of(node)
    logical = node.logical if isinstance(node, Primitive | Fixed) else None
    word = f"{name} ({logical.name})" if logical is not None else name
    return f"{'an' if name[0] in 'aeiou' else 'a'} {word}" if name not in ("bytes", "null") else word


# Single values
def _leaf(writer: values.Leaf, reader: values.Leaf, to: _Target) -> DecodePlan:
    if isinstance(writer, Enum) and isinstance(reader, Enum):
        if not _named_alike(writer, reader):
            raise _unresolved(writer, reader, to)
        if not pt.is_string(to.type):
            raise _unfit(reader, to)
        return _Symbols(
            writer, tuple(each if each in reader.symbols else reader.default for each in writer.symbols), to
        )
    if isinstance(reader, Fixed) and isinstance(writer, Fixed):
        if writer.size != reader.size or not _named_alike(writer, reader):
            raise _unresolved(writer, reader, to)
    elif _is_uuid_text(reader) and pt.is_string(to.type):  # as it is written
        reader = Primitive("string")
        writer = reader if _is_uuid_text(writer) else writer
    promoted = values.promotion(writer, reader)
    if promoted is None:
        raise _unresolved(writer, reader, to)
    own, rule = values.meaning(reader), to.field.rule
    made = values.conversion(own, to.field, to.type)
    if rule is not None and (made is not None or takes(own, to.type, rule)):
        return _Fitted(writer, promoted, made, rule, to)
    logical = reader.logical if isinstance(reader, Primitive) else None
    if made is None and isinstance(writer, Primitive) and logical is not None and logical.loose:
        return _leaf(Primitive(writer.kind), Primitive(kind_of(reader)), to)
    if made is None and isinstance(reader, Fixed):  # the bytes themselves
        plain = replace(reader, logical=None)
        made, writer, promoted = values.conversion(values.meaning(plain), to.field, to.type), plain, values.same
    if made is None:
        raise _unfit(reader, to)
    return _Leaf(writer, promoted, made, to)


def _is_uuid_text(node: values.Leaf) -> bool:
    return isinstance(node, Primitive) and node.logical is not None and node.logical.name == "uuid"


@dataclass(frozen=True)
class _Leaf:
    node: values.Leaf
    promoted: values.Convert
    converted: values.Convert
    to: _Target

    def read(self, cursor: Cursor) -> pa.Array:
        to = self.to
        found = values.read(self.node, cursor, to.where)
        made = self.converted(self.promoted(found))
        if made.null_count > found.null_count:
            lost = mask_of(made.is_null()) & ~mask_of(found.is_null())
            cursor.fail(lost, to.where, unfitting(to.type))
        values.limits(made, to.type, to.field, cursor, to.where)
        return made


@dataclass(frozen=True)
class _Fitted:
    """Like `_Leaf`, by the field's rule."""

    node: values.Leaf
    promoted: values.Convert
    strictly: values.Convert | None
    rule: ConversionRule
    to: _Target

    def read(self, cursor: Cursor) -> pa.Array:
        to = self.to
        found = self.promoted(values.read(self.node, cursor, to.where))
        made = converted(found, to.type, self.rule, self.strictly)
        for each in made.faults():
            cursor.fail(each.rows, to.where, each.problem)
        values.limits(made.values, to.type, to.field, cursor, to.where)
        return made.values


@dataclass(frozen=True)
class _Symbols:
    writer: Enum
    known: tuple[str | None, ...]
    to: _Target

    def read(self, cursor: Cursor) -> pa.Array:
        found = values.read(
            replace(self.writer, symbols=tuple(map(str, range(len(self.known))))), cursor, self.to.where
        )
        made = pa.array(self.known, pa.string()).take(found.cast(pa.int64()))
        if None in self.known:
            cursor.fail(mask_of(made.is_null()), self.to.where, NO_SYMBOL)
        values.limits(made, self.to.type, self.to.field, cursor, self.to.where)
        return made


@dataclass(frozen=True)
class _Nulls:
    type: pa.DataType

    def read(self, cursor: Cursor) -> pa.Array:
        return pa.nulls(len(cursor), self.type)


# Records
def _record(writer: Record, reader: Record, to: _Target) -> DecodePlan:
    if not pt.is_struct(to.type):
        raise _unfit(reader, to)
    slots = _slots(reader, to)
    steps: list[_Step] = []
    filled: set[str] = set()
    for member in writer.fields:
        same = next((each for each in reader.fields if each.name == member.name), None)
        of_reader = same or next((each for each in reader.fields if member.name in each.aliases), None)
        slot = slots.get(of_reader.name) if of_reader is not None else None
        if of_reader is None or slot is None:
            steps.append(_Step(member, None, -1))
            continue
        at, target = slot
        if of_reader.name in filled:
            raise Mismatch(f"field {target.where!r} has two names in the Avro schema")
        filled.add(of_reader.name)
        steps.append(_Step(member, _required(_plan(member.type, of_reader.type, target), target), at))
    missing: dict[int, DecodePlan] = {}
    for name, (at, target) in slots.items():
        if name not in filled:
            missing[at] = _default(next(each for each in reader.fields if each.name == name), target)
    for at, place in enumerate(to.place.inside):
        if at not in missing and all(step.slot != at for step in steps):
            if not place.nullable:
                raise Mismatch(f"missing required field {inside(to.where, place.name)!r}")
            missing[at] = _Nulls(landed(place.type))
    return _Struct(tuple(steps), tuple(missing.items()), to)


def _required(made: DecodePlan, target: _Target) -> DecodePlan:
    return made if target.place.nullable else _Required(made, target.where)


def _slots(reader: Record, to: _Target) -> dict[str, tuple[int, _Target]]:
    """By the reader's field: the number of its column, and the column."""
    names = {folded(name, to.fold_case): at for at, place in enumerate(to.place.inside) for name in place.names}
    slots: dict[str, tuple[int, _Target]] = {}
    taken: set[int] = set()
    for member in reader.fields:
        at = names.get(folded(member.name, to.fold_case))
        if at is None:
            continue
        place = to.place.inside[at]
        where = inside(to.where, place.name)
        if at in taken:
            raise Mismatch(f"field {where!r} has two names in the Avro schema")
        taken.add(at)
        slots[member.name] = at, to.child(place, to.field.inside(place.name), where)
    return slots


def _default(member: Member, target: _Target) -> DecodePlan:
    """The reader's default, encoded and decoded once: it goes the same way as any other value."""
    if member.default is NO_DEFAULT:
        if not target.place.nullable:
            raise Mismatch(f"missing required field {target.where!r}")
        return _Nulls(target.type)
    node = member.type
    try:
        body = encode(node, member.default)
    except ValueError:
        raise Mismatch(f"the default of field {target.where!r} does not fit its type in the Avro schema") from None
    made = _required(_plan(node, node, target), target)
    where, start, end = Body.of(pa.array([body], pa.binary()))
    faults = Faults()
    found = made.read(Cursor(where, start, end, np.zeros(1, np.int64), faults))
    if faults.reasons:
        raise Mismatch(f"the default of {faults.reasons[0]}")
    return _Constant(found)


@dataclass(frozen=True)
class _Constant:
    value: pa.Array

    def read(self, cursor: Cursor) -> pa.Array:
        return self.value.take(pa.array(np.zeros(len(cursor), np.int64)))


@dataclass(frozen=True)
class _Step:
    """A field of the writer, in its order. Without a plan, no column wants it."""

    member: Member
    plan: DecodePlan | None
    slot: int


@dataclass(frozen=True)
class _Struct:
    steps: tuple[_Step, ...]
    missing: tuple[tuple[int, DecodePlan], ...]
    to: _Target

    def read(self, cursor: Cursor) -> pa.Array:
        columns: dict[int, pa.Array] = {}
        for each in self.steps:
            if each.plan is None:
                skip(each.member.type, cursor, inside(self.to.where, each.member.name))
            else:
                columns[each.slot] = each.plan.read(cursor)
        for slot, made in self.missing:
            columns[slot] = made.read(cursor)
        fields = list(self.to.type)
        if not fields:  # as JSON text
            return pa.array([{}] * len(cursor), self.to.type)
        return pa.StructArray.from_arrays([columns[at] for at in range(len(fields))], fields=fields)


_IS_NULL = Reason("is null, and the column must not be", Code.MISSING_FIELD)


@dataclass(frozen=True)
class _Required:
    """A place that must not be null."""

    plan: DecodePlan
    where: str

    def read(self, cursor: Cursor) -> pa.Array:
        found = self.plan.read(cursor)
        if found.null_count:
            problem = NULL_INSIDE if "[" in self.where or "." in self.where else _IS_NULL
            cursor.fail(mask_of(found.is_null()), self.where, problem)
        return found


# JSON text
def _json(writer: Node, reader: Node, to: _Target) -> DecodePlan:
    """Whatever the value is: read as the columns that its schema suggests, then written as JSON. What a union holds is the value itself
    for a target that takes several types, or one number; elsewhere it is named by its type."""
    if to.field.unquoted or (to.field.judge is not None and to.field.judge.any_type):
        if isinstance(writer, Union):
            return _Branches(tuple(_branch(each, reader, to) for each in writer.branches), to)
        if isinstance(reader, Union):
            reader = _candidates(writer, reader.branches)[0]
    natural = Field(to.place.name, type_of(reader)[0])
    plain = pt.is_binary(natural.type) or pt.is_fixed_size_binary(natural.type) or pt.is_floating(natural.type)
    if to.field.unquoted and plain:
        raise _unfit(reader, to)  # base64 may look like a number, and a float has no digits of its own
    inner = replace(to, place=natural.place(), field=natural, fold_case=False)
    return _JsonText(_plan(writer, reader, inner), to)


@dataclass(frozen=True)
class _JsonText:
    plan: DecodePlan
    to: _Target

    def read(self, cursor: Cursor) -> pa.Array:
        found = self.plan.read(cursor)
        texts = json_texts(found)
        made = pa.array(texts, pa.string())
        lost = mask_of(made.is_null()) & ~mask_of(found.is_null())
        cursor.fail(lost, self.to.where, Reason("holds a number or a time that JSON cannot hold", Code.INVALID_VALUE))
        if self.to.field.unquoted:
            made = pc.utf8_trim(made, characters='"')  # a number of any size may be written as a string
        values.limits(made, self.to.type, self.to.field, cursor, self.to.where)
        return made


# Arrays, maps and unions
@dataclass(frozen=True)
class _List:
    item: DecodePlan
    writer: Array
    to: _Target

    def read(self, cursor: Cursor) -> pa.Array:
        counts, inner = items(self.writer.items, cursor, self.to.where)
        wanted = self.to.field.items
        if wanted is not None:
            cursor.fail(counts != wanted, self.to.where, Reason(f"does not hold {wanted} items", Code.INVALID_VALUE))
        return pa.ListArray.from_arrays(_offsets(counts), self.item.read(inner), type=self.to.type)


def _offsets(counts: Any) -> pa.Array:
    return pa.array(np.concatenate(([0], np.cumsum(counts))).astype(np.int32))


@dataclass(frozen=True)
class _Positions:
    plans: tuple[DecodePlan, ...]
    writer: Array
    to: _Target

    def read(self, cursor: Cursor) -> pa.Array:
        counts, inner = items(self.writer.items, cursor, self.to.where)
        whole = counts == len(self.plans)
        wanted = Reason(f"does not hold {len(self.plans)} items", Code.INVALID_VALUE)
        cursor.fail(~whole, self.to.where, wanted)
        first = (np.cumsum(counts) - counts)[whole]
        place = np.full(len(counts), -1, np.int64)
        place[whole] = np.arange(len(first))
        spread = pa.array(place, mask=place < 0)
        columns = [each.read(inner.part(first + at)).take(spread) for at, each in enumerate(self.plans)]
        return pa.StructArray.from_arrays(columns, fields=list(self.to.type))


def _map(writer: Map, reader: Map, to: _Target) -> DecodePlan:
    if not pt.is_map(to.type):
        raise _unfit(reader, to)
    key_place = Place(KEY, to.type.key_type, False, ())
    key_to = to.child(key_place, to.field.inside(KEY), f"{to.where}.{KEY}")
    of_text = pt.is_string(key_to.type) or is_textual(key_to.type)
    key = _leaf(Primitive("string"), Primitive("string"), key_to) if of_text else _WrittenKeys(key_to, to.where)
    inner = to.child(to.place.inside[0], to.field.inside(VALUE), f"{to.where}.{VALUE}")
    value = _plan(writer.values, reader.values, inner)
    return _MapOf(key, value if to.type.item_field.nullable else _Required(value, inner.where), writer, to)


@dataclass(frozen=True)
class _WrittenKeys:
    """Keys that are numbers or booleans, as JSON writes them."""

    to: _Target
    where: str

    def read(self, cursor: Cursor) -> pa.Array:
        text = values.read(Primitive("string"), cursor, self.to.where)
        keys, faults = settle_keys(text, self.to.type, self.to.field)
        for fault in faults:
            cursor.fail(fault.rows, self.where, fault.problem)
        values.limits(keys, self.to.type, self.to.field, cursor, self.to.where)
        return keys


def _without_null(keys: pa.Array) -> pa.Array:
    """The keys with another one in the place of nulls, which no map holds. The rows with these are rejected."""
    plain = keys.storage if isinstance(keys, pa.ExtensionArray) else keys
    if pt.is_string(plain.type) or pt.is_binary(plain.type):
        any_key = pa.array([""]).cast(plain.type)
    else:
        any_key = pa.Array.from_buffers(plain.type, 1, [None, pa.py_buffer(bytes(plain.type.bit_width // 8 or 1))])
    at = np.where(mask_of(plain.is_null()), len(plain), np.arange(len(plain)))
    filled = pa.concat_arrays([plain, any_key]).take(pa.array(at))
    return pa.ExtensionArray.from_storage(keys.type, filled) if isinstance(keys, pa.ExtensionArray) else filled


@dataclass(frozen=True)
class _MapOf:
    key: DecodePlan
    value: DecodePlan
    writer: Map
    to: _Target

    def read(self, cursor: Cursor) -> pa.Array:
        counts, inner = items(entry_of(self.writer), cursor, self.to.where)
        keys = self.key.read(inner)
        found = self.value.read(inner)
        owner = np.repeat(np.arange(len(counts)), counts)
        again = np.zeros(len(counts), np.bool_)
        again[owner[repeated(keys, owner)]] = True
        cursor.fail(again, self.to.where, KEY_TWICE)  # Avro does not forbid to write a key twice; no table holds it
        if keys.null_count:  # of failed records
            keys = _without_null(keys)
        return pa.MapArray.from_arrays(_offsets(counts), keys, found, type=self.to.type)


@dataclass(frozen=True)
class _Branches:
    plans: tuple[DecodePlan, ...]
    to: _Target

    def read(self, cursor: Cursor) -> pa.Array:
        order, parts = [], []
        for at, rows in branches(len(self.plans), cursor, self.to.where):
            if len(rows) == len(cursor):
                return self.plans[at].read(cursor)
            part = cursor.part(rows)
            found = self.plans[at].read(part)
            cursor.put(rows, part)
            if not isinstance(self.plans[at], _Nulls):
                order.append(rows)
                parts.append(found)
        if not parts:
            return pa.nulls(len(cursor), self.to.type)
        index = np.full(len(cursor), -1, np.int64)
        rows = np.concatenate(order)
        index[rows] = np.arange(len(rows))
        joined = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
        return joined.take(pa.array(index, mask=index < 0))


@dataclass(frozen=True)
class _Tagged:
    plan: DecodePlan
    at: int
    type: pa.DataType

    def read(self, cursor: Cursor) -> pa.Array:
        found = self.plan.read(cursor)
        columns = [found if at == self.at else pa.nulls(len(found), each.type) for at, each in enumerate(self.type)]
        return pa.StructArray.from_arrays(columns, fields=list(self.type))


@dataclass(frozen=True)
class _Never:
    """A branch that no column can hold: the records that use it are rejected."""

    reason: Reason
    writer: Node
    type: pa.DataType

    def read(self, cursor: Cursor) -> pa.Array:
        for record in cursor.record.tolist():
            cursor.faults.reasons.setdefault(record, self.reason)
        skip(self.writer, cursor, "")
        return pa.nulls(len(cursor), self.type)
