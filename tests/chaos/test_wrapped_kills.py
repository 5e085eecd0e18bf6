"""The driver of a wrapped sink is killed before and after every step, and everywhere in its workers' attempts.

The kills are chained: each start recovers from the kill before it, and there are always new records.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from chain import Kill
from harness import Drivers
from plain_driver import FirstWithSpark
from wrapped_scene import Aging, wrapped

from landonce.local import LocalKafka
from landonce.protocol.push import PushStage
from landonce.protocol.steps import Step

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(1500)]

BATCH = "interval: 0s, max_rows: 40, block_rows: 8"
ATTEMPTS = [
    Kill("prepare.after"),
    # Claimed and not pushed: the next driver waits until that attempt is over, and asks the target, which has nothing.
    Kill("claim.after", replay=True),
    Kill("await.after"),
    Kill("probe.after", replay=True),
    Kill("reclaim.after", replay=True),
    # Pushed and not settled: the target has it.
    Kill("push.after", replay=True),
    Kill("found.before", replay=True),
    Kill("found.after", replay=True),
    # The other block of the plan.
    Kill("settle.before", replay=True),
    Kill("commit.after"),
    Kill("record.before"),
    Kill("record.after"),
]
"""In each of them the ledger or the target is another one than before."""
RELEASED = [Kill("release.before"), Kill("release.after")]
"""The target says that it took nothing."""
EMPTY = [Kill("skip.before"), Kill("skip.after")]
"""All records of a block are dead letters."""
HARMLESS = [
    Kill("claim.after"),
    Kill("push.after", replay=True),
    Kill("settle.after", replay=True),
    Kill("commit.before"),
    Kill("record.after"),
]
FRESH = [
    Kill("acquire.before"),
    Kill("acquire.after"),
    Kill("survey.before"),
    Kill("survey.after"),
    Kill("bind.before"),
    Kill("bind.after"),
]
BETWEEN = [
    Kill("prepare.before", replay=False),
    Kill("write.before"),
    Kill("read.after", replay=True),
    Kill("stage.after", replay=True),
    Kill("claim.before", replay=True),
    Kill("claim.after", replay=True),
    Kill("await.before"),
    Kill("look.before"),
    Kill("look.after"),
    Kill("row.before", replay=True),
    Kill("row.after", replay=True),
    Kill("probe.before", replay=True),
    Kill("reclaim.before", replay=True),
    Kill("push.before", replay=True),
    Kill("settle.after", replay=True),
    Kill("write.after", replay=True),
    Kill("commit.before"),
    Kill("idle.before", once=False),
    Kill("idle.after", once=False),
]
"""Where nothing has changed since the place before."""
WITH_SPARK = [Kill("push.after")]
"""In a worker after it pushed. Every place with Spark is in `make test-long`."""


def test_every_step_and_every_place_is_killed() -> None:
    """A new step or a new stage fails here until a chain kills it."""
    others = {Step.STOP, Step.KILL, Step.REARM, Step.OPEN, Step.RESOLVE}
    named = [step.value for step in set(Step) - others] + [stage.value for stage in PushStage]
    places = {f"{each}.{side}" for each in named for side in ("before", "after")} | {"read.after", "stage.after"}
    assert {kill.place for kill in ATTEMPTS + RELEASED + EMPTY + FRESH + BETWEEN} == places


def test_workers_of_spark_are_killed(tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str]) -> None:
    with wrapped(tmp_path, kafka, new_topic(partitions=2), batch=BATCH, drivers=FirstWithSpark) as play:
        chain = Aging(play)
        chain.suffer(WITH_SPARK)
        chain.settled()
        assert play.blocks() == []


def test_a_sink_with_a_probe_is_killed_at_every_step(
    tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str], drivers: type[Drivers]
) -> None:
    """It is not idempotent. Whatever is pushed again is the same, to the byte."""
    with wrapped(tmp_path, kafka, new_topic(partitions=2), batch=BATCH, drivers=drivers) as play:
        chain = Aging(play)
        chain.suffer(ATTEMPTS)
        for kill in RELEASED[1:]:
            play.fail("refuse")
            chain.suffer([kill])
        play.an_hour_passes()
        play.drivers.drain()
        play.feed.more(2, bad_every=1)
        for kill in EMPTY[1:]:
            chain.suffered(kill, play.drivers.kill_at(kill.place))
        chain.settled()
        assert play.blocks() == []
        assert play.same_bytes() >= 1


def test_files_are_killed_where_they_are_written(
    tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str], drivers: type[Drivers]
) -> None:
    """Idempotent: what has no answer is simply pushed again."""
    topic = new_topic(partitions=2)
    with wrapped(tmp_path, kafka, topic, "file_per_block:sink", batch=BATCH, drivers=drivers) as play:
        chain = Aging(play)
        chain.suffer(HARMLESS)
        chain.settled()
        assert play.blocks() == []


def test_places_in_between(
    tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str], drivers: type[Drivers]
) -> None:
    with wrapped(tmp_path, kafka, new_topic(partitions=2), batch=BATCH, drivers=drivers) as play:
        chain = Aging(play)
        chain.suffer(FRESH)
        chain.suffer(BETWEEN)
        play.fail("refuse")
        chain.suffer(RELEASED[:1])
        play.an_hour_passes()
        play.drivers.drain()
        play.feed.more(2, bad_every=1)
        chain.suffered(EMPTY[0], play.drivers.kill_at(EMPTY[0].place))
        chain.settled()
        assert play.blocks() == []
