"""What `check` finds in tables that are fit, nearly fit, and unfit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from clickhouse_tables import COORDINATES, WINDOW, make, sink_for

import landonce
from landonce.errors import TargetRefused
from landonce.local import LocalClickHouse, LocalUser
from landonce.sinks.clickhouse.sink import ClickHouseSink
from landonce.sinks.contract import Finding, Level

pytestmark = pytest.mark.integration

NewTable = Callable[[], str]


def found(sink: ClickHouseSink, level: Level) -> list[Finding]:
    return [each for each in sink.target().check() if each.level is level]


def refusals(sink: ClickHouseSink) -> str:
    return "; ".join(f"{each.what} -> {each.change}" for each in found(sink, Level.REFUSED))


def warnings(sink: ClickHouseSink) -> str:
    return "; ".join(f"{each.what} -> {each.change}" for each in found(sink, Level.WARNING))


def test_a_table_in_coordinate_order_is_fit(clickhouse: LocalClickHouse, new_table: NewTable) -> None:
    table = new_table()
    make(clickhouse, table, "id Int64", rest="ORDER BY (_topic, _partition, _offset)")
    assert {each.level for each in sink_for(clickhouse, table).target().check()} == {Level.OK}


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        ("SummingMergeTree ORDER BY id", "adds rows up"),
        ("AggregatingMergeTree ORDER BY id", "aggregates"),
        ("CollapsingMergeTree(sign) ORDER BY id", "removes pairs"),
        ("ReplacingMergeTree ORDER BY id", "version column"),
        ("Log", "no deduplication"),
        ("Memory", "no deduplication"),
        ("Null", "throws every row away"),
    ],
)
def test_engines_that_cannot_hold_the_guarantee(
    clickhouse: LocalClickHouse, new_table: NewTable, engine: str, why: str
) -> None:
    table = new_table()
    clickhouse.ask(f"CREATE TABLE {table} (id Int64, sign Int8, {COORDINATES}) ENGINE = {engine}")
    assert why in refusals(sink_for(clickhouse, table))


def test_views_are_refused_as_tables(clickhouse: LocalClickHouse, new_table: NewTable) -> None:
    table = new_table()
    clickhouse.ask(f"CREATE VIEW {table} AS SELECT 1 AS id")
    assert "is a view" in refusals(sink_for(clickhouse, table))


def test_a_replacing_table_with_a_version_is_warned_about(clickhouse: LocalClickHouse, new_table: NewTable) -> None:
    table = new_table()
    clickhouse.ask(
        f"CREATE TABLE {table} (id Int64, {COORDINATES}) ENGINE = ReplacingMergeTree(_offset) ORDER BY id SETTINGS {WINDOW}"
    )
    sink = sink_for(clickhouse, table)
    assert refusals(sink) == ""
    assert "become one" in warnings(sink)


def test_the_change_that_is_named_mends_the_window(clickhouse: LocalClickHouse, new_table: NewTable) -> None:
    table = new_table()
    make(clickhouse, table, "id Int64", window="index_granularity = 8192")
    sink = sink_for(clickhouse, table)
    (refused,) = found(sink, Level.REFUSED)
    assert "tokens" in refused.what
    clickhouse.ask(refused.change)
    assert refusals(sink) == ""


def test_the_changes_that_are_named_fix_coordinates_and_index(clickhouse: LocalClickHouse, new_table: NewTable) -> None:
    table = new_table()
    clickhouse.ask(f"CREATE TABLE {table} (id Int64) ENGINE = MergeTree ORDER BY id SETTINGS {WINDOW}")
    sink = sink_for(clickhouse, table)
    (refused,) = found(sink, Level.REFUSED)
    assert "_topic is missing" in refused.what
    clickhouse.ask(refused.change.partition(";")[0])
    assert refusals(sink) == ""
    (warned,) = found(sink, Level.WARNING)
    assert "_offset has no index" in warned.what
    for statement in warned.change.split("; "):
        clickhouse.ask(statement)
    assert {each.level for each in sink.target().check()} == {Level.OK}


@pytest.mark.parametrize(
    ("columns", "key", "fit"),
    [
        ("at DateTime", "toDate(at)", True),
        ("at DateTime, day Date DEFAULT toDate(at)", "day", True),
        ("at DateTime, day Date DEFAULT today()", "day", False),
        ("at DateTime, made DateTime DEFAULT now(), day Date MATERIALIZED toDate(made)", "day", False),
        ("at DateTime, shard UInt8 MATERIALIZED rand() % 4", "shard", False),
    ],
)
def test_a_row_must_always_go_to_the_same_partition(
    clickhouse: LocalClickHouse, new_table: NewTable, columns: str, key: str, fit: bool
) -> None:
    table = new_table()
    make(clickhouse, table, columns, rest=f"PARTITION BY {key} ORDER BY _offset")
    assert ("may go to another partition" not in refusals(sink_for(clickhouse, table))) is fit


def test_what_stands_beside_a_table_is_told(clickhouse: LocalClickHouse, new_table: NewTable) -> None:
    table, view = new_table(), new_table()
    make(
        clickhouse,
        table,
        "at DateTime, m Map(Float64, String) DEFAULT map()",
        rest="ORDER BY _offset TTL at + INTERVAL 1 DAY",
    )
    clickhouse.ask(f"CREATE MATERIALIZED VIEW {view} ENGINE = MergeTree ORDER BY at AS SELECT at FROM {table}")
    found = warnings(sink_for(clickhouse, table))
    assert "TTL" in found
    assert f"materialized view default.{view}" in found
    assert "always takes its DEFAULT" in found


def test_a_table_that_is_not_there(clickhouse: LocalClickHouse) -> None:
    with pytest.raises(TargetRefused, match=r"no table default\.nowhere"):
        sink_for(clickhouse, "nowhere").target().check()


def test_no_column_to_fill_and_columns_that_cannot_be_filled(clickhouse: LocalClickHouse, new_table: NewTable) -> None:
    empty, odd = new_table(), new_table()
    make(clickhouse, empty, "x Int8 MATERIALIZED 1")
    make(clickhouse, odd, "m Map(Float64, String)")
    assert "no column to fill" in refusals(sink_for(clickhouse, empty))
    assert "m: Map" in refusals(sink_for(clickhouse, odd))


class WithPolicy(LocalClickHouse):
    """A server that shows the user `odd` only some rows."""

    def _config_xml(self) -> str:
        policy = "<databases><default><t><filter>id > 5</filter></t></default></databases>"
        return super()._config_xml().replace("</odd>", f"{policy}</odd>")


def test_a_row_policy_would_blind_the_probe(tmp_path: Path) -> None:
    odd = LocalUser("odd")
    with WithPolicy(tmp_path / "ch", extra_users=(odd,)) as server:
        make(server, "t", "id Int64")
        assert "can hide rows from odd" in refusals(landonce.clickhouse(server.url_for(odd), "t").to_sink("orders"))
        assert refusals(sink_for(server, "t")) == ""
