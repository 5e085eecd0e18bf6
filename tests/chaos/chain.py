"""Kills in a chain: each start recovers from the kill before it and runs into the next one, and there are always new records."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewPartitions
from harness import DriverRun
from scene import Play

import landonce


def failpoints_in(*patterns: str) -> set[str]:
    """The failpoints that these modules of the package name."""
    package = Path(landonce.__file__).parent
    code = "".join(path.read_text() for pattern in patterns for path in package.glob(pattern))
    return set(re.findall(r'\breach\("([a-z.]+)"\)', code))


@dataclass(frozen=True)
class Kill:
    """One kill: where, after passing it how often, and whether an earlier driver's plan was being replayed then."""

    place: str
    skip: int = 0
    replay: bool | None = None
    once: bool = True
    grow: int = 0
    """Give the topic this many partitions first."""
    thread: str = ""
    """The name of the thread that stops there, where two drivers are in one process."""


@dataclass
class Chain:
    """A pipeline that is killed again and again. Between two kills no coordinate stands twice."""

    play: Play
    killed: set[str] = field(default_factory=set)

    def suffer(self, kills: list[Kill]) -> None:
        for kill in kills:
            if kill.grow:
                self._grow(kill.grow)
            self.play.feed.more(16, bad_every=5)
            run = self.play.drivers.kill_at(kill.place, skip=kill.skip, once=kill.once)
            self.suffered(kill, run)

    def suffered(self, kill: Kill, run: DriverRun) -> None:
        """The driver was killed there, and spoilt nothing."""
        if kill.replay is not None:
            assert run.replaying() == kill.replay, f"{kill}: {run.steps()}"
        self.killed.add(kill.place)
        self.play.unspoiled(f"after {kill}")

    def settled(self) -> None:
        """One quiet run, and all is there exactly once, and nothing is left to do."""
        self.play.drivers.drain()
        self.play.exact()
        state, produced = self.play.site.state(), self.play.feed.produced
        assert state["pending"] is None
        assert {each["lag"] for each in state["positions"]} == {0}
        assert state["totals"]["read"] == len(produced)
        assert state["totals"]["landed"] == len({row[:3] for rows in self.play.due().values() for row in rows})
        assert not list(self.play.site.dead.glob("*.staged"))

    def _grow(self, partitions: int) -> None:
        feed = self.play.feed
        admin = AdminClient({"bootstrap.servers": feed.bootstrap})
        admin.create_partitions([NewPartitions(feed.topic, partitions)])[feed.topic].result(timeout=30)
        feed.partitions = partitions
