"""The history of a table is expired, with commits of others on top: the position is not lost with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import iceberg_oracle
import pytest
from harness import Drivers
from iceberg_scene import Lake, lake
from scene import wait_for

from landonce.errors import Halt
from landonce.local import LocalKafka

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(300)]


def bury(pipeline: Lake, first: int, name: str = "") -> None:
    """Two commits of others on top, and everything below the last one is expired."""
    pipeline.strangers(first, name=name)
    pipeline.strangers(first + 1, name=name)
    pipeline.expire_all(name)
    [left] = pipeline.table(name).snapshots()
    assert "landonce.position" not in iceberg_oracle.summary(left)


def compact(pipeline: Lake, name: str = "") -> None:
    """All rows are written again, into files that say nothing of landonce."""
    table = pipeline.table(name)
    table.overwrite(table.scan().to_arrow())


def test_under_a_driver_and_between_two(
    tmp_path: Path, kafka: LocalKafka, drivers: type[Drivers], new_topic: Callable[..., str]
) -> None:
    go = tmp_path / "go"
    with lake(tmp_path, kafka, new_topic(partitions=2), drivers=drivers) as pipeline:
        pipeline.feed.more(1200)
        # Taking and binding, one batch, and the second stands at the door.
        run = pipeline.start("attempt.before", skip=3, go=go, once=False)
        run.wait_reached()
        bury(pipeline, 0)
        go.touch()
        wait_for(pipeline.complete, "the batch at the door lands", run, every=0.1)
        bury(pipeline, 2)
        pipeline.feed.more(300, bad_every=50)
        wait_for(pipeline.complete, "the idle one goes on", run, every=0.1)
        assert run.terminate() == 0, run.tail()
        assert "rolled back" not in run.log.read_text()
        pipeline.exact()

        compact(pipeline)
        bury(pipeline, 4)
        pipeline.feed.more(300, bad_every=50)
        pipeline.drivers.drain()
        pipeline.exact()
        strangers = [iceberg_oracle.stranger(each) for each in range(6)]
        assert sorted(iceberg_oracle.foreign(pipeline.table())) == strangers


def test_rolled_back_and_expired_cannot_be_told_apart(
    tmp_path: Path, kafka: LocalKafka, drivers: type[Drivers], new_topic: Callable[..., str]
) -> None:
    """Nothing that is left shows whether the last batch is part of it: nobody guesses."""
    with lake(tmp_path, kafka, new_topic(partitions=2), drivers=drivers) as pipeline:
        pipeline.feed.more(1200)
        pipeline.drivers.drain()
        first, _ = pipeline.landings()
        pipeline.roll_back(first)
        bury(pipeline, 0)
        before = pipeline.traces()
        run = pipeline.drivers.start()
        assert run.finish() == Halt.exit_code, run.tail()
        assert "PositionUncertain" in run.log.read_text()
        assert pipeline.traces() == before


@pytest.mark.long
def test_a_table_of_a_fan_out(
    tmp_path: Path, kafka: LocalKafka, drivers: type[Drivers], new_topic: Callable[..., str]
) -> None:
    """Of three tables one is expired, one is compacted and expired, and one is left as it is."""
    go = tmp_path / "go"
    with lake(tmp_path, kafka, new_topic(partitions=2), fan_out=True, drivers=drivers) as pipeline:
        pipeline.feed.more(1200, bad_every=50)
        run = pipeline.start("attempt.before", skip=3, go=go, once=False)
        run.wait_reached()
        bury(pipeline, 0, "db.plain")
        go.touch()
        wait_for(pipeline.complete, "the batch at the door lands", run, every=0.1)
        assert run.terminate() == 0, run.tail()
        compact(pipeline, "db.signs")
        bury(pipeline, 0, "db.signs")
        bury(pipeline, 2, "db.plain")
        pipeline.feed.more(300, bad_every=50)
        pipeline.drivers.drain()
        pipeline.exact()
