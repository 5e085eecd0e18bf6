"""The statements of a block's transaction, per dialect, as text. Pure.

Every transaction begins with the same flip of the block's row. Rows are then added, or changed by key. An older change never
replaces a newer one of the same Kafka partition: the coordinates in the row say which is newer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.engine.default import DefaultDialect

from landonce.ledger.names import quoted
from landonce.ledger.plain_sql import BlockKey
from landonce.ledger.tables import block_table
from landonce.protocol.block_rows import BlockState, Claim, flippable
from landonce.sinks.contract import COORDINATES

STAGED, GONE = "landonce_rows", "landonce_gone"
"""Temporary tables of a transaction in PostgreSQL: rows to write, keys to delete."""


@dataclass(frozen=True)
class Syntax:
    """How a dialect writes names and parameters."""

    dialect: str
    made: DefaultDialect
    mark: str
    """A parameter; `{}` is its number."""

    def name(self, name: str) -> str:
        return quoted(self.made, name, parameters=True)

    def table(self, table: str) -> str:
        """A table's name, with or without a schema."""
        return ".".join(self.name(part) for part in table.split("."))

    def names(self, names: Iterable[str]) -> str:
        return ", ".join(map(self.name, names))

    def exact(self, text: str) -> str:
        """Compares text exactly, whatever the column's collation: topics' names distinguish upper and lower case."""
        if self.dialect in ("mysql", "mariadb"):
            return f"CONVERT({text} USING utf8mb4) COLLATE utf8mb4_bin"
        return f"{text} COLLATE {'BINARY' if self.dialect == 'sqlite' else self.name('C')}"

    def parameter(self, number: int) -> str:
        return self.mark.format(number)


def syntax_of(dialect: str) -> Syntax:
    """For PostgreSQL (as ADBC takes it), SQLite, MySQL and MariaDB."""
    if dialect == "postgresql":
        return Syntax(dialect, postgresql.dialect(paramstyle="numeric_dollar"), "${}")
    if dialect == "sqlite":
        return Syntax(dialect, sqlite.dialect(), "?")
    return Syntax(dialect, mysql.dialect(), "%s")


Statement = tuple[str, tuple[object, ...]]


def parts_statement(table: str, query: str) -> str:
    """PostgreSQL: a query that may name `parts`, the table (`root`) and its partitions, by `id`. It locks none of them. `table`: a
    parameter. Tables that only inherit from it hold no rows of it."""
    return f"""
        WITH RECURSIVE parts AS (
            SELECT CAST(to_regclass({table}) AS oid) AS id, true AS root
            UNION SELECT h.inhrelid, false FROM parts JOIN pg_inherits AS h ON h.inhparent = id
            JOIN pg_class AS c ON c.oid = h.inhrelid AND c.relispartition
        )
        {query}"""


def triggers_statement(table: str, changes: int) -> str:
    """PostgreSQL: the triggers before each row that is inserted (4), deleted (8) or updated (16), on the table or a partition of it."""
    return parts_statement(
        table,
        "SELECT DISTINCT tgname FROM pg_trigger JOIN parts ON tgrelid = id WHERE NOT tgisinternal AND tgenabled <> 'D' "
        f"AND tgtype & 3 = 3 AND tgtype & {changes} <> 0 ORDER BY tgname",
    )


def flip_statement(syntax: Syntax, place: BlockKey, claim: Claim, receipt: str) -> Statement:
    """Flips the block's row to AFTER, if it has this claim and is not flipped yet."""
    wanted = {**_key(place), **flippable(claim)}
    where = _equal(syntax, wanted, first=3)
    text = (
        f"UPDATE {syntax.name(block_table.name)} SET {syntax.name('state')} = {syntax.parameter(1)}, "
        f"{syntax.name('receipt')} = {syntax.parameter(2)} WHERE {where}"
    )
    returning = f" RETURNING {syntax.name('number')}" if syntax.dialect == "postgresql" else ""
    return text + returning, (BlockState.AFTER.value, receipt, *wanted.values())


def read_statement(syntax: Syntax, place: BlockKey) -> Statement:
    wanted = _key(place)
    columns = syntax.names(("number", "epoch", "owner", "state", "receipt"))
    return f"SELECT {columns} FROM {syntax.name(block_table.name)} WHERE {_equal(syntax, wanted)}", tuple(
        wanted.values()
    )


def _key(place: BlockKey) -> dict[str, object]:
    return {"pipeline": place.pipeline, "batch": place.batch, "number": place.number}


def _equal(syntax: Syntax, wanted: Iterable[str], first: int = 1) -> str:
    return " AND ".join(f"{syntax.name(name)} = {syntax.parameter(at)}" for at, name in enumerate(wanted, first))


def insert_statement(syntax: Syntax, table: str, columns: Sequence[str]) -> str:
    marks = ", ".join(syntax.parameter(number) for number in range(1, len(columns) + 1))
    return f"INSERT INTO {syntax.table(table)} ({syntax.names(columns)}) VALUES ({marks})"


def upsert_statement(syntax: Syntax, table: str, columns: Sequence[str], key: Sequence[str]) -> str:
    """Adds one row per execution, or replaces the one with its key."""
    insert = insert_statement(syntax, table, columns)
    if syntax.dialect in ("mysql", "mariadb"):
        return f"{insert} ON DUPLICATE KEY UPDATE {_mysql_changes(syntax, columns, key)}"
    return f"{insert} {_on_conflict(syntax, table, columns, key)}"


def delete_statement(syntax: Syntax, table: str, key: Sequence[str]) -> str:
    """Deletes one row per execution. Parameters: the key, then the coordinates of the deletion."""
    marks = [syntax.parameter(len(key) + at) for at in range(1, len(COORDINATES) + 1)]
    older = _older(syntax, syntax.table(table), marks)
    return f"DELETE FROM {syntax.table(table)} WHERE {_equal(syntax, key)} AND ({older})"


def _on_conflict(syntax: Syntax, table: str, columns: Sequence[str], key: Sequence[str]) -> str:
    changed = [name for name in columns if name not in key]
    sets = ", ".join(f"{syntax.name(name)} = excluded.{syntax.name(name)}" for name in changed)
    older = _older(syntax, syntax.table(table), [f"excluded.{syntax.name(name)}" for name in COORDINATES])
    return f"ON CONFLICT ({syntax.names(key)}) DO UPDATE SET {sets} WHERE {older}"


def _older(syntax: Syntax, row: str, new: Sequence[str]) -> str:
    """The row is older than these coordinates, or from another Kafka partition, or not from landonce."""
    topic, partition, offset = (f"{row}.{syntax.name(name)}" for name in COORDINATES)
    return f"{offset} IS NULL OR {syntax.exact(topic)} <> {new[0]} OR {partition} <> {new[1]} OR {offset} < {new[2]}"


def _mysql_changes(syntax: Syntax, columns: Sequence[str], key: Sequence[str]) -> str:
    """MySQL assigns from left to right, and later assignments see earlier ones: so the coordinates come last."""
    changed = [name for name in columns if name not in key]
    topic, partition, offset = (syntax.name(name) for name in COORDINATES)
    exact = syntax.exact(topic)
    older = f"{offset} IS NULL OR {exact} <> VALUES({topic}) OR {partition} <> VALUES({partition}) OR {offset} < VALUES({offset})"
    plain = [syntax.name(name) for name in changed if name not in COORDINATES]
    sets = [f"{name} = IF({older}, VALUES({name}), {name})" for name in plain]
    keep = f"{exact} = VALUES({topic}) AND {partition} = VALUES({partition}) AND {offset} > VALUES({offset})"
    sets += [f"{offset} = IF({keep}, {offset}, VALUES({offset}))"]
    sets += [f"{name} = VALUES({name})" for name in (topic, partition)]
    return ", ".join(sets)


def staging_statement(
    syntax: Syntax, temporary: str, table: str, columns: Sequence[str], numbers: Collection[str] = ()
) -> str:
    """PostgreSQL: creates a temporary table with some columns of the table. `numbers` are text there: ADBC has no other form for a
    number with more digits than Arrow's."""
    listed = ", ".join(
        f"CAST(NULL AS text) AS {syntax.name(each)}" if each in numbers else syntax.name(each) for each in columns
    )
    return (
        f"CREATE TEMPORARY TABLE {syntax.name(temporary)} ON COMMIT DROP AS "
        f"SELECT {listed} FROM {syntax.table(table)} WITH NO DATA"
    )


def _staged(syntax: Syntax, columns: Sequence[str], numbers: Collection[str]) -> str:
    names = {each: syntax.name(each) for each in columns}
    return ", ".join(f"CAST({name} AS numeric) AS {name}" if each in numbers else name for each, name in names.items())


def counted_statement(syntax: Syntax, table: str, columns: Sequence[str], numbers: Collection[str] = ()) -> str:
    """PostgreSQL: adds the staged rows, and counts those that the table took."""
    return (
        f"WITH landed AS (INSERT INTO {syntax.table(table)} ({syntax.names(columns)}) "
        f"SELECT {_staged(syntax, columns, numbers)} FROM {syntax.name(STAGED)} RETURNING 1) "
        "SELECT count(*) FROM landed"
    )


def merge_statement(
    syntax: Syntax, table: str, columns: Sequence[str], key: Sequence[str], numbers: Collection[str] = ()
) -> str:
    """PostgreSQL: adds the staged rows, or replaces those with their keys, in order: a later row may need a value that an earlier one frees
    under another unique key. If the table takes different keys for one (CHAR, CITEXT, some collations), the last change counts: one
    statement may not change a row twice."""
    listed, keys = syntax.names(columns), syntax.names(key)
    last = syntax.name(COORDINATES[-1])
    staged = syntax.name(STAGED)
    source = f"(SELECT DISTINCT ON ({keys}) {_staged(syntax, columns, numbers)} FROM {staged} ORDER BY {keys}, {last} DESC) AS landonce_new"
    conflict = _on_conflict(syntax, table, columns, key).replace(f"{syntax.table(table)}.", "landonce_old.")
    return (
        f"INSERT INTO {syntax.table(table)} AS landonce_old ({listed}) "
        f"SELECT {listed} FROM {source} ORDER BY {last} {conflict}"
    )


def purge_statement(syntax: Syntax, table: str, key: Sequence[str]) -> str:
    """PostgreSQL: deletes the rows whose keys are staged as deleted."""
    same = " AND ".join(f"landonce_old.{syntax.name(name)} = {syntax.name(GONE)}.{syntax.name(name)}" for name in key)
    older = _older(syntax, "landonce_old", [f"{syntax.name(GONE)}.{syntax.name(name)}" for name in COORDINATES])
    return f"DELETE FROM {syntax.table(table)} AS landonce_old USING {syntax.name(GONE)} WHERE {same} AND ({older})"
