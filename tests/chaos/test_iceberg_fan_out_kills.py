"""A fan-out over three tables with a ledger of its own is killed: some tables have the batch, and some have not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import iceberg_oracle
import pytest
from chain import Chain, Kill
from harness import DriverRun, Drivers
from iceberg_scene import Lake, lake
from scene import wait_for

from landonce.local import LocalKafka

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(600)]

FIRST = [
    Kill("bind.before"),
    Kill("look.after", skip=1),
    Kill("prepare.after", replay=False),
    Kill("look.before", replay=False),
    Kill("write.before", replay=True),
    Kill("files.after", replay=True),
    Kill("commit.before", replay=True),
    Kill("attempt.before", replay=True),
]
"""One plan is pending from its preparation on, and no table has any of it."""

LATER = [
    Kill("attempt.after", replay=False),
    Kill("commit.after", replay=True),
    Kill("record.before", replay=True),
    Kill("record.after", replay=True),
    Kill("idle.after", once=False),
]
"""One table at least has the batch, then all have it, then the ledger knows."""


def test_killed_with_some_tables_committed_and_some_not(
    tmp_path: Path, kafka: LocalKafka, drivers: type[Drivers], new_topic: Callable[..., str]
) -> None:
    with lake(tmp_path, kafka, new_topic(partitions=2), fan_out=True, drivers=drivers) as pipeline:
        chain = Chain(pipeline)
        chain.suffer(FIRST)
        assert batches(pipeline) == [[], [], []]
        one_more_table(chain)
        assert sorted(batches(pipeline)) == [[], [], [1]]
        one_more_table(chain)
        assert sorted(batches(pipeline)) == [[], [1], [1]]
        had = {name: pipeline.landings(name) for name in pipeline.tables}
        chain.settled()
        now = {name: pipeline.landings(name) for name in pipeline.tables}
        assert all(each[0] == 1 for each in batches(pipeline))
        assert all(now[name][: len(kept)] == kept for name, kept in had.items()), "a table that had it kept it"

        chain.suffer(LATER)
        chain.settled()
        for each in batches(pipeline):
            assert len(set(each)) == len(each), f"a batch was committed twice: {each}"


def one_more_table(chain: Chain) -> None:
    """One table gets the pending batch, the driver is killed before it has sent any other."""
    pipeline = chain.play
    assert isinstance(pipeline, Lake)
    before = sum(map(len, batches(pipeline)))
    run: DriverRun = pipeline.drivers.start("attempt.before", skip=1)
    run.wait_reached()
    wait_for(lambda: sum(map(len, batches(pipeline))) > before, "the first commit is there", run)
    run.kill()
    assert sum(map(len, batches(pipeline))) == before + 1
    chain.suffered(Kill("attempt.before", skip=1, replay=True), run)


def batches(pipeline: Lake) -> list[list[int]]:
    """The batches that each table got rows by."""
    return [iceberg_oracle.batches(pipeline.table(name)) for name in pipeline.tables]
