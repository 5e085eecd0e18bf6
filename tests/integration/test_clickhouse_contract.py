"""ClickHouse against the public contract of a deduplicating sink, on a real server."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from urllib.parse import quote

import pytest
from clickhouse_tables import Proxy

import landonce
from landonce.local import LocalClickHouse, LocalUser
from landonce.sinks.clickhouse.sink import ClickHouseSink
from landonce.testing import SINK_CASES, Row, SinkContract, SinkSite, prove

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

    @property
    def url(self) -> str:
        return self.server.url

    def sink(self) -> ClickHouseSink:
        url = self.url.replace(f":{self.server.http_port}/", f":{self.proxy.port}/")
        return landonce.clickhouse(url, self.table).to_sink("contract")

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
    def unreachable(self) -> Iterator[None]:
        self.proxy.silent = True
        yield
        self.proxy.silent = False


class TestClickHouse(SinkContract):
    @pytest.fixture
    def site(self, clickhouse: LocalClickHouse, new_table: Callable[[], str]) -> Iterator[SinkSite]:
        site = Table(clickhouse, new_table())
        yield site
        site.proxy.close()


USER = LocalUser("pays", "a word that nobody may read")
VERSIONED = """CREATE TABLE IF NOT EXISTS {} (id Int64, word Nullable(String), _topic LowCardinality(String), _partition Int32, _offset Int64)
ENGINE = ReplacingMergeTree(_offset) ORDER BY (_topic, _partition, _offset) SETTINGS non_replicated_deduplication_window = 1000"""


class OfAUser(Table):
    """One that is opened with a password."""

    secret = quote(USER.password, safe="")

    @property
    def url(self) -> str:
        return self.server.url_for(USER)


class Replacing(Table):
    """A table that somebody made: of rows with the same coordinates its readers see one."""

    moments = 4

    def sink(self) -> ClickHouseSink:
        self.server.ask(VERSIONED.format(self.table))
        return super().sink()

    def held(self) -> list[Row]:
        asked = f"SELECT _topic, _partition, _offset, id, word FROM {self.table} FINAL FORMAT JSONCompactEachRow"
        settings = "SETTINGS output_format_json_quote_64bit_integers = 0"
        return [Row(*json.loads(line)) for line in self.server.ask(f"{asked} {settings}", timeout=120).splitlines()]


@pytest.fixture(scope="module")
def of_a_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalClickHouse]:
    with LocalClickHouse(tmp_path_factory.mktemp("of-a-user"), extra_users=[USER]) as server:
        yield server


@pytest.mark.parametrize("secret", [USER.password, quote(USER.password, safe="")], ids=["plain", "quoted"])
def test_no_password_is_shown(of_a_user: LocalClickHouse, secret: str, new_table: Callable[[], str]) -> None:
    site = OfAUser(of_a_user, new_table())
    site.secret = secret
    prove(SINK_CASES["what_is_acknowledged_is_there"], site)
    assert not SINK_CASES["no_secret_is_shown"].excused(site)
    prove(SINK_CASES["no_secret_is_shown"], site)
    site.proxy.close()


@pytest.mark.parametrize(
    "name",
    [
        "a_row_that_is_sent_twice_becomes_one",
        "a_probe_names_exactly_the_missing_rows",
        "after_a_crash_at_any_line_a_block_lands_once",
    ],
)
def test_a_replacing_table_keeps_the_contract(
    clickhouse: LocalClickHouse, name: str, new_table: Callable[[], str]
) -> None:
    site = Replacing(clickhouse, new_table())
    assert not SINK_CASES[name].excused(site)
    prove(SINK_CASES[name], site)
    site.proxy.close()
