"""The page on nested JSON is true."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import run_page

from landonce.local import LocalClickHouse, LocalKafka

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]


def test_the_page_is_true(kafka: LocalKafka, clickhouse: LocalClickHouse, tmp_path: Path) -> None:
    address = clickhouse.url.partition("@")[2].partition("/")[0]
    assert run_page("json.md", kafka, ("purchases",), tmp_path, spark=False, CLICKHOUSE=address) == 5
