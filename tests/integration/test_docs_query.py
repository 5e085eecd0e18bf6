"""The page on users' own queries is true."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pages import run_page

from landonce.local import LocalKafka

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("together", [True, pytest.param(False, marks=pytest.mark.long)], ids=["together", "apart"])
def test_the_page_is_true(kafka: LocalKafka, tmp_path: Path, together: bool) -> None:
    """In one process of `spark-submit`; in `make test-long`, in one for each command."""
    spark = {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    topics = ("visits", "visits.avro", "visits.csv", "visits.protobuf")
    assert run_page("query.md", kafka, topics, tmp_path, together=together, **spark) == 8
