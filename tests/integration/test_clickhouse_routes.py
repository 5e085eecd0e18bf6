"""Topics by a regular expression, and one read of Kafka for many tables of ClickHouse. The oracle reads the tables over plain HTTP."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from deliveries import (
    COORDINATES,
    Sent,
    Site,
    Watch,
    expected,
    in_table,
    letters,
    numbered,
    run,
    running,
    send,
    wait_until,
)

from landonce.check import check_pipeline
from landonce.engine import driver as drivers
from landonce.errors import AnotherWriter, ColumnGone, TargetRefused, TopicMissing
from landonce.local import LocalClickHouse, LocalKafka
from landonce.protocol.ledger import Totals
from landonce.protocol.steps import Effect, Step
from landonce.sinks.contract import Level
from landonce.sinks.parts import open_parts
from landonce.sinks.pipeline_file import Pipeline
from landonce.verify.audit import opened_audit

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]
WINDOW = "non_replicated_deduplication_window = 1000"
NO_SPARK: None = None
"""Workers are in this process, and nothing here has expressions."""


@pytest.fixture
def site(kafka: LocalKafka, clickhouse: LocalClickHouse, new_table: Callable[[], str], tmp_path: Path) -> Site:
    return Site(kafka, clickhouse, tmp_path, new_table(), ["named by each test"])


@pytest.fixture
def create_topics(kafka: LocalKafka) -> Callable[..., None]:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})

    def create(*names: str) -> None:
        for future in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
            future.result(30)

    return create


def test_topics_that_match_are_read_and_so_are_those_that_appear_later(
    site: Site, create_topics: Callable[..., None]
) -> None:
    site.make("id Int64, name String")
    one, two, late, other = (f"{site.table}.{each}" for each in ("eu", "us", "late", "-not"))
    create_topics(one, two, other)
    sent = send(site.kafka, one, numbered(5)) + send(site.kafka, two, numbered(3))
    send(site.kafka, other, numbered(2))
    kafka = {"topics": {"match": rf"{site.table}\.\w+"}, "start": "latest"}
    before = {each.at for each in sent}
    watch = Watch()
    with running(site.config(kafka=kafka, batch={"interval": "100ms"}), NO_SPARK, watch):
        wait_until(lambda: bool(site.file.with_suffix(".ledger").exists() and watch.steps.count("idle")))
        sent += send(site.kafka, one, numbered(2, first=5))
        create_topics(late)
        sent += send(site.kafka, late, numbered(4, first=100))
        wait_until(lambda: sum(each.totals.read for each in watch.batches) == 6)
    new = [each for each in sent if each.at not in before]
    assert in_table(site) == expected(new), "a topic that appears later is read from its start, whatever `start` says"
    assert {topic for topic, _ in site.state().topic_ids} == {one, two, late}


def test_a_topic_that_matched_and_is_gone_is_named(
    site: Site, create_topics: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drivers, "_UNKNOWN_FOR", 0.5)
    site.make("id Int64, name String")
    one, two = f"{site.table}.a", f"{site.table}.b"
    config = site.config(kafka={"topics": {"match": rf"{site.table}\..*"}})
    with pytest.raises(TopicMissing, match=r"no topic at .* matches"):
        run(config, NO_SPARK)
    create_topics(one, two)
    sent = send(site.kafka, one, numbered(3)) + send(site.kafka, two, numbered(2))
    assert run(config, NO_SPARK) == Totals(landed=5)
    admin = AdminClient({"bootstrap.servers": site.kafka.bootstrap_servers})
    admin.delete_topics([two])[two].result(30)
    wait_until(lambda: two not in admin.list_topics(timeout=10).topics)
    with pytest.raises(TopicMissing, match=f"'{two}', which matches"):
        run(config, NO_SPARK)
    (position,) = (each for each in check_pipeline(open_parts(config)).sections if each.name == "position")
    assert [(each.level, two in each.what) for each in position.findings] == [(Level.REFUSED, True)]
    assert in_table(site) == expected(sent)
    narrower = site.config(kafka={"topics": {"match": rf"{site.table}\.a"}})
    assert run(narrower, NO_SPARK) == Totals(), "a topic that does not match any more is not asked for"


# ── several tables ───────────────────────────────────────────────────────────────────────────────────────────────────


def coordinates(site: Site, table: str) -> Counter[tuple[str, int]]:
    """Topic and offset of every row; one partition each."""
    return Counter((row["_topic"], row["_offset"]) for row in site.ask(f"SELECT _topic, _offset FROM {table}"))


def at(sent: Iterable[Sent], *ids: int) -> Counter[tuple[str, int]]:
    """Of the records with these ids."""
    return Counter((each.topic, each.offset) for each in sent if each.fields["id"] in ids)


def routed(site: Site, **section: object) -> dict[str, Any]:
    """The section of several tables, instead of one."""
    return {"table": None, "create": True, **section}


def exact(config: Pipeline) -> bool:
    """What `landonce verify` says."""
    parts = open_parts(config)
    with closing(parts.ledger), opened_audit(parts, values=True, to_end=True) as auditor:
        return auditor.audit().exact


def test_records_go_to_tables_by_topic_by_field_and_by_both(site: Site, create_topics: Callable[..., None]) -> None:
    eu, us, clicks = (f"{site.table}.{each}" for each in ("orders-eu", "orders-us", "clicks"))
    create_topics(eu, us, clicks)
    t = site.table
    section = routed(
        site,
        route_field="kind",
        tables=[
            {"table": f"{t}_orders", "topics": [eu, us]},
            {"table": f"{t}_returns", "topics": {"match": r".*\.orders-.*"}, "equals": "return"},
            {"table": f"{t}_clicks", "topics": [clicks], "match": "a|b"},
        ],
    )
    site.topics = [eu, us, clicks]
    config = site.config(clickhouse=section)
    sent = send(site.kafka, eu, [{"id": 1, "kind": "sale"}, {"id": 2, "kind": "return"}])
    sent += send(site.kafka, us, [{"id": 3, "kind": "sale"}])
    sent += send(site.kafka, clicks, [{"id": 4, "kind": "a"}, {"id": 5, "kind": "?"}, {"id": 6, "kind": "b"}])
    assert run(config, NO_SPARK) == Totals(landed=5, dead_lettered=1)
    assert coordinates(site, f"{t}_orders") == at(sent, 1, 2, 3)
    assert coordinates(site, f"{t}_returns") == at(sent, 2), "a record may go to several tables"
    assert coordinates(site, f"{t}_clicks") == at(sent, 4, 6)
    assert [each["reason"] for each in letters(site.dead)] == ["no table takes its `kind`"]
    assert dict(site.state().tables).keys() == {f"{t}_orders", f"{t}_returns", f"{t}_clicks"}
    assert exact(config)
    site.ask(f"ALTER TABLE {t}_returns DELETE WHERE 1 SETTINGS mutations_sync = 2")
    assert not exact(config), "a row that one of the tables lacks is found"


def test_the_topic_and_a_value_make_the_table(site: Site, create_topics: Callable[..., None]) -> None:
    one, two = f"{site.table}.a-b", f"{site.table}.c"
    create_topics(one, two)
    config = site.config(
        kafka={"topics": {"match": rf"{site.table}\..*"}}, clickhouse=routed(site, table="{_topic}_{kind}")
    )
    sent = send(site.kafka, one, [{"id": 1, "kind": "x"}, {"id": 2, "kind": "y"}, {"id": 3, "kind": "../x"}])
    sent += send(site.kafka, two, [{"id": 4, "kind": "x"}])
    assert run(config, NO_SPARK) == Totals(landed=3, dead_lettered=1)
    assert coordinates(site, f"{site.table}_a_b_x") == at(sent, 1)
    assert coordinates(site, f"{site.table}_a_b_y") == at(sent, 2)
    assert coordinates(site, f"{site.table}_c_x") == at(sent, 4)
    watch = Watch()
    sent += send(site.kafka, two, [{"id": 5, "kind": "x"}])
    assert run(config, NO_SPARK, watch) == Totals(landed=1)
    assert Step.OPEN not in watch.steps, "the ledger knows the tables, so that nothing waits for them again"
    assert exact(config)


def test_a_table_that_is_not_there_is_a_reason_for_dead_letters_and_the_others_land(
    site: Site, create_topics: Callable[..., None]
) -> None:
    topic, t = f"{site.table}.x", site.table
    create_topics(topic)
    site.topics = [topic]
    site.ask(f"CREATE TABLE {t}_a (id Int64, {COORDINATES}) ENGINE = MergeTree ORDER BY _offset SETTINGS {WINDOW}")
    site.ask(f"CREATE TABLE {t}_log (id Int64, {COORDINATES}) ENGINE = Log")
    config = site.config(clickhouse=routed(site, table=f"{t}_{{kind}}", create=False))
    values = [{"id": at, "kind": kind} for at, kind in enumerate(["a", "none", "log", "a"])]
    sent = send(site.kafka, topic, values)
    assert run(config, NO_SPARK) == Totals(landed=2, dead_lettered=2)
    assert coordinates(site, f"{t}_a") == at(sent, 0, 3)
    assert {each["offset"]: each["reason"].partition(":")[0] for each in letters(site.dead)} == {
        1: f"there is no table {t}_none",
        2: f"the table {t}_log cannot take it",
    }
    site.ask(f"CREATE TABLE {t}_none (id Int64, {COORDINATES}) ENGINE = MergeTree ORDER BY _offset SETTINGS {WINDOW}")
    sent += send(site.kafka, topic, [{"id": 4, "kind": "none"}])
    assert run(config, NO_SPARK) == Totals(landed=1)
    assert coordinates(site, f"{t}_none") == at(sent, 4)


def test_a_lost_ledger_finds_what_each_table_holds(site: Site, create_topics: Callable[..., None]) -> None:
    """One of the tables has lost its rows; only they are written again."""
    topic, t = f"{site.table}.x", site.table
    create_topics(topic)
    site.topics = [topic]
    config = site.config(clickhouse=routed(site, table=f"{t}_{{kind}}"))
    sent = send(site.kafka, topic, [{"id": at, "kind": "ab"[at % 2]} for at in range(10)])
    assert run(config, NO_SPARK) == Totals(landed=10)
    (site.folder / "p.ledger").unlink()
    site.ask(f"TRUNCATE TABLE {t}_b")
    assert run(config, NO_SPARK) == Totals(landed=10)
    assert coordinates(site, f"{t}_a") == at(sent, *range(0, 10, 2))
    assert coordinates(site, f"{t}_b") == at(sent, *range(1, 10, 2))
    assert exact(config)


def test_another_writer_in_one_of_the_tables_is_noticed(site: Site, create_topics: Callable[..., None]) -> None:
    topic, t = f"{site.table}.x", site.table
    create_topics(topic)
    site.topics = [topic]
    section = routed(site, route_field="kind", tables=[{"table": f"{t}_a", "equals": "a"}, {"table": f"{t}_b"}])
    config = site.config(clickhouse=section)
    send(site.kafka, topic, [{"id": 0, "kind": "a"}])
    assert run(config, NO_SPARK) == Totals(landed=1)
    send(site.kafka, topic, [{"id": 1, "kind": "b"}])

    def meddle(effect: Effect) -> None:
        if effect.step is Step.PREPARE:
            site.ask(f"INSERT INTO {t}_a SELECT 1, 'b', '{topic}', 0, 1")

    with pytest.raises(AnotherWriter):
        run(config, NO_SPARK, Watch(at=meddle))


# ── columns for new fields ───────────────────────────────────────────────────────────────────────────────────────────


def columns(site: Site, table: str) -> dict[str, str]:
    found = site.ask(f"SELECT name, type FROM system.columns WHERE table = '{table}' AND name NOT LIKE '\\\\_%'")
    return {row["name"]: row["type"] for row in found}


def test_tables_get_the_columns_that_records_need(site: Site, create_topics: Callable[..., None]) -> None:
    topic = f"{site.table}.x"
    create_topics(topic)
    site.topics = [topic]
    site.make("id Int32, small Float32, price Decimal(4, 2), must String, word LowCardinality(String)")
    config = site.config(clickhouse={"evolve": True})
    whole = {"id": 1, "small": 0.5, "price": 1.25, "must": "x", "word": "w"}
    news = {"note": "hello", "tags": ["a"], "deep": {"x": 1}, "mixed": 1}
    sent = send(site.kafka, topic, [whole])
    sent += send(site.kafka, topic, [whole | {"id": 2**40, "small": 1e300, "price": 10**40} | news])
    sent += send(site.kafka, topic, [{**whole, "id": 3, "must": None, "mixed": "text"}, whole | {"word": None}])
    watch = Watch()
    assert run(config, NO_SPARK, watch) == Totals(landed=3, dead_lettered=1)
    assert watch.steps.count(Step.OPEN) == 1
    assert columns(site, site.table) == {
        "id": "Int64",
        "small": "Float64",
        "price": "Decimal(43, 2)",
        "must": "Nullable(String)",
        "word": "LowCardinality(String)",
        "note": "Nullable(String)",
        "tags": "Array(Nullable(String))",
        "deep": "Tuple(x Nullable(Int64))",
        "mixed": "Nullable(String)",
    }
    rows = site.ask(f"SELECT id, small, price, must, note, mixed FROM {site.table} ORDER BY _offset")
    assert [row["id"] for row in rows] == [1, 2**40, 3]
    assert (rows[1]["small"], rows[1]["price"], rows[1]["note"]) == (1e300, str(10**40), "hello")
    assert (rows[2]["must"], rows[2]["note"]) == (None, None)
    assert exact(config)


DROPPED = ("DROP COLUMN more", "ADD COLUMN more Nullable(Int64)", "more")
RENAMED = ("RENAME COLUMN note TO remark", "RENAME COLUMN remark TO note", "note")


@pytest.mark.parametrize(
    ("change", "back", "gone", "during"),
    [
        (*DROPPED, False),
        (*RENAMED, True),
        pytest.param(*DROPPED, True, marks=pytest.mark.long),
        pytest.param(*RENAMED, False, marks=pytest.mark.long),
    ],
    ids=["dropped", "renamed during a run", "dropped during a run", "renamed"],
)
def test_a_column_that_was_dropped_or_renamed_is_not_made_again(
    site: Site, create_topics: Callable[..., None], change: str, back: str, gone: str, during: bool
) -> None:
    """It would be empty in the rows that have landed. Records without the field go on, and so do all once a person has decided."""
    topic = f"{site.table}.x"
    create_topics(topic)
    site.topics = [topic]
    site.make("id Int64, note Nullable(String)")
    site.clickhouse.ask(f"SYSTEM START MERGES {site.table}")  # an ALTER that drops or renames waits for them
    config = site.config(clickhouse={"evolve": True, "deadline": "2s"})
    sent = send(site.kafka, topic, [{"id": 1, "note": "a", "more": 1}])
    assert run(config, NO_SPARK) == Totals(landed=1)
    whole = columns(site, site.table)
    if not during:
        site.ask(f"ALTER TABLE {site.table} {change}")
        sent += send(site.kafka, topic, [{"id": 2}])
        assert run(config, NO_SPARK) == Totals(landed=1)
    sent += send(site.kafka, topic, [{"id": 3, "note": "c", "more": 3}])

    def meddle(effect: Effect) -> None:
        if effect.step is Step.WRITE:
            site.ask(f"ALTER TABLE {site.table} {change}")

    if during:
        with pytest.raises(TargetRefused, match=f"column {gone}"):
            run(config, NO_SPARK, Watch(at=meddle))
    altered = columns(site, site.table)
    with pytest.raises(ColumnGone, match=f"{site.table} has no column {gone} any more"):
        run(config, NO_SPARK)
    assert columns(site, site.table) == altered != whole
    assert coordinates(site, site.table) == at(sent, 1, 2)
    site.ask(f"ALTER TABLE {site.table} {back}")
    assert run(config, NO_SPARK) == Totals(landed=1)
    assert columns(site, site.table) == whole
    assert coordinates(site, site.table) == at(sent, 1, 2, 3)
    (row,) = site.ask(f"SELECT note, more FROM {site.table} WHERE id = 3")
    assert row == {"note": "c", "more": 3}
    assert exact(config) is (gone == "note"), "a value of a dropped column is gone, and verify says so"


def test_integers_of_every_width_are_widened_and_keys_are_not(site: Site, create_topics: Callable[..., None]) -> None:
    """To the narrowest type that holds the values; rows that were there stay as they were."""
    topic = f"{site.table}.x"
    create_topics(topic)
    site.topics = [topic]
    narrow = "a Int8, b Int8, c Int16, d Int16, e UInt8, f UInt16, g UInt32, h Nullable(UInt8), k Int16"
    site.clickhouse.ask(
        f"CREATE TABLE {site.table} (id Int64, {narrow}, _topic LowCardinality(String), _partition Int32, _offset Int64) "
        f"ENGINE = MergeTree ORDER BY k SETTINGS {WINDOW}"
    )
    site.clickhouse.ask(f"SYSTEM START MERGES {site.table}")  # an ALTER that rewrites a column waits for them
    config = site.config(clickhouse={"evolve": True})
    first = {"a": -128, "b": 127, "c": -(2**15), "d": 1, "e": 255, "f": 2**16 - 1, "g": 2**32 - 1, "h": None, "k": 1}
    later = {"a": 128, "b": -(2**40), "c": 2**15, "d": 2**31, "e": 256, "f": 2**32, "g": 2**64 - 1, "h": 2**20, "k": 2}
    send(site.kafka, topic, [{"id": 1, **first}])
    assert run(config, NO_SPARK) == Totals(landed=1)
    send(site.kafka, topic, [{"id": 2, **later}, {"id": 3, **later, "k": 2**15}, {"id": 4, **first, "e": -1}])
    assert run(config, NO_SPARK) == Totals(landed=1, dead_lettered=2)
    assert columns(site, site.table) == {
        "id": "Int64", "a": "Int16", "b": "Int64", "c": "Int32", "d": "Int64", "e": "UInt16", "f": "UInt64", "g": "UInt64",
        "h": "Nullable(UInt32)", "k": "Int16",
    }  # fmt: skip
    rows = site.ask(f"SELECT id, a, b, c, d, e, f, g, h, k FROM {site.table} ORDER BY id")
    assert [{name: None if value is None else int(value) for name, value in each.items()} for each in rows] == [
        {"id": 1, **first},
        {"id": 2, **later},
    ]
    assert exact(config)


def test_key_columns_stay_as_they_are(site: Site, create_topics: Callable[..., None]) -> None:
    """ClickHouse alters no column that rows are sorted or partitioned by: the records that need it are dead letters, and all others land."""
    topic = f"{site.table}.x"
    create_topics(topic)
    site.topics = [topic]
    site.make("id Int32, day Int32, n Int32", rest="PARTITION BY day % 10 ORDER BY (id, _offset)")
    config = site.config(clickhouse={"evolve": True})
    row = {"id": 1, "day": 1, "n": 1}
    send(site.kafka, topic, [row, row | {"id": 2**40}, row | {"day": 2**40}, row | {"id": None}, row | {"n": 2**40}])
    assert run(config, NO_SPARK) == Totals(landed=2, dead_lettered=3)
    assert columns(site, site.table) == {"id": "Int32", "day": "Int32", "n": "Int64"}
    assert [each["n"] for each in site.ask(f"SELECT n FROM {site.table} ORDER BY n")] == [1, 2**40]
    assert sorted(each["offset"] for each in letters(site.dead)) == [1, 2, 3]
    assert exact(config)


def test_an_alter_that_clickhouse_forbids_ends_the_run_at_once(site: Site, create_topics: Callable[..., None]) -> None:
    """Waiting until `stall` helps nobody: the error names what is in the way."""
    topic = f"{site.table}.x"
    create_topics(topic)
    site.topics = [topic]
    site.make("id Int32, n Int32, PROJECTION by_n (SELECT n, count() GROUP BY n)")
    config = site.config(clickhouse={"evolve": True})
    send(site.kafka, topic, [{"id": 1, "n": 2**40}])
    with pytest.raises(TargetRefused, match="projection by_n") as refused:
        run(config, NO_SPARK)
    assert "drop what ClickHouse names" in refused.value.command
    site.ask(f"ALTER TABLE {site.table} DROP PROJECTION by_n")
    assert run(config, NO_SPARK) == Totals(landed=1)
    assert exact(config)


def test_an_alter_by_somebody_else_is_built_upon(site: Site, create_topics: Callable[..., None]) -> None:
    """Between what workers saw and the driver's own ALTER: one column is there by then, and of another type."""
    topic = f"{site.table}.x"
    create_topics(topic)
    site.topics = [topic]
    site.make("id Int64")
    config = site.config(clickhouse={"evolve": True})
    sent = send(site.kafka, topic, [{"id": 1, "a": 1, "b": 2}, {"id": 2, "a": "text", "b": 3}])

    def meddle(effect: Effect) -> None:
        if effect.step is Step.OPEN:
            site.ask(f"ALTER TABLE {site.table} ADD COLUMN a Nullable(Int64), ADD COLUMN theirs UInt8 DEFAULT 7")

    assert run(config, NO_SPARK, Watch(at=meddle)) == Totals(landed=1, dead_lettered=1)
    assert columns(site, site.table) == {
        "id": "Int64", "a": "Nullable(Int64)", "theirs": "UInt8", "b": "Nullable(Int64)"
    }  # fmt: skip
    assert site.ask(f"SELECT id, a, b, theirs FROM {site.table}") == [{"id": 1, "a": 1, "b": 2, "theirs": 7}]
    assert coordinates(site, site.table) == at(sent, 1)
    assert exact(config)
