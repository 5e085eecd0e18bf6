"""The DuckDB file. One process may write to it at a time, so whoever works on it opens it, holds a lock, and closes it again.

DuckDB refuses a second process at once. The lock beside the file (`events.duckdb.lock`) lets landonce's drivers and workers wait for
each other instead; it ends with its process, also after a crash. Whoever else has the file open, such as a `duckdb` shell, is waited for
too: after half a minute the block says so, and landonce tries again until the file is free.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import duckdb

from landonce.errors import TargetUnavailable

_PATIENCE = 30.0
Result = TypeVar("Result")


@dataclass(frozen=True)
class Connection:
    """One connection, and the lock that it is made under."""

    sql: duckdb.DuckDBPyConnection
    lock: IO[str]

    def execute(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        return self.sql.execute(statement, list(values)).fetchall()

    def has(self, table: str) -> bool:
        return bool(self.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = ?", [table]))

    def close(self) -> None:
        """Rolls back what is not committed. The lock goes last."""
        self.sql.close()
        self.lock.close()


def connect(path: Path) -> Connection:
    """Makes the file if it is not there. Raises `TargetUnavailable` if others do not let go of it."""
    lock = path.with_name(f"{path.name}.lock").open("w")
    try:
        patiently(lambda: fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB), BlockingIOError)
        return Connection(patiently(lambda: duckdb.connect(str(path)), duckdb.IOException), lock)
    except BaseException:
        lock.close()
        raise


def patiently(act: Callable[[], Result], failure: type[Exception]) -> Result:
    """Does it again while it fails so, but not for ever."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            return act()
        except failure as error:
            if time.monotonic() > until:
                raise TargetUnavailable(f"the DuckDB file cannot be opened: {error}") from error
            time.sleep(0.02)


@contextmanager
def transaction(path: Path) -> Iterator[Connection]:
    """All that is done inside takes effect together, or nothing does."""
    connection = connect(path)
    try:
        connection.execute("BEGIN")
        yield connection
        connection.execute("COMMIT")
    finally:
        connection.close()
