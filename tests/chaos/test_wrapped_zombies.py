"""Drivers of a wrapped sink that are paused with an attempt in their hands, two at once, tasks that Spark runs again, and a
person who settles what nobody knows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import oracle
import pytest
from harness import Drivers
from scene import fenced_for_nothing, one_of_two
from wrapped_scene import Wrapped, wrapped

from landonce.errors import OutcomeUnknown
from landonce.local import LocalKafka

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def pipeline(
    tmp_path: Path, kafka: LocalKafka, drivers: type[Drivers], new_topic: Callable[..., str]
) -> Iterator[Wrapped]:
    with wrapped(tmp_path, kafka, new_topic(partitions=2), "wrapped_target:soon", drivers=drivers) as made:
        yield made


def test_paused_before_and_after_a_push(pipeline: Wrapped) -> None:
    """One has claimed a block and not pushed it: it wakes too late to begin. One has pushed its block and not said so."""
    pipeline.feed.more(300, bad_every=50)
    claimed = pipeline.pause_at("claim.after")
    pushed = pipeline.pause_at("push.after")
    pipeline.drivers.drain()
    fenced_for_nothing(pipeline, claimed, pushed)


def test_a_zombie_of_an_idempotent_sink(
    tmp_path: Path, kafka: LocalKafka, drivers: type[Drivers], new_topic: Callable[..., str]
) -> None:
    """It pushes once more when it wakes, which is harmless, and changes nothing in the ledger."""
    with wrapped(tmp_path, kafka, new_topic(partitions=2), "file_per_block:sink", drivers=drivers) as pipeline:
        pipeline.feed.more(300, bad_every=50)
        zombie = pipeline.pause_at("push.before")
        pipeline.drivers.drain()
        fenced_for_nothing(pipeline, zombie)


def test_two_that_start_at_the_same_moment(pipeline: Wrapped, tmp_path: Path) -> None:
    """One of them has the pipeline, and the other hears so, whichever it is."""
    pipeline.feed.more(300, bad_every=50)
    winner = one_of_two(pipeline, tmp_path / "go")
    assert winner.terminate() == 0, winner.tail()
    pipeline.exact()


@pytest.mark.parametrize(
    ("sink", "copies"),
    [("wrapped_target:probing", 1), pytest.param("wrapped_target:wrongly_declared", 2, marks=pytest.mark.long)],
)
def test_spark_runs_a_task_again(
    sink: str, copies: int, tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str]
) -> None:
    """Its worker died with the block in the target. The second run finds the claim, and does not push; one that was declared
    idempotent and is not shows what it would have done."""
    with wrapped(tmp_path, kafka, new_topic(partitions=1), sink, partitions=1, master="local[1,4]") as pipeline:
        pipeline.feed.more(40, bad_every=10)
        pipeline.fail("die-after")
        run = pipeline.drivers.start()
        assert pipeline.finish(run) == 0, run.tail()
        found = pipeline.landed()["events"]
        assert len(found) == copies * len(pipeline.due()["events"])
        assert bool(oracle.twice(found)) == (copies == 2)
        assert pipeline.same_bytes() == copies - 1


@pytest.mark.parametrize(
    ("what", "verdict"), [("raise-after", "--landed"), pytest.param("raise-before", "--absent", marks=pytest.mark.long)]
)
def test_a_person_settles_what_nobody_knows(
    what: str, verdict: str, tmp_path: Path, kafka: LocalKafka, drivers: type[Drivers], new_topic: Callable[..., str]
) -> None:
    """There is no probe: the pipeline halts, names the block and the command, and halts again until the command is given."""
    with wrapped(
        tmp_path, kafka, new_topic(partitions=1), "wrapped_target:blind", partitions=1, drivers=drivers
    ) as pipeline:
        pipeline.feed.more(40, bad_every=10)
        pipeline.fail(what)
        halted = pipeline.drivers.start()
        assert pipeline.finish(halted) == OutcomeUnknown.exit_code, halted.tail()
        command = re.search(r"landonce state settle (\S+) --block (\S+) --landed", halted.log.read_text())
        assert command, halted.tail()
        file, key = command.groups()
        if verdict == "--landed":
            again = pipeline.drivers.start()
            assert pipeline.finish(again) == OutcomeUnknown.exit_code, again.tail()
        assert len(pipeline.ask("SELECT * FROM attempts")) == 1
        said = pipeline.site.landonce("state", "settle", file, "--block", key, verdict, "--yes")
        assert said.returncode == 0, said.stderr
        pipeline.drivers.drain()
        pipeline.exact()
        assert pipeline.same_bytes() == (verdict == "--absent")
        assert pipeline.site.state()["totals"]["landed"] == len(pipeline.due()["events"])
        assert pipeline.blocks() == []
