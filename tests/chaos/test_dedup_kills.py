"""`landonce run` with `dedup` is killed before and after every step of both drivers, and everywhere in their workers.

The kills are chained: each start recovers from the kill before it, and the producer keeps sending: new events, copies of events that it sent
before, and records that are no events. Between two kills no event stands twice; at the end every event stands once, and the store has counted
as the judge does.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chain import Kill, failpoints_in
from dedup_scene import ACCEPT, BATCH, CLEANING, PUSH, Unique, around, in_accept, in_push, sqlite_store, unique
from harness import Drivers
from plain_driver import FirstWithSpark, PlainDrivers
from scene import scene
from sql_scene import base, sqlite_judge

from landonce.local import LocalClickHouse, LocalKafka
from landonce.protocol.steps import Step

Place = tuple[str, int, int]
pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(1800)]

ACCEPTING = [
    # A store without a scope, then one that nobody accepted into.
    *in_accept("acquire.before", "accepted.before", "acquire.after", *around("survey", "look", "bind")),
    *in_accept(*around("prepare"), "write.before"),
    *in_accept("read.after", "freeze.after", "stage.after", "files.after"),
    # The second block of a write, then all of them compared.
    *in_accept("files.after", skip=1),
    *in_accept("joined.after", "write.after", "commit.before"),
    # Taking the pipeline is the first commit of a start. The second one is of a batch.
    *in_accept("attempt.before", "accepted.before", "accepted.after", "attempt.after", skip=1),
    *in_accept("commit.after", *around("record")),
    # The second batch of a start.
    *in_accept("accepted.before", "accepted.after", skip=2),
    *(Kill(place, once=False, thread=ACCEPT) for place in around("idle")),
]
PUSHING = [
    *in_push(*around("acquire", "survey", "kill", "look", "bind"), "prepare.before"),
    # From here on, a plan is pending of which nothing is written.
    *in_push("prepare.after", *around("await"), *around("rearm"), "write.before"),
    *in_push("read.after", "freeze.after", "stage.after", *around("probe"), "send.before"),
    # A block has landed, and nobody knows.
    *in_push("send.after", "probe.after", "write.after", *around("commit", "record")),
    # In a plan's first attempt, of which the first block has landed.
    *in_push("freeze.after", "send.before", "send.after", skip=1),
    # Not with --once: such a driver is idle only while the other one still has something to do.
    *(Kill(place, once=False, thread=PUSH) for place in around("idle")),
]
"""Of ClickHouse: it has all steps but `open`."""
RESHARDED = Kill("resharded.before")
WITH_SPARK = [Kill("joined.after")]
"""In a worker that compares keys. Every place with Spark is in `make test-long`."""
UNNAMED = [Kill(kill.place, kill.skip, once=kill.once) for kill in ACCEPTING + PUSHING]
"""Spark's workers do not know whose they are: whoever comes to the place first is killed."""


@contextmanager
def in_clickhouse(
    folder: Path,
    servers: tuple[LocalKafka, LocalClickHouse],
    topic: str,
    table: str,
    drivers: type[Drivers] = PlainDrivers,
    *,
    dedup: str = "key: [id]",
    differ: bool = False,
    deadline: str = "3s",
) -> Iterator[Unique]:
    """The store is in the ledger's file."""
    play = scene(folder, *servers, topic, table, batch=BATCH, deadline=deadline, drivers=drivers)
    with unique(play, sqlite_store(folder / "ledger"), dedup, differ=differ) as made:
        yield made


def test_every_step_and_every_place_is_killed() -> None:
    """A new step or a new place fails here until a chain kills it."""
    common = set(Step) - {Step.STOP, Step.OPEN, Step.RESOLVE}
    of_tables = common - {Step.AWAIT, Step.KILL, Step.REARM}
    of_commands = {"fence.before", "fence.after", "replaced.before", "replaced.after"}  # killed in test_dedup_commands
    cleaning = {"expired.before", "expired.after", "cleaned.before", "cleaned.after"}
    assert {kill.place for kill in CLEANING} == cleaning  # in test_dedup_cleaning_kills
    places = failpoints_in("dedup/*.py") - {RESHARDED.place} - of_commands - cleaning
    places |= {"read.after", "freeze.after", "stage.after"}
    assert places >= {"files.after", "joined.after", "accepted.before", "accepted.after"}
    steps = {f"{step.value}.{side}" for step in of_tables for side in ("before", "after")}
    assert {kill.place for kill in ACCEPTING} == steps | places | {"attempt.before", "attempt.after"}
    steps = {f"{step.value}.{side}" for step in common for side in ("before", "after")}
    places = failpoints_in("engine/**/*.py", "sinks/deduplicating.py", "sinks/clickhouse/*.py")
    places -= failpoints_in("engine/replay.py")  # in tests/integration/test_replay.py
    places -= failpoints_in("engine/letter_topic.py")  # in tests/integration/test_letter_topic.py
    places -= {"publish.file"}  # in test_kill_every_step
    places -= {"open.table", "create.table"}  # of several tables, in test_clickhouse_fan_out
    places -= failpoints_in("sinks/clickhouse/shards.py")  # they do not go with `dedup`; in test_shard_kills
    assert {kill.place for kill in PUSHING} == steps | places


@pytest.mark.parametrize(
    ("drivers", "kills"),
    [
        pytest.param(PlainDrivers, ACCEPTING, id="plain"),
        pytest.param(Drivers, UNNAMED, id="spark-all", marks=pytest.mark.long),
    ],
)
def test_accepting_is_killed_at_every_step(
    tmp_path: Path,
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
    drivers: type[Drivers],
    kills: list[Kill],
) -> None:
    """Copies are kept, too: each is listed once, with its original."""
    keeps, servers = "key: [id], copies: keep", (kafka, clickhouse)
    with in_clickhouse(tmp_path, servers, new_topic(partitions=2), new_table(), drivers, dedup=keeps) as play:
        play.suffer(kills)
        play.settled()
        landed = {row[3]: row[:3] for row in play.rows()}
        events = [
            ((each.topic, each.partition, each.offset), each.payload["id"])
            for each in play.feed.produced
            if not each.bad
        ]
        assert sorted(_copies(play)) == sorted((at, landed[id_]) for at, id_ in events if at != landed[id_])


def _copies(play: Unique) -> list[tuple[Place, Place]]:
    """Where each copy is, and where its original is."""
    words = [sys.executable, "-m", "landonce", "dedup", "copies", str(play.play.site.file)]
    printed = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stdout
    found = [json.loads(line) for line in printed.splitlines()]
    return [(_place(each), _place(each["original"])) for each in found]


def _place(record: dict[str, Any]) -> Place:
    return record["topic"], record["partition"], record["offset"]


def test_workers_of_spark_are_killed(
    tmp_path: Path,
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
) -> None:
    with in_clickhouse(tmp_path, (kafka, clickhouse), new_topic(partitions=2), new_table(), FirstWithSpark) as play:
        play.suffer(WITH_SPARK)
        play.drivers.drain()
        play.exact()


def test_the_number_of_shards_changes_under_kills(
    tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str]
) -> None:
    """From 16 to 32 and back. A start is killed before the shards change, and after that, in the middle of a batch."""
    judge, target, key = sqlite_judge(tmp_path / "target.db"), "sqlite:///target.db", "key: [id], shards: "
    play = base(tmp_path, kafka, new_topic(partitions=2), target, judge, batch=BATCH, drivers=PlainDrivers)
    with unique(play, judge.ask, key + "16") as made:
        made.feed.more(30, bad_every=5)
        made.drivers.drain()
        made.play.edit(key + "16", key + "32")
        made.suffer([RESHARDED, RESHARDED, *in_accept("joined.after"), *in_accept("accepted.before", skip=1)])
        assert made.ask_store("SELECT count(*), max(shard) FROM landonce_dedup_shard") == [(32, 31)]
        made.play.edit(key + "32", key + "16")
        made.suffer([RESHARDED])
        made.settled()
        assert made.ask_store("SELECT count(*), max(shard) FROM landonce_dedup_shard") == [(16, 15)]


MERGING = [
    Kill("joined.after"),
    *(Kill(each, skip=1) for each in ("accepted.before", "accepted.after")),
]
"""In a start's first batch: taking the pipeline is a commit of its own."""
SMALL = BATCH.replace("40", "4")


def test_batches_that_merge_runs_are_killed(tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str]) -> None:
    """Each batch of new events makes one run of the only shard. The batch that finds eight of them merges them, and is killed."""
    judge, target = sqlite_judge(tmp_path / "target.db"), "sqlite:///target.db"
    play = base(tmp_path, kafka, new_topic(partitions=2), target, judge, batch=SMALL, drivers=PlainDrivers)
    with unique(play, judge.ask, "key: [id], shards: 1") as made:
        made.feed.events(range(10))
        made.drivers.drain()
        for kill in MERGING:
            listed, stray = _merged(made)
            [(level_0,)] = made.ask_store("SELECT count(*) FROM landonce_dedup_run WHERE level = 0")
            begin = 1000 * len(made.drivers.runs)
            made.feed.events(range(begin, begin + 40))
            made.killed(replace(kill, skip=kill.skip + max(0, 8 - level_0), thread=ACCEPT))
            counts = (listed, stray + 1) if kill.place in ("joined.after", "accepted.before") else (listed + 1, stray)
            assert _merged(made) == counts, f"no merge was killed at {kill.place}"
        made.play.edit(SMALL, BATCH)
        made.settled()
        assert made.ask_store("SELECT max(level) FROM landonce_dedup_run")[0][0] > 0


def _merged(play: Unique) -> tuple[int, int]:
    """Runs that are a merge: those that are listed, and those of which there are bytes only. One batch brings at most four keys."""
    [(listed,)] = play.ask_store("SELECT count(*) FROM landonce_dedup_run WHERE level > 0")
    [(stray,)] = play.ask_store(
        "SELECT count(*) FROM landonce_deduplication WHERE length(ids) > 4 * 16 AND run NOT IN (SELECT run FROM landonce_dedup_run)"
    )
    return listed, stray


def test_pushing_is_killed_at_every_step(
    tmp_path: Path,
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
) -> None:
    """Copies differ from each other in a field that is not in the key: one of them lands, and it is a record of the topic. Every start waits
    for the deadline of the one before, so it is short: an insert that comes late on a busy machine is sent again."""
    servers, names = (kafka, clickhouse), (new_topic(partitions=2), new_table())
    with in_clickhouse(tmp_path, servers, *names, differ=True, deadline="1s") as play:
        play.suffer(PUSHING)
        play.settled()


def test_without_dedup_copies_land(
    tmp_path: Path,
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
) -> None:
    """The control: the same producer and the same judge, and a pipeline that lands every record once."""
    with in_clickhouse(tmp_path, (kafka, clickhouse), new_topic(partitions=2), new_table()) as play:
        play.play.edit("dedup: {key: [id]}", "")
        play.feed.more(60, bad_every=5)
        play.drivers.drain()
        play.play.exact()
        with pytest.raises(AssertionError, match="at the end"):
            play.exact()
