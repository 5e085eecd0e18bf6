"""`landonce state seek` and `rewind` with real servers: back and forwards, killed at every step, audited after each."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deliveries import Site, Watch, letters, running, send, wait_until
from mariadb_server import LocalMariaDB
from operated import Operated
from plain_process import UNDISTURBED, PlainProcess
from replayed import Replayed, event
from sql_runs import asking_postgres, asking_sqlite
from typer.testing import CliRunner

from landonce.cli import app
from landonce.engine.pipeline import run_pipeline
from landonce.errors import Fenced, PlanPending
from landonce.local import LocalClickHouse, LocalKafka
from landonce.protocol.ledger import Totals
from landonce.protocol.steps import Effect, Step
from landonce.sinks.parts import open_parts
from landonce.sinks.pipeline_file import load, parse

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
NO_SPARK: Any = None
KEPT_BY = ("clickhouse", "sqlite")
REFUSALS = {
    "wrapped": ("cannot remove rows by their coordinates", "would be in the target twice"),
    "dedup": ("with `dedup` cannot go back or skip records",),
}


class Pipe(Site):
    """One topic of one partition, some of whose records are bad, into ClickHouse or an SQL database."""

    target = "clickhouse"
    database = ""
    """The URL of the SQL database."""
    query: Callable[[str], list[tuple[Any, ...]]]
    """Asks it, apart from landonce."""

    def write(self, where: str = "", **kafka: Any) -> None:
        document = self.document(kafka={"schema": "id BIGINT NOT NULL, name STRING", **kafka}, batch={"block_rows": 4})
        document |= {"transform": {"where": where}} if where else {}
        if self.target != "clickhouse":
            document["sink"] = {"sql": {"url": self.database, "table": "events", "create": True}}
            del document["ledger"]
        self.file.write_text(json.dumps(document))

    def run(self) -> None:
        run_pipeline(parse(self.file.read_text(), self.file), once=True)

    def totals(self) -> Totals:
        parts = open_parts(parse(self.file.read_text(), self.file))
        with closing(parts.ledger):
            state = parts.ledger.load()
        assert state is not None
        return state.totals

    def ids(self) -> Counter[int]:
        """What the target holds, asked apart from landonce."""
        if self.target == "clickhouse":
            return Counter(row["_offset"] for row in self.ask(f"SELECT _offset FROM {self.table}"))
        return Counter(offset for (offset,) in self.query("SELECT _offset FROM events"))

    def state(self, *words: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, ["state", words[0], str(self.file), *words[1:], "--yes"])
        assert done.exit_code == code, (done.output, done.exception)
        return done.output if not code else str(done.exception)

    def exact(self, dead: int) -> None:
        audited = CliRunner().invoke(app, ["verify", str(self.file)])
        assert audited.exit_code == 0, audited.output
        places = [each["offset"] for each in letters(self.dead)]
        assert len(places) == len(set(places)) == dead

    def kill_at(self, place: str, *words: str) -> None:
        killed(self.folder, self.file, place, *words)


def killed(folder: Path, file: Path, place: str, *words: str) -> None:
    """A `landonce state` command, killed there."""
    reached, log = folder / f"reached-{place}", folder / "seek.log"
    stops = {**UNDISTURBED, "LANDONCE_FAILPOINT": place, "LANDONCE_FAILPOINT_FILE": str(reached)}
    process = PlainProcess(["state", words[0], str(file), *words[1:], "--yes"], stops, log)
    until = time.monotonic() + 120
    while not reached.exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    process.kill()
    process.wait(30)
    assert reached.exists(), log.read_text()


@pytest.fixture(params=KEPT_BY)
def pipe(
    request: pytest.FixtureRequest,
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_table: Callable[[], str],
    new_topic: Callable[..., str],
    tmp_path: Path,
) -> Pipe:
    pipe = Pipe(kafka, clickhouse, tmp_path, new_table(), [new_topic(1)])
    pipe.target = request.param
    if pipe.target == "sqlite":
        pipe.database, pipe.query = f"sqlite:///{tmp_path}/t.db", asking_sqlite(tmp_path / "t.db")
    elif pipe.target == "postgres":
        pipe.database = request.getfixturevalue("new_database")()
        pipe.query = asking_postgres(pipe.database)
    elif pipe.target == "mariadb":
        in_mariadb(pipe, request.getfixturevalue("mariadb"))
    pipe.make("id Int64, name String")
    pipe.clickhouse.ask(f"SYSTEM START MERGES {pipe.table}")  # a mutation waits for them
    pipe.write()
    return pipe


def in_mariadb(pipe: Pipe, server: LocalMariaDB) -> None:
    name = f"seek_{pipe.table}"
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")

    def query(sql: str) -> list[tuple[Any, ...]]:
        with server.connect(name) as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    pipe.database, pipe.query = server.url_of(name), query


def records(first: int, end: int) -> list[Any]:
    """Every fifth one is bad."""
    return [b"{" if each % 5 == 4 else {"id": each, "name": f"n{each}"} for each in range(first, end)]


GOOD = Counter(each for each in range(20) if each % 5 != 4)


@pytest.mark.parametrize(
    "pipe", [*KEPT_BY, *(pytest.param(kind, marks=pytest.mark.long) for kind in ("postgres", "mariadb"))], indirect=True
)
def test_back_with_rows_removed(pipe: Pipe) -> None:
    """Killed at every step; then no driver starts, and the same command goes on. What lands is what the present file makes."""
    topic = pipe.topics[0]
    for first in (0, 10):
        send(pipe.kafka, topic, records(first, first + 10))
        pipe.run()
    pipe.exact(dead=4)
    assert len(list(pipe.dead.glob("*.jsonl"))) == 4
    go = ("seek", "--to-offset", f"{topic}:0:6", "--remove-rows")
    places = ("letters.file", "mark.before", "mark.after", "remove.after", "move.before", "move.after")
    for place in places if pipe.target in KEPT_BY else ("remove.after",):
        pipe.kill_at(place, *go)
        if place in ("letters.file", "mark.after", "remove.after", "move.before"):
            with pytest.raises(PlanPending, match="was interrupted while it removed rows"):
                pipe.run()
            assert "interrupted" in pipe.state("accept-gap", code=1), "no other command forgets the marker"
            for command in (["check"], ["state", "show"]):
                assert "was interrupted" in CliRunner().invoke(app, [*command, str(pipe.file)]).output
            assert "Delivered again" in pipe.state("seek", "--resume")
            assert pipe.ids() == Counter(each for each in GOOD if each < 6)
        pipe.run()
        assert pipe.ids() == GOOD
        pipe.exact(dead=4)
    assert pipe.totals() == Totals(landed=16, dead_lettered=4), "what was delivered again is counted once"


def test_forwards_skips_and_back_over_it_delivers_it(pipe: Pipe) -> None:
    topic = pipe.topics[0]
    send(pipe.kafka, topic, records(0, 10))
    pipe.run()
    send(pipe.kafka, topic, records(10, 20))
    assert "Skipped" in pipe.state("seek", "--to-offset", f"{topic}:0:15")
    pipe.run()
    assert pipe.ids() == Counter(each for each in GOOD if not 10 <= each < 15)
    pipe.exact(dead=3)
    assert "there already" in pipe.state("seek", "--to", "latest", code=1)
    pipe.state("rewind", "--by", "1h", "--remove-rows")
    assert pipe.ids() == Counter()
    pipe.run()
    assert pipe.ids() == GOOD
    pipe.exact(dead=4)


def test_back_with_rows_kept_is_a_check_that_fills_what_is_missing(pipe: Pipe) -> None:
    topic = pipe.topics[0]
    send(pipe.kafka, topic, records(0, 20))
    pipe.run()
    if pipe.target == "sqlite":
        refusal = pipe.state("seek", "--to", "earliest", code=1)
        assert "would be in the target twice" in refusal
        assert "--remove-rows" in refusal
        return
    pipe.clickhouse.ask(
        f"ALTER TABLE {pipe.table} DELETE WHERE _offset >= 8 AND _offset < 12 SETTINGS mutations_sync = 2"
    )
    pipe.state("seek", "--to", "earliest", "--keep-rows")
    pipe.run()
    assert pipe.ids() == GOOD
    pipe.exact(dead=4)


@pytest.mark.parametrize("pipe", ["clickhouse"], indirect=True)
@pytest.mark.parametrize("where", ["", pytest.param("id % 3 <> 0", marks=pytest.mark.long)], ids=["all", "filtered"])
def test_back_with_rows_kept_and_forwards_again_is_as_before(pipe: Pipe, where: str) -> None:
    """What is in the target is not skipped: it counts again, piece by piece, and around what was skipped."""
    topic = pipe.topics[0]
    pipe.write(where=where)
    send(pipe.kafka, topic, records(0, 20))
    pipe.run()
    dead, once, ids = 4, pipe.totals(), pipe.ids()
    assert "Stays in the target" in pipe.state("seek", "--to", "earliest", "--keep-rows")
    assert pipe.totals() == Totals()
    said = pipe.state("seek", "--to", "latest")
    assert f"Counted again: {topic}[0] [0, 20)." in said
    assert "Skipped" not in said
    assert (pipe.totals(), pipe.ids()) == (once, ids)
    pipe.exact(dead)
    send(pipe.kafka, topic, records(20, 30))
    pipe.state("seek", "--to-offset", f"{topic}:0:25")
    pipe.run()
    once, ids, dead = pipe.totals(), pipe.ids(), 5
    pipe.state("seek", "--to-offset", f"{topic}:0:8")
    pipe.state("seek", "--to-offset", f"{topic}:0:12")
    said = pipe.state("seek", "--to", "latest")
    for words in (f"Skipped: {topic}[0] [20, 25)", f"again: {topic}[0] [12, 20)", f"again: {topic}[0] [25, 30)"):
        assert words in said
    pipe.run()
    assert (pipe.totals(), pipe.ids()) == (once, ids)
    pipe.exact(dead)


@pytest.mark.parametrize(
    ("pipe", "how"),
    [pytest.param("clickhouse", "--keep-rows", marks=pytest.mark.long), ("sqlite", "--remove-rows")],
    indirect=["pipe"],
)
def test_totals_with_a_filter_are_those_of_one_pass(pipe: Pipe, how: str) -> None:
    """Back over records that landed, were filtered, are dead, and were skipped, several times: the account stays right."""
    topic = pipe.topics[0]
    pipe.write(where="id % 3 <> 0")
    send(pipe.kafka, topic, records(0, 20))
    pipe.run()
    once = pipe.totals()
    assert once == Totals(landed=10, dead_lettered=4, filtered=6)
    for offset in (0, 7):
        pipe.state("seek", "--to-offset", f"{topic}:0:{offset}", how)
        assert pipe.totals().read == offset
        pipe.run()
        assert pipe.totals() == once
    send(pipe.kafka, topic, records(20, 26))
    pipe.state("seek", "--to-offset", f"{topic}:0:25")
    pipe.run()
    assert pipe.totals() == replace(once, landed=11)
    pipe.state("seek", "--to-offset", f"{topic}:0:19", how)
    assert "Skipped" in pipe.state("seek", "--to-offset", f"{topic}:0:25")
    assert pipe.totals().read == (20 if how == "--keep-rows" else 19), "what is still in the target counts again"
    pipe.state("seek", "--to-offset", f"{topic}:0:0", how)
    assert pipe.totals() == Totals()
    pipe.run()
    assert pipe.totals() == Totals(landed=14, dead_lettered=5, filtered=7)
    pipe.exact(dead=5)


@pytest.mark.parametrize("pipe", ["clickhouse"], indirect=True)
def test_totals_where_rows_are_gone_or_in_two_tables(pipe: Pipe) -> None:
    """A record counts once, though two tables have it, or somebody removed its row."""
    topic, table = pipe.topics[0], pipe.table
    document = json.loads(pipe.file.read_text())
    listed = [{"table": table}, {"table": f"{table}_even", "match": ".*[02468]"}]
    document["sink"]["clickhouse"] |= {"tables": listed, "route_field": "name", "create": True}
    del document["sink"]["clickhouse"]["table"]
    pipe.file.write_text(json.dumps(document))
    send(pipe.kafka, topic, records(0, 20))
    pipe.run()
    once = pipe.totals()
    assert once == Totals(landed=16, dead_lettered=4)
    for gone in ("_offset < 0", "_offset >= 8 AND _offset < 12"):
        pipe.clickhouse.ask(f"ALTER TABLE {table} DELETE WHERE {gone} SETTINGS mutations_sync = 2")
        pipe.state("seek", "--to", "earliest", "--keep-rows")
        assert pipe.totals() == Totals()
        pipe.run()
        assert pipe.totals() == once
    assert pipe.ids() == GOOD
    pipe.exact(dead=4)


@pytest.mark.parametrize("pipe", ["clickhouse"], indirect=True)
def test_rows_of_several_tables_are_removed(pipe: Pipe) -> None:
    """Also those that records named. A table of somebody else is left alone, though its name and its coordinates fit. Killed between the tables,
    nothing starts until the command is finished."""
    topic, (a, b, other) = pipe.topics[0], (f"{pipe.table}_{each}" for each in ("a", "b", "other"))
    document = json.loads(pipe.file.read_text())
    document["sink"]["clickhouse"] |= {"table": pipe.table + "_{name}", "create": True}
    pipe.file.write_text(json.dumps(document))
    values = [b"{" if each % 5 == 4 else {"id": each, "name": "ab"[each % 2]} for each in range(20)]
    send(pipe.kafka, topic, values)
    pipe.run()

    def ids(table: str) -> list[int]:
        return [row["id"] for row in pipe.ask(f"SELECT id FROM {table} ORDER BY id")]

    due = {table: [each for each in GOOD if each % 2 == odd] for odd, table in ((0, a), (1, b))}
    assert {each: ids(each) for each in due} == due
    pipe.clickhouse.ask(f"CREATE TABLE {other} AS {a}")
    pipe.clickhouse.ask(f"INSERT INTO {other} SELECT * FROM {a} WHERE _offset = 10")
    for each in due:
        pipe.clickhouse.ask(f"SYSTEM START MERGES {each}")  # a mutation waits for them
    pipe.kill_at("remove.table", "seek", "--to-offset", f"{topic}:0:6", "--remove-rows")
    assert sorted(max(ids(each)) < 6 for each in due) == [False, True], "it was killed after the first table"
    with pytest.raises(PlanPending, match="was interrupted while it removed rows"):
        pipe.run()
    pipe.state("seek", "--resume")
    assert {each: ids(each) for each in due} == {table: [at for at in due[table] if at < 6] for table in due}
    pipe.run()
    assert {each: ids(each) for each in due} == due
    assert ids(other) == [10]
    pipe.exact(dead=4)


@pytest.mark.parametrize(
    ("pipe", "how"), [("clickhouse", "forwards"), ("clickhouse", "kept"), ("sqlite", "forwards")], indirect=["pipe"]
)
def test_a_move_without_removal_is_killed_before_and_after(pipe: Pipe, how: str) -> None:
    """It is one change of the ledger: before it nothing has happened, after it everything."""
    topic = pipe.topics[0]
    send(pipe.kafka, topic, records(0, 10))
    pipe.run()
    go = ("seek", "--to-offset", f"{topic}:0:{15 if how == 'forwards' else 5}")
    if how == "forwards":
        send(pipe.kafka, topic, records(10, 20))
    pipe.kill_at("move.before", *go)
    assert pipe.totals() == Totals(landed=8, dead_lettered=2)
    pipe.kill_at("move.after", *go)
    assert "there already" in pipe.state(*go, code=1)
    pipe.run()
    assert pipe.ids() == Counter(each for each in GOOD if each < 10 or (how == "forwards" and each >= 15))
    pipe.exact(dead=3 if how == "forwards" else 2)


@pytest.mark.parametrize("kind", ["wrapped", "dedup"])
def test_what_cannot_be_delivered_again_goes_only_forwards(
    kafka: LocalKafka,
    new_topic: Callable[..., str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    """Nothing can be taken out of a wrapped sink. With `dedup`, the store would take what comes again for copies: there, nothing moves."""
    site = Replayed(kind, kafka, None, tmp_path, new_topic(), "", capsys, monkeypatch)
    site.write_file()
    site.send(*map(event, range(4)))
    site.run()
    before = site.state()
    seek = ("state seek", "--yes", "--to-offset")
    for words in (
        (*seek, f"{site.topic}:0:2"),
        (*seek, f"{site.topic}:0:2", "--remove-rows"),
        ("state rewind", "--yes", "--by", "1h"),
        ("state rewind", "--yes", "--by", "1h", "--remove-rows"),
    ):
        said = site.landonce(*words)
        assert said.code in (1, 3), said.out + said.err
        assert any(why in said.err for why in REFUSALS[kind])
        assert "new target" in said.err or "another table" in said.err
    assert site.state() == before
    site.send(*map(event, range(4, 8)))
    forwards = site.landonce(*seek, f"{site.topic}:0:6")
    assert (forwards.code == 0) == (kind == "wrapped"), forwards.out + forwards.err
    site.run()
    assert site.offsets() == [0, 1, 2, 3, *([] if kind == "wrapped" else [4, 5]), 6, 7]


def test_a_driver_that_runs_is_fenced(pipe: Pipe) -> None:
    topic, watch = pipe.topics[0], Watch()
    send(pipe.kafka, topic, records(0, 10))
    running_ = running(parse(pipe.file.read_text(), pipe.file), NO_SPARK, watch)
    running_.__enter__()
    wait_until(lambda: sum(each.totals.read for each in watch.batches) == 10)
    pipe.state("seek", "--to", "earliest", "--remove-rows")
    shown = CliRunner().invoke(app, ["state", "show", str(pipe.file)]).output
    assert f"seek: Delivered again: {topic}[0] [0, 10)." in " ".join(shown.split())
    send(pipe.kafka, topic, records(10, 20))
    wait_until(watch.ended.is_set, 60)
    with pytest.raises(Fenced):
        running_.__exit__(None, None, None)
    pipe.run()
    assert pipe.ids() == GOOD
    pipe.exact(dead=4)


@pytest.fixture
def lake(kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path) -> Operated:
    lake = Operated(kafka, tmp_path, new_topic(1))
    lake.write_sink(schema="id BIGINT", table="db.t", create=True)
    return lake


def command(lake: Operated, *words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, [words[0], words[1], str(lake.file), *words[2:]])
    assert done.exit_code == code, (done.output, done.exception)
    return done.output if not code else str(done.exception)


@pytest.mark.parametrize("follow", ["follow", "refuse"])
def test_a_table_that_was_rolled_back_stays_so(lake: Operated, follow: str) -> None:
    lake.write_sink(schema="id BIGINT", rollback=follow)
    heads = []
    for first in (0, 5):
        lake.send(range(first, first + 5))
        lake.run()
        heads.append(lake.head())
    lake.roll_to(heads[0])
    assert "Skipped" in command(lake, "state", "seek", "--stay", "--yes")
    lake.send(range(10, 12))
    lake.run()
    assert lake.ids() == [0, 1, 2, 3, 4, 10, 11]
    done = CliRunner().invoke(app, ["verify", str(lake.file)])
    assert done.exit_code == 0, done.output
    assert lake.noted() == ["seek"]
    assert "was not rolled back" in command(lake, "state", "seek", "--stay", "--yes", code=1)


def verified(lake: Operated) -> None:
    done = CliRunner().invoke(app, ["verify", str(lake.file)])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("how", ["seek", "stay"])
def test_what_was_skipped_stays_out_of_a_table_that_is_rolled_back(lake: Operated, how: str) -> None:
    """To before the skip, twice, and with only the skip in between: it never lands, and everything else does, once."""
    lake.send(range(5))
    lake.run()
    before = lake.head()
    lake.send(range(5, 8))
    if how == "stay":
        lake.run()
        lake.roll_to(before)
        command(lake, "state", "seek", "--stay", "--yes")
    else:
        command(lake, "state", "seek", "--to", "latest", "--yes")
    lake.roll_to(before)
    lake.run()
    assert lake.ids() == [0, 1, 2, 3, 4]
    verified(lake)
    for there in (range(8, 9), range(9, 12)):
        lake.send(there)
        lake.run()
        after = lake.head()
        lake.roll_to(before)
        lake.run()
        assert lake.head() != after
        assert lake.ids() == [0, 1, 2, 3, 4, *range(8, there.stop)]
        verified(lake)


def test_a_skip_of_an_iceberg_table_is_taken_back(lake: Operated) -> None:
    lake.send(range(5))
    lake.run()
    lake.send(range(5, 8))
    command(lake, "state", "seek", "--to", "latest", "--yes")
    refusal = command(lake, "state", "seek", "--to-offset", f"{lake.topic}:0:4", "--yes", code=1)
    assert "would be in the target twice" in refusal
    assert "--remove-rows" in refusal
    command(lake, "state", "seek", "--to-offset", f"{lake.topic}:0:6", "--yes")
    lake.run()
    assert lake.ids() == [0, 1, 2, 3, 4, 6, 7]
    verified(lake)
    lake.roll_to(lake.held().snapshots()[0].snapshot_id)
    lake.run()
    assert lake.ids() == [0, 1, 2, 3, 4, 6, 7]
    verified(lake)


@pytest.mark.parametrize("then", ["again", "run"])
def test_staying_is_killed_before_and_after_its_one_commit(lake: Operated, then: str) -> None:
    """The letters of what was removed go once the commit says so. Whoever is killed before it gives the command again, or lets a driver
    deliver all; whoever is killed after it leaves letters that the next command removes."""
    lake.send(range(5))
    lake.run()
    before = lake.head()
    lake.produce([b"broken", b'{"id": 6}'])
    lake.run()
    lake.roll_to(before)
    killed(lake.folder, lake.file, "attempt.before", "seek", "--stay")
    assert (dead(lake), lake.noted()) == ([5], [])
    if then == "again":
        killed(lake.folder, lake.file, "attempt.after", "seek", "--stay")
        assert (dead(lake), lake.noted()) == ([5], ["seek"])
        assert "was not rolled back" in command(lake, "state", "seek", "--stay", "--yes", code=1)
        assert dead(lake) == []
    lake.send(range(7, 9))
    lake.run()
    assert lake.ids() == [0, 1, 2, 3, 4, *([] if then == "again" else [6]), 7, 8]
    assert dead(lake) == ([] if then == "again" else [5])
    assert not list((lake.folder / "dead").glob("*.skipping"))
    verified(lake)


def dead(lake: Operated) -> list[int]:
    return [each["offset"] for each in letters(lake.folder / "dead")]


def rolled_back(lake: Operated) -> None:
    """From [0, 10), where 5 is a dead letter, to [0, 5)."""
    lake.send(range(5))
    lake.run()
    before = lake.head()
    lake.produce([b"broken"])
    lake.send(range(6, 10))
    lake.run()
    lake.roll_to(before)


@pytest.mark.parametrize("then", ["delivered", "not delivered"])
def test_staying_changes_nothing_on_top_of_what_a_driver_did_meanwhile(
    lake: Operated, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver delivers what the rollback removed, and more, while the operator reads what the command asks."""
    rolled_back(lake)
    lake.send(range(10, 15))

    def read(*_: object, yes: bool) -> None:
        assert yes
        if then == "delivered":
            lake.run()

    monkeypatch.setattr("landonce.cli.state.decide.confirm", read)
    said = command(lake, "state", "seek", "--stay", "--yes", code=int(then == "delivered"))
    if then == "delivered":
        assert "was taken over" in said
    assert dead(lake) == ([5] if then == "delivered" else [])
    lake.run()
    assert lake.ids() == [*range(5), *(range(6, 10) if then == "delivered" else []), *range(10, 15)]
    assert dead(lake) == ([5] if then == "delivered" else [])
    assert not list((lake.folder / "dead").glob("*.skipping"))
    verified(lake)


@pytest.mark.parametrize("answer", ["y", "n"])
@pytest.mark.parametrize("way", ["stay", "forwards", "back"])
def test_a_person_is_asked(lake: Operated, way: str, answer: str) -> None:
    """Whoever answers no has changed nothing."""
    rolled_back(lake)
    words = ["--stay"]
    if way != "stay":
        lake.run()
        lake.send(range(10, 12))
        words = ["--to", "latest"]
    if way == "back":
        command(lake, "state", "seek", "--to", "latest", "--yes")
        words = ["--to-offset", f"{lake.topic}:0:10"]
    before = lake.held().metadata_location, sorted(path.name for path in (lake.folder / "dead").iterdir())
    noted = lake.noted()
    done = CliRunner().invoke(app, ["state", "seek", str(lake.file), *words], input=f"{answer}\n")
    assert "Do it?" in done.output
    assert (done.exit_code == 0) == (answer == "y"), done.output
    after = lake.held().metadata_location, sorted(path.name for path in (lake.folder / "dead").iterdir())
    assert (after == before) == (answer == "n")
    assert lake.noted() == [*noted, *(["seek"] if answer == "y" else [])]


def test_a_fan_out_goes_forwards_and_a_table_of_it_is_rolled_back(lake: Operated) -> None:
    """What was skipped stays out of every table, also of one that is filled up again. Back, and `--stay`, are refused."""
    tables = [{"table": "db.a"}, {"table": "db.b", "equals": "b"}]
    del lake.options["table"]
    lake.write_sink(schema="id BIGINT NOT NULL, kind STRING", tables=tables, route_field="kind")
    heads = []
    for first in (0, 4):
        lake.send(range(first, first + 4), kind="b")
        lake.run()
        heads.append(lake.head("db.b"))
    lake.send(range(8, 12), kind="b")
    assert "Skipped" in command(lake, "state", "seek", "--to-offset", f"{lake.topic}:0:10", "--yes")
    for head, table in ((heads[0], "db.b"), (heads[1], "db.b")):
        lake.roll_to(head, table)
        lake.run()
        for each in ("db.a", "db.b"):
            assert lake.ids(each) == [*range(8), 10, 11]
        verified(lake)
    assert "roll the tables back" in command(
        lake, "state", "seek", "--to", "earliest", "--remove-rows", "--yes", code=1
    )
    assert "a table of a fan-out that was rolled back gets what it lacks" in command(
        lake, "state", "seek", "--stay", "--yes", code=1
    )


def test_skips_outlive_the_notes_that_a_table_keeps(lake: Operated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("landonce.sinks.iceberg.commit._KEPT_NOTES", 2)
    for round_ in range(5):
        first = 4 * round_
        lake.send(range(first, first + 4))
        lake.run()
        lake.send(range(first + 2, first + 4))
        command(lake, "state", "seek", "--to", "latest", "--yes")
    lake.run()
    assert len(lake.noted()) == 3
    verified(lake)


@pytest.mark.parametrize(
    "place",
    [
        pytest.param("move.before", marks=pytest.mark.long),
        "attempt.before",
        "attempt.after",
        pytest.param("move.after", marks=pytest.mark.long),
    ],
)
def test_a_skip_of_an_iceberg_table_is_killed_around_its_one_commit(lake: Operated, place: str) -> None:
    """The table is the ledger: before the commit the position has not moved, after it, it has."""
    lake.send(range(5))
    lake.run()
    lake.send(range(5, 10))
    go = ("state", "seek", "--to-offset", f"{lake.topic}:0:8", "--yes")
    killed(lake.folder, lake.file, place, *go[1:-1])
    done = place in ("attempt.after", "move.after")
    assert lake.noted() == (["seek"] if done else [])
    assert ("there already" if done else "Skipped") in command(lake, *go, code=int(done))
    lake.run()
    assert lake.ids() == [0, 1, 2, 3, 4, 8, 9]
    assert lake.noted() == ["seek"]
    verified(lake)


def held(lake: Operated) -> tuple[list[int], list[int], Totals]:
    parts = open_parts(load(lake.file))
    with closing(parts.ledger):
        state = parts.ledger.load()
    assert state is not None
    return lake.ids(), sorted(dead(lake)), state.totals


def in_batches(lake: Operated) -> None:
    """[0, 5), [5, 10) and [10, 15), a batch each; every fifth one is bad."""
    for first in (0, 5, 10):
        lake.produce([b"broken", *(b'{"id": %d}' % each for each in range(first + 1, first + 5))])
        lake.run()


LANDED = [each for each in range(15) if each % 5]
ONCE = LANDED, [0, 5, 10], Totals(landed=12, dead_lettered=3)


def test_an_iceberg_table_goes_back_to_an_earlier_snapshot(lake: Operated) -> None:
    """Killed before its one commit and after it. Between two snapshots it goes to the earlier one, and says so. The audit is exact
    throughout, and every record counts once."""
    in_batches(lake)
    go = ("seek", "--to-offset", f"{lake.topic}:0:7", "--remove-rows")
    killed(lake.folder, lake.file, "attempt.before", *go)
    assert (held(lake), lake.noted()) == (ONCE, [])
    verified(lake)
    killed(lake.folder, lake.file, "attempt.after", *go)
    assert held(lake) == ([1, 2, 3, 4], [0, 5, 10], Totals(landed=4, dead_lettered=1))
    assert lake.noted() == ["seek"]
    verified(lake)
    assert "there already" in command(lake, "state", "rewind", "--by", "1s", "--remove-rows", "--yes", code=1)
    lake.run()
    assert held(lake) == ONCE
    said = command(lake, "state", *go, "--yes")
    snapshot = lake.held().current_snapshot()
    assert snapshot is not None
    assert f"goes back to its snapshot {snapshot.parent_snapshot_id} of 20" in said
    assert f"Delivered again: {lake.topic}[0] [5, 15)." in said
    assert f"earlier than was asked for, since no snapshot ends in between: {lake.topic}[0] 5." in said
    lake.run()
    command(lake, "state", "rewind", "--by", "1h", "--remove-rows", "--yes")
    assert held(lake) == ([], [0, 5, 10], Totals())
    assert lake.noted() == ["seek"] * 3
    lake.run()
    assert held(lake) == ONCE
    verified(lake)


@pytest.mark.parametrize(
    "way", [*(pytest.param(each, marks=pytest.mark.long) for each in ("forwards", "stay")), "back"]
)
def test_a_driver_of_an_iceberg_table_that_runs_is_fenced(lake: Operated, way: str) -> None:
    """It is about to commit a batch when the command is given."""
    document = yaml.safe_load(lake.file.read_text()) | {"batch": {"interval": "0s"}}
    lake.file.write_text(yaml.safe_dump(document))
    watch, at_commit, go_on = Watch(), threading.Event(), threading.Event()
    lake.send(range(5))
    lake.run()
    before = lake.head()

    def hold(effect: Effect) -> None:
        if effect.step is Step.COMMIT and sum(each.totals.read for each in watch.batches) == 5:
            at_commit.set()
            assert go_on.wait(60)

    watch.at = hold
    lake.send(range(5, 10))
    running_ = running(load(lake.file), NO_SPARK, watch)
    running_.__enter__()
    wait_until(lambda: len(watch.batches) == 1)
    lake.send(range(10, 12))
    assert at_commit.wait(60)
    if way == "stay":
        lake.roll_to(before)
    words = {
        "forwards": ["--to-offset", f"{lake.topic}:0:11"],
        "stay": ["--stay"],
        "back": ["--to-offset", f"{lake.topic}:0:5", "--remove-rows"],
    }[way]
    command(lake, "state", "seek", *words, "--yes")
    shown = " ".join(command(lake, "state", "show").split())
    said = {"forwards": "Skipped: {}[0] [10, 11).", "stay": "Skipped: {}[0] [5, 10).", "back": "again: {}[0] [5, 10)."}[
        way
    ]
    assert said.format(lake.topic) in shown[shown.index("seek: ") :]
    go_on.set()
    wait_until(watch.ended.is_set, 60)
    with pytest.raises(Fenced):
        running_.__exit__(None, None, None)
    there = {"forwards": range(10), "stay": range(5), "back": range(5)}[way]
    assert lake.ids() == [*there]
    lake.run()
    assert lake.ids() == [*there, *{"forwards": [11], "stay": [10, 11], "back": range(5, 12)}[way]]
    verified(lake)


@pytest.mark.long
def test_a_table_that_only_spark_commits_to_goes_back(lake: Operated) -> None:
    lake.write_sink(schema="id BIGINT", properties={"format-version": "3"})
    in_batches(lake)
    command(lake, "state", "seek", "--to-offset", f"{lake.topic}:0:7", "--remove-rows", "--yes")
    assert lake.held().metadata.format_version == 3
    assert lake.ids() == [1, 2, 3, 4]
    lake.run()
    assert held(lake) == ONCE
    verified(lake)


def rows_of_another_writer(lake: Operated, number: int) -> None:
    table = lake.held()
    rows = {"id": [number], "_topic": ["elsewhere"], "_kafka_partition": [0], "_offset": [number]}
    table.append(pa.table(rows, schema=table.schema().as_arrow()))


def test_an_iceberg_table_keeps_the_rows_of_other_writers(lake: Operated, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those between its own snapshots, and those that are committed while the operator reads what the command asks."""
    lake.send(range(5))
    lake.run()
    rows_of_another_writer(lake, 100)
    lake.send(range(5, 10))
    lake.run()
    before = lake.head()

    def go(to: int, code: int = 0) -> str:
        where = f"{lake.topic}:0:{to}"
        return command(lake, "state", "seek", "--to-offset", where, "--remove-rows", "--yes", code=code)

    refusal = go(4, code=1)
    assert "another writer committed to the table after snapshot" in refusal
    assert "append" in refusal
    assert lake.head() == before
    with monkeypatch.context() as patched:
        patched.setattr("landonce.cli.state.decide.confirm", lambda *_, **__: rows_of_another_writer(lake, 101))
        assert "changed during this command" in go(5, code=1)
    assert lake.ids() == [*range(10), 100, 101]
    lake.send(range(10, 12))
    lake.run()
    go(11)
    assert lake.ids() == [*range(10), 100, 101]
    lake.run()
    assert lake.ids() == [*range(12), 100, 101]
    assert lake.noted() == ["seek"]
    with monkeypatch.context() as patched:
        patched.setattr("landonce.sinks.iceberg.commit.reach", lambda _: lake.forget_history())
        assert "snapshots expired" in go(11, code=1), "between the check and the request, too"
    assert lake.ids() == [*range(12), 100, 101]


@pytest.mark.parametrize("how", ["replay", "drop"])
def test_an_iceberg_table_does_not_go_back_where_records_would_be_lost(lake: Operated, how: str) -> None:
    """A dead letter of a record that the snapshot covers was replayed or dropped since, Kafka has deleted records, or snapshots expired."""
    in_batches(lake)
    fixed = lake.folder / "fixed.jsonl"
    place = f"{lake.topic}:0:0"
    if how == "drop":
        command(lake, "dead", "drop", place, "--yes")
    else:
        command(lake, "dead", "export", place, "--to", str(fixed))
        fixed.write_text(json.dumps({**json.loads(fixed.read_text()), "value": {"id": 0}}))
        command(lake, "dead", "replay", "--with", str(fixed), "--yes")
    before = held(lake)

    def go(to: int, code: int = 0) -> str:
        where = f"{lake.topic}:0:{to}"
        return command(lake, "state", "seek", "--to-offset", where, "--remove-rows", "--yes", code=code)

    assert f"replayed or dropped after it, the first of them {lake.topic}[0] 0." in go(7, code=1)
    assert held(lake) == before
    if how == "drop":
        lake.delete_records(3)
        assert "Kafka begins at 3 now" in go(4, code=1)
        lake.forget_history()
        assert "no snapshot that the table still has is at or before that position: the oldest one" in go(8, code=1)
        assert held(lake) == before
    else:
        go(0)
        lake.run()
        assert held(lake) == ONCE
    verified(lake)
