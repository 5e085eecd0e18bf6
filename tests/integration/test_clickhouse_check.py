"""What `check` finds in tables that are fit, nearly fit, and unfit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from clickhouse_tables import COORDINATES, WINDOW, make, sink_for

import landonce
from landonce.errors import ConfigError, TargetRefused
from landonce.local import LocalClickHouse, LocalUser
from landonce.read.schema.ddl import parse_schema
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


def test_what_stands_beside_a_table_is_reported(clickhouse: LocalClickHouse, new_table: NewTable) -> None:
    table, view = new_table(), new_table()
    make(
        clickhouse,
        table,
        "at DateTime, m Map(Array(Int8), String) DEFAULT map()",
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
    make(clickhouse, odd, "m Map(Array(Int8), String)")
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


CREATED = {
    "create": True,
    "engine": "MergeTree()",
    "primary_key": "id",
    "partition_by": "id % 2",
    "ttl": "ts + INTERVAL 30 DAY",
    "table_settings": {"index_granularity": 4096, "storage_policy": "default", "enable_mixed_granularity_parts": True},
    "comment": "it's made",
}


def test_a_table_is_created_as_the_file_says(clickhouse: LocalClickHouse, new_table: NewTable) -> None:
    """And it is fit: it has the coordinates, their index and a window."""
    table = new_table()
    columns = parse_schema("id BIGINT NOT NULL, ts TIMESTAMP NOT NULL")
    sink = sink_for(clickhouse, table, **CREATED)
    assert sink.target().creatable() == (), "a warning about the age of rows is for a table that is there"
    sink.make(sink.target(), columns)
    sql = f"SELECT engine_full, primary_key, sorting_key, comment FROM system.tables WHERE name = '{table}'"
    full, primary, sorting, comment = clickhouse.ask(sql).rstrip("\n").split("\t")
    assert (primary.strip("()"), sorting) == ("id", "id, _topic, _partition, _offset")
    assert comment == r"it\'s made"
    for each in ("PARTITION BY id % 2", "TTL ts + toIntervalDay(30)", "index_granularity = 4096", "window = 10000"):
        assert each in full
    assert not refusals(sink)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"engine": "SummingMergeTree(n)"}, "adds rows up"),
        ({"engine": "ReplicatedAggregatingMergeTree"}, "aggregates"),
        ({"engine": "ReplacingMergeTree"}, "without a version column"),
        ({"table_settings": {"non_replicated_deduplication_window": 0}}, "ClickHouse ignores tokens"),
        ({"ttl": "ts + INTERVAL 0 SECOND"}, "removes rows as they arrive"),
        ({"ttl": "ts + INTERVAL 1 DAY TO DISK 'default', ts - INTERVAL 1 DAY DELETE"}, "removes rows as they arrive"),
    ],
)
def test_what_conflicts_with_the_guarantee_is_refused_before_anything_is_created(
    clickhouse: LocalClickHouse, new_table: NewTable, options: dict[str, object], why: str
) -> None:
    table = new_table()
    sink = sink_for(clickhouse, table, create=True, **options)
    refused = [each for each in sink.target().creatable() if each.level is Level.REFUSED]
    assert why in "; ".join(each.what for each in refused)
    assert not sink.target().exists()


@pytest.mark.parametrize(
    "engine", ["ReplacingMergeTree(_offset)", "ReplacingMergeTree(at)", "ReplacingMergeTree (`at`)"]
)
def test_a_replacing_table_with_a_version_is_created(
    clickhouse: LocalClickHouse, new_table: NewTable, engine: str
) -> None:
    """`check` says of a table that is to be made what it says once the table is there."""
    sink = sink_for(clickhouse, new_table(), create=True, engine=engine, order_by="id")
    planned = [each for each in sink.target().creatable() if "become one" in each.what]
    assert [each.level for each in planned] == [Level.WARNING]
    sink.make(sink.target(), parse_schema("id BIGINT NOT NULL, at TIMESTAMP NOT NULL"))
    assert refusals(sink) == ""
    assert planned[0] in sink.target().check() or "`" in engine


def test_an_engine_that_names_a_column_that_is_not_made_is_refused(
    clickhouse: LocalClickHouse, new_table: NewTable
) -> None:
    sink = sink_for(clickhouse, new_table(), create=True, engine="ReplacingMergeTree(at)", order_by="id")
    with pytest.raises(ConfigError, match="names the column at"):
        sink.make(sink.target(), parse_schema("id BIGINT NOT NULL"))


def test_a_ttl_that_is_there_and_removes_rows_as_they_arrive_is_refused(
    clickhouse: LocalClickHouse, new_table: NewTable
) -> None:
    table = new_table()
    make(clickhouse, table, "ts DateTime64(3)", rest="ORDER BY _offset TTL toDateTime(ts) - INTERVAL 1 HOUR")
    assert "removes rows as they arrive" in refusals(sink_for(clickhouse, table))


def test_statements_name_the_cluster() -> None:
    made = landonce.clickhouse(
        "http://localhost/d", "t", create=True, cluster="c", engine="ReplicatedMergeTree('/t', '{replica}')"
    )
    statement = made.to_sink("p").creation(parse_schema("id BIGINT"))
    assert "CREATE TABLE IF NOT EXISTS `d`.`t` ON CLUSTER `c`\n" in statement
    assert "ENGINE = ReplicatedMergeTree('/t', '{replica}')" in statement
    assert "SETTINGS replicated_deduplication_window = 10000" in statement
