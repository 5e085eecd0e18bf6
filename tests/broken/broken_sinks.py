"""A broken sink for every case: the reference sink with one promise less. Nothing but a test of the kit may open one."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from broken_sinks_doubt import BROKEN_IN_DOUBT, with_target, with_writer

from landonce.protocol.settle import Reply
from landonce.read.schema.fields import Field, Schema
from landonce.sinks.contract import Finding, Guarantee, Insert, Level
from landonce.testing.reference_sinks import SqliteSink, SqliteSite, SqliteTarget, SqliteWriter, coordinates
from landonce.testing.sink_sites import SinkSite


class Boasting(SqliteSink):
    guarantee: ClassVar[Guarantee] = Guarantee.TRANSACTIONAL  # type: ignore[misc]


@dataclass(frozen=True)
class Rooted(SqliteSink):
    """Holds what cannot travel."""

    opened: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "opened", threading.Lock())


class Talkative(SqliteSink):
    def __repr__(self) -> str:
        return "Talkative(password='s3cret-word')"


class Emptying(SqliteTarget):
    def create(self, declared: Schema, **told: Any) -> None:
        self.path.unlink(missing_ok=True)
        super().create(declared, **told)


class Uncovered(SqliteTarget):
    def schema(self) -> Schema:
        return Schema((*super().schema().fields, Field("_offset", pa.int64())))


class Refusing(SqliteTarget):
    def check(self) -> tuple[Finding, ...]:
        return (Finding(Level.REFUSED, "never"),)


class Dropping(SqliteWriter):
    def write(self, connection: sqlite3.Connection, rows: pa.Table) -> None:
        super().write(connection, rows.slice(0, rows.num_rows - rows.num_rows // 100))


class Smoothing(SqliteWriter):
    """Nothing is the empty string."""

    def write(self, connection: sqlite3.Connection, rows: pa.Table) -> None:
        super().write(connection, rows.set_column(4, "word", rows.column("word").fill_null("")))


class Tokenless(SqliteWriter):
    def first(self, connection: sqlite3.Connection, token: str) -> bool:
        del connection, token
        return True


class ShortTokens(SqliteWriter):
    def first(self, connection: sqlite3.Connection, token: str) -> bool:
        return super().first(connection, token[:16])


class Timeless(SqliteWriter):
    def send(self, rows: pa.Table, insert: Insert) -> Reply:
        return super().send(rows, replace(insert, deadline=2**62))


class Stopped(SqliteTarget):
    def now(self) -> int:
        return 2**42


class ChunkTokens(SqliteWriter):
    """What a block is called depends on how Arrow cut it."""

    def send(self, rows: pa.Table, insert: Insert) -> Reply:
        return super().send(rows, replace(insert, token=f"{insert.token}{len(rows.to_batches())}"))


class FirstPartition(SqliteWriter):
    def write(self, connection: sqlite3.Connection, rows: pa.Table) -> None:
        partition = [each[:2] for each in coordinates(rows)]
        super().write(connection, rows.filter(pa.array([each == partition[0] for each in partition])))


class Rewriting(SqliteWriter):
    """Reads all, and writes all with what is new, as a file that is replaced."""

    def transact(self, connection: sqlite3.Connection, rows: pa.Table, insert: Insert) -> Reply:
        before = connection.execute("SELECT * FROM events").fetchall()
        time.sleep(0.5)
        connection.execute("BEGIN IMMEDIATE")
        if self.first(connection, insert.token):
            connection.execute("DELETE FROM events")
            connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?)", before)
            self.write(connection, rows)
        connection.execute("COMMIT")
        return Reply.ACKNOWLEDGED


class LookingFirst(SqliteWriter):
    """Looks for the token, and writes it in another transaction."""

    def first(self, connection: sqlite3.Connection, token: str) -> bool:
        known = connection.execute("SELECT 1 FROM tokens WHERE token = ?", (token,)).fetchone()
        connection.execute("COMMIT")
        time.sleep(0.5)
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT OR IGNORE INTO tokens VALUES (?)", (token,))
        return known is None


BROKEN_SINKS: dict[str, Callable[[Path], SinkSite]] = {
    "the_guarantee_is_one_that_this_port_keeps": lambda folder: SqliteSite(folder, Boasting),
    "a_sink_travels_to_the_workers": lambda folder: SqliteSite(folder, Rooted),
    "no_secret_is_shown": lambda folder: SqliteSite(folder, Talkative, "s3cret-word"),
    "a_table_is_made_once": with_target(Emptying),
    "the_schema_comes_back": with_target(Uncovered),
    "a_fit_table_is_not_refused": with_target(Refusing),
    "what_is_acknowledged_is_there": with_writer(Dropping),
    "values_come_back_as_they_were": with_writer(Smoothing),
    "the_same_token_lands_once": with_writer(Tokenless),
    "another_token_is_another_block": with_writer(ShortTokens),
    "a_late_insert_is_refused": with_writer(Timeless),
    "the_clock_counts_milliseconds": with_target(Stopped),
    "chunks_are_one_block": with_writer(ChunkTokens),
    "a_block_of_several_partitions_lands_whole": with_writer(FirstPartition),
    "blocks_land_side_by_side": with_writer(Rewriting),
    "two_sends_of_one_token_at_once_land_once": with_writer(LookingFirst),
    **BROKEN_IN_DOUBT,
}
