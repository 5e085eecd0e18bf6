"""A table is rolled back, stopped or running, to wherever: exactly what was removed is delivered again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import iceberg_oracle
import pytest
from harness import DriverRun, Drivers
from iceberg_scene import Lake, lake
from scene import wait_for

from landonce.errors import Halt
from landonce.local import LocalKafka

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(300)]

_PLAIN, _OTHERS = "db.plain", ("db.everything", "db.signs")


def idle(pipeline: Lake) -> DriverRun:
    """A driver that has landed two batches and waits for more."""
    run = pipeline.drivers.start(once=False)
    for _ in range(2):
        pipeline.feed.more(300, bad_every=50)
        wait_for(pipeline.complete, "the batch lands", run, every=0.1)
    return run


def healed(pipeline: Lake, run: DriverRun, removed: int) -> None:
    """So many rows are gone, and come back."""
    wait_for(pipeline.complete, f"{removed} rows are delivered again", run, every=0.1)
    pipeline.exact()


@pytest.mark.long
def test_under_a_driver_that_idles(
    tmp_path: Path, kafka: LocalKafka, drivers: type[Drivers], new_topic: Callable[..., str]
) -> None:
    """To an older snapshot, to a tag, and to before the first batch, one after another under the same driver."""
    with lake(tmp_path, kafka, new_topic(partitions=2), drivers=drivers) as pipeline:
        iceberg_oracle.make(pipeline.catalog, pipeline.tables[0])
        pipeline.strangers(0, 3)
        oldest = pipeline.table().current_snapshot()
        assert oldest is not None
        run = idle(pipeline)
        first, *later = pipeline.landings()
        assert later

        pipeline.roll_back(first)
        assert pipeline.count() < 590
        healed(pipeline, run, 294)
        assert first in pipeline.landings(), "what was not removed was left alone"

        pipeline.table().manage_snapshots().create_tag(first, "good").commit()
        pipeline.table().manage_snapshots().set_current_snapshot(ref_name="good").commit()
        healed(pipeline, run, 294)
        assert pipeline.landings()[0] == first

        pipeline.roll_back(oldest.snapshot_id)
        assert pipeline.count() == 0
        healed(pipeline, run, 588)
        assert first not in pipeline.landings()

        pipeline.feed.more(100, bad_every=50)
        wait_for(pipeline.complete, "it goes on", run, every=0.1)
        assert run.terminate() == 0, run.tail()
        pipeline.exact()
        assert sorted(iceberg_oracle.foreign(pipeline.table())) == [iceberg_oracle.stranger(each) for each in range(3)]
        reports = {event["what"] for event in run.events() if event["event"] == "trouble"}
        assert len([each for each in reports if "was rolled back" in each]) == 3, reports


@pytest.mark.parametrize(
    "before",
    [pytest.param(False, id="to-an-older-batch"), pytest.param(True, id="to-before", marks=pytest.mark.long)],
)
def test_under_a_driver_that_is_about_to_commit(
    before: bool, tmp_path: Path, kafka: LocalKafka, drivers: type[Drivers], new_topic: Callable[..., str]
) -> None:
    """The attempt in its hands would put the next batch on top of a gap."""
    go = tmp_path / "go"
    with lake(tmp_path, kafka, new_topic(partitions=2), drivers=drivers) as pipeline:
        pipeline.feed.more(1800, bad_every=50)
        # Taking and binding, two batches, and the third stands at the door.
        run = pipeline.start("attempt.before", skip=4, go=go)
        run.wait_reached()
        first, second = pipeline.landings()
        pipeline.roll_back(parent_of(pipeline, first, pipeline.tables[0]) if before else first)
        go.touch()
        assert run.finish() == 0, run.tail()
        pipeline.exact()
        assert second not in pipeline.landings()
        assert (first in pipeline.landings()) is not before


@pytest.mark.long
def test_one_table_of_a_fan_out(
    tmp_path: Path, kafka: LocalKafka, drivers: type[Drivers], new_topic: Callable[..., str]
) -> None:
    """Rolled back while a driver is about to commit, while it idles, and while it is stopped: only that table is replayed."""
    go = tmp_path / "go"
    with lake(tmp_path, kafka, new_topic(partitions=2), fan_out=True, drivers=drivers) as pipeline:
        iceberg_oracle.make(pipeline.catalog, _PLAIN)
        pipeline.strangers(0, 3, _PLAIN)
        pipeline.feed.more(1200, bad_every=50)
        # Three tables of the first batch, and the second stands at three doors.
        run = pipeline.start("attempt.before", skip=3, go=go, once=False)
        run.wait_reached()
        [first] = pipeline.landings(_PLAIN)
        kept = {name: pipeline.landings(name) for name in _OTHERS}
        pipeline.roll_back(parent_of(pipeline, first), _PLAIN)
        go.touch()
        healed(pipeline, run, 150)
        assert_untouched(pipeline, kept, 2)

        [*_, last] = pipeline.landings(_PLAIN)
        pipeline.roll_back(parent_of(pipeline, last), _PLAIN)
        healed(pipeline, run, 150)
        assert_untouched(pipeline, kept, 2)
        assert run.terminate() == 0, run.tail()

        pipeline.roll_back(parent_of(pipeline, pipeline.landings(_PLAIN)[-1]), _PLAIN)
        pipeline.feed.more(100, bad_every=50)
        pipeline.drivers.drain()
        pipeline.exact()
        assert_untouched(pipeline, kept, 3)


def parent_of(pipeline: Lake, snapshot: int, name: str = _PLAIN) -> int:
    found = pipeline.table(name).snapshot_by_id(snapshot)
    assert found is not None
    assert found.parent_snapshot_id is not None
    return found.parent_snapshot_id


def assert_untouched(pipeline: Lake, kept: dict[str, list[int]], batches: int) -> None:
    """The other tables have what they had, and one commit per batch."""
    for name in _OTHERS:
        now = pipeline.landings(name)
        assert now[: len(kept[name])] == kept[name]
        assert len(now) == batches, name


@pytest.mark.parametrize(
    "fan_out", [pytest.param(False, id="own-ledger"), pytest.param(True, id="fan-out", marks=pytest.mark.long)]
)
def test_stopped_refused_and_then_followed(
    fan_out: bool, tmp_path: Path, kafka: LocalKafka, drivers: type[Drivers], new_topic: Callable[..., str]
) -> None:
    with lake(tmp_path, kafka, new_topic(partitions=2), fan_out=fan_out, drivers=drivers) as pipeline:
        name = pipeline.tables[0]
        pipeline.feed.more(1200, bad_every=50)
        pipeline.drivers.drain()
        first, _ = pipeline.landings(name)
        pipeline.roll_back(first, name)
        rolled = pipeline.table(name).metadata_location
        pipeline.edit("rollback: follow", "rollback: refuse")
        run = pipeline.drivers.start()
        assert run.finish() == Halt.exit_code, run.tail()
        assert "RollbackRefused" in run.log.read_text()
        assert name in run.log.read_text()
        assert pipeline.table(name).metadata_location == rolled, "it wrote though it was refused"
        pipeline.edit("rollback: refuse", "rollback: follow")
        pipeline.drivers.drain()
        pipeline.exact()
        assert pipeline.landings(name)[0] == first
