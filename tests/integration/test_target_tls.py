"""Targets and ledgers with TLS and logins: whole runs, `check` and `verify`, and certificates that are refused at once.

PostgreSQL has TLS itself (`verify-full`); ClickHouse and the Iceberg REST catalog are behind a gate that ends it.
"""

from __future__ import annotations

import json
import re
import ssl
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from certificates import REFUSED, Certificates
from confluent_kafka import Producer
from iceberg_servers import LocalRestCatalog
from open_folder import open_folder
from pipelines import Said, landonce
from pyiceberg.catalog import load_catalog
from running import running
from tls_servers import SecurePostgres, TlsGate, https

from landonce.local import LocalClickHouse, LocalKafka
from landonce.tls import TlsKeys, examine, refusal

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

SOON = 60.0
"""Seconds. What is unreachable is tried for `stall`, 300 s."""
PASSWORD = "c4nary-target"
PAGE = (Path(__file__).parents[2] / "docs" / "tls-and-secrets.md").read_text()


@pytest.fixture(scope="module")
def secure_postgres(servers: None, certs: Certificates) -> Iterator[SecurePostgres]:
    with open_folder() as folder, running(SecurePostgres(folder / "server", certs)) as server:
        yield server


class Site:
    """A topic with records, and a pipeline file."""

    def __init__(self, kafka: LocalKafka, topic: str, folder: Path, run: Callable[..., Said]) -> None:
        self.kafka, self.topic, self.folder, self._run = kafka, topic, folder, run

    def write_file(self, sink: dict[str, Any], **more: Any) -> None:
        kafka = {"bootstrap_servers": self.kafka.bootstrap_servers, "topics": [self.topic]}
        source = {"kafka": {**kafka, "schema": "id BIGINT NOT NULL"}}
        document = {"pipeline": self.topic, "source": source, "sink": sink, **more}
        (self.folder / "p.yaml").write_text(yaml.safe_dump(document))

    def produce(self, first: int, end: int) -> None:
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers})
        for number in range(first, end):
            producer.produce(self.topic, json.dumps({"id": number}))
        assert producer.flush(30) == 0

    def command(self, *words: str) -> Said:
        return self._run(words[0], self.folder / "p.yaml", *words[1:])

    def land(self) -> None:
        """In two runs, with a check before and a verification after."""
        self.produce(0, 10)
        checked = self.command("check")
        assert checked.code == 0, checked
        for end in (10, 20):
            ran = self.command("run", "--once")
            assert ran.code == 0, ran
            self.produce(end, end + 10) if end == 10 else None
        verified = self.command("verify")
        assert verified.code == 0, verified
        assert PASSWORD not in repr((checked, ran, verified))

    def refused(self, sentence: str) -> str:
        """The error of a run, which comes soon."""
        began = time.monotonic()
        said = self.command("run", "--once")
        assert time.monotonic() - began < SOON
        (line,) = [each for each in said.err.splitlines() if each.startswith("CertificateRefused: ")] or [""]
        assert (said.code, sentence in line, "Next step: " in said.err) == (3, True, True), said
        assert PASSWORD not in repr(said)
        assert self.command("check").code == 1
        return said.err


@pytest.fixture
def site(
    kafka: LocalKafka,
    new_topic: Callable[..., str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Site:
    def run(*arguments: object) -> Said:
        return landonce(capsys, monkeypatch, *arguments)

    return Site(kafka, new_topic(), tmp_path, run)


@pytest.fixture
def gate(certs: Certificates) -> Iterator[Callable[..., TlsGate]]:
    made: list[TlsGate] = []

    def open_gate(port: int, **options: Any) -> TlsGate:
        made.append(TlsGate(port, certs, **options))
        return made[-1]

    yield open_gate
    for each in made:
        each.close()


Gate = Callable[..., TlsGate]


# PostgreSQL


def in_postgres(server: SecurePostgres, table: str) -> list[int]:
    with psycopg.connect(server.url.replace("+psycopg", "")) as connection:
        return [row[0] for row in connection.execute(f"SELECT id FROM {table} ORDER BY id")]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_records_land_in_postgres(site: Site, secure_postgres: SecurePostgres, host: str) -> None:
    table = f"{site.topic}_{len(host)}".replace("-", "_")
    site.write_file({"sql": {"url": secure_postgres.secure_url(host=host), "table": table, "create": True}})
    site.land()
    assert in_postgres(secure_postgres, table) == list(range(20))


def test_a_certificate_logs_in(site: Site, secure_postgres: SecurePostgres) -> None:
    """Without a password. Without the certificate, the error comes at once, too."""
    sink = {"table": "by_certificate", "create": True}
    site.write_file({"sql": {"url": secure_postgres.certificate_url(), **sink}})
    site.produce(0, 5)
    assert site.command("run", "--once").code == 0
    assert in_postgres(secure_postgres, "by_certificate") == list(range(5))
    site.write_file({"sql": {"url": secure_postgres.certificate_url(shown=False), **sink}})
    said = site.command("run", "--once")
    assert (said.code, "requires a valid client certificate" in said.err) == (2, True), said


def test_the_ledger_is_in_postgres(
    site: Site, secure_postgres: SecurePostgres, clickhouse: LocalClickHouse, new_table: Callable[[], str]
) -> None:
    """The file of the authority is beside the pipeline file."""
    (site.folder / "ca.pem").write_bytes(secure_postgres.certificates.authority.read_bytes())
    table = new_table()
    url = secure_postgres.secure_url(authority="ca.pem")
    sink = {"clickhouse": {"url": clickhouse.url, "table": table, "create": True}}
    site.write_file(sink, ledger={"postgres": url})
    site.land()
    assert clickhouse.ask(f"SELECT count(), uniqExact(id) FROM {table}").split() == ["20", "20"]
    secure_postgres.show("expired")
    try:
        assert "database postgresql://landonce@127.0.0.1" in site.refused(REFUSED["expired"])
    finally:
        secure_postgres.show("good")


@pytest.mark.parametrize("kind", REFUSED)
def test_certificates_of_postgres_that_are_refused(site: Site, secure_postgres: SecurePostgres, kind: str) -> None:
    site.write_file({"sql": {"url": secure_postgres.secure_url(), "table": "clicks", "create": True}})
    secure_postgres.show(kind)
    try:
        site.refused(REFUSED[kind])
    finally:
        secure_postgres.show("good")
    site.produce(0, 3)
    assert site.command("run", "--once").code == 0  # the control: nothing else is wrong with it


@pytest.mark.parametrize(
    ("change", "words"),
    [({"authority": "/no/such/file"}, "with TLS as its URL says"), ({"password": PASSWORD}, "refused the login")],
)
def test_a_url_that_is_wrong(site: Site, secure_postgres: SecurePostgres, change: dict[str, str], words: str) -> None:
    site.write_file({"sql": {"url": secure_postgres.secure_url(**change), "table": "clicks", "create": True}})
    said = site.command("run", "--once")
    assert (said.code, words in said.err, PASSWORD in repr(said)) == (2, True, False), said


# ClickHouse


def test_records_land_in_clickhouse(
    site: Site, clickhouse: LocalClickHouse, new_table: Callable[[], str], gate: Gate, certs: Certificates
) -> None:
    table, asking = new_table(), gate(clickhouse.http_port, ask_client=True)
    files = {"ca_cert": str(certs.authority), "client_cert": str(certs.client), "client_key": str(certs.client_key)}
    url = https(clickhouse.url, asking.port)
    site.write_file({"clickhouse": {"url": url, "table": table, "create": True, **files}})
    site.land()
    assert clickhouse.ask(f"SELECT count(), uniqExact(id) FROM {table}").split() == ["20", "20"]


@pytest.mark.parametrize("kind", ["expired"])
def test_a_run_into_clickhouse_is_refused(
    site: Site, clickhouse: LocalClickHouse, gate: Gate, certs: Certificates, kind: str
) -> None:
    """The sink's own tests have the others."""
    url = https(clickhouse.url, gate(clickhouse.http_port, kind=kind).port)
    site.write_file({"clickhouse": {"url": url, "table": "t", "create": True, "ca_cert": str(certs.authority)}})
    site.refused(REFUSED[kind])


# Iceberg's REST catalog


def rest(gate: TlsGate, certs: Certificates, *, client: bool = False) -> dict[str, Any]:
    own = {"client": {"cert": str(certs.client), "key": str(certs.client_key)}} if client else {}
    login = {"type": "basic", "basic": {"username": "ann", "password": PASSWORD}}
    catalog = {"type": "rest", "uri": f"https://127.0.0.1:{gate.port}", "auth": login}
    return {**catalog, "ssl": {"cabundle": str(certs.authority), **own}}


LOGIN = b"Authorization: Basic " + b64encode(f"ann:{PASSWORD}".encode())


def test_records_land_through_a_rest_catalog(
    site: Site, rest_catalog: LocalRestCatalog, gate: Gate, certs: Certificates
) -> None:
    """With a client's certificate and a password."""
    asking = gate(int(rest_catalog.uri.rpartition(":")[2]), ask_client=True, login=LOGIN)
    name = f"db.{site.topic.replace('-', '_')}"
    site.write_file({"iceberg": {"catalog": rest(asking, certs, client=True), "table": name, "create": True}})
    site.land()
    table = load_catalog("judge", **rest_catalog.properties).load_table(name)
    assert sorted(table.scan().to_arrow().column("id").to_pylist()) == list(range(20))
    assert asking.requests > 5


@pytest.mark.parametrize("ask_client", [True, False], ids=["client certificate", "ciphers"])
def test_a_handshake_that_fails_without_a_word_has_two_causes(certs: Certificates, ask_client: bool) -> None:
    """TLS 1.2 has one alert for both."""
    gate = TlsGate(1, certs, ask_client=ask_client)
    served = gate._tls
    served.maximum_version = ssl.TLSVersion.TLSv1_2
    served.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    tls = ssl.create_default_context(cafile=str(certs.authority))
    if not ask_client:
        tls.maximum_version = ssl.TLSVersion.TLSv1_2
        tls.set_ciphers("ECDHE-ECDSA-AES256-GCM-SHA384")
    with closing(gate):
        found = examine("127.0.0.1", gate.port, tls)
    assert found is not None
    said = str(refusal(found, "the server", "127.0.0.1", TlsKeys("`ca`", "`client_cert`")))
    for cause in ("asks for a certificate of the client", "share no cipher", "`client_cert`"):
        assert cause in said


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("trusting", [True, False])
def test_spark_merges_through_a_rest_catalog(
    site: Site, rest_catalog: LocalRestCatalog, gate: Gate, certs: Certificates, trusting: bool
) -> None:
    """Its JVM takes the authority from a trust store, as the page on TLS has it. Without one, it says so at once."""
    (site.folder / "ca.pem").write_bytes(certs.authority.read_bytes())
    commands = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    (site.folder / "trust.sh").write_text(commands[0] + 'exec "$@"\n' if trusting else 'exec "$@"\n')
    name = f"db.{site.topic.replace('-', '_')}_{trusting}".lower()
    uri = f"https://127.0.0.1:{gate(int(rest_catalog.uri.rpartition(':')[2])).port}"
    catalog = {"type": "rest", "uri": uri, "ssl": {"cabundle": "ca.pem"}}
    changes = {"identity": "id", "changes": {"mode": "upsert"}, "create": True}
    site.write_file({"iceberg": {"catalog": catalog, "table": name, **changes}})
    site.produce(0, 10)
    run = [sys.executable, "-m", "landonce", "run", str(site.folder / "p.yaml"), "--once"]
    done = subprocess.run(["sh", "trust.sh", *run], cwd=site.folder, capture_output=True, text=True, timeout=200)
    if trusting:
        assert done.returncode == 0, done.stderr
        table = load_catalog("judge", **rest_catalog.properties).load_table(name)
        assert sorted(table.scan().to_arrow().column("id").to_pylist()) == list(range(10))
    else:
        assert (done.returncode, "CertificateRefused: Spark does not trust" in done.stderr) == (3, True), done.stderr


@pytest.mark.parametrize("kind", REFUSED)
def test_certificates_of_a_rest_catalog_that_are_refused(
    site: Site, rest_catalog: LocalRestCatalog, gate: Gate, certs: Certificates, kind: str
) -> None:
    wrong = gate(int(rest_catalog.uri.rpartition(":")[2]), kind=kind)
    site.write_file({"iceberg": {"catalog": rest(wrong, certs), "table": "db.t", "create": True}})
    site.refused(REFUSED[kind])
    assert wrong.requests == 0


def test_a_rest_catalog_that_asks_for_a_client(
    site: Site, rest_catalog: LocalRestCatalog, gate: Gate, certs: Certificates
) -> None:
    asking = gate(int(rest_catalog.uri.rpartition(":")[2]), ask_client=True)
    site.write_file({"iceberg": {"catalog": rest(asking, certs), "table": "db.t", "create": True}})
    assert "`ssl: {client: {cert: …, key: …}}`" in site.refused("asks for a certificate of the client")


def test_a_rest_catalog_refuses_the_login(
    site: Site, rest_catalog: LocalRestCatalog, gate: Gate, certs: Certificates
) -> None:
    other = gate(int(rest_catalog.uri.rpartition(":")[2]), login=b"Basic of somebody else")
    site.write_file({"iceberg": {"catalog": rest(other, certs), "table": "db.t", "create": True}})
    said = site.command("run", "--once")
    assert (said.code, "refused" in said.err, PASSWORD in repr(said)) == (3, True, False), said


def test_a_file_of_authorities_that_is_not_there(
    site: Site, rest_catalog: LocalRestCatalog, gate: Gate, certs: Certificates
) -> None:
    catalog = rest(gate(int(rest_catalog.uri.rpartition(":")[2])), certs) | {"ssl": {"cabundle": "gone.pem"}}
    site.write_file({"iceberg": {"catalog": catalog, "table": "db.t", "create": True}})
    said = site.command("run", "--once")
    assert (said.code, "`ssl` cannot be used: No such file" in said.err) == (2, True), said
