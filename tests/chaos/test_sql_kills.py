"""The driver of an SQL table is killed before and after every step, and everywhere in its workers' transactions.

The kills are chained: each start recovers from the kill before it, and there are always new records.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chain import Chain, Kill, failpoints_in
from harness import Drivers
from plain_driver import FirstWithSpark, PlainDrivers
from sql_scene import IN_TRANSACTIONS, Base, base, postgres_judge, sqlite_judge

from landonce.local import LocalKafka
from landonce.protocol.steps import Step

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(1500)]

BATCH = "interval: 0s, max_rows: 40, block_rows: 8"
FRESH = [
    Kill("acquire.before"),
    Kill("acquire.after"),
    Kill("survey.before"),
    Kill("survey.after"),
    Kill("look.before"),
    Kill("look.after"),
    Kill("bind.before"),
    Kill("bind.after"),
]
BATCHES = [
    Kill("prepare.before", replay=False),
    Kill("prepare.after"),
    Kill("write.before", replay=True),
    Kill("read.after", replay=True),
    Kill("stage.after", replay=True),
    # The transaction of the first block, of the second, and of the third, of the same plan.
    Kill("flip.before", replay=True),
    Kill("flip.after", replay=True),
    Kill("rows.after", replay=True),
    Kill("landed.after", replay=True),
    Kill("rows.after", replay=True),
    Kill("landed.after", replay=True),
    Kill("write.after", replay=True),
    Kill("commit.before"),
    Kill("commit.after"),
    Kill("record.before"),
    Kill("record.after"),
    Kill("bind.before", grow=3),
    Kill("rows.after", skip=1),
    Kill("idle.before", once=False),
    Kill("idle.after", once=False),
]
EVOLVING = [Kill("open.before"), Kill("open.after")]
"""Records come with a field that the table has no column for."""
WITH_SPARK = [Kill("rows.after")]
"""In a transaction. Every place with Spark is in `make test-long`."""


@pytest.fixture
def in_postgres(
    tmp_path: Path,
    kafka: LocalKafka,
    new_topic: Callable[..., str],
    new_database: Callable[[], str],
    drivers: type[Drivers],
) -> Iterator[Base]:
    url, topic = new_database(), new_topic(partitions=2)
    with base(tmp_path, kafka, topic, url, postgres_judge(url), batch=BATCH, drivers=drivers) as made:
        yield made


@pytest.fixture
def in_sqlite(
    tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str], drivers: type[Drivers]
) -> Iterator[Base]:
    judge = sqlite_judge(tmp_path / "target.db")
    settings = {"batch": BATCH, "sink": "evolve: true"}
    with base(
        tmp_path, kafka, new_topic(partitions=2), "sqlite:///target.db", judge, **settings, drivers=drivers
    ) as made:
        yield made


def test_every_step_and_every_place_is_killed() -> None:
    """A new step or a new place fails here until a chain kills it."""
    others = {Step.STOP, Step.AWAIT, Step.KILL, Step.REARM, Step.RESOLVE}
    steps = {f"{step.value}.{side}" for step in set(Step) - others for side in ("before", "after")}
    places = failpoints_in("sinks/transactional.py", "sinks/sql/**/*.py")
    assert places >= {"flip.before", "flip.after", "rows.after", "landed.after"}
    places |= {"read.after", "stage.after"}  # wherever a block is read and its dead letters are staged
    assert {kill.place for kill in FRESH + BATCHES + EVOLVING} == steps | places


@pytest.mark.parametrize(
    ("drivers", "kills"),
    [
        pytest.param(PlainDrivers, FRESH + BATCHES, id="plain"),
        pytest.param(FirstWithSpark, WITH_SPARK, id="spark"),
        pytest.param(Drivers, FRESH + BATCHES, id="spark-all", marks=pytest.mark.long),
    ],
)
def test_postgres_is_killed_at_every_step(in_postgres: Base, kills: list[Kill]) -> None:
    chain = Chain(in_postgres)
    chain.suffer(kills)
    chain.settled()
    assert in_postgres.blocks() == []


def test_sqlite_is_killed_in_its_transactions(in_sqlite: Base) -> None:
    """And where a column is added."""
    chain = Chain(in_sqlite)
    chain.suffer(IN_TRANSACTIONS)
    in_sqlite.feed.extra = "later"
    chain.suffer(EVOLVING)
    chain.settled()
    assert in_sqlite.blocks() == []
    due = [each.payload for each in in_sqlite.feed.produced if not each.bad]
    found = in_sqlite.judge.ask("SELECT id, later FROM events")
    assert sorted(found, key=repr) == sorted(((each["id"], each.get("later")) for each in due), key=repr)


@pytest.mark.long
def test_sqlite_is_killed_at_every_step(in_sqlite: Base) -> None:
    chain = Chain(in_sqlite)
    chain.suffer(FRESH)
    chain.suffer(BATCHES)
    chain.settled()
    assert in_sqlite.blocks() == []


@pytest.mark.parametrize(
    ("where", "drivers"),
    [
        pytest.param("in_postgres", Drivers, id="postgres-spark", marks=pytest.mark.long),
        pytest.param("in_sqlite", PlainDrivers, id="sqlite-plain"),
        pytest.param("in_sqlite", Drivers, id="sqlite-spark", marks=pytest.mark.long),
    ],
)
@pytest.mark.usefixtures("drivers")
def test_only_a_worker_is_killed(where: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Its transaction is open: it rolls back, and the block is written again."""
    pipeline, go = request.getfixturevalue(where), tmp_path / "go"
    pipeline.feed.more(60, bad_every=10)
    run = pipeline.start("rows.after", go=go)
    run.wait_reached()
    worker = int(run.reached.read_text().split()[1])
    assert worker != run.process.pid
    os.kill(worker, signal.SIGKILL)
    go.touch()
    assert run.finish() == 0, run.tail()
    pipeline.exact()
