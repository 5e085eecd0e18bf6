"""ClickHouse against the public contract of a deduplicating sink, on a real server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

import pytest

from landonce.local import LocalClickHouse
from landonce.testing import Row, SinkContract, SinkSite
from landonce.write.clickhouse import ClickHouseSink

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


class Table(SinkSite):
    """One table of the session's server. Silence has tests of its own (`test_clickhouse_sink`), with a proxy."""

    moments = 12

    def __init__(self, server: LocalClickHouse, table: str) -> None:
        self.server = server
        self.table = table

    def sink(self) -> ClickHouseSink:
        return ClickHouseSink(self.server.url, self.table, "contract")

    def held(self) -> list[Row]:
        asked = f"SELECT _topic, _partition, _offset, id, word FROM {self.table} FORMAT JSONCompactEachRow"
        settings = "SETTINGS output_format_json_quote_64bit_integers = 0"
        return [Row(*json.loads(line)) for line in self.server.ask(f"{asked} {settings}", timeout=120).splitlines()]

    def remove(self, rows: Iterable[Row]) -> None:
        offsets = ", ".join(str(row.offset) for row in rows)
        self.server.ask(
            f"ALTER TABLE {self.table} DELETE WHERE _offset IN ({offsets}) SETTINGS mutations_sync = 2", timeout=120
        )


class TestClickHouse(SinkContract):
    @pytest.fixture
    def site(self, clickhouse: LocalClickHouse, new_table: Callable[[], str]) -> SinkSite:
        return Table(clickhouse, new_table())
