"""A table that is altered under a running driver, between two of its batches: it is examined again, and values are right or refused.
And one that is dropped, renamed or swapped for another: no record is missing without a word."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deliveries import spark_session
from mariadb_server import LocalMariaDB
from pipelines import landonce
from pyspark.sql import SparkSession
from sql_runs import SqlSite, asking_postgres, asking_sqlite

from landonce.engine.observe import BatchReport, Silent
from landonce.engine.pipeline import run_pipeline
from landonce.errors import ConfigError, LandonceError, TableReplaced, TableUnfit
from landonce.local import LocalKafka
from landonce.protocol.ledger import Totals
from landonce.sinks.pipeline_file import parse

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(240), pytest.mark.usefixtures("spark")]

COORDINATES = "_topic varchar(249), _partition int, _offset bigint"
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    yield from spark_session("test-sql-altered")


@pytest.fixture
def pg(new_database: Callable[[], str], kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path) -> SqlSite:
    url = new_database()
    return SqlSite(kafka, tmp_path, new_topic(1), url, asking_postgres(url))


@pytest.fixture
def lite(kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path) -> SqlSite:
    asking_sqlite(tmp_path / "t.db")("SELECT 1")
    return SqlSite(kafka, tmp_path, new_topic(1), "sqlite:///t.db", asking_sqlite(tmp_path / "t.db"))


@pytest.fixture
def maria(mariadb: LocalMariaDB, kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path) -> SqlSite:
    database = f"altered{next(_numbers)}"
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {database} CHARACTER SET utf8mb4")

    def ask(query: str) -> list[tuple[Any, ...]]:
        with mariadb.connect(database) as connection, connection.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())

    return SqlSite(kafka, tmp_path, new_topic(1), mariadb.url_of(database), ask)


class Altering(Silent):
    """After the first batch somebody alters the table."""

    def __init__(self, site: SqlSite, *statements: str) -> None:
        self.site, self.statements = site, statements
        self.warnings: list[str] = []

    def batch(self, report: BatchReport) -> None:
        for each in self.statements if report.batch == 1 else ():
            self.site.ask(each)

    def trouble(self, what: str) -> None:
        self.warnings.append(what)


def run(site: SqlSite, *records: dict[str, Any], alter: tuple[str, ...], **sink: Any) -> tuple[Totals, list[str]]:
    """Each record is a batch of its own, of one running driver."""
    site.send(*((None, json.dumps(each).encode()) for each in records))
    site.write_file(**sink)
    text = site.file.read_text().replace("max_rows: 1000", "max_rows: 1").replace("block_rows: 200", "block_rows: 1")
    watcher = Altering(site, *alter)
    return run_pipeline(parse(text, site.file), once=True, observer=watcher), watcher.warnings


def letters(site: SqlSite) -> list[str]:
    return [line for path in site.dead.glob("*.jsonl") for line in path.read_text().splitlines()]


def test_a_number_in_another_type_is_that_number(pg: SqlSite) -> None:
    pg.ask(f"CREATE TABLE events (n bigint, {COORDINATES})")
    done, warnings = run(
        pg, {"n": 41}, {"n": 42}, {"n": 43}, alter=("ALTER TABLE events ALTER n TYPE double precision",)
    )
    assert pg.ask("SELECT n, _offset FROM events ORDER BY 2") == [(41.0, 0), (42.0, 1), (43.0, 2)]
    assert done == Totals(landed=3)
    assert len([each for each in warnings if "altered" in each]) == 1, "it is examined again once"


def test_digits_that_a_column_lost_are_never_rounded_away(pg: SqlSite) -> None:
    pg.ask(f"CREATE TABLE events (n numeric(10,4), {COORDINATES})")
    records = [{"n": "1.2399"}, {"n": "1.2399"}, {"n": "1.23"}]
    done, _ = run(pg, *records, alter=("DELETE FROM events", "ALTER TABLE events ALTER n TYPE numeric(10,2)"))
    assert [(str(n), at) for n, at in pg.ask("SELECT n, _offset FROM events")] == [("1.23", 2)]
    assert done == Totals(landed=2, dead_lettered=1)


def test_what_fits_by_now_is_no_dead_letter(maria: SqlSite) -> None:
    maria.ask(f"CREATE TABLE events (word varchar(3), {COORDINATES})")
    done, _ = run(maria, {"word": "abc"}, {"word": "abcdef"}, alter=("ALTER TABLE events MODIFY word varchar(9)",))
    assert maria.ask("SELECT word FROM events ORDER BY _offset") == [("abc",), ("abcdef",)]
    assert done == Totals(landed=2)
    assert letters(maria) == []


def test_a_table_that_lost_its_transactions_is_refused(maria: SqlSite) -> None:
    """What rolls back would stay there, and stand there twice after the next try."""
    maria.ask(f"CREATE TABLE events (id bigint, {COORDINATES})")
    with pytest.raises(TableUnfit, match="no transactions") as caught:
        run(maria, {"id": 1}, {"id": 2}, alter=("ALTER TABLE events ENGINE = Aria",))
    assert "rolled back" in str(caught.value.safe)
    assert maria.ask("SELECT id FROM events") == [(1,)]
    maria.ask("ALTER TABLE events ENGINE = InnoDB")
    assert maria.run() == Totals(landed=1)
    assert maria.ask("SELECT id FROM events ORDER BY 1") == [(1,), (2,)]


def test_a_second_unique_key_lets_no_change_find_another_row(maria: SqlSite) -> None:
    maria.ask(f"CREATE TABLE events (id bigint PRIMARY KEY, word varchar(20), {COORDINATES})")
    with pytest.raises(TableUnfit, match="another unique key"):
        run(
            maria,
            {"id": 1, "word": "w"},
            {"id": 2, "word": "w"},
            alter=("CREATE UNIQUE INDEX words ON events (word)",),
            mode="upsert",
            key="id",
        )
    assert maria.ask("SELECT id, word FROM events") == [(1, "w")]


def test_columns_that_come_while_it_runs_are_filled(lite: SqlSite) -> None:
    """By somebody's hand, and then by landonce's own."""
    lite.ask(f"CREATE TABLE events (id bigint, {COORDINATES})")
    records = [{"id": 1}, {"id": 2, "late": "b"}, {"id": 3, "late": "c", "more": 7}]
    done, _ = run(lite, *records, alter=("ALTER TABLE events ADD COLUMN late text",), evolve=True)
    assert lite.ask("SELECT id, late, more FROM events ORDER BY id") == [(1, None, None), (2, "b", None), (3, "c", 7)]
    assert done == Totals(landed=3)


def test_a_table_that_is_gone_is_not_created_again(
    lite: SqlSite, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows would be missing, and nobody would say so. The same where the file names another table."""
    lite.send((None, b'{"id": 1}'))
    lite.write_file(schema="id BIGINT", create=True)
    assert lite.run() == Totals(landed=1)
    lite.send((None, b'{"id": 2}'))
    lite.ask("CREATE TABLE kept AS SELECT * FROM events")
    lite.ask("DROP TABLE events")
    with pytest.raises(TableReplaced, match=r"\b1 records"):
        lite.run()
    assert lite.ask("SELECT name FROM sqlite_master WHERE name = 'events'") == []
    reply = landonce(capsys, monkeypatch, "check", lite.file)
    assert reply.code == 1
    assert "there is no table events" in reply.out
    lite.ask("ALTER TABLE kept RENAME TO events")
    assert lite.run() == Totals(landed=1)
    assert lite.ask("SELECT id FROM events ORDER BY 1") == [(1,), (2,)]
    lite.send((None, b'{"id": 3}'))
    lite.ask("DROP TABLE events")
    with pytest.raises(TableReplaced) as caught:
        lite.run()
    assert caught.value.command.endswith("create the table yourself, then: landonce state forget-table {file} events")
    lite.ask(f"CREATE TABLE events (id bigint, {COORDINATES})")
    assert landonce(capsys, monkeypatch, "state", "forget-table", lite.file, "events", "--yes").code == 0
    assert lite.run() == Totals(landed=1)
    assert lite.ask("SELECT id FROM events") == [(3,)]


UNFIT = [
    "ALTER TABLE events RENAME COLUMN word TO words",
    "ALTER TABLE events DROP COLUMN word",
    "ALTER TABLE events ADD COLUMN more int; UPDATE events SET more = 1; ALTER TABLE events ALTER more SET NOT NULL",
]


@pytest.mark.parametrize("alter", UNFIT)
def test_a_table_that_does_not_fit_any_more_says_so_and_what_to_do(pg: SqlSite, alter: str) -> None:
    pg.ask(f"CREATE TABLE events (id bigint, word text, {COORDINATES})")
    with pytest.raises(LandonceError) as caught:
        run(
            pg,
            {"id": 1, "word": "a"},
            {"id": 2, "word": "b"},
            alter=tuple(alter.split("; ")),
            schema="id BIGINT, word STRING",
        )
    assert (type(caught.value), caught.value.exit_code) == (TableUnfit, 3)
    assert "rolled back" in caught.value.safe
    assert "landonce run" in caught.value.command
    assert pg.ask("SELECT id FROM events") == [(1,)]
    with pytest.raises(ConfigError) as at_start:
        pg.run()
    assert "Nothing was read or written" in at_start.value.safe
    assert "`source.kafka.schema` in {file}" in at_start.value.command or "default" in at_start.value.command


@pytest.fixture(params=["pg", "lite", pytest.param("maria", marks=pytest.mark.long)])
def each(request: pytest.FixtureRequest) -> SqlSite:
    site: SqlSite = request.getfixturevalue(request.param)
    return site


def test_a_table_that_is_renamed_under_a_driver_is_missed(each: SqlSite) -> None:
    each.ask(f"CREATE TABLE events (id bigint, {COORDINATES})")
    with pytest.raises(LandonceError, match="there is no table events") as caught:
        run(each, {"id": 1}, {"id": 2}, alter=("ALTER TABLE events RENAME TO others",))
    assert isinstance(caught.value, TableReplaced)
    each.ask("ALTER TABLE others RENAME TO events")
    assert each.run() == Totals(landed=1)


SWAP = (
    "CREATE TABLE fresh (id bigint, {0})",
    "ALTER TABLE events RENAME TO gone",
    "ALTER TABLE fresh RENAME TO events",
)


def waits(site: SqlSite) -> tuple[str, ...]:
    """MariaDB knows to the second when a table was created."""
    return ("DO SLEEP(1.1)",) if site.url.startswith("mariadb") else ()


def test_a_table_that_is_swapped_for_an_empty_one_gets_nothing(
    each: SqlSite, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under a running driver and at a start; a person may say that it takes the old one's place."""
    swap = (*waits(each), *(statement.format(COORDINATES) for statement in SWAP))
    each.ask(f"CREATE TABLE events (id bigint, {COORDINATES})")
    with pytest.raises(TableReplaced, match="not the one that 1 records"):
        run(each, {"id": 1}, {"id": 2}, alter=swap)
    assert each.ask("SELECT id FROM events") == []
    with pytest.raises(TableReplaced) as caught:
        each.run()
    assert "landonce state forget-table {file} events" in caught.value.command
    reply = landonce(capsys, monkeypatch, "check", each.file)
    assert (reply.code, "not the one that 1 records" in reply.out.replace("\n          ", " ")) == (1, True), reply.out
    said = landonce(capsys, monkeypatch, "state", "forget-table", each.file, "events", "--yes")
    assert said.code == 0, said.out + said.err
    assert each.run() == Totals(landed=1)
    assert each.ask("SELECT id FROM events") == [(2,)]
    each.send((None, b'{"id": 3}'))
    assert each.run() == Totals(landed=1), "the table that took its place is the pipeline's own from now on"


def test_a_table_that_was_restored_goes_on_after_a_word(
    each: SqlSite, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL tells a copy from the table itself; the others see that the rows are there."""
    each.ask(f"CREATE TABLE events (id bigint, {COORDINATES})")
    copy = ("CREATE TABLE fresh AS SELECT * FROM events", *SWAP[1:])
    if each.url.startswith("postgresql"):
        with pytest.raises(TableReplaced):
            run(each, {"id": 1}, {"id": 2}, alter=copy)
        assert landonce(capsys, monkeypatch, "state", "forget-table", each.file, "events", "--yes").code == 0
        assert each.run() == Totals(landed=1)
    else:
        assert run(each, {"id": 1}, {"id": 2}, alter=copy)[0] == Totals(landed=2)
    assert each.ask("SELECT id FROM events ORDER BY 1") == [(1,), (2,)]
    each.send((None, b'{"id": 3}'))
    assert each.run() == Totals(landed=1)


def test_a_file_that_names_another_table_does_not_leave_records_behind(pg: SqlSite) -> None:
    """A table that was renamed, in the database and in the file, is still the same."""
    pg.ask(f"CREATE TABLE events (id bigint, {COORDINATES})")
    pg.ask(f"CREATE TABLE empty (id bigint, {COORDINATES})")
    pg.send((None, b'{"id": 1}'))
    pg.write_file()
    assert pg.run() == Totals(landed=1)
    pg.send((None, b'{"id": 2}'))
    pg.write_file(table="empty")
    with pytest.raises(TableReplaced, match="landed in, events"):
        pg.run()
    pg.ask("ALTER TABLE events RENAME TO renamed")
    pg.write_file(table="renamed")
    assert pg.run() == Totals(landed=1)
    assert pg.ask("SELECT id FROM renamed ORDER BY 1") == [(1,), (2,)]


def test_a_table_that_is_emptied_is_still_the_same(pg: SqlSite) -> None:
    """Rows that somebody took away are nobody's fault."""
    pg.ask(f"CREATE TABLE events (id bigint, {COORDINATES})")
    assert run(pg, {"id": 1}, {"id": 2}, alter=("TRUNCATE events",))[0] == Totals(landed=2)
    assert pg.ask("SELECT id FROM events") == [(2,)]
