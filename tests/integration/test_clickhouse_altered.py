"""A table that is altered between a worker's look and its insert: the insert lands every value as it is, or nothing."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from clickhouse_tables import block, covering, insert, make, parts, sink_for, wait_until

from landonce.errors import TargetRefused
from landonce.local import LocalClickHouse
from landonce.protocol.settle import Reply
from landonce.sinks.clickhouse import worker as writing
from landonce.sinks.clickhouse.sink import ClickHouseSink
from landonce.sinks.clickhouse.worker import ClickHouseWriter

pytestmark = pytest.mark.integration

NewTable = Callable[[], str]
MILLIS = pa.timestamp("ms", tz="UTC")
FINE = dt.datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=dt.timezone.utc)


def until_decided(sink: ClickHouseSink, writer: ClickHouseWriter, rows: pa.Table, token: str) -> None:
    """As a worker does it: what was refused and may pass is sent again, after a look."""
    for _ in range(3):
        if writer.send(rows, insert(sink.target(), token)) is Reply.ACKNOWLEDGED:
            return
        assert writer.probe(rows, covering(rows)).presence.missing == rows.num_rows
    raise AssertionError(f"it was refused again and again: {writer.said}")


def held(server: LocalClickHouse, table: str, column: str = "v") -> list[Any]:
    rows = server.ask(f"SELECT {column} AS v FROM {table} ORDER BY _offset FORMAT JSONEachRow")
    return [json.loads(line)["v"] for line in rows.splitlines()]


def alter(server: LocalClickHouse, table: str, before: str, after: str) -> None:
    """To a column without NULL and without a default there is no way but to make it again."""
    if before.startswith("Nullable") and not after.startswith("Nullable") and "DEFAULT" not in after:
        server.ask(f"ALTER TABLE {table} DROP COLUMN v")
        server.ask(f"ALTER TABLE {table} ADD COLUMN v {after}")
    else:
        server.ask(f"ALTER TABLE {table} MODIFY COLUMN v {after}")


@pytest.mark.parametrize(
    ("before", "after", "values"),
    [
        ("Nullable(Int64)", "Nullable(Int8)", pa.array([1, 300], pa.int64())),
        ("Int64", "UInt64", pa.array([1, -1], pa.int64())),
        ("Int64", "Float32", pa.array([1, 2**24 + 1], pa.int64())),
        ("Float64", "Float32", pa.array([1.0, 1e300], pa.float64())),
        ("Float64", "Int64", pa.array([1.0, 2.5], pa.float64())),
        ("Nullable(Int64)", "Int64", pa.array([1, None], pa.int64())),
        ("Array(Nullable(Int64))", "Array(Int64)", pa.array([[1], [None]], pa.list_(pa.int64()))),
        ("String", "FixedString(2)", pa.array(["ab", "abc"])),
        ("String", "Enum8('a' = 1)", pa.array(["a", "b"])),
        ("Enum8('a' = 1, 'b' = 2)", "Enum8('a' = 1)", pa.array(["a", "b"])),
        ("String", "UInt8", pa.array(["1", "x"])),
        ("Decimal(9, 2)", "Decimal(9, 1)", pa.array([Decimal("1.00"), Decimal("1.25")], pa.decimal128(9, 2))),
        ("DateTime64(3, 'UTC')", "DateTime64(2, 'UTC')", pa.array([FINE.replace(microsecond=0), FINE], MILLIS)),
        ("DateTime64(3, 'UTC')", "DateTime('UTC')", pa.array([FINE.replace(microsecond=0), FINE], MILLIS)),
        ("Date32", "Date", pa.array([dt.date(2000, 1, 1), dt.date(1950, 1, 1)])),
        ("Time64(6)", "Time64(3)", pa.array(["00:00:01.5", "00:00:01.0005"])),
        ("Int256", "Int128", pa.array(["1", str(2**127)])),
        ("Float32", "BFloat16", pa.array([0.5, 0.1], pa.float32())),
        ("String", "JSON", pa.array(['{"a": 1}', '{"a.b": 1}'])),
        ("Map(String, Int64)", "Map(String, Int8)", pa.array([[("a", 1)], [("a", 300)]], pa.map_(pa.string(), pa.int64()))),
        ("Tuple(a Date32)", "Tuple(a Date)", pa.array([{"a": 1}, {"a": -1}], pa.struct([("a", pa.date32())]))),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)  # fmt: skip
def test_a_value_that_a_narrowed_column_cannot_hold_is_refused(
    clickhouse: LocalClickHouse, new_table: NewTable, before: str, after: str, values: pa.Array
) -> None:
    table = new_table()
    make(clickhouse, table, f"v {before}")
    sink = sink_for(clickhouse, table)
    writer = sink.writer()
    alter(clickhouse, table, before, after)
    rows = block({"v": values})
    with pytest.raises(TargetRefused, match=rf"{table}.*\bv\b") as refused:
        until_decided(sink, writer, rows, "a")
    assert "offset 1" in str(refused.value) or "code" in str(refused.value)
    assert parts(clickhouse, table) == []


@pytest.mark.parametrize(
    ("before", "after", "values", "there"),
    [
        ("Int32", "Int64", pa.array([1, -2], pa.int32()), ["1", "-2"]),
        ("Nullable(Int64)", "Nullable(Int8)", pa.array([1, None], pa.int64()), ["1", None]),
        ("Nullable(Int64)", "Int64 DEFAULT 7", pa.array([1, None], pa.int64()), ["1", "7"]),
        ("String", "LowCardinality(String)", pa.array(["a", ""]), ["a", ""]),
        ("DateTime64(3, 'UTC')", "DateTime64(6, 'Asia/Tokyo')", pa.array([FINE] * 2, MILLIS), ["1767323045678000"] * 2),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)  # fmt: skip
def test_values_that_the_altered_column_holds_land_as_they_are(
    clickhouse: LocalClickHouse, new_table: NewTable, before: str, after: str, values: pa.Array, there: list[Any]
) -> None:
    table = new_table()
    make(clickhouse, table, f"v {before}")
    sink = sink_for(clickhouse, table)
    writer = sink.writer()
    alter(clickhouse, table, before, after)
    until_decided(sink, writer, block({"v": values}), "a")
    shown = "toUnixTimestamp64Micro(v)" if "DateTime" in after else "v"
    assert held(clickhouse, table, f"toString({shown})") == there
    assert parts(clickhouse, table) == [2]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("DROP COLUMN v", "such column v"),
        ("RENAME COLUMN v TO w", "such column v"),
        ("ADD COLUMN more Int64", "needs column more"),
    ],
)
def test_a_table_that_has_other_columns_by_now_gets_nothing(
    clickhouse: LocalClickHouse, new_table: NewTable, change: str, said: str
) -> None:
    table = new_table()
    make(clickhouse, table, "id Int64, v Int64")
    sink = sink_for(clickhouse, table)
    writer = sink.writer()
    clickhouse.ask(f"ALTER TABLE {table} {change}")
    with pytest.raises(TargetRefused, match=said):
        until_decided(sink, writer, block({"id": [1], "v": [2]}), "a")
    assert parts(clickhouse, table) == []


def test_a_column_that_is_altered_while_the_statement_begins_is_seen_by_it(
    clickhouse: LocalClickHouse, new_table: NewTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison runs with the rows, after ClickHouse has decided which columns it writes: no moment lies between."""
    table = new_table()
    make(clickhouse, table, "v Nullable(Int64)")
    sink = sink_for(clickhouse, table)
    plain = writing.insert_statement
    monkeypatch.setattr(
        writing, "insert_statement", lambda *args: plain(*args).replace("WHERE", "WHERE (SELECT sleep(1.5)) = 0 AND")
    )
    writer, target = sink.writer(), sink.target()
    rows = block({"v": pa.array([300], pa.int64())})
    with ThreadPoolExecutor() as pool:
        reply = pool.submit(writer.send, rows, insert(target, "a"))
        wait_until(lambda: bool(target._running()))
        clickhouse.ask(f"ALTER TABLE {table} MODIFY COLUMN v Nullable(Int8)")
        assert reply.result() is not Reply.ACKNOWLEDGED
    assert parts(clickhouse, table) == []
