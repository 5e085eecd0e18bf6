"""Tables and rows for the tests of the ClickHouse sink, and a proxy that loses what a test chooses."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from http.client import HTTPConnection
from unittest import mock

import numpy as np
import pyarrow as pa

import landonce
from landonce.local import LocalClickHouse
from landonce.protocol.ranges import Partition, Range
from landonce.sinks.clickhouse import connection as requests
from landonce.sinks.clickhouse.connection import Form
from landonce.sinks.clickhouse.driver import ClickHouseTarget
from landonce.sinks.clickhouse.replies import Answer
from landonce.sinks.clickhouse.sink import ClickHouseSink
from landonce.sinks.clickhouse.table import fitted, tables_of
from landonce.sinks.clickhouse.worker import insert_columns, insert_statement
from landonce.sinks.contract import Insert

COORDINATES = "_topic LowCardinality(String), _partition Int32, _offset Int64"
WINDOW = "non_replicated_deduplication_window = 1000"
_attempts = itertools.count()


def make(
    server: LocalClickHouse, table: str, columns: str, *, rest: str = "ORDER BY _offset", window: str = WINDOW
) -> None:
    server.ask(f"CREATE TABLE {table} ({columns}, {COORDINATES}) ENGINE = MergeTree {rest} SETTINGS {window}")


def sink_for(server: LocalClickHouse, table: str, *, timeout: float = 300.0, **options: object) -> ClickHouseSink:
    made = landonce.clickhouse(server.url, table, **options).to_sink("orders")  # type: ignore[arg-type]
    return replace(made, timeout=timeout)


def block(columns: dict[str, object], *, first: int = 0, topic: str = "t", partition: int = 0) -> pa.Table:
    """Rows with coordinates, one offset after the other."""
    table = pa.table(columns)
    count = table.num_rows
    return (
        table.append_column("_topic", pa.array([topic] * count, pa.string()))
        .append_column("_partition", pa.array([partition] * count, pa.int32()))
        .append_column("_offset", pa.array(np.arange(first, first + count), pa.int64()))
    )


def covering(rows: pa.Table) -> tuple[Range, ...]:
    offsets = rows.column("_offset").to_pylist()
    partition = Partition(rows.column("_topic")[0].as_py(), rows.column("_partition")[0].as_py())
    return (Range(partition, min(offsets), max(offsets) + 1),)


def insert(target: ClickHouseTarget, token: str, *, seconds: float = 60) -> Insert:
    return Insert(token, target.now() + round(seconds * 1000), f"attempt{next(_attempts)}")


def parts(server: LocalClickHouse, table: str) -> list[int]:
    """The rows of each active part."""
    answer = server.ask(f"SELECT rows FROM system.parts WHERE table = '{table}' AND active ORDER BY rows")
    return [int(line) for line in answer.split()]


def wait_until(true: Callable[[], bool], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "it did not come about in time"
        time.sleep(0.05)


class Stalled:
    """An insert of which half has been sent, as a stopped worker leaves it."""

    def __init__(self, sink: ClickHouseSink, parameters: dict[str, str], form: Form) -> None:
        self._answer: Answer | None = None
        self._go = threading.Event()
        self._thread = threading.Thread(target=self._post, args=(sink, parameters, form), daemon=True)
        self._thread.start()
        time.sleep(0.2)

    def finish(self) -> Answer:
        self._go.set()
        self._thread.join(30)
        assert self._answer is not None
        return self._answer

    def _post(self, sink: ClickHouseSink, parameters: dict[str, str], form: Form) -> None:
        go = self._go

        class Halting(HTTPConnection):
            def send(self, data: object) -> None:
                if isinstance(data, memoryview) and data.nbytes > 100_000:
                    super().send(data[: len(data) // 2])
                    go.wait(30)
                    data = data[len(data) // 2 :]
                super().send(data)  # type: ignore[arg-type]

        with mock.patch.object(requests, "HTTPConnection", Halting):
            self._answer = requests.post(sink.access, parameters, form)


def stall(sink: ClickHouseSink, rows: pa.Table, deadline: int) -> Stalled:
    writer = sink.writer_alone()
    columns = insert_columns(writer.table, rows.column_names)
    parameters = {
        "query_id": f"{writer._prefix}token:stalled",
        "wait_end_of_query": "1",
    }
    statement = insert_statement(writer.table, columns, deadline)
    return Stalled(sink, parameters, Form(statement, tables_of(fitted(rows, columns, sink.table_name), columns)))


class Proxy:
    """Passes HTTP on to a server; `answer` may change or swallow what comes back to a request with rows in it."""

    def __init__(self, port: int, answer: Callable[[bytes], bytes | None]) -> None:
        self._upstream = port
        self._answer = answer
        self.inserts = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client, socket.create_connection(("127.0.0.1", self._upstream)) as server:
            head = client.recv(65536)
            is_insert = b"insert_deduplication_token" in head.partition(b"\r\n")[0]
            self.inserts += is_insert
            server.sendall(head)
            threading.Thread(target=_copy, args=(client, server), daemon=True).start()
            while data := server.recv(65536):
                changed = self._answer(data) if is_insert else data
                if changed is None:
                    client.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(changed)


def _copy(source: socket.socket, to: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            to.sendall(data)
