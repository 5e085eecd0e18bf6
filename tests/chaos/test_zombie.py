"""A driver's whole tree is paused with SIGSTOP, a second one takes over, and the first is woken: it must change nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from harness import Drivers
from plain_driver import PlainDrivers
from scene import scene, wake

from landonce.local import LocalClickHouse, LocalKafka

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    "places",
    [
        ("send.before", "prepare.before", "commit.before"),
        pytest.param(("write.before", "record.before", "commit.after"), marks=pytest.mark.long),
    ],
    ids="-".join,
)
def test_zombies_are_fenced_and_change_nothing(
    places: tuple[str, ...],
    tmp_path: Path,
    kafka: LocalKafka,
    drivers: type[Drivers],
    clickhouse: LocalClickHouse,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
) -> None:
    """Each is paused in the middle of what its predecessor left; the last driver finishes; then they wake, one by one."""
    with scene(tmp_path, kafka, clickhouse, new_topic(partitions=2), new_table(), drivers=drivers) as pipeline:
        zombies = []
        for place in places:
            pipeline.feed.more(600, bad_every=50)
            zombies.append(pipeline.pause_at(place))
        pipeline.drivers.drain()
        pipeline.exact()
        before = pipeline.traces()
        assert before.ledger is not None
        assert before.ledger.pending is None
        for zombie in zombies:
            wake(zombie)
            assert pipeline.traces() == before, f"{zombie.place}:\n{zombie.tail()}"


def test_a_zombie_that_sends_between_the_successors_probe_and_its_send(
    tmp_path: Path,
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
) -> None:
    """The worst moment: the successor has seen that nothing is there, and the zombie holds the very rows in its hands. Its deadline is
    long enough that the successor has to wait for it."""
    topic, table = new_topic(partitions=2), new_table()
    with scene(tmp_path, kafka, clickhouse, topic, table, deadline="8s", drivers=PlainDrivers) as pipeline:
        pipeline.feed.more(1200, bad_every=50)
        zombie = pipeline.pause_at("send.before")
        left = pipeline.traces().ledger
        assert left is not None
        assert left.pending is not None
        go = tmp_path / "go"
        successor = pipeline.start("probe.after", go=go)
        successor.wait_reached()
        successor.waited_for(left.pending.deadline)
        before = pipeline.traces()
        assert before.rows == ()
        wake(zombie)
        assert "is late" in zombie.log.read_text(), "the zombie never sent its rows"
        assert pipeline.traces() == before, zombie.tail()
        go.touch()
        assert successor.finish() == 0, successor.tail()
        pipeline.exact()
