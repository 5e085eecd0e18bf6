"""A block's transaction in PostgreSQL, through ADBC: rows go from Arrow by COPY, on the connection that flips the block.

What was answered is on disk, even where the server's default is `synchronous_commit=off`. A worker that stops in the middle
does not hold the block for ever: the server ends sessions that stand in a transaction, and a takeover ends them at once. Nor
does a server that stands still hold a worker for ever (`watch`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import adbc_driver_manager
import pyarrow as pa
import pyarrow.compute as pc
from adbc_driver_postgresql import dbapi
from psycopg.conninfo import make_conninfo
from psycopg.pq import PGconn, Ping
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from landonce.ledger.plain_sql import BlockPlace
from landonce.ledger.postgres import postgres_url
from landonce.protocol.block_rows import BlockRow, Claim, Mark
from landonce.read.changes.decode import OPERATION
from landonce.read.changes.images import DELETE
from landonce.sinks.contract import COORDINATES
from landonce.sinks.sql.databases import session_name
from landonce.sinks.sql.documents import versioned
from landonce.sinks.sql.likeness import asking, holding, likeness
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.sql.statements import (
    GONE,
    STAGED,
    counted_statement,
    flip_statement,
    merge_statement,
    purge_statement,
    read_statement,
    staging_statement,
    words_of,
)
from landonce.sinks.sql.watch import Patience, Watch
from landonce.sinks.transactional import Blame, BlockTransaction, Trouble, rows_left_out

PATIENCE = Patience()
_PORTION = 8_192
"""Rows that are encoded at once: while the server takes some, the next are encoded."""
_CONNECT_SECONDS = 5
_IDLE = "60s"
_LOCK = "20s"
_WORDS = words_of("postgresql")
_DURABLE = (
    "SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' "
    "ELSE current_setting('synchronous_commit') END, true), "
    f"set_config('lock_timeout', '{_LOCK}', true), set_config('idle_in_transaction_session_timeout', '{_IDLE}', true)"
)
"""For the transaction only: with a pooler in between, the session is another one before and after it."""
_HOME = (
    "SELECT n.nspname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = to_regclass($1)"
)
"""Where a table without a schema before its name is found. ADBC itself looks in the first schema only."""
_SCREENED = (
    "SELECT 1 FROM pg_trigger, to_regclass($1) AS own WHERE NOT tgisinternal AND tgenabled <> 'D' AND tgtype & 7 = 7 "
    "AND (tgrelid = own OR tgrelid IN (SELECT relid FROM pg_partition_tree(own))) LIMIT 1"
)
"""Whether a trigger looks at each row before it is inserted, in the table or a partition of it."""
_AT_ONCE = "SET CONSTRAINTS ALL IMMEDIATE"
"""Constraints that are deferred speak here, and not with the COMMIT."""
_PASSING = ("08", "40", "53", "55006", "55P03", "57", "58", "25006", "25P03", "25P04", "72")
"""Connections, serialization and deadlocks, resources, locks, an operator's hand, the system, a standby, and a session that
stood still in its transaction for too long."""
_OF_ROWS = ("22", "23502", "23514", "44000", "54000", "54001", "P0001")
"""Values, NULL, CHECK, a view's own check, what is too long for an index or nested too deep, what a trigger raises."""
_OF_ADBC = re.compile(r"^\w+: \[libpq\] (?:.*?PGRES_FATAL_ERROR\]?:? )?(?:ERROR:\s+)?")
"""What ADBC says before PostgreSQL's own words."""
_PROTOCOL = "08P01"
_OF_COPY = ("22P03", "22P04", _PROTOCOL)
"""Bytes that are not of the column's type: then it is the table that is wrong, and no row. PostgreSQL speaks of the message then; a pooler
has the same state for a server that it lost or cannot reach."""
_TABLE, _COLUMN, _CONSTRAINT = b"PG_DIAG_TABLE_NAME", b"PG_DIAG_COLUMN_NAME", b"PG_DIAG_CONSTRAINT_NAME"
_MISSING = ("42P01", "3F000")
"""No such table, or schema."""
_ENDED = ("08", "57P0", "25P03", "25P04")
"""The session is over, so what was sent last may not have been looked at."""


class PostgresWriter(BlockTransaction):
    """One connection of one block."""

    def __init__(self, sink: SqlSink, place: BlockPlace) -> None:
        self._sink, self._place = sink, place
        self._connection: Any = None
        self._cursor: Any = None
        self._columns: frozenset[str] = frozenset()
        told = conninfo(sink)
        self._watch = Watch(lambda: _answers(told), PATIENCE)
        try:
            self._connection = dbapi.connect(told, autocommit=True)
            self._cursor = self._connection.cursor()
        except adbc_driver_manager.Error as error:
            self.close()
            raise trouble_of(error) from None

    def flip(self, claim: Claim, receipt: str) -> bool:
        self._begin()
        self._ask(_DURABLE)
        return bool(self._ask(*flip_statement(_WORDS, self._place, claim, receipt)))

    def unaltered(self) -> bool:
        if not self._sink.examined:
            return True
        try:
            self._do(holding(_WORDS, self._sink.table))
        except Trouble as trouble:
            if trouble.missing:
                return False
            raise
        return likeness(row for each in asking(self._sink) for row in self._ask(*each)) == self._sink.examined

    def read(self) -> BlockRow | None:
        found = self._ask(*read_statement(_WORDS, self._place))
        for number, epoch, owner, mark, receipt in found:
            return BlockRow(number, Claim(epoch, owner), Mark(mark), receipt)
        return None

    def write(self, rows: pa.Table) -> None:
        rows = landing(rows, self._sink.jsonb)
        self._columns = frozenset(rows.column_names)
        if self._sink.key:
            gone = pc.equal(rows.column(OPERATION), DELETE)
            rows = rows.drop_columns([OPERATION])
            self._change(rows.filter(pc.invert(gone)), rows.filter(gone))
        else:
            self._add(rows)
        self._do(_AT_ONCE)

    def savepoint(self, statement: str) -> None:
        self._do(statement)

    def commit(self) -> None:
        self._do("COMMIT")

    def close(self) -> None:
        for each in (self._cursor, self._connection):
            with suppress(adbc_driver_manager.Error):
                if each is not None:
                    each.close()
        self._watch.end()

    def _add(self, rows: pa.Table) -> None:
        """COPY does not tell how many rows a trigger left out: where there is one that could, they are counted."""
        if not self._ask(_SCREENED, (_WORDS.table(self._sink.table),)):
            self._copy(rows, self._sink.name, schema=self._sink.schema or self._home())
            return
        self._stage(rows, STAGED)
        taken = self._ask(counted_statement(_WORDS, self._sink.table, rows.column_names))[0][0]
        if taken < rows.num_rows:
            raise rows_left_out(taken, rows.num_rows)
        self._do(f"DROP TABLE pg_temp.{STAGED}")

    def _change(self, rows: pa.Table, gone: pa.Table) -> None:
        """Deletions come first: what a row held under another unique key may be another row's by now. Those that a row of this
        block outlives, since the table takes its key for the deleted one, are made again: coordinates tell which is later."""
        purge = purge_statement(_WORDS, self._sink.table, self._sink.key)
        if gone.num_rows:
            self._stage(gone.select([*self._sink.key, *COORDINATES]), GONE)
            self._do(purge)
        if rows.num_rows:
            self._stage(rows, STAGED)
            self._do(merge_statement(_WORDS, self._sink.table, rows.column_names, self._sink.key))
            self._do(f"DROP TABLE pg_temp.{STAGED}")
        if gone.num_rows:
            if rows.num_rows:
                self._do(purge)
            self._do(f"DROP TABLE pg_temp.{GONE}")

    def _home(self) -> str | None:
        found = self._ask(_HOME, (_WORDS.table(self._sink.table),))
        return str(found[0][0]) if found else None

    def _stage(self, rows: pa.Table, temporary: str) -> None:
        self._do(staging_statement(_WORDS, temporary, self._sink.table, rows.column_names))
        self._copy(rows, temporary, temporary=True)

    def _copy(self, rows: pa.Table, table: str, *, schema: str | None = None, temporary: bool = False) -> None:
        try:
            self._cursor.adbc_ingest(
                table,
                rows.to_reader(_PORTION),
                mode="append",
                db_schema_name=None if temporary else schema,
                temporary=temporary,
            )
        except adbc_driver_manager.Error as error:
            raise self._trouble(error) from None

    def _begin(self) -> None:
        """In one message. What is asked for with an answer is prepared first and executed then, and with a pooler in between these may be
        two sessions, until a transaction holds one."""
        try:
            self._cursor.executescript("BEGIN ISOLATION LEVEL READ COMMITTED")
        except adbc_driver_manager.Error as error:
            raise self._trouble(error) from None

    def _do(self, statement: str) -> None:
        try:
            self._cursor.execute(statement)
        except adbc_driver_manager.Error as error:
            raise self._trouble(error) from None

    def _ask(self, statement: str, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        try:
            self._cursor.execute(statement, parameters or None)
            return list(self._cursor.fetchall())
        except adbc_driver_manager.Error as error:
            raise self._trouble(error) from None

    def _trouble(self, error: adbc_driver_manager.Error) -> Trouble:
        """A column that is not written and may not be NULL was added since the start: then it is no row's fault."""
        trouble = trouble_of(error)
        details: dict[Any, bytes] = dict(error.details)
        here = error.sqlstate == "23502" and details.get(_TABLE) == self._sink.name.encode()
        if here and details.get(_COLUMN, b"").decode() not in self._columns:
            trouble.blame = Blame.ELSE
        return trouble


def landing(rows: pa.Table, jsonb: tuple[str, ...] = ()) -> pa.Table:
    """As COPY takes them: a UUID is its sixteen bytes, and a document begins with its version."""
    for at, each in enumerate(rows.schema):
        if each.name in jsonb:
            rows = rows.set_column(at, each.name, versioned(rows.column(at)))
        if each.type == pa.uuid():
            storage = pa.chunked_array([chunk.storage for chunk in rows.column(at).chunks], pa.binary(16))
            rows = rows.set_column(at, each.name, storage)
    return rows


def conninfo(sink: SqlSink) -> str:
    """What libpq is told: the URL, and that nothing waits for ever."""
    _, told = PGDialect_psycopg().create_connect_args(postgres_url(sink.address))
    told = {name: value for name, value in told.items() if name not in ("context", "prepare_threshold")}
    defaults = {
        "connect_timeout": _CONNECT_SECONDS,
        "target_session_attrs": "read-write",
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        "tcp_user_timeout": 60_000,
    }
    return str(make_conninfo(**{**defaults, **told, "application_name": session_name(sink.pipeline)}))


def _answers(told: str) -> bool:
    """Whether the server answers anybody at all, be it with a no."""
    return Ping(PGconn.ping(told.encode())) is not Ping.NO_RESPONSE


def trouble_of(error: adbc_driver_manager.Error) -> Trouble:
    """What PostgreSQL said, and whether it said it."""
    state = error.sqlstate or ""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = _OF_ADBC.sub("", lines[0]) if lines else type(error).__name__
    ours = state in _OF_COPY and (state != _PROTOCOL or "message" in said)
    over = not state or (state.startswith(_ENDED) and not ours)
    return Trouble(
        said,
        passing=not state or (state.startswith(_PASSING) and not ours),
        answered=not over,
        blame=_blame(state, dict(error.details)),
        missing=state in _MISSING,
    )


def _blame(state: str, details: Mapping[Any, object]) -> Blame:
    """A row for which a table has no partition breaks a CHECK of that table, too, but one without a name."""
    if state in ("23505", "23P01"):
        return Blame.TWICE
    if state == "23503" or (state == "23514" and _TABLE in details and _CONSTRAINT not in details):
        return Blame.OTHERS
    return Blame.ROW if state.startswith(_OF_ROWS) and state not in _OF_COPY else Blame.ELSE
