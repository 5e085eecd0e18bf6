"""Real queries of a user's own: Spark's Kafka source, a stateless transformation, and `exactly_once` at the end.

The judge reads the target with plain SQL over a connection of its own, and compares whole rows, values and all, as a multiset.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from confluent_kafka import Message, Producer
from jvms import LOADED
from pyspark.sql import DataFrame, SparkSession

import landonce
from landonce.engine.observe import Silent
from landonce.engine.outside import NamedSink
from landonce.engine.spark import daemon
from landonce.jars import SPARK_KAFKA
from landonce.local import LocalClickHouse, LocalKafka
from landonce.query.once import ExactlyOnce

TABLE = """CREATE TABLE {} (id Int64, word String, _topic LowCardinality(String), _partition Int32, _offset Int64)
ENGINE = MergeTree {} ORDER BY (_topic, _partition, _offset) SETTINGS non_replicated_deduplication_window = 1000"""
SELECT = "SELECT _topic, _partition, _offset, id, word FROM "
Coordinate = tuple[str, int, int]
Row = tuple[str, int, int, int | None, str | None]
"""Coordinates, id and word."""
Values = tuple[int | None, str | None]
Make = Callable[[DataFrame], DataFrame]


def open_session(master: str = "local[2]", **conf: str) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(master).config("spark.jars.packages", SPARK_KAFKA)
    builder = builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.python.daemon.module", daemon.__name__)
    builder = builder.config(f"spark.executorEnv.{daemon.LOADED}", LOADED)
    for name, value in conf.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


def plain(frame: DataFrame) -> DataFrame:
    """What users write: JSON, some of it filtered away, coordinates kept."""
    parsed = frame.selectExpr(
        "topic", "partition", "offset", "from_json(CAST(value AS STRING), 'id BIGINT, word STRING') r"
    )
    return parsed.selectExpr("topic", "partition", "offset", "r.id", "r.word").where("word <> 'skip'")


class DiesAt(Silent):
    """The end of a run before this step, after passing it so often."""

    def __init__(self, step: str, skip: int = 0) -> None:
        self._step, self._left = step, skip

    def step(self, effect: Any) -> None:
        if effect.step.value == self._step:
            if self._left == 0:
                raise RuntimeError(f"died before {self._step}")
            self._left -= 1


def some_skipped(number: int) -> str:
    """Whole ends of most ranges are filtered away: the rows do not show where a batch began and ended."""
    return "skip" if number % 20 < 6 or number % 20 > 15 else f"w{number}"


class Produced(NamedTuple):
    """One record, and where the broker put it."""

    at: Coordinate
    id: int
    word: str

    @property
    def values(self) -> Values:
        return self.id, self.word


@dataclass
class Site:
    """One query: its topics, its sink, its ledger, its checkpoint."""

    spark: SparkSession
    bootstrap: str
    topics: tuple[str, ...]
    folder: Path
    sink: NamedSink
    ask: Callable[[], list[Row]]
    """All rows of the target."""
    ledger: str | dict[str, Any] | None = None
    name: str = "q"
    produced: list[Produced] = field(default_factory=list)
    block_rows: int = 100_000

    @property
    def checkpoint(self) -> Path:
        return self.folder / "a checkpoint"

    def produce(self, count: int, *, topic: str = "", partitions: int = 2, word: Callable[[int], str] = str) -> None:
        """Records in every partition in turn."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "acks": "all"})

        def note(number: int, word: str) -> Callable[[Any, Message], None]:
            def delivered(error: Any, message: Message) -> None:
                assert error is None, error
                at = message.topic(), message.partition(), message.offset()
                self.produced.append(Produced(at, number, word))

            return delivered

        for number in range(count):
            text = word(number)
            value = json.dumps({"id": number, "word": text})
            producer.produce(
                topic or self.topics[0], value.encode(), partition=number % partitions, on_delivery=note(number, text)
            )
        assert producer.flush(60) == 0

    def once(self, **options: Any) -> ExactlyOnce:
        return landonce.exactly_once(
            self.sink, self.ledger, **{"name": self.name, "block_rows": self.block_rows, **options}
        )

    def stream(self, *, per_trigger: int | None = None, start: str = "earliest", **options: str) -> DataFrame:
        reader = (
            self.spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self.bootstrap)
            .option("subscribe", ",".join(self.topics))
            .option("startingOffsets", start)
        )
        if per_trigger is not None:
            reader = reader.option("maxOffsetsPerTrigger", per_trigger)
        for name, value in options.items():
            reader = reader.option(name, value)
        return reader.load()

    def run(
        self,
        deliver: Callable[[DataFrame, int], None] | None = None,
        make: Make = plain,
        mode: str = "append",
        **source: Any,
    ) -> None:
        """The query, until what is there is done; raises what ended it."""
        frame = make(self.stream(**source))
        query = (
            frame.writeStream.foreachBatch(deliver or self.once())
            .option("checkpointLocation", str(self.checkpoint))
            .outputMode(mode)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def lose_checkpoint(self) -> None:
        shutil.rmtree(self.checkpoint)

    def forget_last_commit(self) -> None:
        """As if Spark had died before it wrote that the last batch is done."""
        commits = self.checkpoint / "commits"
        last = max((each for each in commits.iterdir() if each.name.isdigit()), key=lambda each: int(each.name))
        last.unlink()
        (commits / f".{last.name}.crc").unlink(missing_ok=True)

    def loses_checkpoints(self) -> None:
        """Nothing is lost or twice when Spark forgets its last commit, loses its checkpoint, and begins at offsets that landonce gives."""
        for topic in self.topics:
            self.produce(40 // len(self.topics), topic=topic, word=some_skipped)
        self.run(per_trigger=24)
        self.exact()
        self.forget_last_commit()
        self.produce(10)
        self.run(per_trigger=24)
        self.exact()
        self.lose_checkpoint()
        self.produce(10, topic=self.topics[-1])
        self.run(per_trigger=34)
        self.exact()
        self.lose_checkpoint()
        self.produce(10)
        self.run(start=self.once().starting_offsets(self.bootstrap, self.topics))
        self.exact()

    def duplicates_with(self, append: Callable[[DataFrame, int], None]) -> None:
        """The control: what a plain function does in a scene where landonce lands everything once."""
        self.produce(20)
        self.run(append, per_trigger=10)
        self.exact()
        self.forget_last_commit()
        self.run(append, per_trigger=10)
        with pytest.raises(AssertionError, match="too many"):
            self.exact()

    def exact(self, made: Callable[[Produced], Values] = lambda each: each.values) -> None:
        """0 missing, 0 twice, and every value is the record's own. `made`: what the query makes of it."""
        found = Counter(self.ask())
        due = Counter((*each.at, *made(each)) for each in self.produced if each.word != "skip")
        assert found - due == Counter(), f"too many: {found - due}"
        assert due - found == Counter(), f"missing: {due - found}"

    def unspoiled(self, when: str) -> None:
        """Nothing stands twice, whatever stands beside it."""
        assert max(Counter(row[:3] for row in self.ask()).values(), default=1) == 1, when


Open = Callable[..., Site]


def opener(
    spark: SparkSession,
    kafka: LocalKafka,
    folder: Path,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
    request: pytest.FixtureRequest,
) -> Open:
    """`opener(…)(kind)` makes a query's surroundings: "clickhouse", "postgres" or "sqlite"."""

    def open_(kind: str, topics: int = 1, partition_by: str = "", **settings: Any) -> Site:
        names = tuple(new_topic(partitions=2) for _ in range(topics))
        here = (spark, kafka.bootstrap_servers, names, folder)
        if kind == "sqlite":
            path = folder / "target.db"
            sink = landonce.sql(f"sqlite:///{path}", "events", create=True)
            return Site(*here, sink, lambda: in_sqlite(path), **settings)
        if kind == "postgres":
            url = request.getfixturevalue("new_database")()
            return Site(*here, landonce.sql(url, "events", create=True), lambda: in_postgres(url), **settings)
        server: LocalClickHouse = request.getfixturevalue("clickhouse")
        table = new_table()
        server.ask(TABLE.format(table, partition_by))
        sink = landonce.clickhouse(server.url, table, deadline=2.5)
        ledger = f"sqlite:///{folder / 'ledger'}"
        return Site(*here, sink, lambda: in_clickhouse(server, table), ledger, **settings)

    return open_


OTHER_LEDGERS = ["keeper_map", "plugin", "memory"]
"""What keeps a position and is no database."""


def other_ledger(kind: str, name: str, folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """As a program names it. `plugin`: that of the example package, installed."""
    if kind == "keeper_map":
        return {"keeper_map": {"path": f"/landonce/{name}", "table": f"ledger_of_{name}"}}
    if kind == "memory":
        return {"memory": True}
    patch.syspath_prepend(str(Path(__file__).parents[2] / "examples" / "landonce-jsonl"))
    offered = EntryPoint("folder", "landonce_jsonl.ledger:open_ledger", "landonce.ledgers")
    patch.setattr("landonce.packages.entry_points", lambda **_: (offered,))
    (folder / "ledgers").mkdir()
    return {"plugin": {"name": "folder", "options": {"path": str(folder / "ledgers")}}}


def in_sqlite(path: Path) -> list[Row]:
    with closing(sqlite3.connect(path, timeout=60)) as connection:
        return connection.execute(SELECT + "events").fetchall()


def in_postgres(url: str) -> list[Row]:
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        return connection.execute(SELECT + "events").fetchall()


def in_clickhouse(server: LocalClickHouse, table: str) -> list[Row]:
    lines = server.ask(f"{SELECT}{table} FORMAT JSONCompactEachRow").splitlines()
    return [(topic, number, int(offset), int(id_), word) for topic, number, offset, id_, word in map(json.loads, lines)]
