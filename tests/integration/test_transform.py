"""`select` and `where`: what is taken, what is refused, and that every record is accounted for with them."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import fastavro
import pytest
from deliveries import Site, Watch, do, driver_of, expected, in_table, letters, numbered, run, send, spark_session
from pyspark.sql import SparkSession

from landonce.engine.spark.session import _refuse_speculation
from landonce.errors import ConfigError, PlanChanged, TableUnfit, TargetRefused, TransformFailed
from landonce.local import LocalClickHouse, LocalKafka
from landonce.protocol.ledger import Totals
from landonce.protocol.steps import Effect, Step
from landonce.sinks.clickhouse.driver import ClickHouseTarget
from landonce.sinks.contract import Finding, Level
from landonce.sinks.parts import open_parts
from landonce.sinks.pipeline_file import Pipeline

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

SCHEMA = "id BIGINT NOT NULL, name STRING, amount DECIMAL(20, 4), at TIMESTAMP(3), tags ARRAY<BIGINT>"
COLUMNS = "id Int64, name Nullable(String), amount Nullable(Decimal(20, 4)), n Nullable(Int32)"


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    yield from spark_session("test-transform")


@pytest.fixture
def site(kafka: LocalKafka, clickhouse: LocalClickHouse, new_table: Callable[[], str], tmp_path: Path) -> Site:
    return Site(kafka, clickhouse, tmp_path, new_table())


@pytest.fixture(scope="module")
def refusing(
    kafka: LocalKafka, clickhouse: LocalClickHouse, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., str]:
    """The words with which a transform is refused, before anything is read."""
    site = Site(kafka, clickhouse, tmp_path_factory.mktemp("refusing"), "refusing", ["no-such-topic"])
    site.make(COLUMNS)

    def refuse(spark: SparkSession, **transform: Any) -> str:
        config = site.config(transform={"select": ["id"], **transform}, kafka={"schema": SCHEMA})
        with pytest.raises(ConfigError) as caught, driver_of(config, spark, Watch(), once=True) as driver:
            driver.start_workers()
        assert "__landonce" not in str(caught.value)
        return str(caught.value)

    return refuse


MOVING = [
    "rand() > 0.5", "rand(5) > 0.5", "randn() > 0", "uuid() <> name", "at < current_timestamp()", "at < now()",
    "at < localtimestamp()", "cast(at as date) < current_date()", "unix_timestamp() > id", "spark_partition_id() = 0",
    "monotonically_increasing_id() = id", "input_file_name() = ''", "current_user() = name", "at < timestamp 'now'",
    "cast(at as date) = DATE 'today'", "at < cast(' Tomorrow' as timestamp)", "at < to_timestamp('now')",
    "cast(at as date) < to_date('yesterday')",
    "reflect('java.util.UUID', 'randomUUID') = name", "if(name = 'x', rand() > 0.5, true)",
]  # fmt: skip


@pytest.mark.parametrize("where", MOVING)
def test_what_moves_is_refused(refusing: Callable[..., str], spark: SparkSession, where: str) -> None:
    assert "may give another value when a batch is replayed" in refusing(spark, where=where)


@pytest.mark.parametrize(
    "select",
    ["explode(tags) AS id", "posexplode(tags)", "max(id) AS id", "count(*) AS id", "stack(2, 1, 2) AS id",
     "row_number() OVER (ORDER BY id) AS id", "sum(id) OVER () AS id"],
)  # fmt: skip
def test_what_is_not_row_wise_is_refused(refusing: Callable[..., str], spark: SparkSession, select: str) -> None:
    assert "not row-wise" in refusing(spark, select=[select])
    assert refusing(spark, select=["id", select])


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("id = (SELECT 1)", "is a subquery"),
        ("EXISTS(SELECT 1)", "is a subquery"),
        ("id IN (SELECT 1)", "is a subquery"),
        ("max(id) > 1", "not row-wise"),
        ("nope = 1", "`nope`"),
        ("id + 1", "is of type bigint"),
        ("name", "is of type string"),
        ("id >", "Syntax error"),
        ("no_such_function(id)", "no_such_function"),
    ],
)
def test_a_where_that_is_no_condition(refusing: Callable[..., str], spark: SparkSession, where: str, says: str) -> None:
    assert says in refusing(spark, where=where)


@pytest.mark.parametrize(
    ("select", "says"),
    [
        (["nope AS id"], "`nope`"),
        (["id", "name", "upper(name) AS name"], "name appears twice"),
        (["name"], "lacks id, which the table requires"),
        (["id", "1 AS _offset"], "_offset cannot be selected"),
        (["id", "_partition"], "_partition cannot be selected"),
        (["id", "upper(name)"], "Name expressions with AS"),
        (["id", "name AS nope"], "no column 'nope'"),
        (["*"], "no column 'at', 'tags'"),
        (["id", "map('a', 1) AS name"], "name is of type map<string,int>"),
        (["id", "struct(id) AS name"], "name is of type struct<id:bigint>"),
        (["id", "tags AS n"], "n is of type array<bigint>"),
    ],
)
def test_a_select_that_the_table_does_not_take(
    refusing: Callable[..., str], spark: SparkSession, select: list[str], says: str
) -> None:
    assert says in refusing(spark, select=select)


def test_select_needs_a_declared_schema(site: Site, spark: SparkSession) -> None:
    site.topics = ("no-such-topic",)
    site.make(COLUMNS)
    with (
        pytest.raises(ConfigError, match=r"declare `source\.kafka\.schema`"),
        driver_of(site.config(transform={"select": ["id"]}), spark, Watch(), once=True),
    ):
        pass


NESTED = (
    "id BIGINT NOT NULL, customer STRUCT<name: STRING, address: STRUCT<city: STRING, at: TIMESTAMP(3)>>, "
    "items ARRAY<STRUCT<sku: STRING, n: INT NOT NULL> NOT NULL>, local TIMESTAMP_NTZ"
)


def test_a_table_is_made_of_what_is_selected(site: Site, spark: SparkSession, new_topic: Callable[..., str]) -> None:
    """Nested records become flat rows of a table that nobody declared."""
    site.topics = (new_topic(),)
    address = {"city": "Bern", "at": "2026-11-15T10:00:00Z"}
    values = [
        {"id": 1, "customer": {"name": "x", "address": address}, "items": [{"sku": "a", "n": 2}]},
        {"id": 2, "customer": {"name": "y"}, "local": "2026-11-15T10:00:00"},
        {"id": 3, "items": []},
        {"id": 4, "customer": "none"},
    ]
    send(site.kafka, site.topics[0], values)
    select = ["id", "customer.name", "customer.address.city AS city", "customer.address.at AS since", "items", "local"]
    config = site.config(
        transform={"select": [*select, "size(coalesce(items, array())) AS many"], "where": "id < 10"},
        kafka={"schema": NESTED},
        clickhouse={"create": True, "order_by": "id"},
    )
    assert run(config, spark) == Totals(landed=3, dead_lettered=1)
    types = site.ask(f"SELECT name, type FROM system.columns WHERE table = '{site.table}'")
    assert {each["name"]: each["type"] for each in types if not each["name"].startswith("_")} == {
        "id": "Int64",
        "name": "Nullable(String)",
        "city": "Nullable(String)",
        "since": "Nullable(DateTime64(6, 'UTC'))",
        "items": "Array(Tuple(sku Nullable(String), n Int32))",
        "local": "Nullable(DateTime64(6, 'UTC'))",
        "many": "Int32",
    }
    rows = site.ask(
        f"SELECT id, name, city, items.n AS n, toString(local) AS local, many FROM {site.table} ORDER BY id"
    )
    assert rows == [
        {"id": 1, "name": "x", "city": "Bern", "n": [2], "local": None, "many": 1},
        {"id": 2, "name": "y", "city": None, "n": [], "local": "2026-11-15 10:00:00.000000", "many": 0},
        {"id": 3, "name": None, "city": None, "n": [], "local": None, "many": 0},
    ]
    assert run(config, spark) == Totals(), "a second run finds the table and has nothing to do"


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"transform": {"where": "no_such_field > 1"}}, "no_such_field"),
        ({"transform": {"select": ["id", "uuid() AS u"]}}, "may give another value"),
        ({"transform": {"select": ["id", "id + 1 AS id"]}}, "id appears twice"),
        ({"transform": {"select": ["id AS _offset"]}}, "_offset"),
        ({"clickhouse": {"create": True, "partition_by": "toYYYYMM(now())"}}, "must be deterministic"),
        ({"spark": {"master": "spark://elsewhere:7077"}}, "a folder on this machine"),
    ],
)
def test_a_start_that_refuses_leaves_no_table_behind(
    site: Site, spark: SparkSession, new_topic: Callable[..., str], sections: dict[str, Any], says: str
) -> None:
    site.topics = (new_topic(),)
    config = site.config(
        **{"kafka": {"schema": NESTED}, "transform": {"select": ["id"]}, "clickhouse": {"create": True}} | sections
    )
    if "where" in sections.get("transform", {}):
        config = site.config(kafka={"schema": "id BIGINT"}, clickhouse={"create": True}, **sections)
    with pytest.raises((ConfigError, TargetRefused), match=re.escape(says)):
        run(config, spark)
    assert not made(site)


def made(site: Site) -> bool:
    return bool(site.ask(f"SELECT name FROM system.tables WHERE name = '{site.table}'"))


def test_a_table_that_is_unfit_once_it_is_made_is_taken_back_while_it_is_empty(
    site: Site, spark: SparkSession, new_topic: Callable[..., str]
) -> None:
    site.topics = (new_topic(),)
    config = site.config(kafka={"schema": "id BIGINT"}, clickhouse={"create": True})
    unfit = (Finding(Level.REFUSED, "a row policy hides rows"),)
    with mock.patch.object(ClickHouseTarget, "check", return_value=unfit), pytest.raises(TableUnfit):
        run(config, spark)
    assert not made(site)
    site.make("id Int64")
    do(site.clickhouse.url, f"INSERT INTO {site.table} (id) VALUES (1)")
    target = open_parts(config).sink.target()  # type: ignore[attr-defined]
    target.take_back()
    assert made(site), "it holds somebody's row"
    do(site.clickhouse.url, f"TRUNCATE TABLE {site.table}")
    target.take_back()
    assert not made(site)


def test_nanoseconds_are_not_given_to_expressions(site: Site, spark: SparkSession) -> None:
    site.topics = ("no-such-topic",)
    site.make("id Int64, at DateTime64(9)")
    with (
        pytest.raises(ConfigError, match="'at' is finer than microseconds"),
        driver_of(site.config(transform={"where": "id > 0"}), spark, Watch(), once=True) as driver,
    ):
        driver.start_workers()


def test_speculation_is_refused_by_name() -> None:
    session = mock.Mock()
    session.sparkContext.getConf.return_value = {"spark.speculation": "true"}
    with pytest.raises(ConfigError, match=r"spark\.speculation"):
        _refuse_speculation(session)


def test_rows_are_filtered_shaped_and_counted(site: Site, spark: SparkSession, new_topic: Callable[..., str]) -> None:
    topics = site.topics = (new_topic(2), new_topic())
    sent = send(
        site.kafka, topics[0], [{"id": each, "name": f"n{each}", "amount": f"{each}.25"} for each in range(300)]
    )
    sent += send(site.kafka, topics[0], [{"id": each, "name": None} for each in range(40)], partition=1)
    sent += send(site.kafka, topics[1], numbered(60))
    site.make(COLUMNS, "ORDER BY tuple()")
    totals = run(
        site.config(
            kafka={"schema": SCHEMA},
            transform={
                "select": ["id * 2 AS id", "concat(_topic, '/', name) AS name", "amount + 1 AS amount", "_offset AS n"],
                "where": "id % 3 <> 0 AND name <> 'n1'",
            },
            batch={"max_rows": 150, "block_rows": 60},
        ),
        spark,
    )
    kept = [each for each in sent if each.fields["id"] % 3 and each.fields.get("name") not in (None, "n1")]
    assert totals == Totals(landed=len(kept), filtered=len(sent) - len(kept))
    rows = site.ask(f"SELECT *, _part FROM {site.table} ORDER BY _part, _part_offset")
    held = Counter(
        (row["_topic"], row["_partition"], row["_offset"], row["id"], row["name"], row["amount"], row["n"])
        for row in rows
    )
    assert held == Counter(
        (
            *each.at,
            each.fields["id"] * 2,
            f"{each.topic}/{each.fields['name']}",
            f"{each.fields['id'] + 1}.25" if "amount" in each.fields else None,
            each.offset,
        )
        for each in kept
    )
    parts: dict[str, list[tuple[Any, ...]]] = {}
    for row in rows:
        parts.setdefault(row["_part"], []).append((row["_topic"], row["_partition"], row["_offset"]))
    assert all(at == sorted(at) for at in parts.values())


def test_expressions_see_records_only(site: Site, spark: SparkSession, new_topic: Callable[..., str]) -> None:
    """An expression that fails on NULL does no harm where no record has one: it sees nothing but records."""
    site.topics = (new_topic(),)
    send(site.kafka, site.topics[0], [{"id": 4}, b"broken"])
    site.make("id Int64")
    config = site.config(
        kafka={"schema": "id BIGINT NOT NULL"},
        transform={
            "select": ["cast(8 / coalesce(id, 0) AS BIGINT) AS id"],
            "where": "assert_true(id IS NOT NULL) IS NULL",
        },
    )
    assert run(config, spark) == Totals(landed=1, dead_lettered=1)
    assert site.ask(f"SELECT id FROM {site.table}") == [{"id": 2}]


def test_every_value_survives_a_filter(site: Site, spark: SparkSession, new_topic: Callable[..., str]) -> None:
    site.topics = (new_topic(),)
    site.make(
        "id Int64, u8 UInt8, u32 UInt32, u64 UInt64, big Decimal(38, 10), at Nullable(DateTime64(6)), day Date32, "
        "s DateTime, f Float64, u Array(UInt64), t Tuple(a UInt16, b String), e Enum8('x' = 1, 'y' = 2), flag Bool"
    )
    extreme = {
        "id": -(2**63), "u8": 255, "u32": 2**32 - 1, "u64": 2**64 - 1, "big": "9999999999999999999999999999.0123456789",
        "at": "2262-04-11T23:47:16.854775Z", "day": "2299-12-31", "s": "2106-02-07T06:28:15Z", "f": 5e-324,
        "u": [0, 2**64 - 1], "t": {"a": 65535, "b": "é\u0000"}, "e": "y", "flag": True,
    }  # fmt: skip
    other = {**extreme, "id": 2**63 - 1, "big": "-0.0000000001", "at": None, "day": "1900-01-01", "f": 0.1, "u": []}
    send(site.kafka, site.topics[0], [extreme, other, {**extreme, "id": 0}])
    read = f"SELECT * EXCEPT (_topic, _partition, _offset) FROM {site.table} WHERE id <> 0 ORDER BY id"
    run(site.config(), spark)
    plain = site.ask(read)
    site.clickhouse.ask(f"TRUNCATE TABLE {site.table}")
    (site.folder / "p.ledger").unlink()
    assert run(site.config(transform={"where": "id <> 0"}), spark) == Totals(landed=2, filtered=1)
    assert site.ask(read) == plain
    assert plain[0]["u64"] == 2**64 - 1
    assert plain[0]["big"] == "9999999999999999999999999999.0123456789"
    assert plain[0]["at"] == "2262-04-11 23:47:16.854775"


def test_a_value_that_does_not_fit_costs_its_own_record(
    site: Site, spark: SparkSession, new_topic: Callable[..., str]
) -> None:
    site.topics = (new_topic(),)
    values = [
        {"id": 1, "name": "300"},  # too large for UInt8
        {"id": 2, "name": "7"},
        {"id": 3, "name": "seven"},
        {"id": None},  # missing, in the record itself
        {"id": 5, "name": "-1"},
        {"id": 6},
        {"id": 10**9, "name": "1"},  # NULL for a column that takes none
        {"id": 8, "name": "8", "x": 1e300},  # too large for Float32
        {"id": 9, "name": "9", "x": 0.5},
    ]
    sent = send(site.kafka, site.topics[0], values, key=b"k", headers=[("h", b"v")])
    site.make("id Int64, n Nullable(UInt8), m Int32, x Nullable(Float32), l Array(Int64) DEFAULT []")
    config = site.config(
        kafka={"schema": "id BIGINT NOT NULL, name STRING, x DOUBLE"},
        transform={
            "select": [
                "id", "name AS n", "x", "if(id > 1000, NULL, id) AS m", "if(id = 9, array(1, NULL), array(id)) AS l"
            ]
        },
    )  # fmt: skip
    totals = run(config, spark)
    assert site.ask(f"SELECT id, n FROM {site.table} ORDER BY id") == [{"id": 2, "n": 7}, {"id": 6, "n": None}]
    assert totals == Totals(landed=2, dead_lettered=7)
    found = {each["offset"]: each for each in letters(site.dead)}
    assert sorted(found) == [0, 2, 3, 4, 6, 7, 8]
    assert "'n' does not fit UINT8" in found[0]["reason"]
    assert "'n' does not fit UINT8" in found[2]["reason"]
    assert found[3]["reason"] == "missing required field 'id'"
    assert found[6]["reason"] == "missing required field 'm'"
    assert "'x'" in found[7]["reason"]
    assert "'l'" in found[8]["reason"]
    for offset, letter in found.items():
        assert letter["value"].encode() == sent[offset].value
        assert letter["key"] == "k"
        assert letter["headers"] == [{"name": "h", "value": "v"}]


@pytest.mark.parametrize(
    ("where", "named"),
    [("10 / id > 1", "DIVIDE_BY_ZERO"), ("cast(name AS INT) > 0", "CAST_INVALID_INPUT")],
)
def test_an_expression_that_fails_halts_and_moves_nothing(
    site: Site, spark: SparkSession, new_topic: Callable[..., str], where: str, named: str
) -> None:
    site.topics = (new_topic(),)
    send(site.kafka, site.topics[0], [{"id": 1, "name": "5"}, {"id": 0, "name": "x"}, {"id": 2, "name": "6"}])
    site.make("id Int64, name String")
    config = site.config(transform={"where": where}, clickhouse={"deadline": "2s"})
    for _ in range(2):  # the second time it is a pending plan
        with pytest.raises(TransformFailed) as caught:
            run(config, spark)
        assert named in caught.value.what
        assert "try_cast" in caught.value.command
        assert "landonce state accept-change {file}" in caught.value.command
        assert site.position() == {(site.topics[0], 0): 0}
        assert site.ask(f"SELECT count() AS n FROM {site.table}") == [{"n": 0}]
    with pytest.raises(PlanChanged):
        run(site.config(transform={"where": "try_divide(10, id) > 1"}), spark)


EDITS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "where": ({"transform": {"where": "id <> 3"}}, {"transform": {"where": "id <> 5"}}),
    "convert": ({"kafka": {"convert": "strict"}}, {"kafka": {"convert": "fit"}}),
    "convert of a field": (
        {"kafka": {"convert": {"fields": {"name": {"mode": "fit"}}}}},
        {"kafka": {"convert": {"fields": {"name": {"mode": "fit", "empty": None}}}}},
    ),
    "format": ({"kafka": {"format": "json"}}, {"kafka": {"format": {"json": {"framing": "confluent"}}}}),
    "reader": (
        {"kafka": {"format": {"avro": {"schema": "row.avsc", "reader": "row.avsc"}}}},
        {"kafka": {"format": {"avro": {"schema": "row.avsc", "reader": "newer.avsc"}}}},
    ),
}
"""A file, and what somebody makes of it."""
ROW = [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}]


def in_avro(row: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, {"type": "record", "name": "Row", "fields": ROW}, row)
    return out.getvalue()


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_file_is_refused_while_a_plan_is_pending(
    site: Site, spark: SparkSession, new_topic: Callable[..., str], edit: str
) -> None:
    """Half of the plan would be of one filter, one conversion, one format or one reader's schema, and half of the other."""
    before, after = EDITS[edit]
    site.topics = (new_topic(partitions=2),)
    rows = numbered(8)
    for name, more in (("row", []), ("newer", [{"name": "more", "type": "string", "default": ""}])):
        schema = {"type": "record", "name": "Row", "fields": [*ROW, *more]}
        (site.folder / f"{name}.avsc").write_text(json.dumps(schema))
    values = list(map(in_avro, rows)) if edit == "reader" else rows
    sent = [each for number in (0, 1) for each in send(site.kafka, site.topics[0], values, partition=number)]
    sent = [replace(each, value=json.dumps(row).encode()) for each, row in zip(sent, rows * 2, strict=True)]
    site.make("id Int64, name String")

    def config(file: dict[str, Any]) -> Pipeline:
        return site.config(**file, batch={"block_rows": 8, "max_rows": 16}, clickhouse={"deadline": "2s"})

    def die(effect: Effect) -> None:
        if effect.step is Step.COMMIT:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config(before), spark, Watch(at=die))
    landed, pending = in_table(site), site.state().pending
    assert pending is not None
    watch = Watch()
    with pytest.raises(PlanChanged):
        run(config(after), spark, watch)
    assert Step.WRITE not in watch.steps
    assert in_table(site) == landed
    assert site.state().pending == pending
    run(config(before), spark)
    assert in_table(site) == expected(each for each in sent if edit != "where" or each.fields["id"] != 3)
    assert site.state().pending is None


def test_null_means_filtered(site: Site, spark: SparkSession, new_topic: Callable[..., str]) -> None:
    site.topics = (new_topic(),)
    send(site.kafka, site.topics[0], [{"id": 1}, {"id": 2, "name": "x"}, {"id": 3, "name": "y"}])
    site.make("id Int64, name Nullable(String)")
    assert run(site.config(transform={"where": "name = 'x'"}), spark) == Totals(landed=1, filtered=2)
    send(site.kafka, site.topics[0], [{"id": 4}])
    assert run(site.config(transform={"where": "NULL"}), spark) == Totals(filtered=1)


def test_the_fingerprint_changes_with_what_decides_the_rows(site: Site, spark: SparkSession) -> None:
    site.topics = ("no-such-topic",)
    site.make(COLUMNS)

    def fingerprint(**sections: Any) -> str:
        with driver_of(site.config(**sections), spark, Watch(), once=True) as driver:
            return driver.performer.settings.fingerprint

    schema = "id BIGINT NOT NULL, name STRING"
    deciding: list[dict[str, Any]] = [
        {},
        {"transform": {"where": "id > 1"}},
        {"transform": {"where": "id > 2"}},
        {"kafka": {"schema": schema}},
        {"kafka": {"schema": schema + " NOT NULL"}},
        {"kafka": {"schema": schema}, "transform": {"select": ["id"]}},
        {"kafka": {"schema": schema}, "transform": {"select": ["id", "name"]}},
        {"kafka": {"max_record_bytes": 1000}},
    ]
    seen = [fingerprint(**each) for each in deciding]
    assert len(set(seen)) == len(deciding)
    indifferent: list[dict[str, Any]] = [
        {},
        {"batch": {"max_rows": 7, "block_rows": 3, "interval": "9s"}},
        {"clickhouse": {"deadline": "99s"}},
        {"stall": "5s"},
        {"dead_letters": {"path": "elsewhere"}},
        {"kafka": {"options": {"client.id": "x"}}},
    ]
    assert {fingerprint(**each) for each in indifferent} == {seen[0]}
    site.clickhouse.ask(f"ALTER TABLE {site.table} ADD COLUMN extra Int8 DEFAULT 0")
    assert fingerprint() not in seen
