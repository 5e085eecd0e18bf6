"""Consumers in processes of their own that are stopped, woken and killed in the middle of their transactions.

Plain SQL counts: every record exactly one row. Each scene is also played without the fence, and must then count wrong.
"""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from plain_process import PlainProcess
from sqlalchemy import Engine, create_engine, text

from landonce.local import LocalKafka
from landonce.local.postgres import LocalPostgres

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(600)]

PATIENCE = 240.0
WORKER = Path(__file__).with_name("consumer_worker.py")
SESSION = 3.0
"""Seconds without a heartbeat until Kafka gives a consumer's partitions to another one."""
SHORT = {"session.timeout.ms": int(SESSION * 1000), "heartbeat.interval.ms": 300}


@dataclass
class Scene:
    """One topic, one database, and the consumers of one group."""

    kafka: LocalKafka
    topic: str
    url: str
    folder: Path
    partitions: int = 1
    records: int = 0
    control: str = ""
    results: str = ""
    timeout_check: bool = True
    config: dict[str, Any] = field(default_factory=dict)
    processes: dict[str, PlainProcess] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.engine: Engine = create_engine(self.url)
        with self.engine.begin() as connection:
            connection.execute(text("DROP TABLE IF EXISTS results"))
            connection.execute(text("DROP TABLE IF EXISTS landonce_offset"))
            connection.execute(text("CREATE TABLE results (part INT, off BIGINT, worker TEXT)"))

    def __enter__(self) -> Scene:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait(10)
        self.engine.dispose()

    def produce(self, count: int) -> None:
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers})
        for number in range(count):
            producer.produce(self.topic, str(number), partition=number % self.partitions)
        assert producer.flush(60) == 0
        self.records += count

    def start(self, name: str, place: str = "", *, skip: int = 0, batch: int = 5, instance: str = "") -> None:
        config = {
            "bootstrap.servers": self.kafka.bootstrap_servers,
            "group.id": f"group-{self.topic}",
            "log_level": 2,
            **({} if "group.protocol" in self.config else SHORT),
            **self.config,
            **({"group.instance.id": instance} if instance else {}),
        }
        spec = {
            "name": name,
            "url": self.url,
            "topic": self.topic,
            "batch": batch,
            "config": config,
            "control": self.control,
            "results": self.results,
            "timeout_check": self.timeout_check,
        }
        failpoint = {
            "LANDONCE_FAILPOINT": place,
            "LANDONCE_FAILPOINT_SKIP": str(skip),
            "LANDONCE_FAILPOINT_FILE": str(self.folder / f"{name}.reached") if place else "",
            "LANDONCE_FAILPOINT_WAIT_FOR": str(self.folder / f"{name}.go"),
        }
        log = self.folder / f"{name}.log"
        log.unlink(missing_ok=True)
        self.processes[name] = PlainProcess([json.dumps(spec)], failpoint, log, script=str(WORKER))

    def wait(self, done: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not done():
            failed = [name for name, each in self.processes.items() if (each.poll() or 0) > 0]
            assert not failed, f"{what}: {failed} failed\n{self.logs()}"
            assert time.monotonic() < deadline, f"{what}: not within {PATIENCE:g} s\n{self.logs()}"
            time.sleep(0.05)

    def reached(self, name: str) -> None:
        self.wait((self.folder / f"{name}.reached").exists, f"{name} at its failpoint")

    def signal(self, name: str, number: signal.Signals) -> None:
        self.processes[name].send_signal(number)

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait(10)

    def wake(self, name: str) -> None:
        """It goes on from its failpoint, and from its sleep."""
        (self.folder / f"{name}.go").touch()
        self.signal(name, signal.SIGCONT)

    def rows(self) -> Counter[tuple[int, int]]:
        with self.engine.connect() as connection:
            return Counter((row[0], row[1]) for row in connection.execute(text("SELECT part, off FROM results")))

    def all_landed(self) -> None:
        self.wait(lambda: len(self.rows()) == self.records, "every record in the table")

    def duplicates(self) -> int:
        return sum(count - 1 for count in self.rows().values())

    def refused(self, name: str) -> list[str]:
        lines = (self.folder / f"{name}.log").read_text(errors="replace").splitlines()
        return [json.loads(line)["refused"] for line in lines if line.startswith('{"refused"')]

    def logs(self) -> str:
        return "\n".join(f"{each.name}:\n{each.read_text(errors='replace')}" for each in self.folder.glob("*.log"))

    def epoch(self) -> int:
        with self.engine.connect() as connection:
            return int(connection.scalar(text("SELECT max(epoch) FROM landonce_offset")) or 0)

    def waits_for_a_lock(self) -> bool:
        with self.engine.connect() as connection:
            return bool(connection.scalar(text(_WAITING[self.engine.dialect.name])))


_WAITING = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'",
    "mariadb": "SELECT CAST(variable_value AS INT) FROM information_schema.global_status "
    "WHERE variable_name = 'INNODB_ROW_LOCK_CURRENT_WAITS'",
}
_MARIADB = pytest.param("mariadb", marks=pytest.mark.long)


@pytest.fixture(params=["sqlite", "postgres", _MARIADB])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/db"
    return str(request.getfixturevalue(request.param).url)


@pytest.fixture(params=["postgres", _MARIADB])
def server(request: pytest.FixtureRequest) -> str:
    """A database where a lock is one of rows."""
    return str(request.getfixturevalue(request.param).url)


@pytest.mark.parametrize("control", ["", "naive"], ids=["fenced", "control"])
def test_a_paused_consumer_that_wakes_after_its_partition_moved(
    kafka: LocalKafka, new_topic: Callable[..., str], server: str, tmp_path: Path, control: str
) -> None:
    """It sleeps inside its transaction, before `save`. Another does its work; then it wakes, and its commit is refused."""
    with Scene(kafka, new_topic(), server, tmp_path, control=control, timeout_check=False) as scene:
        scene.produce(20)
        scene.start("sleeper", "consumer.open", batch=20)
        scene.reached("sleeper")
        scene.signal("sleeper", signal.SIGSTOP)
        scene.start("successor")
        scene.all_landed()
        scene.wake("sleeper")
        if control:
            scene.wait(scene.duplicates, "the control's duplicates")
            return
        scene.wait(lambda: scene.refused("sleeper"), "a refusal")
        scene.produce(10)
        scene.all_landed()
        assert scene.duplicates() == 0
        assert scene.refused("sleeper")[0] == "Fenced"


def test_the_clock_notices_the_pause_before_the_fence(
    kafka: LocalKafka, new_topic: Callable[..., str], database: str, tmp_path: Path
) -> None:
    """The same with the clock on, which needs no database to know. On SQLite its open rows lock the file: rolled back."""
    with Scene(kafka, new_topic(), database, tmp_path) as scene:
        scene.produce(20)
        scene.start("sleeper", "consumer.open", batch=20)
        scene.reached("sleeper")
        scene.signal("sleeper", signal.SIGSTOP)
        scene.start("successor")
        time.sleep(SESSION + 1)
        scene.wake("sleeper")
        scene.all_landed()
        scene.wait(lambda: scene.refused("sleeper"), "a refusal")
        assert scene.refused("sleeper")[0] == "OffsetStoreExpired"
        assert scene.duplicates() == 0


@pytest.mark.parametrize("control", ["", "naive"], ids=["fenced", "control"])
def test_a_zombie_in_its_commit(
    kafka: LocalKafka, new_topic: Callable[..., str], server: str, tmp_path: Path, control: str
) -> None:
    """It sleeps between `save` and COMMIT, where no check of its own can help. Its successor's load waits for it."""
    with Scene(kafka, new_topic(), server, tmp_path, control=control) as scene:
        scene.produce(20)
        scene.start("sleeper", "consumer.saved", batch=10)
        scene.reached("sleeper")
        scene.signal("sleeper", signal.SIGSTOP)
        scene.start("successor")
        scene.wait(scene.waits_for_a_lock, "the successor waits")
        assert not scene.rows()
        scene.wake("sleeper")
        scene.all_landed()
        assert (scene.duplicates() > 0) == bool(control)


@pytest.mark.parametrize(
    ("protocol", "control"),
    [
        ({"partition.assignment.strategy": "range"}, ""),
        ({"partition.assignment.strategy": "cooperative-sticky"}, ""),
        ({"group.protocol": "consumer"}, ""),
        ({"partition.assignment.strategy": "range"}, "naive"),
    ],
    ids=["eager", "cooperative", "consumer", "control"],
)
def test_a_rebalance_in_mid_transaction(
    kafka: LocalKafka,
    new_topic: Callable[..., str],
    server: str,
    tmp_path: Path,
    protocol: dict[str, Any],
    control: str,
) -> None:
    """One takes too long in a transaction that has saved; the other joins, is given the partitions, and waits."""
    config = protocol | {"max.poll.interval.ms": int(SESSION * 1000)}
    with Scene(kafka, new_topic(4), server, tmp_path, partitions=4, config=config, control=control) as scene:
        scene.produce(400)
        scene.start("first", "consumer.saved", skip=3, batch=20)
        scene.reached("first")
        scene.start("second", batch=20)
        scene.wait(scene.waits_for_a_lock, "the second waits")
        scene.wake("first")
        scene.all_landed()
        if control:
            assert scene.duplicates() > 0
            return
        scene.produce(400)
        scene.all_landed()
        assert scene.duplicates() == 0


def test_a_rebalance_of_two_that_are_well(
    kafka: LocalKafka, new_topic: Callable[..., str], database: str, tmp_path: Path
) -> None:
    """Consumers come and go while records are on their way."""
    with Scene(kafka, new_topic(4), database, tmp_path, partitions=4) as scene:
        scene.start("first", batch=3)
        for name in ("second", "third"):
            scene.produce(200)
            scene.start(name, batch=3)
            scene.produce(200)
            time.sleep(2)
        scene.all_landed()
        assert scene.duplicates() == 0


def test_killed_at_every_step(kafka: LocalKafka, new_topic: Callable[..., str], database: str, tmp_path: Path) -> None:
    """kill -9, and a static member of the same name goes on at once: no session has to time out."""
    with Scene(kafka, new_topic(), database, tmp_path) as scene:
        scene.produce(40)
        for number, place in enumerate(("consumer.open", "consumer.saved", "consumer.committed")):
            scene.start(f"run{number}", place, skip=1, instance="one")
            scene.reached(f"run{number}")
            scene.kill(f"run{number}")
        scene.start("last", instance="one")
        scene.all_landed()
        assert scene.duplicates() == 0
        assert scene.epoch() >= 4


def test_a_plain_consumer_that_is_killed_counts_twice(
    kafka: LocalKafka, new_topic: Callable[..., str], postgres: LocalPostgres, tmp_path: Path
) -> None:
    """The control of the kills: offsets in Kafka, results in the database."""
    with Scene(kafka, new_topic(), postgres.url, tmp_path, control="plain") as scene:
        scene.produce(40)
        scene.start("killed", "consumer.committed", skip=1, instance="one")
        scene.reached("killed")
        scene.kill("killed")
        scene.start("last", instance="one")
        scene.all_landed()
        assert scene.duplicates() > 0


def read_committed(kafka: LocalKafka, topic: str) -> list[int]:
    """What any other reader of the results sees."""
    options = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "reader", "enable.partition.eof": True}
    found = []
    with closing(Consumer(options | {"isolation.level": "read_committed"})) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while (message := consumer.poll(30)) is not None and message.error() is None:
            found.append(int(message.value() or b""))
    return sorted(found)


@pytest.mark.parametrize(
    "sleeps", [pytest.param(False, id="killed", marks=pytest.mark.long), pytest.param(True, id="asleep")]
)
def test_from_topic_to_topic(kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path, sleeps: bool) -> None:
    """Killed, or asleep, with results sent and the offset saved: Kafka lets nothing of it be seen, and nothing twice."""
    results = new_topic()
    with Scene(kafka, new_topic(), f"sqlite:///{tmp_path}/db", tmp_path, results=results, timeout_check=False) as scene:
        scene.produce(40)
        for number, place in enumerate(("consumer.open", "consumer.saved", "consumer.committed")):
            name = f"run{number}"
            scene.start(name, place, skip=1, instance="" if sleeps else "one")
            scene.reached(name)
            if sleeps:
                scene.signal(name, signal.SIGSTOP)
            else:
                scene.kill(name)
        scene.start("last", instance="" if sleeps else "one")
        scene.wait(lambda: len(set(read_committed(kafka, results))) == 40, "every record in the topic")
        for name in ("run0", "run1", "run2") if sleeps else ():
            scene.wake(name)
        if sleeps:
            scene.wait(lambda: scene.refused("run0") and scene.refused("run1"), "refusals")
            scene.produce(10)
            scene.wait(lambda: len(read_committed(kafka, results)) >= 50, "more records in the topic")
        assert read_committed(kafka, results) == sorted([*range(40), *(range(10) if sleeps else ())])


def test_a_second_static_member_of_the_same_name(
    kafka: LocalKafka, new_topic: Callable[..., str], postgres: LocalPostgres, tmp_path: Path
) -> None:
    """Kafka throws the first one out without a rebalance; its open transaction is refused all the same."""
    with Scene(kafka, new_topic(), postgres.url, tmp_path) as scene:
        scene.produce(20)
        scene.start("old", "consumer.open", batch=20, instance="one")
        scene.reached("old")
        scene.start("new", instance="one")
        scene.all_landed()
        scene.wake("old")
        scene.wait(lambda: scene.processes["old"].poll() is not None, "the old one ends")
        assert scene.refused("old")[0] == "Fenced"
        assert "SourceRefused" in (scene.folder / "old.log").read_text()
        assert scene.duplicates() == 0


@pytest.mark.long
def test_two_consumers_that_are_killed_at_random(
    kafka: LocalKafka, new_topic: Callable[..., str], postgres: LocalPostgres, tmp_path: Path
) -> None:
    chance = random.Random(20)
    with Scene(kafka, new_topic(4), postgres.url, tmp_path, partitions=4) as scene:
        for name in ("a", "b"):
            scene.start(name, instance=name)
        for _ in range(10):
            scene.produce(200)
            time.sleep(chance.uniform(0.3, 1.5))
            name = chance.choice(("a", "b"))
            scene.kill(name)
            scene.start(name, instance=name, batch=chance.choice((1, 7, 50)))
        scene.all_landed()
        assert scene.duplicates() == 0
