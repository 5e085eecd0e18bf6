"""Whole runs into PostgreSQL and SQLite: plain rows, rows that records change, tables that are made and that grow."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from deliveries import spark_session
from pipelines import landonce
from pyspark.sql import SparkSession
from said import says
from sql_runs import SqlSite, asking_postgres, asking_sqlite

from landonce.engine import workers
from landonce.engine.observe import Silent
from landonce.engine.pipeline import run_pipeline
from landonce.errors import (
    ConfigError,
    LandonceError,
    PlanChanged,
    PlanPending,
    Stalled,
    TableUnfit,
    TargetAhead,
    Unbalanced,
)
from landonce.local import LocalKafka
from landonce.local.server import free_ports
from landonce.protocol.ledger import Totals
from landonce.protocol.receipt import BlockResult
from landonce.sinks.pipeline_file import parse
from landonce.sinks.sql.worker import SqlRecipe
from landonce.sinks.transactional import TransactionTask

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(180), pytest.mark.usefixtures("spark")]

SCHEMA = "id BIGINT NOT NULL, word STRING, amount DECIMAL(10,2), at TIMESTAMP(3), day DATE, fine BOOLEAN, ratio DOUBLE"


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    yield from spark_session("test-sql-run")


BOTH = pytest.mark.parametrize("site", ["postgresql", "sqlite"], indirect=True)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.long)])
def site(request: pytest.FixtureRequest, kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path) -> SqlSite:
    if request.param == "sqlite":
        return SqlSite(kafka, tmp_path, new_topic(2), "sqlite:///t.db", asking_sqlite(tmp_path / "t.db"))
    url = request.getfixturevalue("new_database")()
    return SqlSite(kafka, tmp_path, new_topic(2), url, asking_postgres(url))


@pytest.fixture
def pg(new_database: Callable[[], str], kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path) -> SqlSite:
    url = new_database()
    return SqlSite(kafka, tmp_path, new_topic(1), url, asking_postgres(url))


def record(**fields: Any) -> tuple[None, bytes]:
    return None, json.dumps(fields).encode()


@BOTH
def test_rows_of_every_kind_land_once(
    site: SqlSite, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what cannot land is a dead letter; `check`, `state show` and `verify` say so."""
    decimals = site.url.startswith("postgresql")
    site.write_file(schema=SCHEMA if decimals else SCHEMA.replace("DECIMAL(10,2)", "DOUBLE"), create=True)
    said = landonce(capsys, monkeypatch, "check", site.file)
    assert said.code == 0, said.out + said.err
    assert "CREATE TABLE" in said.out
    assert "in one transaction" in said.out.replace("\n", " ")
    good = [
        record(id=n, word="zwölf 'quoted' \\ \n", amount=1.25, at=1700000000123, day="2024-02-29", fine=True, ratio=0.1)
        for n in range(300)
    ]
    site.send(*good, record(id=1000), partition=0)
    site.send(record(id="no"), (None, b"{"), record(id=1001, amount=2.5), partition=1)
    assert site.run() == Totals(landed=302, dead_lettered=2)
    found = site.ask("SELECT id, word, amount, at, day, fine, ratio FROM events WHERE id = 7")
    assert [str(each) for each in found[0][:3]] == ["7", "zwölf 'quoted' \\ \n", "1.25"]
    assert str(found[0][3]).startswith("2023-11-14 22:13:20.123")
    assert str(found[0][4]) == "2024-02-29"
    assert (bool(found[0][5]), found[0][6]) == (True, 0.1)
    assert site.ask("SELECT count(*), count(word), min(_offset), max(_offset) FROM events WHERE _partition = 0") == [
        (301, 300, 0, 300)
    ]
    assert site.run() == Totals(), "nothing is left to do"
    said = landonce(capsys, monkeypatch, "verify", site.file)
    assert said.code == 0, said.out + said.err
    assert "exactly once" in said.out
    assert "NOT exactly once" not in said.out
    said = landonce(capsys, monkeypatch, "state", "show", site.file)
    assert said.code == 0
    assert "landonce_* beside the table" in said.out.replace("\n", " ")
    said = landonce(capsys, monkeypatch, "check", site.file)
    assert said.code == 0, said.out + said.err


def test_an_audit_names_what_is_missing_and_what_is_there_twice(
    pg: SqlSite, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pg.write_file(schema="id BIGINT", create=True)
    pg.send(*(record(id=n) for n in range(10)))
    pg.run()
    pg.ask("DROP INDEX events_coordinates")
    pg.ask("DELETE FROM events WHERE id = 3")
    pg.ask("INSERT INTO events SELECT * FROM events WHERE id = 5")
    said = landonce(capsys, monkeypatch, "verify", pg.file)
    assert said.code == 1
    assert says(said.out, "1 missing")
    assert says(said.out, "1 duplicated")


@BOTH
def test_rows_follow_the_last_change_of_their_keys(
    site: SqlSite, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    site.write_file(schema="id BIGINT NOT NULL, word STRING", create=True, mode="upsert", key="id")
    for n in range(900):
        key = json.dumps({"id": n % 100}).encode()
        value = None if n % 7 == 0 else json.dumps({"id": n % 100, "word": f"w{n}"}).encode()
        site.send((key, value))
        if n % 300 == 299:
            assert site.run().read == 300
    due = {n % 100: None if n % 7 == 0 else f"w{n}" for n in range(900)}
    assert dict(site.ask("SELECT id, word FROM events")) == {key: word for key, word in due.items() if word}
    said = landonce(capsys, monkeypatch, "verify", site.file)
    assert said.code == 0, said.out + said.err
    site.ask("UPDATE events SET _offset = 1 WHERE id = 3" + (" RETURNING id" if "sqlite" in site.url else ""))
    assert landonce(capsys, monkeypatch, "verify", site.file).code == 1


def test_an_operation_field_says_what_happens(site: SqlSite) -> None:
    changes = {"mode": "operation", "field": "what", "delete": ["gone"], "update": ["new"], "insert": []}
    site.write_file(
        schema="a BIGINT NOT NULL, b STRING NOT NULL, n INT",
        create=True,
        mode="upsert",
        key=["a", "b"],
        changes=changes,
    )
    site.send(
        record(a=1, b="x", n=1, what="new"),
        record(a=1, b="y", n=2, what="new"),
        record(a=1, b="x", what="gone"),
        record(a=1, b="y", n=3, what="new"),
        record(a=2, b="z", n=4, what="never heard of"),
        record(a=3, b="q", n=5, what="new"),
    )
    assert site.run() == Totals(landed=5, dead_lettered=1)
    assert sorted(site.ask("SELECT a, b, n FROM events")) == [(1, "y", 3), (3, "q", 5)]


@BOTH
def test_a_lost_change_is_noticed_before_it_is_committed(site: SqlSite, monkeypatch: pytest.MonkeyPatch) -> None:
    site.write_file(schema="id BIGINT NOT NULL, n INT", create=True, mode="upsert", key=["id"])
    site.send(record(id=1, n=1), record(id=2, n=1), record(id=2, n=2), (b'{"id": 1}', None))

    def careless(recipe: SqlRecipe, task: TransactionTask) -> BlockResult:
        from landonce.engine.task import work
        from landonce.read.block import ReadBlock

        rows = ReadBlock.rows
        ReadBlock.rows = lambda *asked: rows(*asked).slice(1)  # type: ignore[method-assign]
        try:
            return work(recipe, task)
        finally:
            ReadBlock.rows = rows  # type: ignore[method-assign]

    monkeypatch.setattr(workers, "work", careless)
    with pytest.raises(Unbalanced, match=r"\b4 records were read, but 3 landed"):
        site.run()
    assert site.ask("SELECT id, n FROM events") == []
    monkeypatch.undo()
    assert site.run() == Totals(landed=4)
    assert site.ask("SELECT id, n FROM events") == [(2, 2)]


def test_a_table_is_made_from_a_sample_and_grows(site: SqlSite) -> None:
    site.write_file(create=True, evolve=True)
    site.send(*(record(id=n, word="a") for n in range(50)))
    assert site.run().landed == 50
    site.send(*(record(id=n, word="b", more=n / 2, **{"odd name": "x"}) for n in range(50, 100)))
    site.send(record(id=100, nested={"a": 1}, word="c"))
    assert site.run().landed == 51
    assert site.ask('SELECT count(more), count("odd name"), count(*) FROM events') == [(50, 50, 101)]
    assert site.ask("SELECT more FROM events WHERE id = 60") == [(30.0,)]


def test_select_and_where(site: SqlSite) -> None:
    site.write_file(schema="id BIGINT, word STRING", create=True, transform={"where": "id % 2 = 0"})
    site.send(*(record(id=n, word="a") for n in range(50)))
    assert site.run() == Totals(landed=25, filtered=25)
    assert site.ask("SELECT sum(id) FROM events") == [(600,)]


def test_a_table_is_made_of_what_is_selected(site: SqlSite) -> None:
    schema = "id BIGINT NOT NULL, customer STRUCT<name: STRING, address: STRUCT<city: STRING>>"
    select = ["id", "customer.address.city AS city", "to_json(customer) AS customer"]
    site.write_file(schema=schema, create=True, transform={"select": select})
    site.send(record(id=1, customer={"name": "x", "address": {"city": "Bern"}}), record(id=2))
    assert site.run() == Totals(landed=2)
    assert site.ask("SELECT id, city FROM events ORDER BY id") == [(1, "Bern"), (2, None)]
    assert json.loads(site.ask("SELECT customer FROM events WHERE id = 1")[0][0])["name"] == "x"


@pytest.mark.parametrize(
    ("transform", "says"),
    [
        ({"where": "no_such_field > 1"}, "no_such_field"),
        ({"select": ["id", "customer"]}, "customer is of type struct"),
        ({"select": ["now() AS id"]}, "may give another value"),
    ],
)
def test_a_start_that_refuses_leaves_no_table_behind(site: SqlSite, transform: dict[str, Any], says: str) -> None:
    site.write_file(schema="id BIGINT, customer STRUCT<name: STRING>", create=True, transform=transform)
    site.send(record(id=1))
    with pytest.raises(ConfigError, match=says):
        site.run()
    with pytest.raises((sqlite3.OperationalError, psycopg.errors.UndefinedTable)):
        site.ask("SELECT * FROM events")


def test_the_last_lines_of_a_run_say_how_many_by_which_reason(
    site: SqlSite, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    site.write_file(schema="id BIGINT NOT NULL, word STRING", create=True)
    site.send(*((None, b'{"id": 1, "word": "' + b"x" * at) for at in range(206)))
    site.send(record(word="no id"), record(id=1, word=2), record(id=7, word="fine"))
    site.file.write_text(yaml.safe_dump(site.config | {"dead_letters": {"path": "dead", "limit": "100%"}}))
    said = landonce(capsys, monkeypatch, "run", site.file, "--once")
    assert said.code == 0
    counts, where, *reasons = said.out.splitlines()
    assert counts == "p: 209 read = 1 landed + 208 dead-lettered + 0 filtered"
    assert where == f"dead letters are in {site.dead}, by reason:"
    assert [each.split(" × ")[0].strip() for each in reasons] == ["206", "1", "1"]
    assert reasons[0].startswith(
        "  206 × malformed: not valid JSON: Unterminated string starting at character …, for example: "
    )
    assert {each.partition(" × ")[2] for each in reasons[1:]} == {
        "missing_field: missing required field 'id'",
        "wrong_type: field 'word' should be STRING but is an integer",
    }
    shown = landonce(capsys, monkeypatch, "state", "show", site.file).out
    assert f"208 dead letters in {site.dead}, by reason:\n{reasons[0]}" in shown
    document = json.loads(landonce(capsys, monkeypatch, "state", "show", site.file, "--json").out)
    assert [(each["records"], each["code"]) for each in document["dead_letters"]] == [
        (206, "malformed"),
        (1, "wrong_type"),
        (1, "missing_field"),
    ]


def test_types_that_only_postgres_has(pg: SqlSite) -> None:
    """Into a table of the user's own, in a schema of its own, with defaults, limits and columns that nobody fills."""
    pg.ask(
        "CREATE SCHEMA own; CREATE TYPE own.mood AS ENUM ('good', 'bad'); CREATE TABLE own.things ("
        "n bigserial PRIMARY KEY, u uuid, m own.mood, s varchar(5), r real, i smallint, b bytea, big numeric(30,5), "
        "made timestamptz NOT NULL DEFAULT now(), local timestamp, doc jsonb, "
        "_topic text, _partition int, _offset bigint)"
    )
    pg.write_file()
    pg.config["sink"]["sql"]["table"] = "own.things"
    pg.file.write_text(json.dumps(pg.config))
    u = "123e4567-e89b-12d3-a456-426614174000"
    pg.send(
        record(
            u=u,
            m="good",
            s="12345",
            r=0.5,
            i=7,
            b="aGk=",
            big="12345678901234567890.12345",
            local="2024-01-02T03:04:05",
        ),
        record(u="no", m="good"),
        record(m="ugly"),
        record(s="123456"),
        record(i=40000),
        record(s="nul\0"),
        record(s="übüb"),
    )
    assert pg.run() == Totals(landed=2, dead_lettered=5)
    [row] = pg.ask(
        "SELECT u::text, m::text, s, r, i, b, big::text, local::text, made IS NOT NULL FROM own.things WHERE i = 7"
    )
    assert row == (u, "good", "12345", 0.5, 7, b"hi", "12345678901234567890.12345", "2024-01-02 03:04:05", True)
    reasons = " ".join(line for path in pg.dead.glob("*.jsonl") for line in path.read_text().splitlines())
    assert "longer than 5 characters" in reasons
    assert "zero byte" in reasons


@pytest.mark.parametrize(
    ("made", "sink", "said"),
    [
        ("id bigint", {}, "has no column _topic"),
        ("id bigint, _topic text, _partition int", {}, "no column _offset"),
        ("id bigint, _topic text, _partition int, _offset bigint", {"mode": "upsert", "key": "id"}, "a key"),
        (
            "id bigint PRIMARY KEY, _topic text, _partition int, _offset bigint",
            {"mode": "upsert", "key": "no"},
            "no column",
        ),
        ("price money NOT NULL, _topic text, _partition int, _offset bigint", {}, "cannot become"),
        (
            "id numeric PRIMARY KEY, _topic text, _partition int, _offset bigint",
            {"mode": "upsert", "key": "id"},
            r"part of the key; declare it as DECIMAL",
        ),
    ],
)
def test_a_table_that_does_not_fit_is_named_before_anything_starts(
    pg: SqlSite, made: str, sink: dict[str, Any], said: str
) -> None:
    pg.ask(f"CREATE TABLE events ({made})")
    pg.write_file(**sink)
    with pytest.raises(TableUnfit, match=said):
        pg.run()


def test_an_unlogged_table_is_refused(pg: SqlSite) -> None:
    pg.ask("CREATE UNLOGGED TABLE events (id bigint, _topic text, _partition int, _offset bigint)")
    pg.write_file()
    with pytest.raises(TableUnfit, match="unlogged"):
        pg.run()


@BOTH
def test_a_lost_ledger_is_found_before_it_does_harm(site: SqlSite) -> None:
    site.write_file(schema="id BIGINT", create=True)
    site.send(*(record(id=n) for n in range(10)))
    site.run()
    for table in ("schema", "pipeline", "position", "journal", "block"):
        site.ask(f"DROP TABLE landonce_{table}")
    with pytest.raises(TargetAhead, match="without the table"):
        site.run()
    assert site.ask("SELECT count(*) FROM events") == [(10,)]


def test_a_ledger_beside_a_database_is_refused(site: SqlSite) -> None:
    site.write_file(create=True)
    site.file.write_text(json.dumps({**site.config, "ledger": {"sqlite": "x"}}))
    with pytest.raises(ConfigError, match="kept in the target"):
        site.run()


def test_an_operator_cannot_forget_what_landed(
    pg: SqlSite, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One block of the pending plan is in the table: the plan is settled, and not dropped. Then it can be changed."""
    pg.write_file(schema="id BIGINT NOT NULL", create=True)
    pg.send(*(record(id=n) for n in range(400)))
    monkeypatch.setattr("landonce.engine.perform.TransactPerformer.write", _halfway(pg))
    with pytest.raises(KeyboardInterrupt):
        pg.run()
    monkeypatch.undo()
    assert sorted(pg.ask("SELECT state FROM landonce_block")) == [("AFTER",), ("BEFORE",)]
    said = landonce(capsys, monkeypatch, "state", "rebase", pg.file, "--drop-pending", "--yes")
    assert said.code == PlanPending.exit_code, said.out + said.err
    assert "would be delivered again" in said.err.replace("\n", " ")
    pg.write_file(schema="id BIGINT NOT NULL, more STRING", create=True)
    pg.ask("ALTER TABLE events ADD COLUMN more text")
    with pytest.raises(PlanChanged, match="than the pipeline file has now") as refused:
        pg.run()
    assert refused.value.command.startswith("put the old pipeline file back, ")
    pg.write_file(schema="id BIGINT NOT NULL", create=True)
    assert pg.run().landed == 400, "the file is what was changed: the new column may stay"
    assert pg.ask("SELECT count(*), count(DISTINCT _offset) FROM events") == [(400, 400)]


def _halfway(pg: SqlSite) -> Any:
    from dataclasses import replace

    from landonce.engine.perform import TransactPerformer

    whole = TransactPerformer.write

    def half(self: Any, effect: Any, held: Any) -> Any:
        whole(self, replace(effect, indexes=effect.indexes[:1]), held)
        raise KeyboardInterrupt

    return half


class Hearing(Silent):
    """Does something once a start has said twice what it waits for."""

    def __init__(self, then: Callable[[], object]) -> None:
        self.then, self.warnings = then, list[str]()

    def trouble(self, what: str) -> None:
        self.warnings.append(what)
        if len(self.warnings) == 2:
            self.then()


def started(
    site: SqlSite, then: Callable[[], object] = lambda: None, stopping: threading.Event | None = None, **changes: Any
) -> tuple[Totals, list[str]]:
    watcher = Hearing(then)
    config = parse(yaml.safe_dump(site.config | changes), site.file)
    return run_pipeline(config, once=True, observer=watcher, stopping=stopping), watcher.warnings


def with_few_connections(site: SqlSite) -> None:
    """For a user who has none left."""
    site.ask("CREATE TABLE events (id bigint, _topic text, _partition int, _offset bigint)")
    name = f"few{site.url.rpartition('/')[2]}"
    site.ask(f"CREATE ROLE {name} LOGIN PASSWORD 'p' CONNECTION LIMIT 0")
    site.ask(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {name}; GRANT ALL ON SCHEMA public TO {name}")
    site.url = f"{site.url.partition('://')[0]}://{name}:p@{site.url.rpartition('@')[2]}"


@pytest.mark.parametrize("create", [False, True])
def test_a_start_without_a_free_connection_waits_for_one(pg: SqlSite, create: bool) -> None:
    """For `stall`, and not only for as long as one attempt takes."""
    with_few_connections(pg)
    pg.send(record(id=1))
    pg.write_file(create=create, schema="id BIGINT")
    began = time.monotonic()
    with pytest.raises(LandonceError, match="too many connections for role") as caught:
        started(pg, stall="3s")
    assert (type(caught.value), time.monotonic() - began >= 3) == (Stalled, True)
    name = pg.url.partition("://")[2].partition(":")[0]
    done, heard = started(pg, lambda: pg.ask(f"ALTER ROLE {name} CONNECTION LIMIT 20"))
    assert done == Totals(landed=1)
    assert heard[0].startswith("waiting, for at most 300 s: ")
    assert "too many connections" in heard[0]


def test_a_start_that_waits_is_stopped_at_once(pg: SqlSite) -> None:
    with_few_connections(pg)
    pg.write_file()
    stopping, began = threading.Event(), time.monotonic()
    with pytest.raises(Stalled, match="stopped while"):
        started(pg, stopping.set, stopping)
    assert time.monotonic() - began < 30


def test_a_start_waits_for_other_targets_too(pg: SqlSite) -> None:
    """A catalog that somebody has locked, and a ClickHouse that is down."""
    pg.send(record(id=1))
    pg.write_file(schema="id BIGINT")
    files = pg.folder / "catalog.db", pg.folder / "warehouse"
    catalog = {"type": "sql", "uri": f"sqlite:///{files[0]}?timeout=1", "warehouse": str(files[1])}
    with sqlite3.connect(files[0], isolation_level=None, check_same_thread=False) as locking:
        locking.execute("CREATE TABLE mine (a)")
        locking.execute("BEGIN EXCLUSIVE")
        lake = {"iceberg": {"table": "a.t", "create": True, "catalog": catalog}}
        done, heard = started(pg, lambda: locking.execute("COMMIT"), sink=lake)
    assert done == Totals(landed=1)
    assert "locked" in heard[0]
    down = {"clickhouse": {"url": f"http://127.0.0.1:{free_ports(1)[0]}", "table": "t"}}
    with pytest.raises(Stalled, match="the start waited for 2 s"):
        started(pg, sink=down, ledger={"sqlite": "x.ledger"}, stall="2s")
