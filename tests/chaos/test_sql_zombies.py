"""Drivers that are paused with a transaction in their hands, two drivers at once, and a server that is killed under one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cutting_proxy import Cut, CuttingProxy
from harness import Drivers
from open_folder import open_folder
from scene import fenced_for_nothing, one_of_two
from sql_scene import Base, base, postgres_judge, sqlite_judge

from landonce.local import LocalKafka
from landonce.local.postgres import LocalPostgres

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def pipeline(
    tmp_path: Path,
    kafka: LocalKafka,
    drivers: type[Drivers],
    new_topic: Callable[..., str],
    new_database: Callable[[], str],
) -> Iterator[Base]:
    url = new_database()
    with base(tmp_path, kafka, new_topic(partitions=2), url, postgres_judge(url), drivers=drivers) as made:
        yield made


def test_paused_before_and_in_a_transaction(pipeline: Base) -> None:
    """One stands before its first flip, one has written the rows of a block and not committed them: that session is ended."""
    pipeline.feed.more(600, bad_every=50)
    before = pipeline.pause_at("flip.before")
    inside = pipeline.pause_at("rows.after")
    assert pipeline.count() == 0
    assert {state for _, _, state in pipeline.blocks()} == {"BEFORE"}
    pipeline.drivers.drain()
    fenced_for_nothing(pipeline, before, inside)


@pytest.mark.long
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
    pipeline.feed.more(600, bad_every=50)
    winner = one_of_two(pipeline, tmp_path / "go")
    assert winner.terminate() == 0, winner.tail()
    pipeline.exact()


def test_the_server_is_killed_in_the_middle_of_a_transaction(
    tmp_path: Path, kafka: LocalKafka, drivers: type[Drivers], new_topic: Callable[..., str]
) -> None:
    """The rows of a block are written and not committed, and go with the server. The worker's COMMIT has no answer: it looks at
    the block's row, and writes the block again."""
    go = tmp_path / "go"
    with open_folder() as folder, LocalPostgres(folder / "postgres") as server:
        judge = postgres_judge(server.url)
        with base(tmp_path, kafka, new_topic(partitions=2), server.url, judge, drivers=drivers) as pipeline:
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


@pytest.mark.parametrize(
    "cut",
    [Cut.ANSWERED, *(pytest.param(each, marks=pytest.mark.long) for each in (Cut.REQUEST, Cut.LATE))],
    ids=lambda cut: cut.name,
)
def test_a_commit_is_cut_after_it_was_sent(
    tmp_path: Path,
    kafka: LocalKafka,
    drivers: type[Drivers],
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
        with base(tmp_path, kafka, new_topic(partitions=2), cuttable, postgres_judge(url), drivers=drivers) as pipeline:
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


def test_a_zombie_of_a_file(
    tmp_path: Path, kafka: LocalKafka, drivers: type[Drivers], new_topic: Callable[..., str]
) -> None:
    """In SQLite one that is paused in a transaction holds the file; this one is paused before."""
    judge = sqlite_judge(tmp_path / "target.db")
    with base(tmp_path, kafka, new_topic(partitions=2), "sqlite:///target.db", judge, drivers=drivers) as pipeline:
        pipeline.feed.more(600, bad_every=50)
        zombie = pipeline.pause_at("flip.before")
        pipeline.drivers.drain()
        fenced_for_nothing(pipeline, zombie)
