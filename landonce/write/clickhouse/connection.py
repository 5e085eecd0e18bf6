"""Asking a server: one client per process and server, settings that no profile can change, patience with what passes.

Only questions and administrative statements go through here, and they may be asked again. Rows never do (`wire`).
A password never leaves the request's own header: not into a message, a log line or a statement.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import clickhouse_connect
import pyarrow as pa
from clickhouse_connect.driver.exceptions import ClickHouseError, ProgrammingError
from clickhouse_connect.driver.external import ExternalData
from urllib3.exceptions import HTTPError

from landonce.errors import TargetRefused, TargetUnavailable
from landonce.write.clickhouse import settings
from landonce.write.clickhouse.address import Address
from landonce.write.clickhouse.replies import PERMANENT, first_line, refusal
from landonce.write.clickhouse.wire import Timeouts, Tls

T = TypeVar("T")

_PAUSES = (0.2, 0.5, 1.0, 2.0, 4.0)
_CODE = re.compile(r"\bcode:? (\d+)", re.IGNORECASE)
_SERVER_TEXT = re.compile(r"server response: (.*?)(?: \(for url [^)]*\))?$", re.DOTALL)


@dataclass(frozen=True)
class Access:
    """Everything that is needed to reach a server, as a value: hashable, picklable, silent about its password."""

    address: Address
    tls: Tls = field(default_factory=Tls)
    timeouts: Timeouts = field(default_factory=Timeouts)
    extra: tuple[tuple[str, str], ...] = ()


class Connection:
    """A server to ask. Get it with `connect`, which keeps one per process."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._client: Any = None
        self._known: dict[str, tuple[str, bool]] | None = None

    def ask(
        self, sql: str, parameters: Mapping[str, object] | None = None, *, external: ExternalData | None = None
    ) -> pa.Table:
        """A question, asked again while its failure may pass. Values go in as `{name:Type}` parameters."""

        def once() -> pa.Table:
            answer = self._open().raw_query(
                sql, dict(parameters or {}), self._settings(settings.READ), "ArrowStream", external_data=external
            )
            with pa.ipc.open_stream(answer) as reader:
                return reader.read_all()

        return self._patiently(once)

    def one(self, sql: str, parameters: Mapping[str, object] | None = None) -> Any:
        """The one value of the one row that a question yields."""
        return self.ask(sql, parameters).column(0)[0].as_py()

    def do(self, sql: str, parameters: Mapping[str, object] | None = None) -> None:
        """An administrative statement that may be repeated."""
        self._patiently(lambda: self._open().command(sql, dict(parameters or {}), settings=dict(self.access.extra)))

    def granted(self, right: str) -> bool:
        """Whether the user has a right, such as `INSERT ON t`. `CHECK GRANT` takes no FORMAT, so it is not asked."""
        return bool(self._patiently(lambda: int(self._open().command(f"CHECK GRANT {right}"))))

    def insert_settings(self) -> dict[str, str]:
        """The settings of every insert, as far as this server knows them."""
        return self._patiently(lambda: self._settings(settings.INSERT))

    def known_settings(self) -> frozenset[str]:
        """Those of the guarantee's settings that this server knows."""
        return frozenset(self._patiently(self._ask_known))

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _open(self) -> Any:
        if self._client is None:
            access = self.access
            self._client = clickhouse_connect.get_client(
                host=access.address.host,
                port=access.address.port,
                username=access.address.user,
                password=access.address.password,
                database=access.address.database,
                interface=access.address.scheme,
                verify=access.tls.verify,
                ca_cert=access.tls.ca_cert or None,
                connect_timeout=max(1, round(access.timeouts.connect)),
                send_receive_timeout=max(1, round(access.timeouts.answer)),
                query_retries=0,
                compress=False,
                autogenerate_session_id=False,
                client_name="landonce",
            )
        return self._client

    def _settings(self, wanted: Mapping[str, str]) -> dict[str, str]:
        sent = settings.to_send(wanted, self._ask_known(), self.access.address.user)
        return {**dict(self.access.extra), **sent}

    def _ask_known(self) -> dict[str, tuple[str, bool]]:
        if self._known is None:
            names = sorted({*settings.INSERT, *settings.READ})
            answer = self._open().raw_query(
                "SELECT name, value, readonly FROM system.settings WHERE name IN {names:Array(String)}",
                {"names": names},
                fmt="ArrowStream",
            )
            with pa.ipc.open_stream(answer) as reader:
                rows = reader.read_all().cast(
                    pa.schema([("name", pa.string()), ("value", pa.string()), ("readonly", pa.uint8())])
                )
            columns = [column.to_pylist() for column in rows.columns]
            self._known = {name: (value, bool(fixed)) for name, value, fixed in zip(*columns, strict=True)}
        return self._known

    def _patiently(self, once: Callable[[], T]) -> T:
        for pause in (*_PAUSES, None):
            try:
                with _translated(str(self.access.address)):
                    return once()
            except TargetUnavailable:
                if pause is None:
                    raise
                time.sleep(pause)
        raise AssertionError("unreachable")


_connections: dict[tuple[int, Access], Connection] = {}
_lock = threading.Lock()


def connect(access: Access) -> Connection:
    """This process's connection to a server. A forked process gets its own."""
    with _lock:
        key = (os.getpid(), access)
        if key not in _connections:
            _connections[key] = Connection(access)
        return _connections[key]


@contextmanager
def _translated(where: str) -> Iterator[None]:
    """A client library's errors as landonce's own: `TargetRefused` for what waiting does not mend."""
    try:
        yield
    except ProgrammingError as error:
        raise TargetRefused(
            f"{where}: {error}", safe="Nothing was written.", command="landonce check {file}"
        ) from error
    except (ClickHouseError, HTTPError, OSError, pa.ArrowInvalid) as error:
        code, text = _code(error), _text(error)
        if code in PERMANENT:
            raise refusal(code, text, where) from None
        raise TargetUnavailable(
            f"{where}: {first_line(text) or type(error).__name__}",
            safe="Nothing is lost.",
            command="landonce run {file}, once ClickHouse answers again",
        ) from error


def _code(error: BaseException) -> int:
    told = getattr(error, "code", None)
    found = _CODE.search(str(error))
    return told if isinstance(told, int) else int(found[1]) if found else -1


def _text(error: BaseException) -> str:
    found = _SERVER_TEXT.search(str(error))
    return found[1] if found else str(error)
