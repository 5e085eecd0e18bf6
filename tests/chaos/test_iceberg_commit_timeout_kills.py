"""A driver is killed before and after every step around a batch that went ahead without a slow block: one table, and a fan-out.

In each run with a slow block, a storage stalls under one writer for ever: whoever lands its records read them again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import iceberg_oracle
import pytest
import slow_files
from chain import Chain, Kill
from iceberg_scene import lake
from plain_driver import PlainDrivers

from landonce.local import LocalKafka

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(600)]

BATCH = "interval: 0s, max_rows: 200, block_rows: 8, commit_timeout: 1ms"
_FIRST_COMMIT = 1
"""How many commits are made before: taking the table is one."""
_SECOND = 1
"""A second batch of the same driver: the one that follows the slow block's, and is waited for."""

ONE_TABLE = [
    # No plan is ever kept: each start plans what is there, and one block of that is slow again.
    Kill("write.after"),
    Kill("rearm.before"),
    Kill("rearm.after"),
    Kill("commit.before"),
    Kill("attempt.before", skip=_FIRST_COMMIT),
    Kill("attempt.after", skip=_FIRST_COMMIT),
    Kill("commit.after"),
    Kill("record.before"),
    Kill("record.after"),
    # The slow block follows.
    Kill("prepare.after", skip=_SECOND),
    Kill("write.after", skip=_SECOND),
    Kill("commit.before", skip=_SECOND),
    Kill("attempt.after", skip=_FIRST_COMMIT + _SECOND),
    Kill("record.after", skip=_SECOND),
]


@dataclass
class SlowChain(Chain):
    """A chain of kills, in which one block of a run may be slow."""

    folder: Path = field(kw_only=True)

    def slow(self, *kills: Kill) -> None:
        """One block of the first batch that a run plans is slow, and the others go ahead without it."""
        for kill in kills:
            slow_files.hold(self.folder, 1)
            self.suffer([kill])
            slow_files.release(self.folder)
            assert not list(self.folder.iterdir()), f"{kill}: no block was slow"
            assert self.cuts() == 1, kill

    def cuts(self) -> int:
        """How many batches went ahead without a block in the last run."""
        events = self.play.drivers.runs[-1].events()
        return sum("goes ahead without" in each.get("what", "") for each in events)

    def pending(self) -> dict[str, Any]:
        """The plan in the ledger."""
        return dict(self.play.site.state()["pending"])

    def left_out(self) -> int:
        """How much of what waits is not in it."""
        state = self.play.site.state()
        planned = sum(end - first for each in state["pending"]["blocks"] for _, _, first, end in each["ranges"])
        return sum(each["lag"] for each in state["positions"]) - planned


def slow_lake(folder: Path, **more: Any) -> Any:
    return {"batch": BATCH, "drivers": PlainDrivers, "drivers_catalog": slow_files.properties(folder / "slow"), **more}


def test_one_table_is_killed_around_a_slow_block(
    tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str]
) -> None:
    with lake(tmp_path, kafka, new_topic(partitions=2), **slow_lake(tmp_path)) as pipeline:
        pipeline.feed.more(16)
        pipeline.drivers.drain()
        chain = SlowChain(pipeline, folder=tmp_path / "slow")
        chain.slow(*ONE_TABLE)
        chain.settled()


def test_a_fan_out_is_killed_around_a_slow_block(
    tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str]
) -> None:
    """The plan is whole in the ledger until it is cut, and then it is the cut one that every later driver writes."""
    with lake(tmp_path, kafka, new_topic(partitions=2), **slow_lake(tmp_path, fan_out=True)) as pipeline:
        pipeline.feed.more(16)
        pipeline.drivers.drain()
        chain = SlowChain(pipeline, folder=tmp_path / "slow")
        chain.slow(Kill("rearm.before", replay=False))
        assert chain.left_out() == 0
        chain.suffer([Kill("record.after", replay=True)])

        chain.slow(Kill("rearm.after", replay=False))
        assert chain.left_out() > 0
        cut = chain.pending()
        chain.suffer([Kill("commit.before", replay=True), Kill("attempt.before", skip=1, replay=True)])
        chain.suffer([Kill("commit.after", replay=True), Kill("record.before", replay=True)])
        assert chain.pending() == cut
        chain.settled()

        chain.slow(Kill("attempt.after", replay=False))
        chain.suffer([Kill("record.after", replay=True)])
        chain.slow(Kill("commit.after", replay=False))
        chain.settled()
        # The slow block follows.
        chain.slow(Kill("record.after", replay=False), Kill("prepare.after", skip=_SECOND, replay=False))
        chain.suffer([Kill("commit.before", replay=True)])
        chain.settled()
        for name in pipeline.tables:
            batches = iceberg_oracle.batches(pipeline.table(name))
            assert len(set(batches)) == len(batches), f"a batch was committed twice: {batches}"
