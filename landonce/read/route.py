"""Which tables a record goes to, by one field of it.

What is decided is decided once for each distinct value, and rows are then gathered by value: the cost grows with the
rows and with the values, and not with rows times tables. Every record goes somewhere, or is rejected with a reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from landonce.errors import ConfigError
from landonce.read.formats.json.decode import Reject
from landonce.read.sample_field import route_values

__all__ = ["LONGEST", "PLACEHOLDER", "Routed", "Routing", "Rule", "route_values", "routes"]

PLACEHOLDER = "{value}"
LONGEST = 100
"""Characters of a value that may become part of a table's name."""

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Rule:
    """A table, and the values of the field that belong to it: some by name, some by a regular expression (RE2) for the
    whole value. A rule with neither takes every record."""

    table: str
    equals: tuple[str, ...] = ()
    match: str | None = None

    @property
    def takes_all(self) -> bool:
        return not self.equals and self.match is None


@dataclass(frozen=True)
class Routing:
    """A record goes to the table of each rule that takes it. If no rule takes it by its value, it goes to the table that
    `template` makes of the value, such as `db.events_{value}`, beside those that take every record."""

    field: str | None
    rules: tuple[Rule, ...] = ()
    template: str | None = None

    def __post_init__(self) -> None:
        if not self.rules and self.template is None:
            raise ConfigError("a routing needs a rule or a template, or no record would go anywhere.")
        if self.field is None and (self.template is not None or not all(rule.takes_all for rule in self.rules)):
            raise ConfigError("a routing by value needs the field whose value it is.")
        if self.template is not None and self.template.rpartition(".")[2].count(PLACEHOLDER) != 1:
            raise ConfigError(
                f"the routing's template needs {PLACEHOLDER} once, in the table's own name: {self.template!r}"
            )
        if self.template is not None and self.template.count(PLACEHOLDER) != 1:
            raise ConfigError(f"a record must not choose its namespace: {self.template!r}")
        for rule in self.rules:
            _check_pattern(rule)


def _check_pattern(rule: Rule) -> None:
    try:
        _matches(pa.array([""]), rule.match or "")
    except pa.ArrowInvalid as error:
        raise ConfigError(f"the routing's expression for {rule.table} is not one: {error}") from None


@dataclass(frozen=True)
class Routed:
    """For each table the rows that go there, in their order; and the rows that go nowhere."""

    tables: Mapping[str, pa.Int64Array] = field(default_factory=dict)
    rejects: tuple[Reject, ...] = ()


def routes(routing: Routing, values: pa.Array | pa.ChunkedArray) -> Routed:
    """Where each row goes by its value. Without a field, `values` only says how many rows there are."""
    everywhere = [rule.table for rule in routing.rules if rule.takes_all]
    tables: dict[str, pa.Int64Array] = {name: pa.array(np.arange(len(values))) for name in everywhere}
    if routing.field is None:
        return Routed(tables)
    groups = _Groups.of(values)
    chosen = _by_rules(routing, groups.values)
    homeless = np.ones(len(groups.values), dtype=np.bool_)
    for which in chosen.values():
        homeless[which] = False
    reason = f"no table takes its `{routing.field}`"
    if routing.template is not None:
        reason = f"its `{routing.field}` cannot be part of a table's name"
        _by_template(routing, groups.values, homeless, chosen)
    for name, which in chosen.items():
        if name not in tables:
            tables[name] = pa.array(groups.rows(which))
    if everywhere:
        return Routed(tables)
    rejects = [Reject(row, reason) for row in groups.rows(np.flatnonzero(homeless)).tolist()]
    nothing = np.array([len(groups.values)])
    rejects += [Reject(row, f"has no `{routing.field}` to route by") for row in groups.rows(nothing).tolist()]
    return Routed(tables, tuple(sorted(rejects, key=lambda reject: reject.index)))


@dataclass(frozen=True)
class _Groups:
    """Rows in the order of their distinct values: those of value `i` are `order[ends[i] : ends[i + 1]]`, and the rows
    without a value come last."""

    values: pa.StringArray
    order: Integers
    ends: Integers

    @staticmethod
    def of(values: pa.Array | pa.ChunkedArray) -> _Groups:
        array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        encoded = array.cast(pa.string()).dictionary_encode()
        known = encoded.dictionary
        codes = encoded.indices.cast(pa.int64()).fill_null(len(known)).to_numpy()
        small = codes.astype(np.uint16) if len(known) < 2**16 else codes
        counts = np.bincount(codes, minlength=len(known) + 1)
        return _Groups(known, np.argsort(small, kind="stable"), np.concatenate([[0], np.cumsum(counts)]))

    def rows(self, which: Integers) -> Integers:
        """The rows with any of these values, ascending."""
        starts, lengths = self.ends[which], self.ends[which + 1] - self.ends[which]
        shifts = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
        found: Integers = self.order[np.arange(lengths.sum()) + shifts]
        return found if len(which) == 1 else np.sort(found)


def _by_rules(routing: Routing, values: pa.StringArray) -> dict[str, Integers]:
    """For each table the values that rules send there, each once; what rules name is found in one pass for all."""
    chosen: dict[str, list[Integers]] = {}
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
    routing: Routing, values: pa.StringArray, homeless: npt.NDArray[np.bool_], chosen: dict[str, Integers]
) -> None:
    """Gives a table to the values that no rule took and that can be part of its name."""
    assert routing.template is not None
    fit = np.flatnonzero(_matches(values, f"[A-Za-z0-9_]{{1,{LONGEST}}}") & homeless)
    homeless[fit] = False
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
