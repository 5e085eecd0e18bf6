"""One pipeline file in two folders: each has a ledger of its own, and the table is the same. The drivers notice each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import oracle
import pytest
from harness import DriverRun, Drivers
from scene import scene

from landonce.errors import AnotherWriter
from landonce.local import LocalClickHouse, LocalKafka

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(300)]


def test_drivers_with_two_ledgers_notice_each_other_within_a_batch(
    tmp_path: Path,
    kafka: LocalKafka,
    drivers: type[Drivers],
    clickhouse: LocalClickHouse,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
) -> None:
    """The second folder's driver runs once between two batches of the first one, and once in the middle of a batch."""
    go = tmp_path / "go"
    (copy := tmp_path / "copy").mkdir()
    batch = "interval: 0s, max_rows: 10000, block_rows: 5000"
    with scene(
        tmp_path, kafka, clickhouse, new_topic(partitions=2), new_table(), batch=batch, drivers=drivers
    ) as pipeline:
        other = replace(pipeline.site, folder=copy)
        other.save(pipeline.site.file.read_text())
        pipeline.edit("deadline: 1s", "deadline: 60s")
        with drivers(other) as others:
            pipeline.feed.more(600)
            first = pipeline.start("idle.before", go=go, once=False)
            first.wait_reached()
            pipeline.feed.more(600)
            others.drain()
            go.touch()
            halted(first, "600 rows above the position")
            pipeline.exact()

            # Once the other one is stopped, what it wrote is recognised.
            pipeline.drivers.drain()
            pipeline.exact()

            go.unlink()
            pipeline.feed.more(600)
            first = pipeline.start("write.before", go=go)
            first.wait_reached()
            others.drain()
            pipeline.exact()
            go.touch()
            halted(first, "and this driver wrote 600")
            assert len(oracle.twice(pipeline.rows())) == 600


def halted(run: DriverRun, what: str) -> None:
    assert run.finish() == AnotherWriter.exit_code, run.tail()
    said = run.log.read_text()
    assert "AnotherWriter:" in said, run.tail()
    assert what in said, run.tail()
