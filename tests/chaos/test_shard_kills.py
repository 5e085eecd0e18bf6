"""Two shards of ClickHouse: the driver is killed between the inserts of one block on the shards, and so are the servers.

Between two kills no coordinate stands twice on any shard; at the end every record stands exactly once on one of them, and on the one on
which a Distributed table looks for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import oracle
import pytest
from chain import Chain, Kill
from harness import Feed, Site, good
from plain_driver import PlainDrivers
from plain_process import PlainProcess
from rename_kills import killed_at_rename
from scene import Scene, wait_for
from shard_servers import WEIGHTS, TwoShards, two_shards

from landonce.local import LocalKafka
from landonce.local.server import LocalServer

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(600)]


@dataclass
class Sharded(Scene):
    """A pipeline that writes to one table on two servers."""

    both: TwoShards

    def per_shard(self) -> list[list[oracle.Row]]:
        table = self.site.table
        return [
            oracle.rows(url, table) if oracle.ask(url, f"EXISTS TABLE {table}").strip() == "1" else []
            for url in self.both.endpoints
        ]

    def landed(self) -> dict[str, list[oracle.Row]]:
        first, second = self.per_shard()
        return {self.site.table: first + second}

    def in_their_places(self) -> None:
        """A query that skips the shards on which a row cannot be finds each row, and `landonce verify` all of them."""
        everything = self.both.distributed(self.site.table, "cityHash64(id)")
        due = {row[3] for row in oracle.expected_rows(self.feed.produced)}
        found = [self.both.skipping(everything, f"id = {id_}") for id_ in sorted(due)]
        assert found == [1] * len(due)
        assert all(self.per_shard()), "the rows are spread"
        assert self.site.landonce("verify", str(self.site.file), "--values").returncode == 0

    def letters_land(self) -> None:
        """Values that people give for dead letters, with a kill between the shards of the block."""
        letters = [each for each in self.feed.produced if each.bad][:8]
        places = [{"topic": each.topic, "partition": each.partition, "offset": each.offset} for each in letters]
        values = [good(1000 + number) for number in range(len(letters))]
        lines = [json.dumps({**place, "value": value}) for place, value in zip(places, values, strict=True)]
        (self.site.folder / FIXED).write_text("\n".join(lines))
        Replays(self.site, runs=self.drivers.runs).kill_at("shard.after")
        assert [sum(row[3] >= 1000 for row in rows) > 0 for rows in self.per_shard()] == [True, False]
        self.drivers.drain()
        due = [replace(each, value=value).row for each, value in zip(letters, values, strict=True)]
        found = [row for rows in self.per_shard() for row in rows if row[3] >= 1000]
        assert sorted(found) == sorted(due)
        assert self.site.landonce("verify", str(self.site.file), "--values").returncode == 0


FIXED = "fixed.jsonl"


@dataclass
class Replays(PlainDrivers):
    """Drivers that land dead letters."""

    def spawn(self, arguments: tuple[str, ...], environment: Mapping[str, str], log: Path) -> PlainProcess:
        words = ("dead", "replay", str(self.site.file), "--with", str(self.site.folder / FIXED), "--yes")
        return PlainProcess(words, environment, log)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, servers: None) -> Iterator[TwoShards]:
    """A test that kills one of them starts it again."""
    with two_shards(tmp_path_factory.mktemp("both")) as found:
        yield found


@pytest.fixture
def make(
    tmp_path: Path, kafka: LocalKafka, both: TwoShards, new_topic: Callable[..., str], new_table: Callable[[], str]
) -> Callable[[int], AbstractContextManager[Sharded]]:
    """A pipeline that reads so many partitions."""

    @contextmanager
    def made(partitions: int) -> Iterator[Sharded]:
        batch = "interval: 0s, max_rows: 1000, block_rows: 50"
        servers = (kafka.bootstrap_servers, both.endpoints[0])
        site = Site(tmp_path, *servers, new_topic(partitions=partitions), new_table(), batch=batch, deadline="2s")
        site.write()
        with PlainDrivers(site) as started:
            feed = Feed(kafka.bootstrap_servers, site.topic, partitions)
            pipeline = Sharded(site, started, feed, clickhouse=both.endpoints[0], both=both)
            endpoints = f"endpoints: {json.dumps(both.endpoints)}, weights: {list(WEIGHTS)}, shard_by: [id]"
            pipeline.edit(f'url: "{both.endpoints[0]}"', endpoints)
            yield pipeline

    return made


Make = Callable[[int], AbstractContextManager[Sharded]]


def killed_and_back(server: LocalServer) -> None:
    server.kill()
    assert not server.running
    server.start()
    server.wait_ready()


KILLS = [
    # One shard has the table, then both have it.
    Kill("create.shard"),
    Kill("create.shard", skip=1),
    Kill("prepare.after", replay=False),
    Kill("send.before", replay=True),
    # Of a block, the first shard has its rows, and nobody knows; then the second one, too.
    Kill("shard.after", replay=True),
    Kill("probe.after", replay=True),
    Kill("shard.after", replay=True),
    Kill("rearm.after", replay=True),
    Kill("write.after", replay=True),
    Kill("record.after", replay=True),
    # The same in a first attempt.
    Kill("shard.after", replay=False),
    Kill("record.before", replay=True),
    Kill("shard.after", skip=1, replay=False),
    Kill("commit.after", replay=True),
    Kill("send.after", replay=False),
]
SERVERS_TOO = (
    Kill("shard.after", replay=False),
    Kill("probe.after", replay=True),
    Kill("shard.after", skip=1, replay=False),
)


def test_the_driver_and_the_servers_are_killed_in_turn(make: Make) -> None:
    """When the driver has died in doubt, one of the servers dies, too."""
    with make(2) as pipeline:
        chain = Chain(pipeline)
        for number, kill in enumerate(KILLS):
            pipeline.feed.more(16, bad_every=5)
            run = pipeline.drivers.kill_at(kill.place, skip=kill.skip, once=kill.once)
            if kill in SERVERS_TOO:
                killed_and_back(pipeline.both.servers[number % 2])
            chain.suffered(kill, run)
        chain.settled()
        pipeline.in_their_places()
        pipeline.letters_land()


def test_one_shard_is_down_and_comes_back(make: Make, tmp_path: Path) -> None:
    """It dies after the other one has its rows of the block. The driver waits; the position stays; nothing is lost, and nothing is twice."""
    with make(1) as pipeline:
        go = tmp_path / "go"
        pipeline.feed.more(40, bad_every=10)
        pipeline.drivers.drain()
        before = pipeline.site.state()["positions"]
        pipeline.feed.more(40, bad_every=10)
        run = pipeline.start("shard.after", go=go)
        run.wait_reached()
        landed = [len(rows) for rows in pipeline.per_shard()]
        pipeline.both.servers[1].kill()
        go.touch()
        wait_for(lambda: any(event["event"] == "trouble" for event in run.events()), "the driver noticed", run)
        position = pipeline.site.state()["positions"]
        assert [each["committed"] for each in position] == [each["committed"] for each in before]
        pipeline.both.servers[1].start()
        pipeline.both.servers[1].wait_ready()
        assert run.finish() == 0, run.tail()
        first, second = ([len(rows) for rows in pipeline.per_shard()][at] - landed[at] for at in (0, 1))
        assert first == 0 < second
        pipeline.exact()
        pipeline.in_their_places()


@pytest.mark.long
def test_one_shard_dies_between_token_and_part(make: Make, tmp_path: Path) -> None:
    """The first shard has its rows. The second one has a token without them, and needs another generation: the first one has nothing twice."""
    with make(1) as pipeline:
        go = tmp_path / "go"
        pipeline.feed.more(40)
        run = pipeline.start("shard.after", go=go)
        run.wait_reached()
        first = len(pipeline.per_shard()[0])
        assert first > 0 == len(pipeline.per_shard()[1])
        second = pipeline.both.servers[1]
        with killed_at_rename(second, tmp_path / "strace.log"):
            go.touch()
            wait_for(lambda: not second.running, "the server was killed at its next rename", run)
        killed_and_back(second)
        assert [len(rows) for rows in pipeline.per_shard()] == [first, 0]
        assert run.finish() == 0, run.tail()
        assert "is acknowledged and not there" in run.log.read_text()
        pipeline.exact()
        pipeline.in_their_places()
