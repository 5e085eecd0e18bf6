"""One pipeline of its own for a test that does more than kill: its file, its topic, its drivers, and the judge."""

from __future__ import annotations

import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import oracle
from harness import DriverRun, Drivers, Feed, Home, Site

from landonce.errors import Fenced
from landonce.ledger.open import sqlite_ledger
from landonce.local import LocalClickHouse, LocalKafka
from landonce.local.server import members, signal_tree
from landonce.protocol.ledger import LedgerState

LIMIT = 120.0


@dataclass(frozen=True)
class Traces:
    """Everything that a driver can change and that counts: staged files, which nobody reads, do not."""

    rows: tuple[oracle.Row, ...]
    ledger: LedgerState | None
    dead: tuple[tuple[str, bytes], ...]


@dataclass
class Play(ABC):
    """Drivers of one pipeline, and what they have to land, wherever that is."""

    site: Home
    drivers: Drivers
    feed: Feed
    keeps: Callable[[str, dict[str, Any]], bool] = field(default=lambda _table, _payload: True, kw_only=True)
    """Whether a table shall hold a record."""

    @abstractmethod
    def landed(self) -> dict[str, list[oracle.Row]]:
        """Every row of every table."""

    def edit(self, old: str, new: str) -> None:
        """Changes a word of the pipeline file."""
        text = self.site.file.read_text()
        assert old in text, text
        self.site.file.write_text(text.replace(old, new))

    def start(self, place: str, *, skip: int = 0, go: Path, once: bool = True) -> DriverRun:
        """A driver that stops at `place` and goes on once `go` exists."""
        return self.drivers.start(place, skip=skip, once=once, go=go)

    def due(self) -> dict[str, list[oracle.Row]]:
        """Every row that must be in every table, once."""
        produced = self.feed.produced
        return {
            name: oracle.expected_rows(produced, lambda payload, name=name: self.keeps(name, payload))
            for name in self.landed()
        }

    def exact(self) -> None:
        """Every record that was produced stands exactly once, in its tables or in the dead letters."""
        found = self.landed()
        for name, due in self.due().items():
            rows = oracle.compare(due, found[name])
            assert rows.exact, f"{name}: {rows}"
        letters = oracle.compare(oracle.expected_letters(self.feed.produced), oracle.letters(self.site.dead))
        assert letters.exact, letters

    def unspoiled(self, when: str) -> None:
        """Nothing stands twice, and nothing stands there that was not produced."""
        found = self.landed()
        for name, due in self.due().items():
            assert oracle.twice(found[name]) == [], f"{name} {when}"
            assert not oracle.compare(due, found[name]).surplus, f"{name} {when}"
        letters = oracle.letters(self.site.dead)
        assert oracle.twice(letters) == [], when
        assert not oracle.compare(oracle.expected_letters(self.feed.produced), letters).surplus, when

    def pause_at(self, place: str, *, skip: int = 0, until: Callable[[], bool] = lambda: True) -> DriverRun:
        """A driver that is stopped whole at this place, and that would go on from there if it were woken.

        `until`: what its other threads still have to do before. One that is stopped with a lock in its hands stops everyone.
        """
        go = self.site.folder / f"go-{len(self.drivers.runs)}"
        run = self.start(place, skip=skip, go=go)
        run.wait_reached()
        wait_for(until, "the other threads are done", run)
        freeze(run)
        go.touch()
        return run


@dataclass
class Scene(Play):
    """A pipeline that writes to ClickHouse."""

    site: Site
    clickhouse: str = field(kw_only=True)
    """The server's own address, whatever stands between it and the drivers."""

    @property
    def ledger_file(self) -> Path:
        return self.site.folder / "ledger"

    def state(self) -> LedgerState | None:
        ledger = sqlite_ledger(self.ledger_file, self.site.table)
        try:
            return ledger.load()
        finally:
            ledger.close()

    def rows(self) -> list[oracle.Row]:
        return oracle.rows(self.clickhouse, self.site.table)

    def landed(self) -> dict[str, list[oracle.Row]]:
        there = oracle.ask(self.clickhouse, f"EXISTS TABLE {self.site.table}").strip() == "1"
        return {self.site.table: self.rows() if there else []}

    def traces(self) -> Traces:
        dead = sorted((each.name, each.read_bytes()) for each in self.site.dead.glob("[!.]*.jsonl"))
        return Traces(tuple(sorted(self.rows(), key=repr)), self.state(), tuple(dead))


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
    where: str = "",
    keeps: Callable[[dict[str, Any]], bool] = lambda _: True,
    batch: str = "interval: 0s, max_rows: 600, block_rows: 300",
    master: str = "local[1]",
    drivers: type[Drivers] = Drivers,
    **settings: str,
) -> Iterator[Scene]:
    """`where` is what the pipeline filters by, and `keeps` the same in Python. `drivers`: with Spark, or plain ones."""
    servers = (kafka.bootstrap_servers, url or clickhouse.url)
    site = Site(folder, *servers, topic, table, batch=batch, master=master, **settings)
    site.write(where)
    feed = Feed(kafka.bootstrap_servers, topic, partitions)
    with drivers(site) as started:
        yield Scene(site, started, feed, keeps=lambda _, payload: keeps(payload), clickhouse=clickhouse.url)


def wait_for(
    condition: Callable[[], bool], what: str, run: DriverRun | None = None, *, every: float = 0.02, limit: float = LIMIT
) -> None:
    """Returns when it is so; fails when it takes too long, or when the driver that should bring it about has ended."""
    end = time.monotonic() + limit
    while not condition():
        if run is not None and run.process.poll() is not None:
            raise AssertionError(f"ended with {run.process.returncode} before {what}:\n{run.tail()}")
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit:.0f} s: {what}" + (f"\n{run.tail()}" if run else ""))
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


def wake(run: DriverRun) -> None:
    """It goes on where it was, hears that it is fenced, and leaves."""
    thaw(run)
    assert run.finish() == Fenced.exit_code, run.tail()
    assert "was taken over" in run.log.read_text()


def fenced_for_nothing(pipeline: Any, *zombies: DriverRun) -> None:
    """They wake, one by one, and change nothing at all."""
    pipeline.exact()
    before = pipeline.traces()
    for zombie in zombies:
        wake(zombie)
        assert pipeline.traces() == before, zombie.tail()
    pipeline.exact()


def one_of_two(pipeline: Any, go: Path) -> DriverRun:
    """Two drivers take the pipeline at the same moment, and one of them is fenced. Gives the other, which lands everything."""
    both = [pipeline.start("acquire.before", go=go, once=False) for _ in range(2)]
    for run in both:
        run.wait_reached()
    go.touch()
    wait_for(lambda: any(run.process.poll() is not None for run in both), "one of them is fenced")
    [loser] = [run for run in both if run.process.poll() is not None]
    [winner] = [run for run in both if run is not loser]
    assert loser.finish() == Fenced.exit_code, loser.tail()
    wait_for(pipeline.complete, "the other one lands everything", winner, every=0.2)
    return winner


def _status(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"
