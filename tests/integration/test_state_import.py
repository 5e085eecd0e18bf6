"""`landonce state import` against tables that the real writers wrote: Iceberg's sink for Kafka Connect, and a Spark query."""

from __future__ import annotations

import itertools
import json
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
import streaming_query
import yaml
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from iceberg_servers import LocalConnect, LocalRestCatalog
from pipelines import Said, landonce
from pyiceberg.table import Table
from pyiceberg.types import IntegerType, LongType, StringType
from said import says

from landonce.local import LocalKafka
from landonce.sinks.iceberg.catalog import CatalogSpec

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(480)]

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])
Command = Callable[..., Said]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return lambda *arguments: landonce(capsys, monkeypatch, *arguments)


@dataclass
class Scene:
    """A topic of two partitions, a table in the REST catalog, and pipeline files for them."""

    kafka: LocalKafka
    rest: LocalRestCatalog
    topic: str
    table: Table
    folder: Path
    produced: int = 0

    @property
    def name(self) -> str:
        return ".".join(self.table.name())

    def produce(self, count: int) -> None:
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers})
        for number in range(self.produced, self.produced + count):
            producer.produce(self.topic, json.dumps({"id": number, "name": f"n{number}"}), partition=number % 2)
        assert producer.flush(30) == 0
        self.produced += count

    def file(self, pipeline: str, *, tables: tuple[str, ...] = (), **more: object) -> Path:
        """For the one table, or for a fan-out of every record to several."""
        path = self.folder / f"{pipeline}.yaml"
        where = {"tables": [{"table": each} for each in tables]} if tables else {"table": self.name}
        iceberg = {"catalog": self.rest.properties, **where, "create": bool(tables)}
        kafka = {"bootstrap_servers": self.kafka.bootstrap_servers, "topics": [self.topic]}
        document = {"pipeline": pipeline, "source": {"kafka": kafka}, "sink": {"iceberg": iceberg}, **more}
        path.write_text(yaml.safe_dump({**document, "spark": {"master": "local[1]"}}))
        return path

    def held(self, name: str = "") -> list[int]:
        table = self.table.catalog.load_table(name or self.name)
        return sorted(table.scan(selected_fields=("id",)).to_arrow()["id"].to_pylist())

    def heads(self) -> list[int]:
        """All snapshots there are."""
        self.table.refresh()
        return [each.snapshot_id for each in self.table.snapshots()]

    def total(self) -> int:
        self.table.refresh()
        head = self.table.current_snapshot()
        return int(head.summary["total-records"]) if head is not None and head.summary is not None else 0


@pytest.fixture
def scene(
    kafka: LocalKafka,
    rest_catalog: LocalRestCatalog,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
    tmp_path: Path,
) -> Scene:
    catalog = CatalogSpec("rest", rest_catalog.properties).open()
    catalog.create_namespace_if_not_exists("db")
    table = catalog.create_table(f"db.{new_table()}", COLUMNS)
    return Scene(kafka, rest_catalog, new_topic(partitions=2), table, tmp_path)


def add_coordinates(table: Table) -> None:
    """As docs/iceberg.md says."""
    with table.refresh().update_schema() as update:
        for name, kind in (("_topic", StringType()), ("_kafka_partition", IntegerType()), ("_offset", LongType())):
            update.add_column(name, kind)


def run_once(command: Command, file: Path) -> None:
    said = command("run", file, "--once")
    assert said.code in (0, None), said.err


def positions(command: Command, file: Path) -> dict[int, tuple[int, int]]:
    """First and next offset, by partition."""
    positions = command("state", "show", file, "--json").json["ledger"]["positions"]
    return {each["partition"]: (each["first"], each["committed"]) for each in positions}


def refuses(command: Command, scene: Scene, *arguments: object) -> str:
    """Exit code 3, with nothing changed; gives what was said."""
    before = scene.heads(), dict(scene.table.metadata.properties)
    said = command("state", "import", *arguments, "--yes")
    assert said.code == 3, said.out + said.err
    assert "ImportRefused" in said.err
    assert "Nothing was changed." in said.err
    assert (scene.heads(), dict(scene.table.metadata.properties)) == before
    return said.err


# ------------------------------------------------------------------------------------------- Kafka Connect


def connector(scene: Scene) -> LocalConnect:
    """Every record to two tables. A killed one leaves its groups after six seconds, and not after forty-five."""
    return LocalConnect(
        scene.folder / "connect",
        bootstrap_servers=scene.kafka.bootstrap_servers,
        topics=[scene.topic],
        tables=[scene.name, f"{scene.name}_too"],
        catalog=scene.rest.properties,
        connector=f"sink-{scene.topic}",
        extra_worker={"consumer.session.timeout.ms": "6000"},
        extra_sink={"iceberg.kafka.session.timeout.ms": "6000"},
    )


def group_total(scene: Scene, group: str) -> int:
    """How many records the group's offsets cover."""
    consumer = Consumer({"bootstrap.servers": scene.kafka.bootstrap_servers, "group.id": group})
    offsets = consumer.committed([TopicPartition(scene.topic, number) for number in (0, 1)], timeout=20)
    consumer.close()
    return sum(max(0, each.offset) for each in offsets)


def wait_for(done: Callable[[], bool], limit: float = 60.0) -> None:
    deadline = time.monotonic() + limit
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def left(scene: Scene, group: str) -> bool:
    admin = AdminClient({"bootstrap.servers": scene.kafka.bootstrap_servers})
    described = admin.describe_consumer_groups([group, f"{group}-coord"])
    return not any(each.result(timeout=20).members for each in described.values())


@pytest.mark.long
def test_a_table_of_icebergs_sink_goes_on_where_the_sink_stopped(
    scene: Scene, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, too = scene.file("clicks"), f"{scene.name}_too"
    scene.table.catalog.create_table(too, COLUMNS)
    scene.produce(200)
    sink = connector(scene)
    options = (file, "--from-connect", sink.connector)
    with sink:
        sink.wait_until(lambda: scene.total() >= 200 and len(scene.held(too)) >= 200)
        assert "is running" in refuses(command, scene, *options)

        # The catalog takes no commit while another one holds its database: files are reported, and not in the table.
        with closing(sqlite3.connect(scene.rest.database, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            scene.produce(100)
            sink.wait_until(lambda: group_total(scene, sink.group) == 300)
            sink.kill()
            wait_for(lambda: left(scene, sink.group))
            assert scene.total() == 200  # importing the group's offsets now would lose 100 records
            said = refuses(command, scene, *options)
            assert says(said, "100 rows")
            assert "start the connector again" in said

    with connector(scene) as again:
        again.wait_until(lambda: scene.total() >= 300 and len(scene.held(too)) >= 300)
    wait_for(lambda: left(scene, sink.group))
    assert scene.held() == scene.held(too) == list(range(300))
    scene.produce(50)

    assert "does not read" in refuses(command, scene, _with_topic(scene, sink.control_topic), *options[1:])
    assert "no snapshot" in refuses(command, scene, file, "--from-connect", "another")
    a_commit_in_between_is_noticed(scene, command, monkeypatch, sink, *options)

    add_coordinates(scene.table)
    add_coordinates(scene.table.catalog.load_table(too))
    said = command("state", "import", *options, "--yes")
    assert said.code == 0, said.err
    assert f"{scene.topic}[0]: next offset 150, lag 25" in said.out
    assert positions(command, file) == {0: (150, 150), 1: (150, 150)}
    assert "has a position already" in refuses(command, scene, *options)
    run_once(command, file)
    assert scene.held() == list(range(350))
    assert positions(command, file) == {0: (150, 175), 1: (150, 175)}

    fan_out = scene.file("fan-out", tables=(too, f"{scene.name}_new"))
    assert command("state", "import", fan_out, *options[1:], "--yes").code == 0
    assert positions(command, fan_out) == {0: (150, 150), 1: (150, 150)}
    run_once(command, fan_out)
    assert scene.held(too) == list(range(350))
    assert scene.held(f"{scene.name}_new") == list(range(300, 350))
    assert "has a position already" in refuses(command, scene, fan_out, *options[1:])


def _with_topic(scene: Scene, name: str) -> Path:
    kafka = {"bootstrap_servers": scene.kafka.bootstrap_servers, "topics": [scene.topic, name]}
    return scene.file("two", source={"kafka": kafka})


def a_commit_in_between_is_noticed(
    scene: Scene, command: Command, monkeypatch: pytest.MonkeyPatch, sink: LocalConnect, *options: object
) -> None:
    """The sink's last request reaches the catalog late: after the question, and even after the last look."""
    name = f"kafka.connect.offsets.{sink.control_topic}.{sink.group}"
    late = iter([{name: _summary(scene)[name]}] * 2)

    def commits(*_: object, **__: object) -> bool:
        scene.table.refresh()
        for properties in itertools.islice(late, 1):
            scene.table.append(COLUMNS.empty_table(), snapshot_properties=properties)
        return True

    for place, yes in (("typer.confirm", ()), ("landonce.sinks.iceberg.commit.reach", ("--yes",))):
        before = len(scene.heads())
        with monkeypatch.context() as patch:
            patch.setattr(place, commits)
            said = command("state", "import", *options, *yes)
        assert (said.code, "went on while this was decided" in said.err) == (3, True), place + said.err
        assert len(scene.heads()) == before + 1


def _summary(scene: Scene) -> dict[str, str]:
    scene.table.refresh()
    head = scene.table.current_snapshot()
    assert head is not None
    assert head.summary is not None
    return head.summary.additional_properties


# ------------------------------------------------------------------------------------- Structured Streaming


def stream(scene: Scene, checkpoint: Path, *, fails_from: int) -> None:
    arguments = (scene.kafka.bootstrap_servers, scene.topic, scene.rest.uri, scene.name, checkpoint, fails_from)
    streaming_query.main(*map(str, arguments))


def test_a_table_of_a_spark_query_goes_on_where_the_query_stopped(
    scene: Scene, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = scene.folder / "check point"
    file = scene.file("clicks")
    scene.produce(100)
    stream(scene, checkpoint, fails_from=70)
    assert scene.held() == list(range(60))
    assert sorted(each.name for each in (checkpoint / "offsets").glob("[0-9]")) == ["0", "1", "2", "3"]
    assert not (checkpoint / "commits" / "3").exists()

    bare = copy(checkpoint, "bare", "offsets/2")
    assert "does not say where" in refuses(command, scene, file, "--from-checkpoint", bare)
    other = copy(checkpoint, "other")
    (other / "metadata").write_text(json.dumps({"id": "another"}))
    assert "no snapshot" in refuses(command, scene, file, "--from-checkpoint", other)
    assert "cannot be read" in refuses(command, scene, file, "--from-checkpoint", scene.folder / "nowhere")
    # As a crash leaves it between the table's commit and the commit log.
    killed = copy(checkpoint, "killed", "offsets/3", "commits/2")
    outside = scene.file("outside", ledger={"sqlite": "outside.ledger"})
    assert command("state", "import", outside, "--from-checkpoint", killed, "--yes").code == 0
    assert positions(command, outside) == {0: (30, 30), 1: (30, 30)}

    add_coordinates(scene.table)
    moving = copy(checkpoint, "moving")
    with monkeypatch.context() as patch:
        patch.setattr("typer.confirm", lambda *_, **__: (moving / "offsets" / "4").write_text("v1"))
        said = command("state", "import", file, "--from-checkpoint", moving)
    assert (said.code, "went on while this was decided" in said.err) == (3, True)
    said = command("state", "import", file, "--from-checkpoint", checkpoint, "--yes")
    assert said.code == 0, said.err
    assert "Batch 3 was planned and is not in the table" in said.out
    assert positions(command, file) == {0: (30, 30), 1: (30, 30)}
    run_once(command, file)
    assert scene.held() == list(range(100))
    scene.table.refresh()
    rows = scene.table.scan(selected_fields=("id", "_topic", "_kafka_partition", "_offset")).to_arrow().to_pylist()
    assert all(row["_offset"] is None for row in rows if row["id"] < 60)
    mine = {(row["_topic"], row["_kafka_partition"], row["_offset"], row["id"]) for row in rows if row["id"] >= 60}
    assert mine == {(scene.topic, number % 2, number // 2, number) for number in range(60, 100)}
    said = command("verify", file)
    assert said.code == 0, said.out + said.err


def copy(checkpoint: Path, name: str, *without: str) -> Path:
    made = checkpoint.with_name(name)
    shutil.copytree(checkpoint, made)
    for each in without:
        (made / each).unlink()
    return made
