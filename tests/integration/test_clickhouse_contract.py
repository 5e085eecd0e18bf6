"""ClickHouse against the public contract of a deduplicating sink, on a real server."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pytest
from clickhouse_tables import Proxy

from landonce.local import LocalClickHouse
from landonce.testing import Row, SinkContract, SinkSite
from landonce.write.clickhouse import ClickHouseSink

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


class Silencer(Proxy):
    """Passes everything on, or hangs up."""

    silent = False

    def _serve(self, client: socket.socket) -> None:
        if self.silent:
            client.close()
        else:
            super()._serve(client)


class Table(SinkSite):
    """One table of the session's server. The sink reaches it through a proxy, the judge does not."""

    moments = 12

    def __init__(self, server: LocalClickHouse, table: str) -> None:
        self.server = server
        self.table = table
        self.proxy = Silencer(server.http_port, lambda answer: answer)

    def sink(self) -> ClickHouseSink:
        url = self.server.url.replace(f":{self.server.http_port}/", f":{self.proxy.port}/")
        return ClickHouseSink(url, self.table, "contract")

    def held(self) -> list[Row]:
        asked = f"SELECT _topic, _partition, _offset, id, word FROM {self.table} FORMAT JSONCompactEachRow"
        settings = "SETTINGS output_format_json_quote_64bit_integers = 0"
        return [Row(*json.loads(line)) for line in self.server.ask(f"{asked} {settings}", timeout=120).splitlines()]

    def remove(self, rows: Iterable[Row]) -> None:
        offsets = ", ".join(str(row.offset) for row in rows)
        self.server.ask(
            f"ALTER TABLE {self.table} DELETE WHERE _offset IN ({offsets}) SETTINGS mutations_sync = 2", timeout=120
        )

    @contextmanager
    def away(self) -> Iterator[None]:
        self.proxy.silent = True
        yield
        self.proxy.silent = False


class TestClickHouse(SinkContract):
    @pytest.fixture
    def site(self, clickhouse: LocalClickHouse, new_table: Callable[[], str]) -> Iterator[SinkSite]:
        site = Table(clickhouse, new_table())
        yield site
        site.proxy.close()
