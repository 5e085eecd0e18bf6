"""The driver of an Iceberg table is killed before and after every step, around every commit, and everywhere in its workers.

The table is its own ledger. The kills are chained: each start recovers from the kill before it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from chain import Chain, Kill, failpoints_in
from harness import Drivers
from iceberg_scene import Lake, lake
from plain_driver import FirstWithSpark, PlainDrivers

from landonce.local import LocalKafka
from landonce.protocol.steps import Step

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(900)]

_FIRST_COMMIT, _SECOND_COMMIT = 1, 2
"""How many commits are made before: taking the table is one, binding a new one another."""

FRESH = [
    # A table that knows nothing yet, then one that was taken, then one that is bound to the topic.
    Kill("acquire.before"),
    Kill("attempt.before"),
    Kill("attempt.after"),
    Kill("acquire.after"),
    Kill("survey.before"),
    Kill("survey.after"),
    Kill("look.before"),
    Kill("look.after"),
    Kill("bind.before"),
    Kill("attempt.before", skip=_FIRST_COMMIT),
    Kill("bind.after"),
]

BATCHES = [
    # No plan is ever kept: each start plans what is there.
    Kill("prepare.before"),
    Kill("prepare.after"),
    Kill("write.before"),
    Kill("read.after"),
    Kill("stage.after"),
    Kill("files.after"),
    Kill("write.after"),
    Kill("commit.before"),
    # The batch is built and not sent; then sent, and nobody knows.
    Kill("attempt.before", skip=_FIRST_COMMIT),
    Kill("attempt.after", skip=_FIRST_COMMIT),
    Kill("commit.after"),
    # A second batch of the same driver.
    Kill("attempt.after", skip=_SECOND_COMMIT),
    Kill("record.before"),
    Kill("record.after"),
    Kill("bind.before", grow=3),
    Kill("attempt.after", skip=_FIRST_COMMIT),
    Kill("idle.before", once=False),
    Kill("idle.after", once=False),
]

EVOLVING = [Kill("open.before"), Kill("open.after")]
"""Records come with a field that the table has no column for."""

CHANGED = [
    Kill("attempt.after"),
    Kill("attempt.before", skip=_FIRST_COMMIT),
    Kill("bind.after"),
    Kill("files.after"),
    Kill("attempt.before", skip=_FIRST_COMMIT),
    Kill("attempt.after", skip=_FIRST_COMMIT),
    Kill("commit.after"),
    Kill("attempt.after", skip=_SECOND_COMMIT),
    Kill("record.after"),
    Kill("attempt.after", skip=_FIRST_COMMIT, grow=3),
]
"""Of all of them those where the table, or what lies beside it, is another than at the place before."""

WITH_SPARK = [Kill("attempt.after", skip=_FIRST_COMMIT)]
"""In the driver, with the batch sent. Every place with Spark is in `make test-long`."""


def test_every_step_and_every_place_is_killed() -> None:
    """A new step or a new place fails here until a chain kills it."""
    others = {Step.STOP, Step.AWAIT, Step.KILL, Step.REARM, Step.RESOLVE}
    steps = {f"{step.value}.{side}" for step in set(Step) - others for side in ("before", "after")}
    places = failpoints_in("sinks/snapshot.py", "sinks/iceberg/**/*.py")
    assert places >= {"files.after", "attempt.before", "attempt.after"}
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
def test_killed_at_every_step(
    tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str], drivers: type[Drivers], kills: list[Kill]
) -> None:
    batch = "interval: 0s, max_rows: 40, block_rows: 16"
    with lake(tmp_path, kafka, new_topic(partitions=2), batch=batch, evolve=True, drivers=drivers) as pipeline:
        chain = Chain(pipeline)
        chain.suffer(kills)
        pipeline.feed.extra = "later"
        if kills is WITH_SPARK:
            pipeline.feed.more(16)
        else:
            chain.suffer(EVOLVING)
        chain.settled()
        extended(pipeline)


AROUND_COMMITS = [
    Kill("attempt.after", skip=_FIRST_COMMIT),
    Kill("attempt.before", skip=_FIRST_COMMIT),
    Kill("attempt.after", skip=_FIRST_COMMIT),
]
"""Where a catalog decides: the table is bound, and nobody knows; a batch is built and not sent; it is sent, and nobody knows."""


@pytest.mark.parametrize(
    ("server", "kills"),
    [
        pytest.param("postgres", AROUND_COMMITS, id="postgres"),
        pytest.param("rest_catalog", AROUND_COMMITS, id="rest"),
        pytest.param("postgres", CHANGED, id="postgres-all", marks=pytest.mark.long),
        pytest.param("rest_catalog", CHANGED, id="rest-all", marks=pytest.mark.long),
    ],
)
def test_killed_with_a_catalog_that_is_a_server(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    kafka: LocalKafka,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
    drivers: type[Drivers],
    server: str,
    kills: list[Kill],
) -> None:
    opened = request.getfixturevalue(server)
    sql = {"type": "sql", "uri": getattr(opened, "url", ""), "warehouse": f"file://{tmp_path}/warehouse"}
    catalog = opened.properties if server == "rest_catalog" else sql
    batch = "interval: 0s, max_rows: 40, block_rows: 16"
    with lake(
        tmp_path,
        kafka,
        new_topic(partitions=2),
        namespace=new_table(),
        batch=batch,
        catalog=catalog,
        drivers=drivers,
    ) as pipeline:
        chain = Chain(pipeline)
        chain.suffer(kills)
        chain.settled()


def extended(pipeline: Lake) -> None:
    """The field that came later is in its column, and in no row from before."""
    table = pipeline.table()
    found = table.scan(selected_fields=("id", "later")).to_arrow().to_pylist()
    due = [each.payload for each in pipeline.feed.produced if not each.bad]
    assert sorted((row["id"], row["later"]) for row in found) == sorted((each["id"], each.get("later")) for each in due)


def test_only_a_worker_is_killed(tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str]) -> None:
    """Its files are written, and its receipt never arrives: others are written, and only those count."""
    go = tmp_path / "go"
    with lake(tmp_path, kafka, new_topic(partitions=2)) as pipeline:
        pipeline.feed.more(600, bad_every=50)
        run = pipeline.start("files.after", go=go)
        run.wait_reached()
        worker = int(run.reached.read_text().split()[1])
        assert worker != run.process.pid
        os.kill(worker, signal.SIGKILL)
        go.touch()
        assert run.finish() == 0, run.tail()
        assert any(event["event"] == "trouble" for event in run.events()), "the driver never noticed"
        pipeline.exact()
        written = {each.name for each in tmp_path.rglob("landonce-chaos-*.parquet")}
        counted = {task.file.file_path.rsplit("/")[-1] for task in pipeline.table().scan().plan_files()}
        assert counted < written, "the killed worker had written nothing"
