"""ClickHouse behind TLS, with a certificate whose authority the system does not know. The gate that ends TLS is real, and so is the server
behind it; the engine that the tests have listens without TLS only."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from certificates import REFUSED, Certificates
from clickhouse_tables import block, covering, insert, make, parts
from tls_servers import TlsGate, https

import landonce
from landonce.errors import CertificateRefused, ConfigError
from landonce.local import LocalClickHouse, LocalStackError
from landonce.protocol.settle import Reply
from landonce.sinks.contract import DeduplicatingSink
from landonce.sinks.parts import open_parts
from landonce.sinks.pipeline_file import parse

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]
Gate = Callable[..., TlsGate]


def test_the_engine_of_the_tests_cannot_listen_with_tls(clickhouse: LocalClickHouse) -> None:
    """As soon as it can, the gate is due to go."""
    with pytest.raises(LocalStackError, match="supports only TCP and HTTP listeners"):
        clickhouse.ask("SYSTEM START LISTEN HTTPS")


@pytest.fixture
def gate(clickhouse: LocalClickHouse, certs: Certificates) -> Iterator[Gate]:
    made: list[TlsGate] = []

    def open_gate(**options: Any) -> TlsGate:
        made.append(TlsGate(clickhouse.http_port, certs, **options))
        return made[-1]

    yield open_gate
    for each in made:
        each.close()


def test_a_file_names_the_authority_and_the_client(
    clickhouse: LocalClickHouse, new_table: Callable[[], str], gate: Gate, certs: Certificates, tmp_path: Path
) -> None:
    """Relative to the file; and workers need none of these files."""
    table = new_table()
    make(clickhouse, table, "id Int64")
    files = {"ca_cert": certs.authority, "client_cert": certs.client, "client_key": certs.client_key}
    for name, path in files.items():
        (tmp_path / name).write_bytes(path.read_bytes())
    url = https(clickhouse.url, gate(ask_client=True).port)
    options = {"url": url, "table": table, "compression": "zstd", **{name: name for name in files}}
    source = {"kafka": {"bootstrap_servers": "127.0.0.1:1", "topics": ["t"]}}
    text = yaml.safe_dump({"pipeline": "orders", "source": source, "sink": {"clickhouse": options}})
    sink = open_parts(parse(text, tmp_path / "p.yaml")).sink
    assert isinstance(sink, DeduplicatingSink)
    assert "PRIVATE KEY" not in repr(sink)
    for name in files:
        (tmp_path / name).unlink()
    sink = pickle.loads(pickle.dumps(sink))
    rows = block({"id": pa.array(range(10), pa.int64())})
    assert sink.writer().send(rows, insert(sink.target(), "a")) is Reply.ACKNOWLEDGED
    assert parts(clickhouse, table) == [10]
    assert sink.writer().probe(rows, covering(rows)).presence.complete


def test_a_query_names_them_too(
    clickhouse: LocalClickHouse, new_table: Callable[[], str], gate: Gate, certs: Certificates
) -> None:
    table = new_table()
    make(clickhouse, table, "id Int64")
    url = https(clickhouse.url, gate(ask_client=True).port)
    files = {"ca_cert": certs.authority, "client_cert": certs.client, "client_key": certs.client_key}
    assert landonce.clickhouse(url, table, **files).to_sink("q").target().exists()


@pytest.mark.parametrize("kind", REFUSED)
def test_certificates_that_are_refused(
    clickhouse: LocalClickHouse, new_table: Callable[[], str], gate: Gate, certs: Certificates, kind: str
) -> None:
    """With the reason, and before anything is sent."""
    wrong = gate(kind=kind)
    sink = landonce.clickhouse(https(clickhouse.url, wrong.port), new_table(), ca_cert=certs.authority).to_sink("q")
    with pytest.raises(CertificateRefused, match=REFUSED[kind]):
        sink.target().exists()
    assert wrong.requests == 0


def test_without_it_the_server_is_not_trusted(
    clickhouse: LocalClickHouse, new_table: Callable[[], str], gate: Gate
) -> None:
    sink = landonce.clickhouse(https(clickhouse.url, gate().port), new_table()).to_sink("q")
    with pytest.raises(CertificateRefused, match="signed by an authority that is not known here") as caught:
        sink.target().exists()
    assert "sink.clickhouse.ca_cert" in caught.value.command


def test_a_client_without_a_certificate(
    clickhouse: LocalClickHouse, new_table: Callable[[], str], gate: Gate, certs: Certificates
) -> None:
    """Also of an insert it is known that nothing of it was read."""
    table = new_table()
    make(clickhouse, table, "id Int64")
    asking = gate(ask_client=True)
    sink = landonce.clickhouse(https(clickhouse.url, asking.port), table, ca_cert=certs.authority).to_sink("q")
    with pytest.raises(CertificateRefused, match="asks for a certificate of the client") as caught:
        sink.target().exists()
    assert "sink.clickhouse.client_cert" in caught.value.command
    plain = landonce.clickhouse(clickhouse.url, table).to_sink("q")
    with pytest.raises(CertificateRefused, match="asks for a certificate of the client"):
        sink.writer().send(block({"id": pa.array(range(10), pa.int64())}), insert(plain.target(), "a"))
    assert (parts(clickhouse, table), asking.requests) == ([], 0)


@pytest.mark.parametrize("content", [None, "", "no certificate", "-----BEGIN CERTIFICATE-----\nx", "\x00\xff"])
@pytest.mark.parametrize("key", ["ca_cert", "client_cert"])
def test_what_is_no_certificate_is_said(tmp_path: Path, key: str, content: str | None) -> None:
    path = tmp_path / "authority.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=key):
        landonce.clickhouse("https://default@127.0.0.1:1/default", "t", **{key: path})


def test_a_key_without_its_certificate_is_refused(certs: Certificates) -> None:
    with pytest.raises(ConfigError, match="client_key: its certificate is missing"):
        landonce.clickhouse("https://default@127.0.0.1:1/default", "t", client_key=certs.client_key)
