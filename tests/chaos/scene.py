"""One pipeline of its own for a test that does more than kill: its file, its topic, its drivers, and the judge."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import oracle
from harness import DriverRun, Drivers, Feed, Site

from landonce.local import LocalClickHouse, LocalKafka
from landonce.local.tree import members, signal_tree
from landonce.record.ledger import LedgerState
from landonce.record.open import sqlite_ledger

_WAIT_FOR = "LANDONCE_FAILPOINT_WAIT_FOR"
LIMIT = 60.0


@dataclass(frozen=True)
class Traces:
    """Everything that a driver can change and that counts: staged files, which nobody reads, do not."""

    rows: tuple[oracle.Row, ...]
    ledger: LedgerState | None
    dead: tuple[tuple[str, bytes], ...]


@dataclass
class Scene:
    """Drivers of one pipeline, and what they have to land."""

    site: Site
    drivers: Drivers
    feed: Feed
    clickhouse: str
    """The server's own address, whatever stands between it and the drivers."""

    @property
    def ledger_file(self) -> Path:
        return self.site.folder / "ledger"

    def edit(self, old: str, new: str) -> None:
        """Changes a word of the pipeline file."""
        text = self.site.file.read_text()
        assert old in text, text
        self.site.file.write_text(text.replace(old, new))

    def start(self, place: str, *, skip: int = 0, go: Path, once: bool = True) -> DriverRun:
        """A driver that stops at `place` and goes on once `go` exists."""
        os.environ[_WAIT_FOR] = str(go)
        try:
            return self.drivers.start(place, skip=skip, once=once)
        finally:
            del os.environ[_WAIT_FOR]

    def state(self) -> LedgerState | None:
        ledger = sqlite_ledger(self.ledger_file, self.site.table)
        try:
            return ledger.load()
        finally:
            ledger.close()

    def rows(self) -> list[oracle.Row]:
        return oracle.rows(self.clickhouse, self.site.table)

    def traces(self) -> Traces:
        dead = sorted((each.name, each.read_bytes()) for each in self.site.dead.glob("[!.]*.jsonl"))
        return Traces(tuple(sorted(self.rows(), key=repr)), self.state(), tuple(dead))

    def exact(self) -> None:
        """Every record that was produced stands exactly once, in the table or in the dead letters."""
        rows = oracle.compare(oracle.expected_rows(self.feed.produced), self.rows())
        assert rows.exact, rows
        letters = oracle.compare(oracle.expected_letters(self.feed.produced), oracle.letters(self.site.dead))
        assert letters.exact, letters


@contextmanager
def scene(
    folder: Path,
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    topic: str,
    table: str,
    *,
    url: str = "",
    partitions: int = 2,
    batch: str = "interval: 0s, max_rows: 600, block_rows: 300",
    master: str = "local[1]",
) -> Iterator[Scene]:
    site = Site(folder, kafka.bootstrap_servers, url or clickhouse.url, topic, table, batch=batch, master=master)
    site.write()
    with Drivers(site) as drivers:
        yield Scene(site, drivers, Feed(kafka.bootstrap_servers, topic, partitions), clickhouse.url)


def wait_for(condition: Callable[[], bool], what: str, run: DriverRun | None = None, *, every: float = 0.02) -> None:
    """Returns when it is so; fails when it takes too long, or when the driver that should bring it about has ended."""
    end = time.monotonic() + LIMIT
    while not condition():
        if run is not None and run.process.poll() is not None:
            raise AssertionError(f"ended with {run.process.returncode} before {what}:\n{run.tail()}")
        if time.monotonic() > end:
            raise AssertionError(f"not within {LIMIT:.0f} s: {what}" + (f"\n{run.tail()}" if run else ""))
        time.sleep(every)


def freeze(run: DriverRun) -> None:
    """SIGSTOP for the driver, its JVM and its workers, again until none of them runs."""
    session = run.process.pid

    def stopped() -> bool:
        signal_tree(session, signal.SIGSTOP)
        return all(_status(pid) in "TtZX" for pid in members(session))

    wait_for(stopped, "the whole tree is stopped")


def thaw(run: DriverRun) -> None:
    signal_tree(run.process.pid, signal.SIGCONT)


def _status(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"
