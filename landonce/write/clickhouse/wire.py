"""One insert, one connection, one request: nothing here ever sends a request again.

A pool could hand out a connection that the server has just closed, and a client library could then resend by itself;
both turn a known outcome into an unknown one, or worse. A fresh connection per insert costs less than a millisecond.
It also tells "never connected" (nothing was sent) from "no answer" (anything may have happened).
"""

from __future__ import annotations

import ssl
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from urllib.parse import urlencode

import pyarrow as pa

from landonce.errors import TargetRefused
from landonce.write.clickhouse.address import Address
from landonce.write.clickhouse.replies import Answer

_EARLY_ANSWER_SECONDS = 2.0


class NotSent(Exception):
    """There was no connection, so nothing was sent."""


class NoAnswer(Exception):
    """The request went out, in part or whole, and no complete answer came back."""


@dataclass(frozen=True)
class Tls:
    """How a server's certificate is checked."""

    verify: bool = True
    ca_cert: str = ""

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca_cert or None)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


@dataclass(frozen=True)
class Timeouts:
    """Seconds: to connect, and for sending a body or waiting for its answer."""

    connect: float = 5.0
    answer: float = 300.0


def post(address: Address, parameters: Mapping[str, str], body: pa.Buffer, tls: Tls, timeouts: Timeouts) -> Answer:
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
            command="set `ca_cert` in {file} to the certificate of the authority that signed it",
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


def _send(connection: HTTPConnection, address: Address, parameters: Mapping[str, str], body: pa.Buffer) -> None:
    login = b64encode(f"{address.user}:{address.password}".encode()).decode()
    connection.putrequest("POST", f"/?{urlencode(parameters)}", skip_accept_encoding=True)
    connection.putheader("Authorization", f"Basic {login}")
    connection.putheader("Content-Type", "application/octet-stream")
    connection.putheader("Content-Length", str(body.size))
    connection.putheader("Connection", "close")
    connection.endheaders()
    try:
        connection.send(memoryview(body))
    except (BrokenPipeError, ConnectionResetError):
        # The server may have refused early and closed: its answer can still be there to be read.
        assert connection.sock is not None
        connection.sock.settimeout(_EARLY_ANSWER_SECONDS)


def _read(response: HTTPResponse) -> Answer:
    text = response.read()
    code = response.headers.get("X-ClickHouse-Exception-Code", "")
    return Answer(
        status=response.status,
        code=int(code) if code.isdigit() else None,
        query_id=response.headers.get("X-ClickHouse-Query-Id", ""),
        text=text[:10_000].decode(errors="replace"),
    )
