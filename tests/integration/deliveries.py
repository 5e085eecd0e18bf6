"""Whole runs for tests: a pipeline from Kafka to ClickHouse on Spark, watched, and an oracle that reads the table itself.

The oracle uses none of landonce's code and no client library of ClickHouse: plain HTTP, plain SQL, and what the broker reported to the producer.
"""

from __future__ import annotations

import base64
import json
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml
from confluent_kafka import Message, Producer
from jvms import LOADED
from pyspark.sql import SparkSession

from landonce.config.model import Spark
from landonce.engine import pipeline
from landonce.engine.driver import Driver
from landonce.engine.observe import BatchReport
from landonce.engine.spark.session import open_session
from landonce.local import LocalClickHouse, LocalKafka
from landonce.protocol.ledger import LedgerState, Totals
from landonce.protocol.steps import Effect, Step
from landonce.sinks.parts import open_parts
from landonce.sinks.pipeline_file import Pipeline, parse

COORDINATES = "_topic LowCardinality(String), _partition Int32, _offset Int64"
Coordinates = tuple[str, int, int]


# ── what goes in ─────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Sent:
    """One record as the broker took it."""

    topic: str
    partition: int
    offset: int
    value: bytes | None

    @property
    def at(self) -> Coordinates:
        return self.topic, self.partition, self.offset

    @property
    def fields(self) -> dict[str, Any]:
        return json.loads(self.value or b"null")


def send(kafka: LocalKafka, topic: str, values: Iterable[Any], partition: int = 0, **more: Any) -> list[Sent]:
    """Produces bytes as they are and anything else as JSON, and says where each record went."""
    sent: list[Sent] = []
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 5, "acks": "all"})

    def delivered(error: object, message: Message) -> None:
        assert error is None, error
        sent.append(Sent(message.topic(), message.partition(), message.offset(), message.value()))

    for value in values:
        payload = value if isinstance(value, bytes | None) else json.dumps(value).encode()
        producer.produce(topic, payload, partition=partition, on_delivery=delivered, **more)
        producer.poll(0)
    assert producer.flush(30) == 0
    return sorted(sent, key=lambda each: each.at)


def numbered(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [{"id": each, "name": f"n{each}"} for each in range(first, first + count)]


# ── what is done with it ─────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Site:
    """One test's pipeline: its servers, its folder, its table."""

    kafka: LocalKafka
    clickhouse: LocalClickHouse
    folder: Path
    table: str
    topics: Sequence[str] = ()

    def document(self, **sections: Any) -> dict[str, Any]:
        """The pipeline file as a mapping; keyword arguments change a section or add to it."""
        base: dict[str, Any] = {
            "pipeline": f"p-{self.table}",
            "source": {"kafka": {"bootstrap_servers": self.kafka.bootstrap_servers, "topics": list(self.topics)}},
            "sink": {"clickhouse": {"url": self.clickhouse.url, "table": self.table, "deadline": "10s"}},
            "ledger": {"sqlite": "p.ledger"},
            "batch": {"interval": "0s"},
            "dead_letters": {"path": "dead"},
            "stall": "60s",
            "spark": {"master": "local[2]"},
        }
        for name, section in sections.items():
            if name in ("kafka", "clickhouse"):
                base["source" if name == "kafka" else "sink"][name].update(section)
            elif isinstance(section, dict):
                base[name] = {**base.get(name, {}), **section}
            else:
                base[name] = section
        return base

    def config(self, **sections: Any) -> Pipeline:
        return parse(yaml.safe_dump(self.document(**sections)), self.file)

    @property
    def file(self) -> Path:
        return self.folder / "p.yaml"

    @property
    def dead(self) -> Path:
        return self.folder / "dead"

    def write_file(self, **sections: Any) -> Path:
        self.file.write_text(yaml.safe_dump(self.document(**sections)))
        return self.file

    def ask(self, query: str) -> list[dict[str, Any]]:
        return ask(self.clickhouse.url, query)

    def make(self, columns: str, rest: str = "ORDER BY (_topic, _partition, _offset)") -> None:
        """The table, with coordinates, and without merges, so that its parts stay the blocks that were sent."""
        do(
            self.clickhouse.url,
            f"CREATE TABLE {self.table} ({columns}, {COORDINATES}) ENGINE = MergeTree {rest} "
            "SETTINGS non_replicated_deduplication_window = 1000",
        )
        do(self.clickhouse.url, f"SYSTEM STOP MERGES {self.table}")

    def state(self) -> LedgerState:
        parts = open_parts(self.config())
        try:
            state = parts.ledger.load()
        finally:
            parts.ledger.close()
        assert state is not None
        return state

    def position(self) -> dict[tuple[str, int], int]:
        return {(each.topic, each.number): at for each, at in self.state().committed().items()}


@dataclass
class Watch:
    """An observer that remembers, and that lets a test act at a step."""

    steps: list[Step] = field(default_factory=list)
    batches: list[BatchReport] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    at: Callable[[Effect], None] | None = None
    ended: threading.Event = field(default_factory=threading.Event)
    """Set once a driver of `running` has ended, also by an error."""

    def step(self, effect: Effect) -> None:
        self.steps.append(effect.step)
        self.times.append(time.monotonic())
        if self.at is not None:
            self.at(effect)

    def batch(self, report: BatchReport) -> None:
        self.batches.append(report)

    def trouble(self, what: str) -> None:
        self.troubles.append(what)
        print(f"trouble: {what}")

    def lag(self, records: int) -> None: ...


@contextmanager
def driver_of(config: Pipeline, session: SparkSession, watch: Watch, *, once: bool) -> Iterator[Driver]:
    """As `landonce run` puts a driver together."""
    parts = open_parts(config)
    with closing(parts.ledger), pipeline.driver_of(parts, lambda: session, watch, once=once) as driver:
        yield driver


def run(config: Pipeline, session: SparkSession, watch: Watch | None = None) -> Totals:
    """`landonce run --once`, in this process."""
    with driver_of(config, session, watch or Watch(), once=True) as driver:
        return driver.run()


@contextmanager
def running(config: Pipeline, session: SparkSession, watch: Watch) -> Iterator[Driver]:
    """`landonce run` in a thread; at the end it is asked to stop, and what it raised is raised here."""
    failures: list[BaseException] = []

    def work(driver: Driver) -> None:
        try:
            driver.run()
        except BaseException as error:
            failures.append(error)
        finally:
            watch.ended.set()

    with driver_of(config, session, watch, once=False) as driver:
        thread = threading.Thread(target=work, args=(driver,), daemon=True)
        thread.start()
        try:
            yield driver
        finally:
            driver.stopping.set()
            thread.join(60)
        assert not thread.is_alive()
    if failures:
        raise failures[0]


def spark_session(name: str, **conf: str) -> Iterator[SparkSession]:
    """A session on two cores, for a module."""
    session = open_session(name, Spark(master="local[2]", conf=conf), work=LOADED)
    yield session
    with suppress(Exception):
        session.stop()


# ── the oracle ───────────────────────────────────────────────────────────────────────────────────────────────────────


def do(url: str, query: str) -> str:
    """One query over plain HTTP."""
    parts = urlsplit(url)
    login = base64.b64encode(f"{unquote(parts.username or '')}:{unquote(parts.password or '')}".encode()).decode()
    request = urllib.request.Request(
        f"http://{parts.hostname}:{parts.port}/?output_format_json_quote_64bit_integers=0&output_format_json_quote_decimals=1",
        data=query.encode(),
        headers={"Authorization": f"Basic {login}"},
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        return bytes(answer.read()).decode()


def ask(url: str, query: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in do(url, f"{query} FORMAT JSONEachRow").split("\n") if line]


Record = tuple[Coordinates, str]


def in_table(site: Site, columns: Sequence[str] = ("id", "name")) -> Counter[Record]:
    """The multiset of (coordinates, fields) that the table holds."""
    listed = ", ".join((*columns, "_topic", "_partition", "_offset"))
    rows = site.ask(f"SELECT {listed} FROM {site.table}")
    return Counter(
        ((row["_topic"], row["_partition"], row["_offset"]), _spell({name: row[name] for name in columns}))
        for row in rows
    )


def expected(sent: Iterable[Sent], columns: Sequence[str] = ("id", "name")) -> Counter[Record]:
    """The same multiset, of what was produced."""
    return Counter((each.at, _spell({name: each.fields.get(name) for name in columns})) for each in sent)


def _spell(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, sort_keys=True)


def parts_of(site: Site) -> dict[str, list[Coordinates]]:
    """The coordinates in each part, in the order in which they lie there."""
    rows = site.ask(
        f"SELECT _part AS part, _topic, _partition, _offset FROM {site.table} ORDER BY _part, _part_offset "
        "SETTINGS max_threads = 1"
    )
    parts: dict[str, list[Coordinates]] = {}
    for row in rows:
        parts.setdefault(row["part"], []).append((row["_topic"], row["_partition"], row["_offset"]))
    return parts


def letters(folder: Path) -> list[dict[str, Any]]:
    """What counts in a folder of dead letters."""
    files = sorted(each for each in folder.glob("*.jsonl") if not each.name.startswith("."))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def wait_until(true: Callable[[], bool], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "it did not come about in time"
        time.sleep(0.05)
