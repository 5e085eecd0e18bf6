"""Decodes records whose values are written in another way than their types: `fit`, for some fields or for all.

The format's own decoder reads values as what they are written as. For CSV that is text. For JSON it is a guess, because a
decoder is fast only for the types that it is asked for: a *wire* for each place, chosen by the kinds of values that were seen
there. If no wire takes all of them, records are grouped by what they seem to hold. A record that the guess does not suit is
decoded again, with every value as its JSON text, from which every rule can be decided. So a wrong guess costs time, and never
changes a row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from landonce.protocol.reasons import Reason
from landonce.read.convert.rules import (
    VERSION,
    ConvertedColumn,
    from_integers,
    from_strings,
    from_written,
    is_convertible,
    patched,
)
from landonce.read.formats import Collected, Decoded, Decoder, Format, Indexes, RecordTypes
from landonce.read.formats.json.explain import BEYOND_DOUBLE
from landonce.read.schema.fields import (
    JSON,
    KEY,
    VALUE,
    ConversionRule,
    Field,
    Schema,
    folded,
    inside_path,
    landed,
    parts,
    spelled,
)
from landonce.read.schema.texts import is_textual, true_in
from landonce.read.schema.values import Fault, add_reasons, fit, from_plain, lifted, settle_value, unless

_ROWS = 32_768
_SAMPLE = 256
_MOST_GROUPS = 8
_USELESS = 8
"""If one record of so many is decoded twice, grouping does not help."""


@dataclass(frozen=True)
class Conversions:
    """The rule of each field, by its path: `price`, `items[].price`. None: strict."""

    default: ConversionRule | None = None
    fields: tuple[tuple[str, ConversionRule | None], ...] = ()

    def __bool__(self) -> bool:
        return self.default is not None or any(rule is not None for _, rule in self.fields)

    def of(self, path: str, fold_case: bool = False) -> ConversionRule | None:
        """The rule of the longest path that leads here."""
        here = folded(path, fold_case)
        found = [(len(name), rule) for name, rule in self.fields if _leads_to(folded(name, fold_case), here)]
        return max(found, key=lambda each: each[0])[1] if found else self.default

    def decisive(self) -> tuple[object, ...]:
        """What decides which rows records become, as JSON. Nothing, if everything is strict."""
        if not self:
            return ()
        rules = [("", self.default), *sorted(self.fields, key=lambda each: each[0])]
        words = [(name, rule and (rule.epoch, rule.empty_is_null)) for name, rule in rules]
        return "convert", VERSION, *words

    def inside(self, *places: str) -> Conversions:
        """The same rules, for records that hold rows at these places."""
        rules = (("", self.default), *self.fields)
        named = [(f"{place}.{path}" if path else place, rule) for place in places for path, rule in rules]
        return Conversions(None, tuple(named))

    def converts(self, field: Field, fold_case: bool = False) -> bool:
        """Whether a rule says what becomes of this field's values, apart from those inside it."""
        return is_convertible(field.type) and self.of(field.name, fold_case) is not None

    def mistakes(self, schema: Schema) -> Iterator[str]:
        """What the file says of fields that these records do not have, or cannot have."""
        places = [place for each in schema.fields for place in _places(each)]
        for name, rule in self.fields:
            mine = [type_ for path, type_ in places if _leads_to(*(folded(x, schema.fold_case) for x in (name, path)))]
            if not mine:
                yield f"there is no field {name!r}"
            elif rule is not None and rule.epoch is not None and not any(map(pt.is_temporal, mine)):
                yield f"field {name!r} holds no times, so that it has no `epoch`"


STRICT = Conversions()
Leaves = Mapping[str, tuple[pa.DataType, ConversionRule]]
"""The places that are converted, by path."""


def _leads_to(name: str, path: str) -> bool:
    return path == name or path.startswith((f"{name}.", f"{name}[]"))


def _parts(field: Field) -> list[tuple[str, pa.DataType]]:
    """The field and every part of it, by its path."""
    return list(parts(field.type, field.name, of_map="[]"))


def _places(field: Field) -> list[tuple[str, pa.DataType]]:
    """Every place of a field that holds a value of its own."""
    return [(path, type_) for path, type_ in _parts(field) if not pt.is_nested(type_)]


def _ruled(limits: Field, type_: pa.DataType, path: str, leaves: Leaves) -> Field:
    """The same limits, with the rule of every place."""
    if pt.is_list(type_):
        return _ruled(limits, type_.value_type, f"{path}[]", leaves)
    if pt.is_map(type_):
        value = _ruled(replace(limits.inside(VALUE), name=VALUE), type_.item_type, f"{path}[]", leaves)
        return replace(limits, inner=(replace(limits.inside(KEY), name=KEY), value))
    if pt.is_struct(type_):
        parts = [(replace(limits.inside(each.name), name=each.name), each) for each in type_]
        return replace(
            limits, inner=tuple(_ruled(part, each.type, f"{path}.{each.name}", leaves) for part, each in parts)
        )
    return replace(limits, rule=leaves[path][1], scale=None) if path in leaves else limits


def fitted(format_: Format, conversions: Conversions) -> Format:
    """The format with these conversions, if there are any."""
    return Fitted(format_, conversions) if conversions else format_


@dataclass(frozen=True)
class Fitted(Format):
    """Another format, with conversions."""

    inner: Format
    conversions: Conversions

    def decoder(self, schema: Schema, *, max_record_bytes: int) -> Decoder:
        leaves = {
            path: (type_, rule)
            for field in schema.fields
            for path, type_ in _places(field)
            if is_convertible(type_) and (rule := self.conversions.of(path, schema.fold_case)) is not None
            if not (self.inner.written == pa.string() and path != field.name)  # JSON in a line of text is strict
        }
        if not leaves:
            return self.inner.decoder(schema, max_record_bytes=max_record_bytes)
        if self.inner.written is None:
            fields = tuple(_ruled(each, each.type, each.name, leaves) for each in schema.fields)
            return self.inner.decoder(replace(schema, fields=fields), max_record_bytes=max_record_bytes)
        return FitDecoder(self.inner, schema, leaves, max_record_bytes)

    def decisive(self) -> tuple[object, ...]:
        return *self.inner.decisive(), *self.conversions.decisive()

    @property
    def has_types(self) -> bool:
        return self.inner.has_types

    def types_of(self, values: pa.BinaryArray) -> RecordTypes:
        return self.inner.types_of(values)


class ReadAs(Enum):
    """As what a place is read."""

    OWN = "its own type"
    STRING = "a string"
    INTEGER = "an integer"
    WRITTEN = "JSON text"
    LINE = "the text of a line"


class JsonKind(Enum):
    """What a JSON value is."""

    STRING = "a string"
    EMPTY = "an empty string that means null"
    INTEGER = "an integer"
    ZERO = "an integer, and a string is wanted: 0 or -0"
    BOOLEAN = "a boolean"
    CONTAINER = "an object or an array"
    FRACTION = "a number with a point or an exponent"


Wires = Mapping[str, ReadAs]
_KINDS = list(JsonKind)
_LOOKS = {
    JsonKind.EMPTY: '""',
    JsonKind.STRING: '"',
    JsonKind.ZERO: r"-?0\s*[],}]",
    JsonKind.BOOLEAN: "[tf]",
    JsonKind.CONTAINER: r"[{\[]",
    JsonKind.FRACTION: r"-?[0-9]+[.eE]",
    JsonKind.INTEGER: "[-0-9]",
}
"""How each kind begins, after its colon. The first that matches counts."""


class FitDecoder:
    """Decodes records to one schema; keep one per worker, since it learns how a topic writes its values."""

    def __init__(self, format_: Format, schema: Schema, leaves: Leaves, max_record_bytes: int) -> None:
        self._format, self._schema, self._limit = format_, schema, max_record_bytes
        self._leaves = leaves
        self._seen: dict[str, set[JsonKind]] = {path: set() for path in self._leaves}
        self._sampled = False
        self._grouping = True
        self._decoders: dict[tuple[ReadAs, ...], Decoder] = {}
        self._exact: Wires = dict.fromkeys(leaves, ReadAs.WRITTEN if format_.written == JSON else ReadAs.LINE)
        self._decoder(self._exact)  # raises what can be refused now
        self._words = {
            f"field {path!r} should be {spelled(_loose(type_, path, self._leaves, self._exact))} ": (
                f"field {path!r} should be {spelled(type_)} "
            )
            for field in schema.fields
            for path, type_ in _parts(field)
            if pt.is_nested(type_)
        }

    def decode(self, values: pa.BinaryArray) -> Decoded:
        found = Collected(self._schema.arrow)
        guess = self._format.written == JSON
        start = 0
        while start < len(values):
            count = _SAMPLE if guess and not self._sampled else _ROWS
            rows = np.arange(start, min(start + count, len(values)), dtype=np.int64)
            left = self._guessed(found, rows, values) if self._sampled else rows
            if len(left):
                self._read(found, left, values, self._exact, learn=guess)
            start += count
        return found.result()

    def _guessed(self, found: Collected, rows: Indexes, values: pa.BinaryArray) -> Indexes:
        """Decodes the records that suit a guess, and returns the others."""
        left = []
        for wires, members in self._groups(values.slice(int(rows[0]), len(rows))):
            mine = rows[members]
            left.append(self._read(found, mine, values, wires) if wires is not None else mine)
        again = np.sort(np.concatenate(left))
        if len(left) > 1 and len(again) * _USELESS > len(rows):
            self._grouping = False
        return again

    def _read(
        self, found: Collected, rows: Indexes, values: pa.BinaryArray, wires: Wires, *, learn: bool = False
    ) -> Indexes:
        """Decodes these records. What does not suit a guess is returned; what is not exact, rejected."""
        refused = self._tried(found, rows, values, wires, learn=learn)
        if wires is self._exact:
            for at, reason in refused.items():  # in the words of the table: the decoder was asked for other types
                words = ((asked, own) for asked, own in self._words.items() if reason.startswith(asked))
                asked, own = next(words, ("", ""))
                found.reject(int(rows[at]), reason.reworded(own + reason.removeprefix(asked)) if asked else reason)
            return rows[:0]
        return rows[list(refused)]

    def _tried(
        self, found: Collected, rows: Indexes, values: pa.BinaryArray, wires: Wires, *, learn: bool = False
    ) -> dict[int, Reason]:
        """Decodes these records in one way, and keeps what it takes. Returns what the format or a rule refuses."""
        whole = int(rows[-1]) - int(rows[0]) + 1 == len(rows)
        mine = values.slice(int(rows[0]), len(rows)) if whole else values.take(pa.array(rows))
        decoded = self._decoder(wires).decode(mine)
        columns, reasons = self._converted(decoded.table, wires, learn=learn)
        good = np.ones(len(decoded.kept), np.bool_)
        good[list(reasons)] = False
        if reasons:
            columns = [each.filter(pa.array(good)) for each in columns]
        found.keep(rows[decoded.kept[good]], columns)
        return dict(decoded.rejects) | {int(decoded.kept[at]): reason for at, reason in reasons.items()}

    def _groups(self, values: pa.BinaryArray) -> Iterator[tuple[Wires | None, Indexes]]:
        """Records that are read with the same wires. None: records of too many sorts."""
        wires = {path: self._wire(path, self._seen[path]) for path in self._leaves}
        mixed = [path for path, wire in wires.items() if wire is ReadAs.WRITTEN and len(self._seen[path]) > 1]
        if not mixed or not self._grouping:
            yield wires, np.arange(len(values), dtype=np.int64)
            return
        seem = np.column_stack([self._kinds_by_look(path, values) for path in mixed])
        sorts, sort_of = np.unique(seem, axis=0, return_inverse=True)
        counts = np.bincount(sort_of.reshape(-1))
        for at, sort in enumerate(sorts):
            own = {path: self._wire(path, {_KINDS[kind]}) for path, kind in zip(mixed, sort, strict=True)}
            few = np.count_nonzero(counts > counts[at]) >= _MOST_GROUPS
            yield None if few else {**wires, **own}, np.flatnonzero(sort_of.reshape(-1) == at)

    def _kinds_by_look(self, path: str, values: pa.BinaryArray) -> Indexes:
        """For each record the number of a kind that was seen at this place. It may be wrong: a name may occur twice in a record."""
        name, _, last = path.rpartition(".")
        name = (last or name).rstrip("[]")
        before = rf"{re.escape(json.dumps(name, ensure_ascii=False))}\s*:\s*" + r"\[\s*" * path.endswith("[]")
        *tested, likely = [kind for kind in _LOOKS if kind in self._seen[path]]
        found = np.full(len(values), _KINDS.index(likely), np.int64)
        for kind in reversed(tested):
            looks = pc.match_substring_regex(values, pattern=before + _LOOKS[kind], ignore_case=self._schema.fold_case)
            found[true_in(looks)] = _KINDS.index(kind)
        return found

    def _decoder(self, wires: Wires) -> Decoder:
        key = tuple(wires.values())
        if key not in self._decoders:
            fields = tuple(self._asked(each, wires) for each in self._schema.fields)
            asked = replace(self._schema, fields=fields)
            self._decoders[key] = self._format.decoder(asked, max_record_bytes=self._limit)
        return self._decoders[key]

    # What the format's decoder is asked for.

    def _asked(self, field: Field, wires: Wires) -> Field:
        if self._is_own(field, wires):
            strict = not any(path in wires for path, _ in _places(field))
            return field if strict else replace(field, scale=None)
        type_ = _loose(field.type, field.name, self._leaves, wires)
        return Field(field.name, type_, aliases=field.aliases, inner_aliases=field.inner_aliases, rule=ConversionRule())

    @staticmethod
    def _is_own(field: Field, wires: Wires) -> bool:
        """Whether the format's decoder makes the field as it is."""
        return all(wires.get(path, ReadAs.OWN) is ReadAs.OWN for path, _ in _places(field))

    # What becomes of its columns.

    def _converted(
        self, table: pa.Table, wires: Wires, *, learn: bool = False
    ) -> tuple[list[pa.Array], dict[int, Reason]]:
        columns, reasons = [], dict[int, Reason]()
        for field, chunked in zip(self._schema.fields, table.columns, strict=True):
            column = chunked.combine_chunks()
            if not self._is_own(field, wires):
                column, faults = self._place(column, field.type, field.name, field, wires, learn)
                column, limits = fit(column, field)
                add_reasons(reasons, (*faults, *limits), field.name)
            columns.append(column)
        self._sampled = self._sampled or learn
        return columns, reasons

    def _place(
        self, array: pa.Array, type_: pa.DataType, path: str, field: Field, wires: Wires, learn: bool
    ) -> tuple[pa.Array, list[Fault]]:
        mask = array.is_null() if array.null_count and pt.is_nested(type_) else None
        if pt.is_struct(type_):
            columns, faults = [], list[Fault]()
            for at, child in enumerate(type_):
                where = f".{child.name}"
                limits = field.inside(child.name)
                column, found = self._place(array.field(at), child.type, path + where, limits, wires, learn)
                columns.append(column)
                faults += [replace(each, where=where + each.where) for each in found]
            return pa.StructArray.from_arrays(columns, fields=list(landed(type_)), mask=mask), faults
        if pt.is_list(type_) or pt.is_map(type_):
            is_map = pt.is_map(type_)
            inner = type_.item_type if is_map else type_.value_type
            inside = array.items if is_map else array.values
            limits = field.inside(VALUE) if is_map else field
            column, faults = self._place(inside, inner, f"{path}[]", limits, wires, learn)
            listed = pa.ListArray.from_arrays(array.offsets, inside)
            faults = lifted([replace(each, where="[]" + each.where) for each in faults], listed)
            if is_map:
                return pa.MapArray.from_arrays(array.offsets, array.keys, column, type=landed(type_), mask=mask), faults
            return pa.ListArray.from_arrays(array.offsets, column, type=landed(type_), mask=mask), faults
        if path not in self._leaves and type_ != JSON:
            return array, []
        if (
            path not in self._leaves
        ):  # JSON text beside values that are converted: no rule allows it to be a number that no double holds
            number = pc.match_substring_regex(array, pattern=r"\A-?[0-9]")
            large = pc.is_inf(pc.if_else(number, array, pa.scalar(None, pa.string())).cast(pa.float64()))
            return settle_value(array, pa.string(), field)[0], unless(pc.invert(large), BEYOND_DOUBLE)
        _, rule = self._leaves[path]
        found_values = _values(array, type_, rule, wires[path])
        if learn:
            good = np.ones(len(array), np.bool_)
            good[list(found_values.problems)] = False
            self._seen[path] |= set(kinds(array.filter(pa.array(good)), type_, rule))
        return found_values.values, found_values.faults()

    def _wire(self, path: str, seen: set[JsonKind]) -> ReadAs:
        """The first that takes these kinds of values at this place."""
        type_, rule = self._leaves[path]
        takes: dict[ReadAs, set[JsonKind]] = {
            ReadAs.OWN: _own_kinds(type_),
            ReadAs.STRING: {JsonKind.STRING, JsonKind.EMPTY},
        }
        if (pt.is_string(type_) or pt.is_binary(type_)) and rule.empty_is_null:
            del takes[ReadAs.OWN]
        if pt.is_temporal(type_) or pt.is_boolean(type_) or pt.is_string(type_):
            takes[ReadAs.INTEGER] = {JsonKind.INTEGER}
        return next((wire for wire, taken in takes.items() if seen <= taken), ReadAs.WRITTEN)


def _loose(type_: pa.DataType, path: str, leaves: Mapping[str, object], wires: Wires) -> pa.DataType:
    """The type with every place as its wire. Nothing in it is required: limits are checked after the conversion."""

    def inner(each: pa.Field) -> pa.DataType:
        return _loose(each.type, inside_path(type_, path, each.name, "[]"), leaves, wires)

    if pt.is_struct(type_):
        return pa.struct([(each.name, inner(each)) for each in type_])
    if pt.is_list(type_):
        return pa.list_(inner(type_.value_field))
    if pt.is_map(type_):
        return pa.map_(type_.key_type, inner(type_.item_field))
    asked = {ReadAs.STRING: pa.string(), ReadAs.LINE: pa.string(), ReadAs.INTEGER: pa.int64(), ReadAs.WRITTEN: JSON}
    return asked.get(wires[path], type_) if path in leaves else type_


def _own_kinds(type_: pa.DataType) -> set[JsonKind]:
    """What a strict decoder of JSON reads as this type."""
    if pt.is_string(type_) or is_textual(type_):
        return {JsonKind.STRING}
    if pt.is_boolean(type_):
        return {JsonKind.BOOLEAN}
    if pt.is_integer(type_):
        return {JsonKind.INTEGER}
    number = {JsonKind.INTEGER, JsonKind.FRACTION}
    return number if pt.is_floating(type_) else {*number, JsonKind.STRING}


def _values(array: pa.Array, type_: pa.DataType, rule: ConversionRule, wire: ReadAs) -> ConvertedColumn:
    if wire is ReadAs.WRITTEN:
        return from_written(array, type_, rule)
    if wire is ReadAs.STRING:
        return from_strings(array, type_, rule)
    if wire is ReadAs.INTEGER:
        return from_integers(array, type_, rule)
    return from_line(array, type_, rule) if wire is ReadAs.LINE else ConvertedColumn(array, {})


def from_line(text: pa.StringArray, type_: pa.DataType, rule: ConversionRule) -> ConvertedColumn:
    """From CSV: as `strict` does, and by the rules for strings where that fails."""
    if rule.empty_is_null:
        text = pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)
    values, faults = from_plain(text, Field("value", type_))
    if not faults:
        return ConvertedColumn(values, {})
    left = np.flatnonzero(np.logical_or.reduce([each.rows for each in faults]))
    return patched(values, left, from_strings(text.take(pa.array(left)), type_, rule))


def kinds(text: pa.StringArray, type_: pa.DataType, rule: ConversionRule) -> Iterator[JsonKind]:
    """The kinds of these JSON texts."""
    text = text.drop_null()
    first = {str(each) for each in pc.unique(pc.utf8_slice_codeunits(text, 0, 1)).to_pylist()}
    if '"' in first:
        empty = pc.equal(text, '""')
        if rule.empty_is_null and pc.any(empty).as_py():
            yield JsonKind.EMPTY
        if not rule.empty_is_null or pc.any(pc.and_(pc.starts_with(text, '"'), pc.invert(empty))).as_py():
            yield JsonKind.STRING
    if first & set("tf"):
        yield JsonKind.BOOLEAN
    if first & set("{["):
        yield JsonKind.CONTAINER
    if first & set("-0123456789"):
        zero = r"\A-?0\z" if pt.is_string(type_) else r"\z\A"
        for kind, look in (
            (JsonKind.ZERO, zero),
            (JsonKind.INTEGER, r"\A-?(?:[1-9][0-9]*)\z" if pt.is_string(type_) else r"\A-?[0-9]+\z"),
            (JsonKind.FRACTION, r"\A-?[0-9]+[.eE]"),
        ):
            if pc.any(pc.match_substring_regex(text, pattern=look)).as_py():
                yield kind
