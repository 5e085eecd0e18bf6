"""Tables in object storage: a real S3 API over HTTP, drivers that are killed everywhere, and a server that is killed.

An object is there whole, or it is not, and nothing is renamed. What a kill leaves is an object that no snapshot names.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from chain import Chain, Kill
from harness import Drivers
from iceberg_scene import Lake, lake
from plain_driver import FirstWithSpark, PlainDrivers
from s3_server import BUCKET, LocalS3
from scene import wait_for
from test_iceberg_kills import BATCHES, CHANGED, EVOLVING, FRESH, WITH_SPARK, extended

from landonce.local import LocalKafka

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(900)]


def in_bucket(
    folder: Path, kafka: LocalKafka, topic: str, s3: LocalS3, drivers: type[Drivers], **more: object
) -> AbstractContextManager[Lake]:
    catalog = s3.catalog(folder / "catalog.db", folder.name)
    return lake(folder, kafka, topic, catalog=catalog, drivers=drivers, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("drivers", "kills"),
    [
        pytest.param(PlainDrivers, CHANGED, id="plain"),
        pytest.param(PlainDrivers, FRESH + BATCHES + EVOLVING, id="plain-all", marks=pytest.mark.long),
        pytest.param(FirstWithSpark, WITH_SPARK, id="spark", marks=pytest.mark.long),
    ],
)
def test_killed_at_every_step(
    tmp_path: Path,
    kafka: LocalKafka,
    s3: LocalS3,
    new_topic: Callable[..., str],
    drivers: type[Drivers],
    kills: list[Kill],
) -> None:
    batch = "interval: 0s, max_rows: 40, block_rows: 16"
    with in_bucket(tmp_path, kafka, new_topic(partitions=2), s3, drivers, batch=batch, evolve=True) as pipeline:
        chain = Chain(pipeline)
        chain.suffer([each for each in kills if each not in EVOLVING])
        pipeline.feed.extra = "later"
        if EVOLVING[0] in kills:
            chain.suffer(EVOLVING)
        else:
            pipeline.feed.more(16)
        chain.settled()
        extended(pipeline)
        table = pipeline.table()
        written = {each.name for each in (s3.objects / tmp_path.name).rglob("landonce-chaos-*.parquet")}
        named = {task.file.file_path for task in table.scan().plan_files()}
        assert table.location().startswith(f"s3://{BUCKET}/{tmp_path.name}")
        assert {each.rpartition("/")[2] for each in named} <= written
        if drivers is PlainDrivers:
            assert len(written) > len(named), "no driver died with files that were not committed"


def test_the_server_is_killed_in_the_middle(
    tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str], drivers: type[Drivers]
) -> None:
    """Once when a batch is written and not committed, and once under load, whatever is on its way then."""
    go = tmp_path / "go"
    with (
        LocalS3(tmp_path / "s3") as server,
        in_bucket(
            tmp_path,
            kafka,
            new_topic(partitions=2),
            server,
            drivers,
            batch="interval: 0s, max_rows: 60, block_rows: 30",
        ) as pipeline,
    ):
        pipeline.edit("stall: 60s", "stall: 180s")
        pipeline.feed.more(240, bad_every=50)
        # Taking and binding, one batch, and the second stands at the door.
        run = pipeline.start("attempt.before", skip=3, go=go, once=False)
        run.wait_reached()
        before = pipeline.count()
        server.kill()
        go.touch()
        wait_for(lambda: "trouble" in run.log.read_text(), "the driver notices", run)
        server.start()
        server.wait_ready()
        wait_for(lambda: pipeline.count() > before, "records land again", run, every=0.2)
        pipeline.feed.more(600, bad_every=50)
        server.kill()
        time.sleep(2)
        server.start()
        server.wait_ready()
        wait_for(pipeline.complete, "everything lands", run, every=0.2)
        assert run.terminate() == 0, run.tail()
        pipeline.exact()
