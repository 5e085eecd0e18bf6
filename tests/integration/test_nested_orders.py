"""`create: true` on a topic of realistic orders, without a schema: a sensible table, every record in it, value by value, in every sink."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from confluent_kafka.admin import AdminClient, NewTopic
from deliveries import ask, send
from orders import DOCUMENTS, MIXED, encoded, orders, text, typed, with_news
from pipelines import Said, landonce
from pyiceberg.catalog import load_catalog
from sql_runs import Ask, asking_postgres, asking_sqlite

from landonce.local import LocalClickHouse, LocalKafka

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

COUNT = 1500
"""In each of two partitions: the last third comes after the sample, and has more fields."""
SAMPLED = 1000
NEWS = "customer.tier, gift"
"""Fields that come after the sample, where an object is not kept as a document."""
PLAIN = ("id", "number", "placed_at", "day", "paid", "total")
Orders = dict[tuple[int, int], dict[str, Any]]
"""By partition and offset."""
Command = Callable[..., Said]


@pytest.fixture(scope="module")
def sent(kafka: LocalKafka) -> tuple[str, Orders]:
    """The topic, and its orders."""
    topic = "nested-orders"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([NewTopic(topic, num_partitions=2, replication_factor=1)])[topic].result(timeout=30)
    made = [with_news(each) if each["id"] % COUNT >= SAMPLED else each for each in orders(2 * COUNT)]
    found = {}
    for partition in (0, 1):
        for each in send(kafka, topic, map(encoded, made[partition * COUNT : (partition + 1) * COUNT]), partition):
            found[each.partition, each.offset] = each.fields
    return topic, found


@pytest.fixture
def land(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    kafka: LocalKafka,
    sent: tuple[str, Orders],
    tmp_path: Path,
) -> Callable[..., None]:
    """Checks, runs and audits a pipeline. All of them must be content, and no record may be a dead letter."""
    file = tmp_path / "orders.yaml"

    def command(*arguments: object) -> Said:
        said = landonce(capsys, monkeypatch, *arguments)
        assert said.code == 0, said.out + said.err
        return said

    def whole_life(sink: dict[str, Any], news: str, **more: Any) -> None:
        document: dict[str, Any] = {
            "pipeline": "orders",
            "source": {"kafka": {"bootstrap_servers": kafka.bootstrap_servers, "topics": [sent[0]]}},
            "sink": sink,
            "batch": {"interval": "0s", "block_rows": 700},
            "dead_letters": {"path": "dead"},
            **more,
        }
        file.write_text(yaml.safe_dump(document))
        checked = command("check", file).out
        events = [json.loads(line) for line in command("run", file, "--once").err.splitlines()]
        (inferred,) = [each["columns"] for each in events if each["event"] == "inferred"]
        for said in (checked, inferred):
            assert "note JSON: " in said, said
            assert "values of different kinds" in said
            assert "coupon JSON: absent or null 2,000×; kept as JSON text: no value was seen yet" in said
            assert 'schema: "id BIGINT, number STRING, placed_at TIMESTAMP, day DATE, ' in said
        said = [each["what"] for each in events if each["event"] == "trouble" and "no column" in each["what"]]
        assert [each.partition(". ")[0] for each in said] == [f"fields that no column takes: {news}"], "once per run"
        assert not list((tmp_path / "dead").glob("*.jsonl"))
        (line,) = [each for each in inferred.splitlines() if each.startswith("  schema: ")]
        document["source"]["kafka"].update(yaml.safe_load(line))
        file.write_text(yaml.safe_dump(document))
        assert "decoded to id, number, " in command("check", file).out, "what it says to paste fits the table"
        (audited,) = command("verify", file, "--values", "--json").json["tables"]
        assert (audited["totals"]["landed"], audited["values"]["rows"]) == (2 * COUNT, 2 * COUNT)

    return whole_life


def test_clickhouse(
    land: Callable[..., None], sent: tuple[str, Orders], clickhouse: LocalClickHouse, new_table: Callable[[], str]
) -> None:
    table = new_table()
    land(
        {"clickhouse": {"url": clickhouse.url, "table": table, "create": True}},
        NEWS,
        ledger={"sqlite": "orders.ledger"},
    )
    rows = ask(clickhouse.url, f"SELECT * FROM {table}")
    held = {(row.pop("_partition"), row.pop("_offset")): row for row in rows}
    assert len(held) == len(rows) == 2 * COUNT
    for at, order in sent[1].items():
        wanted, row = typed(order, absent_as_empty=True), held[at]
        row.pop("_topic")
        moment = row["placed_at"]
        row["placed_at"] = moment and datetime.fromisoformat(moment).replace(tzinfo=timezone.utc)
        row["day"] = row["day"] and date.fromisoformat(row["day"])
        assert row == wanted
    names = [each["c"] for each in ask(clickhouse.url, f"SELECT customer.address.city AS c FROM {table}")]
    assert "Bern" in names


def test_iceberg(land: Callable[..., None], sent: tuple[str, Orders], tmp_path: Path) -> None:
    land({"iceberg": {"table": "db.orders", "create": True}}, NEWS)
    lake = tmp_path / "lake"
    catalog = load_catalog("landonce", type="sql", uri=f"sqlite:///{lake}/catalog.db", warehouse=f"file://{lake}")
    files = [each.file.file_path for each in catalog.load_table("db.orders").scan().plan_files()]
    # PyIceberg's own reader shows a null array of objects as an empty one.
    tables = [pq.read_table(each.removeprefix("file://")) for each in files]
    rows = [row for each in tables for row in each.to_pylist(maps_as_pydicts="strict")]
    held = {(row.pop("_kafka_partition"), row.pop("_offset")): row for row in rows}
    assert len(held) == len(rows) == 2 * COUNT
    for at, order in sent[1].items():
        held[at].pop("_topic")
        assert held[at] == typed(order)


@pytest.mark.parametrize("database", ["postgresql", "sqlite"])
def test_sql(
    land: Callable[..., None],
    sent: tuple[str, Orders],
    database: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    """Objects and arrays are JSON documents there, exactly as the records write them."""
    url = "sqlite:///t.db" if database == "sqlite" else request.getfixturevalue("new_database")()
    asking: Ask = asking_sqlite(tmp_path / "t.db") if database == "sqlite" else asking_postgres(url)
    land({"sql": {"url": url, "table": "orders", "create": True}}, "gift")
    names = (*PLAIN, *DOCUMENTS, *MIXED)
    cast = "" if database == "sqlite" else "::text"
    listed = [*PLAIN, *(f"{name}{cast}" for name in (*DOCUMENTS, *MIXED))]
    rows = asking(f"SELECT _partition, _offset, {', '.join(listed)} FROM orders")
    held = {(row[0], row[1]): dict(zip(names, row[2:], strict=True)) for row in rows}
    assert len(held) == len(rows) == 2 * COUNT
    for at, order in sent[1].items():
        row, plain = held[at], typed(order)
        if database == "sqlite":
            row["placed_at"] = row["placed_at"] and datetime.fromisoformat(row["placed_at"]).replace(
                tzinfo=timezone.utc
            )
            row["day"] = row["day"] and date.fromisoformat(row["day"])
            row["paid"] = None if row["paid"] is None else bool(row["paid"])
        assert row == {name: plain[name] if name in PLAIN else text(order.get(name)) for name in names}
        assert all(row[name] is None or json.loads(row[name]) == order[name] for name in (*DOCUMENTS, *MIXED))
