"""The page on ClickHouse is true."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import run_page

from landonce.local import LocalClickHouse, LocalKafka

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("spark", [False, pytest.param(True, marks=pytest.mark.long)], ids=["plain", "spark"])
def test_the_page_is_true(kafka: LocalKafka, clickhouse: LocalClickHouse, tmp_path: Path, spark: bool) -> None:
    for table in ("customers", "balances", "shop_clicks", "shop_orders", "shop_returns", "moved", "connect_state"):
        clickhouse.ask(f"DROP TABLE IF EXISTS {table} SYNC")
    topics = ("customers", "balances", "shop-clicks", "shop-orders-eu", "shop-orders-us", "moved")
    assert run_page("clickhouse.md", kafka, topics, tmp_path, spark=spark, CLICKHOUSE=clickhouse.url) >= 18
    clickhouse.ask("DROP TABLE connect_state SYNC")
