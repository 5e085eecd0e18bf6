"""Routing against an oracle that looks at one record after the other."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, settings
from hypothesis import given as given_any
from hypothesis import strategies as st

from landonce.config.model import TopicMatch
from landonce.errors import ConfigError
from landonce.read.formats import Reject
from landonce.read.route import LONGEST, Routed, Routing, Rule, of_topic, route_values, routes, routes_by_topic


def given(*arguments: st.SearchStrategy[Any], **named: st.SearchStrategy[Any]) -> Callable[..., Any]:
    """Without Hypothesis's deadline per example: on a busy machine it would measure the neighbours."""
    return lambda test: settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])(
        given_any(*arguments, **named)(test)
    )


def _expected(routing: Routing, value: str | None) -> set[str]:
    always = {rule.table for rule in routing.rules if not rule.equals and rule.match is None}
    if value is None:
        return always
    found = set()
    for rule in routing.rules:
        if value in rule.equals or (rule.match is not None and re.fullmatch(rule.match, value)):
            found.add(rule.table)
    if routing.template is not None and not found and re.fullmatch(rf"[A-Za-z0-9_]{{1,{LONGEST}}}", value):
        found.add(routing.template.format(value=value))
    return always | found


def _check(routing: Routing, values: list[str | None], routed: Routed) -> None:
    going: dict[int, set[str]] = {row: set() for row in range(len(values))}
    for table, rows in routed.tables.items():
        assert rows.to_pylist() == sorted(set(rows.to_pylist()))
        for row in rows.to_pylist():
            going[row].add(table)
    assert going == {row: _expected(routing, value) for row, value in enumerate(values)}
    rejected = [reject.index for reject in routed.rejects]
    assert rejected == [row for row, tables in going.items() if not tables]
    assert all(reject.reason for reject in routed.rejects)


_values = st.lists(st.one_of(st.none(), st.sampled_from(["a", "b", "A", "a-b", "b2", "", "a.b", "ab", "ä", "c"])))
_rules = st.lists(
    st.builds(
        Rule,
        st.sampled_from(["db.one", "db.two", "db.three", "db.e_a"]),
        st.lists(st.sampled_from(["a", "b", "ä", "missing", ""]), max_size=3).map(tuple),
        st.sampled_from([None, "a.*", "b", "[ab]", "", "a|ab"]),
    ),
    max_size=5,
).map(tuple)


@given(_rules, st.sampled_from([None, "db.e_{value}"]), _values)
def test_every_record_goes_where_it_belongs(
    rules: tuple[Rule, ...], template: str | None, values: list[str | None]
) -> None:
    if not rules and template is None:
        return
    routing = Routing("kind", rules, template)
    array = pa.array(values, pa.string())
    _check(routing, values, routes(routing, array))
    _check(routing, values, routes(routing, array.dictionary_encode()))
    _check(routing, values, routes(routing, pa.chunked_array([array.slice(0, 2), array.slice(2)], pa.string())))


def test_static_routing_looks_at_nothing() -> None:
    routed = routes(Routing(None, (Rule("db.one"), Rule("db.two"))), pa.nulls(3))
    assert {table: rows.to_pylist() for table, rows in routed.tables.items()} == {
        "db.one": [0, 1, 2],
        "db.two": [0, 1, 2],
    }
    assert routed.rejects == ()


def test_a_dictionary_with_a_value_twice() -> None:
    values = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2]), pa.array(["a", "a", None]))
    routed = routes(Routing("kind", (Rule("db.one", ("a",)),)), values)
    assert routed.tables["db.one"].to_pylist() == [0, 1]
    assert [reject.index for reject in routed.rejects] == [2]


def test_reasons_say_why_and_hold_nothing_of_the_record() -> None:
    by_rule = routes(Routing("kind", (Rule("db.one", ("a",)),)), pa.array(["secret", None, "a"]))
    assert [(each.index, each.reason) for each in by_rule.rejects] == [
        (0, "no table takes its `kind`"),
        (1, "has no `kind` to route by"),
    ]
    dynamic = routes(Routing("kind", template="db.e_{value}"), pa.array(["../secret", None, "a"]))
    assert [(each.index, each.reason) for each in dynamic.rejects] == [
        (0, "its `kind` cannot be part of a table's name"),
        (1, "has no `kind` to route by"),
    ]


@pytest.mark.parametrize(
    "value", ["", "a.b", "a b", "../x", "a\nb", "a\n", "ä", "{value}", "x" * (LONGEST + 1), "a`b", "a;b", "\x00"]
)
def test_a_record_cannot_choose_a_table_outside_of_the_template(value: str) -> None:
    routed = routes(Routing("kind", template="db.e_{value}"), pa.array([value, "fine"]))
    assert list(routed.tables) == ["db.e_fine"]
    assert [reject.index for reject in routed.rejects] == [0]


def test_two_hundred_tables() -> None:
    """Each row is touched once, whatever the number of tables."""
    count = 100_000
    values = [f"k{row * 7 % 200}" for row in range(count)]
    routed = routes(Routing("kind", tuple(Rule(f"db.t{at}", (f"k{at}",)) for at in range(200))), pa.array(values))
    assert len(routed.tables) == 200
    assert sum(len(rows) for rows in routed.tables.values()) == count
    assert {values[row] for row in routed.tables["db.t42"].to_pylist()} == {"k42"}


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Routing("kind"), "no record would go anywhere"),
        (lambda: Routing(None, (Rule("db.one", ("a",)),)), "needs a field"),
        (lambda: Routing(None, template="db.{value}"), "needs a field"),
        (lambda: Routing("kind", template="db.events"), "needs {value} once"),
        (lambda: Routing("kind", template="{value}.events"), "needs {value} once"),
        (lambda: Routing("kind", template="{value}.e_{value}"), "must not choose its namespace"),
        (lambda: Routing("kind", (Rule("db.one", match="("),)), "is not a regular expression"),
    ],
)
def test_a_routing_that_makes_no_sense(make: Callable[[], Routing], reason: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(reason)):
        make()


# One field of a raw payload.


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | str) else None


_scalars = st.one_of(
    st.text(max_size=8).filter(lambda text: text.isprintable()),
    st.integers(-(2**63), 2**63 - 1),
    st.booleans(),
    st.none(),
)
_records = st.one_of(
    st.builds(lambda value: {"kind": value}, _scalars),
    st.builds(lambda value: {"x": 'a "kind": 3', "kind": value, "y": {"kind": 1}}, _scalars),
    st.builds(lambda value: {"at": {"kind": value}}, _scalars),
    st.just({}),
)


@given(st.lists(st.one_of(_records, st.sampled_from([None, "not JSON", "[1]", '{"kind": "a"', ""])), max_size=40))
@example([{"kind": 1}] * 40 + ["bad"] + [{"kind": "a"}] * 40)
def test_values_are_found_whatever_their_type(records: list[Any]) -> None:
    payloads = [json.dumps(each).encode() if isinstance(each, dict) else each and each.encode() for each in records]
    array = pa.array(payloads, pa.binary())
    objects = [each if isinstance(each, dict) else {} for each in records]
    assert route_values(array, "kind").to_pylist() == [_text(each.get("kind")) for each in objects]
    nested = [each.get("at") or {} for each in objects]
    assert route_values(array, "at.kind").to_pylist() == [_text(each.get("kind")) for each in nested]


def test_values_that_are_no_scalars_or_stand_there_twice_are_null() -> None:
    payloads = [b'{"k":[1]}', b'{"k":{"a":1}}', b'{"k":"x","k":"y"}', b'{"k":"fine"}', b'{"k":1.5}', b'{"k":2.0}']
    assert route_values(pa.array(payloads), "k").to_pylist() == [None, None, None, "fine", "1.5", "2"]


@given(
    st.lists(st.sampled_from(["1.5", "9007199254740993", "-0", "0.0", "2.0", "12345678901234567890", '"x"', "true"]))
)
def test_a_value_does_not_depend_on_its_neighbours(values: list[str]) -> None:
    payloads = pa.array([f'{{"k":{value}}}'.encode() for value in values], pa.binary())
    alone = [route_values(payloads.slice(at, 1), "k")[0].as_py() for at in range(len(values))]
    assert route_values(payloads, "k").to_pylist() == alone


def test_one_bad_record_does_not_spoil_the_block() -> None:
    payloads = [b'{"k":"v%d"}' % at for at in range(5_000)]
    payloads[3] = b'{"k":"v3"}{"k":"v4"}'
    payloads[4_000] = b'{"k":"v'
    payloads[4_001] = b'v"}'
    values = route_values(pa.array(payloads), "k").to_pylist()
    assert [at for at, value in enumerate(values) if value is None] == [3, 4_000, 4_001]
    assert all(value == f"v{at}" for at, value in enumerate(values) if value is not None)


TOPICS = ("shop.eu", "shop.us", "clicks-1")
CONDITIONS = st.sampled_from([None, ("shop.eu",), ("shop.us", "clicks-1"), TopicMatch(match=r"shop\..*")])


@given(
    st.lists(st.tuples(st.sampled_from(["db.a", "db.b"]), CONDITIONS, st.sampled_from([(), ("x",)])), max_size=4),
    st.sampled_from([None, "db.{_topic}_{value}", "db.e_{value}"]),
    st.lists(st.tuples(st.sampled_from(TOPICS), st.sampled_from(["x", "y", "../", None])), max_size=12),
)
def test_rows_of_several_topics_go_where_each_would_go_alone(
    named: list[tuple[str, object, tuple[str, ...]]], template: str | None, rows: list[tuple[str, str | None]]
) -> None:
    rules = tuple(Rule(table, equals, None, topics) for table, topics, equals in named)  # type: ignore[arg-type]
    if not rules and template is None:
        return
    routing = Routing("kind", rules, template)
    found = routes_by_topic(
        routing, pa.array([value for _, value in rows], pa.string()), pa.array([t for t, _ in rows])
    )
    for at, (topic, value) in enumerate(rows):
        mine = of_topic(routing, topic)
        alone = routes(mine, pa.array([value], pa.string())) if mine is not None else Routed({}, (Reject(0, None),))
        assert {table for table, which in found.tables.items() if at in which.to_pylist()} == {
            table for table, which in alone.tables.items() if len(which)
        }
        assert any(each.index == at for each in found.rejects) == bool(alone.rejects)
        for rule in rules if mine is not None else ():
            taken = (
                rule.topics is None
                or topic in rule.topics
                or (topic[:5] == "shop." and not isinstance(rule.topics, tuple))
            )
            if rule.takes_all or value in rule.equals:
                assert (rule.table in alone.tables) >= taken


def test_a_topic_is_part_of_a_name_without_dots_and_dashes() -> None:
    routing = Routing(None, (), "db.{_topic}")
    assert of_topic(routing, "shop.orders-eu") == Routing(None, (Rule("db.shop_orders_eu"),))
    assert routing.could_make("db.shop_orders_eu")
    assert not routing.could_make("other.shop")
    assert of_topic(Routing(None, (Rule("db.a", topics=("x",)),)), "y") is None


def test_topics_are_part_of_what_decides_and_leave_other_fingerprints_alone() -> None:
    plain = Routing("kind", (Rule("db.a", ("x",)),))
    assert (
        plain.decisive()
        == repr(plain)
        == "Routing(field='kind', rules=(Rule(table='db.a', equals=('x',), match=None),), template=None)"
    )
    one, two = (Routing("kind", (Rule("db.a", ("x",), None, (topic,)),)) for topic in ("t", "u"))
    assert len({plain.decisive(), one.decisive(), two.decisive()}) == 3
