"""A block's transaction in PostgreSQL, through ADBC: rows go from Arrow by COPY, on the connection that flips the block.

A confirmed commit is on disk, even if the server's default is `synchronous_commit=off`. A worker that stops in a transaction does not
hold the block for ever: the server ends idle transactions, and a takeover ends them at once. A server that hangs does not hold a
worker for ever either (`Watch`).
"""

from __future__ import annotations

import os
import re
import socket
import stat
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import adbc_driver_manager
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from adbc_driver_postgresql import dbapi
from psycopg.conninfo import make_conninfo
from psycopg.pq import PGconn, Ping
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from landonce.ledger.plain_sql import BlockKey
from landonce.ledger.postgres import postgres_url
from landonce.protocol.block_rows import Claim
from landonce.sinks.sql.forms import array_in_postgres, in_postgres
from landonce.sinks.sql.sink import SqlSink, session_name
from landonce.sinks.sql.statements import (
    GONE,
    STAGED,
    counted_statement,
    flip_statement,
    merge_statement,
    purge_statement,
    staging_statement,
    syntax_of,
    triggers_statement,
)
from landonce.sinks.sql.writer import StatementWriter
from landonce.sinks.transactional import Blame, Trouble, rows_left_out

_PORTION = 8_192
"""Rows that are encoded at once: while the server reads some, the next are encoded."""
_CONNECT_SECONDS = 5
_IDLE = "60s"
_LOCK = "20s"
_SYNTAX = syntax_of("postgresql")
_DURABLE = (
    "SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' "
    "ELSE current_setting('synchronous_commit') END, true), "
    f"set_config('lock_timeout', '{_LOCK}', true), set_config('idle_in_transaction_session_timeout', '{_IDLE}', true)"
)
"""For the transaction only: behind a pooler the next transaction may use another session."""
_HOME = (
    "SELECT n.nspname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = to_regclass($1)"
)
"""The schema of a table that is named without one. ADBC itself looks only in the first schema of the search path."""
_SCREENED = triggers_statement("$1", 4)
"""The BEFORE INSERT triggers for each row."""
_AT_ONCE = "SET CONSTRAINTS ALL IMMEDIATE"
"""Deferred constraints fail here, and not at the COMMIT."""
_PASSING = ("08", "40", "53", "55006", "55P03", "57", "58", "25006", "25P03", "25P04", "72")
"""Connections, serialization and deadlocks, resources, locks, an operator's intervention, the system, a standby, and a session that was
idle in its transaction for too long."""
_OF_ROWS = ("22", "23502", "23514", "44000", "54000", "54001", "P0001")
"""Values, NULL, CHECK, a view's own check, what is too long for an index or nested too deep, what a trigger raises."""
_OF_ADBC = re.compile(r"^\w+: \[libpq\] (?:.*?PGRES_FATAL_ERROR\]?:? )?(?:ERROR:\s+)?")
"""What ADBC puts before PostgreSQL's own message."""
_PROTOCOL = "08P01"
_OF_COPY = ("22P03", "22P04", _PROTOCOL)
"""Bytes that are not of the column's type: the table is wrong, not a row. 08P01 counts only if PostgreSQL speaks of a message; a pooler
uses the same state for a server that it cannot reach."""
_TABLE, _COLUMN, _CONSTRAINT = b"PG_DIAG_TABLE_NAME", b"PG_DIAG_COLUMN_NAME", b"PG_DIAG_CONSTRAINT_NAME"
_MISSING = ("42P01", "3F000")
"""No such table, or schema."""
_ENDED = ("08", "57P0", "25P03", "25P04")
"""The session is over. The last statement may not have run."""


@dataclass(frozen=True)
class Patience:
    """Seconds between two pings, how many may stay unanswered, and the longest time that a connection may take."""

    every: float = 10.0
    unanswered: int = 3
    longest: float = 1800.0


PATIENCE = Patience()


class Watch:
    """Cuts one connection if its server hangs, so that a waiting worker gets an error.

    The connection is known by its sockets: those that this process opens between the start of the watch and `connected`. Other connections
    of the process are left alone, even if nobody calls `end`.

    The kernel of a frozen server still acknowledges packets, so TCP settings do not help, and neither do the server's own timeouts. Nobody
    knows how long a statement may take, but whether the server answers a ping can be asked. So it is asked while the statement runs, and
    after some pings without an answer the connection is cut. The block's row then says what became of the transaction.
    """

    def __init__(self, alive: Callable[[], bool], patience: Patience) -> None:
        self._alive, self._patience = alive, patience
        self._before = set(_sockets().values())
        self._mine: set[int] | None = None
        self._over = threading.Event()
        self._turn = threading.Lock()
        self.cut = False
        threading.Thread(target=self._watch, daemon=True, name="landonce-watch").start()

    def connected(self) -> None:
        self._mine = set(_sockets().values()) - self._before

    def end(self) -> None:
        with self._turn:
            self._over.set()

    def _watch(self) -> None:
        asked = missed = 0
        while not self._over.wait(self._patience.every):
            asked += 1
            missed = 0 if self._alive() else missed + 1
            if missed >= self._patience.unanswered or asked * self._patience.every >= self._patience.longest:
                self._cut()
                return

    def _cut(self) -> None:
        with self._turn:
            if self._over.is_set():
                return
            self.cut = True
            for descriptor, number in _sockets().items():
                if number in self._mine if self._mine is not None else number not in self._before:
                    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as line:
                        line.shutdown(socket.SHUT_RDWR)


def _sockets() -> dict[int, int]:
    """Descriptors of open sockets, with the inode of each: a descriptor may be used again, an inode may not while it is open."""
    found = {}
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                found[int(name)] = status.st_ino
    return found


class PostgresWriter(StatementWriter):
    """One connection of one block."""

    syntax = _SYNTAX
    failures = adbc_driver_manager.Error

    def __init__(self, sink: SqlSink, block: BlockKey) -> None:
        super().__init__(sink, block)
        self._connection: Any = None
        self._columns: frozenset[str] = frozenset()
        self._numbers: tuple[str, ...] = ()
        options = conninfo(sink)
        # A server that answers is alive, even if it refuses.
        self._watch = Watch(lambda: Ping(PGconn.ping(options.encode())) is not Ping.NO_RESPONSE, PATIENCE)
        try:
            self._connection = dbapi.connect(options, autocommit=True)
            self._watch.connected()
            self._cursor = self._connection.cursor()
        except adbc_driver_manager.Error as error:
            self.close()
            raise trouble_of(error) from None

    def flip(self, claim: Claim, receipt: str) -> bool:
        """Begins in one message. A statement with a result is prepared and then executed; behind a pooler these may be two sessions,
        unless a transaction is open."""
        with self._errors():
            self._cursor.executescript("BEGIN ISOLATION LEVEL READ COMMITTED")
        self._ask(_DURABLE)
        return bool(self._ask(*flip_statement(_SYNTAX, self._block, claim, receipt)))

    def write(self, rows: pa.Table) -> None:
        self._columns = frozenset(rows.column_names)
        forms = dict(self._sink.own_forms)
        self._numbers = tuple(
            each.name for each in rows.schema if forms.get(each.name) == "numeric" and pt.is_string(each.type)
        )
        super().write(landing(rows, forms))
        self._do(_AT_ONCE)

    def commit(self) -> None:
        self._do("COMMIT")

    def close(self) -> None:
        for each in (self._cursor, self._connection):
            with suppress(adbc_driver_manager.Error):
                if each is not None:
                    each.close()
        self._watch.end()

    def _add(self, rows: pa.Table) -> None:
        """COPY does not report rows that a trigger left out. If there is such a trigger, or numbers are text, rows are staged and
        counted."""
        table = (_SYNTAX.table(self._sink.table),)
        if not self._numbers and not self._ask(_SCREENED, table):
            home = [(self._sink.schema,)] if self._sink.schema else self._ask(_HOME, table)
            self._copy(rows, self._sink.name, db_schema_name=str(home[0][0]) if home else None)
            return
        self._stage(rows, STAGED)
        taken = self._ask(counted_statement(_SYNTAX, self._sink.table, rows.column_names, self._numbers))[0][0]
        if taken < rows.num_rows:
            raise rows_left_out(taken, rows.num_rows)
        self._do(f"DROP TABLE pg_temp.{STAGED}")

    def _change(self, rows: pa.Table, deleted: pa.Table) -> None:
        purge = purge_statement(_SYNTAX, self._sink.table, self._sink.key)
        if deleted.num_rows:
            self._stage(deleted, GONE)
            self._do(purge)
        if rows.num_rows:
            self._stage(rows, STAGED)
            self._do(merge_statement(_SYNTAX, self._sink.table, rows.column_names, self._sink.key, self._numbers))
            self._do(f"DROP TABLE pg_temp.{STAGED}")
        if deleted.num_rows:
            if rows.num_rows:
                self._do(purge)
            self._do(f"DROP TABLE pg_temp.{GONE}")

    def _stage(self, rows: pa.Table, temporary: str) -> None:
        self._do(staging_statement(_SYNTAX, temporary, self._sink.table, rows.column_names, self._numbers))
        self._copy(rows, temporary, temporary=True)

    def _copy(self, rows: pa.Table, table: str, **options: Any) -> None:
        with self._errors():
            self._cursor.adbc_ingest(table, rows.to_reader(_PORTION), mode="append", **options)

    def _trouble(self, error: Any) -> Trouble:
        """If a NOT NULL column was added since the start, no row is to blame."""
        trouble = trouble_of(error)
        details: dict[Any, bytes] = dict(error.details)
        here = error.sqlstate == "23502" and details.get(_TABLE) == self._sink.name.encode()
        if here and details.get(_COLUMN, b"").decode() not in self._columns:
            trouble.blame = Blame.ELSE
        return trouble


def landing(rows: pa.Table, own_forms: Mapping[str, str]) -> pa.Table:
    """Rows as COPY takes them: a UUID is its sixteen bytes, a JSONB document begins with its version, 1, and what has another form of its own is binary."""
    for at, each in enumerate(rows.schema):
        column, form = rows.column(at), own_forms.get(each.name, "")
        if form == "jsonb":
            rows = rows.set_column(at, each.name, pc.binary_join_element_wise("\x01", column, ""))
        elif form == "array" and each.type.value_type == pa.uuid():
            rows = rows.set_column(at, each.name, pa.chunked_array([_lists_of_bytes(chunk) for chunk in column.chunks]))
        elif form not in ("", "array", "numeric"):
            rows = rows.set_column(at, each.name, pa.array(map(_encoder(form), column.to_pylist()), pa.binary()))
        if each.type == pa.uuid():
            storage = pa.chunked_array([chunk.storage for chunk in column.chunks], pa.binary(16))
            rows = rows.set_column(at, each.name, storage)
    return rows


def _encoder(form: str) -> Callable[[Any], bytes | None]:
    """Of values that are text, or lists of texts."""
    what, *of_array = form.split()
    if not of_array:
        return lambda text: None if text is None else in_postgres(text, what)
    element, kind = int(of_array[0]), of_array[1]
    return lambda texts: None if texts is None else array_in_postgres(texts, kind, element)


def _lists_of_bytes(lists: pa.ListArray) -> pa.ListArray:
    """Lists of UUIDs as lists of their bytes."""
    ends = np.cumsum(pc.list_value_length(lists).fill_null(0).to_numpy())
    offsets = pa.array(np.concatenate(([0], ends)), pa.int32())
    return pa.ListArray.from_arrays(offsets, lists.flatten().storage, mask=lists.is_null())


def conninfo(sink: SqlSink) -> str:
    """The URL for libpq, with timeouts, so that nothing waits for ever."""
    _, options = PGDialect_psycopg().create_connect_args(postgres_url(sink.address))
    options = {name: value for name, value in options.items() if name not in ("context", "prepare_threshold")}
    defaults = {
        "connect_timeout": _CONNECT_SECONDS,
        "target_session_attrs": "read-write",
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        "tcp_user_timeout": 60_000,
    }
    return str(make_conninfo(**{**defaults, **options, "application_name": session_name(sink.pipeline)}))


def trouble_of(error: adbc_driver_manager.Error) -> Trouble:
    """What PostgreSQL reported, and whether it was PostgreSQL that reported it."""
    state, details = error.sqlstate or "", dict[Any, object](error.details)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = _OF_ADBC.sub("", lines[0]) if lines else type(error).__name__
    ours = state in _OF_COPY and (state != _PROTOCOL or "message" in said)
    over = not state or (state.startswith(_ENDED) and not ours)
    unplaced = state == "23514" and _TABLE in details and _CONSTRAINT not in details  # a row without a partition
    if state in ("23505", "23P01"):
        blame = Blame.TWICE
    elif state == "23503" or unplaced:
        blame = Blame.OTHERS
    else:
        blame = Blame.ROW if state.startswith(_OF_ROWS) and state not in _OF_COPY else Blame.ELSE
    return Trouble(
        said,
        passing=not state or (state.startswith(_PASSING) and not ours),
        answered=not over,
        blame=blame,
        missing=state in _MISSING,
    )
