"""Columns as they were read (see `wire`) become columns of the schema's types, or faults.

Nothing here loops over values, except over those that land as JSON text. The result of a value never depends on its
neighbours. The problem of a `Fault` is the whole reason for a dead letter: it names the field, and holds no content.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from landonce.protocol.reasons import Code, Reason, missing, of_field
from landonce.read.convert.rules import Strictly, converted
from landonce.read.formats.protobuf.source import Descriptor, message_class
from landonce.read.formats.protobuf.wire import Wire, varint
from landonce.read.schema.fields import JSON, Field, spelled
from landonce.read.schema.texts import (
    UNIT_DIGITS,
    Mask,
    cast_or_null,
    decimals,
    is_textual,
    json_texts,
    mask_of,
    matching,
)
from landonce.read.schema.values import Fault, fit, lifted, not_valid, repeated, settle_value, unfit_value, unfitting

Settled = tuple[pa.Array, list[Fault]]
SEVERAL = Reason("several members of a oneof", Code.REPEATED_FIELD)
"""The problem of rows that must be read one by one: the last member on the wire counts."""
ZEROS: dict[int, Any] = {**dict.fromkeys((3, 4, 5, 6, 7, 13, 15, 16, 17, 18), 0), 1: 0.0, 2: 0.0, 8: False, 12: b""}
"""By type on the wire: the value of an absent field that has no presence."""
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799  # years 1 to 9999
_LONGEST = 315_576_000_000
_BILLION = 1_000_000_000
_NUMBER = r"\A[+-]?[0-9]+(?:\.[0-9]+)?\z"
NOT_READ = Wire(0, 0)


class FieldPart(ABC):
    """What becomes of one field. `settle` gets one value per row: null if the record does not hold it."""

    wire: Wire

    @abstractmethod
    def settle(self, array: pa.Array) -> Settled: ...


@dataclass(frozen=True)
class Absent(FieldPart):
    """A field that the message does not have."""

    type: pa.DataType
    wire: Wire = NOT_READ

    def settle(self, array: pa.Array) -> Settled:
        return pa.nulls(len(array), self.type), []


@dataclass(frozen=True)
class Scalar(FieldPart):
    """Numbers, booleans, strings, bytes."""

    wire: Wire
    field: Field
    zero: Any = None
    """What an absent field means, if it has no presence."""
    utf8: bool = False
    """Whether the bytes are a string."""
    written: bool = False
    """Whether a number or boolean is written as text: the key of a map."""
    by_rule: bool = False
    """Whether only the field's rule makes anything of its values."""

    def settle(self, array: pa.Array) -> Settled:
        array = _filled(array, self.zero)
        if self.written:
            return _converted(array.cast(pa.string()), self.field)
        if not self.utf8:
            return self._settled(array)
        text = cast_or_null(array, pa.string())
        fine = mask_of(pc.or_(text.is_valid(), array.is_null()))
        settled, faults = self._settled(text)
        return settled, _unless(fine, _wrong(self.field, "is not valid UTF-8", Code.NOT_UTF8)) + faults

    def _settled(self, array: pa.Array) -> Settled:
        if self.field.type == JSON:
            return _scalar_json(array, self.field)
        return _by_rule(array, self.field, None) if self.by_rule else _converted(array, self.field)


@dataclass(frozen=True)
class EnumPart(FieldPart):
    """A number becomes its first name, or stays a number. A number without a name has no text."""

    wire: Wire
    field: Field
    zero: int | None
    names: tuple[tuple[int, str], ...]
    enum: str

    def settle(self, array: pa.Array) -> Settled:
        array = _filled(array, self.zero)
        is_json = self.field.type == JSON
        if is_json and self.field.unquoted:
            return _scalar_json(array, self.field)
        if not (is_json or pt.is_string(self.field.type)):
            return _converted(array, self.field)
        numbers, names = self._known
        values = array.fill_null(numbers[0]).to_numpy()
        at = np.minimum(np.searchsorted(numbers, values), len(numbers) - 1)
        known = numbers[at] == values
        text = names.take(pa.array(at, mask=~known | mask_of(array.is_null())))
        unnamed = f"holds a number that enum {self.enum} does not name"
        faults = _unless(known, _wrong(self.field, unnamed, Code.INVALID_VALUE))
        fitted, of_fit = _scalar_json(text, self.field) if is_json else _converted(text, self.field)
        return fitted, faults + of_fit

    @cached_property
    def _known(self) -> tuple[Any, pa.Array]:
        return np.array([each for each, _ in self.names], np.int32), pa.array([each for _, each in self.names])


@dataclass(frozen=True)
class JsonTextPart(FieldPart):
    """A message of any type as JSON. ``pieces``: the array holds lists of pieces; together they are the message."""

    wire: Wire
    field: Field
    descriptor: Descriptor
    bare: bool
    pieces: bool = False
    always: bool = False

    def settle(self, array: pa.Array) -> Settled:
        values = array.to_pylist()
        if self.pieces:
            values = [b"".join(each) if each else None for each in values]
        if self.always:
            values = [each or b"" for each in values]
        return _as_json(values, self._text, self.field, self.descriptor.full_name)

    def _text(self, value: bytes) -> str:
        plain = _plain(message_class(self.descriptor).FromString(value))
        return str(plain) if self.bare else _dumped(plain)


@dataclass(frozen=True)
class JsonOfMany(FieldPart):
    """A repeated field or a map as JSON."""

    wire: Wire
    field: Field
    proto: Any

    def settle(self, array: pa.Array) -> Settled:
        values = array.to_pylist()
        if not self.field.is_filled:  # what is empty is no value for a column that takes none
            values = [each or None for each in values]
        return _as_json(values, self._text, self.field, "value")

    def _text(self, values: list[Any]) -> str:
        name, kind = self.proto.name, self.proto.message_type
        if kind is None:
            around = message_class(self.proto.containing_type)()
            getattr(around, name).extend(values)
        else:
            head = varint(self.wire.number << 3 | 2)
            data = b"".join(head + varint(len(each)) + each for each in values)
            around = message_class(self.proto.containing_type).FromString(data)
        nothing: Any = {} if kind is not None and kind.GetOptions().map_entry else []
        return _dumped(_plain(around).get(name, nothing))


@dataclass(frozen=True)
class Timestamp(FieldPart):
    wire: Wire
    field: Field
    always: bool = False

    def settle(self, array: pa.Array) -> Settled:
        """By a rule, a DATE too, of a time in microseconds."""
        type_ = self.field.type if pt.is_timestamp(self.field.type) else pa.timestamp("us", "UTC")
        present, seconds, nanos = _seconds(array, self.always)
        valid = (seconds >= _FIRST_SECOND) & (seconds <= _LAST_SECOND) & (nanos >= 0) & (nanos < _BILLION)
        digits = UNIT_DIGITS[type_.unit]
        step = 10 ** (9 - digits)
        bound = (2**63 - 1) // 10**digits - 1
        even, near = nanos % step == 0, np.abs(seconds) <= bound
        good = present & valid & even & near
        ticks = np.where(good, seconds, 0) * 10**digits + np.where(good, nanos, 0) // step
        settled = pa.array(ticks, pa.int64(), mask=~good).cast(type_)
        wanted = f"{spelled(type_)} with {digits} digits after the second"
        absent = ~present
        faults = _unless(valid | absent, of_field(self.field.name, not_valid("Timestamp")))
        finer, outside = f"is finer than {wanted}", f"is outside the range of {wanted}"
        faults += _unless(even | absent | ~valid, _wrong(self.field, finer, Code.INEXACT))
        faults += _unless(near | absent | ~valid, _wrong(self.field, outside, Code.OUT_OF_RANGE))
        fitted, of_fit = (
            _converted(settled, self.field) if type_ == self.field.type else _by_rule(settled, self.field, None)
        )
        return fitted, faults + of_fit


@dataclass(frozen=True)
class Duration(FieldPart):
    """In seconds."""

    wire: Wire
    field: Field
    always: bool = False

    def settle(self, array: pa.Array) -> Settled:
        present, seconds, nanos = _seconds(array, self.always)
        one_sign = (np.sign(seconds) * np.sign(nanos) >= 0) & (np.abs(nanos) < _BILLION)
        valid = (seconds >= -_LONGEST) & (seconds <= _LONGEST) & one_sign
        good = present & valid
        whole = pa.array(np.where(good, seconds, 0), pa.int64()).cast(pa.decimal128(28, 9))
        parts = pa.array(np.where(good, nanos, 0), pa.int64()).cast(pa.decimal128(19, 0))
        parts = pc.multiply(parts, pa.scalar(Decimal((0, (1,), -9)), pa.decimal128(9, 9)))
        exact = pc.if_else(pa.array(good), pc.add(whole, parts), pa.scalar(None, pa.decimal128(30, 9)))
        fitted, faults = _converted(exact, self.field)
        return fitted, _unless(valid | ~present, of_field(self.field.name, not_valid("Duration"))) + faults


@dataclass(frozen=True)
class Wrapper(FieldPart):
    """A message around one value, which may therefore be absent."""

    wire: Wire
    value: FieldPart
    always: bool = False

    def settle(self, array: pa.Array) -> Settled:
        present = _present(array, self.always)
        values, faults = self.value.settle(array.field(self.value.wire.key))
        return pc.if_else(pa.array(present), values, pa.scalar(None, values.type)), _only(faults, present)


@dataclass(frozen=True)
class Struct(FieldPart):
    """A message as a struct. ``children`` and ``paths``: by field of the type."""

    wire: Wire
    type: pa.DataType
    children: tuple[FieldPart, ...]
    paths: tuple[str, ...]
    required: tuple[Wire, ...] = ()
    """What a proto2 message must hold."""
    oneofs: tuple[tuple[Wire, ...], ...] = ()
    always: bool = False

    def settle(self, array: pa.Array) -> Settled:
        present = _present(array, self.always)
        faults = []
        for members in self.oneofs:
            held = sum(mask_of(array.field(each.key).is_valid()).astype(np.int64) for each in members)
            faults += _unless(np.less_equal(held, 1), SEVERAL)
        for each in self.required:
            faults += _unless(mask_of(array.field(each.key).is_valid()), missing(each.name))
        columns = []
        for part, child, path in zip(self.children, self.type, self.paths, strict=True):
            column, found = part.settle(array if isinstance(part, Absent) else array.field(part.wire.key))
            faults += found
            if not child.nullable and column.null_count:
                faults += _unless(mask_of(column.is_valid()), missing(path))
            columns.append(column)
        mask = None if present.all() else pa.array(~present)
        return pa.StructArray.from_arrays(columns, fields=list(self.type), mask=mask), _only(faults, present)


@dataclass(frozen=True)
class List(FieldPart):
    """A repeated field. Without elements it is an empty list, or absent where a list has a fixed number of items."""

    wire: Wire
    type: pa.DataType
    item: FieldPart
    count: int | None = None
    path: str = ""

    def settle(self, array: pa.Array) -> Settled:
        values, faults = self.item.settle(array.values)
        faults, mask = lifted(faults, array), None
        if self.count is not None:
            counts = pc.list_value_length(array).fill_null(0).to_numpy()
            wanted = Reason(f"does not hold {self.count} items", Code.INVALID_VALUE)
            faults += _unless((counts == self.count) | (counts == 0), of_field(self.path, wanted))
            mask = pa.array(counts == 0)
        return pa.ListArray.from_arrays(array.offsets, values, type=self.type, mask=mask), faults


@dataclass(frozen=True)
class Positions(FieldPart):
    """A repeated field as the parts of a tuple. Without elements it is absent."""

    wire: Wire
    type: pa.DataType
    items: tuple[FieldPart, ...]
    path: str

    def settle(self, array: pa.Array) -> Settled:
        counts = pc.list_value_length(array).fill_null(0).to_numpy()
        whole, absent = counts == len(self.items), counts == 0
        wanted = Reason(f"does not hold {len(self.items)} items", Code.INVALID_VALUE)
        faults = _unless(whole | absent, of_field(self.path, wanted))
        rows, first = np.flatnonzero(whole), array.offsets.to_numpy()[:-1][whole]
        place = np.full(len(counts), -1, np.int64)
        place[rows] = np.arange(len(rows))
        spread, columns = pa.array(place, mask=place < 0), []
        for at, each in enumerate(self.items):
            values, found = each.settle(array.values.take(pa.array(first + at)))
            columns.append(values.take(spread))
            for fault in found:
                bad = np.zeros(len(counts), np.bool_)
                bad[rows[fault.rows]] = True
                faults.append(Fault(bad, fault.problem))
        mask = None if whole.all() else pa.array(~whole)
        return pa.StructArray.from_arrays(columns, fields=list(self.type), mask=mask), faults


@dataclass(frozen=True)
class MapPart(FieldPart):
    """The entries of a map. If a key occurs twice, its last entry counts."""

    wire: Wire
    type: pa.DataType
    key: FieldPart
    value: FieldPart
    path: str

    def settle(self, array: pa.Array) -> Settled:
        lists = _last_entries(array, self.key)
        entries, offsets = lists.values, lists.offsets
        keys, faults = self.key.settle(entries.field(self.key.wire.key))
        values, of_values = self.value.settle(entries.field(self.value.wire.key))
        faults += of_values
        if not self.type.item_field.nullable and values.null_count:
            faults += _unless(mask_of(values.is_valid()), missing(f"{self.path}.value"))
        faults = lifted(faults, lists)
        if keys.null_count:  # of rejected rows
            good = mask_of(keys.is_valid())
            offsets = _offsets_of(offsets, good)
            keys, values = keys.filter(pa.array(good)), values.filter(pa.array(good))
        return pa.MapArray.from_arrays(offsets, keys, values, type=self.type), faults


def _as_json(values: Sequence[Any], text: Callable[[Any], str], field: Field, what: str) -> Settled:
    """The JSON of each value. One that has none is a fault."""
    from google.protobuf.json_format import SerializeToJsonError
    from google.protobuf.message import DecodeError

    texts: list[str | None] = [None] * len(values)
    fine = np.ones(len(values), np.bool_)
    for at, value in enumerate(values):
        if value is not None:
            try:
                texts[at] = text(value)
            except (DecodeError, SerializeToJsonError, TypeError, ValueError, OverflowError, RecursionError):
                fine[at] = False
    fitted, faults = _converted(pa.array(texts, pa.string()), field)
    return fitted, _unless(fine, _wrong(field, f"holds a {what} that JSON cannot hold", Code.INVALID_VALUE)) + faults


def _scalar_json(array: pa.Array, field: Field) -> Settled:
    """Numbers, booleans, strings and bytes as JSON. A number of any size may also come as a string."""
    if field.unquoted:
        return _converted(array.cast(pa.string()), field)
    texts = pa.array(json_texts(array), pa.string())
    fine = mask_of(pc.or_(texts.is_valid(), array.is_null()))
    fitted, faults = _converted(texts, field)
    return fitted, _unless(fine, _wrong(field, "holds a number that JSON cannot hold", Code.INVALID_VALUE)) + faults


def _plain(message: Any) -> Any:
    from google.protobuf.json_format import MessageToDict

    return MessageToDict(message, preserving_proto_field_name=True, descriptor_pool=message.DESCRIPTOR.file.pool)


def _dumped(plain: Any) -> str:
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _converted(array: pa.Array, field: Field) -> Settled:
    """Values as the field's type: without loss, or by its rule."""
    if field.rule is None:
        return _strictly(array, field)

    def or_null(given: pa.Array) -> pa.Array:
        values, faults = _strictly(given, Field("", field.type))
        if not faults:
            return values
        return values.take(pa.array(np.arange(len(values)), mask=np.logical_or.reduce([each.rows for each in faults])))

    return _by_rule(array, field, or_null)


def _by_rule(array: pa.Array, field: Field, strictly: Strictly | None) -> Settled:
    assert field.rule is not None
    made = converted(array, field.type, field.rule, strictly)
    faults = made.faults() + unfit_value(made.values, field.type, field)
    return made.values, [Fault(each.rows, each.reason(field.name)) for each in faults]


def _strictly(array: pa.Array, field: Field) -> Settled:
    """Values as the field's type without loss."""
    type_ = field.type
    if pt.is_string(array.type) and pt.is_decimal(type_):
        settled = decimals(matching(array, _NUMBER), type_)
        fits = mask_of(pc.or_(settled.is_valid(), array.is_null()))
        unfit = f"is not a number that fits {spelled(type_)}"
        return settled, _unless(fits, _wrong(field, unfit, Code.OUT_OF_RANGE))
    if is_textual(type_) and pt.is_string(array.type):
        settled, found = settle_value(array, type_, field)
    elif is_textual(type_) and pt.is_integer(array.type):
        ticks = cast_or_null(array, pa.int64())
        settled, found = settle_value(ticks, type_, field)
        too_large = mask_of(pc.and_(ticks.is_null(), array.is_valid()))
        found = [*([Fault(too_large, unfitting(type_))] if too_large.any() else []), *found]
    elif pt.is_integer(array.type) and pt.is_decimal(type_):
        settled, found = fit(array.cast(pa.decimal256(min(20 + type_.scale, 76), type_.scale)), field)
    else:
        settled, found = fit(array, field)
    return settled, [Fault(each.rows, each.reason(field.name)) for each in found]


def _filled(array: pa.Array, zero: Any) -> pa.Array:
    return array.fill_null(pa.scalar(zero, array.type)) if zero is not None and array.null_count else array


def _wrong(field: Field, problem: str, code: Code) -> Reason:
    return of_field(field.name, Reason(problem, code))


def _present(array: pa.Array, always: bool) -> Mask:
    return np.ones(len(array), np.bool_) if always or not array.null_count else mask_of(array.is_valid())


def _seconds(array: pa.Array, always: bool) -> tuple[Mask, Any, Any]:
    """Which rows hold a Timestamp or Duration, and its parts."""
    seconds, nanos = (array.field(at).fill_null(0).to_numpy().astype(np.int64) for at in (0, 1))
    return _present(array, always), seconds, nanos


def _unless(fine: Any, problem: Reason) -> list[Fault]:
    return [] if fine.all() else [Fault(~fine, problem)]


def _only(faults: list[Fault], present: Mask) -> list[Fault]:
    """What is inside an absent message has no fault."""
    return faults if present.all() else [Fault(each.rows & present, each.problem) for each in faults]


def _last_entries(array: pa.Array, key: FieldPart) -> pa.Array:
    """The entries of maps, without those whose key occurs again later in the same map."""
    keys = _filled(array.values.field(key.wire.key), ZEROS[key.wire.type])
    again = repeated(keys, pc.list_parent_indices(array).to_numpy())
    if not len(again):
        return array
    last = np.ones(len(keys), np.bool_)
    last[again] = False
    return pa.ListArray.from_arrays(_offsets_of(array.offsets, last), array.values.filter(pa.array(last)))


def _offsets_of(offsets: pa.Array, kept: Mask) -> pa.Array:
    """The offsets of lists of which only some elements are kept."""
    before = np.concatenate(([0], np.cumsum(kept)))
    return pa.array(before[offsets.to_numpy()], pa.int32())
