"""Rows that a program pushes, into every kind of sink: the target is read by other means, and holds each offset once.

No Kafka and no Spark take part.
"""

from __future__ import annotations

import importlib
import json
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pytest
from clickhouse_connect import get_client
from deltalake import DeltaTable
from pipelines import landonce as command
from push_site import Site, comes_back, in_clickhouse, rows, there
from pyiceberg.catalog import load_catalog
from query_site import OTHER_LEDGERS, SELECT, TABLE, Row, other_ledger
from test_wrapped_run import hours_pass

import landonce
from landonce import errors
from landonce.read.schema.ddl import parse_schema
from landonce.testing.reference_sinks import SqliteSink

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ["_topic", "_partition", "_offset", "id", "word"]


def in_sqlite(path: Path, table: str = "events") -> list[Row]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(f"{SELECT} {table}").fetchall()


def files(folder: Path, *, idempotent: bool, probe: bool = True) -> landonce.WrappedSink:
    """A file for each block that is pushed again over itself, or one file that grows with every push."""
    (folder / "pushed").mkdir()
    grown = folder / "pushed" / "all"

    def push(block: landonce.PushedBlock) -> None:
        content = block.json_lines()
        if idempotent:
            (folder / f"{block.key}.aside").write_bytes(content)
            (folder / f"{block.key}.aside").replace(folder / "pushed" / block.key)
        else:
            with grown.open("ab") as file:
                file.write(content)
        if (folder / "no answer").exists():
            (folder / "no answer").unlink()
            raise ConnectionError("no answer")

    def found(block: landonce.PushedBlock) -> bool:
        return grown.exists() and block.json_lines() in grown.read_bytes()

    return landonce.wrap(push, idempotent=idempotent, probe=found if probe else None, settles_within=600, name="files")


def in_files(folder: Path) -> list[Row]:
    found = [json.loads(line) for each in (folder / "pushed").iterdir() for line in each.read_text().splitlines()]
    return [tuple(each[name] for name in NAMES) for each in found]


KINDS = ["sqlite", "postgres", "clickhouse", "iceberg", "idempotent", "probed", "duckdb", "delta", "deduplicating"]


@pytest.fixture
def open_site(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    opened: list[Site] = []

    def make(kind: str) -> Site:
        site = _site(kind, request, tmp_path, monkeypatch)
        opened.append(site)
        return site

    with hours_pass(tmp_path / "ledger"):
        yield make
    for site in opened:
        for each in site.sinks:
            each.close()


def _site(kind: str, request: pytest.FixtureRequest, folder: Path, patch: pytest.MonkeyPatch) -> Site:
    ledger = f"sqlite:///{folder / 'ledger'}"
    if kind == "sqlite":
        path = folder / "events.db"
        return Site(folder, landonce.sql(f"sqlite:///{path}", "events", create=True), lambda: in_sqlite(path))
    if kind == "postgres":
        url = request.getfixturevalue("new_database")()

        def in_postgres() -> list[Row]:
            with psycopg.connect(url.replace("+psycopg", "")) as connection:
                return connection.execute(f"{SELECT} events").fetchall()

        return Site(folder, landonce.sql(url, "events", create=True), in_postgres)
    if kind == "clickhouse":
        server, table = request.getfixturevalue("clickhouse"), request.getfixturevalue("new_table")()
        with get_client(dsn=server.url) as client:
            client.command(TABLE.format(table, ""))
        return Site(
            folder, landonce.clickhouse(server.url, table, deadline=1), lambda: in_clickhouse(server, table), ledger
        )
    if kind == "iceberg":
        catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/lake"}

        def in_iceberg() -> list[Row]:
            names = ["_topic", "_kafka_partition", "_offset", "id", "word"]
            scan = load_catalog("landonce", **catalog).load_table("shop.events").scan().to_arrow()
            return [tuple(row.values()) for row in scan.select(names).to_pylist()]

        return Site(folder, landonce.iceberg("shop.events", catalog, create=True), in_iceberg)
    if kind in ("idempotent", "probed", "blind"):
        sink = files(folder, idempotent=kind == "idempotent", probe=kind == "probed")
        return Site(folder, sink, lambda: in_files(folder), ledger)
    if kind == "deduplicating":
        other = SqliteSink(folder / "events.db")
        object.__setattr__(other, "deadline", 1.0)  # how long a pending plan is waited for
        other.target().create(parse_schema("id BIGINT, word STRING"))
        return Site(folder, other, lambda: in_sqlite(other.path), ledger)
    patch.syspath_prepend(str(EXAMPLES / f"landonce-{kind}"))
    package: Any = importlib.import_module(f"landonce_{kind}")
    if kind == "duckdb":
        path = folder / "events.duckdb"

        def in_duckdb() -> list[Row]:
            with closing(duckdb.connect(str(path))) as connection:
                return connection.execute(f"{SELECT} events").fetchall()

        return Site(folder, package.DuckDb(path=path, table="events", create=True), in_duckdb)
    path = folder / "events"

    def in_delta() -> list[Row]:
        return [
            tuple(row.values()) for row in DeltaTable(path).to_pyarrow_table(columns=NAMES).select(NAMES).to_pylist()
        ]

    return Site(folder, package.Delta(table=str(path), create=True), in_delta)


@pytest.mark.parametrize("kind", KINDS)
def test_a_push_that_ended_before_a_step_comes_back_in_another_cut(open_site: Any, kind: str) -> None:
    comes_back(open_site(kind), in_commit=kind in ("iceberg", "delta"))


@pytest.mark.parametrize("ledger", OTHER_LEDGERS)
def test_the_position_is_kept_where_a_pipeline_can_keep_it(
    open_site: Any, ledger: str, new_table: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory ends with the process: the source begins again, and the table says what it holds."""
    site, at = open_site("clickhouse"), 10
    site.ledger = other_ledger(ledger, new_table(), tmp_path, monkeypatch)
    site.push(site.once(), 0, at)
    for step in ("write", "record"):
        site.dies(step, 0 if ledger == "memory" else at, at + 10)
        again = site.once()
        assert again.position(0) == (None if ledger == "memory" else at)
        done = site.push(again, 0, at + 10)
        assert done.position == again.position(0) == at + 10
        at += 10
        again.release(0)
        assert site.push(again, at, at + 10).landed == len(there(at, at + 10)), "memory lasts as long as the process"
        at += 10
    site.holds(at)


@pytest.mark.parametrize("kind", ["sqlite", "clickhouse"])
def test_a_part_of_what_is_pending_is_enough_where_the_target_can_be_asked(open_site: Any, kind: str) -> None:
    site = open_site(kind)
    for at, step in ((0, "write"), (10, "commit")):
        site.dies(step, at, at + 10)
        again = site.once()
        site.push(again, at, at + 4)
        site.push(again, at + 2, at + 10)
    site.holds(20)


@pytest.mark.parametrize("kind", KINDS)
def test_threads_push_different_partitions_at_the_same_time(open_site: Any, kind: str) -> None:
    """Each in order, by one object. Nobody waits for a partition of somebody else to be settled."""
    site = open_site(kind)
    once, failed = site.once(block_rows=4), list[BaseException]()
    site.push(once, 0, 5)  # the table is made once

    def work(partition: int) -> None:
        try:
            for first in range(5 if partition == 0 else 0, 30, 5):
                site.push(once, first, first + 5, partition=partition)
                site.push(once, max(0, first - 5), first + 5, partition=partition)  # at least once
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert failed == []
    site.holds(30, 30, 30)
    assert [once.position(number) for number in range(4)] == [30, 30, 30, None]


@pytest.mark.parametrize("kind", ["sqlite", "clickhouse", "idempotent", "probed"])
def test_one_partition_in_doubt_does_not_hold_up_another(open_site: Any, kind: str) -> None:
    site = open_site(kind)
    site.push(site.once(), 0, 10)
    site.dies("commit", 10, 20)
    again = site.once()
    site.push(again, 0, 10, partition=1)
    site.push(again, 10, 20)
    site.holds(20, 10)


def test_a_large_push_lands_in_several_units_and_is_cut_alike_after_a_crash(open_site: Any) -> None:
    """What was pending comes again whole, whatever the push begins with, and however large a unit is by now."""
    site = open_site("idempotent")
    site.push(site.once(), 0, 5)
    site.dies("commit", 5, 60, block_rows=7, skip=2)
    site.push(site.once(block_rows=5), 2, 60)
    blocks = list((site.folder / "pushed").iterdir())
    assert len(blocks) > 5
    site.holds(60)


def test_what_a_push_reports(open_site: Any) -> None:
    site = open_site("sqlite")
    with site.once() as once:
        assert once.position(0) is None
        assert site.push(once, 0, 10) == landonce.PushResult(landed=6, skipped=0, position=10)
        assert site.push(once, 0, 10) == landonce.PushResult(landed=0, skipped=6, position=10)
        assert site.push(once, 4, 13) == landonce.PushResult(landed=2, skipped=3, position=13)
        assert once.push(0, [], first=13, end=20) == landonce.PushResult(landed=0, skipped=0, position=20)
        assert once.push(0, [], first=20, end=20) == landonce.PushResult(landed=0, skipped=0, position=20)
    with pytest.raises(errors.PushRefused, match="this sink is closed"):
        once.push(0, rows(20, 30))
    assert [row[2] for row in site.ask()] == there(0, 13)


def test_what_cannot_be_exact_is_a_named_error_and_the_next_push_goes_on(open_site: Any) -> None:
    site = open_site("sqlite")
    once = site.once()
    site.push(once, 10, 20)
    for error, first, end in (
        (errors.GapRefused, 25, 30),
        (errors.RewindRefused, 5, 20),
        (errors.PushRefused, 21, 21),
    ):
        with pytest.raises(error):
            once.push(0, rows(first, end), first=None if first == end else first, end=None if first == end else end)
    with pytest.raises(errors.RewindRefused, match="was already delivered"):
        site.push(site.once(on_rewind="error"), 10, 15)
    with pytest.raises(
        errors.PushRefused, match="the push cannot be delivered exactly once: events has no column 'other'"
    ):
        site.once(schema=None).push(0, [{"_offset": 20, "other": 1}], first=20)
    with pytest.raises(errors.TargetRefused, match="the row of offset 21 does not fit the table: field 'id'"):
        site.once(schema=None).push(0, [{"_offset": 21, "id": "x", "word": "x"}], first=20)
    site.push(site.once(), 20, 25)
    assert sorted(row[2] for row in site.ask()) == there(10, 25)


def test_a_block_in_doubt_of_a_sink_that_cannot_be_asked_halts_until_a_person_decides(
    open_site: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the command, and the partition's own name in the ledger."""
    site = open_site("blind")
    site.push(site.once(), 0, 10)
    (site.folder / "no answer").touch()
    with pytest.raises(errors.OutcomeUnknown, match=r"block .* was pushed \(attempt 1\) and no answer came") as caught:
        site.push(site.once(), 10, 20)
    with pytest.raises(errors.OutcomeUnknown):
        site.push(site.once(), 10, 20)
    block = caught.value.command.partition("--block ")[2].split()[0]
    (site.folder / "p.yaml").write_text(
        "pipeline: pushed.0\nsource: {kafka: {bootstrap_servers: none:1, topics: [pushed]}}\nsink: {wrapped: {}}\n"
        f"ledger: {{sqlite: {site.folder / 'ledger'}}}\n"
    )
    done = command(
        capsys, monkeypatch, "state", "settle", site.folder / "p.yaml", "--block", block, "--landed", "--yes"
    )
    assert done.code == 0, done
    assert site.push(site.once(), 10, 30).position == 30
    site.holds(30)


def test_the_newest_process_has_a_partition_until_it_is_given_back(open_site: Any) -> None:
    """As in a consumer group: another process takes over one partition, and the first keeps the others."""
    site = open_site("sqlite")
    old, new = site.once(), site.once()
    for partition in (0, 1):
        site.push(old, 0, 10, partition=partition)
    site.push(new, 10, 20)
    said = []
    for _ in range(3):
        with pytest.raises(errors.Fenced) as refused:
            site.push(old, 10, 20)
        said.append(refused.value)
    assert len({str(each) for each in said}) == 1
    assert len({id(each) for each in said}) == 3, "an error of its own for each push: one would hold the rows of all"
    site.push(old, 10, 20, partition=1)
    old.release(0)
    assert old.position(0) == 20
    site.push(old, 20, 30)
    with pytest.raises(errors.Fenced):
        site.push(new, 20, 30)
    site.holds(30, 20)


def test_processes_push_at_once_and_one_takes_a_partition_over(open_site: Any) -> None:
    """Two that begin with nothing: neither tables nor a ledger are there. Each has a partition, then one has both."""
    site = open_site("postgres")
    command = [sys.executable, str(Path(__file__).with_name("pushing_program.py")), site.sink.url.get_secret_value()]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) for _ in "ab"
    ]
    one, two = started
    try:
        assert [answer(each) for each in started] == ["ready", "ready"]
        tell(one, "0 30")
        tell(two, "1 30")
        assert [answer(each) for each in started] == ["30", "30"]
        site.holds(30, 30)
        tell(one, "0 1000000")
        tell(two, "0 20")
        assert answer(one) == "Fenced"
        end = int(answer(two))
        assert end >= 50
        tell(one, "2 10")
        assert answer(one) == "10"
        site.holds(end, 30, 10)
    finally:
        for each in started:
            each.kill()
            each.communicate()


def tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")


def answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_rows_may_change_their_columns_between_two_pushes(open_site: Any) -> None:
    site = open_site("sqlite")
    once = site.once(schema=None)
    site.push(once, 0, 10)
    once.push(0, [{"id": 11, "_offset": 11}], first=10, end=13)
    once.push(0, pa.table({"at": [13], "word": ["w13"]}), offset="at")
    assert sorted(site.ask())[-2:] == [("pushed", 0, 11, 11, None), ("pushed", 0, 13, None, "w13")]


def test_a_table_that_is_altered_between_two_pushes_is_examined_again(open_site: Any) -> None:
    """SQLite has one schema for all tables: another thread that makes its own alters it, too."""
    site = open_site("sqlite")
    once = site.once()
    site.push(once, 0, 10)
    with closing(sqlite3.connect(site.folder / "events.db")) as connection:
        connection.execute("CREATE TABLE other (a)")
    site.push(once, 10, 20)
    site.holds(20)
    with closing(sqlite3.connect(site.folder / "events.db")) as connection:
        connection.execute("ALTER TABLE events DROP COLUMN word")
    with pytest.raises(errors.PushRefused, match="no column 'word'"):
        site.push(once, 20, 30)


def test_a_wrapped_sink_may_hold_what_only_this_process_has(tmp_path: Path) -> None:
    """It is not sent to workers: an open connection, a lock."""
    with closing(sqlite3.connect(tmp_path / "own.db", check_same_thread=False)) as connection:
        connection.execute("CREATE TABLE t (id INT PRIMARY KEY)")

        def push(block: landonce.PushedBlock) -> None:
            with connection:
                connection.executemany(
                    "INSERT OR IGNORE INTO t VALUES (?)", [(row["id"],) for row in block.rows.to_pylist()]
                )

        sink = landonce.wrap(push, idempotent=True)
        with landonce.ExactlyOnceSink(sink, f"sqlite:///{tmp_path / 'ledger'}", name="own") as once:
            once.push(0, [{"id": 1}, {"id": 2}], first=0)
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (2,)


NOTHING_STARTS = """
import json, os, time, landonce
from contextlib import suppress
from pyspark import SparkContext

def of_threads(name):
    for each in os.listdir("/proc/self/task"):
        with suppress(OSError):  # a thread may end between the two
            yield open(f"/proc/self/task/{each}/{name}").read().strip()

def started():
    clients = sorted({each.partition(":")[0] for each in of_threads("comm")} & {"rdk"})
    processes = [each for some in of_threads("children") for each in some.split()]
    return {"gateway": SparkContext._gateway is not None, "processes": processes, "clients": clients}

with landonce.ExactlyOnceSink(landonce.sql("sqlite:///n.db", "t", create=True), name="n") as once:
    done = once.push(0, [{"_offset": at, "id": at} for at in range(100)], first=0)
    pushed = started()
from confluent_kafka import Producer
producer = Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
until = time.monotonic() + 60
while not started()["clients"] and time.monotonic() < until:  # a thread names itself, after it started
    time.sleep(0.01)
print(json.dumps({"landed": done.landed, "pushed": pushed, "control": started()["clients"]}), flush=True)
os._exit(0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads are read from /proc")
def test_nothing_of_spark_or_kafka_starts(tmp_path: Path) -> None:
    """The libraries are imported. A push starts no JVM, no other process, and no client of Kafka: librdkafka names its threads, which the
    control sees."""
    run = subprocess.run(
        [sys.executable, "-c", NOTHING_STARTS], cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True
    )
    said = json.loads(run.stdout.splitlines()[-1])
    assert said["pushed"] == {"gateway": False, "processes": [], "clients": []}
    assert (said["landed"], said["control"]) == (100, ["rdk"])
    with closing(sqlite3.connect(tmp_path / "n.db")) as database:
        assert database.execute("SELECT count(*), min(id), max(id) FROM t").fetchone() == (100, 0, 99)
