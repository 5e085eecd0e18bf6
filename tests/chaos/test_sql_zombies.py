"""Drivers that are paused with a transaction in their hands, two drivers at once, and a server that is killed under one."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cutting_proxy import Cut, CuttingProxy
from scene import wait_for, wake
from sql_scene import Base, base, postgres_judge, sqlite_judge

from landonce.errors import Fenced
from landonce.local import LocalKafka
from landonce.local.postgres import LocalPostgres

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def pipeline(
    tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str], new_database: Callable[[], str]
) -> Iterator[Base]:
    url = new_database()
    with base(tmp_path, kafka, new_topic(partitions=2), url, postgres_judge(url)) as made:
        yield made


def fenced_for_nothing(pipeline: Base, *zombies: object) -> None:
    """They wake, one by one, and change nothing at all."""
    pipeline.exact()
    before = pipeline.traces()
    for zombie in zombies:
        wake(zombie)
        assert pipeline.traces() == before, zombie.tail()
    pipeline.exact()


def test_paused_before_and_in_a_transaction(pipeline: Base) -> None:
    """One stands before its first flip, one has written the rows of a block and not committed them: that session is ended."""
    pipeline.feed.more(600, bad_every=50)
    before = pipeline.pause_at("flip.before")
    inside = pipeline.pause_at("rows.after")
    assert pipeline.count() == 0
    assert {state for _, _, state in pipeline.blocks()} == {"BEFORE"}
    pipeline.drivers.drain()
    fenced_for_nothing(pipeline, before, inside)


def test_paused_between_two_blocks_and_before_it_records(pipeline: Base) -> None:
    pipeline.feed.more(600, bad_every=50)
    between = pipeline.pause_at("landed.after")
    assert sorted(state for _, _, state in pipeline.blocks()) == ["AFTER", "BEFORE"]
    recording = pipeline.pause_at("record.before")
    assert pipeline.complete()
    pipeline.drivers.drain()
    fenced_for_nothing(pipeline, between, recording)


def test_two_that_start_at_the_same_moment(pipeline: Base, tmp_path: Path) -> None:
    """One of them has the pipeline, and the other hears so, whichever it is."""
    go = tmp_path / "go"
    pipeline.feed.more(600, bad_every=50)
    both = [pipeline.start("acquire.before", go=go, once=False) for _ in range(2)]
    for run in both:
        run.wait_reached()
    go.touch()
    wait_for(lambda: any(run.process.poll() is not None for run in both), "one of them is fenced")
    [loser] = [run for run in both if run.process.poll() is not None]
    [winner] = [run for run in both if run is not loser]
    assert loser.finish() == Fenced.exit_code, loser.tail()
    wait_for(pipeline.complete, "the other one lands everything", winner, every=0.2)
    assert winner.terminate() == 0, winner.tail()
    pipeline.exact()


def test_the_server_is_killed_in_the_middle_of_a_transaction(
    tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str]
) -> None:
    """The rows of a block are written and not committed, and go with the server. The worker's COMMIT has no answer: it looks at
    the block's row, and writes the block again."""
    folder, go = Path(tempfile.mkdtemp(prefix="landonce-test-")), tmp_path / "go"
    folder.chmod(0o755)
    try:
        with LocalPostgres(folder / "postgres") as server:
            judge = postgres_judge(server.url)
            with base(tmp_path, kafka, new_topic(partitions=2), server.url, judge) as pipeline:
                pipeline.feed.more(600, bad_every=50)
                run = pipeline.start("rows.after", go=go)
                run.wait_reached()
                server.kill()
                server.start()
                server.wait_ready(60)
                assert pipeline.count() == 0
                go.touch()
                assert run.finish() == 0, run.tail()
                pipeline.exact()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize(
    "cut",
    [Cut.ANSWERED, *(pytest.param(each, marks=pytest.mark.long) for each in (Cut.REQUEST, Cut.LATE))],
    ids=lambda cut: cut.name,
)
def test_a_commit_is_cut_after_it_was_sent(
    tmp_path: Path,
    kafka: LocalKafka,
    new_topic: Callable[..., str],
    new_database: Callable[[], str],
    postgres: LocalPostgres,
    cut: Cut,
) -> None:
    """Of a whole run: the worker's COMMIT is on its way, and nobody answers. Whether it held is in the block's row."""
    url, go = new_database(), tmp_path / "go"
    proxy = CuttingProxy(postgres.port)
    try:
        cuttable = url.replace(f":{postgres.port}/", f":{proxy.port}/")
        with base(tmp_path, kafka, new_topic(partitions=2), cuttable, postgres_judge(url)) as pipeline:
            pipeline.feed.more(600, bad_every=50)
            run = pipeline.start("rows.after", go=go)
            run.wait_reached()
            assert pipeline.count() == 0
            proxy.arm(cut)
            go.touch()
            assert run.finish() == 0, run.tail()
            assert proxy.cuts == 1
            pipeline.exact()
            assert pipeline.blocks() == []
    finally:
        proxy.close()


def test_a_zombie_of_a_file(tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str]) -> None:
    """In SQLite one that is paused in a transaction holds the file; this one is paused before."""
    judge = sqlite_judge(tmp_path / "target.db")
    with base(tmp_path, kafka, new_topic(partitions=2), "sqlite:///target.db", judge) as pipeline:
        pipeline.feed.more(600, bad_every=50)
        zombie = pipeline.pause_at("flip.before")
        pipeline.drivers.drain()
        fenced_for_nothing(pipeline, zombie)
