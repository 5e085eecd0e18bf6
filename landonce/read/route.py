"""Chooses the tables of each record by its topic, and by one of its fields, which is read from the raw JSON before any table's decoder.

The choice is made once for each distinct value, and rows are then grouped by value: the cost grows with rows plus
values, not with rows times tables. Every record goes to a table, or is rejected with a reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from landonce.config.model import TopicMatch, takes_topic
from landonce.errors import ConfigError
from landonce.protocol.reasons import Code, Reason
from landonce.read.formats import Decoder, Format, Indexes, Reject
from landonce.read.formats.json.decode import MAX_RECORD_BYTES, Json
from landonce.read.schema.fields import Field, Schema

_KINDS = (pa.string(), pa.int64(), pa.bool_(), pa.float64())
_LOOKS = ('"', r"-?\d+\s*[,}]", "[tf]", r"-?\d")
_SAMPLE = 32
_JSON = Json()


def route_values(payloads: pa.BinaryArray, field: str, format_: Format = _JSON) -> pa.StringArray:
    """One field of each payload as text; dots lead into objects.

    A number or a boolean becomes its text, a fraction the shortest text. A missing field is null, and so is the field of
    a payload that cannot be read: the decoder gives the reason. A topic nearly always holds one type of value, so the
    payloads are read as the type of a sample, and only the others are read again. The result for a payload depends only
    on that payload, not on its neighbours.
    """
    found = pa.nulls(len(payloads), pa.string())
    every = np.arange(len(payloads), dtype=np.int64)
    rest = every
    if isinstance(format_, Json):
        likely, left = _sampled(payloads, field), []
        for kind, rows in _guessed(payloads, field) if len(likely) > 1 else [(likely[0], every)]:
            found, refused = _read(found, payloads, rows, _decoder(field, kind, format_))
            left.append(refused)
            if pt.is_floating(kind):
                # Zeros, because of the sign, and numbers with more digits than a double holds have another text as integers.
                numbers = np.abs(found.take(pa.array(rows)).cast(pa.float64()).to_numpy(zero_copy_only=False))
                whole = np.asarray(rows[(numbers == 0) | (numbers >= 2**53)], np.int64)
                found, _ = _read(found, payloads, whole, _decoder(field, pa.int64(), format_))
        rest = np.sort(np.concatenate([every[:0], *left]))
    for kind in (kind for kind in _KINDS if len(rest)):
        with suppress(TypeError, ValueError):  # a format that knows its types refuses all others
            found, rest = _read(found, payloads, rest, _decoder(field, kind, format_))
    return found


def _sampled(payloads: pa.BinaryArray, field: str) -> list[pa.DataType]:
    """The types of the field in a few payloads."""
    spread = np.unique(np.linspace(0, max(0, len(payloads) - 1), _SAMPLE).astype(np.int64))
    kinds = {_kind_in(payload, field) for payload in payloads.take(pa.array(spread[: len(payloads)])).to_pylist()}
    return [kind for kind in _KINDS if kind in kinds] or [_KINDS[0]]


def _kind_in(payload: bytes | None, field: str) -> pa.DataType | None:
    try:
        value = json.loads(payload or b"")
    except (ValueError, RecursionError):
        return None
    for name in field.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return {str: pa.string(), int: pa.int64(), bool: pa.bool_(), float: pa.float64()}.get(type(value))


def _guessed(payloads: pa.BinaryArray, field: str) -> Iterator[tuple[pa.DataType, Indexes]]:
    """Groups the payloads by the text after the field's name; a wrong guess costs only time."""
    name = re.escape(json.dumps(field.rpartition(".")[2], ensure_ascii=False))
    left = np.ones(len(payloads), dtype=np.bool_)
    for kind, look in zip(_KINDS, _LOOKS, strict=True):
        seen = pc.match_substring_regex(payloads, pattern=rf"{name}\s*:\s*{look}").fill_null(False)
        rows = np.flatnonzero(seen.to_numpy(zero_copy_only=False) & left)
        left[rows] = False
        yield kind, rows
    yield _KINDS[0], np.flatnonzero(left)


def _read(
    found: pa.StringArray, payloads: pa.BinaryArray, rows: Indexes, decoder: Decoder
) -> tuple[pa.StringArray, Indexes]:
    """Adds the values of these rows to those found so far; also returns the rows whose value has another type."""
    whole = len(rows) == len(payloads)
    decoded = decoder.decode(payloads if whole else payloads.take(pa.array(rows)))
    column = decoded.table.column(0).combine_chunks()
    while pt.is_struct(column.type):
        column = pc.struct_field(column, [0])
    text = column.cast(pa.string())
    refused = rows[[reject.index for reject in decoded.rejects]]
    if whole and not len(refused):
        return text, refused
    mask = np.zeros(len(found), dtype=np.bool_)
    mask[rows[decoded.kept]] = True
    return pc.replace_with_mask(found, pa.array(mask), text), refused


@lru_cache(maxsize=64)
def _decoder(field: str, kind: pa.DataType, format_: Format) -> Decoder:
    first, *rest = field.split(".")
    for name in reversed(rest):
        kind = pa.struct([pa.field(name, kind)])
    return format_.decoder(Schema((Field(first, kind),)), max_record_bytes=MAX_RECORD_BYTES)


__all__ = ["LONGEST", "PLACEHOLDER", "TOPIC", "Routed", "Routing", "Rule", "route_values", "routes", "routes_by_topic"]

PLACEHOLDER = "{value}"
TOPIC = "{_topic}"
"""In a template: the name of the record's topic, with `_` in the place of `.` and `-`."""
LONGEST = 100
"""Characters of a value that may become part of a table's name."""


@dataclass(frozen=True)
class Rule:
    """A table, and the values of the field that belong to it: by name, or by a regular expression (RE2) that matches the
    whole value. A rule with neither takes every record; of these topics, if it names any."""

    table: str
    equals: tuple[str, ...] = ()
    match: str | None = None
    topics: tuple[str, ...] | TopicMatch | None = field(default=None, repr=False)

    @property
    def takes_all(self) -> bool:
        return not self.equals and self.match is None


@dataclass(frozen=True)
class Routing:
    """A record goes to the table of each rule that takes it. If no rule takes it by its value, it goes to the table whose
    name `template` makes from the value, such as `db.events_{value}`, and to those that take every record."""

    field: str | None
    rules: tuple[Rule, ...] = ()
    template: str | None = None

    def __post_init__(self) -> None:
        if not self.rules and self.template is None:
            raise ConfigError("a routing needs a rule or a template; otherwise no record would go anywhere.")
        valued = PLACEHOLDER in (self.template or "") or not all(rule.takes_all for rule in self.rules)
        if self.field is None and valued:
            raise ConfigError("a routing by value needs a field.")
        if self.template is not None:
            _check_template(self.template, self.field)
        for rule in self.rules:
            try:
                _matches(pa.array([""]), rule.match or "")
            except pa.ArrowInvalid as error:
                raise ConfigError(
                    f"the routing's expression for {rule.table} is not a regular expression: {error}"
                ) from None

    @property
    def by_topic(self) -> bool:
        """Whether the topic of a record decides, too."""
        return TOPIC in (self.template or "") or any(rule.topics is not None for rule in self.rules)

    @property
    def static(self) -> tuple[str, ...]:
        """The tables that are named."""
        return tuple(dict.fromkeys(rule.table for rule in self.rules))

    @property
    def many(self) -> bool:
        """Whether it may name more than one table."""
        return self.template is not None or len(self.static) > 1

    def could_make(self, table: str) -> bool:
        """Whether the template can make this name."""
        if self.template is None:
            return False
        value, topic = f"[A-Za-z0-9_]{{1,{LONGEST}}}", "[A-Za-z0-9_]+"
        pattern = re.escape(self.template).replace(re.escape(PLACEHOLDER), value).replace(re.escape(TOPIC), topic)
        return re.fullmatch(pattern, table) is not None

    def decisive(self) -> str:
        """Changes with all that could send a record elsewhere."""
        topics = [repr(rule.topics) for rule in self.rules]
        return repr(self) + (repr(topics) if self.by_topic else "")


@lru_cache(maxsize=1024)
def of_topic(routing: Routing, topic: str) -> Routing | None:
    """What a routing is for the records of one topic: by their values alone. None if no table takes the topic."""
    if not routing.by_topic:
        return routing
    mine = (each for each in routing.rules if each.topics is None or takes_topic(each.topics, topic))
    rules = tuple(replace(each, topics=None) for each in mine)
    template = routing.template.replace(TOPIC, re.sub("[^A-Za-z0-9_]", "_", topic)) if routing.template else None
    if template is not None and PLACEHOLDER not in template:
        rules, template = (*rules, Rule(template)), None
    return Routing(routing.field, rules, template) if rules or template is not None else None


def _check_template(template: str, field: str | None) -> None:
    wanted = {PLACEHOLDER} if field is not None else {TOPIC}
    for each in (PLACEHOLDER, TOPIC):
        own = template.rpartition(".")[2].count(each)
        if own > 1 or (each in wanted and own != 1):
            raise ConfigError(f"the routing's template needs {each} once, in the table's own name: {template!r}")
        if own != template.count(each):
            raise ConfigError(f"a record must not choose its namespace: {template!r}")


@dataclass(frozen=True)
class Routed:
    """For each table its rows, in order; and the rejected rows."""

    tables: Mapping[str, pa.Int64Array] = field(default_factory=dict)
    rejects: tuple[Reject, ...] = ()


def routes(routing: Routing, values: pa.Array | pa.ChunkedArray) -> Routed:
    """The tables of each row, by its value. Without a field, only the length of `values` counts."""
    everywhere = [rule.table for rule in routing.rules if rule.takes_all]
    tables: dict[str, pa.Int64Array] = {name: pa.array(np.arange(len(values))) for name in everywhere}
    if routing.field is None:
        return Routed(tables)
    groups = _Groups.of(values)
    chosen = _by_rules(routing, groups.values)
    unrouted = np.ones(len(groups.values), dtype=np.bool_)
    for which in chosen.values():
        unrouted[which] = False
    reason = Reason(f"no table takes its `{routing.field}`", Code.NO_TABLE, routing.field)
    if routing.template is not None:
        reason = reason.reworded(f"its `{routing.field}` cannot be part of a table's name")
        _by_template(routing, groups.values, unrouted, chosen)
    for name, which in chosen.items():
        if name not in tables:
            tables[name] = pa.array(groups.rows(which))
    if everywhere:
        return Routed(tables)
    rejects = [Reject(row, reason) for row in groups.rows(np.flatnonzero(unrouted)).tolist()]
    nothing = np.array([len(groups.values)])
    absent = Reason(f"has no `{routing.field}` to route by", Code.NO_TABLE, routing.field)
    rejects += [Reject(row, absent) for row in groups.rows(nothing).tolist()]
    return Routed(tables, tuple(sorted(rejects, key=lambda reject: reject.index)))


def routes_by_topic(routing: Routing, values: pa.Array | pa.ChunkedArray, topics: pa.Array | pa.ChunkedArray) -> Routed:
    """As `routes`, for rows of several topics."""
    if not routing.by_topic:
        return routes(routing, values)
    groups = _Groups.of(topics)
    tables: dict[str, list[Indexes]] = {}
    rejects: list[Reject] = []
    for number, topic in enumerate(groups.values.to_pylist()):
        rows, mine = groups.rows(np.array([number])), of_topic(routing, topic)
        if mine is None:
            rejects += [Reject(row, no_table_for(topic)) for row in rows.tolist()]
            continue
        routed = routes(mine, values.take(pa.array(rows)))
        rejects += [Reject(int(rows[each.index]), each.reason) for each in routed.rejects]
        for table, which in routed.tables.items():
            tables.setdefault(table, []).append(rows[which.to_numpy()])
    merged = {table: pa.array(np.sort(np.concatenate(which))) for table, which in tables.items()}
    return Routed(merged, tuple(sorted(rejects, key=lambda reject: reject.index)))


def no_table_for(topic: str) -> Reason:
    return Reason(f"no table takes records of topic `{topic}`", Code.NO_TABLE)


@dataclass(frozen=True)
class _Groups:
    """Rows in the order of their distinct values: those of value `i` are `order[ends[i] : ends[i + 1]]`. Rows without a
    value come last."""

    values: pa.StringArray
    order: Indexes
    ends: Indexes

    @staticmethod
    def of(values: pa.Array | pa.ChunkedArray) -> _Groups:
        array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        encoded = array.cast(pa.string()).dictionary_encode()
        known = encoded.dictionary
        codes = encoded.indices.cast(pa.int64()).fill_null(len(known)).to_numpy()
        small = codes.astype(np.uint16) if len(known) < 2**16 else codes
        counts = np.bincount(codes, minlength=len(known) + 1)
        return _Groups(known, np.argsort(small, kind="stable"), np.concatenate([[0], np.cumsum(counts)]))

    def rows(self, which: Indexes) -> Indexes:
        """The rows with any of these values, ascending."""
        starts, lengths = self.ends[which], self.ends[which + 1] - self.ends[which]
        shifts = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
        found: Indexes = self.order[np.arange(lengths.sum()) + shifts]
        return found if len(which) == 1 else np.sort(found)


def _by_rules(routing: Routing, values: pa.StringArray) -> dict[str, Indexes]:
    """For each table the values that rules send there, each once. One pass finds the values that rules name."""
    chosen: dict[str, list[Indexes]] = {}
    tables: dict[str, list[str]] = {}
    for rule in routing.rules:
        if rule.match is not None:
            chosen.setdefault(rule.table, []).append(np.flatnonzero(_matches(values, rule.match)))
        for name in rule.equals:
            tables.setdefault(name, []).append(rule.table)
    places = pc.index_in(pa.array(list(tables), pa.string()), value_set=values)
    for place, named in zip(places.to_pylist(), tables.values(), strict=True):
        for table in named if place is not None else ():
            chosen.setdefault(table, []).append(np.array([place]))
    return {table: np.unique(np.concatenate(which)) for table, which in chosen.items() if any(map(len, which))}


def _by_template(
    routing: Routing, values: pa.StringArray, unrouted: npt.NDArray[np.bool_], chosen: dict[str, Indexes]
) -> None:
    """Gives a table to each value that no rule took and that can be part of a table's name."""
    assert routing.template is not None
    fit = np.flatnonzero(_matches(values, f"[A-Za-z0-9_]{{1,{LONGEST}}}") & unrouted)
    unrouted[fit] = False
    made: dict[str, list[int]] = {}
    for value, name in zip(fit.tolist(), values.take(pa.array(fit)).to_pylist(), strict=True):
        table = routing.template.replace(PLACEHOLDER, name)
        made.setdefault(table, []).append(value)
    for table, which in made.items():
        chosen[table] = np.union1d(chosen.get(table, np.empty(0, np.int64)), which).astype(np.int64)


def _matches(values: pa.StringArray, pattern: str) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = pc.match_substring_regex(values, pattern=rf"\A(?:{pattern})\z").to_numpy(
        zero_copy_only=False
    )
    return found
