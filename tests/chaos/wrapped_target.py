"""Targets for wrapped sinks, copied beside a pipeline file: workers get this module by value.

`Store` is a database that takes whatever it is sent, so a block that is pushed twice is there twice. It writes down every
attempt with what it got, before anything else. A test chooses what goes wrong by files that it makes in the folder:
`raise-after` (the block is in, and the answer is an error), `raise-before`, `refuse` (`NotPushed`), `die-after` (the worker is
gone); each goes wrong once, and the file is gone.
"""

import hashlib
import json
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import landonce


class Store:
    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def push(self, block: landonce.PushedBlock) -> None:
        seen = (block.key, block.attempt, hashlib.sha256(block.ipc() + block.json_lines()).hexdigest())
        self._write([("INSERT INTO attempts VALUES (?, ?, ?)", seen)])
        if self._asked("raise-before"):
            raise OSError("no answer")
        if self._asked("refuse"):
            raise landonce.NotPushed("busy")
        rows = [json.loads(line) for line in block.json_lines().splitlines()]
        names = ("_topic", "_partition", "_offset", "id", "word", "amount")
        inserts = [("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", tuple(row[name] for name in names)) for row in rows]
        self._write([("INSERT INTO blocks VALUES (?)", (block.key,)), *inserts])
        if self._asked("raise-after"):
            raise OSError("no answer")
        if self._asked("die-after"):
            os._exit(1)

    def probe(self, block: landonce.PushedBlock) -> bool:
        with closing(self._connected()) as connection:
            return connection.execute("SELECT 1 FROM blocks WHERE key = ?", (block.key,)).fetchone() is not None

    def _asked(self, what: str) -> bool:
        try:
            (self.folder / what).unlink()
        except FileNotFoundError:
            return False
        return True

    def _write(self, statements: list[tuple[str, tuple[object, ...]]]) -> None:
        with closing(self._connected()) as connection, connection:
            for statement, values in statements:
                connection.execute(statement, values)

    def _connected(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.folder / "target.db", timeout=60)
        with connection:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS events (_topic TEXT, _partition INT, _offset INT, id INT, word TEXT, amount REAL)"
            )
            connection.execute("CREATE TABLE IF NOT EXISTS blocks (key TEXT)")
            connection.execute("CREATE TABLE IF NOT EXISTS attempts (key TEXT, attempt INT, seen TEXT)")
        return connection


class Blind(Store):
    """Cannot be asked."""

    probe = None


class Slow(Blind):
    """Takes so long that Spark runs a second task beside it. `opened` has a line for each of them."""

    def open(self) -> None:
        with (self.folder / "opened").open("a") as file:
            file.write("opened\n")

    def push(self, block: landonce.PushedBlock) -> None:
        time.sleep(8)
        super().push(block)


def probing(folder: str, settles_within: float = 600.0) -> landonce.WrappedSink:
    return landonce.wrap(Store(folder), idempotent=False, settles_within=settles_within, name="store")


def blind(folder: str, settles_within: float = 600.0) -> landonce.WrappedSink:
    return landonce.wrap(Blind(folder), idempotent=False, settles_within=settles_within, name="store")


def slow(folder: str, settles_within: float = 600.0) -> landonce.WrappedSink:
    return landonce.wrap(Slow(folder), idempotent=False, settles_within=settles_within, name="store")


def soon(folder: str) -> landonce.WrappedSink:
    """For tests in which time passes as it does."""
    return probing(folder, settles_within=5.0)


def sooner(folder: str) -> landonce.WrappedSink:
    """The same, where several waits follow each other."""
    return probing(folder, settles_within=2.5)


def wrongly_declared(folder: str) -> landonce.WrappedSink:
    """The control: it says that pushing again is harmless, and it is not."""
    return landonce.wrap(Store(folder), idempotent=True, name="store")
