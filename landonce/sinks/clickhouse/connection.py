"""Requests to ClickHouse over HTTP: `post` sends one, once; a `Connection` sends queries again if a failure may pass.

`post` opens a new connection for each request. A pool could hand out a connection that the server has just closed, and a client library
could send again by itself; both make an outcome unknown. A new connection takes less than a millisecond, and tells "never connected"
(nothing was sent) from "no answer" (anything may have happened). A client library would also send its own queries first, with the settings
of the user's profile. Inserts (`worker`) use `post` and never a `Connection`.

Rows are sent as external data (a multipart form), not as the body of an INSERT. So ClickHouse has all rows before the statement begins: a
stalled upload never becomes a running insert, and the deadline is checked after the upload. The user needs only INSERT and SELECT;
`input()` would need READ ON FILE and, before 26.5, CREATE TEMPORARY TABLE. External data costs the server about 0.15 µs per row of
64 bytes.

The password is only in the request's header: never in a message, a log line or a statement.
"""

from __future__ import annotations

import secrets
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, TypeVar
from urllib.parse import urlencode

import pyarrow as pa

from landonce import tls
from landonce.errors import CertificateRefused, TargetRefused, TargetUnavailable
from landonce.sinks.clickhouse import settings
from landonce.sinks.clickhouse.address import Address, literal
from landonce.sinks.clickhouse.replies import Answer, refuse_permanent

Value = str | Sequence[str]
T = TypeVar("T")

_CONNECT_SECONDS = 5.0
_EARLY_ANSWER_SECONDS = 2.0
_QUERY_SECONDS = 60.0
"""A query takes less time than an insert, and a server that hangs must not block the run."""
_PAUSES = (0.2, 1.0, 3.0)
MOST_BYTES_OF_A_FIELD = 100_000
"""ClickHouse refuses a field of a form that holds more than 128 KiB, unless the server is configured otherwise."""
_LONG_STATEMENT = 250_000
"""Bytes. Above 256 KiB ClickHouse needs settings that allow so long a statement."""
_CERTIFICATE_KEYS = tls.TlsKeys(
    "`sink.clickhouse.ca_cert`", "`sink.clickhouse.client_cert`, `sink.clickhouse.client_key`"
)
_SIZES = ("max_query_size", "max_ast_elements", "max_expanded_ast_elements")


class NotSent(Exception):
    """No connection was made, so nothing was sent."""


class NoAnswer(Exception):
    """The request was sent, at least in part, and no complete answer came."""


@dataclass(frozen=True)
class Access:
    """Everything needed to reach a server: hashable, picklable, with a repr that hides the password."""

    address: Address
    authority: str = ""
    """Who may have signed the server's certificate, as PEM text. Empty: those that the system knows."""
    certificate: str = field(default="", repr=False)
    """The client's certificate and its key, as PEM text."""
    timeout: float = 300.0
    """Seconds for sending a body or waiting for its answer."""
    extra: tuple[tuple[str, str], ...] = ()
    """The user's settings."""


@dataclass(frozen=True)
class Rows:
    """Rows as external data: their name in the statement, their structure, and an Arrow stream."""

    name: str
    structure: str
    stream: pa.Buffer


@dataclass(frozen=True)
class Form:
    """A statement and its rows. All of it is in the body: a URL has no room for many columns."""

    statement: str
    tables: tuple[Rows, ...]

    def encode(self) -> tuple[str, tuple[memoryview, ...]]:
        """The content type, and the pieces of the body. Rows are not copied."""
        boundary = secrets.token_hex(24)

        def opening(named: str) -> bytes:
            return f"--{boundary}\r\nContent-Disposition: form-data; {named}\r\n\r\n".encode()

        statement = self.statement.encode()
        parts = range(0, len(statement), MOST_BYTES_OF_A_FIELD)
        # ClickHouse joins all fields named `query` to one statement.
        fields = [("query", statement[start : start + MOST_BYTES_OF_A_FIELD]) for start in parts]
        for each in self.tables:
            fields += [(f"{each.name}_format", b"ArrowStream"), (f"{each.name}_structure", each.structure.encode())]
        pieces = [memoryview(opening(f'name="{name}"') + value + b"\r\n") for name, value in fields]
        for each in self.tables:
            named = memoryview(opening(f'name="{each.name}"; filename="{each.name}"'))
            pieces += [named, memoryview(each.stream), memoryview(b"\r\n")]
        return f"multipart/form-data; boundary={boundary}", (*pieces, memoryview(f"--{boundary}--\r\n".encode()))


def post(access: Access, parameters: Mapping[str, str], body: Form | bytes, timeout: float | None = None) -> Answer:
    """Sends one request and reads its answer. Raises `NotSent` or `NoAnswer`."""
    connection = _connect(access, timeout or access.timeout)
    try:
        _send(connection, access.address, parameters, body)
        response = connection.getresponse()
        data = response.read()
    except (OSError, HTTPException) as error:
        if (
            refused := _certificate_refusal(error, access)
        ) is not None:  # the end of the handshake: nothing was read of the request
            raise refused from None
        raise NoAnswer(type(error).__name__) from error
    finally:
        connection.close()
    code = response.headers.get("X-ClickHouse-Exception-Code", "")
    query_id = response.headers.get("X-ClickHouse-Query-Id", "")
    return Answer(response.status, int(code) if code.isdigit() else None, query_id, data)


def _connect(access: Access, timeout: float) -> HTTPConnection:
    address = access.address
    if address.scheme == "https":
        context = tls.context(access.authority, access.certificate)
        connection: HTTPConnection = HTTPSConnection(
            address.host, address.port, timeout=_CONNECT_SECONDS, context=context
        )
    else:
        connection = HTTPConnection(address.host, address.port, timeout=_CONNECT_SECONDS)
    try:
        connection.connect()
    except OSError as error:
        connection.close()
        if (refused := _certificate_refusal(error, access)) is not None:
            raise refused from None
        raise NotSent(f"{type(error).__name__}: {error}") from error
    assert connection.sock is not None
    connection.sock.settimeout(timeout)
    return connection


def _certificate_refusal(error: Exception, access: Access, *, again: bool = False) -> CertificateRefused | None:
    """`again`: the server may be asked once more for the reason."""
    address = access.address
    examine = None
    if again:
        examine = partial(tls.examine, address.host, address.port, tls.context(access.authority, access.certificate))
    return tls.refusal(error, f"ClickHouse, {address}", address.host, _CERTIFICATE_KEYS, examine)


def _send(connection: HTTPConnection, address: Address, parameters: Mapping[str, str], body: Form | bytes) -> None:
    if isinstance(body, Form):
        statement, (content_type, pieces) = len(body.statement.encode()), body.encode()
    else:
        statement, content_type, pieces = len(body), "text/plain; charset=UTF-8", (memoryview(body),)
    if statement > _LONG_STATEMENT:
        parameters = {**parameters, **dict.fromkeys(_SIZES, str(2 * statement))}
    login = b64encode(f"{address.user}:{address.password}".encode()).decode()
    connection.putrequest("POST", f"/?{urlencode(parameters)}", skip_accept_encoding=True)
    connection.putheader("Authorization", f"Basic {login}")
    connection.putheader("Content-Type", content_type)
    connection.putheader("Content-Length", str(sum(piece.nbytes for piece in pieces)))
    connection.putheader("User-Agent", "landonce")
    connection.putheader("Connection", "close")
    connection.endheaders()
    try:
        for piece in pieces:
            connection.send(piece)
    except (BrokenPipeError, ConnectionResetError):
        # The server may have refused early and closed: its answer can still be there to be read.
        assert connection.sock is not None
        connection.sock.settimeout(_EARLY_ANSWER_SECONDS)


class Connection:
    """A server, for queries and administrative statements. Any number of threads may use it. `connect` keeps one per process."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._known: dict[str, tuple[str, bool]] | None = None

    def ask(self, sql: str, parameters: Mapping[str, Value] | None = None, *, rows: Sequence[Rows] = ()) -> pa.Table:
        """The result of a query, which is sent again while its failure may pass. Values are `{name:Type}` parameters."""
        known = self.settings_of(settings.READ)
        return _patiently(lambda: self._table(sql, parameters or {}, known, rows))

    def ask_if_allowed(self, sql: str, parameters: Mapping[str, Value] | None = None) -> pa.Table | None:
        """The result of a query, or None if the user may not read the table."""
        try:
            return self.ask(sql, parameters)
        except TargetRefused:
            return None

    def one(self, sql: str, parameters: Mapping[str, Value] | None = None) -> Any:
        """The one value of the one row of a query."""
        return self.ask(sql, parameters).column(0)[0].as_py()

    def do(self, sql: str, *, seconds: float | None = None) -> str:
        """Runs an administrative statement that may be repeated, and returns its output. `seconds`: how long it may take."""
        return _patiently(lambda: self._request(sql, dict(self.access.extra), seconds=seconds).text)

    def granted(self, right: str) -> bool:
        """Whether the user has a right, such as `INSERT ON t`."""
        return self.do(f"CHECK GRANT {right}").strip() == "1"

    @cached_property
    def has_times(self) -> bool:
        """Whether tables may have columns of `Time64`."""
        sql = "SELECT count() FROM system.settings WHERE name = 'enable_time_time64_type' AND value IN ('1', 'true')"
        return bool(self.one(sql))

    def settings_of(self, wanted: Mapping[str, str]) -> dict[str, str]:
        """These settings, without those that this server does not know, and the user's own."""
        if self._known is None:
            names = sorted({*settings.INSERT, *settings.READ})
            sql = "SELECT name, value, readonly FROM system.settings WHERE name IN {names:Array(String)}"
            rows = _patiently(lambda: self._table(sql, {"names": names}, settings.ASKING)).to_pylist()
            self._known = {row["name"]: (row["value"], bool(row["readonly"])) for row in rows}
        sent = settings.to_send(wanted, self._known, self.access.address.user)
        return {**dict(self.access.extra), **sent}

    def _table(
        self, sql: str, parameters: Mapping[str, Value], sent: Mapping[str, str], rows: Sequence[Rows] = ()
    ) -> pa.Table:
        bound = {f"param_{name}": _bound(value) for name, value in parameters.items()}
        answer = self._request(sql, {**sent, **bound, "default_format": "ArrowStream"}, rows)
        try:
            with pa.ipc.open_stream(answer.data) as reader:
                return reader.read_all()
        except pa.ArrowInvalid as error:
            raise self._unavailable("an answer that is not whole") from error

    def _request(
        self, sql: str, parameters: Mapping[str, str], rows: Sequence[Rows] = (), seconds: float | None = None
    ) -> Answer:
        """One request. Raises `TargetRefused` if waiting does not help, and `TargetUnavailable` otherwise."""
        access = self.access
        parameters = {**parameters, "database": access.address.database, "wait_end_of_query": "1"}
        body = Form(sql, tuple(rows)) if rows else sql.encode()
        try:
            answer = post(access, parameters, body, seconds or min(access.timeout, _QUERY_SECONDS))
        except (NotSent, NoAnswer) as error:
            if (
                access.address.scheme == "https"
                and (refused := _certificate_refusal(error, access, again=True)) is not None
            ):
                raise refused from None
            raise self._unavailable(str(error)) from error
        refuse_permanent(answer, str(access.address))
        if answer.code is not None or answer.status != 200:
            raise self._unavailable(answer.said)
        return answer

    def _unavailable(self, why: str) -> TargetUnavailable:
        return TargetUnavailable(
            f"{self.access.address}: {why}",
            safe="Nothing is lost.",
            command="landonce run {file}, once ClickHouse answers again",
        )


_connections: dict[Access, Connection] = {}
_lock = threading.Lock()


def connect(access: Access) -> Connection:
    """This process's connection to a server. It remembers which settings the server knows."""
    with _lock:
        return _connections.setdefault(access, Connection(access))


def _patiently(once: Callable[[], T]) -> T:
    for pause in _PAUSES:
        try:
            return once()
        except TargetUnavailable:
            time.sleep(pause)
    return once()


def _bound(value: Value) -> str:
    """A parameter's value, escaped as in tab-separated text."""
    if isinstance(value, str):
        return value.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n")
    return f"[{','.join(literal(each) for each in value)}]"
