"""The driver of an SQL table is killed before and after every step, and everywhere in its workers' transactions.

The kills are chained: each start recovers from the kill before it, and there are always new records.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chain import Chain, Kill
from sql_scene import Base, base, postgres_judge, sqlite_judge

import landonce
from landonce.local import LocalKafka
from landonce.run.protocol import Step

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(900)]

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


@pytest.fixture(params=["postgresql", "sqlite"])
def pipeline(
    request: pytest.FixtureRequest, tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str]
) -> Iterator[Base]:
    batch = "interval: 0s, max_rows: 40, block_rows: 8"
    if request.param == "sqlite":
        url, judge = "sqlite:///target.db", sqlite_judge(tmp_path / "target.db")
    else:
        url = request.getfixturevalue("new_database")()
        judge = postgres_judge(url)
    topic = new_topic(partitions=2)
    with base(tmp_path, kafka, topic, url, judge, batch=batch, sink="evolve: true") as made:
        yield made


def test_every_step_and_every_place_is_killed() -> None:
    """A new step or a new place fails here until a chain kills it."""
    others = {Step.STOP, Step.AWAIT, Step.KILL, Step.REARM}
    steps = {f"{step.value}.{side}" for step in set(Step) - others for side in ("before", "after")}
    modules = (Path(landonce.__file__).parent / "write" / "sql").glob("*.py")
    places = set(re.findall(r'\breach\("([a-z.]+)"\)', "".join(path.read_text() for path in modules)))
    assert places >= {"read.after", "stage.after", "flip.before", "flip.after", "rows.after", "landed.after"}
    assert {kill.place for kill in FRESH + BATCHES + EVOLVING} == steps | places


def test_killed_at_every_step(pipeline: Base) -> None:
    chain = Chain(pipeline)
    chain.suffer(FRESH)
    chain.suffer(BATCHES)
    pipeline.feed.extra = "later"
    chain.suffer(EVOLVING)
    chain.settled()
    assert pipeline.blocks() == []
    due = [each.payload for each in pipeline.feed.produced if not each.bad]
    found = pipeline.judge.ask("SELECT id, later FROM events")
    assert sorted(found, key=repr) == sorted(((each["id"], each.get("later")) for each in due), key=repr)


def test_only_a_worker_is_killed(pipeline: Base, tmp_path: Path) -> None:
    """Its transaction is open: it rolls back, and the block is written again."""
    go = tmp_path / "go"
    pipeline.feed.more(60, bad_every=10)
    run = pipeline.start("rows.after", go=go)
    run.wait_reached()
    worker = int(run.reached.read_text().split()[1])
    assert worker != run.process.pid
    os.kill(worker, signal.SIGKILL)
    go.touch()
    assert run.finish() == 0, run.tail()
    pipeline.exact()
