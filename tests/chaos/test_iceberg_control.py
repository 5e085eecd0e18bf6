"""The harness bites: the same kills and the same zombies without landonce make duplicates in an Iceberg table."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import iceberg_oracle
import iceberg_plain
import oracle
import pytest
from iceberg_scene import Lake, lake
from plain_driver import PlainDrivers
from scene import thaw

from landonce.local import LocalKafka

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(240)]

_BATCH = 2 * iceberg_plain.EACH


@contextmanager
def plain(folder: Path, kafka: LocalKafka, topic: str) -> Iterator[Lake]:
    """A table, and a writer without landonce."""
    with lake(folder, kafka, topic) as pipeline:
        [name] = pipeline.tables
        iceberg_oracle.make(pipeline.catalog, name)
        script = (sys.executable, iceberg_plain.__file__, str(folder), name, kafka.bootstrap_servers, topic)
        with PlainDrivers(pipeline.site, command=script) as pipeline.drivers:
            yield pipeline


def twice(pipeline: Lake) -> int:
    """How many rows are there twice, where none is missing."""
    [found] = pipeline.landed().values()
    verdict = oracle.compare(oracle.expected_rows(pipeline.feed.produced), found)
    assert not verdict.missing, verdict
    assert not verdict.exact or not verdict.surplus
    assert len(oracle.twice(found)) == verdict.surplus.total()
    return verdict.surplus.total()


def test_killed_between_the_append_and_its_offsets(
    tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str]
) -> None:
    with plain(tmp_path, kafka, new_topic(partitions=2)) as pipeline:
        pipeline.feed.more(3 * _BATCH)
        pipeline.drivers.kill_at("attempt.before", skip=1)
        pipeline.drivers.kill_at("attempt.after")
        pipeline.drivers.drain()
        assert twice(pipeline) == _BATCH, "one batch was committed, and committed again because nobody recorded it"


def test_a_zombie_is_not_stopped_by_the_catalog_alone(
    tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str]
) -> None:
    """Its commit conflicts with the successor's, is rebuilt on the new head by the library, and lands."""
    with plain(tmp_path, kafka, new_topic(partitions=2)) as pipeline:
        pipeline.feed.more(_BATCH)
        zombie = pipeline.pause_at("attempt.before")
        pipeline.drivers.drain()
        pipeline.exact()
        thaw(zombie)
        assert zombie.finish() == 0, zombie.tail()
        assert twice(pipeline) == _BATCH


def test_the_oracle_sees_loss_copies_and_files_named_twice(tmp_path: Path) -> None:
    catalog = iceberg_oracle.embedded(tmp_path)
    table = iceberg_oracle.make(catalog, "db.events")
    records = [oracle.Produced("t", 0, number, '{"id": 1, "word": "x"}') for number in range(3)]
    rows = iceberg_oracle.strangers(table, 0, 3).to_pylist()
    for place, row in enumerate(rows):
        row.update(_topic="t", _offset=max(place, 1), id=1, word="x", amount=None)
    table.append(iceberg_oracle.pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))
    found = iceberg_oracle.rows(catalog.load_table("db.events"))
    verdict = oracle.compare(oracle.expected_rows(records), found)
    assert [row[:3] for row in verdict.missing] == [("t", 0, 0)]
    assert [row[:3] for row in verdict.surplus] == [("t", 0, 1)]
    assert oracle.twice(found) == [("t", 0, 1)]
    [path] = [task.file.file_path for task in table.scan().plan_files()]
    assert iceberg_oracle.referenced_twice(table) == []
    table.add_files([path], check_duplicate_files=False)
    assert iceberg_oracle.referenced_twice(table) == [path]
