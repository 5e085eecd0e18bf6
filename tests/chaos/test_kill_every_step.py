"""The driver is killed before and after every step of the protocol and at every place in its workers.

The kills are chained: each start recovers from the kill before it and runs into the next one, and there are always new
records. Between two kills no coordinate stands twice; at the end every record stands exactly once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import oracle
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from harness import Drivers, Feed, Site

import landonce
from landonce.local import LocalClickHouse, LocalKafka
from landonce.run.protocol import Step

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(1800)]

DEADLINE = "6s"
"""About what a start takes: no insert is late, and no successor has to wait long."""


@dataclass(frozen=True)
class Kill:
    """One kill: where, after passing it how often, and whether an earlier driver's plan was being replayed then."""

    place: str
    skip: int = 0
    replay: bool | None = None
    once: bool = True
    grow: int = 0
    """Give the topic this many partitions first."""


REPLAY = [
    # A ledger that was never there, then one that was never bound.
    *(Kill(f"{step}.{side}") for step in ("acquire", "survey", "kill", "look", "bind") for side in ("before", "after")),
    Kill("prepare.before"),
    # From here on a plan is pending, of which nothing is written.
    Kill("prepare.after", replay=False),
    Kill("await.before", replay=True),
    Kill("await.after", replay=True),
    Kill("kill.before", replay=True),
    Kill("kill.after", replay=True),
    Kill("rearm.before", replay=True),
    Kill("rearm.after", replay=True),
    Kill("write.before", replay=True),
    Kill("read.after", replay=True),
    Kill("stage.after", replay=True),
    Kill("probe.before", replay=True),
    Kill("probe.after", replay=True),
    Kill("send.before", replay=True),
    # A block has landed (or was refused, on a machine so busy that it came late), and nobody knows.
    Kill("send.after", replay=True),
    Kill("probe.after", replay=True),
    Kill("write.after", replay=True),
]
"""One plan is left pending by every kill in turn, and the successors replay it."""

FIRST = [
    # A worker is killed in a plan's first attempt when nothing needs to be sent again before: nothing is pending, or
    # all of it landed, since the successor in between was killed between its write and the end of its record.
    Kill("read.after", replay=False),
    Kill("record.before", replay=True),
    Kill("send.before", replay=False),
    Kill("record.after", replay=True),
    Kill("stage.after", replay=False),
    Kill("commit.before", replay=True),
    Kill("send.after", replay=False),
    Kill("commit.after", replay=True),
    # The plan before passes the place once, this one is killed there.
    Kill("write.before", skip=1, replay=False),
    Kill("commit.before", skip=1, replay=False),
    Kill("write.after", skip=1, replay=False),
    Kill("commit.after", skip=1, replay=False),
    Kill("record.before", skip=1, replay=False),
    Kill("record.after", skip=1, replay=False),
    # The topic grows while a plan is pending.
    Kill("prepare.after", replay=False),
    Kill("bind.before", grow=3),
    Kill("bind.after"),
    Kill("idle.before", once=False),
    Kill("idle.after", once=False),
]
"""Every other plan is killed in its first attempt; the rest of its way it goes with the kills in between."""


@dataclass
class Chain:
    """A pipeline that is killed again and again."""

    drivers: Drivers
    feed: Feed
    keeps: Callable[[dict[str, Any]], bool] = lambda _: True
    killed: set[str] = field(default_factory=set)

    def suffer(self, kills: list[Kill]) -> None:
        for kill in kills:
            if kill.grow:
                self._grow(kill.grow)
            self.feed.more(16, bad_every=5)
            run = self.drivers.kill_at(kill.place, skip=kill.skip, once=kill.once)
            if kill.replay is not None:
                assert run.replaying() == kill.replay, f"{kill}: {run.steps()}"
            self.killed.add(kill.place)
            self.unspoiled(kill)

    def unspoiled(self, kill: Kill) -> None:
        """Nothing stands twice, and nothing stands there that was not produced."""
        site = self.drivers.site
        rows, letters = self._rows(), oracle.letters(site.dead)
        assert oracle.twice(rows) == [], f"after {kill}"
        assert oracle.twice(letters) == [], f"after {kill}"
        assert not oracle.compare(self._expected(), rows).surplus, f"after {kill}"
        assert not oracle.compare(oracle.expected_letters(self.feed.produced), letters).surplus, f"after {kill}"

    def settled(self) -> None:
        """One quiet run, and all is there exactly once, and nothing is left to do."""
        self.drivers.drain()
        site = self.drivers.site
        verdict = oracle.compare(self._expected(), self._rows())
        assert verdict.exact, verdict
        verdict = oracle.compare(oracle.expected_letters(self.feed.produced), oracle.letters(site.dead))
        assert verdict.exact, verdict
        state = site.state()
        assert state["pending"] is None
        assert {each["lag"] for each in state["positions"]} == {0}
        assert state["totals"]["read"] == len(self.feed.produced)
        assert state["totals"]["landed"] == len(self._expected())
        assert not list(site.dead.glob("*.staged"))

    def _expected(self) -> list[oracle.Row]:
        return oracle.expected_rows(self.feed.produced, self.keeps)

    def _rows(self) -> list[oracle.Row]:
        site = self.drivers.site
        there = oracle.ask(site.url, f"EXISTS TABLE {site.table}").strip() == "1"
        return oracle.rows(site.url, site.table) if there else []

    def _grow(self, partitions: int) -> None:
        admin = AdminClient({"bootstrap.servers": self.feed.bootstrap})
        admin.create_partitions([NewPartitions(self.feed.topic, partitions)])[self.feed.topic].result(timeout=30)
        self.feed.partitions = partitions


def test_every_step_and_every_place_is_killed() -> None:
    """A new step or a new place in a worker fails here until a chain kills it."""
    # STOP is no effect: whoever is told to stop has nothing left to do.
    steps = {f"{step.value}.{side}" for step in Step if step is not Step.STOP for side in ("before", "after")}
    code = "".join(path.read_text() for path in Path(landonce.__file__).parent.rglob("*.py"))
    places = set(re.findall(r'\breach\("([a-z.]+)"\)', code))
    assert places >= {"read.after", "stage.after", "send.before", "send.after", "probe.before", "probe.after"}
    assert {kill.place for kill in REPLAY + FIRST} == steps | places


def test_killed_in_every_replay(
    tmp_path: Path,
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
) -> None:
    """One pending plan survives kills at every step of its replay; blocks span two table partitions; rows are filtered."""
    topic = new_topic(partitions=2)
    # Twelve starts' records are in the one plan that all others replay.
    batch = "interval: 0s, max_rows: 1000, block_rows: 50"
    site = Site(
        tmp_path, kafka.bootstrap_servers, clickhouse.url, topic, new_table(), "id % 2", batch, deadline=DEADLINE
    )
    site.write(where="word <> 'ping'")
    with Drivers(site) as drivers:
        chain = Chain(drivers, Feed(kafka.bootstrap_servers, topic), keeps=lambda told: told["word"] != "ping")
        chain.suffer(REPLAY)
        chain.settled()
        assert chain.killed == {kill.place for kill in REPLAY}


def test_killed_in_every_first_attempt(
    tmp_path: Path,
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
) -> None:
    """Plans are killed in their first attempt, at every place that it has, and the topic grows meanwhile."""
    topic = new_topic(partitions=2)
    site = Site(
        tmp_path, kafka.bootstrap_servers, clickhouse.url, topic, new_table(), master="local[1]", deadline=DEADLINE
    )
    site.write()
    with Drivers(site) as drivers:
        chain = Chain(drivers, Feed(kafka.bootstrap_servers, topic))
        chain.suffer(FIRST)
        chain.settled()
        assert chain.killed == {kill.place for kill in FIRST}
