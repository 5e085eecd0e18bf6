"""Queries and administrative statements, sent again if a failure may pass. Inserts never go through here (`worker`).

The settings that the guarantee needs go with every request, so that no profile changes them. The password is only in the request's
header: never in a message, a log line or a statement.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pyarrow as pa

from landonce.errors import TargetRefused, TargetUnavailable
from landonce.sinks.clickhouse import settings
from landonce.sinks.clickhouse.address import Address, literal
from landonce.sinks.clickhouse.replies import Answer, refuse_permanent
from landonce.sinks.clickhouse.wire import Form, NoAnswer, NotSent, Rows, Timeouts, Tls, post

Value = str | Sequence[str]

T = TypeVar("T")

_PAUSES = (0.2, 1.0, 3.0)
_QUESTION_SECONDS = 60.0
"""A query takes less time than an insert, and a server that hangs must not block the run."""


@dataclass(frozen=True)
class Access:
    """Everything needed to reach a server: hashable, picklable, with a repr that hides the password."""

    address: Address
    tls: Tls = field(default_factory=Tls)
    timeouts: Timeouts = field(default_factory=Timeouts)
    extra: tuple[tuple[str, str], ...] = ()


class Connection:
    """A server. Any number of threads may use it. `connect` keeps one per process."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._timeouts = replace(access.timeouts, answer=min(access.timeouts.answer, _QUESTION_SECONDS))
        self._known: dict[str, tuple[str, bool]] | None = None

    def ask(self, sql: str, parameters: Mapping[str, Value] | None = None, *, rows: Sequence[Rows] = ()) -> pa.Table:
        """The result of a query, which is sent again while its failure may pass. Values are `{name:Type}` parameters."""
        known = self._settings(settings.READ)
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

    def do(self, sql: str) -> str:
        """Runs an administrative statement that may be repeated, and returns its output."""
        return _patiently(lambda: self._request(sql, dict(self.access.extra)).text)

    def granted(self, right: str) -> bool:
        """Whether the user has a right, such as `INSERT ON t`."""
        return self.do(f"CHECK GRANT {right}").strip() == "1"

    def insert_settings(self) -> dict[str, str]:
        """The settings of every insert, without those that this server does not know."""
        return self._settings(settings.INSERT)

    def _settings(self, wanted: Mapping[str, str]) -> dict[str, str]:
        if self._known is None:
            self._known = _patiently(self._ask_known)
        sent = settings.to_send(wanted, self._known, self.access.address.user)
        return {**dict(self.access.extra), **sent}

    def _ask_known(self) -> dict[str, tuple[str, bool]]:
        names = sorted({*settings.INSERT, *settings.READ})
        sql = "SELECT name, value, readonly FROM system.settings WHERE name IN {names:Array(String)}"
        rows = self._table(sql, {"names": names}, settings.ASKING).to_pylist()
        return {row["name"]: (row["value"], bool(row["readonly"])) for row in rows}

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

    def _request(self, sql: str, parameters: Mapping[str, str], rows: Sequence[Rows] = ()) -> Answer:
        """One request. Raises `TargetRefused` if waiting does not help, and `TargetUnavailable` otherwise."""
        access = self.access
        parameters = {**parameters, "database": access.address.database, "wait_end_of_query": "1"}
        body = Form(sql, tuple(rows)) if rows else sql.encode()
        try:
            answer = post(access.address, parameters, body, access.tls, self._timeouts)
        except (NotSent, NoAnswer) as error:
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
