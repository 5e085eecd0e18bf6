"""A table is raised to format version 3 under a driver whose Spark was started without Iceberg's runtime, as it is for Arrow's files."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from small_lakes import Heard, SmallLake, once

from landonce.config.model import Spark
from landonce.engine.spark.session import open_session
from landonce.errors import ConfigError
from landonce.local import LocalKafka
from landonce.protocol.steps import Step

pytestmark = [pytest.mark.integration, pytest.mark.slow]
SPARK_WORKERS = True
OWN_JVM = True


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[SparkSession]:
    session = open_session("test", Spark(master="local[2]"), expressions=False)
    yield session
    session.stop()


class Raises(Heard):
    """Somebody who gives the table another format version before the first commit."""

    def __init__(self, lake: SmallLake) -> None:
        super().__init__()
        self._lake = lake

    def step(self, effect: object) -> None:
        table = self._lake.table("db.t")
        if getattr(effect, "step", None) is not Step.COMMIT or table.metadata.format_version == 3:
            return
        old = table.metadata_location.removeprefix("file://")
        new = f"{old.removesuffix('.metadata.json')}-v3.metadata.json"
        Path(new).write_text(json.dumps({**json.loads(Path(old).read_text()), "format-version": 3, "next-row-id": 0}))
        with sqlite3.connect(self._lake.folder / "lake/catalog.db") as database:
            database.execute("UPDATE iceberg_tables SET metadata_location = ?", (f"file://{new}",))


def test_the_run_ends_with_a_sentence_and_nothing_is_lost(
    kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    lake = SmallLake(kafka, tmp_path, new_topic(partitions=1))
    lake.write_file({"table": "db.t", "create": True})
    lake.produce([{"id": 0}])
    lake.run()
    lake.produce([{"id": 1}])
    with pytest.raises(ConfigError, match="started without Iceberg's runtime, and a table needs its writer") as raised:
        lake.run(Raises(lake))
    assert raised.value.safe == "Nothing was written to it."
    assert "landonce run {file}" in raised.value.command
    assert lake.offsets("db.t") == once(1)
