"""The page on Iceberg is true."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import run_page
from s3_server import ACCESS_KEY, SECRET_KEY, LocalS3

from landonce.local import LocalKafka

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("spark", [False, pytest.param(True, marks=pytest.mark.long)], ids=["plain", "spark"])
def test_the_page_is_true(kafka: LocalKafka, s3: LocalS3, tmp_path: Path, spark: bool) -> None:
    ran = run_page(
        "iceberg.md",
        kafka,
        ("events", "customers"),
        tmp_path,
        spark=spark,
        needs_spark="run customers.yaml",
        CATALOG_CREDENTIAL="a:b",
        PWD=str(tmp_path),
        S3_ENDPOINT=s3.endpoint,
        S3_KEY=ACCESS_KEY,
        S3_SECRET=SECRET_KEY,
    )
    assert ran >= 18
