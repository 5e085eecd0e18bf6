"""`landonce maintain` on tables that real runs wrote, at rest and beside a running pipeline.

PyIceberg judges: every file that a snapshot names is there and can be read, every record is there once, and the table still
says how far the pipeline had come, without the copy in its properties.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from iceberg_servers import LocalRestCatalog
from jvms import iceberg_session
from pipelines import Said, landonce
from plain_process import PlainProcess
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyspark.sql import SparkSession
from small_lakes import SmallLake, once

from landonce.ledger.open import sqlite_ledger
from landonce.local import LocalKafka
from landonce.local.server import kill_tree
from landonce.protocol.ledger import LedgerState
from landonce.sinks.iceberg.config import Iceberg
from landonce.sinks.iceberg.maintain.expire import Expiry, Removal, remove
from landonce.sinks.iceberg.sink import IcebergSink
from landonce.sinks.iceberg.spark import StageOf, own_session
from landonce.sinks.pipeline_file import load
from landonce.sinks.snapshot import Origin, origin_of

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PATIENCE = 240.0
SMALL = {"interval": "0s", "max_rows": 40, "block_rows": 20}
RUTHLESS = ("--expire-older-than", "0s", "--keep-last", "1", "--orphans-older-than", "0s")
"""Nothing stays that need not."""

Maintain = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    session = iceberg_session({})
    yield session
    session.stop()


@pytest.fixture
def lake(kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path) -> SmallLake:
    return SmallLake(kafka, tmp_path, new_topic(partitions=2))


@pytest.fixture
def call(
    session: SparkSession, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Said]:
    return lambda lake, *options: landonce(capsys, monkeypatch, "maintain", lake.file, *options)


@pytest.fixture
def maintain(call: Callable[..., Said]) -> Maintain:
    """Gives what it says of each table."""

    def run(lake: SmallLake, *options: str) -> dict[str, Any]:
        said = call(lake, "--json", *options)
        assert said.code == 0, said
        return {each["table"]: each for each in said.json["tables"]}

    return run


def values(first: int, count: int) -> list[dict[str, Any]]:
    return [{"id": each, "kind": "ab"[each % 2]} for each in range(first, first + count)]


def path(uri: str) -> Path:
    return Path(uri.removeprefix("file://").removeprefix("file:"))


def named(table: Table) -> set[Path]:
    """Every data and delete file of every snapshot."""
    return {
        path(entry.data_file.file_path)
        for snapshot in table.metadata.snapshots
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    }


def intact(table: Table) -> None:
    """Every file that any snapshot names is there, whole."""
    for each in named(table):
        assert each.exists(), each
        if each.suffix == ".parquet":
            pq.read_table(each)


def files(table: Table, folder: str = "data") -> set[Path]:
    """What lies in a folder of the table. Spark leaves checksums beside its files, and they go with them."""
    found = {each for each in (path(table.location()) / folder).rglob("*") if each.is_file()}
    checksums = {each for each in found if each.suffix == ".crc"}
    assert {each.with_name(each.name.removeprefix(".").removesuffix(".crc")) for each in checksums} <= found
    return found - checksums


def plant(table: Table, origin: Origin, folder: str = "data", age: float = 0.0) -> Path:
    """A file as a worker would have left it."""
    target = path(table.location()) / folder / origin.file_name()
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(next(iter(files(table))), target)
    os.utime(target, (time.time() - age,) * 2)
    return target


def history(table: Table, branch: str = "main") -> list[Snapshot]:
    known = {each.snapshot_id: each for each in table.metadata.snapshots}
    at, found = table.metadata.snapshot_by_name(branch), []
    while at is not None:
        found.append(at)
        at = known.get(at.parent_snapshot_id or 0)
    return found


def batch_of(table: Table) -> tuple[int, int]:
    """Epoch and batch of the newest mark."""
    summary = next(each.summary.additional_properties for each in history(table) if marked(each))  # type: ignore[union-attr]
    return int(summary["landonce.epoch"]), int(summary["landonce.batch"])


def landed(table: Table) -> int:
    """Records that the newest mark says are in the table."""
    summary = next(each.summary.additional_properties for each in history(table) if marked(each))  # type: ignore[union-attr]
    return int(json.loads(summary["landonce.totals"])[0])


def marked(snapshot: Snapshot) -> bool:
    return snapshot.summary is not None and "landonce.pipeline" in snapshot.summary.additional_properties


def contents(table: Table) -> Counter[str]:
    """What kinds of files the head names, and how many of each."""
    head = table.current_snapshot()
    assert head is not None
    entries = (entry for manifest in head.manifests(table.io) for entry in manifest.fetch_manifest_entry(table.io))
    return Counter(each.data_file.content.name for each in entries)


def sink_of(lake: SmallLake) -> IcebergSink:
    config = load(lake.file)
    assert isinstance(config.sink, Iceberg)
    return config.sink.to_sink(config.pipeline)


def state_of(lake: SmallLake, *, without_copy: bool = False) -> LedgerState | None:
    """What the table says of the pipeline when it is its own ledger."""
    sink = sink_of(lake)
    if without_copy:
        with lake.table(sink.static[0]).transaction() as change:
            change.remove_properties(f"landonce.{sink.pipeline}.{sink.config.branch}")
    return sink.own_ledger().load()


def stranger(table: Table, number: int) -> None:
    """Another writer adds a row."""
    schema = table.schema().as_arrow()
    row = {"id": [number], "kind": ["x"], "_topic": ["elsewhere"], "_kafka_partition": [0], "_offset": [number]}
    table.append(pa.table(row, schema))


def test_compaction_expiry_and_orphans(lake: SmallLake, maintain: Maintain) -> None:
    """All of it on one table, first only said and then done."""
    lake.write_file({"table": "db.t", "create": True}, batch=SMALL)
    lake.produce(values(0, 240))
    assert lake.run().landed == 240
    table = lake.table("db.t")
    stranger(table, 0)
    stranger(table, 1)
    epoch, batch = batch_of(table)
    mine = files(table)
    dead = [plant(table, Origin("pipe", epoch, batch, 7)), plant(table, Origin("pipe", epoch - 1, batch + 9, 0))]
    dead.append(plant(table, Origin("pipe", epoch, batch - 1, 0), "landonce-staged"))
    kept = [plant(table, Origin("pipe", epoch, batch + 1, 0), age=1e7), plant(table, Origin("other", 1, 1, 0), age=1e7)]
    kept.append(kept[0].with_name("somebody's.parquet"))
    kept[-1].write_bytes(b"not ours")
    state, location, before = state_of(lake), lake.table("db.t").metadata_location, lake.rows("db.t")

    said = maintain(lake, "--dry-run", *RUTHLESS)["db.t"]
    assert lake.table("db.t").metadata_location == location
    assert files(table) == mine | set(dead[:2]) | set(kept)
    assert said["compaction"]["candidates"] == 14
    assert said["compaction"]["rewritten_files"] == 0
    assert (said["orphans"]["deleted_files"], said["orphans"]["perhaps_in_flight"]) == (3, 1)
    assert said["expiry"]["snapshots"] == len(history(table)) - 3, "the head, one in between, and the mark"
    assert (said["expiry"]["kept_for_positions"], said["expiry"]["positions_of"]) == (2, ["pipe"])

    report = maintain(lake, *RUTHLESS)["db.t"]
    table = lake.table("db.t")
    assert (report["compaction"]["rewritten_files"], report["compaction"]["added_files"]) == (14, 1)
    assert report["compaction"]["rewritten_bytes"] > 0
    assert report["expiry"]["snapshots"] == said["expiry"]["snapshots"]
    assert len(history(table)) == len(table.metadata.snapshots) == 4
    assert [marked(each) for each in history(table)] == [False, False, False, True]
    assert report["orphans"]["deleted_files"] == 3
    assert report["not_deleted"] == 0
    assert not any(each.exists() for each in dead)
    assert all(each.exists() for each in kept)
    intact(table)
    assert lake.rows("db.t") == before
    assert files(table) == named(table) | set(kept)
    assert state_of(lake) == state
    assert state_of(lake, without_copy=True) == state
    lake.produce(values(240, 10))
    assert lake.run().landed == 10
    assert lake.offsets("db.t") == once(250) + Counter({(0, 0): 1, (0, 1): 1})


def test_what_expires_is_deleted_with_its_files(lake: SmallLake, maintain: Maintain) -> None:
    """After a compaction and one more batch, nothing leads to the small files any more."""
    lake.write_file({"table": "db.t", "create": True}, batch=SMALL)
    lake.produce(values(0, 240))
    lake.run()
    small = files(lake.table("db.t"))
    maintain(lake, *RUTHLESS)
    assert small <= files(lake.table("db.t")), "the mark is below the compaction, and what it names is readable"
    lake.produce(values(240, 1))
    lake.run()
    report = maintain(lake, "--no-compact", *RUTHLESS)["db.t"]
    table = lake.table("db.t")
    assert not small & files(table)
    assert report["expiry"]["deleted_files"] > len(small)
    assert report["expiry"]["deleted_bytes"] > 0
    assert report["orphans"]["deleted_files"] == 0, "they were known by name"
    assert files(table) == named(table)
    metadata = {each.name for each in files(table, "metadata") if not each.name.endswith(".json")}
    lists = {Path(each.manifest_list).name for each in table.metadata.snapshots}
    manifests = {Path(m.manifest_path).name for each in table.metadata.snapshots for m in each.manifests(table.io)}
    assert metadata == lists | manifests
    intact(table)
    assert lake.offsets("db.t") == once(241)


def test_a_second_writer_moves_the_head_while_it_is_decided(lake: SmallLake, session: SparkSession) -> None:
    """What may go is decided again on what is there then."""
    lake.write_file({"table": "db.t", "create": True}, batch=SMALL)
    lake.produce(values(0, 80))
    lake.run()
    asked: list[int] = []
    sink = sink_of(lake)

    def decide(table: Table) -> Removal:
        head = table.metadata.snapshot_by_name("main")
        assert head is not None
        asked.append(head.snapshot_id)
        if len(asked) == 1:
            stranger(lake.table("db.t"), 0)
        return Removal(Expiry((head.parent_snapshot_id or 0,)))

    remove(lambda: session, sink.spec, sink.place("db.t").load, decide)
    left = {each.snapshot_id for each in lake.table("db.t").metadata.snapshots}
    first, second = asked
    assert second in left
    assert first not in left, "it was the head, and when it was decided again it was not"


def test_a_pipeline_that_writes_to_a_branch(lake: SmallLake, maintain: Maintain) -> None:
    """Its own branch is compacted, the main one is left as it is, and both keep what they need."""
    lake.write_file({"table": "db.t", "create": True}, batch=SMALL)
    lake.produce(values(0, 80))
    lake.run()
    main = history(lake.table("db.t"))[0]
    lake.write_file({"table": "db.t", "branch": "audit"}, batch=SMALL)
    lake.produce(values(80, 120))
    lake.run()
    state = state_of(lake)
    report = maintain(lake, "--where", "kind = 'nobody\\'s'", "--target-size", "64MB")["db.t"]
    assert (report["compaction"]["rewritten_files"], report["notes"]) == (0, [])
    report = maintain(lake, "--where", "kind = 'a'", *RUTHLESS)["db.t"]
    assert report["compaction"]["rewritten_files"] > 0
    table = lake.table("db.t")
    assert history(table)[0].snapshot_id == main.snapshot_id
    assert lake.offsets("db.t") == once(80)
    assert lake.offsets("db.t", "audit") == once(200)
    assert not marked(history(table, "audit")[0])
    intact(table)
    assert state_of(lake, without_copy=True) == state


@pytest.mark.parametrize("version", [2, pytest.param(3, marks=pytest.mark.long)])
def test_rows_that_change(lake: SmallLake, maintain: Maintain, session: SparkSession, version: int) -> None:
    """Deletes are folded in, and staging branches of the dead go; one in flight stays."""
    sink = {"table": "db.t", "create": True, "identity": "id", "changes": {"mode": "upsert"}}
    lake.write_file({**sink, "properties": {"format-version": str(version)}}, batch={"interval": "0s", "max_rows": 20})
    lake.produce([{"id": each % 10, "kind": f"v{each}"} for each in range(60)])
    lake.run()
    table = lake.table("db.t")
    epoch, batch = batch_of(table)
    left, flying = (StageOf("pipe", epoch, each).new_name() for each in (batch, batch + 1))
    with own_session(session, sink_of(lake).spec) as mine:
        for name in (left, flying):
            mine.sql(f"ALTER TABLE landonce.db.t CREATE BRANCH `{name}`")
    deletes = contents(table)["POSITION_DELETES"]
    wanted = {row["id"]: row["kind"] for row in lake.rows("db.t")}
    assert wanted == {each % 10: f"v{each}" for each in range(50, 60)}
    state = state_of(lake)
    report = maintain(lake, *RUTHLESS)["db.t"]
    assert report["orphans"]["staging_branches"] == 1
    table = lake.table("db.t")
    assert flying in table.metadata.refs
    assert left not in table.metadata.refs
    assert report["compaction"]["rewritten_files"] > 1
    assert contents(table)["DATA"] == 1
    assert contents(table)["POSITION_DELETES"] <= 1 < deletes, "those of the newest snapshot go the next time"
    assert {row["id"]: row["kind"] for row in lake.rows("db.t")} == wanted
    intact(table)
    assert state_of(lake) == state
    lake.produce([{"id": 3, "kind": "last"}])
    lake.run()
    assert {row["id"]: row["kind"] for row in lake.rows("db.t")} == {**wanted, 3: "last"}


def test_a_fan_out(lake: SmallLake, maintain: Maintain, call: Callable[..., Said]) -> None:
    """Every table by its own mark: a superseded driver may still commit to a table that nobody committed to since."""
    tables = [{"table": "db.a", "equals": "a"}, {"table": "db.b", "equals": "b"}]
    lake.write_file({"tables": tables, "route_field": "kind", "create": True}, batch=SMALL)
    lake.produce(values(0, 120))
    lake.run()
    lake.produce([{"id": each, "kind": "a"} for each in range(120, 160)])
    lake.run()
    a, b = lake.table("db.a"), lake.table("db.b")
    assert (batch_of(a)[0], batch_of(b)[0]) == (2, 1)
    batch = batch_of(b)[1] + 1
    origins = Origin("pipe", 1, batch, 9), Origin("pipe", 2, batch + 5, 9)
    superseded, owned = zip(
        *(tuple(plant(each, origin, age=60.0) for origin in origins) for each in (a, b)), strict=True
    )
    report = maintain(lake, "--table", "db.a", *RUTHLESS[:4])
    assert list(report) == ["db.a"]
    assert not superseded[0].exists()
    assert superseded[1].exists()
    assert set(maintain(lake, *RUTHLESS[:4])) == {"db.a", "db.b"}
    assert superseded[1].exists(), "younger than three days"
    maintain(lake, *RUTHLESS)
    assert not superseded[1].exists()
    assert owned[0].exists()
    assert owned[1].exists(), "never of the driver that has the pipeline"
    for table in (lake.table("db.a"), lake.table("db.b")):
        intact(table)
    assert lake.offsets("db.a") + lake.offsets("db.b") == once(160)
    lake.produce(values(160, 20))
    assert lake.run().landed == 20
    ledger = sqlite_ledger(lake.folder / "landonce.ledger", "pipe").load()
    assert ledger is not None
    assert ledger.epoch == 3

    said = call(lake, "--table", "db.nothing")
    assert said.code == 2
    assert "db.nothing" in said.err
    assert "db.a" in call(lake).out


def test_tables_that_must_be_left_alone(lake: SmallLake, maintain: Maintain) -> None:
    lake.write_file({"table": "db.t", "create": True, "properties": {"gc.enabled": False}}, batch=SMALL)
    assert maintain(lake) == {}, "there is no catalog yet"
    lake.produce(values(0, 80))
    lake.run()
    table = lake.table("db.t")
    dead = plant(table, Origin("pipe", 0, 1, 0))
    [note] = maintain(lake, "--no-compact", *RUTHLESS)["db.t"]["notes"]
    assert "gc.enabled" in note
    assert dead.exists()
    assert lake.table("db.t").metadata_location == table.metadata_location


def test_clickhouse_needs_none_of_it(call: Callable[..., Said], lake: SmallLake) -> None:
    lake.file.write_text(
        "{pipeline: p, source: {kafka: {bootstrap_servers: 'x:1', topics: [t]}}, "
        "sink: {clickhouse: {url: 'http://localhost', table: t}}}"
    )
    said = call(lake)
    assert said.code == 2
    assert "Iceberg" in said.err


def test_a_rest_catalog(
    kafka: LocalKafka,
    new_topic: Callable[..., str],
    tmp_path: Path,
    rest_catalog: LocalRestCatalog,
    maintain: Maintain,
) -> None:
    lake = SmallLake(kafka, tmp_path, new_topic(), properties={"type": "rest", "uri": rest_catalog.uri})
    lake.write_file({"table": "upkeep.t", "create": True}, batch=SMALL)
    lake.produce(values(0, 240))
    lake.run()
    table = lake.table("upkeep.t")
    dead = plant(table, Origin("pipe", 0, 1, 0))
    state = state_of(lake)
    report = maintain(lake, *RUTHLESS)["upkeep.t"]
    table = lake.table("upkeep.t")
    assert report["compaction"]["rewritten_files"] == 12
    assert report["expiry"]["snapshots"] > 5
    assert len(table.metadata.snapshots) == 2
    assert not dead.exists()
    intact(table)
    assert state_of(lake, without_copy=True) == state
    assert lake.offsets("upkeep.t") == once(240)


# Beside a pipeline that runs.


@contextmanager
def driver(
    lake: SmallLake, place: str = "", *, skip: int = 0, go: Path | None = None, once: bool = True
) -> Iterator[Any]:
    """`landonce run` in a process of its own, which stops at `place` for ever, or until `go` is there."""
    reached, log = lake.folder / f"reached-{time.monotonic_ns()}", lake.folder / f"log-{time.monotonic_ns()}"
    failpoint = {
        "LANDONCE_FAILPOINT": place,
        "LANDONCE_FAILPOINT_SKIP": str(skip),
        "LANDONCE_FAILPOINT_FILE": str(reached) if place else "",
        "LANDONCE_FAILPOINT_WAIT_FOR": str(go) if go else "",
    }
    process = PlainProcess(("run", str(lake.file), *(["--once"] if once else [])), failpoint, log)
    try:
        wait_for(lambda: not place or reached.exists() or process.poll() is not None, f"{place} is reached", log)
        assert process.poll() is None or not place, log.read_text()
        yield process, log
    finally:
        kill_tree(process.pid)
        process.wait(10)


def wait_for(true: Callable[[], bool], what: str, log: Path | None = None) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE:.0f} s\n{log.read_text() if log else ''}"
        time.sleep(0.5)


@pytest.mark.timeout(600)
def test_files_of_the_killed_go_and_files_in_flight_stay(lake: SmallLake, maintain: Maintain) -> None:
    """Two drivers are killed with their files written, and a third is paused before its commit while all is cleaned."""
    lake.write_file({"table": "db.t", "create": True}, batch=SMALL, spark={"master": "local[1]"})
    lake.produce(values(0, 80))
    lake.run()
    lake.produce(values(80, 40))
    table, go = lake.table("db.t"), lake.folder / "go"
    for place, skip in (("files.after", 1), ("attempt.before", 1)):
        with driver(lake, place, skip=skip):
            pass
    orphans = files(table) - named(lake.table("db.t"))
    assert {origin_of(each.name).epoch for each in orphans} == {2, 3}  # type: ignore[union-attr]
    with driver(lake, "attempt.before", skip=1, go=go) as (process, log):
        flying = files(table) - named(lake.table("db.t")) - orphans
        assert {origin_of(each.name).epoch for each in flying} == {4}  # type: ignore[union-attr]
        report = maintain(lake, *RUTHLESS)["db.t"]
        assert not any(each.exists() for each in orphans)
        assert all(each.exists() for each in flying)
        assert (report["orphans"]["deleted_files"], report["orphans"]["perhaps_in_flight"]) == (
            len(orphans),
            len(flying),
        )
        go.touch()
        assert process.wait(PATIENCE) == 0, log.read_text()
    assert flying <= named(lake.table("db.t"))
    intact(lake.table("db.t"))
    assert lake.offsets("db.t") == once(120)


@contextmanager
def feeding(lake: SmallLake, record: Callable[[int], dict[str, Any]], first: int) -> Iterator[Callable[[], int]]:
    """Records go on coming; says how many there are in all."""
    enough, sent = threading.Event(), [first]

    def feed() -> None:
        while not enough.wait(0.2):
            lake.produce(record(sent[0] + each) for each in range(10))
            sent[0] += 10

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        yield lambda: sent[0]
    finally:
        enough.set()
        feeder.join(60)


def tidied_beside(
    lake: SmallLake, maintain: Maintain, record: Callable[[int], dict[str, Any]], first: int
) -> tuple[int, int]:
    """Twice while batches land one after the other; gives how many records there were in the end, and rewritten files."""
    reports = []
    with driver(lake, once=False) as (process, log):
        with feeding(lake, record, first) as sent:
            for _ in range(2):
                begun = batch_of(lake.table("db.t"))[1]
                wait_for(lambda begun=begun: batch_of(lake.table("db.t"))[1] > begun + 2, "batches land", log)  # type: ignore[misc]
                reports.append(maintain(lake, *RUTHLESS)["db.t"])
                intact(lake.table("db.t"))
        wait_for(lambda: landed(lake.table("db.t")) == sent(), "everything lands", log)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0, log.read_text()
        assert "rolled back" not in log.read_text()
    assert all(each["expiry"]["snapshots"] > 0 for each in reports)
    return sent(), sum(each["compaction"]["rewritten_files"] for each in reports)


@pytest.mark.timeout(600)
def test_beside_a_running_pipeline(lake: SmallLake, maintain: Maintain) -> None:
    """Small batches go on landing, and nothing is lost, doubled or forgotten."""
    sink = {"table": "db.t", "create": True, "partition_by": "kind"}
    lake.write_file(sink, batch=SMALL)
    lake.produce(values(0, 200))
    lake.run()
    dead = [plant(lake.table("db.t"), Origin("pipe", 1, each, 0)) for each in (1, 2)]
    lake.write_file(sink, batch={"interval": "300ms"}, spark={"master": "local[1]"})
    sent, rewritten = tidied_beside(lake, maintain, lambda number: values(number, 1)[0], 200)
    assert rewritten > 0
    assert not any(each.exists() for each in dead)
    intact(lake.table("db.t"))
    assert lake.offsets("db.t") == once(sent)
    state = state_of(lake)
    maintain(lake, *RUTHLESS)
    assert files(lake.table("db.t")) == named(lake.table("db.t"))
    intact(lake.table("db.t"))
    assert state_of(lake, without_copy=True) == state
    assert lake.run().read == 0, "the next start goes on from there"
    assert lake.offsets("db.t") == once(sent)


@pytest.mark.timeout(600)
@pytest.mark.long
def test_beside_a_pipeline_that_changes_rows(lake: SmallLake, maintain: Maintain) -> None:
    """Compaction and MERGE are after the same files: whichever comes second does its work again, or leaves it."""

    def record(number: int) -> dict[str, Any]:
        return {"id": number % 30, "kind": f"v{number}"}

    sink = {"table": "db.t", "create": True, "identity": "id", "changes": {"mode": "upsert"}}
    lake.write_file(sink, batch={"interval": "0s", "max_rows": 100})
    lake.produce(map(record, range(400)))
    lake.run()
    lake.write_file(sink, batch={"interval": "300ms"}, spark={"master": "local[1]"})
    sent, _ = tidied_beside(lake, maintain, record, 400)
    assert {row["id"]: row["kind"] for row in lake.rows("db.t")} == {
        each % 30: f"v{each}" for each in range(sent - 30, sent)
    }
    assert len(lake.rows("db.t")) == 30
    state = state_of(lake)
    maintain(lake, *RUTHLESS)
    intact(lake.table("db.t"))
    assert state_of(lake, without_copy=True) == state
