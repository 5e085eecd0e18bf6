"""Names that try to end a statement or to leave a folder, as columns, tables and topics, on live servers: each is only ever a name or is
refused in words, and nothing else changes on the server: no database, table, column or user."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from corpus.names import BLANK, INJECTIONS, NAMES, OF_DIALECTS, REFUSED_SOMEWHERE, TOPICS
from deliveries import ask, do, letters, send
from mariadb_server import LocalMariaDB
from pyiceberg.catalog import Catalog, load_catalog
from sqlalchemy import create_engine

import landonce
from landonce.errors import LandonceError
from landonce.ledger.names import quoted
from landonce.local import LocalClickHouse, LocalKafka
from landonce.local.postgres import LocalPostgres
from landonce.read.schema.fields import Field, Schema
from landonce.sinks.clickhouse.config import ClickHouse
from landonce.sinks.clickhouse.sink import ClickHouseSink
from landonce.sinks.iceberg.table import Creation, create_table
from landonce.sinks.parts import open_parts
from landonce.sinks.pipeline_file import parse
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.sql.statements import syntax_of
from landonce.sinks.sql.table import SqlTable
from landonce.verify.audit import opened_audit

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

Things = set[tuple[str, ...]]
"""Databases, tables, columns and users of a server, each with its kind in front."""
OWN = ("_topic", "_partition", "_kafka_partition", "_offset")
_TIME = 'at 100% ":n" %s'
"""PostgreSQL's times are read back by an expression of text."""
_ONE = Schema((Field("id", pa.int64()),))
_NUL = tuple(name for name in REFUSED_SOMEWHERE if "\0" in name)
_BEYOND = tuple(name for name in NAMES if any(ord(each) > 0xFFFF for each in name))


@dataclass(frozen=True)
class Server:
    """A server as a pipeline names it, and as a client without any code of landonce sees it."""

    sink: Callable[[str], dict[str, Any]]
    """The section of a pipeline file for the table of this name."""
    create: Callable[[str, Schema], object]
    """Creates a table as landonce does."""
    create_all: Callable[[Sequence[str]], object]
    """Creates many tables with one column."""
    things: Callable[[], Things]
    row: Callable[[str], dict[str, Any]]
    """The only row of a table."""
    database: str
    no_columns: tuple[str, ...]
    """Names that a column cannot have here."""
    no_tables: tuple[str, ...]
    alike: tuple[str, ...] = ()
    """Names that the server takes for others of the list in a statement, and refuses beside them."""
    keywords: Callable[[], list[str]] = list
    """The words that the server's own list names."""


@pytest.fixture(params=["clickhouse", "postgres", "mariadb", "sqlite", "iceberg"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    made: Callable[..., Any] = globals()[f"_{request.param}"]
    needed = None if request.param in ("sqlite", "iceberg") else request.getfixturevalue(request.param)
    with made(needed, tmp_path) as server:
        yield server


@contextmanager
def _clickhouse(local: LocalClickHouse, folder: Path) -> Iterator[Server]:
    url = local.url

    def things() -> Things:
        asked = (
            "SELECT ['database', name] AS it FROM system.databases",
            "SELECT ['table', database, name] AS it FROM system.tables WHERE database != 'system'",
            "SELECT ['column', database, table, name] AS it FROM system.columns WHERE database != 'system'",
            "SELECT ['user', name] AS it FROM system.users",
        )
        return {tuple(each["it"]) for query in asked for each in ask(url, query)}

    def named(table: str) -> str:
        escaped = table.replace("\\", "\\\\").replace("`", "\\`")
        return f"hostile.`{escaped}`"

    def create(table: str, schema: Schema) -> None:
        section = ClickHouse.model_validate({"url": url, "table": named(table)})
        ClickHouseSink(section, "hostile").target().create(schema)

    do(url, "CREATE DATABASE IF NOT EXISTS hostile")
    do(url, "CREATE TABLE IF NOT EXISTS victims (x Int32) ENGINE = Memory")
    yield Server(
        lambda table: {"clickhouse": {"url": url, "table": named(table), "create": True}},
        create,
        lambda names: [create(each, _ONE) for each in names],
        things,
        lambda table: ask(url, f"SELECT * FROM {named(table)}")[0],
        "hostile",
        ("", *_NUL, "_part", "_table"),
        ("", *_NUL, "z" * 300),
    )
    do(url, "DROP DATABASE hostile")


@contextmanager
def _postgres(local: LocalPostgres, folder: Path) -> Iterator[Server]:
    with psycopg.connect(local.url.replace("+psycopg", ""), autocommit=True) as connection:

        def things() -> Things:
            rows = connection.execute(
                """
                SELECT ARRAY['database', datname] FROM pg_database UNION ALL SELECT ARRAY['user', rolname] FROM pg_roles
                UNION ALL SELECT ARRAY['table', nspname, relname] FROM pg_class JOIN pg_namespace AS n ON n.oid = relnamespace
                WHERE relkind IN ('r', 'v', 'm', 'p', 'f', 'S') AND nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
                UNION ALL SELECT ARRAY['column', table_schema, table_name, column_name] FROM information_schema.columns
                WHERE table_schema NOT IN ('pg_catalog', 'information_schema')
                """
            )
            return {tuple(row[0]) for row in rows}

        def row(table: str) -> dict[str, Any]:
            found = connection.execute(
                psycopg.sql.SQL("SELECT * FROM hostile.{}").format(psycopg.sql.Identifier(table))
            )
            return dict(zip([each.name for each in found.description or ()], found.fetchone() or (), strict=True))

        connection.execute("CREATE SCHEMA hostile; CREATE TABLE hostile.victims (x int)")
        long = tuple(name for name in REFUSED_SOMEWHERE if len(name.encode()) > 63)
        no = ("", *long, *_NUL)
        made = _sql_server(local.url, things, row, "hostile", (*no, "ctid", "xmin", "tableoid"), no)
        words = connection.execute("SELECT array_agg(word) FROM pg_get_keywords()").fetchone() or ([],)
        yield replace(made, keywords=lambda: words[0])
        connection.execute("DROP SCHEMA hostile CASCADE")


@contextmanager
def _mariadb(local: LocalMariaDB, folder: Path) -> Iterator[Server]:
    with local.connect() as connection, connection.cursor() as cursor:

        def things() -> Things:
            asked = (
                "SELECT 'database', schema_name FROM information_schema.schemata",
                "SELECT 'table', table_schema, table_name FROM information_schema.tables WHERE table_schema IN ('hostile', DATABASE())",
                "SELECT 'column', table_schema, table_name, column_name FROM information_schema.columns "
                "WHERE table_schema IN ('hostile', DATABASE())",
                "SELECT 'user', user, host FROM mysql.user",
            )
            found: Things = set()
            for query in asked:
                cursor.execute(query)
                found |= set(cursor.fetchall())
            return found

        def row(table: str) -> dict[str, Any]:
            cursor.execute("SELECT * FROM hostile.`{}`".format(table.replace("`", "``")))
            return dict(zip([each[0] for each in cursor.description], cursor.fetchone(), strict=True))

        cursor.execute("CREATE DATABASE hostile CHARACTER SET utf8mb4")
        cursor.execute("CREATE TABLE hostile.victims (x int)")
        long = tuple(name for name in REFUSED_SOMEWHERE if len(name) > 64)
        lines = tuple(name for name in NAMES if "\n" in name)
        no = ("", " ", "a ", *long, *_NUL, *_BEYOND, *lines)
        cursor.execute("SELECT lower(word) FROM information_schema.keywords WHERE word REGEXP '^[A-Za-z_]+$'")
        words = [each for (each,) in cursor.fetchall()]
        yield replace(
            _sql_server(local.url, things, row, "hostile", no, no),
            alike=("Å", "A\u030a", "ſ", "ı", "İ", "éx", "ａ"),
            keywords=lambda: words,
        )
        cursor.execute("DROP DATABASE hostile")


@contextmanager
def _sqlite(local: None, folder: Path) -> Iterator[Server]:
    path = folder / "t.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:

        def things() -> Things:
            tables = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')").fetchall()
            columns = connection.execute(
                "SELECT 'column', '', t.name, c.name FROM sqlite_master AS t, pragma_table_info(t.name) AS c WHERE t.type = 'table'"
            )
            files = {("file", each.name) for each in folder.iterdir() if each.name.endswith(".db")}
            return {("table", "", name) for (name,) in tables} | set(columns) | files

        def row(table: str) -> dict[str, Any]:
            found = connection.execute('SELECT * FROM "{}"'.format(table.replace('"', '""')))
            return dict(zip([each[0] for each in found.description], found.fetchone(), strict=True))

        connection.execute("CREATE TABLE victims (x int)")
        yield _sql_server(
            f"sqlite:///{path}", things, row, "", ("", "z" * 300, *_NUL), ("", "z" * 300, *_NUL, "sqlite_master")
        )


def _sql_server(
    url: str,
    things: Callable[[], Things],
    row: Callable[[str], dict[str, Any]],
    schema: str,
    no_columns: tuple[str, ...],
    no_tables: tuple[str, ...],
) -> Server:
    def named(table: str) -> str:
        return f"{schema}.{table}" if schema else table

    def create(table: str, declared: Schema) -> None:
        with closing(SqlTable(SqlSink(url, named(table), "hostile"))) as opened:
            opened.create(declared)
            opened.schema(declared)

    def create_all(names: Sequence[str]) -> None:
        """Over one connection: to open one takes most of the time."""
        create(names[0], _ONE)
        with closing(SqlTable(SqlSink(url, named(names[0]), "hostile"))) as opened:
            for each in names[1:]:
                opened.sink = SqlSink(url, named(each), "hostile")
                opened.create(_ONE)

    return Server(
        lambda table: {"sql": {"url": url, "table": named(table), "create": True}},
        create,
        create_all,
        things,
        row,
        schema,
        no_columns,
        no_tables,
    )


@contextmanager
def _iceberg(local: None, folder: Path) -> Iterator[Server]:
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/lake"}
    opened: Catalog = load_catalog("landonce", **catalog)
    opened.create_namespace("hostile")

    def things() -> Things:
        found: Things = {("database", *each) for each in opened.list_namespaces()}
        tables = [each for space in opened.list_namespaces() for each in opened.list_tables(space)]
        found |= {("table", *each) for each in tables}
        found |= {("column", *each, name.name) for each in tables for name in opened.load_table(each).schema().fields}
        outside = {each for each in folder.rglob("*") if folder / "lake" / "hostile" not in (each, *each.parents)}
        return found | {("file", str(each)) for each in outside if "dead" not in each.parts and each != folder / "lake"}

    yield Server(
        lambda table: {"iceberg": {"table": f"hostile.{table}", "create": True, "catalog": catalog}},
        lambda table, schema: create_table(opened, f"hostile.{table}", schema, Creation()),
        lambda names: [create_table(opened, f"hostile.{each}", _ONE, Creation()) for each in names],
        things,
        lambda table: opened.load_table(f"hostile.{table}").scan().to_arrow().to_pylist()[0],
        "hostile",
        (),
        ("", *(name for name in (*NAMES, *REFUSED_SOMEWHERE) if set(name) & set("#?\0"))),
    )


def unlike(before: Things, after: Things, database: str, table: str, columns: Collection[str]) -> Things:
    """What changed, apart from this table, the ledger's tables and SQLite's own table of numbers."""
    asked = {("table", database, table), *(("column", database, table, name) for name in (*columns, *OWN))}
    ours = {each for each in after if each[0] in ("table", "column") and each[2].startswith("landonce_")}
    return (before ^ after) - asked - ours


def run(
    kafka: LocalKafka, folder: Path, topics: list[str], sink: dict[str, Any], schema: str | None = None
) -> tuple[int, int]:
    document = {
        "pipeline": "hostile-" + sink[next(iter(sink))]["table"].rpartition(".")[2].strip("`"),
        "source": {"kafka": {"bootstrap_servers": kafka.bootstrap_servers, "topics": topics, "schema": schema}},
        "sink": sink,
        "dead_letters": {"path": "dead"},
        "spark": {"master": "local[2]"},
    }
    config = parse(yaml.safe_dump(document), folder / "p.yaml")
    found = landonce.run_pipeline(config, once=True)
    assert letters(folder / "dead") == []
    if len(topics) == 1:  # an audit takes a second for each
        with opened_audit(open_parts(config), values=True) as audit:
            assert audit.audit().exact, "`verify --values` reads every column by its name"
    return found.landed, found.dead_lettered


def test_there_are_enough_of_them() -> None:
    assert len(set(NAMES)) == len(NAMES) >= 250
    assert not set(NAMES) & set(REFUSED_SOMEWHERE)


def test_as_columns(server: Server, kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path) -> None:
    """All in one record: the schema is inferred from it, the table is created, and each value is in the column of its name."""
    wanted = {name: number for number, name in enumerate(NAMES) if name not in (*server.no_columns, *server.alike)}
    topic = new_topic(partitions=1)
    send(kafka, topic, [{**wanted, _TIME: "2026-01-31T01:02:03Z", **dict.fromkeys(BLANK, -1)}], 0)
    before = server.things()
    assert run(kafka, tmp_path, [topic], server.sink("columns")) == (1, 0)
    found = server.row("columns")
    assert {name: found[name] for name in wanted} == wanted
    assert len(found) == len(wanted) + 4
    assert unlike(before, server.things(), server.database, "columns", (*wanted, _TIME)) == set()


@pytest.mark.parametrize("server", ["postgres", "mariadb", "sqlite"], indirect=True)
def test_as_columns_that_records_add(server: Server) -> None:
    """`evolve: true`. Names that the database does not take are left out."""
    server.create("added", _ONE)
    before, section = server.things(), server.sink("added")["sql"]
    with closing(SqlTable(SqlSink(section["url"], section["table"], "hostile"))) as table:
        names = [each for each in (*NAMES[::3], *REFUSED_SOMEWHERE) if each not in server.alike]
        table.add(dict.fromkeys(names, pa.int64()))
    added = {each[3] for each in server.things() - before}
    assert added == {each for each in names if each not in server.no_columns}
    assert before <= server.things()


@pytest.mark.parametrize("server", ["postgres", "mariadb", "sqlite"], indirect=True)
@pytest.mark.parametrize("name", ["100% of :all", "%%s", "a\\:b"])
def test_as_tables_that_records_add_columns_to(server: Server, name: str) -> None:
    """`evolve: true`."""
    server.create(name, _ONE)
    before, section = server.things(), server.sink(name)["sql"]
    with closing(SqlTable(SqlSink(section["url"], section["table"], "hostile"))) as table:
        assert table.add({name: pa.int64()}) == (name,)
    assert {each[2:] for each in server.things() - before} == {(name, name)}


def test_as_values_that_name_tables(kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path) -> None:
    """One Iceberg table per value of a field: a value is a table of the namespace, or its record is a dead letter. No file is elsewhere."""
    values = [*NAMES[::40], "../../x", "/../../x", "..", "a/../../../b", "# x", "x?y", "\0", "", "z" * 300]
    topic, outside = new_topic(partitions=1), set(tmp_path.parent.iterdir())
    send(kafka, topic, [{"kind": each, "id": at} for at, each in enumerate(values)], 0)
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/lake"}
    kafka_ = {"bootstrap_servers": kafka.bootstrap_servers, "topics": [topic], "schema": "kind STRING, id BIGINT"}
    document = {
        "pipeline": "values",
        "source": {"kafka": kafka_},
        "sink": {"iceberg": {"table": "hostile.t_{kind}", "create": True, "catalog": catalog}},
        "dead_letters": {"path": "dead"},
        "spark": {"master": "local[2]"},
    }
    found = landonce.run_pipeline(parse(yaml.safe_dump(document), tmp_path / "p.yaml"), once=True)
    dead = {each["offset"] for each in letters(tmp_path / "dead")}
    assert found.landed + len(dead) == len(values)
    assert found.landed >= 2
    opened = load_catalog("landonce", **catalog)
    tables = [each for space in opened.list_namespaces() for each in opened.list_tables(space)]
    landed = {row["kind"] for each in tables for row in opened.load_table(each).scan().to_arrow().to_pylist()}
    assert landed == {each for at, each in enumerate(values) if at not in dead}
    assert {space[0] for space in opened.list_namespaces()} == {"hostile"}
    assert set(tmp_path.parent.iterdir()) == outside
    assert {each.name for each in tmp_path.iterdir()} <= {
        "lake",
        "catalog.db",
        "dead",
        "landonce.ledger",
        "landonce.ledger-wal",
        "landonce.ledger-shm",
    }
    assert {each.name for each in (tmp_path / "lake").iterdir()} <= {"hostile", "hostile.db"}


@pytest.mark.parametrize("server", ["postgres", "mariadb"], indirect=True)
def test_every_keyword_of_the_server_as_a_column(server: Server) -> None:
    before = server.things()
    server.create("keywords", Schema(tuple(Field(each, pa.int64()) for each in server.keywords())))
    assert unlike(before, server.things(), server.database, "keywords", server.keywords()) == set()
    assert {each[3] for each in server.things() - before if each[0] == "column"} == {*server.keywords(), *OWN} - {
        OWN[2]
    }


def test_columns_that_cannot_be_are_refused_in_words(server: Server) -> None:
    before = server.things()
    for name in server.no_columns:
        with pytest.raises(LandonceError) as refused:
            server.create("never", Schema((Field("id", pa.int64()), Field(name, pa.int64()))))
        assert str(refused.value)
        assert server.things() == before, name


@pytest.mark.parametrize(
    ("server", "made", "hint"),
    [
        ("postgres", "CREATE UNLOGGED TABLE {} ({})", "SET LOGGED"),
        ("mariadb", "CREATE TABLE {} ({}) ENGINE = MyISAM", "ENGINE = InnoDB"),
    ],
    indirect=["server"],
)
def test_what_a_check_says_to_run_changes_only_its_table(server: Server, made: str, hint: str) -> None:
    """As it is pasted into a client that takes several statements."""
    names = [each for each in (*INJECTIONS[::5], *OF_DIALECTS[:4], "100% :x") if each not in server.no_tables]
    for name in (each for each in names if "." not in each):
        section = server.sink(name)["sql"]
        sink = SqlSink(section["url"], section["table"], "hostile")
        with closing(SqlTable(sink)) as table, closing(create_engine(section["url"]).raw_connection()) as connection:
            columns = "id int, _topic varchar(9) NOT NULL, _partition int NOT NULL, _offset bigint NOT NULL"
            dialect = syntax_of(sink.dialect).made
            connection.cursor().execute(made.format(quoted(dialect, *sink.table.split(".")), columns))
            connection.commit()
            before = server.things()
            (said,) = [each.change for each in table.check(None) if hint in each.change]
            connection.cursor().execute(said)
            connection.commit()
            assert server.things() == before, said
            assert [each for each in table.check(None) if hint in each.change] == []


def test_as_tables(server: Server) -> None:
    """A dot separates a database from its table, except in ClickHouse, where a name may be quoted."""
    dotted = "clickhouse" in server.sink("x")
    names = [each for each in NAMES if each not in server.no_tables and (dotted or "." not in each)]
    if dotted:
        names = [
            each for each in names if not re.search(r"{[^{}]+}", each)
        ]  # in a pipeline file, these choose among tables
    assert len(names) >= 200
    before = server.things()
    server.create_all(names)
    after = server.things()
    made = {each[2] for each in after - before if each[0] == "table"}
    assert made == set(names)
    columns = {each[2:] for each in after - before if each[0] == "column"}
    assert {name for _, name in columns} <= {"id", *OWN}
    assert before <= after
    assert {each[0] for each in after - before} == {"table", "column"}


def test_a_row_lands_in_such_tables(server: Server) -> None:
    """By a push, which takes a moment. Runs from Kafka into tables with plain names are above."""
    (kind,) = server.sink("x")
    names = [each for each in NAMES if each not in server.no_tables and not set(each) & set(".{}")][::40]
    assert len(names) >= 5
    before = server.things()
    for number, name in enumerate(names):
        sink = getattr(landonce, kind)(**server.sink(name)[kind])
        ledger = {"ledger": {"memory": True}} if kind == "clickhouse" else {}
        with landonce.ExactlyOnceSink(sink, **ledger, name=f"hostile-{number}") as once:
            assert once.push("rows", [{"id": 7}], first=3).landed == 1
        assert server.row(name)["id"] == 7
    changed = {
        each for each in before ^ server.things() if each[0] != "file" and not str(each[2]).startswith("landonce_")
    }
    assert {each[2] for each in changed} == set(names)
    assert {each[0] for each in changed} == {"table", "column"}


def test_tables_that_cannot_be_are_refused_in_words(server: Server) -> None:
    before = server.things()
    for name in server.no_tables:
        with pytest.raises(LandonceError) as refused:
            server.create(name, _ONE)
        assert str(refused.value)
        assert server.things() == before, name


def test_as_topics(server: Server, kafka: LocalKafka, tmp_path: Path) -> None:
    """Kafka allows few characters. What it allows is in the coordinates of rows, in the ledger and in names of files."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    names = [f"{name}-{server.database}-{id(server)}"[-249:] if len(name) < 200 else name for name in TOPICS]
    there = set(admin.list_topics(timeout=10).topics)
    for future in admin.create_topics([NewTopic(each, 1, 1) for each in names if each not in there]).values():
        future.result(10)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for name in names:
        producer.produce(name, b'{"id": 1}', partition=0)
    assert producer.flush(30) == 0
    before = server.things()
    landed, dead = run(kafka, tmp_path, names, server.sink("topics"), "id BIGINT")
    assert (landed >= len(names), dead) == (True, 0)
    assert unlike(before, server.things(), server.database, "topics", ["id"]) == set()


def test_names_that_are_no_topics_are_refused_in_words(kafka: LocalKafka, tmp_path: Path) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    tried = {*NAMES[::8], *REFUSED_SOMEWHERE} - set(admin.list_topics(timeout=60).topics)
    sink = {"sql": {"url": f"sqlite:///{tmp_path}/t.db", "table": "t", "create": True}}
    for name in sorted(tried):
        with pytest.raises(LandonceError) as refused:
            run(kafka, tmp_path, [name], sink)
        assert str(refused.value)
    assert not tried & set(admin.list_topics(timeout=60).topics)
