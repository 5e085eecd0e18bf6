"""The queries of "Which duplicates are these?" tell them apart, in tables that landonce filled from a producer that repeats itself."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import clickhouse_connect
import psycopg
import pytest
import yaml
from deliveries import send
from pyiceberg.catalog import load_catalog

from landonce.engine.pipeline import run_pipeline
from landonce.local import LocalKafka
from landonce.sinks.pipeline_file import parse

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
PAGE = (Path(__file__).parents[2] / "docs" / "which-duplicates.md").read_text()
DELIVERED, PRODUCED, COUNTED, EACH_ONCE = re.findall(r"^```sql\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
Ask = Callable[[str], list[tuple[Any, ...]]]


@dataclass
class Target:
    """A table `placed`, and how to read and change it without landonce's code."""

    sink: dict[str, Any]
    ask: Ask
    do: Callable[[str], Any]


def clickhouse_target(request: pytest.FixtureRequest) -> Target:
    url = request.getfixturevalue("clickhouse").url
    client = clickhouse_connect.get_client(dsn=url, autogenerate_session_id=False)
    client.command("DROP TABLE IF EXISTS placed")
    request.addfinalizer(lambda: client.command("DROP TABLE placed"))
    sink = {"clickhouse": {"url": url, "table": "placed", "create": True}}
    return Target(sink, lambda query: list(map(tuple, client.query(query).result_rows)), client.command)


def postgres_target(request: pytest.FixtureRequest) -> Target:
    url = request.getfixturevalue("new_database")()
    connection = psycopg.connect(url.replace("+psycopg", ""), autocommit=True)
    request.addfinalizer(connection.close)
    sink = {"sql": {"url": url, "table": "placed", "create": True}}
    return Target(sink, lambda query: connection.execute(query.encode()).fetchall(), connection.execute)


def sqlite_target(request: pytest.FixtureRequest) -> Target:
    """A table without the unique index that landonce would make."""
    file = request.getfixturevalue("tmp_path") / "shop.db"
    columns = "_topic TEXT, _partition INTEGER, _offset INTEGER, shop TEXT, order_id BIGINT, amount DOUBLE"

    def do(query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(file)) as connection, connection:
            return connection.execute(query).fetchall()

    do(f"CREATE TABLE placed ({columns})")
    return Target({"sql": {"url": f"sqlite:///{file}", "table": "placed"}}, do, do)


@pytest.fixture(params=[clickhouse_target, postgres_target, sqlite_target])
def target(request: pytest.FixtureRequest) -> Target:
    made: Target = request.param(request)
    return made


def test_the_queries_tell_both_kinds_apart_in_iceberg(
    kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """With the other name of the column, as the page says. The rows are those that Iceberg's own reader gives."""
    topic, file = new_topic(2), tmp_path / "p.yaml"
    source = {"bootstrap_servers": kafka.bootstrap_servers, "topics": [topic]}
    source["schema"] = "shop STRING, order_id BIGINT, amount DOUBLE"
    sink = {"iceberg": {"table": "db.placed", "create": True}}
    document = {"pipeline": "p", "source": {"kafka": source}, "sink": sink}
    send(kafka, topic, [*map(order, range(20)), order(3)], partition=0)
    send(kafka, topic, [order(11)], partition=1)
    run_pipeline(parse(yaml.safe_dump(document), file), once=True)
    lake = tmp_path / "lake"
    table = load_catalog(
        "landonce", type="sql", uri=f"sqlite:///{lake}/catalog.db", warehouse=f"file://{lake}"
    ).load_table("db.placed")
    table.append(table.scan("_offset = 5 and _kafka_partition = 0").to_arrow())
    names = ("_topic", "_kafka_partition", "_offset", "shop", "order_id", "amount")
    rows = [tuple(row[name] for name in names) for row in table.scan().to_arrow().to_pylist()]
    with closing(sqlite3.connect(":memory:")) as reader:
        reader.execute(f"CREATE TABLE placed ({', '.join(names)})")
        reader.executemany("INSERT INTO placed VALUES (?, ?, ?, ?, ?, ?)", rows)

        def ask(query: str) -> list[tuple[Any, ...]]:
            return reader.execute(re.sub(r"\b_partition\b", "_kafka_partition", query)).fetchall()

        assert ask(DELIVERED) == [(topic, 0, 5, 2)]
        assert ask(PRODUCED) == [("shop-0", 3, 2, 1, 1, 3, 20), ("shop-2", 11, 2, 1, 2, 0, 11)]
        assert ask(COUNTED) == [(23, 22, 20)]
        assert sorted(ask(EACH_ONCE)) == sorted((f"shop-{n % 3}", n, n / 4) for n in range(20))


def order(number: int) -> dict[str, Any]:
    return {"shop": f"shop-{number % 3}", "order_id": number, "amount": number / 4}


def test_the_queries_tell_both_kinds_apart(
    target: Target, kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic(2)

    def land() -> None:
        source = {
            "bootstrap_servers": kafka.bootstrap_servers,
            "topics": [topic],
            "schema": "shop STRING, order_id BIGINT, amount DOUBLE",
        }
        document: dict[str, Any] = {"pipeline": f"p-{topic}", "source": {"kafka": source}, "sink": target.sink}
        if "clickhouse" in target.sink:
            document["ledger"] = {"sqlite": "ledger"}
        run_pipeline(parse(yaml.safe_dump(document), tmp_path / "p.yaml"), once=True)

    send(kafka, topic, map(order, range(20)), partition=0)
    land()
    assert target.ask(DELIVERED) == []
    assert target.ask(PRODUCED) == []
    assert target.ask(COUNTED) == [(20, 20, 20)]

    # The producer: order 7 again at once, order 3 much later, and order 11 in another partition.
    send(kafka, topic, [order(20), order(7), *map(order, range(21, 30)), order(3)], partition=0)
    send(kafka, topic, [order(11)], partition=1)
    land()
    produced = [
        ("shop-0", 3, 2, 1, 1, 3, 31),
        ("shop-1", 7, 2, 1, 1, 7, 21),
        ("shop-2", 11, 2, 1, 2, 0, 11),
    ]
    assert target.ask(DELIVERED) == []
    assert target.ask(PRODUCED) == produced
    assert target.ask(COUNTED) == [(33, 33, 30)]

    # Another writer delivers two records again.
    columns = "_topic, _partition, _offset, shop, order_id, amount"
    target.do(f"INSERT INTO placed ({columns}) SELECT {columns} FROM placed WHERE _partition = 0 AND _offset IN (5, 6)")
    assert target.ask(DELIVERED) == [(topic, 0, 5, 2), (topic, 0, 6, 2)]
    assert target.ask(PRODUCED) == produced
    assert target.ask(COUNTED) == [(35, 33, 30)]
    assert sorted(target.ask(EACH_ONCE)) == sorted((f"shop-{n % 3}", n, n / 4) for n in range(30))
