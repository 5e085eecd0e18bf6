"""The driver is killed before and after every step of the protocol and at every place in its workers.

The kills are chained: each start recovers from the kill before it and runs into the next one, and there are always new
records. Between two kills no coordinate stands twice; at the end every record stands exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from chain import Chain, Kill, failpoints_in
from harness import Drivers
from plain_driver import FirstWithSpark, PlainDrivers
from scene import scene

from landonce.local import LocalClickHouse, LocalKafka
from landonce.protocol.steps import Step

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(1800)]

DEADLINE = "6s"
"""About what a start takes: no insert is late, and no successor has to wait long."""

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
    Kill("publish.file", replay=True),
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


def test_every_step_and_every_place_is_killed() -> None:
    """A new step or a new place in a worker fails here until a chain kills it."""
    # STOP is no effect: a driver that stops has nothing left to do. OPEN is of tables that are made in mid-run.
    steps = {
        f"{step.value}.{side}"
        for step in set(Step) - {Step.STOP, Step.OPEN, Step.RESOLVE}
        for side in ("before", "after")
    }
    places = failpoints_in("engine/**/*.py", "sinks/deduplicating.py", "sinks/clickhouse/*.py")
    places -= {"freeze.after"}  # of stored blocks, which are killed in test_dedup_kills
    places -= failpoints_in("engine/replay.py")  # in tests/integration/test_replay.py
    places -= failpoints_in("engine/letter_topic.py")  # in tests/integration/test_letter_topic.py
    places -= {"open.table", "create.table"}  # of several tables, in test_clickhouse_fan_out
    places -= failpoints_in("sinks/clickhouse/shards.py")  # in test_shard_kills
    assert places >= {"read.after", "stage.after", "send.before", "send.after", "probe.before", "probe.after"}
    assert {kill.place for kill in REPLAY + FIRST} == steps | places


def test_killed_in_every_replay_without_spark(
    tmp_path: Path,
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
) -> None:
    """The same chain with drivers that start within a moment, so that it can be tried at every change."""
    with scene(
        tmp_path,
        kafka,
        clickhouse,
        new_topic(partitions=2),
        new_table(),
        partition_by="id % 2",
        batch="interval: 0s, max_rows: 1000, block_rows: 50",
        drivers=PlainDrivers,
    ) as pipeline:
        chain = Chain(pipeline)
        chain.suffer(REPLAY)
        chain.settled()
        assert chain.killed == {kill.place for kill in REPLAY}


@pytest.mark.long
def test_killed_in_every_replay(
    tmp_path: Path,
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
) -> None:
    """One pending plan survives kills at every step of its replay; blocks span two table partitions; rows are filtered."""
    with scene(
        tmp_path,
        kafka,
        clickhouse,
        new_topic(partitions=2),
        new_table(),
        where="word <> 'ping'",
        keeps=lambda payload: payload["word"] != "ping",
        partition_by="id % 2",
        # Twelve starts' records are in the one plan that all others replay.
        batch="interval: 0s, max_rows: 1000, block_rows: 50",
        master="local[2]",
        deadline=DEADLINE,
    ) as pipeline:
        chain = Chain(pipeline)
        chain.suffer(REPLAY)
        chain.settled()
        assert chain.killed == {kill.place for kill in REPLAY}


WITH_SPARK = [Kill("send.after", replay=False)]
"""In a worker, with its block landed. Every place with Spark is in `make test-long`."""


@pytest.mark.parametrize(
    ("drivers", "kills"),
    [
        pytest.param(PlainDrivers, FIRST, id="plain"),
        pytest.param(FirstWithSpark, WITH_SPARK, id="spark"),
        pytest.param(Drivers, FIRST, id="spark-all", marks=pytest.mark.long),
    ],
)
def test_killed_in_every_first_attempt(
    tmp_path: Path,
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
    drivers: type[Drivers],
    kills: list[Kill],
) -> None:
    """Plans are killed in their first attempt, at every place that it has, and the topic grows meanwhile."""
    batch = "interval: 0s, max_rows: 1000, block_rows: 8"
    with scene(
        tmp_path,
        kafka,
        clickhouse,
        new_topic(partitions=2),
        new_table(),
        batch=batch,
        deadline="3s" if drivers is PlainDrivers else DEADLINE,
        drivers=drivers,
    ) as pipeline:
        chain = Chain(pipeline)
        chain.suffer(kills)
        chain.settled()
        assert chain.killed == {kill.place for kill in kills}
