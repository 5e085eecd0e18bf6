"""`landonce run` with `dedup` is killed before and after every step of both drivers, and everywhere in their workers.

The kills are chained: each start recovers from the kill before it, and the producer keeps sending: new events, copies of events that it sent
before, and records that are no events. Between two kills no event stands twice; at the end every event stands once, and the store has counted
as the judge does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from chain import Kill, failpoints_in
from dedup_scene import ACCEPT, PUSH, Unique, sqlite_store, unique
from harness import Drivers
from iceberg_scene import lake
from plain_driver import PlainDrivers
from scene import scene
from sql_scene import base, postgres_judge, sqlite_judge
from wrapped_scene import wrapped

from landonce.local import LocalClickHouse, LocalKafka
from landonce.protocol.steps import Step

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(1800)]

BATCH = "interval: 0s, max_rows: 40, block_rows: 8"


def in_accept(*places: str, **more: int) -> list[Kill]:
    return [Kill(place, thread=ACCEPT, **more) for place in places]


def in_push(*places: str, **more: int) -> list[Kill]:
    return [Kill(place, thread=PUSH, **more) for place in places]


def around(*steps: str) -> list[str]:
    return [f"{step}.{side}" for step in steps for side in ("before", "after")]


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
    *in_push(*around("idle")),
]
"""Of ClickHouse: it has all steps but `open`."""
RESHARDED = Kill("resharded.before")
SHORT = [
    *in_accept("joined.after"),
    *in_accept("accepted.before", "accepted.after", skip=1),
    *in_push("freeze.after", "write.after"),
    *in_accept("commit.after"),
    *in_push("commit.before", "record.before", "record.after"),
]
"""Where the store or the target has changed since the place before."""
IN_TRANSACTION = in_push("flip.before", "flip.after", "rows.after", "landed.after")
IN_COMMIT = [*in_push("files.after"), *in_push("attempt.before", "attempt.after", skip=1)]
IN_CLAIM = in_push("claim.after", "push.after", "settle.before", "settle.after")
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
    places = failpoints_in("dedup/*.py") - {RESHARDED.place} - of_commands
    places |= {"read.after", "freeze.after", "stage.after"}
    assert places >= {"files.after", "joined.after", "accepted.before", "accepted.after"}
    steps = {f"{step.value}.{side}" for step in of_tables for side in ("before", "after")}
    assert {kill.place for kill in ACCEPTING} == steps | places | {"attempt.before", "attempt.after"}
    steps = {f"{step.value}.{side}" for step in common for side in ("before", "after")}
    places = failpoints_in("engine/**/*.py", "sinks/deduplicating.py", "sinks/clickhouse/*.py")
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
    with in_clickhouse(tmp_path, (kafka, clickhouse), new_topic(partitions=2), new_table(), drivers) as play:
        play.suffer(kills)
        play.settled()


def test_workers_of_spark_are_killed(
    tmp_path: Path,
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
) -> None:
    with in_clickhouse(tmp_path, (kafka, clickhouse), new_topic(partitions=2), new_table(), Drivers) as play:
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


def test_rows_land_in_transactions(
    tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str], new_database: Callable[[], str]
) -> None:
    """Target, ledger and store are one PostgreSQL database."""
    url = new_database()
    judge = postgres_judge(url)
    play = base(tmp_path, kafka, new_topic(partitions=2), url, judge, batch=BATCH, drivers=PlainDrivers)
    with unique(play, judge.ask) as made:
        made.suffer([*SHORT, *IN_TRANSACTION])
        made.settled()


def test_files_are_committed_to_iceberg(tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str]) -> None:
    """The table is its own ledger, and the store is a file beside it."""
    play = lake(tmp_path, kafka, new_topic(partitions=2), batch=BATCH, drivers=PlainDrivers)
    with unique(play, sqlite_store(tmp_path / "landonce.dedup")) as made:
        made.suffer([*SHORT, *IN_COMMIT])
        made.settled()


def test_blocks_are_claimed_for_a_wrapped_sink(
    tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str]
) -> None:
    """The target is not idempotent, and takes whatever it is sent. The store is a file of its own."""
    play = wrapped(tmp_path, kafka, new_topic(partitions=2), batch=BATCH, drivers=PlainDrivers)
    with unique(play, sqlite_store(tmp_path / "store"), "key: [id], store: {sqlite: store}") as made:
        for kill in [*SHORT, *IN_CLAIM]:
            made.play.an_hour_passes()
            made.suffer([kill])
        made.play.an_hour_passes()
        made.settled()
        made.play.same_bytes()


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
