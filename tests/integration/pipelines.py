"""Small pipelines with real servers, and no Spark: rows, dead letters and the ledger are put where a run would put them.

Nothing here uses landonce's own writing code, so that an audit is tried against rows that it did not make.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from landonce.cli import main
from landonce.errors import LandonceError
from landonce.ledger.open import sqlite_ledger
from landonce.local import LocalClickHouse, LocalKafka
from landonce.protocol.blocks import Block, Plan
from landonce.protocol.ledger import LedgerState, Position, bound, prepared
from landonce.protocol.ranges import Partition, Range
from landonce.read.kafka.broker import Broker

_ids = itertools.count()


@dataclass(frozen=True)
class Said:
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


@dataclass
class SmallPipeline:
    """One topic, one table, one file."""

    kafka: LocalKafka
    clickhouse: LocalClickHouse
    folder: Path
    topic: str
    table: str

    @property
    def file(self) -> Path:
        return self.folder / "clicks.yaml"

    @property
    def dead(self) -> Path:
        return self.folder / "dead"

    def write_file(self, **changes: object) -> None:
        document: dict[str, object] = {
            "pipeline": self.table,
            "source": {"kafka": {"bootstrap_servers": self.kafka.bootstrap_servers, "topics": [self.topic]}},
            "sink": {"clickhouse": {"url": self.clickhouse.url, "table": self.table}},
            "ledger": {"sqlite": "clicks.ledger"},
            **changes,
        }
        self.file.write_text(yaml.safe_dump(document))

    def make_table(
        self, columns: str = "id Int64", settings: str = "non_replicated_deduplication_window = 10000"
    ) -> None:
        coordinates = "_topic LowCardinality(String), _partition Int32, _offset Int64"
        self.clickhouse.ask(
            f"CREATE TABLE {self.table} ({columns}, {coordinates}) ENGINE = MergeTree "
            f"ORDER BY (_topic, _partition, _offset) SETTINGS {settings}"
        )

    def produce(self, values: Iterable[bytes | None], partition: int = 0, keys: Iterable[bytes] | None = None) -> None:
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers})
        listed = list(values)
        for value, key in zip(listed, keys or [None] * len(listed), strict=True):
            producer.produce(self.topic, value=value, key=key, partition=partition)
        assert producer.flush(30) == 0

    def land(self, offsets: Iterable[int], partition: int = 0, topic: str = "") -> None:
        """No two calls insert the same block, which ClickHouse would take for a repetition and drop."""
        rows = ", ".join(f"({next(_ids)}, '{topic or self.topic}', {partition}, {at})" for at in offsets)
        self.clickhouse.ask(f"INSERT INTO {self.table} (id, _topic, _partition, _offset) VALUES {rows}")

    def letters(self, batch: int) -> str:
        return f"{self.table}.batch-{batch:09d}-aaaaaaaa-0000.jsonl"

    def bury(self, offsets: Iterable[int], batch: int = 1, partition: int = 0, ending: str = "") -> None:
        self.dead.mkdir(exist_ok=True)
        letters = [{"topic": self.topic, "partition": partition, "offset": at, "reason": "broken"} for at in offsets]
        (self.dead / (self.letters(batch) + ending)).write_text("".join(json.dumps(each) + "\n" for each in letters))

    def forget(self, condition: str) -> None:
        self.clickhouse.ask(f"DELETE FROM {self.table} WHERE {condition} SETTINGS lightweight_deletes_sync = 2")

    def commit(self, positions: dict[int, tuple[int, int]], **changes: object) -> LedgerState:
        """A ledger that stands at (first, committed) per partition."""
        ledger = sqlite_ledger(self.folder / "clicks.ledger", self.table)
        view = Broker(self.kafka.bootstrap_servers, {}).survey([self.topic])
        state = bound(LedgerState(self.table, lineage="lineage"), view.cluster_id, dict(view.topic_ids), {})
        placed = tuple((Partition(self.topic, number), Position(*at)) for number, at in sorted(positions.items()))
        state = replace(state, positions=placed, batch=1, **changes)
        assert ledger.create(state) == state
        return state

    def prepare(self, *ranges: tuple[int, int, int], fingerprint: str = "old", deadline: int = 0) -> LedgerState:
        """A plan is pending, with one block for each (partition, first, end)."""
        ledger = sqlite_ledger(self.folder / "clicks.ledger", self.table)
        blocks = tuple(Block((Range(Partition(self.topic, number), a, b),), self.table) for number, a, b in ranges)
        state = self.ledger()
        return ledger.change(state, prepared(state, Plan(state.batch + 1, blocks, fingerprint, deadline)))

    def ledger(self) -> LedgerState:
        state = sqlite_ledger(self.folder / "clicks.ledger", self.table).load()
        assert state is not None
        return state

    def delete_records(self, before: int, partition: int = 0) -> None:
        """As retention would."""
        from confluent_kafka import TopicPartition

        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap_servers})
        where = TopicPartition(self.topic, partition, before)
        next(iter(admin.delete_records([where]).values())).result(30)

    def recreate_topic(self, partitions: int = 1) -> None:
        """Comes back when the brokers agree that it is another topic, which takes a while on a busy machine."""
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap_servers})
        broker = Broker(self.kafka.bootstrap_servers, {})
        old = broker.survey([self.topic]).topic_ids
        admin.delete_topics([self.topic])[self.topic].result(30)
        until = time.monotonic() + 30
        while True:
            try:
                new = NewTopic(self.topic, num_partitions=partitions, replication_factor=1)
                with suppress(KafkaException):  # the deletion is not over yet, or the topic is there already
                    admin.create_topics([new])[self.topic].result(30)
                assert broker.survey([self.topic]).topic_ids != old
                return
            except (AssertionError, LandonceError):
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)


def landonce(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: object) -> Said:
    """Runs the command line in this process."""
    monkeypatch.setattr("sys.argv", ["landonce", *map(str, arguments)])
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    return Said(int(ended.value.code or 0), said.out, said.err)
