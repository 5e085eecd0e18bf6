"""Other writers of the same table go on beside landonce: appends and deletes of theirs, and every row of everyone."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import iceberg_neighbour
import iceberg_oracle
import oracle
import pytest
from harness import Drivers
from iceberg_scene import lake
from pyiceberg.expressions import EqualTo

from landonce.local import LocalKafka

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.long
def test_a_writer_that_appends_and_deletes_all_the_time(
    tmp_path: Path, kafka: LocalKafka, drivers: type[Drivers], new_topic: Callable[..., str]
) -> None:
    """It also deletes rows that landonce landed: they are not delivered again, for nobody rolled anything back."""
    stop, journal = tmp_path / "stop", tmp_path / "journal"
    batch = "interval: 0s, max_rows: 100, block_rows: 100"
    with lake(tmp_path, kafka, new_topic(partitions=2), batch=batch, drivers=drivers) as pipeline:
        name = pipeline.tables[0]
        iceberg_oracle.make(pipeline.catalog, name)
        script = (sys.executable, iceberg_neighbour.__file__)
        neighbour = subprocess.Popen((*script, str(tmp_path), name, str(stop), str(journal)))
        try:
            pipeline.feed.more(1500, bad_every=50)
            pipeline.drivers.drain()
            pipeline.feed.more(500, bad_every=50)
            pipeline.drivers.drain()
            stop.touch()
            assert neighbour.wait(60) == 0
        finally:
            neighbour.kill()
            neighbour.wait(10)
        written = json.loads(journal.read_text())
        removed = {tuple(each) for each in written["removed"]}
        due = [row for row in oracle.expected_rows(pipeline.feed.produced) if row[:3] not in removed]
        verdict = oracle.compare(due, pipeline.landed()[name])
        assert verdict.exact, verdict
        theirs = [iceberg_oracle.stranger(each) for each in written["kept"]]
        verdict = oracle.compare(theirs, iceberg_oracle.foreign(pipeline.table()))
        assert verdict.exact, verdict
        assert alternations(pipeline.table()) >= 6, "they hardly met"


def alternations(table: iceberg_oracle.Table) -> int:
    """How often a commit of landonce follows one of the other, or the other way round."""
    ours = ["landonce.batch" in iceberg_oracle.summary(each) for each in iceberg_oracle.history(table)]
    return sum(one != next_ for one, next_ in itertools.pairwise(ours))


@pytest.mark.parametrize("fan_out", [False, pytest.param(True, marks=pytest.mark.long)], ids=["own-ledger", "fan-out"])
def test_the_head_moves_between_judgement_and_commit(
    fan_out: bool, tmp_path: Path, kafka: LocalKafka, drivers: type[Drivers], new_topic: Callable[..., str]
) -> None:
    """The attempt at the door is refused, judged again on the new head, and made again with the same files."""
    go = tmp_path / "go"
    with lake(tmp_path, kafka, new_topic(partitions=2), fan_out=fan_out, drivers=drivers) as pipeline:
        pipeline.feed.more(1200, bad_every=50)
        # One batch is in, and the second stands at the door, or at three.
        run = pipeline.start("attempt.before", skip=3, go=go)
        run.wait_reached()
        ours = pipeline.count()
        pipeline.strangers(0, 5)
        pipeline.table().delete(EqualTo("id", 100))
        assert pipeline.count() == ours - 1
        written = set(tmp_path.rglob("landonce-chaos-*.parquet"))
        go.touch()
        assert run.finish() == 0, run.tail()
        assert set(tmp_path.rglob("landonce-chaos-*.parquet")) == written, "a conflict needs no new files"
        assert sorted(iceberg_oracle.foreign(pipeline.table())) == [
            iceberg_oracle.stranger(each) for each in (0, 1, 2, 3, 4)
        ]
        [deleted] = [each for each in pipeline.feed.produced if not each.bad and each.payload["id"] == 100]
        pipeline.feed.produced.remove(deleted)
        name, *others = pipeline.tables
        assert oracle.compare(pipeline.due()[name], pipeline.landed()[name]).exact
        pipeline.feed.produced.append(deleted)
        assert all(oracle.compare(pipeline.due()[each], pipeline.landed()[each]).exact for each in others)


@pytest.mark.parametrize("rest", [pytest.param(False, id="sql", marks=pytest.mark.long), pytest.param(True, id="rest")])
def test_another_branch_moves_between_judgement_and_commit(
    rest: bool,
    tmp_path: Path,
    kafka: LocalKafka,
    drivers: type[Drivers],
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
    request: pytest.FixtureRequest,
) -> None:
    """The head is still the one that was seen, and yet the attempt is stale, for snapshots of a table are numbered."""
    go = tmp_path / "go"
    catalog = request.getfixturevalue("rest_catalog").properties if rest else None
    with lake(
        tmp_path, kafka, new_topic(partitions=2), namespace=new_table(), catalog=catalog, drivers=drivers
    ) as pipeline:
        pipeline.feed.more(1200, bad_every=50)
        # Taking and binding, one batch, and the second stands at the door.
        run = pipeline.start("attempt.before", skip=3, go=go)
        run.wait_reached()
        table = pipeline.table()
        head = table.current_snapshot()
        assert head is not None
        table.manage_snapshots().create_branch(head.snapshot_id, "audit").commit()
        table.append(iceberg_oracle.strangers(table, 0, 5), branch="audit")
        assert pipeline.table().current_snapshot() == head
        go.touch()
        assert run.finish() == 0, run.tail()
        pipeline.exact()
        assert iceberg_oracle.foreign(pipeline.table()) == []
