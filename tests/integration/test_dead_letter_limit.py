"""The policy on dead letters: a wrong schema halts the run before anything counts, and a corrected file, or another limit, goes on.

For each kind of sink, because what a halt leaves behind differs: a plan, rows that have landed, or nothing.
"""

from __future__ import annotations

import json
import sqlite3
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer
from deliveries import ask, do
from pyiceberg.catalog import load_catalog
from test_replay_kills import killed_at
from typer.testing import CliRunner

import landonce
from landonce.cli import app
from landonce.dedup.run import run_pipeline
from landonce.errors import BadRecord, PlanChanged, TooManyDeadLetters
from landonce.local import LocalClickHouse, LocalKafka
from landonce.sinks.pipeline_file import load

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

Offsets = Counter[int]


class Kind(ABC):
    """A pipeline into one kind of sink. Its target is read without landonce."""

    ledger: dict[str, Any] | None = {"sqlite": "p.ledger"}
    dedup: dict[str, Any] | None = None
    block_rows = 100

    @property
    def wrapped(self) -> landonce.WrappedSink | None:
        return None

    def __init__(self, kafka: LocalKafka, folder: Path, topic: str) -> None:
        self.kafka, self.folder, self.topic = kafka, folder, topic

    @property
    @abstractmethod
    def sink(self) -> dict[str, Any]: ...

    @abstractmethod
    def offsets(self) -> Offsets: ...

    def send(self, *values: Any) -> None:
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers, "acks": "all"})
        for value in values:
            producer.produce(self.topic, value if isinstance(value, bytes) else json.dumps(value))
        assert producer.flush(30) == 0

    def write(self, convert: str = "strict", **policy: Any) -> Path:
        kafka = {"bootstrap_servers": self.kafka.bootstrap_servers, "topics": [self.topic], "convert": convert}
        document = {
            "pipeline": "p",
            "source": {"kafka": kafka | {"schema": "id BIGINT"}},
            "sink": self.sink,
            "batch": {"interval": "0s", "max_rows": 1000, "block_rows": self.block_rows},
            "dead_letters": {"path": "dead", **policy},
            "spark": {"master": "local[2]"},
            **({"ledger": self.ledger} if self.ledger else {}),
            **({"dedup": self.dedup} if self.dedup else {}),
        }
        file = self.folder / "p.yaml"
        file.write_text(yaml.safe_dump(document))
        return file

    def run(self, *, convert: str = "strict", **policy: Any) -> landonce.Totals:
        return run_pipeline(load(self.write(convert, **policy)), sink=self.wrapped, once=True)

    @property
    def dead(self) -> Path:
        return self.folder / "dead"

    def letters(self) -> Offsets:
        files = self.dead.glob("*.jsonl")
        return Counter(json.loads(line)["offset"] for file in files for line in file.read_text().splitlines())


class Sqlite(Kind):
    ledger = None
    sink = {"sql": {"url": "sqlite:///t.db", "table": "t", "create": True}}

    def offsets(self) -> Offsets:
        with closing(sqlite3.connect(self.folder / "t.db")) as connection:
            return Counter(offset for (offset,) in connection.execute("SELECT _offset FROM t"))


class Wrapped(Kind):
    """Blocks are files: pushing one again is harmless."""

    sink = {"wrapped": {}}
    block_rows = 400

    @property
    def wrapped(self) -> landonce.WrappedSink:
        held = self.folder / "held"
        held.mkdir(exist_ok=True)

        def push(block: Any) -> None:
            (held / block.key).write_text(json.dumps(block.rows.column("_offset").to_pylist()))

        return landonce.wrap(push, idempotent=True)

    def offsets(self) -> Offsets:
        return Counter(offset for each in (self.folder / "held").glob("*") for offset in json.loads(each.read_text()))


class Table(Kind):
    """Iceberg: the table is its own ledger."""

    ledger = None
    sink = {"iceberg": {"table": "db.t", "create": True}}

    def offsets(self) -> Offsets:
        lake = self.folder / "lake"
        catalog = load_catalog("landonce", type="sql", uri=f"sqlite:///{lake}/catalog.db", warehouse=f"file://{lake}")
        return Counter(catalog.load_table("db.t").scan().to_arrow().column("_offset").to_pylist())


class FanOut(Table):
    """Two tables, and a ledger beside them."""

    ledger = {"sqlite": "p.ledger"}
    sink = {"iceberg": {"tables": [{"table": "db.t"}, {"table": "db.u"}], "create": True}}


class ClickHouse(Kind):
    url: str

    @property
    def sink(self) -> dict[str, Any]:
        return {"clickhouse": {"url": self.url, "table": self.table, "create": True, "deadline": "2s"}}

    @property
    def table(self) -> str:
        return self.topic.replace("-", "_")

    def offsets(self) -> Offsets:
        return Counter(int(row["_offset"]) for row in ask(self.url, f"SELECT _offset FROM {self.table}"))


@pytest.fixture(params=[Sqlite, Table, FanOut, ClickHouse, Wrapped])
def kind(
    request: pytest.FixtureRequest,
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_topic: Callable[..., str],
    tmp_path: Path,
) -> Iterator[Kind]:
    ClickHouse.url = clickhouse.url
    made = request.param(kafka, tmp_path, new_topic())
    yield made
    if isinstance(made, ClickHouse):
        do(clickhouse.url, f"DROP TABLE IF EXISTS {made.table}")


def test_a_wrong_file_halts_the_run_and_a_corrected_one_goes_on(kind: Kind) -> None:
    """Not one more command is needed: nothing landed, so nothing is pending."""
    kind.send(*({"id": str(number)} for number in range(250)))
    with pytest.raises(
        TooManyDeadLetters, match=r"250 of 250 records of the batch cannot land\. That is 100 %"
    ) as halted:
        kind.run()
    assert "250 × wrong_type: field 'id' should be BIGINT but is a string" in halted.value.what
    assert "correct it in {file}, then `landonce run {file}`" in halted.value.command
    assert (kind.offsets(), kind.letters()) == (Counter(), Counter())
    assert not list(kind.dead.glob("*")) or isinstance(kind, Table), "nothing is left of the plan"
    assert kind.run(convert="fit") == landonce.Totals(landed=250)
    assert (kind.offsets(), kind.letters()) == (Counter(range(250)), Counter())


@pytest.mark.parametrize("kind", [Sqlite, FanOut, pytest.param(ClickHouse, marks=pytest.mark.long)], indirect=True)
def test_killed_while_a_plan_is_given_up_nothing_of_it_counts(kind: Kind) -> None:
    """Before that is recorded, the plan is pending, and the error says the way on. After it, the letters that were staged are removed."""

    def command(*words: str) -> None:
        done = CliRunner().invoke(app, [*words, str(kind.folder / "p.yaml"), "--yes"])
        assert done.exit_code == 0, (done.output, done.exception)

    def killed(place: str, numbers: range) -> None:
        kind.send(*({"id": str(number)} for number in numbers))
        kind.write()
        killed_at(kind, place, "run", "p.yaml", "--once")
        assert list(kind.dead.glob("*.staged")), "the plan's letters are there, and do not count"

    killed("rearm.before", range(150))
    with pytest.raises(TooManyDeadLetters, match="150 wrong_type") as halted:
        kind.run()
    with pytest.raises(PlanChanged):
        kind.run(convert="fit")
    assert (kind.offsets(), kind.letters()) == (Counter(), Counter())
    if "limit: 100%" in halted.value.command:
        assert isinstance(kind, Sqlite), "its blocks are done, in their rows"
        assert kind.run(limit="100%") == landonce.Totals(dead_lettered=150)
        kind.write(convert="fit")
        command("dead", "replay")
    else:
        assert "run `landonce state accept-change {file}`" in halted.value.command
        kind.write(convert="fit")
        command("state", "accept-change")
        assert kind.run(convert="fit") == landonce.Totals(landed=150)
    assert (kind.offsets(), kind.letters()) == (Counter(range(150)), Counter())

    killed("rearm.after", range(150, 300))
    assert kind.run(convert="fit") == landonce.Totals(landed=150)
    assert (kind.offsets(), kind.letters()) == (Counter(range(300)), Counter())
    assert not list(kind.dead.glob("*.staged"))


def test_another_limit_goes_on_where_the_run_halted(kind: Kind) -> None:
    """Good rows may have landed before the halt. None of them lands again, and each bad record is one letter."""
    kind.send(*({"id": number} if number % 2 else b"{" for number in range(300)))
    with pytest.raises(TooManyDeadLetters, match="150 malformed"):
        kind.run(limit="1%")
    assert kind.letters() == Counter()
    with pytest.raises(TooManyDeadLetters, match="150 malformed"):
        kind.run(limit="49%")
    assert kind.letters() == Counter()
    assert kind.run(limit="50%") == landonce.Totals(landed=150, dead_lettered=150)
    assert kind.offsets() == Counter(range(1, 300, 2))
    assert kind.letters() == Counter(range(0, 300, 2))


@pytest.mark.parametrize("kind", [Sqlite, pytest.param(ClickHouse, marks=pytest.mark.long)], indirect=True)
def test_the_way_on_after_a_halt_lands_every_record(kind: Kind) -> None:
    """As the error says: a run without a limit records the batch, some of whose rows have landed; then the corrected file, and a replay."""

    def command(*words: str) -> str:
        done = CliRunner().invoke(app, [*words[:-1], str(kind.folder / words[-1])] + ["--yes"] * (words[0] == "dead"))
        assert done.exit_code == 0, (done.output, done.exception)
        return done.output

    kind.send(*({"id": number if number % 2 else str(number)} for number in range(300)))
    with pytest.raises(TooManyDeadLetters, match="150 wrong_type") as halted:
        kind.run()
    steps = ("limit: 100%", "run {file} --once", "correct the file", "landonce dead replay {file}")
    places = [halted.value.command.find(each) for each in steps]
    assert places == sorted(places), halted.value.command
    assert places[0] >= 0, halted.value.command
    assert kind.run(limit="100%") == landonce.Totals(landed=150, dead_lettered=150)
    assert (kind.offsets(), kind.letters()) == (Counter(range(1, 300, 2)), Counter(range(0, 300, 2)))
    command("verify", "--values", "p.yaml")
    kind.write(convert="fit")
    assert "150 landed, 0 filtered, 0 stay dead letters" in command("dead", "replay", "p.yaml")
    assert (kind.offsets(), kind.letters()) == (Counter(range(300)), Counter())
    kind.send({"id": 300}, {"id": "301"})
    assert kind.run(convert="fit") == landonce.Totals(landed=2)
    assert kind.offsets() == Counter(range(302))
    command("verify", "--values", "p.yaml")


def test_the_first_bad_record_may_halt_the_run(kind: Kind) -> None:
    kind.send(*({"id": number} for number in range(40)), b'{"id": "x"}', {"id": 41})
    with pytest.raises(
        BadRecord, match=r"\[0\], offset 40: the record cannot land \(wrong_type\): field 'id' should be"
    ):
        kind.run(on_bad="halt")
    assert kind.letters() == Counter()
    assert kind.run(on_bad="divert") == landonce.Totals(landed=41, dead_lettered=1)
    assert kind.offsets() == Counter([*range(40), 41])
    assert kind.letters() == Counter([40])


@pytest.mark.parametrize("kind", [Sqlite, pytest.param(Table, marks=pytest.mark.long)], indirect=True)
def test_short_runs_add_up_after_a_long_history_of_good_records(kind: Kind) -> None:
    """A wrong file, run as a cron job does: each run has fewer bad records than the floor, and all records together are within the limit."""
    kind.send(*({"id": number} for number in range(1500)))
    assert kind.run() == landonce.Totals(landed=1500)
    kind.send(*({"id": str(number)} for number in range(60)))
    assert kind.run() == landonce.Totals(dead_lettered=60)
    kind.send(*({"id": str(number)} for number in range(60)))
    for _ in range(2):
        with pytest.raises(TooManyDeadLetters, match="120 of 120 records of the last batches cannot land"):
            kind.run()
    assert kind.letters() == Counter(range(1500, 1560))
    assert kind.run(convert="fit") == landonce.Totals(landed=60)
    assert kind.offsets() == Counter([*range(1500), *range(1560, 1620)])
    kind.send(*({"id": str(number)} for number in range(60)))
    assert kind.run() == landonce.Totals(dead_lettered=60), "a good batch has ended what adds up"


def test_with_dedup_no_key_is_taken_by_a_batch_that_halts(
    kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    kind = Sqlite(kafka, tmp_path, new_topic())
    kind.dedup = {"key": ["id"], "ttl": "1d"}
    kind.send(*({"id": str(number)} for number in range(150)))
    with pytest.raises(TooManyDeadLetters, match="150 wrong_type"):
        kind.run()
    totals = kind.run(convert="fit")
    assert (totals.read, totals.landed) == (150, 150)
    assert (kind.offsets(), kind.letters()) == (Counter(range(150)), Counter())


def test_without_a_limit_a_wrong_file_drains_the_topic_into_dead_letters(
    kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """The control. Fewer letters than the floor are not judged, in one batch; the batches of a run, and of all runs, add up."""
    kind = Sqlite(kafka, tmp_path, new_topic())
    kind.send(*({"id": str(number)} for number in range(250)))
    assert kind.run(limit="100%") == landonce.Totals(dead_lettered=250)
    kind = Sqlite(kafka, tmp_path / "second", new_topic())
    (tmp_path / "second").mkdir()
    for number in range(3):
        kind.send(*({"id": str(number)} for _ in range(40)))
        if number < 2:
            assert kind.run() == landonce.Totals(dead_lettered=40)
    with pytest.raises(TooManyDeadLetters, match="120 of 120 records of the last batches"):
        kind.run()
