"""The ledger is restored from an earlier time, deleted, fought over, and restarted: the table stays exact."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import Drivers
from open_folder import open_folder
from plain_driver import PlainDrivers
from proxy import Fate, Insert, Proxy
from scene import LIMIT, Scene, scene

from landonce.errors import Fenced, Halt
from landonce.local import LocalClickHouse, LocalKafka
from landonce.local.postgres import LocalPostgres

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(300)]


class Hole:
    """Whatever belongs to the first block that comes is refused by a gateway; the other blocks land."""

    def __init__(self) -> None:
        self.token = ""
        self.open = True

    def __call__(self, insert: Insert) -> Fate:
        self.token = self.token or insert.token
        return Fate.BAD_GATEWAY if self.open and insert.token == self.token else Fate.PASS


def leave_a_hole(pipeline: Scene, hole: Hole) -> None:
    """Two blocks of one plan: the second lands, the first does not, and the driver is killed with the plan pending.

    The last record of all is one that cannot land, so that the table ends before the topic does.
    """
    before = len(pipeline.rows()) if pipeline.ledger_file.exists() else 0
    pipeline.feed.more(600, bad_every=50)
    pipeline.drivers.kill_at("await.before")
    hole.open = False
    assert len(pipeline.rows()) == before + 294
    state = pipeline.state()
    assert state is not None
    assert state.pending is not None
    assert len(state.pending.blocks) == 2


def test_restored_from_earlier(
    tmp_path: Path,
    kafka: LocalKafka,
    drivers: type[Drivers],
    clickhouse: LocalClickHouse,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
) -> None:
    """From before the last commit, with a plan that has long landed; then from before a plan of which half has landed."""
    go, hole = tmp_path / "go", Hole()
    with (
        Proxy(clickhouse.http_port) as proxy,
        scene(
            tmp_path,
            kafka,
            clickhouse,
            new_topic(partitions=1),
            new_table(),
            url=proxy.url(clickhouse.url),
            partitions=1,
            drivers=drivers,
        ) as pipeline,
    ):
        backup = tmp_path / "backup"
        pipeline.feed.more(1000, bad_every=50)
        run = pipeline.start("record.before", go=go)
        run.wait_reached()
        shutil.copy(pipeline.ledger_file, backup)
        go.touch()
        assert run.finish() == 0, run.tail()
        pipeline.exact()

        # The backup holds batch 1 as pending and knows nothing of batch 2; both are in the table.
        shutil.copy(backup, pipeline.ledger_file)
        pipeline.feed.more(100, bad_every=50)
        pipeline.drivers.drain()
        pipeline.exact()

        # Nobody waits for this deadline: the ledger that knows of it is replaced.
        pipeline.edit("deadline: 1s", "deadline: 60s")
        shutil.copy(pipeline.ledger_file, backup)
        proxy.choose = hole
        leave_a_hole(pipeline, hole)
        shutil.copy(backup, pipeline.ledger_file)
        run = pipeline.drivers.drain()
        assert "reconcile" in [event["kind"] for event in run.events() if event["event"] == "batch"]
        pipeline.exact()


def test_deleted(
    drivers: type[Drivers],
    tmp_path: Path,
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
) -> None:
    """Deleted with a hole behind it: `latest` is refused, another cut is refused until it is filled, and then all is exact."""
    hole, topic = Hole(), new_topic(partitions=1)
    with (
        Proxy(clickhouse.http_port, hole) as proxy,
        scene(
            tmp_path,
            kafka,
            clickhouse,
            topic,
            new_table(),
            url=proxy.url(clickhouse.url),
            partitions=1,
            drivers=drivers,
        ) as pipeline,
    ):
        pipeline.edit("deadline: 1s", "deadline: 10s" if drivers is PlainDrivers else "deadline: 60s")
        leave_a_hole(pipeline, hole)
        landed = pipeline.rows()

        pipeline.ledger_file.unlink()
        pipeline.edit(f"topics: [{topic}],", f"topics: [{topic}], start: latest,")
        refused(pipeline, "TargetAhead")
        assert pipeline.rows() == landed

        pipeline.ledger_file.unlink()
        pipeline.edit("start: latest", "start: earliest")
        pipeline.edit("block_rows: 300", "block_rows: 600")
        refused(pipeline, "PartialPresence")
        assert pipeline.rows() == landed

        fill(pipeline)
        pipeline.drivers.drain()
        pipeline.exact()

        # And deleted again, when all of it is there: nothing is written twice, and new records follow.
        pipeline.ledger_file.unlink()
        pipeline.feed.more(100, bad_every=50)
        pipeline.drivers.drain()
        pipeline.exact()


def refused(pipeline: Scene, name: str) -> None:
    run = pipeline.drivers.start()
    assert run.finish() == Halt.exit_code, run.tail()
    assert f"{name}:" in run.log.read_text()


def fill(pipeline: Scene) -> None:
    """An operator says that what is missing shall be written."""
    done = subprocess.run(
        [sys.executable, "-m", "landonce", "state", "fill", str(pipeline.site.file), "--yes"],
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_two_drivers_at_the_same_moment(
    tmp_path: Path,
    kafka: LocalKafka,
    drivers: type[Drivers],
    clickhouse: LocalClickHouse,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
) -> None:
    """On a ledger that neither of them has made yet. One of them has the pipeline, and the other leaves."""
    go = tmp_path / "go"
    with scene(tmp_path, kafka, clickhouse, new_topic(partitions=2), new_table(), drivers=drivers) as pipeline:
        pipeline.feed.more(1200, bad_every=50)
        runs = [pipeline.start("acquire.before", go=go) for _ in range(2)]
        for run in runs:
            run.wait_reached()
        assert not pipeline.ledger_file.exists()
        go.touch()
        codes = sorted(run.finish() for run in runs)
        assert codes == [0, Fenced.exit_code], "\n".join(run.tail() for run in runs)
        state = pipeline.state()
        assert state is not None
        assert (state.epoch, state.pending) == (2, None)
        pipeline.exact()


@pytest.fixture
def postgres() -> Iterator[LocalPostgres]:
    with open_folder() as folder, LocalPostgres(folder / "postgres") as server:
        yield server


def test_postgres_is_killed_and_restarted_during_a_run(
    tmp_path: Path,
    kafka: LocalKafka,
    drivers: type[Drivers],
    clickhouse: LocalClickHouse,
    postgres: LocalPostgres,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
) -> None:
    """The ledger's server is away from the moment the plan is durable until after its rows have landed."""
    go = tmp_path / "go"
    with scene(
        tmp_path, kafka, clickhouse, new_topic(partitions=2), new_table(), master="local[2]", drivers=drivers
    ) as pipeline:
        pipeline.edit("ledger: {sqlite: ledger}", f'ledger: {{postgres: "{postgres.url}"}}')
        pipeline.feed.more(1200, bad_every=50)
        run = pipeline.start("commit.before", go=go)
        run.wait_reached()
        postgres.kill()
        go.touch()
        time.sleep(2)
        assert run.process.poll() is None, run.tail()
        postgres.start()
        postgres.wait_ready()
        assert run.finish() == 0, run.tail()
        pipeline.exact()
        assert not pipeline.ledger_file.exists()
