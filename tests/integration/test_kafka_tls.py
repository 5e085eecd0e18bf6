"""Kafka with TLS and logins, against a real broker with a listener for each: records land, and what is wrong is said at once."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from certificates import REFUSED, Certificates
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from pipelines import Said
from pipelines import landonce as run_command
from pyspark.sql import SparkSession
from query_site import Site as QuerySite
from query_site import in_sqlite
from running import running
from sqlalchemy import create_engine, text
from tls_servers import USER, SecureKafka, TokenEndpoint

import landonce
from landonce.consumer import KafkaOffsets, OffsetStore, SqlOffsets
from landonce.errors import CertificateRefused, LandonceError, SourceRefused
from landonce.query.running import Admin
from landonce.read.kafka.broker import certificate_refusal

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240), pytest.mark.usefixtures("last_copy")]

PASSWORD = "c4nary-sasl"
SOON = 60.0
"""Seconds within which a lasting refusal is said, on a machine that has other things to do. What is unreachable is tried for `stall`, 300 s."""
Run = Callable[..., Said]
ENDPOINT = "tokens of an endpoint"
LANDING = [
    pytest.param("mutual", "", id="certificate"),
    pytest.param("sasl_tls", "PLAIN", id="plain"),
    pytest.param("sasl_tls", "SCRAM-SHA-512", id="scram"),
    pytest.param("sasl", "OAUTHBEARER", id="bearer"),
    pytest.param("tls", "", id="tls", marks=pytest.mark.long),
    pytest.param("sasl_tls", "SCRAM-SHA-256", id="scram-256", marks=pytest.mark.long),
    pytest.param("sasl_tls", "OAUTHBEARER", id="bearer-tls", marks=pytest.mark.long),
    pytest.param("sasl", "PLAIN", id="plain-open", marks=pytest.mark.long),
    pytest.param("sasl", "SCRAM-SHA-512", id="scram-open", marks=pytest.mark.long),
]


@pytest.fixture(scope="module")
def secure(servers: None, certs: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    with running(SecureKafka(tmp_path_factory.mktemp("secure"), certs, PASSWORD)) as server:
        yield server


class Site:
    """A topic, a topic of dead letters, and a pipeline from there to SQLite."""

    def __init__(self, kafka: SecureKafka, folder: Path, name: str, run: Run) -> None:
        self.kafka, self.folder, self.name, self._run = kafka, folder, name, run
        for each in (name, f"{name}-dead"):
            kafka.make_topic(each)

    @property
    def file(self) -> Path:
        return self.folder / "p.yaml"

    def write_file(self, servers: str, options: dict[str, str]) -> None:
        source = {"bootstrap_servers": servers, "topics": [self.name], "schema": "id BIGINT NOT NULL"}
        document = {
            "pipeline": self.name,
            "source": {"kafka": {**source, "options": options}},
            "sink": {"sql": {"url": "sqlite:///landed.db", "table": "clicks", "create": True}},
            "dead_letters": {"topic": f"{self.name}-dead"},
        }
        self.file.write_text(yaml.safe_dump(document))

    def produce(self, count: int) -> None:
        """By the plain listener. One more record cannot land."""
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers})
        for number in range(count):
            producer.produce(self.name, json.dumps({"id": number}), partition=number % 2)
        producer.produce(self.name, b"broken", partition=0)
        assert producer.flush(30) == 0

    def command(self, *words: str) -> Said:
        return self._run(words[0], self.file, *words[1:])

    def landed(self) -> list[int]:
        with closing(sqlite3.connect(self.folder / "landed.db")) as database:
            return [row[0] for row in database.execute("SELECT id FROM clicks ORDER BY id")]

    def letters(self) -> int:
        """By the plain listener."""
        consumer = Consumer({"bootstrap.servers": self.kafka.bootstrap_servers, "group.id": "judge"})
        with closing(consumer):
            places = [TopicPartition(f"{self.name}-dead", number, 0) for number in (0, 1)]
            consumer.assign(places)
            until = time.monotonic() + 60
            while time.monotonic() < until:
                if [each for each in consumer.consume(1, timeout=0.2) if each.error() is None]:
                    return 1
        return 0

    def mirrored(self) -> int:
        """How far the consumer group is, by the plain listener."""
        options = {"bootstrap.servers": self.kafka.bootstrap_servers, "group.id": self.name}
        with closing(Consumer(options)) as consumer:
            found = consumer.committed([TopicPartition(self.name, number) for number in (0, 1)], timeout=10)
            return sum(max(each.offset, 0) for each in found)


@pytest.fixture
def site(
    secure: SecureKafka,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Site:
    def run(*arguments: object) -> Said:
        return run_command(capsys, monkeypatch, *arguments)

    return Site(secure, tmp_path, f"t{abs(hash(request.node.name)) % 10**9}", run)


@pytest.mark.parametrize(("listener", "mechanism"), LANDING)
def test_records_land(site: Site, secure: SecureKafka, listener: str, mechanism: str) -> None:
    """Nothing but the secure listener is in the file: driver and workers, the group, the topic of dead letters, check and verify use it."""
    site.write_file(secure.at(listener), secure.options(listener, mechanism))
    site.produce(20)
    checked = site.command("check")
    assert checked.code == 0, checked
    assert site.command("run", "--once").code == 0
    assert site.landed() == list(range(20))
    assert (site.letters(), site.mirrored()) == (1, 21)
    verified = site.command("verify")
    assert (verified.code, PASSWORD in "".join((verified.out, verified.err, checked.out, checked.err))) == (0, False)


def test_records_land_with_tokens_of_an_endpoint(site: Site, secure: SecureKafka, certs: Certificates) -> None:
    """OAuth as companies have it. With another secret, the endpoint gives none."""
    endpoint = TokenEndpoint(certs, PASSWORD)
    with closing(endpoint):
        site.write_file(secure.at("sasl_tls"), endpoint.options(PASSWORD))
        site.produce(20)
        assert site.command("run", "--once").code == 0
        assert (site.landed(), site.letters(), site.mirrored()) == (list(range(20)), 1, 21)
        site.write_file(secure.at("sasl_tls"), endpoint.options("c4nary-wrong"))
        began = time.monotonic()
        said = site.command("run", "--once")
    assert (said.code, "refused the login" in said.err, "c4nary" in said.err + said.out) == (3, True, False), said
    assert time.monotonic() - began < SOON


def refused(said: Said, sentence: str) -> bool:
    """A log may be before it."""
    (line,) = [each for each in said.err.splitlines() if each.startswith("CertificateRefused: ")] or [""]
    return said.code == 3 and sentence in line


@pytest.mark.parametrize("kind", REFUSED)
def test_certificates_that_are_refused(site: Site, secure: SecureKafka, kind: str) -> None:
    site.write_file(secure.at(kind), secure.options(kind))
    began = time.monotonic()
    said = site.command("run", "--once")
    assert refused(said, REFUSED[kind]), said
    assert time.monotonic() - began < SOON
    assert f"broker {secure.at(kind)}" in said.err
    assert "Nothing was sent to it." in said.err
    assert "Next step: " in said.err


def test_without_the_check_of_certificates_the_same_listener_is_fine(site: Site, secure: SecureKafka) -> None:
    """The control: nothing but its certificate is wrong with it."""
    unchecked = {"enable.ssl.certificate.verification": "false"}
    site.write_file(secure.at("expired"), secure.options("expired") | unchecked)
    site.produce(3)
    assert site.command("run", "--once").code == 0
    assert site.landed() == [0, 1, 2]


def test_check_and_verify_say_it_too(site: Site, secure: SecureKafka) -> None:
    site.write_file(secure.at("expired"), secure.options("expired"))
    assert REFUSED["expired"] in (checked := site.command("check")).out
    assert checked.code == 1
    assert refused(site.command("verify"), REFUSED["expired"])


def test_an_authority_that_no_file_names(site: Site, secure: SecureKafka) -> None:
    site.write_file(secure.at("tls"), {"security.protocol": "SSL"})
    said = site.command("run", "--once")
    assert refused(said, "is signed by an authority that is not known here")
    assert "`ssl.ca.location`" in said.err


def test_a_client_without_a_certificate(site: Site, secure: SecureKafka) -> None:
    site.write_file(secure.at("mutual"), secure.options("tls"))
    said = site.command("run", "--once")
    assert refused(said, "asks for a certificate of the client")
    assert "`ssl.certificate.location`" in said.err


def test_the_cause_is_looked_for_with_the_options_of_the_file(secure: SecureKafka, certs: Certificates) -> None:
    """Where they make a handshake that a broker accepts, no certificate is to blame."""

    def blamed(listener: str, **options: Any) -> str:
        error = KafkaError(KafkaError._SSL, f"ssl://{secure.at(listener)}/bootstrap: SSL handshake failed: alert")
        found = certificate_refusal(error, "Kafka", {name.replace("_", "."): each for name, each in options.items()})
        return str(found or "")

    authority = {"ssl_ca_pem": certs.authority.read_text()}
    text = {"ssl_certificate_pem": certs.client.read_text(), "ssl_key_pem": certs.client_key.read_text()}
    files = {"ssl_certificate_location": certs.client, "ssl_key_location": certs.client_key}
    assert blamed("mutual", **authority, **text) == blamed("mutual", **authority, **files) == ""
    assert blamed("mutual", **authority, ssl_keystore_location="client.p12") == ""
    assert "asks for a certificate of the client" in blamed("mutual", **authority)
    assert blamed("expired", **authority, enable_ssl_certificate_verification=False) == ""
    assert REFUSED["expired"] in blamed("expired", **authority, ssl_keystore_location="client.p12")


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_wrong_password(site: Site, secure: SecureKafka, mechanism: str) -> None:
    site.write_file(secure.at("sasl_tls"), secure.options("sasl_tls", mechanism) | {"sasl.password": "c4nary-wrong"})
    began = time.monotonic()
    said = site.command("run", "--once")
    assert (said.code, "refused the login" in said.err, "c4nary" in said.err + said.out) == (3, True, False), said
    assert time.monotonic() - began < SOON


def test_files_are_looked_for_beside_the_pipeline_file(site: Site, secure: SecureKafka, certs: Certificates) -> None:
    (site.folder / "ca.pem").write_bytes(certs.authority.read_bytes())
    site.write_file(secure.at("tls"), {"security.protocol": "SSL", "ssl.ca.location": "ca.pem"})
    assert site.command("check").code == 0
    (site.folder / "ca.pem").unlink()
    said = site.command("run", "--once")
    assert (said.code, f"ssl.ca.location: there is no file {site.folder}/ca.pem" in said.err) == (2, True), said


CONSUMING = [
    pytest.param("mutual", "", id="certificate"),
    pytest.param("sasl_tls", "SCRAM-SHA-512", id="scram"),
    pytest.param("sasl", "OAUTHBEARER", id="bearer"),
    pytest.param("sasl_tls", ENDPOINT, id="endpoint"),
]


@pytest.fixture
def login(secure: SecureKafka, certs: Certificates, listener: str, mechanism: str) -> Iterator[dict[str, str]]:
    """What a client of this listener needs."""
    if mechanism != ENDPOINT:
        yield secure.options(listener, mechanism)
        return
    with closing(TokenEndpoint(certs, PASSWORD)) as endpoint:
        yield endpoint.options(PASSWORD)


@pytest.mark.parametrize(("listener", "mechanism"), CONSUMING)
def test_a_consumer_keeps_its_offsets_in_its_database(
    secure: SecureKafka, tmp_path: Path, listener: str, mechanism: str, login: dict[str, str]
) -> None:
    """The consumer and what looks at its topics have the options of the program, and the broker has no other listener for them. A second
    consumer goes on where the first one's last transaction stopped; Kafka's own group has followed."""
    topic = f"consumed-{listener}-{len(mechanism)}"
    secure.make_topic(topic, partitions=1)
    producer = Producer({"bootstrap.servers": secure.bootstrap_servers})
    for number in range(10):
        producer.produce(topic, str(number))
    assert producer.flush(30) == 0
    options = {"bootstrap.servers": secure.at(listener), "group.id": topic, **login}
    engine = create_engine(f"sqlite:///{tmp_path}/results.db")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE results (value TEXT)"))
    for count in (4, 6):
        with OffsetStore.connect(options, [topic], SqlOffsets(engine), commit_to_kafka="sync") as store:
            messages = consumed(store, count)
            with store.transaction() as connection:
                for each in messages:
                    connection.execute(text("INSERT INTO results VALUES (:value)"), {"value": each.value()})
                store.save_many(messages, connection)
    with engine.connect() as connection:
        assert [int(each) for each in connection.scalars(text("SELECT value FROM results ORDER BY rowid"))] == [
            *range(10)
        ]
    engine.dispose()
    with closing(Consumer({"bootstrap.servers": secure.bootstrap_servers, "group.id": topic})) as plain:
        (found,) = plain.committed([TopicPartition(topic, 0)], timeout=20)
    assert found.offset == 10


@pytest.mark.parametrize(("listener", "mechanism"), CONSUMING)
def test_a_consumer_keeps_its_offsets_in_kafka(
    secure: SecureKafka, listener: str, mechanism: str, login: dict[str, str]
) -> None:
    """Producers with transactions, the topic of offsets and its readers use the same options."""
    topic = f"copied-{listener}-{len(mechanism)}"
    for each in (topic, f"{topic}-results"):
        secure.make_topic(each, partitions=1)
    producer = Producer({"bootstrap.servers": secure.bootstrap_servers})
    for number in range(10):
        producer.produce(topic, str(number))
    assert producer.flush(30) == 0
    client = {"bootstrap.servers": secure.at(listener), **login}
    for count in (4, 6):
        handler = KafkaOffsets(client, topic=f"{topic}-offsets")
        with OffsetStore.connect({**client, "group.id": topic}, [topic], handler) as store:
            messages = consumed(store, count)
            with store.transaction() as transaction:
                for each in messages:
                    transaction.producer(each).produce(f"{topic}-results", each.value())
                store.save_many(messages, transaction)
    reading = {"group.id": "judge", "isolation.level": "read_committed", "enable.partition.eof": True}
    with closing(Consumer({"bootstrap.servers": secure.bootstrap_servers, **reading})) as plain:
        plain.assign([TopicPartition(f"{topic}-results", 0, 0)])
        values = list[int]()
        while (message := plain.poll(60)) is not None and message.error() is None:
            values.append(int(message.value() or b""))
    assert values == list(range(10))


def consumed(store: OffsetStore, count: int) -> list[Message]:
    found = list[Message]()
    until = time.monotonic() + 90
    while len(found) < count:
        assert time.monotonic() < until, f"{len(found)} of {count} records came"
        found += store.consume(count - len(found), timeout=0.2)
    return found


def javas(secure: SecureKafka, listener: str, mechanism: str = "", password: str = PASSWORD) -> dict[str, str]:
    """What Kafka's own client, which Spark has, needs for this listener."""
    made = {"bootstrap.servers": secure.at(listener), "security.protocol": "SASL_SSL" if mechanism else "SSL"}
    made |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(secure.certificates.authority)}
    if mechanism:
        login = (
            f'org.apache.kafka.common.security.scram.ScramLoginModule required username="{USER}" password="{password}";'
        )
        made |= {"sasl.mechanism": mechanism, "sasl.jaas.config": login}
    return made


def test_a_query_lands_and_knows_where_it_stopped(
    secure: SecureKafka, spark: SparkSession, certs: Certificates, tmp_path: Path
) -> None:
    """Spark and landonce's own questions use the options of the query's source; `starting_offsets` has librdkafka's."""
    secure.make_topic("queried")
    target, sink = tmp_path / "target.db", landonce.sql(f"sqlite:///{tmp_path}/target.db", "events", create=True)
    site = QuerySite(spark, secure.bootstrap_servers, ("queried",), tmp_path, sink, lambda: in_sqlite(target))
    site.produce(20)
    site.bootstrap = "127.0.0.1:1"  # the options name the listener
    given = {f"kafka.{name}": value for name, value in javas(secure, "sasl_tls", "SCRAM-SHA-512").items()}
    login, once = secure.options("sasl_tls", "SCRAM-SHA-512"), site.once()
    site.run(once, start=once.starting_offsets(secure.at("sasl_tls"), site.topics, login), **given)
    site.exact()
    begin = once.starting_offsets(secure.at("sasl_tls"), site.topics, login)
    assert json.loads(begin) == {"queried": {"0": 10, "1": 10}}
    assert PASSWORD.encode() not in target.read_bytes()
    with pytest.raises(CertificateRefused, match=REFUSED["expired"]):
        once.starting_offsets(secure.at("expired"), site.topics, secure.options("expired"))


def test_what_kafkas_own_client_refuses_is_said_in_the_same_words(secure: SecureKafka, spark: SparkSession) -> None:
    """It asks for each micro-batch of a query. It does not tell a certificate that is signed by itself from others of unknown authorities."""

    def said(options: dict[str, str]) -> LandonceError:
        admin = Admin(spark.sparkContext._jvm, options)
        with closing(admin), pytest.raises(LandonceError) as caught:
            admin.ask(("queried",))
        return caught.value

    unknown = REFUSED["unknown_authority"]
    for kind, words in {**REFUSED, "self_signed": unknown, "mutual": "asks for a certificate of the client"}.items():
        error = said(javas(secure, kind))
        assert isinstance(error, CertificateRefused), error
        assert words in error.what
        assert secure.at(kind) in error.what
        assert "the options of the query's source" in error.command or kind == "expired"
    wrong = said(javas(secure, "sasl_tls", "SCRAM-SHA-512", "c4nary-wrong"))
    assert isinstance(wrong, SourceRefused)
    assert "invalid credentials" in wrong.what
    assert "c4nary" not in str(wrong)
