"""A table is dropped and made again: nothing lands in the wrong one, and nobody guesses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import iceberg_oracle
import pytest
from harness import DriverRun, Drivers
from iceberg_scene import Lake, lake
from scene import wait_for

from landonce.errors import Halt
from landonce.local import LocalKafka

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(300)]

_PLAIN = "db.plain"


def replace(pipeline: Lake, name: str) -> str:
    """The same name, another table. Gives its metadata."""
    pipeline.catalog.drop_table(name)
    made = iceberg_oracle.make(pipeline.catalog, name)
    pipeline.strangers(0, 3, name)
    return pipeline.catalog.load_table(made.name()).metadata_location


def halted(run: DriverRun, *words: str) -> None:
    assert run.finish() == Halt.exit_code, run.tail()
    text = run.log.read_text()
    assert "TableReplaced" in text, run.tail()
    assert all(word in text for word in words), run.tail()


def test_the_table_that_is_the_ledger(
    tmp_path: Path, kafka: LocalKafka, drivers: type[Drivers], new_topic: Callable[..., str]
) -> None:
    """Under a driver that is about to commit, under one that idles, and under none. A new table begins at the beginning."""
    go = tmp_path / "go"
    with lake(tmp_path, kafka, new_topic(partitions=2), drivers=drivers) as pipeline:
        [name] = pipeline.tables
        pipeline.feed.more(1200, bad_every=50)
        # Taking and binding, one batch, and the second stands at the door.
        run = pipeline.start("attempt.before", skip=3, go=go)
        run.wait_reached()
        made = replace(pipeline, name)
        go.touch()
        halted(run)
        assert pipeline.table().metadata_location == made, "something landed in the new table"

        run = pipeline.drivers.start(once=False)
        wait_for(pipeline.complete, "the new table gets everything", run, every=0.2)
        pipeline.exact()
        made = replace(pipeline, name)
        halted(run)
        assert pipeline.table().metadata_location == made, "something landed in the new table"

        pipeline.drivers.drain()
        pipeline.exact()
        assert len(iceberg_oracle.foreign(pipeline.table())) == 3


@pytest.mark.long
def test_a_table_of_a_fan_out(
    tmp_path: Path, kafka: LocalKafka, drivers: type[Drivers], new_topic: Callable[..., str]
) -> None:
    """The others are not touched either, until somebody decides."""
    go = tmp_path / "go"
    with lake(tmp_path, kafka, new_topic(partitions=2), fan_out=True, drivers=drivers) as pipeline:
        pipeline.feed.more(1200, bad_every=50)
        # Three tables of the first batch, and the second stands at three doors.
        run = pipeline.start("attempt.before", skip=3, go=go)
        run.wait_reached()
        made = replace(pipeline, _PLAIN)
        go.touch()
        halted(run, _PLAIN, "landonce state forget-table")
        assert pipeline.table(_PLAIN).metadata_location == made, "something landed in the new table"

        before = pipeline.traces()[: len(pipeline.tables)]
        halted(pipeline.drivers.start(), _PLAIN, "landonce state forget-table")
        assert pipeline.traces()[: len(pipeline.tables)] == before

        pipeline.catalog.drop_table(_PLAIN)
        halted(pipeline.drivers.start(), _PLAIN, "landonce state forget-table")
        pipeline.unspoiled("after all of it")

        kept = {name: pipeline.landings(name) for name in pipeline.tables if name != _PLAIN}
        replace(pipeline, _PLAIN)
        done = pipeline.site.landonce("state", "forget-table", str(pipeline.site.file), _PLAIN, "--replay", "--yes")
        assert done.returncode == 0, done.stderr
        pipeline.drivers.drain()
        pipeline.exact()
        assert all(pipeline.landings(name)[: len(had)] == had for name, had in kept.items())
