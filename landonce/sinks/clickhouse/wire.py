"""One request over one new connection. Nothing here sends a request again.

A pool could hand out a connection that the server has just closed, and a client library could send again by itself; both make an
outcome unknown. A new connection takes less than a millisecond, and tells "never connected" (nothing was sent) from "no answer"
(anything may have happened). A client library would also send its own queries first, with the settings of the user's profile.

Rows are sent as external data (a multipart form), not as the body of an INSERT. So ClickHouse has all rows before the statement begins: a
stalled upload never becomes a running insert, and the deadline is checked after the upload. The user needs only INSERT and SELECT;
`input()` would need READ ON FILE and, before 26.5, CREATE TEMPORARY TABLE. External data costs the server about 0.15 µs per row of
64 bytes.
"""

from __future__ import annotations

import secrets
import ssl
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from urllib.parse import urlencode

import pyarrow as pa

from landonce.errors import TargetRefused
from landonce.sinks.clickhouse.address import Address
from landonce.sinks.clickhouse.replies import Answer

_EARLY_ANSWER_SECONDS = 2.0
MOST_BYTES_OF_A_FIELD = 100_000
"""ClickHouse refuses a field of a form that holds more than 128 KiB, unless the server is configured otherwise."""
_LONG_STATEMENT = 250_000
"""Bytes. Above 256 KiB ClickHouse needs settings that allow so long a statement."""
_SIZES = ("max_query_size", "max_ast_elements", "max_expanded_ast_elements")
_END = memoryview(b"\r\n")


class NotSent(Exception):
    """No connection was made, so nothing was sent."""


class NoAnswer(Exception):
    """The request was sent, at least in part, and no complete answer came."""


@dataclass(frozen=True)
class Tls:
    """Who may have signed the server's certificate: this authority, or those that the system knows."""

    authority: str = ""

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self.authority or None)


@dataclass(frozen=True)
class Timeouts:
    """Seconds: to connect, and for sending a body or waiting for its answer."""

    connect: float = 5.0
    answer: float = 300.0


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
        pieces: list[memoryview] = []
        for name, value in self._fields():
            pieces.append(_part(boundary, f'name="{name}"', value))
        for each in self.tables:
            pieces += [_part(boundary, f'name="{each.name}"; filename="{each.name}"'), memoryview(each.stream), _END]
        return f"multipart/form-data; boundary={boundary}", (*pieces, memoryview(f"--{boundary}--\r\n".encode()))

    def _fields(self) -> Iterator[tuple[str, bytes]]:
        """ClickHouse joins all fields named `query` to one statement."""
        statement = self.statement.encode()
        for start in range(0, len(statement), MOST_BYTES_OF_A_FIELD):
            yield "query", statement[start : start + MOST_BYTES_OF_A_FIELD]
        for each in self.tables:
            yield f"{each.name}_format", b"ArrowStream"
            yield f"{each.name}_structure", each.structure.encode()


def post(address: Address, parameters: Mapping[str, str], body: Form | bytes, tls: Tls, timeouts: Timeouts) -> Answer:
    """Sends one request and reads its answer. Raises `NotSent` or `NoAnswer`."""
    connection = _connect(address, tls, timeouts)
    try:
        _send(connection, address, parameters, body)
        return _read(connection.getresponse())
    except (OSError, HTTPException) as error:
        raise NoAnswer(type(error).__name__) from error
    finally:
        connection.close()


def _connect(address: Address, tls: Tls, timeouts: Timeouts) -> HTTPConnection:
    connection = _connection(address, tls, timeouts.connect)
    try:
        connection.connect()
    except ssl.SSLCertVerificationError as error:
        connection.close()
        raise TargetRefused(
            f"{address}: the server's certificate is not trusted: {error.verify_message}.",
            safe="Nothing was sent.",
            command="set `sink.clickhouse.ca_cert` in {file} to the certificate of the authority that signed it",
        ) from error
    except OSError as error:
        connection.close()
        raise NotSent(f"{type(error).__name__}: {error}") from error
    assert connection.sock is not None
    connection.sock.settimeout(timeouts.answer)
    return connection


def _connection(address: Address, tls: Tls, timeout: float) -> HTTPConnection:
    if address.scheme == "https":
        return HTTPSConnection(address.host, address.port, timeout=timeout, context=tls.context())
    return HTTPConnection(address.host, address.port, timeout=timeout)


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


def _part(boundary: str, named: str, value: bytes | None = None) -> memoryview:
    """A field of a form, or the opening of one whose value follows."""
    opening = f"--{boundary}\r\nContent-Disposition: form-data; {named}\r\n\r\n".encode()
    return memoryview(opening if value is None else opening + value + b"\r\n")


def _read(response: HTTPResponse) -> Answer:
    data = response.read()
    code = response.headers.get("X-ClickHouse-Exception-Code", "")
    return Answer(
        status=response.status,
        code=int(code) if code.isdigit() else None,
        query_id=response.headers.get("X-ClickHouse-Query-Id", ""),
        data=data,
    )
