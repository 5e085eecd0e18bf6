"""A secret is planted wherever landonce takes one, from the environment, files and commands, and is found on no surface."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
import psycopg
import pytest
import yaml
from canaries import USER, Surfaces
from certificates import Certificates
from confluent_kafka import Consumer, Producer, TopicPartition
from iceberg_servers import LocalRestCatalog
from open_folder import open_folder
from pages import run_page
from pipelines import landonce
from running import running
from schema_registry import Gate, LocalSchemaRegistry
from tls_servers import SecureKafka, SecurePostgres, TlsGate, TokenEndpoint, https

from landonce.local import LocalClickHouse
from landonce.local.server import NO_PROXY, free_ports
from landonce.sinks.parts import open_parts
from landonce.sinks.pipeline_file import load

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

MARKER = "m4rker"
"""The control: it is in the name of the pipeline and of its folder, so every surface shows it."""
KAFKA = "c4nary-kafka"


COMMANDS = ("check FILE --json", "verify FILE --json", "state show FILE --json", "dead show FILE")


@dataclass
class Planted:
    """A folder with a pipeline file, and the secrets that it names. `given`: variables of the environment that hold one."""

    folder: Path
    secrets: dict[str, str]
    given: dict[str, str]

    @property
    def file(self) -> Path:
        return self.folder / "p.yaml"

    @property
    def inputs(self) -> list[Path]:
        return [self.file, *self.folder.glob("*.secret")]

    def plant(self, kind: str, how: str, secret: str = "") -> str:
        """What stands in the file for this secret."""
        secret = secret or f"c4nary-{kind}"
        self.secrets[kind] = secret
        if how == "environment":
            self.given[f"GIVEN_{kind.upper()}"] = secret  # a name that suggests nothing
            return f"${{GIVEN_{kind.upper()}}}"
        (self.folder / f"{kind}.secret").write_text(f"{secret}\n")
        return f"${{file:{kind}.secret}}" if how == "file" else f"${{command:cat {kind}.secret}}"

    def write_file(self, source: dict[str, Any], sink: dict[str, Any], **more: Any) -> None:
        document = {"pipeline": MARKER, "source": {"kafka": source}, "sink": sink, **more}
        self.file.write_text(yaml.safe_dump(document))

    def found(self, surfaces: Surfaces) -> dict[str, set[str]]:
        return {kind: places for kind, secret in self.secrets.items() if (places := surfaces.places_of(secret))}


@pytest.fixture
def planted(tmp_path: Path) -> Planted:
    folder = tmp_path / MARKER
    folder.mkdir()
    return Planted(folder, {}, {})


@pytest.fixture(scope="module")
def secure(servers: None, certs: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    with running(SecureKafka(tmp_path_factory.mktemp("secure"), certs, KAFKA)) as server:
        yield server


def letters(kafka: SecureKafka, topic: str) -> list[bytes]:
    """All that the topic of dead letters holds, by the plain listener."""
    with closing(Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "judge"})) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        until = time.monotonic() + 90
        while time.monotonic() < until:
            for each in consumer.consume(1, timeout=0.2):
                if each.error() is None:
                    return [each.value() or b"", repr(each.headers()).encode()]
    return []


@contextmanager
def process(planted: Planted) -> Iterator[subprocess.Popen[bytes]]:
    """`landonce run`, as a user starts it."""
    environment = {**os.environ, **planted.given, "TMPDIR": str(planted.folder / "tmp")}
    (planted.folder / "tmp").mkdir()
    with (planted.folder / "out.log").open("wb") as out, (planted.folder / "err.log").open("wb") as err:
        command = [sys.executable, "-m", "landonce", "run", str(planted.file)]
        started = subprocess.Popen(command, stdout=out, stderr=err, env=environment, start_new_session=True)
        try:
            yield started
        finally:
            started.kill()
            started.wait(30)


def wait_for(planted: Planted, running: subprocess.Popen[bytes], what: str) -> None:
    until = time.monotonic() + 240
    while what not in (planted.folder / "err.log").read_text():
        said = (planted.folder / "err.log").read_text()
        assert running.poll() is None, said
        assert time.monotonic() < until, said
        time.sleep(0.2)


def avro(planted: Planted, registry: Gate, certs: Certificates) -> dict[str, Any]:
    """The format of records whose schemas come from a registry with a password."""
    login = {"user": USER, "password": planted.plant("registry", "command")}
    return {"avro": {"registry": {"url": registry.url, "ca_cert": str(certs.authority), **login}}}


def own_key(planted: Planted, certs: Certificates) -> dict[str, str]:
    """A client's certificate for Kafka, whose key is a secret in the file."""
    key = planted.plant("key", "file", certs.client_key.read_text().strip())
    planted.secrets["key"] = certs.client_key.read_text().splitlines()[1]
    return {"ssl.certificate.location": str(certs.client), "ssl.key.pem": key}


def with_pages(planted: Planted, **conf: Any) -> tuple[dict[str, Any], str]:
    """Spark with pages and an event log, and the address of its pages."""
    (port,) = free_ports(1)
    pages = {"spark.ui.enabled": True, "spark.ui.port": port, "spark.eventLog.enabled": True}
    pages |= {"spark.eventLog.dir": (planted.folder / "events").as_uri(), "spark.eventLog.compress": False}
    (planted.folder / "events").mkdir()
    return {"master": "local[1]", "conf": {**pages, **conf}}, f"http://127.0.0.1:{port}"


def lake(
    planted: Planted, kafka: SecureKafka, registry: Gate, catalog: LocalRestCatalog, topic: str, **conf: Any
) -> str:
    """A pipeline whose changes Spark merges: its session has the catalog's properties, and the user's own. Returns the address of its pages."""
    source = {
        "bootstrap_servers": kafka.at("sasl_tls"),
        "topics": [topic],
        "format": avro(planted, registry, kafka.certificates),
        "options": kafka.options("sasl_tls", "SCRAM-SHA-512")
        | {"sasl.password": planted.plant("kafka", "environment", KAFKA), **own_key(planted, kafka.certificates)},
    }
    properties = {
        "type": "rest",
        "uri": catalog.uri,
        "oauth2-server-uri": f"{catalog.uri}/v1/oauth/tokens",
        "credential": f"{USER}:{planted.plant('credential', 'environment')}",
        "header.X-Api-Key": planted.plant("header", "file"),
        "gcs.oauth2.token": planted.plant("gcs", "command"),
        "spark": {"s3.secret-access-key": planted.plant("s3", "command")},
        "adls.account-key": planted.plant("adls", "file"),
        "adls.sas-token": planted.plant("sas", "environment"),
    }
    storage = {
        "spark.hadoop.fs.azure.account.key.lake": planted.plant("azure", "command"),
        "spark.hadoop.fs.s3a.secret.key": planted.plant("s3a", "file"),
    }
    spark, url = with_pages(planted, **storage, **conf)
    table = f"db.{topic.replace('-', '_')}"
    sink = {"catalog": properties, "table": table, "create": True, "identity": "id", "changes": {"mode": "upsert"}}
    planted.write_file(
        source,
        {"iceberg": sink},
        dead_letters={"topic": f"{topic}-dead"},
        spark=spark,
    )
    return url


def make_topics(kafka: SecureKafka, topic: str) -> None:
    for each in (topic, f"{topic}-dead"):
        kafka.make_topic(each, partitions=1)


def produce(kafka: SecureKafka, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number, value in enumerate(values):
        producer.produce(topic, value, key=json.dumps({"id": number}))
    assert producer.flush(30) == 0


ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}


@pytest.fixture(scope="module")
def schemas(servers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSchemaRegistry]:
    with running(LocalSchemaRegistry(tmp_path_factory.mktemp("registry"))) as server:
        yield server


@pytest.fixture
def registry(schemas: LocalSchemaRegistry, certs: Certificates) -> Iterator[Gate]:
    with closing(Gate(schemas, user=USER, password="c4nary-registry", tls=certs)) as gate:
        yield gate


def framed(number: int, value: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(ORDER), value)
    return b"\0" + number.to_bytes(4, "big") + stream.getvalue()


def spark_pages(surfaces: Surfaces, url: str) -> None:
    """Those of people and those of programs."""
    with NO_PROXY.open(f"{url}/api/v1/applications", timeout=20) as answer:
        api = f"/api/v1/applications/{json.load(answer)[0]['id']}"
    paths = ["/environment/", "/jobs/", "/stages/", "/executors/", "/SQL/", "/metrics/json/"]
    surfaces.add_pages("Spark's pages", url, [*paths, *(f"{api}/{each}" for each in ("environment", "jobs", "sql"))])


def test_a_run_with_spark_shows_none(
    planted: Planted,
    secure: SecureKafka,
    schemas: LocalSchemaRegistry,
    registry: Gate,
    rest_catalog: LocalRestCatalog,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = lake(planted, secure, registry, rest_catalog, "canary-lake")
    five_orders(secure, schemas, "canary-lake")
    surfaces = Surfaces()
    search_process(planted, surfaces, url)
    search_commands(planted, surfaces, capsys, monkeypatch)
    surfaces.add("topic of dead letters", *letters(secure, "canary-lake-dead"))
    surfaces.add_files("the lake, with its ledger", rest_catalog.folder)
    assert surfaces.places_of(MARKER) >= surfaces.texts.keys() - {"environments", "temporary files"}
    assert planted.found(surfaces) == {}
    assert len(planted.secrets) == 11


@pytest.mark.long
def test_a_run_with_spark_into_clickhouse_shows_none(
    planted: Planted,
    secure: SecureKafka,
    schemas: LocalSchemaRegistry,
    registry: Gate,
    certs: Certificates,
    database: SecurePostgres,
    guarded: LocalClickHouse,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client's key for Kafka and ClickHouse, and passwords for the registry, ClickHouse, the ledger and the store of keys."""
    topic, surfaces = "canary-house", Surfaces()
    five_orders(secure, schemas, topic)
    with psycopg.connect(database.url.replace("+psycopg", ""), autocommit=True) as connection:
        for user in ("keeper", "hoarder"):
            connection.execute(f"CREATE USER {user} SUPERUSER PASSWORD 'c4nary-{user}'")
            connection.execute(f"CREATE DATABASE of_{user} OWNER {user}")

    def place(user: str, secret: str) -> str:
        url = database.secure_url(password=secret).replace("landonce:", f"{user}:")
        return url.replace("/landonce?", f"/of_{user}?")

    source = {
        "bootstrap_servers": secure.at("mutual"),
        "topics": [topic],
        "format": avro(planted, registry, certs),
        "options": {"security.protocol": "SSL", "ssl.ca.location": str(certs.authority), **own_key(planted, certs)},
    }
    (planted.folder / "client.secret").write_bytes(certs.client_key.read_bytes())
    tls = {"ca_cert": str(certs.authority), "client_cert": str(certs.client), "client_key": "client.secret"}
    spark, pages = with_pages(planted)
    with closing(TlsGate(guarded.http_port, certs, ask_client=True)) as gate:
        url = https(guarded.url, gate.port).replace("c4nary-clickhouse", planted.plant("clickhouse", "environment"))
        planted.write_file(
            source,
            {"clickhouse": {"url": url, "table": "orders", "create": True, **tls}},
            ledger={"postgres": place("keeper", planted.plant("keeper", "command"))},
            dedup={"key": ["id"], "store": {"postgres": place("hoarder", planted.plant("hoarder", "file"))}},
            dead_letters={"topic": f"{topic}-dead"},
            spark=spark,
        )
        search_process(planted, surfaces, pages)
        search_commands(planted, surfaces, capsys, monkeypatch)
    for user in ("keeper", "hoarder"):
        surfaces.add(f"tables of the {user}", *ledger_dump(place(user, f"c4nary-{user}")))
    surfaces.add("topic of dead letters", *letters(secure, f"{topic}-dead"))
    surfaces.add("statements", statements(guarded))
    assert surfaces.places_of(MARKER) >= surfaces.texts.keys() - {"environments", "temporary files"}
    assert planted.found(surfaces) == {}
    assert len(planted.secrets) == 5


def five_orders(kafka: SecureKafka, schemas: LocalSchemaRegistry, topic: str) -> None:
    """And a record that cannot land."""
    number = schemas.register(f"{topic}-value", ORDER)
    make_topics(kafka, topic)
    produce(kafka, topic, *(framed(number, {"id": at}) for at in range(5)), b"broken")


def search_process(planted: Planted, surfaces: Surfaces, url: str) -> None:
    """A run until its records have landed: what may be read of it from outside, Spark's own surfaces included."""
    with process(planted) as running:
        wait_for(planted, running, '"landed": 5')
        surfaces.add_processes(running.pid, planted.given)
        spark_pages(surfaces, url)
        surfaces.add_files("temporary files", planted.folder / "tmp")
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0
    surfaces.add("output", (planted.folder / "out.log").read_bytes(), (planted.folder / "err.log").read_bytes())
    surfaces.add_files("event log", planted.folder / "events")
    surfaces.add_files("dead letters", planted.folder / "dead")


def search_commands(
    planted: Planted, surfaces: Surfaces, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the other commands say after a run, and what all of them leave in the folder."""
    for name, value in planted.given.items():
        monkeypatch.setenv(name, value)
    for command in COMMANDS:
        said = landonce(capsys, monkeypatch, *command.replace("FILE", str(planted.file)).split())
        assert said.code == 0, said
        surfaces.add("commands", said.out, said.err)
    surfaces.add("repr", repr(load(planted.file)), repr(open_parts(load(planted.file))))
    surfaces.add_files("other files", planted.folder, but=planted.inputs)


@pytest.mark.long
def test_the_control_spark_shows_what_nobody_hides(
    planted: Planted,
    secure: SecureKafka,
    schemas: LocalSchemaRegistry,
    registry: Gate,
    rest_catalog: LocalRestCatalog,
) -> None:
    """With Spark's own idea of what is secret, the same search finds some of these in its pages and its event log."""
    theirs = {"spark.redaction.regex": "(?i)secret|password|token|access[.]?key"}
    url = lake(planted, secure, registry, rest_catalog, "canary-shown", **theirs)
    five_orders(secure, schemas, "canary-shown")
    surfaces = Surfaces()
    with process(planted) as running:
        wait_for(planted, running, '"landed": 5')
        spark_pages(surfaces, url)
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0
    surfaces.add_files("event log", planted.folder / "events")
    found = planted.found(surfaces)
    assert found["credential"] == found["azure"] == {"Spark's pages", "event log"}
    assert found.keys().isdisjoint({"kafka", "s3", "s3a"})


@pytest.fixture(scope="module")
def database(servers: None, certs: Certificates) -> Iterator[SecurePostgres]:
    with open_folder() as folder, running(SecurePostgres(folder / "server", certs)) as server:
        yield server


QUERY_LOG = """<query_log><database>system</database><table>query_log</table>
    <flush_interval_milliseconds>60000</flush_interval_milliseconds></query_log>"""


@pytest.fixture
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalClickHouse]:
    """It logs every statement."""
    folder, login = tmp_path_factory.mktemp("guarded"), {"user": USER, "password": "c4nary-clickhouse"}
    with running(LocalClickHouse(folder, extra_config_xml=QUERY_LOG, **login)) as server:
        yield server


def statements(server: LocalClickHouse) -> str:
    """All that the server was asked, with the settings and the comments that came along, also what it refused."""
    server.ask("SYSTEM FLUSH LOGS")
    return server.ask("SELECT * FROM system.query_log")


def ledger_dump(url: str) -> list[str]:
    """All rows of all tables of the ledger."""
    with psycopg.connect(url) as connection:
        asked = "SELECT table_name FROM information_schema.tables WHERE table_name LIKE 'landonce%'"
        tables = [row[0] for row in connection.execute(asked)]
        return [repr(row) for each in tables for row in connection.execute(f"SELECT * FROM {each}")]


def test_a_run_into_clickhouse_shows_none(
    planted: Planted,
    secure: SecureKafka,
    certs: Certificates,
    schemas: LocalSchemaRegistry,
    registry: Gate,
    database: SecurePostgres,
    guarded: LocalClickHouse,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over TLS everywhere: a key of the client's for Kafka, and passwords for the registry, ClickHouse and the ledger. Then these passwords
    are wrong, one after another, and the errors show none either."""
    topic, surfaces = "canary-orders", Surfaces()
    five_orders(secure, schemas, topic)
    with psycopg.connect(database.url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("CREATE USER bob SUPERUSER PASSWORD 'c4nary-ledger'")
    gate = TlsGate(guarded.http_port, certs)
    source: dict[str, Any] = {
        "bootstrap_servers": secure.at("mutual"),
        "topics": [topic],
        "format": avro(planted, registry, certs),
        "options": {"security.protocol": "SSL", "ssl.ca.location": str(certs.authority), **own_key(planted, certs)},
    }
    url = https(guarded.url, gate.port).replace("c4nary-clickhouse", planted.plant("clickhouse", "command"))
    sink = {"url": url, "table": "orders", "create": True, "ca_cert": str(certs.authority)}
    secure_url = database.secure_url(password="PASSWORD").replace("landonce:PASSWORD", "bob:PASSWORD")
    ledger = secure_url.replace("PASSWORD", planted.plant("ledger", "environment"))
    planted.write_file(
        source, {"clickhouse": sink}, ledger={"postgres": ledger}, dead_letters={"topic": f"{topic}-dead"}
    )
    for name, value in planted.given.items():
        monkeypatch.setenv(name, value)
    for command in ("run FILE --once", *COMMANDS):
        said = landonce(capsys, monkeypatch, *command.replace("FILE", str(planted.file)).split())
        assert said.code == 0, said
        surfaces.add("commands", said.out, said.err)
    assert guarded.ask("SELECT count() FROM orders").strip() == "5"
    surfaces.add("ledger", *ledger_dump(database.url.replace("+psycopg", "")))
    surfaces.add("topic of dead letters", *letters(secure, f"{topic}-dead"))
    surfaces.add_files("folder", planted.folder, but=planted.inputs)
    surfaces.add("statements", statements(guarded))
    surfaces.add("repr", repr(load(planted.file)), repr(open_parts(load(planted.file))))
    other = schemas.register(f"{topic}-other", {**ORDER, "name": "Other"})  # the run asks the registry again
    produce(secure, topic, framed(other, {"id": 5}))
    for wrong in ("clickhouse", "registry", "ledger"):
        surfaces.add(f"error of {wrong}", fails(planted, wrong, capsys, monkeypatch))
    gate.close()
    assert surfaces.places_of(MARKER) >= surfaces.texts.keys()
    assert planted.found(surfaces) == {}
    assert len(planted.secrets) == 7


def plain_source(kafka: SecureKafka, topic: str) -> dict[str, Any]:
    """A topic with records, by the listener without a login."""
    make_topics(kafka, topic)
    produce(kafka, topic, *(json.dumps({"id": number}).encode() for number in range(5)), b"broken")
    return {"bootstrap_servers": kafka.bootstrap_servers, "topics": [topic], "schema": "id BIGINT NOT NULL"}


def search(
    planted: Planted, surfaces: Surfaces, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the commands say, and what they leave in the folder."""
    for command in ("run FILE --once", *COMMANDS):
        said = landonce(capsys, monkeypatch, *command.replace("FILE", str(planted.file)).split())
        assert said.code == 0, said
        surfaces.add("commands", said.out, said.err)
    surfaces.add_files("folder", planted.folder, but=planted.inputs)
    surfaces.add("repr", repr(load(planted.file)), repr(open_parts(load(planted.file))))


def fails(planted: Planted, kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """With another password in the file."""
    document = planted.file.read_text()
    planted.file.write_text(document.replace(reference(planted, kind), f"c4nary-wrong-{kind}"))
    planted.secrets[f"wrong {kind}"] = f"c4nary-wrong-{kind}"
    said = landonce(capsys, monkeypatch, "run", planted.file, "--once")
    planted.file.write_text(document)
    assert said.code in (2, 3), said
    return said.out + said.err


def test_a_ledger_in_keeper_map_shows_none(
    planted: Planted,
    secure: SecureKafka,
    guarded: LocalClickHouse,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It logs in with the password of the sink."""
    surfaces = Surfaces()
    url = guarded.url.replace("c4nary-clickhouse", planted.plant("clickhouse", "command"))
    planted.write_file(
        plain_source(secure, "canary-keeper"),
        {"clickhouse": {"url": url, "table": "kept", "create": True}},
        ledger={"keeper_map": {"path": "/canary"}},
    )
    search(planted, surfaces, capsys, monkeypatch)
    surfaces.add("ledger", guarded.ask("SELECT * FROM landonce_ledger"))
    surfaces.add("error", fails(planted, "clickhouse", capsys, monkeypatch))
    surfaces.add("statements", statements(guarded))
    assert "landonce_ledger" in surfaces.texts["statements"].decode()
    assert surfaces.places_of(MARKER) >= surfaces.texts.keys()
    assert planted.found(surfaces) == {}
    assert len(planted.secrets) == 2


def test_a_run_into_postgres_shows_none(
    planted: Planted,
    secure: SecureKafka,
    database: SecurePostgres,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows and ledger are there."""
    surfaces = Surfaces()
    with psycopg.connect(database.url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("CREATE USER eve SUPERUSER PASSWORD 'c4nary-target'")
        connection.execute("CREATE DATABASE sales OWNER eve")
    secure_url = database.secure_url(password="PASSWORD").replace("landonce:PASSWORD", "eve:PASSWORD")
    secure_url = secure_url.replace("/landonce?", "/sales?")
    url = secure_url.replace("PASSWORD", planted.plant("target", "file"))
    planted.write_file(
        plain_source(secure, "canary-target"), {"sql": {"url": url, "table": "targeted", "create": True}}
    )
    search(planted, surfaces, capsys, monkeypatch)
    surfaces.add("ledger", *ledger_dump(secure_url.replace("PASSWORD", "c4nary-target")))
    surfaces.add("error", fails(planted, "target", capsys, monkeypatch))
    assert surfaces.places_of(MARKER) >= surfaces.texts.keys()
    assert planted.found(surfaces) == {}
    assert len(planted.secrets) == 2


def test_a_store_of_keys_and_tokens_of_an_endpoint_show_none(
    planted: Planted,
    secure: SecureKafka,
    certs: Certificates,
    database: SecurePostgres,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The keys of events are in a database with a password of its own, and Kafka's logins come with a secret of OAuth."""
    topic, surfaces = "canary-keys", Surfaces()
    plain = plain_source(secure, topic)
    with psycopg.connect(database.url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("CREATE USER kim SUPERUSER PASSWORD 'c4nary-store'")
        connection.execute("CREATE DATABASE keys OWNER kim")
    secure_url = database.secure_url(password="PASSWORD").replace("landonce:PASSWORD", "kim:PASSWORD")
    secure_url = secure_url.replace("/landonce?", "/keys?")
    with closing(TokenEndpoint(certs, "c4nary-oauth")) as endpoint:
        options = endpoint.options(planted.plant("oauth", "command"))
        planted.write_file(
            {**plain, "bootstrap_servers": secure.at("sasl_tls"), "options": options},
            {"sql": {"url": "sqlite:///landed.db", "table": "unique_events", "create": True}},
            dedup={
                "key": ["id"],
                "store": {"postgres": secure_url.replace("PASSWORD", planted.plant("store", "file"))},
            },
            dead_letters={"topic": f"{topic}-dead"},
        )
        search(planted, surfaces, capsys, monkeypatch)
        surfaces.add("store", *ledger_dump(secure_url.replace("PASSWORD", "c4nary-store")))
        surfaces.add("topic of dead letters", *letters(secure, f"{topic}-dead"))
        for wrong in ("store", "oauth"):
            surfaces.add(f"error of {wrong}", fails(planted, wrong, capsys, monkeypatch))
    assert surfaces.places_of(MARKER) >= surfaces.texts.keys()
    assert planted.found(surfaces) == {}
    assert len(planted.secrets) == 4


def test_a_program_that_pushes_and_consumes_shows_none(
    planted: Planted,
    secure: SecureKafka,
    certs: Certificates,
    database: SecurePostgres,
    guarded: LocalClickHouse,
) -> None:
    """In a process of its own, which logs everything and prints its errors, with the right secrets and with wrong ones."""
    topic, surfaces = "canary-program", Surfaces()
    plain_source(secure, topic)
    with psycopg.connect(database.url.replace("+psycopg", ""), autocommit=True) as connection:
        for user in ("ledger", "target"):
            connection.execute(f"CREATE USER {user}_of_program SUPERUSER PASSWORD 'c4nary-{user}'")
            connection.execute(f"CREATE DATABASE {user}_of_program OWNER {user}_of_program")
    endpoint, gate = TokenEndpoint(certs, "c4nary-oauth"), TlsGate(guarded.http_port, certs)

    def settings(before: str) -> dict[str, Any]:
        """What needs a secret. `before`: how each secret begins."""
        for kind in ("clickhouse", "ledger", "target", "oauth"):
            planted.secrets[f"{before}{kind}"] = f"{before}{kind}"
        databases = {
            kind: database.secure_url(password="PASSWORD")
            .replace("landonce:PASSWORD", f"{kind}_of_program:{before}{kind}")
            .replace("/landonce?", f"/{kind}_of_program?")
            for kind in ("ledger", "target")
        }
        url = https(guarded.url, gate.port).replace("c4nary-clickhouse", f"{before}clickhouse")
        servers = {"bootstrap.servers": secure.at("sasl_tls"), "group.id": f"{MARKER}{len(before)}"}
        return {**databases, "clickhouse": url, "kafka": {**servers, **endpoint.options(f"{before}oauth")}}

    given = {"name": MARKER, "topic": topic, "ca_cert": str(certs.authority), "seconds": 60}
    environment = {"GIVEN": json.dumps({**given, **settings("c4nary-"), "wrong": settings("c4nary-wrong-")})}
    out, err = planted.folder / "out.log", planted.folder / "err.log"
    command = [sys.executable, "-X", "dev", str(Path(__file__).with_name("secret_program.py"))]
    with out.open("wb") as to_out, err.open("wb") as to_err, closing(endpoint), closing(gate):
        program = subprocess.Popen(
            [*command, MARKER],
            stdin=subprocess.PIPE,
            stdout=to_out,
            stderr=to_err,
            cwd=planted.folder,
            env={**os.environ, **environment},
        )
        try:
            until = time.monotonic() + 120
            while "all of it succeeded" not in out.read_text():
                assert program.poll() is None, err.read_text()
                assert time.monotonic() < until, err.read_text()
                time.sleep(0.1)
            surfaces.add_processes(program.pid, environment)
            program.communicate(b"\n", timeout=120)
        finally:
            program.kill()
    said = out.read_text()
    assert said.endswith("the end\n"), err.read_text()
    assert "a wrong secret was right" not in said
    surfaces.add("output", said)
    surfaces.add("errors and logs", err.read_text())
    assert err.read_text().count("Traceback (most recent call last)") >= 5
    surfaces.add("statements", statements(guarded))
    for kind in ("ledger", "target"):
        url = database.secure_url().replace("/landonce?", f"/{kind}_of_program?")
        surfaces.add(kind, *ledger_dump(url))
    surfaces.add_files("folder", planted.folder)
    assert surfaces.places_of(MARKER) >= surfaces.texts.keys() - {"environments"}
    assert planted.found(surfaces) == {}
    assert len(planted.secrets) == 8


def reference(planted: Planted, kind: str) -> str:
    """What stands for it in the file."""
    forms = (f"${{GIVEN_{kind.upper()}}}", f"${{file:{kind}.secret}}", f"${{command:cat {kind}.secret}}")
    (form,) = [each for each in forms if each in planted.file.read_text()]
    return form


def test_the_page_is_true(secure: SecureKafka, certs: Certificates, database: SecurePostgres, tmp_path: Path) -> None:
    make_topics(secure, "secure-clicks")
    produce(secure, "secure-clicks", *(json.dumps({"id": number}).encode() for number in range(3)))
    given = {"ca.pem": certs.authority.read_text(), "kafka.password": KAFKA, "postgres.password": database.password}
    for name, text in given.items():
        (tmp_path / name).write_text(text)
    where = {"KAFKA": secure.at("sasl_tls"), "DATABASE": f"127.0.0.1:{database.port}/landonce"}
    assert run_page("tls-and-secrets.md", None, (), tmp_path, spark=False, **where) == 2
