"""A pipeline whose ledger is a KeeperMap table of its own ClickHouse, on a real ZooKeeper: the driver is killed, and so is ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from chain import Chain, Kill
from harness import PATIENCE
from plain_driver import PlainDrivers
from scene import Scene, scene, wait_for
from zookeeper_server import LocalZooKeeper

from landonce.local import LocalClickHouse, LocalKafka

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(600)]

KILLS = [
    Kill("acquire.before"),
    *(Kill(f"{step}.{side}") for step in ("bind", "prepare") for side in ("before", "after")),
    Kill("send.after"),
    *(Kill(f"{step}.{side}") for step in ("rearm", "commit", "record") for side in ("before", "after")),
]
"""Around every change of the ledger."""


@contextmanager
def in_keeper_map(
    folder: Path, kafka: LocalKafka, clickhouse: LocalClickHouse, topic: str, table: str
) -> Iterator[Scene]:
    batch = "interval: 0s, max_rows: 1000, block_rows: 8"
    with scene(folder, kafka, clickhouse, topic, table, batch=batch, deadline="1s", drivers=PlainDrivers) as play:
        play.edit("ledger: {sqlite: ledger}", f"ledger: {{keeper_map: {{path: /landonce/{table}, table: of_{table}}}}}")
        yield play


def test_killed_around_every_change_of_the_ledger(
    tmp_path: Path,
    kafka: LocalKafka,
    clickhouse_with_zookeeper: LocalClickHouse,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
) -> None:
    with in_keeper_map(tmp_path, kafka, clickhouse_with_zookeeper, new_topic(partitions=2), new_table()) as play:
        chain = Chain(play)
        chain.suffer(KILLS)
        chain.settled()
        shown = play.site.landonce("state", "show", str(play.site.file))
        assert "KeeperMap table" in shown.stdout
        assert play.site.landonce("verify", str(play.site.file)).returncode == 0


def test_zookeeper_dies_while_a_driver_is_about_to_change_the_ledger(
    tmp_path: Path,
    kafka: LocalKafka,
    clickhouse_with_zookeeper: LocalClickHouse,
    zookeeper: LocalZooKeeper,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
) -> None:
    """The driver waits, and goes on by itself."""
    with in_keeper_map(tmp_path, kafka, clickhouse_with_zookeeper, new_topic(partitions=2), new_table()) as play:
        play.edit("stall: 60s", "stall: 180s")
        play.feed.more(20, bad_every=5)
        go = tmp_path / "go"
        run = play.start("record.before", go=go)
        run.wait_reached()
        zookeeper.kill()
        go.touch()
        wait_for(lambda: "did not answer" in run.tail(100), "the driver says what it waits for", run, limit=PATIENCE)
        zookeeper.start()
        zookeeper.wait_ready()
        assert run.finish() == 0, run.tail()
        play.exact()
        Chain(play).settled()
