"""The same pipelines in a catalog on PostgreSQL and in a real REST catalog: files, a merge by Spark, and format version 3."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from iceberg_servers import LocalRestCatalog
from jvms import iceberg_session
from pyspark.sql import SparkSession
from small_lakes import SmallLake, once

from landonce.local import LocalKafka
from landonce.local.postgres import LocalPostgres

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[SparkSession]:
    session = iceberg_session({})
    yield session
    session.stop()


@pytest.fixture(params=["postgres", "rest"])
def lake(
    request: pytest.FixtureRequest,
    kafka: LocalKafka,
    rest_catalog: LocalRestCatalog,
    postgres: LocalPostgres,
    new_topic: Callable[..., str],
    tmp_path: Path,
) -> SmallLake:
    if request.param == "rest":
        properties = {"type": "rest", "uri": rest_catalog.uri}
    else:
        properties = {"type": "sql", "uri": postgres.url, "warehouse": f"file://{tmp_path}/warehouse"}
    return SmallLake(kafka, tmp_path, new_topic(), properties=properties)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A table that no other test uses: the catalogs are shared."""
    return f"db.t{abs(hash(request.node.name)) % 10**9}"


def test_files_land_and_a_rollback_is_followed(lake: SmallLake, name: str) -> None:
    lake.write_file({"table": name, "create": True, "partition_by": ["bucket(2, id)"]})
    for first in (0, 5):
        lake.produce([{"id": each} for each in range(first, first + 5)])
        lake.run()
    assert lake.offsets(name) == once(10)
    lake.rollback(name, 1)
    assert lake.offsets(name) == once(5)
    lake.run()
    assert lake.offsets(name) == once(10)


@pytest.mark.parametrize("version", [pytest.param(2, marks=pytest.mark.long), 3])
def test_changes_are_merged_by_spark(lake: SmallLake, name: str, version: int) -> None:
    changes = {"identity": "id", "changes": {"mode": "operation", "field": "kind", "insert": ["c"], "delete": ["x"]}}
    lake.write_file({"table": name, "create": True, "properties": {"format-version": version}, **changes})
    lake.produce([{"id": 1, "kind": "c"}, {"id": 2, "kind": "c"}, {"id": 3, "kind": "c"}])
    lake.run()
    lake.produce([{"id": 2, "kind": "x"}, {"id": 3, "kind": "u"}, {"id": 4, "kind": "?"}])
    totals = lake.run()
    assert (totals.landed, totals.dead_lettered) == (2, 1)
    assert lake.table(name).metadata.format_version == version
    assert Counter((row["id"], row["kind"]) for row in lake.rows(name)) == Counter([(1, "c"), (3, "u")])


@pytest.mark.parametrize("version", [pytest.param(2, marks=pytest.mark.long), 3])
def test_a_branch_is_made_on_a_table_that_has_no_snapshot(lake: SmallLake, name: str, version: int) -> None:
    lake.write_file({"table": name, "create": True, "branch": "audit", "properties": {"format-version": version}})
    lake.produce([{"id": 1}])
    assert lake.run().landed == 1
    lake.produce([{"id": 2}])
    assert lake.run().landed == 1
    assert lake.offsets(name, "audit") == once(2)
    assert lake.offsets(name) == Counter()
