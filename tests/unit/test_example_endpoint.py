"""The example of an HTTP endpoint, between a sender and a server that do not behave."""

from __future__ import annotations

import importlib.util
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import landonce

EXAMPLE = Path(__file__).parents[2] / "examples" / "wrap" / "http_endpoint.py"
ROWS = pa.table({"_topic": ["t"] * 2, "_partition": [0, 0], "_offset": [0, 1], "word": ["a", "b"]})


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("http_endpoint", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.SECONDS = 60.0
    return module


@contextmanager
def served(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "received.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE blocks (key TEXT)")
        connection.execute("CREATE TABLE events (topic TEXT, partition INT, offset INT, record TEXT)")
    return path


@pytest.fixture
def port(example: Any, database: Path) -> Iterator[int]:
    with served(type("Handler", (example.Handler,), {"database": str(database)})) as given:
        yield given


def block(deadline: float) -> landonce.PushedBlock:
    return landonce.PushedBlock("key", "t", 0, 0, 2, ROWS, 1, int(deadline))


def in_an_hour() -> float:
    return time.time() * 1000 + 3_600_000


def held(database: Path) -> list[tuple[int]]:
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute("SELECT offset FROM events ORDER BY offset").fetchall()


def test_a_block_arrives_and_is_found(example: Any, port: int, database: Path) -> None:
    endpoint = example.Endpoint(f"http://127.0.0.1:{port}")
    assert not endpoint.probe(block(0))
    endpoint.push(block(in_an_hour()))
    assert endpoint.probe(block(0))
    assert held(database) == [(0,), (1,)]


def test_a_sender_that_dies_in_the_middle_leaves_nothing(example: Any, port: int, database: Path) -> None:
    """Its first line is whole: taken for the block, the second record would be lost, for the probe says that it is there."""
    body = block(0).json_lines()
    head = f"POST /blocks/key HTTP/1.1\r\nContent-Length: {len(body)}\r\nX-Deadline: {int(in_an_hour())}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port)) as sending:
        sending.sendall(head.encode() + body[: body.index(b"\n") + 1])
        sending.shutdown(socket.SHUT_WR)
        assert sending.recv(100) == b""
    assert held(database) == []
    assert not example.Endpoint(f"http://127.0.0.1:{port}").probe(block(0))


def test_what_waited_for_the_database_beyond_its_deadline_is_not_taken(example: Any, port: int, database: Path) -> None:
    """The look at the clock comes after the wait, or a block would land after its probe has said no."""
    with closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        deadline, ends = time.time() * 1000 + 300, []

        def push() -> None:
            try:
                example.Endpoint(f"http://127.0.0.1:{port}").push(block(deadline))
            except Exception as error:
                ends.append(error)

        pushing = threading.Thread(target=push)
        pushing.start()
        while time.time() * 1000 <= deadline:
            time.sleep(0.05)
        other.execute("ROLLBACK")
        pushing.join()
    assert isinstance(ends[0], landonce.NotPushed)
    assert held(database) == []


def test_a_page_behind_a_redirect_has_not_taken_a_block_and_does_not_hold_one(example: Any) -> None:
    """A proxy that wants a login: the client follows it with a GET, which is answered with 200."""

    class Elsewhere(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(302)
            self.send_header("Location", "/login")
            self.end_headers()

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with served(Elsewhere) as port:
        endpoint = example.Endpoint(f"http://127.0.0.1:{port}")
        with pytest.raises(OSError, match="answered 200"):
            endpoint.push(block(in_an_hour()))
        with pytest.raises(OSError, match="answered 200"):
            endpoint.probe(block(0))
