"""Whole runs with values that a database refuses, nests or spells in its own way: what fits lands, what never can is a dead
letter, and what may fit later halts with the record's name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deliveries import spark_session
from pipelines import landonce
from pyspark.sql import SparkSession
from sql_runs import SqlSite, asking_postgres, asking_sqlite

from landonce.engine.perform import TransactPerformer
from landonce.errors import RetentionOverrun, TargetRefused
from landonce.local import LocalKafka
from landonce.protocol.ledger import Totals

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(240), pytest.mark.usefixtures("spark")]

COORDINATES = "_topic text, _partition int, _offset bigint"


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    yield from spark_session("test-sql-values")


@pytest.fixture(params=["postgresql", "sqlite"])
def site(request: pytest.FixtureRequest, kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path) -> SqlSite:
    if request.param == "sqlite":
        return SqlSite(kafka, tmp_path, new_topic(2), "sqlite:///t.db", asking_sqlite(tmp_path / "t.db"))
    return request.getfixturevalue("pg")


@pytest.fixture
def pg(new_database: Callable[[], str], kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path) -> SqlSite:
    url = new_database()
    return SqlSite(kafka, tmp_path, new_topic(1), url, asking_postgres(url))


def record(**fields: Any) -> tuple[None, bytes]:
    return None, json.dumps(fields).encode()


def letters(site: SqlSite) -> dict[int, str]:
    lines = [json.loads(line) for path in site.dead.glob("*.jsonl") for line in path.read_text().splitlines()]
    assert len({each["offset"] for each in lines}) == len(lines), "none of them twice"
    return {each["offset"]: each["reason"] for each in lines}


def verified(site: SqlSite, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> int:
    return landonce(capsys, monkeypatch, "verify", site.file).code


def test_rows_that_break_a_check_are_dead_letters(
    site: SqlSite, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside those that cannot be decoded, and nothing else of their block is lost. An audit finds each in its place, and one
    that is in neither."""
    site.ask(f"CREATE TABLE events (id bigint NOT NULL, word text CHECK (word <> 'no'), {COORDINATES})")
    site.write_file()
    bad = {7, 150, 151, 399}
    site.send(*(record(id=n, word="no" if n in bad else "yes") for n in range(400)), record(id="not a number"))
    assert site.run() == Totals(landed=396, dead_lettered=5)
    assert site.ask("SELECT count(*), count(DISTINCT _offset) FROM events WHERE word = 'yes'") == [(396, 396)]
    found = letters(site)
    assert set(found) == bad | {400}
    assert "CHECK" in found[7].upper()
    assert site.run() == Totals()
    assert letters(site) == found
    assert verified(site, capsys, monkeypatch) == 0
    path = next(each for each in site.dead.glob("*.jsonl") if '"offset": 7,' in each.read_text())
    path.write_text("".join(line for line in path.read_text().splitlines(True) if '"offset": 7,' not in line))
    assert verified(site, capsys, monkeypatch) == 1


def test_a_change_that_breaks_a_check_leaves_the_one_before(
    site: SqlSite, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = "numeric" if site.url.startswith("postgresql") else "int"
    site.ask(f"CREATE TABLE events (id bigint PRIMARY KEY, n {kind} CHECK (n < 10), {COORDINATES})")
    site.write_file(mode="upsert", key="id")
    site.send(record(id=1, n=1), record(id=2, n=5), record(id=1, n=99), record(id=3, n=99), record(id=2, n=6))
    assert site.run() == Totals(landed=3, dead_lettered=2)
    assert sorted(site.ask("SELECT id, n FROM events")) == [(1, 1), (2, 6)]
    assert set(letters(site)) == {2, 3}
    assert verified(site, capsys, monkeypatch) == 0


@pytest.mark.parametrize("start", [300, 400], ids=["some of it is left", "nothing is"])
def test_letters_of_a_block_that_landed_outlive_a_gap(
    site: SqlSite, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, start: int
) -> None:
    """The driver was killed between two blocks of a plan, and then Kafka deleted the records of both: what the first one's row
    says of its letters is all that is left of them."""
    site.ask(f"CREATE TABLE events (id bigint NOT NULL, word text CHECK (word <> 'no'), {COORDINATES})")
    site.write_file()
    site.send(*(record(id="none" if n == 8 else n, word="no" if n == 7 else "yes") for n in range(400)))
    monkeypatch.setattr(TransactPerformer, "write", _first_block_only(TransactPerformer.write))
    with pytest.raises(KeyboardInterrupt):
        site.run()
    monkeypatch.undo()
    assert site.ask("SELECT state FROM landonce_block ORDER BY number") == [("AFTER",), ("BEFORE",)]
    assert letters(site) == {}
    site.delete_records(before=start)
    with pytest.raises(RetentionOverrun):
        site.run()
    said = landonce(capsys, monkeypatch, "state", "accept-gap", site.file, "--yes")
    assert said.code == 0, said.out + said.err
    totals = site.run()
    assert set(letters(site)) == {7, 8}
    assert totals == Totals(landed=198 + 400 - start, dead_lettered=2)
    assert site.ask("SELECT count(*), count(DISTINCT _offset) FROM events") == [(598 - start, 598 - start)]
    assert not list(site.dead.glob("*.staged"))


def _first_block_only(whole: Callable[..., Any]) -> Callable[..., Any]:
    def killed(self: TransactPerformer, effect: Any, held: Any) -> Any:
        whole(self, replace(effect, indexes=effect.indexes[:1]), held)
        raise KeyboardInterrupt

    return killed


def test_a_row_whose_other_row_is_missing_halts_and_is_named(pg: SqlSite) -> None:
    pg.ask("CREATE TABLE parent (id bigint PRIMARY KEY); INSERT INTO parent VALUES (1)")
    pg.ask(f"CREATE TABLE events (id bigint REFERENCES parent (id), {COORDINATES})")
    pg.write_file()
    pg.send(record(id=1), record(id=1), record(id=2), record(id=1))
    with pytest.raises(TargetRefused, match=r"offset 2: .*foreign key"):
        pg.run()
    assert pg.ask("SELECT count(*) FROM events") == [(0,)]
    pg.ask("INSERT INTO parent VALUES (2)")
    assert pg.run() == Totals(landed=4)
    assert letters(pg) == {}


def test_nested_fields_are_documents(site: SqlSite) -> None:
    schema = "id BIGINT, doc STRUCT<a: INT, tags: ARRAY<STRING>, at: TIMESTAMP>, more MAP<STRING, DOUBLE>"
    site.write_file(schema=schema, create=True)
    doc = {"a": 1, "tags": ["x", 'y"', None], "at": "2024-01-02T03:04:05Z"}
    site.send(record(id=1, doc=doc, more={"z": 0.5}), record(id=2), record(id=3, doc={"a": "no"}))
    assert site.run() == Totals(landed=2, dead_lettered=1)
    found = {row[0]: row[1:] for row in site.ask("SELECT id, doc, more FROM events")}
    as_read = [json.loads(each) if isinstance(each, str) else each for each in found[1]]
    assert as_read == [{"a": 1, "tags": ["x", 'y"', None], "at": "2024-01-02T03:04:05+00:00"}, {"z": 0.5}]
    assert found[2] == (None, None)
    if site.url.startswith("postgresql"):
        assert site.ask("SELECT doc->>'a' FROM events WHERE doc @> '{\"a\": 1}'") == [("1",)]


def test_documents_of_a_table_of_ones_own(pg: SqlSite) -> None:
    """In any kind of column; text that is no document is a dead letter."""
    pg.ask(f"CREATE TABLE events (id bigint, a json, b jsonb NOT NULL, c text, d jsonb, {COORDINATES})")
    pg.write_file(schema="id BIGINT, a ARRAY<INT>, b STRING, c STRUCT<x: INT>")
    pg.send(
        record(id=1, a=[1, 2], b='{"k": 1}', c={"x": 3}), record(id=2, b="no document"), record(id=3, b='"\\u0000"')
    )
    assert pg.run() == Totals(landed=1, dead_lettered=2)
    assert pg.ask("SELECT a, b, c, d FROM events") == [([1, 2], {"k": 1}, '{"x":3}', None)]


def test_columns_of_json_take_any_value(
    pg: SqlSite, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a schema, and in a text column where it is declared. JSON keeps the text, JSONB its value."""
    pg.ask(f"CREATE TABLE events (id bigint, a json, b jsonb NOT NULL, c text, {COORDINATES})")
    pg.write_file()
    pg.send((None, b'{"id": 1, "a": {"x" : 1.50, "x":2}, "b": {"x" : 1.50}, "c": "plain"}'))
    pg.send((None, b'{"id": 2, "b": "text"}'), (None, b'{"id": 3}'), (None, b'{"id": 4, "b": "\\u0000"}'))
    assert pg.run() == Totals(landed=2, dead_lettered=2)
    assert set(letters(pg)) == {2, 3}, "JSONB holds no zero byte"
    pg.write_file(schema="id BIGINT, a JSON, b JSON NOT NULL, c JSON")
    pg.send((None, b'{"id": 5, "b": [ 1 ], "c": [ 1 ]}'))
    assert pg.run() == Totals(landed=1)
    assert pg.ask("SELECT id, a::text, b::text, c FROM events ORDER BY id") == [
        (1, '{"x" : 1.50, "x":2}', '{"x": 1.50}', "plain"),
        (2, None, '"text"', None),
        (5, None, "[1]", "[ 1 ]"),
    ]


def test_numbers_that_are_none_and_moments(pg: SqlSite) -> None:
    """What is not finite is kept where the database knows it. Moments are in UTC, and never rounded."""
    pg.ask(
        f"CREATE TABLE events (id bigint, x float8, z timestamptz, bare timestamp, whole timestamptz(0), {COORDINATES})"
    )
    select = ["id", "x / 0.5D * cast('Infinity' AS DOUBLE) AS x", "z", "bare", "whole"]
    schema = "id BIGINT, x DOUBLE, z TIMESTAMP, bare TIMESTAMP, whole TIMESTAMP"
    pg.write_file(schema=schema, transform={"select": select})
    at = "2024-01-02T03:04:05+02:00"
    pg.send(record(id=1, x=1, z=at, bare=at, whole=at), record(id=2, whole="2024-01-02T03:04:05.5Z"))
    assert pg.run() == Totals(landed=1, dead_lettered=1)
    moment = "2024-01-02 01:04:05"
    asked = "SELECT x::text, (z AT TIME ZONE 'UTC')::text, bare::text, (whole AT TIME ZONE 'UTC')::text FROM events"
    assert pg.ask(asked) == [("Infinity", moment, moment, moment)]


def test_numbers_that_are_none_are_dead_letters_in_sqlite(
    kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """SQLite would make NULL of them without a word."""
    site = SqlSite(kafka, tmp_path, new_topic(1), "sqlite:///t.db", asking_sqlite(tmp_path / "t.db"))
    site.ask("CREATE TABLE events (id bigint, x double, _topic text, _partition int, _offset bigint)")
    select = ["id", "x * cast('NaN' AS DOUBLE) AS x"]
    site.write_file(schema="id BIGINT, x DOUBLE", transform={"select": select})
    site.send(record(id=1, x=1.5), record(id=2))
    assert site.run() == Totals(landed=1, dead_lettered=1)
    assert site.ask("SELECT id, x FROM events") == [(2, None)]
