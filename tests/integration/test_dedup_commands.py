"""What people ask of deduplication, and decide about it: `landonce dedup`, `check` and `state`, with real Kafka and real targets."""

from __future__ import annotations

import io
import itertools
import json
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
import yaml
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from deliveries import ask, send
from pipelines import Said, SmallPipeline, landonce
from plain_process import UNDISTURBED, PlainProcess
from pyiceberg.catalog import load_catalog
from typer.testing import CliRunner

from landonce.cli import app
from landonce.dedup import look, rekey
from landonce.dedup.accept import reshard
from landonce.dedup.chunks import StoredRecords
from landonce.dedup.run import run_pipeline
from landonce.dedup.store import Store
from landonce.engine import workers
from landonce.errors import ConfigError, Fenced, KeyRuleChanged, StoreBehind, TopicRecreated
from landonce.local import LocalClickHouse, LocalKafka
from landonce.protocol.ledger import Totals
from landonce.sinks import transactional
from landonce.sinks.parts import open_parts
from landonce.sinks.pipeline_file import load
from landonce.sinks.sql import worker as sql_worker

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
Command = Callable[..., Said]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return lambda *words: landonce(capsys, monkeypatch, *words)


@dataclass
class Unique:
    """One pipeline with `dedup`: a topic, a file, a table `events` of (id, kind, name)."""

    kafka: LocalKafka
    folder: Path
    topic: str
    sink: dict[str, Any]
    rows: Callable[[], list[tuple[Any, ...]]]
    """(id, kind, name, partition, offset) of each row."""

    @property
    def file(self) -> Path:
        return self.folder / "p.yaml"

    @property
    def store(self) -> Path:
        return self.folder / "keys.db"

    def source(self, **changes: Any) -> dict[str, Any]:
        kafka = {
            "bootstrap_servers": self.kafka.bootstrap_servers,
            "topics": [self.topic],
            "schema": "id bigint, kind string, name string",
        }
        return {"kafka": {**kafka, **changes}}

    def write_file(self, dedup: dict[str, Any] | None = None, **changes: Any) -> None:
        document = {
            "pipeline": f"p-{self.topic}",
            "source": self.source(),
            "sink": self.sink,
            "dedup": {"key": ["kind", "id"], "store": {"sqlite": "keys.db"}, **(dedup or {})},
            "batch": {"interval": "0s", "max_rows": 300, "block_rows": 100},
            "spark": {"master": "local[2]"},
            **changes,
        }
        self.file.write_text(yaml.safe_dump({name: value for name, value in document.items() if value is not None}))

    def send(self, records: Iterable[tuple[int, str, str]], partition: int = 0, **more: Any) -> None:
        send(
            self.kafka,
            self.topic,
            [{"id": number, "kind": kind, "name": name} for number, kind, name in records],
            partition=partition,
            **more,
        )

    def run(self) -> Totals:
        return run_pipeline(load(self.file), once=True)

    def events(self) -> Counter[tuple[int, str]]:
        """How often each key is in the target."""
        return Counter((number, kind) for number, kind, *_ in self.rows())


@pytest.fixture
def sql(kafka: LocalKafka, tmp_path: Path, new_topic: Callable[..., str]) -> Unique:
    def rows() -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(tmp_path / "target.db")) as connection:
            return connection.execute("SELECT id, kind, name, _partition, _offset FROM events").fetchall()

    sink = {"sql": {"url": f"sqlite:///{tmp_path}/target.db", "table": "events", "create": True}}
    made = Unique(kafka, tmp_path, new_topic(2), sink, rows)
    made.write_file()
    return made


@pytest.fixture
def clickhouse_table(
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    tmp_path: Path,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
) -> Unique:
    table = new_table()

    def rows() -> list[tuple[Any, ...]]:
        found = ask(clickhouse.url, f"SELECT id, kind, name, _partition, _offset FROM {table}")
        return [
            (int(each["id"]), each["kind"], each["name"], each["_partition"], int(each["_offset"])) for each in found
        ]

    sink = {"clickhouse": {"url": clickhouse.url, "table": table, "create": True, "deadline": "5s"}}
    made = Unique(kafka, tmp_path, new_topic(2), sink, rows)
    made.write_file(ledger={"sqlite": "keys.db"})
    return made


@pytest.fixture
def lake(kafka: LocalKafka, tmp_path: Path, new_topic: Callable[..., str]) -> Unique:
    folder = tmp_path / "lake"
    folder.mkdir()
    catalog = load_catalog("landonce", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")

    def rows() -> list[tuple[Any, ...]]:
        found = catalog.load_table("db.t").scan().to_arrow().to_pylist()
        return [(each["id"], each["kind"], each["name"], each["_kafka_partition"], each["_offset"]) for each in found]

    made = Unique(kafka, tmp_path, new_topic(2), {"iceberg": {"table": "db.t", "create": True}}, rows)
    made.write_file()
    return made


IN_EACH = ["sql", "clickhouse_table", "lake"]


@pytest.fixture(params=[*IN_EACH[:2], pytest.param("lake", marks=pytest.mark.long)])
def unique(request: pytest.FixtureRequest) -> Unique:
    """The pipeline with each kind of target."""
    made: Unique = request.getfixturevalue(request.param)
    return made


def some(first: int, end: int, kind: str = "a") -> list[tuple[int, str, str]]:
    return [(each, kind, f"n{each}") for each in range(first, end)]


def test_a_key_of_floats_survives_a_wider_column(clickhouse_table: Unique, command: Command) -> None:
    """0.1 is rounded by the table, and not in the key."""
    site = clickhouse_table
    source = site.source(schema="id BIGINT, price FLOAT")
    site.write_file({"key": ["id", "price"]}, source=source, ledger={"sqlite": "keys.db"})
    records = [{"id": number, "price": 0.1 + number} for number in range(10)]
    send(site.kafka, site.topic, records)
    assert site.run().landed == 10
    url, table = site.sink["clickhouse"]["url"], site.sink["clickhouse"]["table"]
    assert ask(url, f"SELECT DISTINCT toTypeName(price) AS type FROM {table}") == [{"type": "Nullable(Float32)"}]
    assert "offset 3\n" in command("dedup", "find", site.file, "3", "3.1").out
    send(site.kafka, site.topic, records)
    assert site.run().landed == 0
    ask(url, f"ALTER TABLE {table} MODIFY COLUMN price Nullable(Float64)")
    site.write_file(
        {"key": ["id", "price"]}, source=site.source(schema="id BIGINT, price DOUBLE"), ledger={"sqlite": "keys.db"}
    )
    send(site.kafka, site.topic, records)
    assert site.run().landed == 0
    assert ask(url, f"SELECT toInt32(count()) AS rows FROM {table}") == [{"rows": 10}]


def test_stored_rows_are_what_is_sent_whatever_code_has_become(sql: Unique, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first attempt stores its blocks, and ends before it sends them. The next start has another decoder. The control: records that come
    later get its values."""
    sql.send(some(0, 50))
    with monkeypatch.context() as patch:
        freeze = StoredRecords.freeze

        def ends(*given: Any) -> Any:
            freeze(*given)
            raise KeyboardInterrupt

        patch.setattr(StoredRecords, "freeze", ends)
        with pytest.raises(KeyboardInterrupt):
            sql.run()
    assert sql.rows() == []
    decode_by = sql_worker.decode_by

    def other(*given: Any) -> Any:
        decode = decode_by(*given)

        def decoded(*values: Any) -> Any:
            found = decode(*values)
            names = pa.array(["changed"] * found.table.num_rows)
            return replace(
                found, table=found.table.set_column(found.table.schema.get_field_index("name"), "name", names)
            )

        return decoded

    monkeypatch.setattr(sql_worker, "decode_by", other)
    monkeypatch.setattr(transactional, "decode_by", other)
    sql.send(some(50, 60))
    sql.run()
    assert len(sql.rows()) == 60
    assert {name for number, _, name, *_ in sql.rows() if number < 50} == {f"n{each}" for each in range(50)}
    assert {name for number, _, name, *_ in sql.rows() if number >= 50} == {"changed"}


class TestFirst:
    """Of the records of one event."""

    def test_in_one_batch_the_lowest_timestamp_is_first(self, sql: Unique) -> None:
        """Also in one partition, where the producer set them in another order than the offsets have. Then the lowest offset."""
        now = int(time.time() * 1000)
        sql.send([(1, "a", "sent first"), (2, "a", "sent first"), (3, "a", "sent first")], timestamp=now)
        sql.send([(1, "a", "older")], timestamp=now - 1000)
        sql.send([(2, "a", "younger")], timestamp=now + 1000)
        sql.send([(3, "a", "as old")], timestamp=now)
        assert sql.run().landed == 3
        first = [(1, "a", "older", 0, 3), (2, "a", "sent first", 0, 1), (3, "a", "sent first", 0, 2)]
        assert sorted(sql.rows()) == first

    def test_an_earlier_batch_comes_before_a_later_one(self, sql: Unique) -> None:
        now = int(time.time() * 1000)
        sql.send([(1, "a", "sent first")], timestamp=now)
        assert sql.run().landed == 1
        sql.send([(1, "a", "older")], timestamp=now - 1000)
        assert sql.run().landed == 0
        assert sql.rows() == [(1, "a", "sent first", 0, 0)]


def test_a_topic_that_was_created_again_goes_on_under_another_name(
    sql: Unique, command: Command, new_topic: Callable[..., str]
) -> None:
    """Every step that the messages name: a new topic, a new pipeline, the same scope."""
    sql.send(some(0, 10))
    sql.run()
    SmallPipeline.recreate_topic(sql, 2)  # type: ignore[arg-type]
    with pytest.raises(TopicRecreated, match="was deleted and created again"):
        sql.run()
    said = command("state", "rebase", sql.file, "--yes")
    words = " ".join(said.err.split())
    assert (said.code, "a topic with a new name" in words, f"`dedup.scope: p-{sql.topic}`" in words) == (1, True, True)
    scope, sql.topic = f"p-{sql.topic}", new_topic()
    sql.write_file({"scope": scope})
    sql.send(some(5, 15))
    assert sql.run().landed == 5
    assert sql.events() == Counter({(number, "a"): 1 for number in range(15)})
    assert sql.run().landed == 0


VALUES = [
    ("DECIMAL(38,10)", "12345678901234567890.1234567890", "12345678901234567890.1234567890"),
    ("DECIMAL(20,4)", "12.5", "12.500"),
    ("TIMESTAMP", '"2026-01-02T03:04:05.123456Z"', "2026-01-02 03:04:05.123456"),
    ("DATE", '"2026-01-02"', "2026-01-02"),
    ("DOUBLE", "0.1", "0.1"),
    ("BIGINT", "9223372036854775807", "9223372036854775807"),
    ("BOOLEAN", "true", "true"),
    ("STRING", '"12"', "12"),
]
"""A type, what a producer writes, and what a person asks for."""


class TestFind:
    def test_an_event_that_was_accepted(self, sql: Unique, command: Command) -> None:
        sql.send(some(0, 50), partition=1)
        sql.run()
        said = command("dedup", "find", sql.file, "a", "7")
        assert said.code == 0
        assert f"from {sql.topic}[1] offset 7" in said.out
        assert "it was sent" in said.out
        assert "its payload is in the store" in said.out
        found = command("dedup", "find", sql.file, "id=7", "kind=a", "--json").json
        assert (found["partition"], found["offset"], found["sent"]) == (1, 7, True)
        assert json.loads(found["payload"])["name"] == "n7"

    def test_when_it_was_accepted(self, sql: Unique, command: Command) -> None:
        """By the clock of the driver that accepted it, in seconds; and not when it was produced, or when its copy came."""
        sql.send(some(0, 5), timestamp=int(time.time() * 1000) - 1_000_000)
        began = int(time.time())
        sql.run()
        ended = int(time.time())
        time.sleep(max(0.0, ended + 1 - time.time()))
        sql.send(some(0, 5))
        assert sql.run().landed == 0
        found = command("dedup", "find", sql.file, "a", "3", "--json").json
        assert began <= found["at"] <= ended
        moment = datetime.fromtimestamp(found["at"], timezone.utc)
        said = command("dedup", "find", sql.file, "a", "3").out
        assert said.startswith(f"accepted at {moment:%Y-%m-%d %H:%M:%S} UTC from {sql.topic}[0] offset 3")

    def test_an_event_that_was_not(self, sql: Unique, command: Command) -> None:
        sql.send(some(0, 5))
        sql.run()
        said = command("dedup", "find", sql.file, "b", "3")
        assert said.out.startswith("not accepted in the window, which holds all that was ever accepted")
        assert command("dedup", "find", sql.file, "b", "3", "--json").json == {"accepted": False}

    def test_a_key_that_is_none(self, sql: Unique, command: Command) -> None:
        sql.send(some(0, 5))
        sql.run()
        said = command("dedup", "find", sql.file, "3")
        assert said.code == 2
        assert "kind (string), id (integer)" in said.err
        assert "cannot be read" in command("dedup", "find", sql.file, "a", "x").err

    def test_a_rule_for_each_kind(self, sql: Unique, command: Command) -> None:
        sql.write_file({"key": None, "by": "kind", "rules": {"a": ["id"], "*": ["id", "name"]}})
        sql.send([*some(0, 5), *some(0, 5, "b")])
        sql.run()
        assert "offset 3\n" in command("dedup", "find", sql.file, "a", "3").out
        assert "offset 8\n" in command("dedup", "find", sql.file, "b", "3", "n3").out
        assert "not accepted" in command("dedup", "find", sql.file, "b", "3", "n4").out

    @pytest.mark.parametrize(("type_", "written", "asked"), VALUES)
    def test_a_value_of_any_type(
        self, clickhouse_table: Unique, command: Command, type_: str, written: str, asked: str
    ) -> None:
        site = clickhouse_table
        site.write_file(
            {"key": ["id", "v"]}, source=site.source(schema=f"id BIGINT, v {type_}"), ledger={"sqlite": "keys.db"}
        )
        send(site.kafka, site.topic, [f'{{"id": 0, "v": {each}}}'.encode() for each in ("null", written)])
        site.run()
        assert "offset 1\n" in command("dedup", "find", site.file, "0", asked).out

    def test_nested_fields(self, clickhouse_table: Unique, command: Command) -> None:
        site = clickhouse_table
        schema = "id BIGINT, buyer STRUCT<address: STRUCT<zip: STRING, house: DECIMAL(38,10)>>"
        site.write_file(
            {"key": ["buyer.address.zip", "buyer.address.house"]},
            source=site.source(schema=schema),
            ledger={"sqlite": "keys.db"},
        )
        written = '{"id": 0, "buyer": {"address": {"zip": "007", "house": 12345678901234567890.1234567890}}}'
        send(site.kafka, site.topic, [b"{}", written.encode()])
        site.run()
        key = "007", "12345678901234567890.1234567890"
        assert "offset 1\n" in command("dedup", "find", site.file, *key).out
        named = [f"buyer.address.{name}={each}" for name, each in zip(("zip", "house"), key, strict=True)]
        assert "offset 1\n" in command("dedup", "find", site.file, *named).out

    @pytest.mark.parametrize("part", [{"kafka_key": True}, "_key"])
    def test_what_is_beside_the_fields(self, sql: Unique, command: Command, part: Any) -> None:
        schema = "id BIGINT, _key BINARY"
        sql.write_file({"key": [part, {"header": "source"}]}, source=sql.source(schema=schema))
        for number, name in enumerate(("first", "sécond")):
            send(sql.kafka, sql.topic, [{"id": number}], key=name.encode(), headers=[("source", b"shop")])
        sql.run()
        assert "offset 1\n" in command("dedup", "find", sql.file, "sécond", "shop").out
        assert "not accepted" in command("dedup", "find", sql.file, "sécond", "web").out

    def test_without_dedup(self, sql: Unique, command: Command) -> None:
        sql.file.write_text(yaml.safe_dump({**yaml.safe_load(sql.file.read_text()), "dedup": None}))
        said = command("dedup", "find", sql.file, "3")
        assert "has no section `dedup`" in said.err


class TestCopies:
    KEEP = {"copies": "keep"}

    @staticmethod
    def kept(site: Unique, command: Command) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """(partition, offset) of copies, and of their originals."""
        said = command("dedup", "copies", site.file)
        assert said.code == 0, said.err
        found = [json.loads(line) for line in said.out.splitlines()]
        assert {each["topic"] for each in found} | {each["original"]["topic"] for each in found} <= {site.topic}
        return sorted(
            ((each["partition"], each["offset"]), (each["original"]["partition"], each["original"]["offset"]))
            for each in found
        )

    @staticmethod
    def due(site: Unique, produced: dict[tuple[int, int], tuple[int, str]]) -> list[tuple[Any, ...]]:
        """Every record that has no row, and the row with its key, by what the target holds."""
        rows = {(number, kind): (partition, offset) for number, kind, _, partition, offset in site.rows()}
        return sorted((at, rows[key]) for at, key in produced.items() if rows[key] != at)

    def test_each_copy_with_its_original(self, unique: Unique, command: Command) -> None:
        """In one block, between blocks and partitions, and of earlier runs."""
        unique.write_file(self.KEEP, **({"ledger": {"sqlite": "keys.db"}} if "clickhouse" in unique.sink else {}))
        sent = [*some(0, 200), *some(0, 5), *some(100, 300)], [*some(250, 400), *some(0, 200)]
        produced = {(number, at): each[:2] for number, part in enumerate(sent) for at, each in enumerate(part)}
        before = int(time.time())
        for number, part in enumerate(sent):
            unique.send(part, partition=number)
        unique.run()
        assert unique.events() == Counter({(each, "a"): 1 for each in range(400)})
        unique.send(some(0, 3))
        produced |= {(0, len(sent[0]) + at): each[:2] for at, each in enumerate(some(0, 3))}
        unique.run()
        assert self.kept(unique, command) == self.due(unique, produced)
        one = json.loads(command("dedup", "copies", unique.file).out.splitlines()[0])
        assert before <= datetime.fromisoformat(one["original"]["accepted_at"]).timestamp() <= time.time()

    def test_a_record_that_is_read_again_is_no_copy(self, sql: Unique, command: Command) -> None:
        sql.write_file({**self.KEEP, "scope": "s"})
        sql.send([*some(0, 10), *some(0, 3)])
        sql.run()
        other = {"sql": {**sql.sink["sql"], "table": "others"}}
        sql.write_file({**self.KEEP, "scope": "s"}, pipeline="again", sink=other)
        sql.run()
        assert self.kept(sql, command) == [((0, 10 + each), (0, each)) for each in range(3)]

    def test_none_is_kept_unless_the_file_says_so(self, sql: Unique, command: Command) -> None:
        sql.send([*some(0, 10), *some(0, 3)])
        sql.run()
        assert self.kept(sql, command) == []

    def test_before_the_first_run(self, sql: Unique, command: Command) -> None:
        assert "has no scope" in command("dedup", "copies", sql.file).err

    def test_each_is_kept_once_whatever_is_killed(self, sql: Unique, command: Command) -> None:
        sql.write_file(self.KEEP)
        sent = [*some(0, 100), *some(0, 20), *some(50, 150), *some(0, 10)]
        sql.send(sent)
        for place in ("joined.after", "accepted.before", "accepted.after", "commit.after"):
            # Taking the pipeline is the first commit of a start.
            _kill(sql, place, "run", str(sql.file), "--once", skip=place.startswith("accepted"))
            sql.send(some(0, 10), partition=1)
        sql.run()
        assert sql.events() == Counter({(each, "a"): 1 for each in range(150)})
        produced = {(0, at): each[:2] for at, each in enumerate(sent)}
        produced |= {(1, at): (at % 10, "a") for at in range(40)}
        assert self.kept(sql, command) == self.due(sql, produced)


class TestStats:
    def test_in_words_and_as_a_document(self, sql: Unique, command: Command) -> None:
        sql.send([*some(0, 500), *some(0, 100)])
        sql.run()
        said = command("dedup", "stats", sql.file).out
        assert "500 accepted, 100 copies, 0 seen again" in said
        assert "0 events wait to be sent" in said
        assert "kind (string), id (integer)" in said
        assert "the full window holds" in said
        found = command("dedup", "stats", sql.file, "--json").json
        assert (found["keys"], found["waiting"], found["shards"]) == (500, 0, 16)
        assert sum(each["keys"] for each in found["buckets"]) == 500
        assert found["bytes"]["landonce_deduplication"] == 500 * 36

    def test_the_view(self, sql: Unique) -> None:
        sql.send([*some(0, 500), *some(0, 100)])
        sql.send(some(400, 600), partition=1)
        sql.run()
        sql.send(some(600, 650))
        assert sql.run().landed == 50, "in one batch: no later one says that it was sent"
        with closing(sqlite3.connect(sql.store)) as connection:
            found = connection.execute(
                "SELECT partition_number, accepted, sent, waiting FROM landonce_dedup_waiting ORDER BY 1"
            ).fetchall()
        assert sum(accepted for _, accepted, _, _ in found) == 650
        assert all(accepted == sent and not waiting for _, accepted, sent, waiting in found)

    def test_before_the_first_run(self, sql: Unique, command: Command) -> None:
        said = command("dedup", "stats", sql.file)
        assert said.code == 1
        assert "has no scope" in said.err


class TestCheck:
    @staticmethod
    def findings(said: Said, section: str) -> list[tuple[str, str]]:
        found = {each["name"]: each["findings"] for each in said.json["sections"]}
        return [(each["level"], each["what"]) for each in found.get(section, [])]

    def test_before_the_first_run(self, unique: Unique, command: Command) -> None:
        """The rate is that of the topic, and nothing is made."""
        unique.send(some(0, 1200))
        before = sorted(unique.folder.iterdir())
        said = command("check", unique.file)
        assert said.code == 0, said.out
        assert "records of scope" in said.out
        assert "with the same key are one event: kind (string), id (integer)" in said.out
        assert "a record with a null in its key is a dead letter (on_null: dead_letter)" in said.out
        assert "an event lands once within 60 days (ttl)" in said.out
        # 2 records a second for 67.5 days
        assert "at 2.0 new events/s, the full window holds 11,664,000 keys: 419.9 MB in files" in said.out
        assert "by all records that the topics got in the last 10 minutes, copies included" in said.out
        assert "guaranteed: each event once within ttl (60 days)" in said.out
        assert sorted(unique.folder.iterdir()) == before
        unique.write_file({"cache": "400MB"}, source=unique.source(schema=None))
        said = command("check", unique.file)
        assert "kind (string), id (integer)" in said.out, "of a sample"
        assert "a machine keeps at most 400.0 MB of keys in files (dedup.cache)" in said.out

    def test_once_it_runs(self, unique: Unique, command: Command) -> None:
        """The rate is that of the store. Nothing is changed."""
        unique.send([*some(0, 500), *some(0, 100)])
        unique.run()
        unique.send(some(500, 530))
        before = unique.store.read_bytes()
        said = command("check", unique.file, "--json")
        assert said.code == 0, said.out
        assert unique.store.read_bytes() == before
        store, found = self.findings(said, "store"), self.findings(said, "deduplication")
        assert any("500 events accepted, 100 copies" in what for _, what in store)
        assert any("at most 30 records behind the end of 2 partitions" in what for _, what in store)
        assert any("at most 0 records behind" in what for _, what in self.findings(said, "position"))
        assert ("ok", "the store is not behind the target: it knows all events that are there") in found
        assert any("by what was accepted lately" in what for _, what in found)
        assert said.json["guarantee"]["what"].startswith("each event once within ttl (60 days)")
        assert any("60 days" in each for each in said.json["guarantee"]["as_long_as"])

    def test_what_a_start_would_refuse(self, sql: Unique, command: Command, tmp_path: Path) -> None:
        """Each of these starts is refused, and the check says the same first."""

        def refused(error: type[Exception], section: str, said: str) -> None:
            with pytest.raises(error) as raised:
                sql.run()
            checked = command("check", sql.file, "--json")
            assert checked.code == 1
            what: str = raised.value.what  # type: ignore[attr-defined]
            assert said in what
            assert what in [what for level, what in self.findings(checked, section) if level == "refused"]

        sql.write_file({"key": ["nothing"]})
        refused(ConfigError, "deduplication", "'nothing' is not a field of the records")
        sql.write_file({"scope": "shared"})
        sql.send(some(0, 50))
        sql.run()
        backup = sql.store.read_bytes()
        sql.write_file({"scope": "shared", "key": ["id"]})
        refused(KeyRuleChanged, "deduplication", "made by another rule: kind (string), id (integer)")
        sql.write_file({"scope": "shared", "ttl": "1d"}, pipeline="other")
        refused(ConfigError, "deduplication", "relies on it")
        sql.write_file({"scope": "shared"})
        sql.send(some(50, 60))
        sql.run()
        newest = sql.store.read_bytes()
        sql.store.write_bytes(backup)
        refused(StoreBehind, "deduplication", "the target holds events up to offset 59")
        sql.store.write_bytes(newest)
        upsert = {"sql": {**sql.sink["sql"], "mode": "upsert", "key": "id"}}
        sql.write_file({"scope": "shared"}, sink=upsert)
        refused(ConfigError, "store", "for events that are only added")
        sql.write_file({"scope": "shared"})
        assert command("check", sql.file).code == 0

    def test_the_step_of_a_window_that_was_changed(self, sql: Unique, command: Command) -> None:
        """It stays an eighth of the window that the scope began with."""
        sql.send(some(0, 5))
        sql.run()
        sql.write_file({"ttl": "8d"})
        sql.run()
        said = " ".join(command("check", sql.file).out.split())
        assert "within 8 days (ttl): its key is remembered that long, and up to 7.5 days longer" in said
        assert "window: 8 days, in steps of 7.5 days" in command("dedup", "stats", sql.file).out

    def test_a_file_on_this_machine_is_no_store_for_workers_elsewhere(self, sql: Unique, command: Command) -> None:
        sql.write_file(spark={"master": "spark://elsewhere:7077"})
        said = command("check", sql.file, "--json")
        assert said.code == 1
        (what,) = [what for level, what in self.findings(said, "store") if level == "refused"]
        assert "is a file on this machine, and the workers run on other machines" in what

    def test_a_pending_plan_may_be_sent_by_another_file(
        self, clickhouse_table: Unique, command: Command, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its blocks are stored, or were never sent."""
        clickhouse_table.send(some(0, 100))
        clickhouse_table.run()
        clickhouse_table.send(some(100, 300))
        clickhouse_table.send(some(200, 400), partition=1)
        _crash_after_blocks(monkeypatch, 4)
        with pytest.raises(KeyboardInterrupt):
            clickhouse_table.run()
        monkeypatch.undo()
        clickhouse_table.write_file(transform={"where": "id >= 0"}, ledger={"sqlite": "keys.db"})
        said = command("check", clickhouse_table.file)
        assert "is pending" in said.out
        assert said.code == 0, said.out

    def test_a_topic_that_lost_what_waits_in_the_store(
        self, sql: Unique, command: Command, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sql.send(some(0, 100))
        monkeypatch.setattr("landonce.dedup.run.Both._push", lambda _: None)
        sql.run()
        monkeypatch.undo()
        _delete_records(sql, 100)
        said = command("check", sql.file)
        assert said.code == 0, said.out
        assert "first offset that the store keeps" in said.out
        sql.run()
        assert len(sql.rows()) == 100


class TestState:
    def test_both_pipelines_are_shown(self, sql: Unique, command: Command) -> None:
        sql.send([*some(0, 50), *some(0, 10)])
        sql.run()
        said = command("state", "show", sql.file).out
        assert "60 read = 50 landed + 0 dead-lettered + 10 filtered" in said
        assert "50 read = 50 landed" in said
        found = command("state", "show", sql.file, "--json").json
        assert found["accept"]["ledger"]["totals"]["filtered"] == 10
        assert found["ledger"]["positions"][0]["lag"] == 0

    def test_what_does_not_suit_is_refused(self, sql: Unique, command: Command) -> None:
        sql.send(some(0, 5))
        sql.run()
        for words, why in (
            (("rebase",), "cannot be bound to other topics"),
            (("accept-change",), "a stored block is sent as it is"),
            (("import", "--from-nothing"), "says nothing about the keys"),
        ):
            said = command("state", words[0], sql.file, *words[1:])
            assert said.code == 1
            assert why in said.err
            assert "Next step:" in said.err


def _meanwhile(monkeypatch: pytest.MonkeyPatch, read: str, happens: Callable[[Any, Any], None]) -> None:
    """This happens in the store, once, between the list and the bytes of what is listed."""
    original, left = getattr(Store, read), [happens]

    def late(store: Store, listed: Any) -> Any:
        if left:
            left.pop()(store, listed)
        return original(store, listed)

    monkeypatch.setattr(Store, read, late)


class TestBesideADriver:
    """What a command has listed is merged, split or removed before the command reads it: nothing is damaged, and no backup is needed."""

    @pytest.fixture
    def split(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
        """From here on: once, all runs are replaced by others. Gives what was read too late."""
        gone: list[str] = []

        def reshards(store: Store, listed: Any) -> None:
            gone.append(listed.run)
            reshard(store, 32)
            assert not store.run_segments(listed)

        def begin() -> list[str]:
            _meanwhile(monkeypatch, "run_segments", reshards)
            return gone

        return begin

    def test_find(self, sql: Unique, command: Command, split: Callable[[], list[str]]) -> None:
        sql.send(some(0, 50))
        sql.run()
        gone = split()
        assert "offset 7\n" in command("dedup", "find", sql.file, "a", "7").out
        assert gone

    def test_rekey(self, sql: Unique, command: Command, split: Callable[[], list[str]]) -> None:
        sql.send(some(0, 50))
        sql.run()
        sql.write_file({"key": ["id"], "shards": 32})
        gone = split()
        said = command("dedup", "rekey", sql.file, "--yes")
        assert (said.code, bool(gone)) == (0, True), said.err
        sql.send(some(0, 60, "b"))
        assert sql.run().landed == 10

    def test_rebuild(self, sql: Unique, command: Command, split: Callable[[], list[str]]) -> None:
        sql.send(some(0, 50))
        sql.run()
        backup = sql.store.read_bytes()
        sql.send(some(50, 70))
        sql.run()
        sql.store.write_bytes(backup)
        gone = split()
        said = command("dedup", "rebuild", sql.file, "--yes")
        assert (said.code, bool(gone)) == (0, True), said.err
        sql.send(some(0, 80))
        assert sql.run().landed == 10

    def test_bytes_that_are_listed_and_gone_are_damage(self, sql: Unique, command: Command) -> None:
        """The control."""
        sql.send(some(0, 50))
        sql.run()
        with closing(sqlite3.connect(sql.store)) as connection, connection:
            connection.execute("DELETE FROM landonce_deduplication")
        said = command("dedup", "find", sql.file, "a", "7")
        assert said.code == 3
        assert "does not match its digest" in said.err

    @pytest.mark.parametrize("words", [("stats",), ("find", "a", "120")], ids=lambda words: words[0])
    def test_events_that_are_cleaned_away(
        self, sql: Unique, command: Command, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
    ) -> None:
        """A part of the chunk waited when it was listed; then it was sent and removed."""
        sql.write_file(batch={"interval": "0s", "max_rows": 300, "block_rows": 300})
        sql.send(some(0, 300))
        sql.run()
        with closing(sqlite3.connect(sql.folder / "target.db")) as connection, connection:
            connection.execute("UPDATE landonce_position SET committed = 100 WHERE partition = 0")
        removed: list[str] = []

        def cleans(store: Store, listed: Any) -> None:
            removed.append(listed.chunk)
            store.forget_chunks(f"p-{sql.topic}", store.chunks(f"p-{sql.topic}"))

        _meanwhile(monkeypatch, "chunk_content", cleans)
        said = command("dedup", words[0], sql.file, *words[1:])
        assert (said.code, bool(removed)) == (0, True), said.err
        assert ("0 events wait" if words == ("stats",) else "keeps its payload no longer") in said.out


class TestRekey:
    def test_the_new_rule_judges_old_events(self, sql: Unique, command: Command) -> None:
        sql.send([*some(0, 50), *some(0, 50, "b"), *some(0, 10)])
        sql.run()
        sql.write_file({"key": ["id"]})
        with pytest.raises(KeyRuleChanged):
            sql.run()
        said = command("dedup", "rekey", sql.file, "--yes")
        assert said.code == 0, said.err
        assert "the key was: kind (string), id (integer)" in said.out
        assert "100 accepted events of the window get new ids: 50 distinct ones" in said.out
        assert "50 events are copies of another event under the new rule" in said.out
        sql.send([*some(0, 50, "c"), (77, "c", "new")])
        assert sql.run().landed == 1
        assert sql.events()[77, "c"] == 1
        assert len(sql.events()) == 101
        assert "offset 7\n" in command("dedup", "find", sql.file, "7").out

    def test_it_shows_what_it_will_do_and_does_nothing_before_the_answer(self, sql: Unique) -> None:
        sql.send([*some(0, 50), *some(0, 50, "b")])
        sql.run()
        sql.write_file({"key": ["id"]})
        before = sql.store.read_bytes()
        asked = CliRunner().invoke(app, ["dedup", "rekey", str(sql.file)], input="n\n")
        assert asked.exit_code == 1
        shown, _, _ = " ".join(asked.output.split()).partition("Do it?")
        assert "the key was: kind (string), id (integer)" in shown
        assert "it becomes: id (integer)" in shown
        assert "100 accepted events of the window get new ids: 50 distinct ones" in shown
        assert "50 events are copies of another event under the new rule" in shown
        assert sql.store.read_bytes() == before
        with pytest.raises(KeyRuleChanged):
            sql.run()

    def test_a_key_without_fields(self, sql: Unique, command: Command) -> None:
        sql.send(some(0, 50), key=b"even")
        sql.send(some(50, 60), key=b"odd")
        sql.run()
        sql.write_file({"key": [{"kafka_key": True}]})
        said = command("dedup", "rekey", sql.file, "--yes")
        assert "60 accepted events of the window get new ids: 2 distinct ones" in said.out, said.err
        sql.store.rename(sql.folder / "lost.db")
        assert command("dedup", "rebuild", sql.file, "--yes").code == 0
        sql.send(some(60, 70), key=b"odd")
        sql.send(some(70, 80), key=b"new")
        assert sql.run().landed == 1

    @pytest.mark.parametrize("between", [["name", "kind"], ["id"], ["grade"]], ids=",".join)
    def test_there_and_back(self, sql: Unique, command: Command, between: list[str]) -> None:
        """The rule in between may take events for copies of each other, or give some of them no key."""
        source = sql.source(schema="id bigint, kind string, name string, grade string")
        sql.write_file(source=source)
        kinds = [*some(0, 500), *some(0, 50, "b")]
        sql.send([*kinds, *some(0, 100)])
        sql.send(some(400, 600), partition=1)
        graded = {"id": 1000, "kind": "a", "name": "n", "grade": "g"}
        send(sql.kafka, sql.topic, [graded], partition=1)
        sql.run()
        before = sorted(sql.rows())
        assert len(before) == 651
        for rule in (between, ["kind", "id"]):
            sql.write_file({"key": rule}, source=source)
            said = command("dedup", "rekey", sql.file, "-y")
            assert said.code == 0, said.err
        assert "651 accepted events of the window get new ids: 651 distinct ones" in said.out
        sql.send([*kinds, *some(400, 600)])
        send(sql.kafka, sql.topic, [graded], partition=1)
        assert sql.run().landed == 0
        assert sorted(sql.rows()) == before

    def test_there_and_back_with_copies_of_the_rule_in_between(self, sql: Unique, command: Command) -> None:
        """What the rule in between dropped was never accepted: it has no key, and lands when it is sent again."""
        sql.send([*some(0, 50), *some(0, 50, "b")])
        sql.run()
        sql.write_file({"key": ["id"]})
        assert command("dedup", "rekey", sql.file, "-y").code == 0
        sql.send([*some(0, 50, "c"), *some(50, 60, "c")])
        assert sql.run().landed == 10
        sql.write_file()
        said = command("dedup", "rekey", sql.file, "-y")
        assert "110 accepted events of the window get new ids: 110 distinct ones" in said.out
        sql.send([*some(0, 50), *some(0, 50, "b"), *some(0, 60, "c")])
        assert sql.run().landed == 50
        assert set(sql.events().values()) == {1}

    def test_what_has_expired_gets_no_key_back(self, sql: Unique, command: Command) -> None:
        """Its payload may stay longer, while it waits to be sent."""
        sql.send([*some(0, 50), *some(0, 50, "b")])
        sql.run()
        with closing(sqlite3.connect(sql.store)) as connection, connection:
            connection.execute("DELETE FROM landonce_dedup_run")
            connection.execute(
                "UPDATE landonce_dedup_scope SET horizon = (? / bucket_s + 1) * bucket_s * 1000", [int(time.time())]
            )
        sql.write_file({"key": ["id"]})
        said = command("dedup", "rekey", sql.file, "-y")
        assert "0 accepted events of the window get new ids: 0 distinct ones" in said.out, said.err

    def test_without_payloads_it_is_refused(self, sql: Unique, command: Command) -> None:
        sql.write_file({"payloads": "sent"})
        sql.send(some(0, 50))
        sql.run()
        with closing(sqlite3.connect(sql.store)) as connection, connection:
            connection.execute("DELETE FROM landonce_dedup_chunk")
        sql.write_file({"key": ["id"], "payloads": "sent"})
        said = command("dedup", "rekey", sql.file, "--yes")
        assert said.code == 3
        assert "50 events get no id" in said.err
        assert command("dedup", "rekey", sql.file, "--yes", "--forget-unknown").code == 0
        assert sql.run().landed == 0

    def test_nothing_to_change(self, sql: Unique, command: Command) -> None:
        sql.send(some(0, 5))
        sql.run()
        assert command("dedup", "rekey", sql.file, "--yes").code == 1

    def test_whoever_accepts_meanwhile_wins(self, sql: Unique) -> None:
        sql.send(some(0, 50))
        sql.run()
        sql.write_file({"key": ["id"]})
        kept = look.Kept.of(open_parts(load(sql.file)))
        new = rekey.prepare(kept)
        sql.write_file()
        sql.send(some(50, 60))
        sql.run()
        with pytest.raises(Fenced, match="accepted events"):
            rekey.carry_out(kept, new, "me", forget_unknown=False)
        sql.send(some(0, 60))
        assert sql.run().landed == 0

    def test_a_kill_leaves_the_old_rule_or_the_new_one(self, sql: Unique, command: Command) -> None:
        sql.send(some(0, 50))
        sql.run()
        sql.write_file({"key": ["id"]})
        _kill_command(sql, "replaced.before", "rekey")
        with pytest.raises(KeyRuleChanged):
            sql.run()
        sql.write_file()
        sql.send(some(0, 60))
        assert sql.run().landed == 10, "the old rule"
        sql.write_file({"key": ["id"]})
        _kill_command(sql, "replaced.after", "rekey")
        sql.send(some(0, 70, "b"))
        assert sql.run().landed == 10, "the new rule"
        assert command("dedup", "rekey", sql.file, "--yes").code == 1, "nothing is left to change"
        assert set(sql.events().values()) == {1}


class TestRebuild:
    @pytest.mark.parametrize("unique", IN_EACH, indirect=True)
    def test_a_lost_store(self, unique: Unique, command: Command) -> None:
        unique.send([*some(0, 500), *some(0, 100)])
        unique.send(some(400, 600), partition=1)
        unique.run()
        before = sorted(unique.rows())
        unique.store.unlink()
        unique.send([*some(0, 50), *some(600, 650)])
        with pytest.raises(StoreBehind) as refused:
            unique.run()
        assert "landonce dedup rebuild {file}" in refused.value.command
        assert sorted(unique.rows()) == before
        said = command("dedup", "rebuild", unique.file, "--yes")
        assert said.code == 0, said.err
        assert "the target holds 600 records of these topics" in said.out
        unique.send([*some(640, 700), *some(0, 10)], partition=1)
        unique.run()
        assert set(before) < set(unique.rows())
        assert unique.events() == Counter({(each, "a"): 1 for each in range(700)})
        unique.run()
        unique.send(some(0, 700))
        unique.run()
        assert len(unique.rows()) == 700

    def test_a_restored_store(self, unique: Unique, command: Command, tmp_path: Path) -> None:
        unique.send(some(0, 300))
        unique.run()
        shutil.copy(unique.store, tmp_path / "backup.db")
        unique.send([*some(200, 600), *some(0, 100)], partition=1)
        unique.run()
        shutil.copy(tmp_path / "backup.db", unique.store)
        unique.send(some(300, 700))
        with pytest.raises(StoreBehind):
            unique.run()
        assert command("dedup", "rebuild", unique.file, "--yes").code == 0
        unique.run()
        assert unique.events() == Counter({(each, "a"): 1 for each in range(700)})

    def test_two_pipelines_of_one_scope_after_their_store_was_lost(
        self, sql: Unique, command: Command, new_topic: Callable[..., str], tmp_path: Path
    ) -> None:
        """Each is compared with its own target alone, so both are rebuilt before either of them runs. The command says so, although the first
        one's name is the scope; and names the other one, once the store knows it."""
        (tmp_path / "b").mkdir()
        target = {"sql": {"url": f"sqlite:///{tmp_path}/b/target.db", "table": "events", "create": True}}
        other = Unique(sql.kafka, tmp_path / "b", new_topic(2), target, list)
        dedup = {"store": {"sqlite": str(sql.store)}, "scope": f"p-{sql.topic}"}
        other.write_file(dedup)

        def landed_there() -> Counter[int]:
            with closing(sqlite3.connect(tmp_path / "b" / "target.db")) as connection:
                return Counter(number for (number,) in connection.execute("SELECT id FROM events"))

        sql.send(some(0, 100))
        other.send(some(50, 200))
        assert (sql.run().landed, other.run().landed) == (100, 100)
        backup = sql.store.read_bytes()
        sql.send(some(200, 220))
        other.send(some(220, 240))
        assert (sql.run().landed, other.run().landed) == (20, 20)

        for restored in (None, backup):
            sql.store.unlink()
            if restored is not None:
                sql.store.write_bytes(restored)
            said = command("dedup", "rebuild", sql.file, "--yes")
            words = " ".join(said.out.split())
            assert f"Other pipelines of scope p-{sql.topic} must be rebuilt, too" in words, said.err
            assert (f"The store knows p-{other.topic}." in words) == (restored is not None)
            with pytest.raises(StoreBehind):
                other.run()
            said = command("dedup", "rebuild", other.file, "--yes")
            assert f"The store knows p-{sql.topic}." in " ".join(said.out.split()), said.err
            sql.send(some(0, 240))
            other.send(some(0, 240))
            assert (sql.run().landed, other.run().landed) == (0, 0)
        assert Counter(number for number, *_ in sql.rows()) + landed_there() == Counter(range(240))

    def test_events_that_were_accepted_and_not_sent(
        self, unique: Unique, command: Command, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        unique.send(some(0, 300))
        unique.run()
        unique.send([*some(290, 400), *some(300, 350)], partition=1)
        monkeypatch.setattr("landonce.dedup.run.Both._push", lambda _: None)
        unique.run()
        monkeypatch.undo()
        assert len(unique.rows()) == 300
        unique.store.unlink()
        assert command("dedup", "rebuild", unique.file, "--yes").code == 0
        unique.run()
        assert unique.events() == Counter({(each, "a"): 1 for each in range(400)})

    def test_a_table_with_columns_of_the_record(
        self, sql: Unique, command: Command, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """`_key`, `_headers` and the like are not in the value of a record of which nobody knows whether it landed."""
        schema = "id bigint, kind string, name string, _key string, _headers map<string, string>, _value string, _timestamp timestamp"
        sql.write_file(source=sql.source(schema=schema))
        sql.send(some(0, 50), key=b"k")
        sql.run()
        sql.send(some(40, 300), key=b"waits", headers=[("h", b"x")])
        sql.send(some(300, 301), key=b"\xff")  # does not fit a text column: a dead letter
        _push_one_block(sql, monkeypatch)
        sql.store.unlink()
        said = command("dedup", "rebuild", sql.file, "--yes")
        assert said.code == 0, said.err
        sql.run()
        with closing(sqlite3.connect(sql.folder / "target.db")) as connection:
            rows = connection.execute(
                "SELECT id, _key, json_extract(_headers, '$.h') FROM events ORDER BY 1"
            ).fetchall()
        assert rows == [*((each, "k", None) for each in range(50)), *((each, "waits", "x") for each in range(50, 300))]

    def test_a_rule_for_each_type_of_record(
        self, sql: Unique, command: Command, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fields = [
            {"name": "id", "type": "long"},
            {"name": "kind", "type": "string"},
            {"name": "name", "type": "string"},
        ]
        schema = {"type": "record", "name": "Event", "namespace": "shop", "fields": fields}
        (sql.folder / "event.avsc").write_text(json.dumps(schema))
        sql.write_file(
            {"key": None, "by": "_record_type", "rules": {"shop.Event": ["kind", "id"]}},
            source=sql.source(format={"avro": {"schema": "event.avsc"}}),
        )

        def produce(first: int, end: int) -> None:
            records = [{"id": number, "kind": kind, "name": name} for number, kind, name in some(first, end)]
            send(sql.kafka, sql.topic, [_avro(schema, each) for each in records])

        produce(0, 50)
        sql.run()
        produce(40, 300)
        _push_one_block(sql, monkeypatch)
        sql.store.unlink()
        said = command("dedup", "rebuild", sql.file, "--yes")
        assert said.code == 0, said.err
        produce(0, 300)
        sql.run()
        assert sql.events() == Counter({(each, "a"): 1 for each in range(300)})

    def test_a_batch_of_which_some_blocks_landed(
        self, unique: Unique, command: Command, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Copies are spread over the blocks of the plan that was pending, and the ledger is lost with the store (ClickHouse), or not."""
        unique.send(some(0, 100))
        unique.run()
        sent = [*some(90, 250), *some(150, 300), *some(90, 120)]
        unique.send(sent)
        unique.send(list(reversed(sent)), partition=1)
        _crash_after_blocks(monkeypatch, 2)
        with pytest.raises(KeyboardInterrupt):
            unique.run()
        monkeypatch.undo()
        unique.store.unlink()
        assert command("dedup", "rebuild", unique.file, "--yes").code == 0
        unique.run()
        assert unique.events() == Counter({(each, "a"): 1 for each in range(300)})

    def test_dedup_is_new_in_the_file(self, unique: Unique, command: Command) -> None:
        """Records landed without `dedup`, copies among them."""
        document = yaml.safe_load(unique.file.read_text())
        unique.file.write_text(yaml.safe_dump({**document, "dedup": None}))
        unique.send([*some(0, 100), *some(0, 10)])
        run_pipeline(load(unique.file), once=True)
        unique.file.write_text(yaml.safe_dump(document))
        with pytest.raises(StoreBehind):
            unique.run()
        assert command("dedup", "rebuild", unique.file, "--yes").code == 0
        unique.send([*some(0, 100), *some(100, 150), *some(100, 150)])
        unique.run()
        assert len(unique.rows()) == 160
        assert max(unique.events().values()) == 2

    def test_what_the_topic_lost_comes_from_the_columns(self, unique: Unique, command: Command) -> None:
        unique.send(some(0, 300))
        unique.run()
        _delete_records(unique, 200)
        unique.store.unlink()
        said = command("dedup", "rebuild", unique.file, "--yes")
        assert said.code == 0, said.err
        unique.send(some(0, 320))
        unique.run()
        assert unique.events() == Counter({(each, "a"): 1 for each in range(320)})

    def test_what_nothing_tells_is_refused(self, sql: Unique, command: Command) -> None:
        sql.write_file({"key": ["id", {"header": "h"}]})
        sql.send(some(0, 100), headers=[("h", b"x")])
        sql.run()
        _delete_records(sql, 30)
        sql.store.unlink()
        said = command("dedup", "rebuild", sql.file, "--yes")
        assert said.code == 3
        assert "30 events get no id" in said.err
        assert command("dedup", "rebuild", sql.file, "--yes", "--forget-unknown").code == 0
        sql.send(some(0, 100), headers=[("h", b"x")])
        sql.run()
        assert len(sql.rows()) == 130

    @pytest.mark.parametrize("unique", ["sql", "clickhouse_table"], indirect=True)
    def test_it_is_killed_at_every_step(
        self, unique: Unique, command: Command, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each rebuild goes on from what the kill before it left: the target has a pending plan of which some blocks landed."""
        unique.send(some(0, 100))
        unique.run()
        unique.send([*some(90, 250), *some(150, 300)])
        _crash_after_blocks(monkeypatch, 1)
        with pytest.raises(KeyboardInterrupt):
            unique.run()
        monkeypatch.undo()
        unique.store.unlink()
        for place in ("fence.before", "fence.after", "replaced.before"):
            _kill_command(unique, place, "rebuild")
            with pytest.raises(StoreBehind):
                unique.run()
        _kill_command(unique, "replaced.after", "rebuild")
        assert "not behind the target" in command("dedup", "rebuild", unique.file, "--yes").err
        unique.run()
        assert unique.events() == Counter({(each, "a"): 1 for each in range(300)})

    def test_a_store_that_is_not_behind_stays(self, sql: Unique, command: Command) -> None:
        sql.send(some(0, 20))
        sql.run()
        said = command("dedup", "rebuild", sql.file, "--yes")
        assert said.code == 1
        assert "not behind the target" in said.err
        assert f"landonce run {sql.file}" in said.err

    def test_nothing_is_done_before_the_answer(self, sql: Unique) -> None:
        sql.send(some(0, 20))
        sql.run()
        sql.store.unlink()
        before = (sql.folder / "target.db").read_bytes()
        asked = CliRunner().invoke(app, ["dedup", "rebuild", str(sql.file)], input="n\n")
        assert asked.exit_code == 1
        assert "Do it?" in asked.output
        assert not sql.store.exists()
        assert (sql.folder / "target.db").read_bytes() == before

    def test_what_waited_in_the_lost_store_and_is_gone(
        self, sql: Unique, command: Command, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With a backup of the store, events that the topics lack are sent from there. Without one, the command says what may be lost."""
        sql.send(some(0, 100))
        sql.run()
        sql.send(some(100, 150), partition=1)
        monkeypatch.setattr("landonce.dedup.run.Both._push", lambda _: None)
        sql.run()
        monkeypatch.undo()
        backup = sql.store.read_bytes()
        sql.send(some(150, 160))
        sql.run()
        with closing(sqlite3.connect(sql.folder / "target.db")) as connection, connection:
            connection.execute("DELETE FROM events WHERE _partition = 1")
            connection.execute("UPDATE landonce_position SET committed = 0 WHERE partition = 1")
        _delete_records(sql, 50, partition=1)
        sql.store.unlink()
        said = command("dedup", "rebuild", sql.file, "--yes")
        assert said.code == 3
        assert "50 offsets are gone from the topics" in said.err
        sql.store.write_bytes(backup)
        said = command("dedup", "rebuild", sql.file, "--yes")
        assert said.code == 0, said.err
        sql.run()
        assert sql.events() == Counter({(each, "a"): 1 for each in range(160)})


def _crash_after_blocks(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """The driver ends after this number of blocks of either pipeline."""
    work, blocks = workers.work, itertools.count()

    def crash(recipe: Any, task: Any) -> Any:
        if next(blocks) >= count:
            raise KeyboardInterrupt
        return work(recipe, task)

    monkeypatch.setattr("landonce.engine.workers.work", crash)


def _push_one_block(site: Unique, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is there is accepted, one block lands, and the run ends."""
    with monkeypatch.context() as patch:
        patch.setattr("landonce.dedup.run.Both._push", lambda _: None)
        site.run()
    landed = len(site.rows())
    with monkeypatch.context() as patch:
        _crash_after_blocks(patch, 1)
        with pytest.raises(KeyboardInterrupt):
            site.run()
    assert landed < len(site.rows()) < 300


def _avro(schema: dict[str, Any], record: dict[str, Any]) -> bytes:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), record)
    return body.getvalue()


def _kill_command(site: Unique, place: str, name: str) -> None:
    """`landonce dedup NAME FILE --yes`."""
    _kill(site, place, "dedup", name, str(site.file), "--yes")


def _kill(site: Unique, place: str, *words: str, skip: int = 0) -> None:
    """A process of its own stops there, having passed it a number of times, and gets SIGKILL."""
    reached, log = site.folder / place, site.folder / "killed.log"
    reached.unlink(missing_ok=True)
    stops = {**UNDISTURBED, "LANDONCE_FAILPOINT": place, "LANDONCE_FAILPOINT_FILE": str(reached)}
    stops |= {"LANDONCE_FAILPOINT_SKIP": str(int(skip)), "LANDONCE_FAILPOINT_THREAD": "MainThread"}
    process = PlainProcess([*words], stops, log)
    until = time.monotonic() + 120
    while not reached.exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    process.kill()
    process.wait(30)
    assert reached.exists(), log.read_text()


def _delete_records(site: Unique, before: int, partition: int = 0) -> None:
    admin = AdminClient({"bootstrap.servers": site.kafka.bootstrap_servers})
    next(iter(admin.delete_records([TopicPartition(site.topic, partition, before)]).values())).result(30)
