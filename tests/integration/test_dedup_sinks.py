"""Content deduplication into every kind of sink, with every kind of store: real Kafka, real targets, workers in this process."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from deliveries import Sent, ask, do, letters, send, spark_session
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

import landonce
from landonce.dedup.run import Both
from landonce.local import LocalClickHouse, LocalKafka
from landonce.protocol.ledger import Totals
from landonce.sinks.parts import open_parts
from landonce.sinks.pipeline_file import Pipeline, parse
from landonce.verify.audit import opened_audit

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(180)]

SCHEMA = "id BIGINT NOT NULL, word STRING"
Ask = Callable[[str], list[tuple[Any, ...]]]
_FILES = Path(__file__).parents[2] / "examples" / "wrap" / "file_per_block.py"


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """For expressions."""
    yield from spark_session("test-dedup-sinks")


@dataclass
class Target:
    """A pipeline with `dedup`, and what its target holds."""

    kafka: LocalKafka
    folder: Path
    topic: str
    name: str
    sink: dict[str, Any]
    rows: Callable[[str], list[tuple[Any, ...]]]
    """The values of these columns, with null for columns that are not there."""
    more: dict[str, Any] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)

    def send(self, events: list[Any], partition: int = 0, **more: Any) -> list[Sent]:
        new = send(self.kafka, self.topic, events, partition, **more)
        self.sent += new
        return new

    def file(self, *, schema: str | None = SCHEMA, dedup: dict[str, Any] | None = None, **sections: Any) -> Pipeline:
        source: dict[str, Any] = {"bootstrap_servers": self.kafka.bootstrap_servers, "topics": [self.topic]}
        document = {
            "pipeline": self.name,
            "source": {"kafka": source | ({"schema": schema} if schema else {})},
            "sink": self.sink,
            "batch": {"interval": "0s", "max_rows": 200, "block_rows": 40},
            "dead_letters": {"path": "dead"},
            "stall": "60s",
            "spark": {"master": "local[2]"},
            "dedup": {"key": ["id"]} | (dedup or {}) | self.more.get("dedup", {}),
            **{name: section for name, section in self.more.items() if name != "dedup"},
            **sections,
        }
        return parse(yaml.safe_dump(document), self.folder / "p.yaml")

    def run(self, **options: Any) -> Totals:
        """`landonce run --once`."""
        found = landonce.run_pipeline(self.file(**options), once=True)
        return Totals(found.landed, found.dead_lettered, found.filtered)

    def audited(self, **options: Any) -> None:
        """`landonce verify --values`."""
        with opened_audit(open_parts(self.file(**options)), values=True) as audit:
            assert audit.audit().exact

    @property
    def events(self) -> dict[int, dict[str, Any]]:
        """What was sent, by key."""
        found: dict[int, dict[str, Any]] = {}
        for each in self.sent:
            if each.value and each.value.startswith(b'{"id": ') and b"}" in each.value:
                found.setdefault(each.fields["id"], each.fields)
        return found

    def dead(self) -> list[tuple[Any, ...]]:
        found = [*letters(self.folder / "dead"), *letters(self.folder / "dead" / "pushed")]
        return sorted((each["topic"], each["partition"], each["offset"]) for each in found)


def asking_sqlite(path: Path, table: str) -> Callable[[str], list[tuple[Any, ...]]]:
    def rows(columns: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(path, timeout=60)) as connection:
            return connection.execute(f"SELECT {columns} FROM {table}").fetchall()

    return rows


def asking_postgres(url: str, table: str) -> Callable[[str], list[tuple[Any, ...]]]:
    def rows(columns: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(url.replace("postgresql+psycopg://", "postgresql://")) as connection:
            return connection.execute(f"SELECT {columns} FROM {table}").fetchall()

    return rows


def asking_lake(folder: Path, table: str) -> Callable[[str], list[tuple[Any, ...]]]:
    def rows(columns: str) -> list[tuple[Any, ...]]:
        lake = folder / "lake"
        catalog = load_catalog(
            "landonce", type="sql", uri=f"sqlite:///{lake / 'catalog.db'}", warehouse=f"file://{lake}"
        )
        found = catalog.load_table(table).scan().to_arrow()
        return list(zip(*(found.column(name.strip()).to_pylist() for name in columns.split(",")), strict=True))

    return rows


def asking_files(folder: Path) -> Callable[[str], list[tuple[Any, ...]]]:
    def rows(columns: str) -> list[tuple[Any, ...]]:
        lines = [json.loads(line) for path in folder.glob("[!.]*.jsonl") for line in path.read_text().splitlines()]
        return [tuple(line.get(name.strip()) for name in columns.split(",")) for line in lines]

    return rows


@pytest.fixture
def make(
    request: pytest.FixtureRequest,
    kafka: LocalKafka,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Target]:
    """A target of this kind, with a store of this kind."""

    def sink_of(kind: str, table: str) -> tuple[dict[str, Any], Callable[[str], list[tuple[Any, ...]]]]:
        if kind == "clickhouse":
            url = request.getfixturevalue("clickhouse").url

            def rows(columns: str) -> list[tuple[Any, ...]]:
                return [tuple(each.values()) for each in ask(url, f"SELECT {columns} FROM {table}")]

            return {"clickhouse": {"url": url, "table": table, "create": True, "deadline": "10s"}}, rows
        if kind == "iceberg":
            return {"iceberg": {"table": f"db.{table}", "create": True}}, asking_lake(tmp_path, f"db.{table}")
        if kind == "sqlite":
            settings = {"url": "sqlite:///t.db", "table": table, "create": True}
            return {"sql": settings}, asking_sqlite(tmp_path / "t.db", table)
        if kind == "postgres":
            url = request.getfixturevalue("new_database")()
            return {"sql": {"url": url, "table": table, "create": True}}, asking_postgres(url, table)
        shutil.copy(_FILES, tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, "file_per_block", raising=False)
        files = tmp_path / "files"
        return {"wrapped": {"sink": "file_per_block:sink", "options": {"folder": str(files)}}}, asking_files(files)

    def store_of(kind: str) -> dict[str, Any]:
        if kind == "file":
            return {"store": {"sqlite": "a.store"}}
        if kind == "postgres":
            return {"store": {"postgres": request.getfixturevalue("new_database")()}}
        if kind == "mariadb":
            return {"store": {"mysql": request.getfixturevalue("mariadb").url}}
        return {}

    def made(kind: str, store: str = "", **options: Any) -> Target:
        table = new_table()
        sink, rows = sink_of(kind, table)
        next(iter(sink.values())).update(options)
        topic = new_topic(3)
        return Target(kafka, tmp_path, topic, f"p-{table}-{topic}", sink, rows, {"dedup": store_of(store)})

    return made


def some_events(count: int, seed: int = 1) -> list[Any]:
    """Three of ten are copies; some are no events."""
    chance, made = random.Random(seed), []
    for number in range(count):
        if made and chance.random() < 0.3:
            made.append(dict(chance.choice(made)))
        else:
            made.append({"id": number, "word": f"w{number}"})
    return [*made, b"no json", {"word": "no id"}]


@pytest.mark.parametrize(
    ("kind", "store"),
    [
        ("clickhouse", "ledger"),
        pytest.param("clickhouse", "file", marks=pytest.mark.long),
        pytest.param("clickhouse", "postgres", marks=pytest.mark.long),
        ("clickhouse", "mariadb"),
        pytest.param("iceberg", "default", marks=pytest.mark.long),
        ("iceberg", "postgres"),
        ("sqlite", "beside the rows"),
        pytest.param("sqlite", "file", marks=pytest.mark.long),
        ("postgres", "beside the rows"),
        pytest.param("postgres", "mariadb", marks=pytest.mark.long),
        pytest.param("wrapped", "ledger", marks=pytest.mark.long),
        ("wrapped", "file"),
    ],
)
def test_every_event_lands_once(make: Callable[..., Target], kind: str, store: str, tmp_path: Path) -> None:
    target = make(kind, store)
    bad = []
    for partition in range(3):
        new = target.send(some_events(150, partition % 2), partition)
        bad += [each.at for each in new[-2:]]
    totals = target.run()
    events = target.events
    assert sorted(target.rows("id, word")) == sorted((each["id"], each["word"]) for each in events.values())
    assert totals == Totals(landed=len(events), dead_lettered=6, filtered=len(target.sent) - 6 - len(events))
    assert target.dead() == sorted(bad)
    assert target.run() == Totals(), "a second run lands nothing"
    target.send(list(events.values()), 2)
    target.send([{"id": 1_000_000, "word": "new"}], 0)
    assert target.run() == Totals(landed=1, filtered=len(events))
    coordinates = "_topic, _kafka_partition, _offset, id" if kind == "iceberg" else "_topic, _partition, _offset, id"
    sent = {(*each.at, each.fields["id"]) for each in target.sent if each.at not in bad}
    assert set(target.rows(coordinates)) <= sent, "every row is a record of the topic"
    assert (tmp_path / "landonce.dedup").exists() == ((kind, store) == ("iceberg", "default"))
    assert (tmp_path / "a.store").exists() == (store == "file")


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    "kind", ["clickhouse", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("iceberg", "sqlite"))]
)
def test_expressions_make_rows_of_unique_events(make: Callable[..., Target], kind: str) -> None:
    """Keys are taken from records, before expressions."""
    target = make(kind)
    target.send(some_events(100)[:-2])
    transform = {"select": ["id", "upper(word) AS word"], "where": "id % 2 = 0"}
    totals = target.run(transform=transform)
    kept = [each for each in target.events.values() if each["id"] % 2 == 0]
    assert sorted(target.rows("id, word")) == sorted((each["id"], each["word"].upper()) for each in kept)
    assert totals == Totals(landed=len(kept), filtered=100 - len(kept))
    target.send(list(target.events.values()), 1)
    assert target.run(transform=transform).landed == 0


@pytest.fixture
def only_accept(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Runs accept, and push nothing, as if the target were far behind."""
    anything, caught_up = Both._anything, Both._caught_up

    def switch(on: bool) -> None:
        monkeypatch.setattr(Both, "_anything", (lambda _: False) if on else anything)
        monkeypatch.setattr(Both, "_caught_up", (lambda _: True) if on else caught_up)

    return switch


@pytest.mark.parametrize(
    "kind", ["clickhouse", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("iceberg", "postgres", "sqlite"))]
)
def test_events_of_several_schemas_wait_in_the_store(
    make: Callable[..., Target], only_accept: Callable[[bool], None], tmp_path: Path, kind: str
) -> None:
    """Fields are added, the key and another field are widened, and producers stop sending a field, while nothing is pushed. An event of an old
    schema and its copy of a new one have the same id. Iceberg takes new columns from the file, the others from the records; SQL databases do
    not widen columns."""
    target, by_file = make(kind, "file", evolve=True), kind == "iceberg"
    oldest = "id INT NOT NULL, score INT" if kind in ("iceberg", "clickhouse") else "id BIGINT NOT NULL, score BIGINT"
    target.send([{"id": each, "score": each} for each in range(10)])
    assert target.run(schema=oldest).landed == 10
    only_accept(True)
    target.send([{"id": each, "score": each} for each in range(5, 20)])
    assert target.run(schema=oldest) == Totals(landed=10, filtered=5)
    target.send([{"id": each, "score": 2**40 + each, "extra": f"x{each}"} for each in range(15, 30)], 1)
    newer = "id BIGINT NOT NULL, score BIGINT, extra STRING" if by_file else None
    assert target.run(schema=newer) == Totals(landed=10, filtered=5)
    target.send([{"id": 2**40, "score": 1, "extra": "y", "late": True}, {"id": 3, "score": 2**41, "late": False}], 2)
    target.send([{"id": 2**40 + 1, "extra": "no score"}, {"id": 4, "extra": "no score"}], 2)
    newest = "id BIGINT NOT NULL, score BIGINT, extra STRING, late BOOLEAN" if by_file else None
    assert target.run(schema=newest) == Totals(landed=2, filtered=2)
    with closing(sqlite3.connect(tmp_path / "a.store")) as connection:
        waiting = connection.execute(
            "SELECT schema_version, sum(accepted) FROM landonce_dedup_chunk GROUP BY 1 ORDER BY min(accepted_at), 2 DESC"
        ).fetchall()
    by_version = [2, 10, 20] if by_file else [12, 20]
    assert sorted(count for _, count in waiting) == by_version, "each event waits with its version"
    assert len(target.rows("id")) == 10
    only_accept(False)
    target.run(schema=newest)
    due = {each["id"]: (each.get("score"), each.get("extra"), each.get("late")) for each in target.events.values()}
    assert {row[0]: row[1:] for row in target.rows("id, score, extra, late")} == due
    assert len(target.rows("id")) == len(due) == 32
    target.audited(schema=newest)


def test_a_stored_block_lands_in_a_table_that_was_altered_since(
    make: Callable[..., Target], clickhouse: LocalClickHouse
) -> None:
    """Its rows are those of the old columns. What waits behind it fills the new ones, and alters the table again."""
    target = make("clickhouse", evolve=True)
    target.send([{"id": 0, "score": 0}])
    target.run(schema="id INT NOT NULL, score INT")
    target.send([{"id": each, "score": each, "extra": f"x{each}"} for each in range(1, 5)])
    table = target.sink["clickhouse"]["table"]
    do(clickhouse.url, f"ALTER TABLE {table} ADD CONSTRAINT nothing CHECK id < 0")
    with pytest.raises(landonce.errors.TargetRefused):
        target.run(schema=None)
    do(clickhouse.url, f"ALTER TABLE {table} DROP CONSTRAINT nothing")
    do(clickhouse.url, f"ALTER TABLE {table} ADD COLUMN more Nullable(Int64), MODIFY COLUMN score Nullable(Int64)")
    target.send([{"id": 2**40 + each, "score": 2**40, "late": True} for each in range(5)])
    target.send([{"id": each, "score": -1} for each in range(5)], 1)
    assert target.run(schema=None) == Totals(landed=5, filtered=5)
    due = {each["id"]: (each["score"], each.get("extra"), None, each.get("late")) for each in target.events.values()}
    assert {row[0]: row[1:] for row in target.rows("id, score, extra, more, late")} == due
    assert len(target.rows("id")) == len(due) == 10
    target.audited(schema=None)


@pytest.mark.usefixtures("spark")
def test_a_stored_block_lands_whatever_expressions_say_by_now(
    make: Callable[..., Target], clickhouse: LocalClickHouse
) -> None:
    """The target refuses a block that was stored. The next start has other expressions, and lands the stored rows."""
    target = make("clickhouse")
    target.send([{"id": 0, "word": "w0"}])
    target.run(transform={"select": ["id", "upper(word) AS word"]})
    target.send([{"id": each, "word": f"w{each}"} for each in range(1, 5)])
    table = target.sink["clickhouse"]["table"]
    do(clickhouse.url, f"ALTER TABLE {table} ADD CONSTRAINT nothing CHECK id < 0")
    with pytest.raises(landonce.errors.TargetRefused):
        target.run(transform={"select": ["id", "upper(word) AS word"]})
    do(clickhouse.url, f"ALTER TABLE {table} DROP CONSTRAINT nothing")
    assert target.rows("id") == [(0,)]
    target.send([{"id": each, "word": f"w{each}"} for each in range(5, 10)])
    target.run(transform={"select": ["id", "concat(word, '!') AS word"]})
    due = [(each, f"W{each}") for each in range(5)] + [(each, f"w{each}!") for each in range(5, 10)]
    assert sorted(target.rows("id, word")) == due
