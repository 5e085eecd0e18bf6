"""Dead letters in a Kafka topic: each once, whatever is killed, and as Kafka Connect words them. The judge is a plain consumer."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from cutting_proxy import END_OF_TRANSACTION, Cut, CuttingProxy
from plain_process import UNDISTURBED, PlainProcess
from replayed import Replayed, event

from landonce.engine import letter_topic
from landonce.engine.letter_topic import LetterTopic
from landonce.errors import ConfigError, DeadLettersUnsure, DeadLettersUnwritable, TopicMissing
from landonce.jars import ICEBERG_CONNECT, jars_of
from landonce.local import LocalClickHouse, LocalKafka
from landonce.local.server import free_ports
from landonce.protocol.ledger import Totals

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

PLACES = ("topic.noted", "topic.fenced", "topic.sending", "topic.sent")
KILLED = {
    "sqlite": (*PLACES, "commit.after", "record.before", "record.after"),
    "clickhouse": (*PLACES, "record.before"),
    "iceberg": (*PLACES, "commit.before", "commit.after"),
    "fan-out": ("topic.sending", "topic.sent", "record.before"),
    "wrapped": ("topic.sending", "topic.sent"),
    "dedup": ("topic.sending@MainThread", "topic.sent@landonce push"),
}
"""`@`: in this thread. With `dedup`, two drivers send letters: that which accepts events, and that which pushes them to the target."""
WITHIN = 120.0
Make = Callable[..., Replayed]


class Crashed(BaseException):
    """What a kill is to a driver in this process."""


@pytest.fixture
def make(
    kafka: LocalKafka,
    request: pytest.FixtureRequest,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Make:
    def made(kind: str = "sqlite", **topic: str) -> Replayed:
        server: LocalClickHouse | None = request.getfixturevalue("clickhouse") if kind == "clickhouse" else None
        site = Replayed(kind, kafka, server, tmp_path, new_topic(), new_table(), capsys, monkeypatch)
        site.dead_letters = {"topic": new_topic(partitions=2, **topic), "limit": "100%"}
        site.write_file()
        return site

    return made


def in_topic(site: Replayed) -> list[Message]:
    """All records that count, by a plain consumer."""
    topic = site.dead_letters["topic"]
    consumer = Consumer(
        {
            "bootstrap.servers": site.dead_letters.get("bootstrap_servers", site.kafka.bootstrap_servers),
            "group.id": "judge",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in (0, 1)])
    found, ended = [], 0
    while ended < 2:
        message = consumer.poll(30)
        assert message is not None
        if message.error() is None:
            found.append(message)
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF
            ended += 1
    consumer.close()
    return found


def headers(message: Message) -> dict[str, bytes]:
    return dict(message.headers() or ())  # type: ignore[arg-type]


def sent(site: Replayed) -> list[int]:
    """The offsets that they had, each as often as it is there."""
    return sorted(int(headers(each)["__connect.errors.offset"]) for each in in_topic(site))


def crash_at(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    def reach(reached: str) -> None:
        if reached == place:
            raise Crashed

    monkeypatch.setattr(letter_topic, "reach", reach)


def crashed(site: Replayed, monkeypatch: pytest.MonkeyPatch, place: str = "topic.sent") -> None:
    with monkeypatch.context() as patch:
        crash_at(patch, place)
        with pytest.raises(Crashed):
            site.run()


def start(site: Replayed, place: str = "", wait_for: Path | None = None) -> tuple[PlainProcess, Path]:
    place, _, thread = place.partition("@")
    reached = site.folder / f"reached-{place}-{time.monotonic_ns()}"
    stopped = {"LANDONCE_FAILPOINT": place, "LANDONCE_FAILPOINT_FILE": str(reached)} if place else {}
    stopped |= {"LANDONCE_FAILPOINT_THREAD": thread}
    waits = {"LANDONCE_FAILPOINT_WAIT_FOR": str(wait_for)} if wait_for else {}
    environment = {**os.environ, **UNDISTURBED, **stopped, **waits}
    words = ("run", "pipe.yaml", "--once")
    return PlainProcess(words, environment, site.folder / "printed", folder=site.folder), reached


def wait_until(process: PlainProcess, reached: Path, site: Replayed) -> None:
    until = time.monotonic() + WITHIN
    while not reached.exists():
        assert process.poll() is None, (site.folder / "printed").read_text()[-3000:]
        assert time.monotonic() < until, f"{reached} was not reached"
        time.sleep(0.02)


def test_a_letter_is_the_record_with_connects_headers(make: Make) -> None:
    site = make()
    producer = Producer({"bootstrap.servers": site.kafka.bootstrap_servers})
    given: list[tuple[str, Any]] = [("trace", b"\xff\x00"), ("trace", b"2"), ("none", None)]
    producer.produce(site.topic, b"\xfe\xff", key=b"\x00key", headers=given, timestamp=1_700_000_000_123)
    producer.produce(site.topic, b'{"name": "x"}', timestamp=1_700_000_000_456)
    producer.produce(site.topic, event(2))
    assert producer.flush(30) == 0
    assert site.run() == Totals(landed=1, dead_lettered=2)
    binary, missing = sorted(in_topic(site), key=lambda each: each.timestamp()[1])
    assert (binary.key(), binary.value(), binary.timestamp()[1]) == (b"\x00key", b"\xfe\xff", 1_700_000_000_123)
    assert list(binary.headers() or ())[:3] == given
    assert (missing.key(), missing.value(), missing.timestamp()[1]) == (None, b'{"name": "x"}', 1_700_000_000_456)
    plan = headers(missing).pop("landonce.plan").decode()
    assert plan.startswith("pipe.batch-000000001-")
    assert {name: value.decode() for name, value in headers(missing).items()} == {
        "__connect.errors.topic": site.topic,
        "__connect.errors.partition": "0",
        "__connect.errors.offset": "1",
        "__connect.errors.connector.name": "pipe",
        "__connect.errors.task.id": "0",
        "__connect.errors.stage": "VALUE_CONVERTER",
        "__connect.errors.class.name": "landonce",
        "__connect.errors.exception.class.name": "missing_field",
        "__connect.errors.exception.message": "missing required field 'id'",
        "__connect.errors.exception.stacktrace": "missing_field: missing required field 'id'",
        "landonce.code": "missing_field",
        "landonce.field": "id",
        "landonce.pipeline": "pipe",
        "landonce.plan": plan,
    }
    assert {name for name in headers(missing) if name.startswith("__connect.")} == connects_names()
    assert site.letters() == [0, 1]


def test_only_a_record_without_a_timestamp_has_the_time_of_its_sending(make: Make) -> None:
    """The client takes 0 for now."""
    site = make()
    topic = LetterTopic("pipe", site.dead_letters["topic"], site.kafka.bootstrap_servers)
    letter = {"topic": "t", "partition": 0, "key": None, "value": "x", "reason": "r", "code": "malformed", "field": ""}
    moments = [0, 1, 1_700_000_000_123, None, -1]
    site.dead.mkdir()
    now = time.time() * 1000
    topic.send(
        site.dead,
        "pipe.batch-000000001-me",
        ({**letter, "offset": at, "timestamp": each} for at, each in enumerate(moments)),
        lambda: None,
    )
    found = sorted((int(headers(each)["__connect.errors.offset"]), each.timestamp()[1]) for each in in_topic(site))
    assert [moment for _, moment in found[:3]] == [1, 1, 1_700_000_000_123]
    assert all(moment > now - 1000 for _, moment in found[3:])


def connects_names() -> set[str]:
    """The constants of the class of Kafka Connect that sends dead letters."""
    (jar,) = (path for path in jars_of(ICEBERG_CONNECT) if path.name.startswith("connect-runtime-"))
    with zipfile.ZipFile(jar) as archive:
        constants = archive.read("org/apache/kafka/connect/runtime/errors/DeadLetterQueueReporter.class")
    return {found.decode() for found in re.findall(rb"__connect\.errors\.[a-z.]*[a-z]", constants)}


@pytest.mark.parametrize(
    "kind",
    [
        "sqlite",
        "iceberg",
        "dedup",
        *(pytest.param(kind, marks=pytest.mark.long) for kind in ("clickhouse", "wrapped", "fan-out")),
    ],
)
def test_killed_wherever_something_changes_every_letter_is_there_once(make: Make, kind: str) -> None:
    site, due = make(kind), []
    bad = b"broken too"
    if (
        kind == "dedup"
    ):  # of two letters, one is for events that cannot be accepted, the other for those that cannot land
        table_that_refuses(site, "b0")
        bad = event(0)
    for at, place in enumerate(KILLED[kind]):
        site.send(b"broken", event(3 * at + 1), bad.replace(b'"id": 0', b'"id": %d' % (3 * at + 2)))
        due += [3 * at, 3 * at + 2]
        process, reached = start(site, place)
        wait_until(process, reached, site)
        assert process.pid is not None
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)
        process, _ = start(site)
        assert process.wait(WITHIN) in (0, 1), (site.folder / "printed").read_text()[-3000:]
        assert sent(site) == due, place
        assert site.letters() == due, place
        assert site.offsets() == [3 * number + 1 for number in range(at + 1)], place
    if kind != "wrapped":  # landonce cannot read what it holds
        assert site.landonce("verify").code == 0


def table_that_refuses(site: Replayed, name: str) -> None:
    coordinates = "_topic TEXT NOT NULL, _partition INTEGER NOT NULL, _offset BIGINT NOT NULL"
    with closing(sqlite3.connect(site.folder / "target.db")) as database:
        database.execute(
            f"CREATE TABLE events (id BIGINT NOT NULL, name TEXT CHECK (name <> '{name}'), {coordinates}, "
            "UNIQUE (_topic, _partition, _offset))"
        )


@pytest.mark.parametrize(
    "place",
    [
        "topic.noted",
        pytest.param("topic.fenced", marks=pytest.mark.long),
        "topic.sending",
        pytest.param("topic.sent", marks=pytest.mark.long),
    ],
)
def test_a_driver_that_wakes_up_late_sends_nothing(make: Make, place: str) -> None:
    """It sleeps at each place; another one takes over, sends the letters, and goes on to the next batch."""
    site = make()
    site.send(b"broken", event(1))
    go = site.folder / "go"
    zombie, reached = start(site, place, go)
    wait_until(zombie, reached, site)
    for _ in range(2):
        driver, _ = start(site)
        assert driver.wait(WITHIN) in (0, 1), (site.folder / "printed").read_text()[-3000:]
        site.send(b"broken", event(3))
    go.touch()
    assert zombie.wait(WITHIN) == 4, (site.folder / "printed").read_text()[-3000:]
    driver, _ = start(site)
    assert driver.wait(WITHIN) in (0, 1)
    assert sent(site) == site.letters() == [0, 2, 4]
    assert site.offsets() == [1, 3, 5]


def test_two_drivers_that_race_send_every_letter_once(make: Make) -> None:
    site = make()
    for at in range(4):
        site.send(b"broken", event(2 * at + 1))
        drivers = [start(site)[0] for _ in range(2)]
        assert {driver.wait(WITHIN) for driver in drivers} <= {0, 1, 4}, (site.folder / "printed").read_text()[-3000:]
    driver, _ = start(site)
    assert driver.wait(WITHIN) in (0, 1)
    assert sent(site) == site.letters() == [0, 2, 4, 6]


def test_a_large_batch_is_sent_in_several_transactions(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers abort a transaction that takes a minute. A driver that is killed between two sends what is missing, and nothing again."""
    monkeypatch.setattr(letter_topic, "_TOGETHER", 2)
    site = make()
    site.send(*[b"broken"] * 5)
    crashed(site, monkeypatch)
    assert (len(sent(site)), site.letters()) == (2, [])
    site.run()
    assert sent(site) == site.letters() == [0, 1, 2, 3, 4]


def test_control_without_the_look_a_letter_is_there_twice(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    site = make()
    site.send(b"broken", event(1))
    crashed(site, monkeypatch)
    monkeypatch.setattr(LetterTopic, "_there", lambda *_: set())
    site.run()
    assert sent(site) == [0, 0]
    assert site.letters() == [0]


def test_letters_behind_another_producers_open_transaction_are_seen(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make()
    site.send(b"broken", event(1))
    other = Producer({"bootstrap.servers": site.kafka.bootstrap_servers, "transactional.id": f"other-{site.topic}"})
    other.init_transactions(30)
    other.begin_transaction()
    for partition in (0, 1):
        other.produce(site.dead_letters["topic"], b"not a letter of landonce's", partition=partition)
    assert other.flush(30) == 0
    crashed(site, monkeypatch)
    ends = threading.Timer(1.5, lambda: other.abort_transaction(30))
    ends.start()
    site.run()
    ends.join()
    assert sent(site) == site.letters() == [0]


def test_brokers_that_fail_after_the_tables_commit_are_asked_again(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    site = make("iceberg")
    site.send(b"broken", event(1))
    made, failures = LetterTopic._producer, [KafkaError(KafkaError._TIMED_OUT), KafkaError(KafkaError._FENCED)]

    def producer(*given: Any) -> Producer:
        if failures:
            raise KafkaException(failures.pop())
        return made(*given)

    monkeypatch.setattr(LetterTopic, "_producer", producer)
    assert site.run() == Totals(landed=1, dead_lettered=1)
    assert (sent(site), site.letters(), site.offsets()) == ([0], [0], [1])


SOON = {"reconnect.backoff.max.ms": 300, "retry.backoff.max.ms": 300}


@contextmanager
def letters_kafka(folder: Path) -> Iterator[tuple[LocalKafka, CuttingProxy]]:
    """A broker of its own, and what stands before it: clients reach it through nothing else."""
    (port,) = free_ports(1)
    proxy = CuttingProxy(port, END_OF_TRANSACTION)
    advertised = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}"}
    with LocalKafka(folder, port=port, extra_config=advertised, heap="256m") as broker:
        yield broker, proxy
    proxy.close()


@pytest.mark.parametrize(
    ("cut", "driver_too"), [(Cut.ANSWER, False), pytest.param(Cut.REQUEST, True, marks=pytest.mark.long)]
)
def test_the_end_of_a_transaction_is_cut_and_its_broker_is_killed(
    make: Make, tmp_path: Path, cut: Cut, driver_too: bool
) -> None:
    """Each letter is there once."""
    with letters_kafka(tmp_path / "letters-kafka") as (broker, proxy):
        site, servers = make(), f"127.0.0.1:{proxy.port}"
        admin = AdminClient({"bootstrap.servers": servers})
        admin.create_topics([NewTopic("letters", 2, 1)])["letters"].result(30)
        site.dead_letters |= {"topic": "letters", "bootstrap_servers": servers, "options": SOON}
        site.write_file()
        site.send(b"broken", event(1))
        proxy.arm(cut)
        assert site.run() == Totals(landed=1, dead_lettered=1)
        assert proxy.cuts == 1
        assert sent(site) == site.letters() == [0]
        site.send(b"broken", event(3))
        process, reached = start(site, "topic.sending", go := tmp_path / "go")
        wait_until(process, reached, site)
        broker.kill()
        if driver_too:
            assert process.pid is not None
            os.killpg(process.pid, signal.SIGKILL)
        go.touch()
        broker.start()
        broker.wait_ready()
        if driver_too:
            process, _ = start(site)
        assert process.wait(WITHIN) == 0, (site.folder / "printed").read_text()[-3000:]
        assert sent(site) == site.letters() == [0, 2]
        assert site.offsets() == [1, 3]


@pytest.mark.parametrize(
    ("lost", "again"),
    [
        ("removed", True),
        ("recreated", False),
        pytest.param("removed", False, marks=pytest.mark.long),
        pytest.param("recreated", True, marks=pytest.mark.long),
    ],
)
def test_where_nobody_can_look_a_person_decides(
    make: Make, monkeypatch: pytest.MonkeyPatch, lost: str, again: bool
) -> None:
    site = make()
    site.send(b"broken", event(1))
    crashed(site, monkeypatch)
    admin, name = AdminClient({"bootstrap.servers": site.kafka.bootstrap_servers}), site.dead_letters["topic"]
    if lost == "removed":
        ends = [TopicPartition(name, number, -1) for number in (0, 1)]
        for future in admin.delete_records(ends).values():
            future.result(30)
    else:
        admin.delete_topics([name])[name].result(30)
        until = time.monotonic() + 30
        while name in admin.list_topics(timeout=30).topics and time.monotonic() < until:
            time.sleep(0.1)
        admin.create_topics([NewTopic(name, 2, 1)])[name].result(30)
    for _ in range(2):
        with pytest.raises(DeadLettersUnsure) as unsure:
            site.run()
    (note,) = site.dead.glob(".*.topic")
    assert f"rm {note}" in unsure.value.command
    assert f"truncate -s 0 {note}" in unsure.value.command
    assert site.letters() == []
    if again:
        note.unlink()
    else:
        os.truncate(note, 0)
    site.run()
    site.send(b"broken")
    site.run()
    assert site.letters() == [0, 2]
    if lost == "recreated":
        assert sent(site) == ([0, 2] if again else [2])


def test_only_the_last_note_stays(make: Make) -> None:
    site = make()
    for _ in range(3):
        site.send(b"broken")
        site.run()
    assert [path.name[:21] for path in site.dead.glob(".*")] == [".pipe.batch-000000003"]
    assert sent(site) == [0, 1, 2]


def test_letters_that_count_are_not_sent_again(make: Make) -> None:
    """A replay changes nothing in the topic, nor does a letter that cannot land even now."""
    site = make()
    site.send(b"broken", b"broken")
    site.run()
    assert site.landonce("dead replay", "--yes").code in (0, 1)
    site.run()
    assert sent(site) == site.letters() == [0, 1]


@pytest.mark.parametrize("kind", ["sqlite", "iceberg"])
def test_a_letter_that_the_topic_does_not_take_halts(make: Make, kind: str) -> None:
    """What the error says is true: the record's bytes are in the folder, and the position is where each kind of sink has it then."""
    site = make(kind, max_message_bytes="1000")
    site.send(b"x" * 2000)
    with pytest.raises(DeadLettersUnwritable, match="refused a dead letter") as refused:
        site.run()
    shown = json.loads(site.landonce("state show", "--json").out)
    assert [each["committed"] for each in shown["ledger"]["positions"]] == [1 if kind == "iceberg" else 0]
    assert "position" not in refused.value.safe
    (staged,) = site.dead.glob("*.staged")
    assert "x" * 2000 in staged.read_text()
    admin = AdminClient({"bootstrap.servers": site.kafka.bootstrap_servers})
    entry = ConfigEntry("max.message.bytes", "10000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, site.dead_letters["topic"], incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(30)
    site.run()
    assert sent(site) == site.letters() == [0]


def test_topics_that_do_not_do_are_refused_by_check_and_at_the_start(make: Make) -> None:
    site = make(cleanup_policy="compact")
    with pytest.raises(ConfigError, match="is compacted"):
        site.run()
    assert "is compacted" in site.landonce("check").out
    site.dead_letters["topic"] = "no.such.topic"
    site.write_file()
    with pytest.raises(TopicMissing, match=r"'no\.such\.topic' does not exist"):
        site.run()
    said = site.landonce("check")
    assert said.code == 1
    assert "--create --topic no.such.topic" in " ".join(said.out.split())
    site.dead_letters["topic"] = site.topic
    site.write_file()
    with pytest.raises(ConfigError, match="is a topic that the pipeline reads"):
        site.run()


@pytest.mark.parametrize("settings", [{}, {"retention_ms": "3600000"}, {"message_timestamp_type": "LogAppendTime"}])
def test_check_warns_of_a_topic_that_deletes_letters_of_old_records(make: Make, settings: dict[str, str]) -> None:
    said = " ".join(make(**settings).landonce("check").out.split())
    assert ("deletes records 1.0 h after their own timestamp" in said) == ("retention_ms" in settings)
