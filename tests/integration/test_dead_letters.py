"""Dead letters: bad records are isolated one by one, with all that is needed to fix and resend them."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deliveries import Site, Watch, expected, in_table, letters, numbered, run, send, spark_session
from pyspark.sql import SparkSession

from landonce.engine import transform, workers
from landonce.engine.pipeline import run_pipeline
from landonce.engine.publish import Letters
from landonce.engine.task import work, write_half
from landonce.errors import Unbalanced
from landonce.local import LocalClickHouse, LocalKafka
from landonce.protocol.ledger import Totals
from landonce.protocol.receipt import BlockResult
from landonce.protocol.steps import Effect, Step
from landonce.read.block import ReadAccount
from landonce.sinks.pipeline_file import Pipeline, parse
from landonce.sinks.worker import Recipe, Task

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

LARGEST = 2000
BAD: list[tuple[bytes | None, str, str, str]] = [
    (b'{"id": 1, "name": "x"', "JSON", "malformed", ""),
    (b"[1]", "object", "malformed", ""),
    (b"", "empty", "no_value", ""),
    (None, "tombstone", "no_value", ""),
    (b'{"id": "one", "name": "x"}', "'id'", "wrong_type", "id"),
    (b'{"id": 1.5, "name": "x"}', "'id'", "wrong_type", "id"),
    (b'{"id": 1, "name": 7}', "'name'", "wrong_type", "name"),
    (b'{"name": "x"}', "missing required field 'id'", "missing_field", "id"),
    (b'{"id": null, "name": "x"}', "missing required field 'id'", "missing_field", "id"),
    (b'{"id": 9223372036854775808, "name": "x"}', "'id'", "out_of_range", "id"),
    (b'{"id": 1, "name": "' + b"x" * LARGEST + b'"}', "2000", "too_large", ""),
    (b'{"id": 1, "name": "\xff"}', "UTF-8", "not_utf8", ""),
    (b'{"id": 1, "name": "x", "at": "1960-01-01T00:00:00Z"}', "'at'", "out_of_range", "at"),
    (b'{"id": 1, "name": "x"} {"id": 2, "name": "y"}', "JSON", "malformed", ""),
]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    yield from spark_session("test-dead-letters")


@pytest.fixture
def site(
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_table: Callable[[], str],
    new_topic: Callable[..., str],
    tmp_path: Path,
) -> Site:
    site = Site(kafka, clickhouse, tmp_path, new_table(), [new_topic()])
    site.make("id Int64, name String, at Nullable(DateTime)")
    return site


@pytest.mark.parametrize("where", [None, "id >= 100"], ids=["plain", "with a transform"])
def test_each_bad_record_is_isolated_and_its_neighbours_land(
    site: Site, spark: SparkSession, where: str | None
) -> None:
    good, bad = [], []
    for number, (value, *_) in enumerate(BAD):
        good += send(site.kafka, site.topics[0], numbered(20, first=90 + number))
        bad += send(
            site.kafka,
            site.topics[0],
            [value],
            key=b"\xfe" if number % 2 else b"key",
            headers=[("h", b"1"), ("n", None)],
        )
    good += send(site.kafka, site.topics[0], numbered(1))
    landing = [each for each in good if where is None or each.fields["id"] >= 100]
    sections = {"transform": {"where": where}} if where else {}
    totals = run(site.config(kafka={"max_record_bytes": LARGEST}, batch={"block_rows": 100}, **sections), spark)

    assert in_table(site) == expected(landing)
    assert totals == Totals(landed=len(landing), dead_lettered=len(BAD), filtered=len(good) - len(landing))
    assert totals.read == len(good) + len(bad)
    found = {each["offset"]: each for each in letters(site.dead)}
    assert sorted(found) == [each.offset for each in bad]
    assert len(letters(site.dead)) == len(bad)
    for number, (each, (value, says, code, field)) in enumerate(zip(bad, BAD, strict=True)):
        letter = found[each.offset]
        assert (letter["topic"], letter["partition"]) == (each.topic, 0)
        assert says.lower() in letter["reason"].lower(), (value, letter["reason"])
        assert (letter["code"], letter["field"]) == (code, field)
        assert payload(letter, "value") == value
        assert payload(letter, "key") == (b"\xfe" if number % 2 else b"key")
        assert letter["headers"] == [{"name": "h", "value": "1"}, {"name": "n", "value": None}]
        assert letter["timestamp"] > 1_500_000_000_000


def payload(letter: dict[str, str | None], name: str) -> bytes | None:
    if f"{name}_base64" in letter:
        return base64.b64decode(letter[f"{name}_base64"] or "")
    text = letter[name]
    return None if text is None else text.encode()


class Crash(Exception):
    pass


@pytest.mark.parametrize(
    ("where", "place"),
    [
        pytest.param(None, Step.COMMIT, id="plain-commit"),
        pytest.param(None, Step.RECORD, id="plain-record"),
        pytest.param("id >= 0", Step.COMMIT, id="with a transform-commit", marks=pytest.mark.long),
        pytest.param("id >= 0", Step.RECORD, id="with a transform-record", marks=pytest.mark.long),
    ],
)
def test_a_replay_overwrites_and_never_repeats(site: Site, spark: SparkSession, where: str | None, place: Step) -> None:
    sent = send(site.kafka, site.topics[0], [*numbered(30), b"bad", *numbered(30), b"worse"])
    sections = {"transform": {"where": where}} if where else {}
    config = site.config(batch={"max_rows": 40, "block_rows": 10}, clickhouse={"deadline": "3s"}, **sections)

    def crash(effect: Effect) -> None:
        if effect.step is place:
            raise Crash

    for _ in range(2):
        with pytest.raises(Crash):
            run(config, spark, Watch(at=crash))
        counted = letters(site.dead)
        assert len(counted) == (0 if place is Step.COMMIT else 1), "before the commit none counts"
    assert run(config, spark) == Totals(landed=60, dead_lettered=2)
    assert in_table(site) == expected(each for each in sent if each.value not in (b"bad", b"worse"))
    assert [each["value"] for each in letters(site.dead)] == ["bad", "worse"]
    names = sorted(each.name for each in site.dead.iterdir())
    assert len(names) == 2, f"nothing half-done is left: {names}"
    pipeline = site.document()["pipeline"]
    assert all(re.fullmatch(rf"{pipeline}\.batch-00000000\d-\w+-000\dd[0-9a-f]{{8}}\.jsonl", name) for name in names), (
        names
    )


OTHERS: dict[str, dict[str, object]] = {
    "a database": {"sink": {"sql": {"url": "sqlite:///t.db", "table": "events", "create": True}}},
    "one table of a lake": {"sink": {"iceberg": {"table": "db.t", "create": True}}},
    "a fan-out": {"sink": {"iceberg": {"table": "db.t_{name}", "create": True}}, "ledger": {"sqlite": "p.ledger"}},
}


@pytest.mark.parametrize(
    ("sink", "published"),
    [
        pytest.param(sink, published, id=f"{'published' if published else 'staged'}-{sink}", marks=marks)
        for sink in ("clickhouse", *OTHERS)
        for published in (True, False)
        for marks in [() if published or sink == "clickhouse" else pytest.mark.long]
    ],
)
def test_a_plan_keeps_its_folder_though_the_file_names_another(
    site: Site, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, sink: str, published: bool
) -> None:
    """A run is killed around the moment when letters begin to count; the next one finds another `dead_letters.path`."""
    send(site.kafka, site.topics[0], [*numbered(5), b"bad"])

    def config(folder: str) -> Pipeline:
        document = site.document(clickhouse={"deadline": "3s"}, dead_letters={"path": folder})
        if sink != "clickhouse":
            document = {name: document[name] for name in document if name not in ("sink", "ledger")} | OTHERS[sink]
            document["source"]["kafka"]["schema"] = "id BIGINT NOT NULL, name STRING"
        return parse(yaml.safe_dump(document), site.file)

    publish = Letters.publish

    def killed(self: Letters, *rest: Any) -> None:
        if published:
            publish(self, *rest)
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(Letters, "publish", killed)
        with pytest.raises(Crash):
            run_pipeline(config("dead"), once=True)
    assert len(letters(site.dead)) == int(published)

    other = site.folder / "other"
    for _ in range(2):
        run_pipeline(config("other"), once=True)
        assert [each["value"] for each in letters(site.dead)] == ["bad"]
        assert not other.exists() or letters(other) == []
    send(site.kafka, site.topics[0], [b"worse"])
    run_pipeline(config("other"), once=True)
    assert [each["value"] for each in letters(other)] == ["worse"]
    assert [each["value"] for each in letters(site.dead)] == ["bad"]


def test_a_block_of_nothing_but_bad_records(site: Site, spark: SparkSession) -> None:
    send(site.kafka, site.topics[0], [b"a", b"b", None])
    assert run(site.config(), spark) == Totals(dead_lettered=3)
    assert site.position() == {(site.topics[0], 0): 3}
    assert [each["value"] for each in letters(site.dead)] == ["a", "b", None]


def test_a_lost_row_is_noticed_before_the_position_moves(
    site: Site, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(site.kafka, site.topics[0], numbered(10))

    def careless(recipe: Recipe, task: Task) -> BlockResult:
        from landonce.read.block import ReadBlock

        rows = ReadBlock.rows
        ReadBlock.rows = lambda *asked: rows(*asked).slice(1)  # type: ignore[method-assign]
        try:
            return work(recipe, task)
        finally:
            ReadBlock.rows = rows  # type: ignore[method-assign]

    monkeypatch.setattr(workers, "work", careless)
    with pytest.raises(Unbalanced, match=r"\b10 records were read, but 9 landed"):
        run(site.config(), spark)
    assert site.position() == {(site.topics[0], 0): 0}
    monkeypatch.undo()


def test_a_lost_row_is_noticed_with_a_transform_too(
    site: Site, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(site.kafka, site.topics[0], numbered(10))

    def careless(recipe: Recipe, task: Task, rows: pa.Table, account: ReadAccount) -> BlockResult:
        return write_half(recipe, task, rows.slice(1), account)

    monkeypatch.setattr(transform, "write_half", careless)
    with pytest.raises(Unbalanced, match=r"\b10 records were read, but 9 landed"):
        run(site.config(transform={"where": "id >= 0"}), spark)
    assert site.position() == {(site.topics[0], 0): 0}
