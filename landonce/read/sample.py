"""A schema from the first records of a topic: what is in each place, how often, and the type that holds all of it.

If a table is to be created and no schema is declared, landonce infers one from this sample, once: afterwards the table
itself defines its columns. Every field may be missing, because a sample proves nothing about later records.

    seen in a place                                  its type
    ───────────────────────────────────────────────  ──────────────────────────────────────────────────────────────
    booleans; integers; numbers with a fraction too  BOOLEAN; BIGINT; DOUBLE
    strings; all of them dates, or times             STRING; DATE, or TIMESTAMP (without a zone it means UTC)
    arrays                                           ARRAY of what their elements hold
    objects                                          STRUCT of what their fields hold
    objects with ever new keys and values alike      MAP<STRING, …>
    nothing, or only empty objects                   JSON
    different kinds, and what no type holds exactly  JSON
    what the target has no column for                STRING for a time, JSON for the rest

Nothing is refused because records do not agree: `JSON` keeps the text of any value. `Inferred.words` says for every
place what was seen and what became of it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from landonce.errors import NothingToInfer
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.source import SourceView, everything
from landonce.read.formats.json.decode import objects_in
from landonce.read.kafka.records import read
from landonce.read.schema.ddl import UnfitFields, spelled_schema
from landonce.read.schema.fields import JSON, Field, Schema, spelled, with_text
from landonce.read.schema.texts import from_text

_PER_PARTITION, _MOST_BYTES = 1_000, 256 * 2**20
_SHOWN = 200
"""How many places are listed."""
_DEEPEST = 32
_OBJECT, _ARRAY, _STRING, _FRACTION = "an object", "an array", "a string", "a number with a fraction"
_INTEGER, _BOOLEAN, _NULL = "an integer", "a boolean", "null"
_KINDS = ((bool, _BOOLEAN), (int, _INTEGER), (float, _FRACTION), (str, _STRING), (dict, _OBJECT), (list, _ARRAY))
_MOMENT = pa.timestamp("us", tz="UTC")
_IS_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_IS_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d(:?\d\d)?)?", re.ASCII)
_YEARS = ("1900", "2262")
"""From the first up to the last: what every target holds, to the nanosecond too."""
_MOST_DIGITS = 40
_NUMBERED = re.compile(r"\d[\w:.\-]*", re.ASCII)
"""A key that is a number, a date or the like, and no name of a field."""
_MANY_KEYS = 12
_SHARED = 3
"""Objects are maps if they have many keys, of which one in so many, or fewer, is in each object."""


@dataclass(frozen=True)
class SampledRecord:
    """One record of the sample."""

    partition: Partition
    offset: int
    value: bytes

    def __str__(self) -> str:
        return f"{self.partition} at offset {self.offset}"


@dataclass
class _Seen:
    """What was seen in one place: a field, the element of an array, the value of a map."""

    kinds: Counter[str] = field(default_factory=Counter)
    first: dict[str, SampledRecord] = field(default_factory=dict)
    fields: dict[str, _Seen] = field(default_factory=dict)
    """Of its objects."""
    elements: list[_Seen] = field(default_factory=list)
    """Of its arrays: none or one."""
    integers: tuple[int, int] = (0, 0)
    """The least and the greatest."""
    inexact: bool = False
    """Whether a double holds not every integer."""
    strings: set[str] | None = field(default_factory=set)
    """All of them, as long as they look like dates and times."""
    too_deep: bool = False

    def add(self, value: Any, record: SampledRecord, depth: int = 0) -> None:
        kind = next((kind for type_, kind in _KINDS if isinstance(value, type_)), _NULL)
        self.kinds[kind] += 1
        self.first.setdefault(kind, record)
        if kind in (_OBJECT, _ARRAY) and depth >= _DEEPEST:
            self.too_deep = True
        elif kind == _OBJECT:
            for name, each in value.items():
                self.fields.setdefault(name, _Seen()).add(each, record, depth + 1)
        elif kind == _ARRAY:
            for each in value:
                self.element().add(each, record, depth + 1)
        elif kind == _INTEGER:
            self.integers = min(self.integers[0], value), max(self.integers[1], value)
            self.inexact = self.inexact or int(float(value)) != value
        elif kind == _STRING and self.strings is not None:
            is_time = _IS_DATE.fullmatch(value) or _IS_MOMENT.fullmatch(value)
            if is_time and _YEARS[0] <= value[:4] < _YEARS[1]:
                self.strings.add(value)
            else:
                self.strings = None

    def element(self) -> _Seen:
        if not self.elements:
            self.elements.append(_Seen())
        return self.elements[0]

    @property
    def values(self) -> int:
        """How many values there were that are not null."""
        return self.kinds.total() - self.kinds[_NULL]

    def values_of_fields(self) -> _Seen:
        """All fields of its objects as one place."""
        return _merged(self.fields.values())

    def words(self, asked: int, *, where: bool) -> str:
        """What was seen how often, of so many times that it was asked for."""
        counts = [(kind, count) for kind, count in self.kinds.most_common() if kind != _NULL]
        listed = [f"{kind} {count:,}×" + (f" (first {self.first[kind]})" if where else "") for kind, count in counts]
        absent = asked - self.values
        return ", ".join([*listed, *([f"absent or null {absent:,}×"] if absent > 0 else [])]) or "never seen"


def _merged(places: Iterable[_Seen]) -> _Seen:
    found = _Seen()
    for each in places:
        found.kinds += each.kinds
        found.first = {**each.first, **found.first}
        for name, inner in each.fields.items():
            known = found.fields.get(name)
            found.fields[name] = inner if known is None else _merged((known, inner))
        if each.elements:
            found.elements = [_merged((*found.elements, *each.elements))]
        low, high = each.integers
        found.integers = min(found.integers[0], low), max(found.integers[1], high)
        found.inexact = found.inexact or each.inexact
        found.strings = None if found.strings is None or each.strings is None else found.strings | each.strings
        found.too_deep = found.too_deep or each.too_deep
    return found


class _Inference:
    """The types of all places, and the reasons that a reader may ask for."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}

    def type(self, seen: _Seen, path: str) -> pa.DataType:
        kinds = {_FRACTION if kind == _INTEGER and seen.kinds[_FRACTION] else kind for kind in seen.kinds} - {_NULL}
        if not kinds:
            return self._json(path, "no value was seen yet")
        if len(kinds) > 1:
            return self._json(path, "values of different kinds")
        (kind,) = kinds
        if kind == _OBJECT:
            return self._object(seen, path)
        if kind == _ARRAY:
            if seen.too_deep:
                return self._json(path, f"nested more than {_DEEPEST} levels deep")
            return pa.list_(self.type(seen.element(), f"{path}[]"))
        if kind == _INTEGER:
            low, high = seen.integers
            fits = low >= -(2**63) and high < 2**63
            return pa.int64() if fits else self._json(path, "integers that a BIGINT cannot hold")
        if kind == _FRACTION:
            exact = not seen.inexact
            return pa.float64() if exact else self._json(path, "integers that a DOUBLE cannot hold, among fractions")
        return pa.bool_() if kind == _BOOLEAN else _type_of_strings(seen.strings)

    def _json(self, path: str, why: str) -> pa.DataType:
        self.reasons[path] = f"kept as JSON text: {why}"
        return JSON

    def _object(self, seen: _Seen, path: str) -> pa.DataType:
        names = list(seen.fields)
        if seen.too_deep:
            return self._json(path, f"nested more than {_DEEPEST} levels deep")
        if not names:
            return self._json(path, "only empty objects were seen")
        numbered = len(names) > 1 and all(map(_NUMBERED.fullmatch, names))
        given = sum(each.kinds.total() for each in seen.fields.values())
        shared = given * _SHARED > len(names) * seen.kinds[_OBJECT]
        if numbered or (len(names) >= _MANY_KEYS and not shared):  # keys are values rather than names of fields
            value = self.type(seen.values_of_fields(), f"{path}.*")
            self.reasons.pop(f"{path}.*", None)
            if value == JSON:
                return self._json(path, f"{len(names):,} different keys, with values of different kinds")
            self.reasons[path] = f"a map: {len(names):,} different keys"
            return pa.map_(pa.string(), value)
        if len({name.lower() for name in names}) < len(names) or not all(name.strip() for name in names):
            return self._json(path, "its names are empty, or differ only in upper and lower case")
        return pa.struct([(name, self.type(each, f"{path}.{name}")) for name, each in seen.fields.items()])


def _type_of_strings(strings: set[str] | None) -> pa.DataType:
    if not strings:
        return pa.string()
    dates = {_IS_DATE.fullmatch(each) is not None for each in strings}
    if len(dates) > 1:
        return pa.string()
    type_ = pa.date32() if dates == {True} else _MOMENT
    return pa.string() if from_text(pa.array(sorted(strings)), type_).null_count else type_


@dataclass(frozen=True)
class Inferred:
    """The columns, and in words what they were inferred from; no words if the format itself says what records hold."""

    schema: Schema
    words: str = ""


@dataclass(frozen=True)
class Sample:
    """Some records that are JSON objects."""

    records: tuple[SampledRecord, ...]

    def columns(
        self, usable: Callable[[Schema], object], tidy: Callable[[Schema], Schema] = lambda inferred: inferred
    ) -> Inferred:
        """The fields of these records, as `tidy` leaves them. A place that `usable` refuses by `UnfitFields` is kept as text."""
        seen, inference = _Seen(), _Inference()
        for record in self.records:
            value = _parsed(record.value)
            if value is not None:
                seen.add(value, record)
        fields = [Field(name, inference.type(each, name)) for name, each in seen.fields.items() if name.strip()]
        if not fields:
            raise _nothing()
        made, kept = usable_columns(Schema(tuple(fields)), usable, tidy)
        return Inferred(made, self._words(made, seen, {**inference.reasons, **kept}))

    def _words(self, schema: Schema, seen: _Seen, reasons: Mapping[str, str]) -> str:
        lines = [
            line
            for each in schema.fields
            if each.name in seen.fields
            for line in _lines(each.type, each.name, seen.fields[each.name], seen.kinds[_OBJECT], reasons)
        ]
        more = [f"  … and {len(lines) - _SHOWN:,} more"] if len(lines) > _SHOWN else []
        listed = "\n".join([*lines[:_SHOWN], *more])
        pasted = json.dumps(spelled_schema(schema), ensure_ascii=False)
        return (
            f"the columns are those of the first {len(self.records):,} records:\n{listed}\n"
            f"To choose others, declare under `source: kafka:`, for example:\n  schema: {pasted}"
        )


def usable_columns(
    schema: Schema, usable: Callable[[Schema], object], tidy: Callable[[Schema], Schema]
) -> tuple[Schema, dict[str, str]]:
    """The fields as `tidy` leaves them, with text at the places that `usable` refuses by `UnfitFields`; and why, by path."""
    reasons: dict[str, str] = {}
    while True:
        try:
            made = tidy(schema)
            usable(made)
            return made, reasons
        except UnfitFields as unfit:
            kept = with_text(schema, {path for path, _ in unfit.faults})
            if kept == schema:
                raise
            schema = kept
            reasons |= {path: f"kept as text: {why}" for path, why in unfit.faults}


def _lines(type_: pa.DataType, path: str, seen: _Seen, asked: int, reasons: Mapping[str, str]) -> Iterator[str]:
    """A line for the place, and for every place inside of it."""
    reason = reasons.get(path, "")
    said = seen.words(asked, where=type_ == JSON and seen.values > 0)
    word = {"list": "ARRAY", "struct": "STRUCT"}.get(str(type_).partition("<")[0]) or spelled(type_)
    yield f"  {path} {word}: {said}" + (f"; {reason}" if reason else "")
    if pt.is_list(type_):
        element = seen.element()
        yield from _lines(type_.value_type, f"{path}[]", element, element.kinds.total(), reasons)
    elif pt.is_struct(type_):
        for each in type_:
            yield from _lines(each.type, f"{path}.{each.name}", seen.fields[each.name], seen.kinds[_OBJECT], reasons)
    elif pt.is_map(type_) and pt.is_nested(type_.item_type):
        value = seen.values_of_fields()
        yield from _lines(type_.item_type, f"{path}.*", value, value.kinds.total(), reasons)


def of_sample(values: list[bytes]) -> Schema:
    """The fields of these records. Those that are no JSON objects are left out."""
    nowhere = Partition("", 0)
    return (
        sample_of(SampledRecord(nowhere, at, value) for at, value in enumerate(values)).columns(lambda _: None).schema
    )


def first_records(view: SourceView, options: Mapping[str, Any]) -> list[SampledRecord]:
    """The first records of each partition that have a value, whatever they hold."""
    ranges = tuple(
        Range(each.partition, each.first, min(each.end, each.first + _PER_PARTITION)) for each in everything(view)
    )
    records: list[SampledRecord] = []
    size = 0
    for found in read(ranges, options) if ranges else ():
        pairs = zip(found.offsets.to_pylist(), found.values.to_pylist(), strict=True)
        records += [SampledRecord(found.partition, offset, value) for offset, value in pairs if value]
        size += found.values.nbytes
        if size > _MOST_BYTES:  # of many partitions, or of large records
            break
    return sorted(records, key=lambda each: (each.partition, each.offset))


def sample_of(records: Iterable[SampledRecord]) -> Sample:
    """These records, without those that no schema could decode."""
    listed = list(records)
    return Sample(tuple(listed[at] for at in objects_in(pa.array([each.value for each in listed], pa.binary()))))


def _parsed(value: bytes) -> dict[str, Any] | None:
    """The record; None if the standard library cannot read it, or it is no object."""
    try:
        found = json.loads(value, parse_int=_integer, parse_constant=_refused)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _integer(literal: str) -> int:
    """Python limits the digits of an integer, and a float its size."""
    return int(literal) if len(literal) <= _MOST_DIGITS else 10**_MOST_DIGITS + 1


def _refused(constant: str) -> None:
    raise ValueError(constant)


def _nothing() -> NothingToInfer:
    return NothingToInfer(
        "no schema is declared, the table is to be created, and the topic holds no JSON object to infer one from.",
        safe="Nothing was created.",
        command='declare `source.kafka.schema` in {file}, for example: schema: "id BIGINT NOT NULL, name STRING"',
    )
