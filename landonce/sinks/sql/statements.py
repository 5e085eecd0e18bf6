"""The statements of a block's transaction, per dialect, as text. Pure.

Every dialect begins with the same flip of the block's row. Rows are then added, or changed by their key: where the table
keeps coordinates, no change of a partition ever replaces a newer one of the same partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.engine.default import DefaultDialect

from landonce.ledger.plain_sql import BlockPlace
from landonce.ledger.tables import block_table
from landonce.protocol.block_rows import Claim, Mark, flippable
from landonce.sinks.contract import COORDINATES

STAGED, GONE = "landonce_rows", "landonce_gone"
"""Temporary tables of a transaction, where a dialect needs them."""


@dataclass(frozen=True)
class Words:
    """How a dialect writes names and parameters."""

    dialect: str
    made: DefaultDialect
    mark: str
    """A parameter; `{}` stands for its number."""

    def name(self, name: str) -> str:
        return str(self.made.identifier_preparer.quote_identifier(name))

    def table(self, table: str) -> str:
        """A name that may have its schema before it."""
        return ".".join(self.name(part) for part in table.split("."))

    def names(self, names: Iterable[str]) -> str:
        return ", ".join(map(self.name, names))

    def marks(self, count: int, first: int = 1) -> str:
        return ", ".join(self.parameter(number) for number in range(first, first + count))

    def exact(self, text: str) -> str:
        """Text as it is compared whatever the column's collation says: upper and lower case differ in topics' names."""
        if self.dialect in ("mysql", "mariadb"):
            return f"CONVERT({text} USING utf8mb4) COLLATE utf8mb4_bin"
        return f"{text} COLLATE {'BINARY' if self.dialect == 'sqlite' else self.name('C')}"

    def parameter(self, number: int) -> str:
        return self.mark.format(number)


def words_of(dialect: str) -> Words:
    """Of PostgreSQL (as ADBC takes it), SQLite, MySQL and MariaDB."""
    if dialect == "postgresql":
        return Words(dialect, postgresql.dialect(paramstyle="numeric_dollar"), "${}")
    if dialect == "sqlite":
        return Words(dialect, sqlite.dialect(), "?")
    return Words(dialect, mysql.dialect(), "%s")


Statement = tuple[str, tuple[object, ...]]


def flip_statement(words: Words, place: BlockPlace, claim: Claim, receipt: str) -> Statement:
    """The block is claimed and not written yet: from here on it is, if the transaction holds."""
    wanted = {**_key(place), **flippable(claim)}
    where = _equal(words, wanted, first=3)
    text = (
        f"UPDATE {words.name(block_table.name)} SET {words.name('state')} = {words.parameter(1)}, "
        f"{words.name('receipt')} = {words.parameter(2)} WHERE {where}"
    )
    returning = f" RETURNING {words.name('number')}" if words.dialect == "postgresql" else ""
    return text + returning, (Mark.AFTER.value, receipt, *wanted.values())


def read_statement(words: Words, place: BlockPlace) -> Statement:
    wanted = _key(place)
    columns = words.names(("number", "epoch", "owner", "state", "receipt"))
    return f"SELECT {columns} FROM {words.name(block_table.name)} WHERE {_equal(words, wanted)}", tuple(wanted.values())


def _key(place: BlockPlace) -> dict[str, object]:
    return {"pipeline": place.pipeline, "batch": place.batch, "number": place.number}


def _equal(words: Words, wanted: Iterable[str], first: int = 1) -> str:
    return " AND ".join(f"{words.name(name)} = {words.parameter(at)}" for at, name in enumerate(wanted, first))


def insert_statement(words: Words, table: str, columns: Sequence[str]) -> str:
    return f"INSERT INTO {words.table(table)} ({words.names(columns)}) VALUES ({words.marks(len(columns))})"


def upsert_statement(words: Words, table: str, columns: Sequence[str], key: Sequence[str]) -> str:
    """One row per execution: new, or in place of the one with its key."""
    insert = insert_statement(words, table, columns)
    if words.dialect in ("mysql", "mariadb"):
        return f"{insert} ON DUPLICATE KEY UPDATE {_mysql_changes(words, columns, key)}"
    return f"{insert} {_on_conflict(words, table, columns, key)}"


def delete_statement(words: Words, table: str, key: Sequence[str]) -> str:
    """One row per execution: the key, then the coordinates of the deletion."""
    marks = [words.parameter(len(key) + at) for at in range(1, len(COORDINATES) + 1)]
    older = _older(words, words.table(table), marks)
    return f"DELETE FROM {words.table(table)} WHERE {_equal(words, key)} AND ({older})"


def _on_conflict(words: Words, table: str, columns: Sequence[str], key: Sequence[str]) -> str:
    changed = [name for name in columns if name not in key]
    sets = ", ".join(f"{words.name(name)} = excluded.{words.name(name)}" for name in changed)
    older = _older(words, words.table(table), [f"excluded.{words.name(name)}" for name in COORDINATES])
    return f"ON CONFLICT ({words.names(key)}) DO UPDATE SET {sets} WHERE {older}"


def _older(words: Words, row: str, new: Sequence[str]) -> str:
    """The row is older than these coordinates, or of another partition, or of somebody else."""
    topic, partition, offset = (f"{row}.{words.name(name)}" for name in COORDINATES)
    return f"{offset} IS NULL OR {words.exact(topic)} <> {new[0]} OR {partition} <> {new[1]} OR {offset} < {new[2]}"


def _mysql_changes(words: Words, columns: Sequence[str], key: Sequence[str]) -> str:
    """Assignments are made from left to right, and see what those before them made: the coordinates come last."""
    changed = [name for name in columns if name not in key]
    topic, partition, offset = (words.name(name) for name in COORDINATES)
    exact = words.exact(topic)
    older = f"{offset} IS NULL OR {exact} <> VALUES({topic}) OR {partition} <> VALUES({partition}) OR {offset} < VALUES({offset})"
    plain = [words.name(name) for name in changed if name not in COORDINATES]
    sets = [f"{name} = IF({older}, VALUES({name}), {name})" for name in plain]
    keep = f"{exact} = VALUES({topic}) AND {partition} = VALUES({partition}) AND {offset} > VALUES({offset})"
    return ", ".join(
        (*sets, f"{offset} = IF({keep}, {offset}, VALUES({offset}))", *(_last(each) for each in (topic, partition)))
    )


def _last(name: str) -> str:
    return f"{name} = VALUES({name})"


def staging_statement(words: Words, temporary: str, table: str, columns: Sequence[str]) -> str:
    """PostgreSQL: a temporary table with some of the columns of the table."""
    return (
        f"CREATE TEMPORARY TABLE {words.name(temporary)} ON COMMIT DROP AS "
        f"SELECT {words.names(columns)} FROM {words.table(table)} WITH NO DATA"
    )


def counted_statement(words: Words, table: str, columns: Sequence[str]) -> str:
    """PostgreSQL: the staged rows are added, and those that the table took are counted."""
    listed = words.names(columns)
    return (
        f"WITH landed AS (INSERT INTO {words.table(table)} ({listed}) SELECT {listed} FROM {words.name(STAGED)} RETURNING 1) "
        "SELECT count(*) FROM landed"
    )


def merge_statement(words: Words, table: str, columns: Sequence[str], key: Sequence[str]) -> str:
    """PostgreSQL: the staged rows, new or in place of those with their keys, in the order in which they came: what one row held under
    another unique key may be a later one's. Of keys that differ and that the table takes for one (CHAR, CITEXT, some collations)
    the last change counts; one statement may not change a row twice."""
    listed, keys = words.names(columns), words.names(key)
    last = words.name(COORDINATES[-1])
    staged = words.name(STAGED)
    source = f"(SELECT DISTINCT ON ({keys}) {listed} FROM {staged} ORDER BY {keys}, {last} DESC) AS landonce_new"
    conflict = _on_conflict(words, table, columns, key).replace(f"{words.table(table)}.", "landonce_old.")
    return (
        f"INSERT INTO {words.table(table)} AS landonce_old ({listed}) "
        f"SELECT {listed} FROM {source} ORDER BY {last} {conflict}"
    )


def purge_statement(words: Words, table: str, key: Sequence[str]) -> str:
    """PostgreSQL: rows whose keys are staged as deleted go."""
    same = " AND ".join(f"landonce_old.{words.name(name)} = {words.name(GONE)}.{words.name(name)}" for name in key)
    older = _older(words, "landonce_old", [f"{words.name(GONE)}.{words.name(name)}" for name in COORDINATES])
    return f"DELETE FROM {words.table(table)} AS landonce_old USING {words.name(GONE)} WHERE {same} AND ({older})"
