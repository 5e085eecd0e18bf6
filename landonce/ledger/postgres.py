"""A ledger's PostgreSQL database.

An acknowledged change is on disk, even if the server's default is `synchronous_commit=off`. No call waits for ever:
this side cuts the connection to a server that stopped answering, and waits only a limited time for a lock that a dead
driver left. It must never put a password into a message.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, Executable, create_engine, make_url, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import ArgumentError, DBAPIError

from landonce.errors import CertificateRefused, ConfigError, LandonceError
from landonce.ledger.database import Database, first_line, misplaced, passes_by_itself, refused, upsert
from landonce.ledger.tables import position_table
from landonce.tls import TlsKeys, examine, not_for, refusal

_CREATE_LOCK = 0x6C616E646F6E6365  # "landonce"
_CONNECT_SECONDS = 5
_ANSWER_SECONDS = 15.0
_ASK_SECONDS, _UNANSWERED = 10.0, 3
_Limit = Callable[[Connection], AbstractContextManager[None]]

_DURABLE = text(
    """
    SELECT set_config('synchronous_commit',
                      CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on'
                           ELSE current_setting('synchronous_commit') END, true),
           set_config('lock_timeout', :lock, true),
           set_config('idle_in_transaction_session_timeout', :idle, true)
    """
)
_RECLAIM_OF = 4
"""Removed bytes are freed once they are this part of a table: a quarter."""
_NO_ENTRY = {"28P01", "28000", "3D000"}
# The driver has no SQLSTATE for errors while connecting. Messages in another language than English do not match:
# then landonce retries to the end, and `LedgerUnavailable` contains the message.
_NO_ENTRY_WORDS = (
    "password authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "does not exist",
    "certificate authentication failed",
    "requires a valid client certificate",
)
_NO_TLS_WORDS = ("certificate file", "private key file", "server does not support SSL", "sslmode", "sslrootcert")
_NO_RIGHT = {"42501", "3F000"}
_NO_TABLE = "42P01"
_READ_ONLY = "25006"


class PostgresDatabase(Database):
    """One database of one server, or, with a multi-host URL of libpq, of the server that accepts writes."""

    def __init__(self, where: str | URL | Engine, *, answer_seconds: float = _ANSWER_SECONDS) -> None:
        self._answer_seconds = answer_seconds
        self._borrowed = isinstance(where, Engine)
        self.engine = where if isinstance(where, Engine) else _engine(postgres_url(where))
        self.place = _place(self.engine.url)
        self._secrets = _secrets(self.engine.url)
        self._process = os.getpid()

    def reading(self) -> AbstractContextManager[Connection]:
        return self._transaction(self._soon, isolation_level="REPEATABLE READ", postgresql_readonly=True)

    def scanning(self) -> AbstractContextManager[Connection]:
        return self._transaction(_cut_if_dead, isolation_level="REPEATABLE READ", postgresql_readonly=True)

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """READ COMMITTED: an update that waited for another one compares again with the new row."""
        with self._transaction(self._soon, isolation_level="READ COMMITTED", postgresql_readonly=False) as connection:
            third = f"{int(self._answer_seconds * 1000 / 3)}ms"
            connection.execute(_DURABLE, {"lock": third, "idle": f"{int(self._answer_seconds * 2000)}ms"})
            yield connection

    @contextmanager
    def creating(self) -> Iterator[Connection]:
        """If two sessions run `CREATE TABLE IF NOT EXISTS`, one can fail; a lock lets one at a time run it."""
        with self.writing() as connection:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _CREATE_LOCK})
            yield connection

    def upsert_positions(self) -> Executable:
        return upsert(insert(position_table))

    def reason(self, failure: DBAPIError) -> str:
        return first_line(failure, self._secrets)

    def fault(self, failure: DBAPIError) -> LandonceError | None:
        state, reason = _sqlstate(failure), self.reason(failure)
        certificate = (
            certificate_refusal(reason, self.engine.url, f"the database {self.place}") if state is None else None
        )
        if certificate is not None:
            return certificate
        if state is None and any(words in reason for words in _NO_TLS_WORDS):
            return misplaced(
                f"the database {self.place} cannot be reached with TLS as its URL says: {reason}.",
                "correct `sslmode`, `sslrootcert`, `sslcert` or `sslkey` in its URL in {file}",
            )
        if state in _NO_ENTRY or (state is None and any(words in reason for words in _NO_ENTRY_WORDS)):
            return misplaced(
                f"the database {self.place} refused the login: {reason}.",
                "correct its URL in {file} (`sink.sql.url`, or `ledger.postgres`): user, password, database; or create the "
                "database",
            )
        if state in _NO_RIGHT:
            return misplaced(
                f"the ledger {self.place} refused: {reason}.",
                "grant the user CREATE on the schema, or SELECT, INSERT, UPDATE and DELETE on the tables landonce_*",
            )
        return None if passes_by_itself(failure) or state == _READ_ONLY else refused(self.place, reason)

    def reclaim(self, table: str, removed: int) -> bool:
        """Autovacuum looks once a minute by default, and can be off: by then, much may have been added and removed. What another session
        vacuums is left to it."""
        with self._transaction(_cut_if_dead, isolation_level="AUTOCOMMIT", postgresql_readonly=False) as connection:
            size = connection.scalar(text("SELECT pg_total_relation_size(to_regclass(:name))"), {"name": table}) or 0
            if removed * _RECLAIM_OF < size:
                return False
            connection.execute(text(f"VACUUM (SKIP_LOCKED) {table}"))
        return True

    def no_tables(self, failure: DBAPIError) -> bool:
        return _sqlstate(failure) == _NO_TABLE

    def close(self) -> None:
        if not self._borrowed:
            self.engine.dispose()

    @contextmanager
    def _transaction(self, limit: _Limit, **options: Any) -> Iterator[Connection]:
        if (
            self._process != os.getpid()
        ):  # after a fork the pool's sockets are the parent's: they are dropped, and its sessions not closed
            self.engine.dispose(close=False)
            self._process = os.getpid()
        with (
            _alive(self.engine.connect()) as connection,
            limit(connection),
            connection.execution_options(**options).begin(),
        ):
            yield connection

    def _soon(self, connection: Connection) -> AbstractContextManager[None]:
        def watch(line: socket.socket, over: threading.Event) -> None:
            if not over.wait(self._answer_seconds):
                _cut(line)

        return _limited(connection, watch)


def postgres_url(where: str | URL) -> URL:
    """For psycopg. An error does not show an invalid URL, because it contains a password."""
    try:
        url = make_url(where)
    except (ArgumentError, ValueError):
        raise _unreadable_url() from None
    if url.drivername in ("postgres", "postgresql"):
        url = url.set(drivername="postgresql+psycopg")
    if "@" in (url.host or "") or url.get_backend_name() != "postgresql":
        raise _unreadable_url()
    return url


def _unreadable_url() -> ConfigError:
    return misplaced(
        "the ledger's URL cannot be read (it is not shown, since it may hold a password).",
        "write it as postgresql://user:password@host:5432/database, with special characters of the password "
        "percent-encoded",
    )


def _engine(url: URL) -> Engine:
    """Keeps one connection. No prepared statements: a pooler in between may not support them."""
    arguments: dict[str, Any] = {"prepare_threshold": None}
    defaults = {
        "connect_timeout": _CONNECT_SECONDS,
        "target_session_attrs": "read-write",
        "application_name": "landonce",
        "keepalives_idle": 30,
        "tcp_user_timeout": int(_ANSWER_SECONDS * 1000),
    }
    arguments |= {name: value for name, value in defaults.items() if name not in url.query}
    return create_engine(url, connect_args=arguments, pool_size=1, max_overflow=-1, hide_parameters=True)


def _place(url: URL) -> str:
    user = f"{url.username}@" if url.username else ""
    port = f":{url.port}" if url.port else ""
    return f"postgresql://{user}{url.host or ''}{port}/{url.database or ''}"


def _secrets(url: URL) -> tuple[str, ...]:
    named = [url.password, *(url.query.get(name) for name in ("password", "sslpassword"))]
    return tuple(str(each) for each in named if each)


def _sqlstate(failure: DBAPIError) -> str | None:
    state = getattr(failure.orig, "sqlstate", None)
    return state if isinstance(state, str) else None


def _alive(connection: Connection) -> Connection:
    """Replaces a connection that was closed without the pool noticing, before a statement fails on it."""
    if getattr(connection.connection.driver_connection, "closed", False):
        connection.invalidate()
    return connection


@contextmanager
def _limited(connection: Connection, watch: Callable[[socket.socket, threading.Event], None]) -> Iterator[None]:
    """Ends the connection from this side when `watch` says so: no server setting helps if the server is frozen.

    It uses a duplicate of the socket's descriptor, so it can never close a later file with the same number.
    """
    handle = getattr(connection.connection.driver_connection, "fileno", None)
    if handle is None:  # another driver, in an engine that the caller created
        yield
        return
    over = threading.Event()
    with socket.socket(fileno=os.dup(handle())) as line:
        watching = threading.Thread(target=watch, args=(line, over), daemon=True, name="landonce-limit")
        watching.start()
        try:
            yield
        finally:
            over.set()
            watching.join()


def _cut_if_dead(connection: Connection) -> AbstractContextManager[None]:
    """Asks whether the server answers at all; nobody knows how long a scan may take."""
    dsn = getattr(getattr(connection.connection.driver_connection, "info", None), "dsn", None)
    if dsn is None:  # another driver
        return nullcontext()
    from psycopg.pq import PGconn, Ping

    def watch(line: socket.socket, over: threading.Event) -> None:
        missed = 0
        while not over.wait(_ASK_SECONDS):
            missed = missed + 1 if Ping(PGconn.ping(dsn.encode())) is Ping.NO_RESPONSE else 0
            if missed >= _UNANSWERED:
                _cut(line)
                return

    return _limited(connection, watch)


def _cut(line: socket.socket) -> None:
    with suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)


# Certificates. libpq names another host, and no other reason.

_FAILED = re.compile(r'connection to server at "([^"]+)"(?: \([^)]*\))?, port (\d+) failed: (.*)')
_OTHER_HOST = re.compile(r'does not match host name "([^"]+)"')
_OF_CERTIFICATES = ("certificate verify failed", " alert ")
_KEYS = TlsKeys("`sslrootcert` in the URL", "`sslcert` and `sslkey` in the URL")
_ASK_FOR_TLS = struct.pack("!ii", 8, 80877103)
"""PostgreSQL's SSLRequest. The server answers with `S`, and TLS begins."""
_HOME = Path("~/.postgresql")


def certificate_refusal(reason: str, where: URL, place: str) -> CertificateRefused | None:
    """The error if the server's certificate is not trusted, or the server does not accept the client's. `reason`: libpq's message; `place`:
    the server's name in messages."""
    failed = _FAILED.search(reason)
    if failed is None:
        return None
    host, port, why = failed[1], int(failed[2]), failed[3]
    other = _OTHER_HOST.search(why)
    if other is not None:
        return not_for(other[1], place)
    if not any(each in why for each in _OF_CERTIFICATES):
        return None
    try:
        found = examine(host, port, _context(where), greet=_greet)
    except (OSError, ValueError):
        return None
    return refusal(found, place, host, _KEYS) if found is not None else None


def _greet(line: socket.socket) -> None:
    line.sendall(_ASK_FOR_TLS)
    if line.recv(1) != b"S":
        raise OSError("the server has no TLS")


def _context(where: URL) -> ssl.SSLContext:
    """As libpq has it. It compares host names itself, and says so."""
    named = {name: value for name, value in where.query.items() if isinstance(value, str)}
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname = False
    authority = named.get("sslrootcert", str(_HOME.expanduser() / "root.crt"))
    if authority == "system":
        tls.load_default_certs()
    else:
        tls.load_verify_locations(authority)
    if "sslcert" in named:
        tls.load_cert_chain(named["sslcert"], named.get("sslkey"), named.get("sslpassword", ""))
    return tls
