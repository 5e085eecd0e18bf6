"""The page on Iceberg is true."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import run_page

from landonce.local import LocalKafka

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("spark", [False, pytest.param(True, marks=pytest.mark.long)], ids=["plain", "spark"])
def test_the_page_is_true(kafka: LocalKafka, tmp_path: Path, spark: bool) -> None:
    ran = run_page(
        "iceberg.md",
        kafka,
        ("events", "customers"),
        tmp_path,
        spark=spark,
        needs_spark="run customers.yaml",
        CATALOG_CREDENTIAL="a:b",
    )
    assert ran >= 15
