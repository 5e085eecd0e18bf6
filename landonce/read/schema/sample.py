"""What the first records of a topic hold, place by place: the kinds of values, how often, and first seen where.

If a table is to be created and no schema is declared, landonce infers one from this sample, once: afterwards the table
itself defines its columns. Every field may be missing, because a sample proves nothing about later records. If landonce
cannot infer a schema, the error lists every place that prevents it, and ends with a schema to paste.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.json as pj
import pyarrow.types as pt

from landonce.errors import ConfigError, NothingToInfer
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.source import SourceView, everything
from landonce.read.kafka.records import read
from landonce.read.schema.ddl import UnfitFields, paste
from landonce.read.schema.fields import Field, Schema


def of_sample(values: list[bytes]) -> Schema:
    """The fields of these records. Invalid records are left out."""
    found = agreed([value for value in values if readable(value)])
    if found is None:
        raise ConfigError("the records do not agree on the types of their fields.", safe="Nothing was created.")
    return found


def agreed(values: list[bytes]) -> Schema | None:
    """The fields of these records, all of them readable; None if they do not agree on their types."""
    if not values:
        raise NothingToInfer(
            "no schema is declared, the table is to be created, and the topic holds no JSON object to infer one from.",
            safe="Nothing was created.",
            command='declare `source.kafka.schema` in {file}, for example: schema: "id BIGINT NOT NULL, name STRING"',
        )
    table = _read(values)
    if table is None:
        return None
    fields = [(each.name, _landing(each.type)) for each in table.schema]
    known = tuple(Field(name, type_) for name, type_ in fields if type_ is not None)
    return Schema(known) if known else agreed([])


def readable(value: bytes) -> bool:
    """Whether a schema can be inferred from this record."""
    return _read([value]) is not None


def _read(values: list[bytes]) -> pa.Table | None:
    joined = b"\n".join(values)
    try:
        return pj.read_json(
            pa.BufferReader(joined), read_options=pj.ReadOptions(use_threads=False, block_size=len(joined) + 1)
        )
    except pa.ArrowInvalid:
        return None


def _landing(type_: pa.DataType) -> pa.DataType | None:
    """The column type for this inferred type. An object that was always empty gets no column."""
    if pt.is_list(type_):
        inner = _landing(type_.value_type)
        return pa.list_(inner) if inner is not None else None
    if pt.is_struct(type_):
        inside = [(child, _landing(child.type)) for child in type_]
        known = [child.with_type(inner) for child, inner in inside if inner is not None]
        return pa.struct(known) if known else None
    if pt.is_timestamp(type_):
        return pa.timestamp("us", tz="UTC")
    if pt.is_null(type_):
        return pa.string()
    return type_


_PER_PARTITION = 1_000
_SHOWN = 50
"""How many places an error lists."""
_NUMBERS = {"an integer", "a number with a fraction"}
_ORDER = ("an object", "an array", "a string", "a number with a fraction", "an integer", "a boolean")
_ABSENT = "absent or null"


@dataclass(frozen=True)
class Record:
    """One record of the sample."""

    partition: Partition
    offset: int
    value: bytes

    def __str__(self) -> str:
        return f"{self.partition} at offset {self.offset}"


@dataclass
class _Place:
    """A field, or the element of an array: the kinds of values that were seen there."""

    kinds: Counter[str] = field(default_factory=Counter)
    """In how many records."""
    first: dict[str, Record] = field(default_factory=dict)

    def saw(self, kind: str, record: Record) -> None:
        self.kinds[kind] += 1
        self.first.setdefault(kind, record)

    @property
    def kind(self) -> str:
        """What most records hold. Integers among fractions are fractions."""
        counted = self.kinds.copy()
        if counted.keys() >= _NUMBERS:
            counted["a number with a fraction"] += counted.pop("an integer")
        return min(
            (name for name in counted if name in _ORDER),
            key=lambda name: (-counted[name], _ORDER.index(name)),
            default="",
        )

    @property
    def at_odds(self) -> bool:
        """Whether no single type holds all of its values."""
        held = {"a number" if each in _NUMBERS else each for each in self.kinds if each in _ORDER}
        return len(held) > 1

    def __str__(self) -> str:
        return "; ".join(
            f"{kind} in {records:,} (first {self.first[kind]})" for kind, records in self.kinds.most_common()
        )


@dataclass(frozen=True)
class Sample:
    """Some records that are JSON objects."""

    records: tuple[Record, ...]

    def columns(self, usable: Callable[[Schema], object]) -> Schema:
        """The fields of these records if they agree and `usable` raises nothing. Otherwise one error lists all."""
        found = agreed([each.value for each in self.records])
        if found is None:
            places = self._places()
            most = [each.value for each in self.records if _agrees(each, places)]
            raise self._refused(places, _fit_for(usable, agreed(most)))
        fit = _fit_for(usable, found)
        if fit.faults:
            raise self._refused(self._places(), fit)
        return found

    def _places(self) -> dict[str, _Place]:
        """By path: `customer.address`, `items[]`, `items[].price`."""
        places: dict[str, _Place] = {}
        for record in self.records:
            for path, kind in dict.fromkeys(_walk(_parsed(record), "")):
                places.setdefault(path, _Place()).saw(kind, record)
        return places

    def _refused(self, places: Mapping[str, _Place], fit: _Fit) -> ConfigError:
        for path in fit.faults:
            self._note_absent(places, path)
        named = sorted(path for path, each in places.items() if path in fit.faults or each.at_odds)
        lines = []
        for path in named[:_SHOWN]:
            reason = fit.faults.get(path) or f"records do not agree; the schema below takes {places[path].kind}"
            lines.append(f"  {path}: {places[path]}\n      {reason}")
        if len(named) > _SHOWN:
            lines.append(f"  … and {len(named) - _SHOWN} more")
        return ConfigError(
            f"no schema is declared, and none can be taken from the first {len(self.records):,} records. These fields are in the way:\n"
            + "\n".join(lines),
            safe="Nothing was created.",
            command=paste(
                fit.schema,
                "Records that hold something else in a field, or lack what is NOT NULL, become dead letters.",
            ),
        )

    def _note_absent(self, places: Mapping[str, _Place], path: str) -> None:
        """Which of its objects lack it: only a field of an object can be absent."""
        parent, dot, name = path.rpartition(".")
        if path.endswith("[]") or path not in places:
            return
        for record in self.records:
            around = _objects_at(_parsed(record), parent) if dot else [_parsed(record)]
            if any(each.get(name if dot else path) is None for each in around):
                places[path].saw(_ABSENT, record)


@dataclass(frozen=True)
class _Fit:
    """The problems of a schema, by path, and the schema to use instead."""

    faults: Mapping[str, str]
    schema: Schema | None


def _fit_for(usable: Callable[[Schema], object], found: Schema | None) -> _Fit:
    try:
        if found is not None:
            usable(found)
        return _Fit({}, found)
    except UnfitFields as error:
        return _Fit(dict(error.faults), error.instead)


def first_records(view: SourceView, options: Mapping[str, Any]) -> list[Record]:
    """The first records of each partition that have a value, whatever they hold."""
    ranges = tuple(
        Range(each.partition, each.first, min(each.end, each.first + _PER_PARTITION)) for each in everything(view)
    )
    records = [
        Record(found.partition, offset, value)
        for found in (read(ranges, options) if ranges else ())
        for offset, value in zip(found.offsets.to_pylist(), found.values.to_pylist(), strict=True)
        if value
    ]
    return sorted(records, key=lambda each: (each.partition, each.offset))


def sample_of(records: Iterable[Record]) -> Sample:
    """These records, without those that no schema could decode."""
    return Sample(
        tuple(
            each
            for each in records
            if each.value.lstrip()[:1] == b"{" and readable(each.value) and _is_json(each.value)
        )
    )


def _is_json(value: bytes) -> bool:
    try:
        json.loads(value)
    except (ValueError, RecursionError):
        return False
    return True


def _parsed(record: Record) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(record.value)
    return found


def _walk(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Every place inside a value, with the kind of its value."""
    if isinstance(value, dict):
        for name, each in value.items():
            inner = f"{path}.{name}" if path else name
            if each is not None:
                yield inner, _kind(each)
            yield from _walk(each, inner)
    elif isinstance(value, list):
        for each in value:
            if each is not None:
                yield f"{path}[]", _kind(each)
            yield from _walk(each, f"{path}[]")


def _kind(value: Any) -> str:
    for type_, kind in (
        (bool, "a boolean"),
        (int, "an integer"),
        (float, "a number with a fraction"),
        (str, "a string"),
        (dict, "an object"),
    ):
        if isinstance(value, type_):
            return kind
    return "an array"


def _agrees(record: Record, places: Mapping[str, _Place]) -> bool:
    """Whether every value is of the kind that most records hold there."""
    for path, kind in _walk(_parsed(record), ""):
        most = places[path].kind
        if kind != most and not (kind in _NUMBERS and most in _NUMBERS):
            return False
    return True


def _objects_at(value: Any, path: str) -> list[dict[str, Any]]:
    """The objects at a path of this record."""
    found = [value]
    for step in path.split("."):
        name, arrays = step.rstrip("[]"), step.count("[]")
        found = [each[name] for each in found if isinstance(each, dict) and name in each]
        for _ in range(arrays):
            found = [item for each in found if isinstance(each, list) for item in each]
    return [each for each in found if isinstance(each, dict)]
