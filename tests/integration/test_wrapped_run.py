"""Whole runs with wrapped sinks: functions of a program, modules beside a pipeline file, both ledgers, and what goes wrong."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
import yaml
from confluent_kafka import Producer
from deliveries import spark_session
from pipelines import landonce as command
from pyspark.sql import SparkSession

import landonce
from landonce.errors import ConfigError, PlanPending, TargetRefused
from landonce.local import LocalKafka
from landonce.local.server import free_ports, is_open
from landonce.sinks.pipeline_file import parse
from landonce.sinks.wrapped.sink import find_sink

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(180), pytest.mark.usefixtures("spark")]
SCHEMA = "id BIGINT NOT NULL, word STRING, amount DOUBLE"
EXAMPLES = Path(__file__).parents[2] / "examples" / "wrap"
TARGET = Path(__file__).parents[1] / "chaos" / "wrapped_target.py"


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    yield from spark_session("test-wrapped-run")


@dataclass
class Site:
    """One pipeline: its topic, its file, its target."""

    kafka: LocalKafka
    folder: Path
    topic: str

    @property
    def file(self) -> Path:
        return self.folder / "p.yaml"

    def write_file(self, sink: dict[str, Any], **more: Any) -> None:
        kafka = {"bootstrap_servers": self.kafka.bootstrap_servers, "topics": [self.topic], "schema": SCHEMA}
        document = {
            "pipeline": "p",
            "source": {"kafka": kafka},
            "sink": {"wrapped": sink},
            "ledger": {"sqlite": "ledger"},
            "batch": {"interval": "0s", "max_rows": 1000, "block_rows": 50},
            "stall": "60s",
            "spark": {"master": "local[2]"},
            **more,
        }
        self.file.write_text(yaml.safe_dump(document))

    def run(self, sink: landonce.WrappedSink | None = None) -> landonce.Totals:
        return landonce.run_pipeline(parse(self.file.read_text(), self.file), sink=sink, once=True)

    def send(self, count: int, partition: int = 0, bad: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers, "acks": "all"})
        for number in range(count):
            value = json.dumps({"id": number, "word": f"w{number}", "amount": number / 4})
            producer.produce(self.topic, value, partition=partition)
        for _ in range(bad):
            producer.produce(self.topic, b"no json", partition=partition)
        assert producer.flush(30) == 0

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.folder / "target.db", timeout=30)) as connection:
            return connection.execute(query).fetchall()

    def landed(self) -> list[tuple[int, int]]:
        return sorted(self.ask("SELECT _partition, _offset FROM events"))


@contextmanager
def hours_pass(place: Path | str) -> Iterator[None]:
    """For the ledger: an attempt of which nobody hears is waited out in no time. Nothing is under way when the driver waits."""
    done = threading.Event()

    def age() -> None:
        older = "UPDATE landonce_push SET claimed_at = claimed_at - 3600000 WHERE state = 'CLAIMED'"
        while not done.wait(0.3):
            if isinstance(place, Path) and place.exists():
                with closing(sqlite3.connect(place, timeout=30)) as connection, suppress(sqlite3.OperationalError):
                    connection.execute(older)
                    connection.commit()
            elif isinstance(place, str):
                with psycopg.connect(place.replace("+psycopg", "")) as server, suppress(psycopg.errors.UndefinedTable):
                    server.execute(older)

    thread = threading.Thread(target=age)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.fixture
def site(kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path) -> Iterator[Site]:
    shutil.copy(TARGET, tmp_path)
    yield Site(kafka, tmp_path, new_topic(2))
    for module in ("wrapped_target", "http_endpoint", "file_per_block"):
        sys.modules.pop(module, None)


def due(*counts: int) -> list[tuple[int, int]]:
    return [(partition, offset) for partition, count in enumerate(counts) for offset in range(count)]


@pytest.mark.usefixtures("spark_workers")
def test_a_function_of_a_program_gets_every_record_once(site: Site) -> None:
    """What the program holds reaches a worker of its own. Selected, filtered, in order, in blocks of one partition each; what cannot land is a dead letter."""
    folder = str(site.folder)

    def push(block: landonce.PushedBlock) -> None:
        from pathlib import Path

        Path(folder, f"{block.key}.block").write_bytes(block.json_lines())

    transform = {"select": ["id", "upper(word) AS word", "amount * 2 AS twice"], "where": "id % 10 <> 3"}
    site.write_file({}, transform=transform)
    site.send(120, 0, bad=3)
    site.send(30, 1)
    totals = site.run(landonce.wrap(push, idempotent=True))
    assert totals == landonce.Totals(landed=135, dead_lettered=3, filtered=15)
    found = []
    for path in sorted(site.folder.glob("*.block")):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        assert len({row["_partition"] for row in rows}) == 1
        assert [row["_offset"] for row in rows] == sorted(row["_offset"] for row in rows)
        assert len(rows) <= 50
        found += rows
    assert len(found) == 135
    assert {(row["_partition"], row["_offset"]) for row in found} == {
        (partition, offset) for partition, offset in due(120, 30) if offset % 10 != 3
    }
    assert all(row["word"] == f"W{row['_offset']}" and row["twice"] == row["_offset"] / 2 for row in found)
    assert {row["_topic"] for row in found} == {site.topic}
    again = site.run(landonce.wrap(push, idempotent=True))
    assert again == landonce.Totals()


def test_a_block_holds_the_other_parts_of_its_records(site: Site) -> None:
    """Key, headers, timestamp and raw bytes, where the schema names them: the same bytes on every retry, too."""
    target = site.folder / "rows"

    def push(block: landonce.PushedBlock) -> None:
        Path(target).write_bytes(block.ipc())
        Path(f"{target}.json").write_bytes(block.json_lines())

    site.write_file({})
    document = yaml.safe_load(site.file.read_text())
    parts = "_key BINARY, _headers MAP<STRING, BINARY>, _timestamp TIMESTAMP, _value BINARY"
    document["source"]["kafka"]["schema"] = f"id BIGINT, {parts}"
    site.file.write_text(yaml.safe_dump(document))
    producer = Producer({"bootstrap.servers": site.kafka.bootstrap_servers, "acks": "all"})
    moment = int(time.time() * 1000)
    value, headers = b'{"id": 7}', [("from", b"shop"), ("n", b"\xff")]
    producer.produce(site.topic, value, key=b"k\0", headers=headers, partition=0, timestamp=moment)
    producer.produce(site.topic, value, partition=0, timestamp=moment)
    assert producer.flush(30) == 0
    assert site.run(landonce.wrap(push, idempotent=True)).landed == 2
    one, two = pa.ipc.open_stream(target.read_bytes()).read_all().to_pylist()
    assert (one["_key"], one["_headers"], one["_value"]) == (b"k\0", headers, value)
    assert round(one["_timestamp"].timestamp() * 1000) == moment
    assert (two["_key"], two["_headers"], two["_value"]) == (None, [], value) or two["_headers"] is None
    line = json.loads((site.folder / "rows.json").read_text().splitlines()[0])
    assert (line["_key"], line["_value"]) == (b"k\0".hex(), value.hex())


def test_a_block_says_what_each_record_does_to_its_row(site: Site) -> None:
    """Debezium's changes of two rows: the push applies them, and the target is what the source is."""
    row = {"id": 1, "word": "a", "amount": 0.5}
    changes: list[Any] = [
        {"op": "c", "before": None, "after": row},
        {"op": "r", "before": None, "after": {**row, "id": 2}},
        {"op": "u", "before": row, "after": {**row, "word": "b"}},
        {"op": "d", "before": {**row, "id": 2}, "after": None},
        None,
        {"op": "?", "before": None, "after": row},
        {"op": "u", "before": None, "after": {"id": 1, "word": "c", "amount": None}},
    ]
    producer = Producer({"bootstrap.servers": site.kafka.bootstrap_servers})
    for each in changes:
        producer.produce(site.topic, each and json.dumps(each), partition=0)
    assert producer.flush(30) == 0
    with closing(sqlite3.connect(site.folder / "target.db")) as target:
        target.execute("CREATE TABLE mirrored (id INTEGER PRIMARY KEY, word TEXT, amount REAL)")
        target.execute("CREATE TABLE seen (at INTEGER, change TEXT, id INTEGER, word TEXT)")
    path = str(site.folder / "target.db")

    def push(block: landonce.PushedBlock) -> None:
        with closing(sqlite3.connect(path)) as target, target:
            for each in block.rows.to_pylist():
                seen = (each["_offset"], each["_change"], each["id"], each["word"])
                target.execute("INSERT INTO seen VALUES (?, ?, ?, ?)", seen)
                if each["_change"] == "D":
                    target.execute("DELETE FROM mirrored WHERE id = :id", each)
                else:
                    target.execute("INSERT OR REPLACE INTO mirrored VALUES (:id, :word, :amount)", each)

    site.write_file({"key": "id", "changes": {"mode": "debezium"}})
    totals = site.run(landonce.wrap(push, idempotent=False))
    assert totals == landonce.Totals(landed=5, dead_lettered=1, filtered=1)
    assert site.ask("SELECT * FROM mirrored") == [(1, "c", None)]
    due = [(0, "I", 1, "a"), (1, "I", 2, "a"), (2, "U", 1, "b"), (3, "D", 2, None), (6, "U", 1, "c")]
    assert site.ask("SELECT * FROM seen") == due


def test_a_change_comes_with_the_other_parts_of_its_record(site: Site) -> None:
    """Of deletions, too: key, headers, timestamp and raw bytes are the record's, and only the fields of its value are null. What is no
    row does not shift them."""
    target = site.folder / "rows"

    def push(block: landonce.PushedBlock) -> None:
        Path(target).write_bytes(block.ipc())

    site.write_file({"key": "id", "changes": {"mode": "upsert"}})
    document = yaml.safe_load(site.file.read_text())
    parts = "_headers MAP<STRING, BINARY>, id BIGINT, _key STRING, word STRING, _timestamp TIMESTAMP, _value BINARY"
    document["source"]["kafka"]["schema"] = parts
    site.file.write_text(yaml.safe_dump(document))
    moment = int(time.time() * 1000)
    sent: list[tuple[bytes, bytes | None]] = [
        (b'{"id": 1}', b'{"id": 1, "word": "a"}'),
        (b'{"id": 2}', b"no json"),
        (b'{"id": 1}', None),
        (b'{"id": 3, "x": "\xff"}', b'{"id": 3, "word": "c"}'),
        (b'{"id": 4}', b'{"id": 4, "word": "d"}'),
    ]
    producer = Producer({"bootstrap.servers": site.kafka.bootstrap_servers})
    for at, (key, value) in enumerate(sent):
        given = [("n", str(at).encode())]
        producer.produce(site.topic, value, key=key, headers=given, partition=0, timestamp=moment + at)
    assert producer.flush(30) == 0
    totals = site.run(landonce.wrap(push, idempotent=True))
    assert totals == landonce.Totals(landed=3, dead_lettered=2), "a value that is no row, and a key that is no text"
    table = pa.ipc.open_stream(target.read_bytes()).read_all()
    fields = ["_headers", "id", "_key", "word", "_timestamp", "_value"]
    assert table.column_names == ["_topic", "_partition", "_offset", "_change", *fields]
    rows = table.to_pylist()
    assert [(row["_offset"], row["_change"], row["id"], row["word"]) for row in rows] == [
        (0, "U", 1, "a"),
        (2, "D", 1, None),
        (4, "U", 4, "d"),
    ]
    for row in rows:
        key, value = sent[row["_offset"]]
        assert (row["_key"].encode(), row["_value"]) == (key, value)
        assert row["_headers"] == [("n", str(row["_offset"]).encode())]
        assert round(row["_timestamp"].timestamp() * 1000) == moment + row["_offset"]


@pytest.mark.parametrize("field", ["_change", "_record_type"])
def test_fields_that_do_not_go_with_changes_are_refused(site: Site, field: str) -> None:
    site.write_file({"key": "id", "changes": {"mode": "upsert"}})
    document = yaml.safe_load(site.file.read_text())
    document["source"]["kafka"]["schema"] = f"id BIGINT, {field} STRING"
    site.file.write_text(yaml.safe_dump(document))
    with pytest.raises(ConfigError, match=f"the field {field} does not go with `changes`"):
        site.run(landonce.wrap(print, idempotent=True))


@pytest.mark.parametrize(
    ("sink", "more", "said"),
    [
        ({"key": "id"}, {}, "`changes` and `key`"),
        ({"changes": {"mode": "upsert"}}, {}, "`changes` and `key`"),
        (
            {"key": "id", "changes": {"mode": "upsert"}},
            {"transform": {"where": "id > 1"}},
            "does not go with `changes`",
        ),
        ({"key": "nowhere", "changes": {"mode": "upsert"}}, {}, "the identity field 'nowhere' is not in the schema"),
        (
            {"key": "id", "changes": {"mode": "upsert"}},
            {"dedup": {"key": ["id"], "ttl": "1d"}},
            "does not go with `changes`",
        ),
    ],
)
def test_changes_that_are_unclear_are_refused(
    site: Site, sink: dict[str, Any], more: dict[str, Any], said: str
) -> None:
    site.write_file(sink, **more)
    with pytest.raises(ConfigError, match=said):
        site.run(landonce.wrap(print, idempotent=True))


def test_the_commands_know_a_sink_beside_the_file(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    site.write_file({"sink": "wrapped_target:probing", "options": {"folder": str(site.folder)}})
    site.send(10)
    said = command(capsys, monkeypatch, "check", site.file)
    assert said.code == 0, said.out + said.err
    assert "store (not idempotent, with a probe) can be sent to workers" in said.out
    assert "claimed in the ledger" in said.out
    assert site.run().landed == 10
    assert site.landed() == due(10)
    shown = command(capsys, monkeypatch, "state", "show", site.file, "--json")
    assert shown.json["ledger"]["totals"]["landed"] == 10
    assert shown.json["claimed"] == []
    audit = command(capsys, monkeypatch, "verify", site.file)
    assert audit.code == 3
    assert "cannot read what it holds" in audit.err
    nothing = command(capsys, monkeypatch, "state", "settle", site.file, "--block", "x", "--landed", "--yes")
    assert nothing.code == 1
    assert "nothing to settle" in nothing.err


@pytest.mark.parametrize("ledger", ["sqlite", "postgres"])
def test_what_has_no_answer_is_looked_for(site: Site, ledger: str, request: pytest.FixtureRequest) -> None:
    """The block is in, or it is not, or the target says that it took nothing: it lands once, and every push is the same bytes."""
    where = "ledger" if ledger == "sqlite" else request.getfixturevalue("new_database")()
    sink = {"sink": "wrapped_target:probing", "options": {"folder": str(site.folder)}}
    site.write_file(sink, ledger={ledger: where})
    total = 0
    for what, attempts in (("raise-after", 1), ("raise-before", 2), ("refuse", 2)):
        site.send(20)
        (site.folder / what).touch()
        with hours_pass(site.folder / where if ledger == "sqlite" else where):
            assert site.run().landed == 20
        total += 20
        pushed = Counter(key for (key,) in site.ask("SELECT key FROM attempts"))
        assert max(pushed.values()) >= attempts
        assert site.landed() == due(total)
    assert all(kinds == 1 for (kinds,) in site.ask("SELECT count(DISTINCT seen) FROM attempts GROUP BY key"))
    assert site.ask("SELECT count(*) FROM attempts") == [(5,)]
    assert sorted(site.ask("SELECT attempt FROM attempts")) == [(1,), (1,), (1,), (2,), (2,)]


def test_a_target_that_refuses_for_good(site: Site) -> None:
    """Nothing arrived, so the block is free: when the cause is fixed, the same block is pushed."""
    folder = str(site.folder)

    def push(block: landonce.PushedBlock) -> None:
        from pathlib import Path

        if not Path(folder, "fixed").exists():
            raise landonce.errors.TargetRefused("there is no such table", command="make it")
        with Path(folder, "log").open("a") as log:
            log.write(f"{block.key} {block.rows.num_rows}\n")

    sink = landonce.wrap(push, idempotent=False)
    site.write_file({})
    site.send(7)
    with pytest.raises(TargetRefused, match="no such table"):
        site.run(sink)
    (site.folder / "fixed").touch()
    assert site.run(sink).landed == 7
    [line] = (site.folder / "log").read_text().splitlines()
    assert line.endswith(" 7")


def test_a_plan_in_doubt_is_not_forgotten(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no probe. Neither `rebase` nor another sink gets past the block that nobody knows of."""
    site.write_file({"sink": "wrapped_target:blind", "options": {"folder": str(site.folder)}})
    site.send(20)
    (site.folder / "raise-after").touch()
    unknown = pytest.raises(landonce.errors.OutcomeUnknown, match="nobody knows whether it arrived")
    with hours_pass(site.folder / "ledger"), unknown:
        site.run()
    said = command(capsys, monkeypatch, "state", "rebase", site.file, "--drop-pending", "--yes")
    assert said.code == PlanPending.exit_code, said.out
    assert "can be neither" in said.err
    shown = command(capsys, monkeypatch, "state", "show", site.file, "--json").json
    [key] = shown["claimed"]
    assert key.startswith(f"{site.topic}-0-0-20-")
    wrong = command(capsys, monkeypatch, "state", "settle", site.file, "--block", "other", "--landed", "--yes")
    assert wrong.code == 2
    assert key in wrong.err
    settled = command(capsys, monkeypatch, "state", "settle", site.file, "--block", key, "--landed", "--yes")
    assert settled.code == 0, settled.err
    assert site.run().landed == 20
    assert site.landed() == due(20)
    notes = command(capsys, monkeypatch, "state", "show", site.file, "--json").json["journal"]
    assert [note["action"] for note in notes] == ["settle"]


@pytest.mark.usefixtures("spark_workers")
def test_a_response_is_not_taken_for_a_yes(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program's own function, as one would write it first. It halts, a person looks and says, and the fixed one goes on."""
    log, answer = str(site.folder / "log"), [200]

    def push(block: landonce.PushedBlock) -> int | None:
        from pathlib import Path

        with Path(log).open("a") as file:
            file.write(f"{block.first} {block.rows.num_rows}\n")
        return answer[0] if answer else None

    def sink() -> landonce.WrappedSink:
        return landonce.wrap(push, idempotent=False, settles_within=0.5, name="log")

    site.write_file({})
    site.send(5)
    with pytest.raises(landonce.errors.OutcomeUnknown, match="`push` returned 200 for block"):
        site.run(sink())
    [key] = command(capsys, monkeypatch, "state", "show", site.file, "--json").json["claimed"]
    settled = command(capsys, monkeypatch, "state", "settle", site.file, "--block", key, "--landed", "--yes")
    assert settled.code == 0, settled.err
    answer.clear()
    site.send(2)
    assert site.run(sink()).landed == 7
    assert Path(log).read_text().splitlines() == ["0 5", "5 2"]


def test_what_cannot_work_is_said_before_the_start(site: Site) -> None:
    lock = threading.Lock()
    site.write_file({})
    with pytest.raises(ConfigError, match="cannot be sent to workers"):
        site.run(landonce.wrap(lambda _: lock.acquire(), idempotent=True))
    fine = landonce.wrap(lambda _: None, idempotent=True)
    site.write_file({}, spark={"master": "spark://elsewhere:7077"}, dead_letters={"path": "dead", "shared": True})
    with pytest.raises(ConfigError, match="is a file on this machine"):
        site.run(fine)
    site.write_file({})
    with pytest.raises(ConfigError, match="The file leaves the sink to a program"):
        site.run()


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    """The server of the example, with its database beside it."""
    shutil.copy(EXAMPLES / "http_endpoint.py", tmp_path)
    port = free_ports(1)[0]
    server = subprocess.Popen(
        [sys.executable, str(tmp_path / "http_endpoint.py"), str(port), str(tmp_path / "target.db")]
    )
    try:
        until = time.monotonic() + 60
        while not is_open(port):
            assert server.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait(10)


def test_an_http_endpoint(site: Site, endpoint: str) -> None:
    """The example: an endpoint that takes whatever it is sent, once each."""
    site.write_file({"sink": "http_endpoint:sink", "options": {"url": endpoint}})
    site.send(120)
    site.send(30, 1)
    assert site.run().landed == 150
    assert sorted(site.ask("SELECT partition, offset FROM events")) == due(120, 30)
    assert site.ask("SELECT count(*) - count(DISTINCT key) FROM blocks") == [(0,)]


def test_the_endpoint_refuses_what_comes_too_late(endpoint: str, tmp_path: Path) -> None:
    """And the sink knows what certainly did not arrive, and can ask for what may have."""
    sink = find_sink("http_endpoint:sink", {"url": endpoint}, tmp_path)
    rows = pa.table({"_topic": ["t"], "_partition": [0], "_offset": [0]})
    now = int(time.time() * 1000)
    late, timely = (landonce.PushedBlock("k", "t", 0, 0, 1, rows, 1, now + more) for more in (-60_000, 600_000))
    try:
        with sink.opened() as delivery:
            assert delivery.probe is not None
            with pytest.raises(landonce.NotPushed):
                delivery.push(late)
            assert not delivery.probe(late)
            delivery.push(timely)
            assert delivery.probe(timely)
        with find_sink("http_endpoint:sink", {"url": "http://127.0.0.1:1"}, tmp_path).opened() as nobody:
            with pytest.raises(landonce.NotPushed):
                nobody.push(timely)
            assert nobody.probe is not None
            with pytest.raises(OSError):
                nobody.probe(timely)
    finally:
        sys.modules.pop("http_endpoint", None)


def test_a_file_per_block(site: Site) -> None:
    """The other example."""
    shutil.copy(EXAMPLES / "file_per_block.py", site.folder)
    site.write_file({"sink": "file_per_block:sink", "options": {"folder": str(site.folder / "files")}})
    site.send(120)
    assert site.run().landed == 120
    lines = [json.loads(line) for path in (site.folder / "files").iterdir() for line in path.read_text().splitlines()]
    assert sorted(line["_offset"] for line in lines) == list(range(120))
