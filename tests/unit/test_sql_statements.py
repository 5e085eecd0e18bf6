"""The statements of each dialect, as text, and what goes with them: claims, keys, types, tables."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import adbc_driver_manager
import pyarrow as pa
import pymysql
import pytest
from sqlalchemy import create_engine
from sqlalchemy import types as sql
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import OperationalError
from sqlalchemy.schema import CreateTable

from landonce.errors import ConfigError
from landonce.ledger.mysql import MySqlDatabase
from landonce.ledger.plain_sql import BlockKey
from landonce.ledger.tables import block_metadata, block_table, metadata, pipeline_table, push_metadata
from landonce.protocol.block_rows import Claim
from landonce.read.rows import ends_by_key
from landonce.read.sample import usable_columns
from landonce.read.schema.ddl import UnfitFields, parse_schema, spelled_schema
from landonce.read.schema.fields import JSON, Field, UnsupportedType
from landonce.sinks.contract import Level
from landonce.sinks.sql.config import Sql
from landonce.sinks.sql.mysql import MySqlWriter
from landonce.sinks.sql.postgres import conninfo, trouble_of
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.sql.statements import (
    delete_statement,
    flip_statement,
    insert_statement,
    merge_statement,
    purge_statement,
    read_statement,
    syntax_of,
    upsert_statement,
)
from landonce.sinks.sql.table import SqlTable
from landonce.sinks.sql.types import (
    column_field,
    column_or_text,
    column_type,
    document_of,
    field_of,
    new_table,
)
from landonce.sinks.transactional import Blame

PLACE = BlockKey("p", 7, 2)
COLUMNS = ("_topic", "_partition", "_offset", "id", "wo rd")
TYPES = {
    "BOOLEAN": pa.bool_(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "DECIMAL(15,2)": pa.decimal128(15, 2),
    "DECIMAL(20,4)": pa.decimal128(20, 4),
    "TIME": pa.time64("us"),
    "UUID": pa.uuid(),
    "FIXED(3)": pa.binary(3),
    "TIMESTAMP(9)": pa.timestamp("ns", tz="UTC"),
    "DECIMAL(50,2)": pa.decimal256(50, 2),
}


@pytest.mark.parametrize(
    ("dialect", "expected"),
    [
        (
            "postgresql",
            'UPDATE "landonce_block" SET "state" = $1, "receipt" = $2 WHERE "pipeline" = $3 AND "batch" = $4 AND '
            '"number" = $5 AND "epoch" = $6 AND "owner" = $7 AND "state" = $8 RETURNING "number"',
        ),
        (
            "sqlite",
            'UPDATE "landonce_block" SET "state" = ?, "receipt" = ? WHERE "pipeline" = ? AND "batch" = ? AND '
            '"number" = ? AND "epoch" = ? AND "owner" = ? AND "state" = ?',
        ),
        (
            "mysql",
            "UPDATE `landonce_block` SET `state` = %s, `receipt` = %s WHERE `pipeline` = %s AND `batch` = %s AND "
            "`number` = %s AND `epoch` = %s AND `owner` = %s AND `state` = %s",
        ),
    ],
)
def test_a_block_is_flipped_where_it_is_claimed_and_not_written(dialect: str, expected: str) -> None:
    text, values = flip_statement(syntax_of(dialect), PLACE, Claim(3, "me"), "{}")
    assert text == expected
    assert values == ("AFTER", "{}", "p", 7, 2, 3, "me", "BEFORE")
    assert text.count("$") + text.count("?") + text.count("%s") == len(values)


def test_a_block_is_read() -> None:
    text, values = read_statement(syntax_of("sqlite"), PLACE)
    assert text == (
        'SELECT "number", "epoch", "owner", "state", "receipt" FROM "landonce_block" '
        'WHERE "pipeline" = ? AND "batch" = ? AND "number" = ?'
    )
    assert values == ("p", 7, 2)


def test_names_are_quoted() -> None:
    assert insert_statement(syntax_of("sqlite"), 'a.b"c', ("x y",)) == 'INSERT INTO "a"."b""c" ("x y") VALUES (?)'
    assert insert_statement(syntax_of("mysql"), "a`b", ("x%",)).startswith("INSERT INTO `a``b` (`x%%`)")


def test_sqlite_changes_rows_by_their_key() -> None:
    assert upsert_statement(syntax_of("sqlite"), "t", COLUMNS, ("id",)) == (
        'INSERT INTO "t" ("_topic", "_partition", "_offset", "id", "wo rd") VALUES (?, ?, ?, ?, ?) '
        'ON CONFLICT ("id") DO UPDATE SET "_topic" = excluded."_topic", "_partition" = excluded."_partition", '
        '"_offset" = excluded."_offset", "wo rd" = excluded."wo rd" WHERE "t"."_offset" IS NULL OR '
        '"t"."_topic" COLLATE BINARY <> excluded."_topic" OR "t"."_partition" <> excluded."_partition" OR '
        '"t"."_offset" < excluded."_offset"'
    )
    assert delete_statement(syntax_of("sqlite"), "t", ("a", "b")) == (
        'DELETE FROM "t" WHERE "a" = ? AND "b" = ? AND ("t"."_offset" IS NULL OR "t"."_topic" COLLATE BINARY <> ? '
        'OR "t"."_partition" <> ? OR "t"."_offset" < ?)'
    )


def test_mysql_changes_rows_by_their_key() -> None:
    """The coordinates are assigned last: an expression that compares with them sees the old ones."""
    text = upsert_statement(syntax_of("mysql"), "t", COLUMNS, ("id",))
    head, _, sets = text.partition(" ON DUPLICATE KEY UPDATE ")
    assert head.endswith("VALUES (%s, %s, %s, %s, %s)")
    assigned = [part.split(" = ", 1)[0] for part in sets.replace("VALUES(", "").split(", `")]
    assert sets.startswith("`wo rd` = IF(`_offset` IS NULL OR ")
    assert sets.index("`_offset` = IF(") < sets.index("`_topic` = VALUES(`_topic`), `_partition` = VALUES(")
    assert len(assigned) >= 4


def test_postgres_merges_what_is_staged() -> None:
    text = merge_statement(syntax_of("postgresql"), "own.t", COLUMNS, ("id",))
    assert text.startswith('INSERT INTO "own"."t" AS landonce_old ("_topic"')
    assert (
        'FROM "landonce_rows" ORDER BY "id", "_offset" DESC) AS landonce_new ORDER BY "_offset" ON CONFLICT ("id") DO'
        in text
    )
    assert text.endswith('OR landonce_old."_offset" < excluded."_offset"')
    numbers = merge_statement(syntax_of("postgresql"), "t", ("id", "n"), ("id",), ("n",))
    assert '(SELECT DISTINCT ON ("id") "id", CAST("n" AS numeric) AS "n" FROM "landonce_rows" ' in numbers
    assert purge_statement(syntax_of("postgresql"), "t", ("id",)).startswith(
        'DELETE FROM "t" AS landonce_old USING "landonce_gone" WHERE landonce_old."id" = "landonce_gone"."id" '
        'AND (landonce_old."_offset" IS NULL OR '
    )


def test_the_last_change_of_a_key_wins() -> None:
    rows = pa.table({"a": [1, 2, 1, 3, 2], "b": ["x", "x", "x", "y", "z"], "n": [0, 1, 2, 3, 4]})
    assert ends_by_key(rows, ("a", "b"))[1].tolist() == [1, 2, 3, 4]
    assert ends_by_key(rows, ("a",))[1].tolist() == [2, 3, 4]
    uuids = pa.array([bytes([each]) * 16 for each in (1, 2, 1)], pa.uuid())
    assert ends_by_key(pa.table({"u": uuids}), ("u",))[1].tolist() == [1, 2]


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("dialect", ["postgresql", "sqlite", "mysql"])
def test_a_column_that_is_made_takes_what_it_was_made_for(name: str, dialect: str) -> None:
    made = {"postgresql": postgresql, "sqlite": sqlite, "mysql": mysql}[dialect].dialect()
    declared = parse_schema(f"x {name}").fields[0].type
    if (dialect, name) == ("sqlite", "DECIMAL(20,4)") or name in ("TIMESTAMP(9)", "DECIMAL(50,2)"):
        with pytest.raises(
            UnsupportedType, match=r"exact decimals have at most (15|38) digits here|times have microseconds"
        ):
            column_type(declared, dialect)
        assert column_or_text(declared, dialect) == (pa.string() if name == "TIMESTAMP(9)" else JSON)
        return
    type_ = column_type(declared, dialect).dialect_impl(made)
    assert type_.compile(dialect=made)
    found = field_of("x", column_type(declared, dialect), dialect, required=False).type
    if dialect != "mysql":
        wide = {"SMALLINT": pa.int64(), "INT": pa.int64(), "FLOAT": pa.float64()} if dialect == "sqlite" else {}
        assert found == {**wide, "FIXED(3)": pa.binary()}.get(name, TYPES[name])


def test_a_table_that_cannot_hold_some_fields_names_them_all_and_a_schema_that_works() -> None:
    """An inferred schema gets text at just these places; a declared one is refused with what to paste."""
    sink = SqlSink("sqlite:///x.db", "t", "p")
    declared = parse_schema("id BIGINT, a DECIMAL(20, 4) NOT NULL, at TIMESTAMP(9), l ARRAY<DECIMAL(38, 2)>")
    with pytest.raises(UnfitFields) as refused:
        new_table(sink, declared, sqlite.dialect())
    assert [path for path, _ in refused.value.faults] == ["a", "at"]
    assert "id BIGINT, a JSON NOT NULL, at STRING, l ARRAY<DECIMAL(38, 2)>" in str(refused.value.command)
    made, why = usable_columns(declared, lambda columns: new_table(sink, columns, sqlite.dialect()), lambda each: each)
    assert spelled_schema(made) == "id BIGINT, a JSON NOT NULL, at STRING, l ARRAY<DECIMAL(38, 2)>"
    assert set(why) == {"a", "at"}
    with pytest.raises(ConfigError, match="JSON text, which cannot be a key"):
        new_table(replace(sink, url="postgresql://h/d", key=("j",)), parse_schema("j JSON"), postgresql.dialect())


def test_a_column_that_is_added_holds_text_where_there_is_no_type(tmp_path: Path) -> None:
    table = SqlTable(SqlSink(f"sqlite:///{tmp_path}/x.db", "t", "p"))
    table.create(parse_schema("id BIGINT"))
    fine = {"at": pa.timestamp("ns"), "f": pa.binary(3), "n": pa.decimal128(20, 0), "u": pa.uuid()}
    assert table.add(fine) == ("at", "f", "n", "u")
    columns = {each["name"]: str(each["type"]) for each in table.shape().columns if each["name"] in fine}
    assert columns == {"at": "TEXT", "f": "BLOB", "n": "JSON_TEXT", "u": "UUID"}
    table.close()


def test_a_set_of_mysql_is_no_key() -> None:
    """`a,b` and `b,a` are one value, and would be two keys."""
    sink = SqlSink("mysql://h/d", "t", "p", key=("s",))
    reflected = {"name": "s", "type": mysql.SET("a", "b"), "nullable": False}
    assert "cannot be part of the key" in str(column_field(sink, reflected, None))
    assert column_field(replace(sink, key=()), reflected, None).called == "SET"


def test_a_uuid_in_mysql_is_recognized_by_the_comment_of_its_column() -> None:
    sink = SqlSink("mysql://h/d", "t", "p")
    (column,) = (each for each in new_table(sink, parse_schema("u UUID"), mysql.dialect()).columns if each.name == "u")
    assert (column.comment, column.type.length) == ("landonce: UUID", 36)
    reflected = {"name": "u", "type": mysql.CHAR(36), "nullable": True, "comment": column.comment}
    assert column_field(sink, reflected, None) == Field("u", pa.uuid())
    assert column_field(sink, {**reflected, "comment": None}, None).type == pa.string()


def test_types_that_have_no_exact_counterpart() -> None:
    for type_ in (sql.JSON(), sql.Interval(), sql.Numeric(50, 60), sql.ARRAY(sql.Integer)):
        with pytest.raises(UnsupportedType):
            field_of("x", type_, "postgresql", required=False)
    assert field_of("x", sql.String(7), "postgresql", required=True).longest == 7
    assert field_of("x", mysql.BIGINT(unsigned=True), "mysql", required=True).type == pa.uint64()
    assert field_of("x", mysql.TINYINT(display_width=1), "mysql", required=True).type == pa.bool_()
    with pytest.raises(UnsupportedType, match="no type for ARRAY<BIGINT>"):
        column_type(pa.list_(pa.int64()), "yql")


def test_what_a_column_cannot_hold_is_known_beforehand() -> None:
    rounded = field_of("x", postgresql.TIMESTAMP(precision=3), "postgresql", required=False)
    assert rounded.digits == 3
    assert rounded.bounds == (-2_440_588 * 86_400 * 10**6, 2**63 - 1)
    assert field_of("x", sql.Date(), "postgresql", required=False).bounds == (-2_440_588, 2_145_042_905)
    finite = {
        each: field_of("x", sql.Double(), each, required=False).finite for each in ("postgresql", "sqlite", "mysql")
    }
    assert finite == {"postgresql": False, "sqlite": True, "mysql": True}


def test_documents_go_to_columns_of_documents_and_of_text() -> None:
    nested, text = pa.list_(pa.int64()), pa.string()
    assert document_of("x", postgresql.JSONB(), nested, required=True) == Field("x", nested, required=True)
    assert document_of("x", sql.JSON(), text, required=False) == Field("x", text)
    assert document_of("x", sql.Text(), nested, required=False) == Field("x", nested)
    for type_, declared in (
        (sql.Text(), text),
        (sql.JSON(), pa.int64()),
        (sql.Integer(), nested),
        (sql.Enum("a"), nested),
    ):
        assert document_of("x", type_, declared, required=False) is None
    made = {each: column_type(nested, each) for each in ("postgresql", "sqlite", "mysql")}
    assert isinstance(made["postgresql"].dialect_impl(postgresql.dialect()), postgresql.JSONB)
    assert isinstance(made["sqlite"], sql.JSON)


@pytest.mark.parametrize(
    ("state", "passing", "answered", "blame"),
    [
        ("23514", False, True, Blame.ROW),
        ("54000", False, True, Blame.ROW),
        ("55000", False, True, Blame.ELSE),
        ("22P03", False, True, Blame.ELSE),
        ("55P03", True, True, Blame.ELSE),
        ("22008", False, True, Blame.ROW),
        ("23503", False, True, Blame.OTHERS),
        ("23505", False, True, Blame.TWICE),
        ("42703", False, True, Blame.ELSE),
        ("40P01", True, True, Blame.ELSE),
        ("57P01", True, False, Blame.ELSE),
        ("25P03", True, False, Blame.ELSE),
        (None, True, False, Blame.ELSE),
    ],
)
def test_what_postgres_says_is_reported_apart(state: str | None, passing: bool, answered: bool, blame: Blame) -> None:
    """A session that was ended for standing still is no reason to halt."""
    failure = adbc_driver_manager.Error("said", status_code=adbc_driver_manager.AdbcStatusCode.UNKNOWN, sqlstate=state)
    trouble = trouble_of(failure)
    assert (trouble.passing, trouble.answered, trouble.blame) == (passing, answered, blame)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("IO: [libpq] Execution error [PGRES_FATAL_ERROR]: ERROR:  no pings\nCONTEXT: …", "no pings"),
        (
            "IO: [libpq] Failed to execute COPY statement: PGRES_FATAL_ERROR ERROR:  new row violates",
            "new row violates",
        ),
        ("INVALID_ARGUMENT: [libpq] Failed to connect: Connection refused", "Failed to connect: Connection refused"),
        ("ERROR:  insufficient data left in message", "ERROR:  insufficient data left in message"),
    ],
)
def test_the_reason_of_a_dead_letter_is_in_the_words_of_postgres(text: str, expected: str) -> None:
    unknown = adbc_driver_manager.AdbcStatusCode.UNKNOWN
    assert trouble_of(adbc_driver_manager.Error(text, status_code=unknown, sqlstate="P0001")).said == expected


@pytest.mark.parametrize(
    ("details", "blame"),
    [
        ({b"PG_DIAG_TABLE_NAME": b"t"}, Blame.OTHERS),
        ({b"PG_DIAG_TABLE_NAME": b"t", b"PG_DIAG_CONSTRAINT_NAME": b"c"}, Blame.ROW),
        ({b"PG_DIAG_CONTEXT": b"a function that raises it"}, Blame.ROW),
    ],
)
def test_a_check_without_a_name_is_a_partition_that_is_not_there(details: dict[bytes, bytes], blame: Blame) -> None:
    failure = adbc_driver_manager.Error(
        "said",
        status_code=adbc_driver_manager.AdbcStatusCode.INTEGRITY,
        sqlstate="23514",
        details=list(details.items()),
    )
    assert trouble_of(failure).blame is blame


@pytest.mark.parametrize(
    ("failure", "passing", "answered", "blame"),
    [
        (pymysql.OperationalError(4025, "CONSTRAINT `c` failed"), False, True, Blame.ROW),
        (pymysql.OperationalError(3819, "Check constraint 'c' is violated."), False, True, Blame.ROW),
        (pymysql.IntegrityError(1452, "a foreign key"), False, True, Blame.OTHERS),
        (pymysql.IntegrityError(1062, "Duplicate entry"), False, True, Blame.TWICE),
        (pymysql.ProgrammingError("nan can not be used with MySQL"), False, True, Blame.ELSE),
        (pymysql.OperationalError(2013, "Lost connection"), True, False, Blame.ELSE),
        (pymysql.InterfaceError(0, ""), True, False, Blame.ELSE),
        (pymysql.OperationalError(1213, "Deadlock found"), True, True, Blame.ELSE),
        (pymysql.OperationalError(4031, "disconnected because of inactivity"), True, True, Blame.ELSE),
        (pymysql.OperationalError(1927, "Connection was killed"), True, True, Blame.ELSE),
        (pymysql.OperationalError(1969, "max_statement_time exceeded"), True, True, Blame.ELSE),
    ],
)
def test_what_mysql_says_is_reported_apart(failure: Exception, passing: bool, answered: bool, blame: Blame) -> None:
    """Numbers from 3000 on are the server's again."""
    trouble = MySqlWriter.__new__(MySqlWriter)._trouble(failure)
    assert (trouble.passing, trouble.answered, trouble.blame) == (passing, answered, blame)


def test_a_table_is_made_with_its_key_and_its_coordinates(tmp_path: object) -> None:
    schema = parse_schema("id BIGINT NOT NULL, word STRING")
    plain = SqlTable(SqlSink(f"sqlite:///{tmp_path}/x.db", "t", "p")).creation(schema)
    assert "_offset BIGINT NOT NULL" in plain
    assert "CREATE UNIQUE INDEX t_coordinates ON t (_topic, _partition, _offset)" in plain
    copied = SqlTable(SqlSink("postgresql://h/d", "t", "p")).creation(schema)
    assert "CREATE INDEX t_coordinates ON t USING brin (_topic, _partition, _offset)" in copied
    keyed = SqlTable(SqlSink("postgresql://h/d", "s.t", "p", key=("word",))).creation(schema)
    assert "PRIMARY KEY (word)" in keyed
    assert "INDEX" not in keyed
    assert "`word` VARCHAR(255)" in SqlTable(SqlSink("mysql://h/d", "t", "p", key=("word",))).creation(schema)
    with pytest.raises(ConfigError, match="no field other"):
        SqlTable(SqlSink("postgresql://h/d", "t", "p", key=("other",))).creation(schema)


def test_the_ledgers_tables_can_be_made_in_mysql() -> None:
    for table in (pipeline_table, block_table):
        text = str(CreateTable(table).compile(dialect=mysql.dialect()))
        assert "pipeline VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin" in text
        assert " TEXT" not in text


@pytest.mark.parametrize("url", ["mysql+pymysql://h/d", "mariadb+pymysql://h/d"])
def test_tables_in_mysql_have_transactions(url: str) -> None:
    """Whatever the server's default is: in another engine a block would be marked as landed and not be there."""
    for table in (*metadata.tables.values(), *block_metadata.tables.values(), *push_metadata.tables.values()):
        assert "ENGINE=InnoDB" in str(CreateTable(table).compile(dialect=create_engine(url).dialect))
    made = SqlTable(SqlSink(url, "t", "p")).creation(parse_schema("id BIGINT"))
    assert "ENGINE=InnoDB" in made
    assert "CHARSET=utf8mb4" in made


def test_a_session_that_mysql_ended_for_standing_still_is_no_reason_to_halt() -> None:
    url = SqlSink("mysql://u:secret@h/d", "t", "p").address
    database = MySqlDatabase(url)
    for code in (4031, 1927, 2013):
        failure = OperationalError("SELECT 1", None, pymysql.OperationalError(code, "over"))
        assert database.fault(failure) is None
    assert database.fault(OperationalError("SELECT 1", None, pymysql.OperationalError(1054, "no column"))) is not None


def test_a_sqlite_table_with_columns_that_nothing_fits(tmp_path: Path) -> None:
    """NUMERIC there is no exact number. Nor is a unique index on some rows a key."""
    with closing(sqlite3.connect(tmp_path / "x.db")) as connection:
        connection.execute("CREATE TABLE t (id BIGINT, price NUMERIC, _topic TEXT, _partition INT, _offset BIGINT)")
        connection.execute("CREATE UNIQUE INDEX i ON t (id) WHERE price > 0")
    plain = SqlTable(SqlSink(f"sqlite:///{tmp_path}/x.db", "t", "p"))
    assert not any(each.level is Level.REFUSED for each in plain.check())
    assert "column price is left to the database: no record becomes NUMERIC() exactly" in str(plain.check())
    asked = plain.check(parse_schema("id BIGINT, price DOUBLE"))
    assert [each.what for each in asked if each.level is Level.REFUSED] == [
        "column price: records cannot become NUMERIC exactly"
    ]
    assert not any(each.level is Level.REFUSED for each in plain.check(parse_schema("id BIGINT")))
    keyed = SqlTable(SqlSink(f"sqlite:///{tmp_path}/x.db", "t", "p", key=("id",)))
    [said] = [each.what for each in keyed.check(parse_schema("id BIGINT")) if each.level is Level.REFUSED]
    assert "twice" in said


def test_a_url_is_reported_to_libpq_without_landing_in_a_repr() -> None:
    sink = SqlSink("postgresql://u:p%40ss@h:5433/d?sslmode=require", "t", "p")
    options = conninfo(sink)
    for part in ("host=h", "port=5433", "dbname=d", "user=u", "password=p@ss", "sslmode=require", "connect_timeout=5"):
        assert part in options
    assert "p@ss" not in repr(sink) + str(sink)
    assert "p%40ss" not in repr(sink) + str(sink)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"url": "oracle://h/d"}, "not to 'oracle'"),
        ({"url": "no url at all"}, "cannot be read"),
        ({"url": "sqlite://"}, "memory"),
    ],
)
def test_urls_that_will_not_do(config: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Sql(table="t", **config).to_sink("p")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"mode": "upsert"}, "go together"),
        ({"key": "id"}, "go together"),
        ({"changes": {"mode": "upsert"}}, "needs `mode: upsert`"),
        ({"mode": "upsert", "key": "id", "evolve": True, "changes": {"mode": "dms"}}, "envelopes"),
    ],
)
def test_sections_that_will_not_do(config: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Sql(url="sqlite:///x.db", table="t", **config)  # type: ignore[arg-type]


def test_a_file_of_this_machine_is_not_for_workers_on_others(tmp_path: Path) -> None:
    from landonce.engine.spark.session import is_remote
    from landonce.sinks.pipeline_file import parse
    from landonce.sinks.sql.driver import file_reachable

    text = """
pipeline: p
source: {{kafka: {{bootstrap_servers: h, topics: [t]}}}}
sink: {{sql: {{url: "{url}", table: t}}}}
spark: {{master: "{master}"}}
"""
    for url, master, fine in (
        ("sqlite:///x.db", "local[2]", True),
        ("sqlite:///x.db", "spark://h:7077", False),
        ("postgresql://h/d", "spark://h:7077", True),
    ):
        config = parse(text.format(url=url, master=master), tmp_path / "p.yaml")
        if fine:
            file_reachable(config, remote=is_remote(config.spark))
        else:
            with pytest.raises(ConfigError, match="on this machine"):
                file_reachable(config, remote=is_remote(config.spark))
