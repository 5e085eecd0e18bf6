"""ClickHouse behind TLS, with a certificate whose authority the system does not know."""

from __future__ import annotations

import re
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from clickhouse_tables import Proxy, block, covering, insert, make, parts

import landonce
from landonce.errors import ConfigError, TargetRefused
from landonce.local import LocalClickHouse
from landonce.protocol.settle import Reply
from landonce.sinks.contract import DeduplicatingSink
from landonce.sinks.parts import open_parts
from landonce.sinks.pipeline_file import parse

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


class Ending(Proxy):
    """Ends TLS before a server, as a proxy in a company does. Its certificate is signed by itself."""

    def __init__(self, upstream: int, folder: Path) -> None:
        self.certificate, key = folder / "authority.pem", folder / "key.pem"
        made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=landonce"]
        made += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(self.certificate)]
        subprocess.run(made, check=True, capture_output=True)
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(self.certificate, key)
        super().__init__(upstream, lambda data: data)

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError):
            super()._serve(self._tls.wrap_socket(client, server_side=True))


@pytest.fixture
def ending(clickhouse: LocalClickHouse, tmp_path: Path) -> Iterator[Ending]:
    made = Ending(clickhouse.http_port, tmp_path)
    yield made
    made.close()


def secure(clickhouse: LocalClickHouse, ending: Ending) -> str:
    return re.sub(r":\d+/", f":{ending.port}/", clickhouse.url).replace("http://", "https://")


def test_a_file_names_the_authority(
    clickhouse: LocalClickHouse, new_table: Callable[[], str], ending: Ending, tmp_path: Path
) -> None:
    """Relative to the file; and workers need no file of it."""
    table = new_table()
    make(clickhouse, table, "id Int64")
    options = {"url": secure(clickhouse, ending), "table": table, "ca_cert": "authority.pem", "compression": "zstd"}
    source = {"kafka": {"bootstrap_servers": "127.0.0.1:1", "topics": ["t"]}}
    text = yaml.safe_dump({"pipeline": "orders", "source": source, "sink": {"clickhouse": options}})
    sink = open_parts(parse(text, tmp_path / "p.yaml")).sink
    assert isinstance(sink, DeduplicatingSink)
    ending.certificate.rename(tmp_path / "elsewhere.pem")
    rows = block({"id": pa.array(range(10), pa.int64())})
    assert sink.writer().send(rows, insert(sink.target(), "a")) is Reply.ACKNOWLEDGED
    assert parts(clickhouse, table) == [10]
    assert sink.writer().probe(rows, covering(rows)).presence.complete


def test_a_query_names_it_too(clickhouse: LocalClickHouse, new_table: Callable[[], str], ending: Ending) -> None:
    table = new_table()
    make(clickhouse, table, "id Int64")
    url = secure(clickhouse, ending)
    assert landonce.clickhouse(url, table, ca_cert=ending.certificate).to_sink("q").target().exists()


def test_without_it_the_server_is_not_trusted(
    clickhouse: LocalClickHouse, new_table: Callable[[], str], ending: Ending
) -> None:
    sink = landonce.clickhouse(secure(clickhouse, ending), new_table()).to_sink("q")
    with pytest.raises(TargetRefused, match="not trusted") as caught:
        sink.target().exists()
    assert "sink.clickhouse.ca_cert" in caught.value.command


@pytest.mark.parametrize("content", [None, "", "no certificate", "\x00\xff"])
def test_what_is_no_certificate_is_said(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "authority.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=r"ca_cert: .*authority\.pem"):
        landonce.clickhouse("https://default@127.0.0.1:1/default", "t", ca_cert=path)
