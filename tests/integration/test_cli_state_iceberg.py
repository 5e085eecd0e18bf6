"""The operator's commands for Iceberg, between real runs: what a table, its marks and Kafka do not say, a person decides."""

from __future__ import annotations

import io
import re

import pyarrow as pa
import pytest
from jvms import iceberg_session
from operated import Operated
from pipelines import landonce
from said import says

from landonce.cli.command import operations_of
from landonce.errors import (
    Fenced,
    PlanChanged,
    PositionUncertain,
    RetentionOverrun,
    RollbackRefused,
    TableReplaced,
    TopicRecreated,
)
from landonce.ledger.open import sqlite_ledger
from landonce.protocol.blocks import Block, Plan
from landonce.protocol.ledger import prepared, taken
from landonce.protocol.operate import accept_gap
from landonce.protocol.ranges import Partition, Range
from landonce.sinks.iceberg.commit import restate
from landonce.sinks.iceberg.types import COLUMNS
from landonce.sinks.parts import open_parts
from landonce.sinks.pipeline_file import load

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module", autouse=True)
def session():
    session = iceberg_session({})
    yield session
    session.stop()


@pytest.fixture
def state(capsys, monkeypatch):
    return lambda pipeline, command, *options: landonce(capsys, monkeypatch, "state", command, pipeline.file, *options)


@pytest.fixture
def check(capsys, monkeypatch):
    return lambda pipeline, *options: landonce(capsys, monkeypatch, "check", pipeline.file, *options)


@pytest.fixture
def pipeline(kafka, new_topic, tmp_path):
    return Operated(kafka, tmp_path, new_topic())


@pytest.fixture
def one(pipeline):
    """One table, which is its own ledger and holds ten records."""
    pipeline.write_sink(table="db.t", create=True)
    pipeline.send(range(10))
    pipeline.run()
    assert pipeline.ids() == list(range(10))
    return pipeline


@pytest.fixture
def fan_out(pipeline):
    """Two tables and a ledger beside them. Offsets 0 to 4 went to `db.a`, 5 to 9 to `db.b`."""
    pipeline.write_sink(table="db.{kind}", create=True)
    pipeline.send(range(5))
    pipeline.send(range(5, 10), kind="b")
    pipeline.run()
    return pipeline


def make_again(pipeline, name):
    """Another table by that name."""
    schema = pipeline.held(name).schema()
    pipeline.catalog.drop_table(name)
    pipeline.catalog.create_table(name, schema)


def prepare(pipeline, first, end):
    """A plan is pending, which another pipeline file made."""
    ledger = sqlite_ledger(pipeline.folder / "landonce.ledger", "pipe")
    held = ledger.load()
    block = Block((Range(Partition(pipeline.topic, 0), first, end),), "db.{kind}")
    ledger.change(held, prepared(held, Plan(held.batch + 1, (block,), "of another file", 0)))


class TestShow:
    def test_the_table_is_the_ledger(self, one, state):
        said = state(one, "show")
        assert said.code == 0
        assert f"ledger: the table db.t itself, branch main, snapshot {one.head()}" in said.out
        assert f"{one.topic}[0]: next offset 10, since 0, lag 0" in said.out
        document = state(one, "show", "--json").json
        assert document["kept_in"]["snapshot"] == one.head()
        assert document["kept_in"]["uuid"] == str(one.held().metadata.table_uuid)
        assert document["ledger"]["totals"]["landed"] == 10

    def test_without_a_catalog_nothing_is_made(self, pipeline, state):
        for table in ("db.t", "db.{kind}"):
            pipeline.write_sink(table=table, create=True)
            assert "no ledger yet" in state(pipeline, "show").out
            assert "no position yet" in state(pipeline, "accept-gap", "--yes").err
        assert [each.name for each in pipeline.folder.iterdir()] == ["clicks.yaml"]

    def test_a_rollback_is_reported_even_where_it_is_refused(self, one, state, check):
        first = one.head()
        one.send(range(10, 15))
        one.run()
        one.roll_to(first)
        said = check(one)
        assert said.code == 0
        assert (
            "rolled back from batch 2 to batch 1; the removed ranges (at most 5 offsets) are delivered again"
            in said.out
        )
        one.write_sink(rollback="refuse")
        assert "rolled back from batch 2" in state(one, "show").out
        said = check(one)
        assert said.code == 1
        assert "set `rollback: follow`" in said.out
        with pytest.raises(RollbackRefused):
            one.run()

    def test_the_tables_of_a_fan_out(self, fan_out, state, check):
        first = fan_out.head("db.a")
        fan_out.send(range(10, 12))
        fan_out.run()
        fan_out.roll_to(first, "db.a")
        said = state(fan_out, "show")
        assert f"ledger: the file {fan_out.folder}/landonce.ledger" in said.out
        assert f"table db.a: behind: was rolled back; delivered to it again: {fan_out.topic}[0] [10, 12)" in said.out
        assert "table db.b: in step" in said.out
        tables = {each["table"]: each for each in state(fan_out, "show", "--json").json["tables"]}
        assert tables["db.a"]["snapshot"] == first
        assert tables["db.a"]["lacks"] == [[fan_out.topic, 0, 10, 12]]
        assert (tables["db.b"]["status"], tables["db.b"]["batch"]) == ("in step", 1)
        found = check(fan_out)
        assert found.code == 0
        assert "db.a was rolled back" in found.out
        assert says(found.out, "1 tables are in step")


def test_expressions_are_examined_now_if_asked(one, check):
    one.write_sink(schema="id BIGINT NOT NULL, kind STRING", transform={"where": "id % 2 = 0"})
    assert "checked at every start" in check(one).out
    said = check(one, "--spark")
    assert said.code == 0, said.out
    assert "select and where are row-wise and deterministic" in said.out
    assert "filtered by `where`" in said.out
    one.write_sink(schema="id BIGINT NOT NULL, kind STRING", transform={"where": "rand() < 0.5"})
    assert check(one, "--spark").code == 1


class TestAcceptGap:
    def test_the_table_goes_on_behind_the_gap(self, one, state):
        one.send(range(10, 20))
        one.delete_records(before=15)
        with pytest.raises(RetentionOverrun):
            one.run()
        said = state(one, "accept-gap", "--yes")
        assert said.code == 0, said.err
        assert "the position moves from 10 to 15" in said.out
        assert "At most 5 records" in said.out
        assert one.noted() == ["accept-gap"]
        one.run()
        assert one.ids() == [*range(10), *range(15, 20)]
        assert "accept-gap" in state(one, "show").out

    def test_fences_a_driver_that_runs(self, one, state):
        ledger = open_parts(load(one.file)).ledger
        held = ledger.load()
        driver = ledger.change(held, taken(held, "driver"))
        one.send(range(10, 20))
        one.delete_records(before=15)
        assert state(one, "accept-gap", "--yes").code == 0
        with pytest.raises(Fenced):
            ledger.change(driver, taken(driver, "driver"))

    def test_asks_and_takes_no_for_an_answer(self, one, state, monkeypatch):
        one.send(range(10, 20))
        one.delete_records(before=15)
        before = one.head()
        monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
        said = state(one, "accept-gap")
        assert said.code == 1
        assert "the position moves from 10 to 15" in said.out
        assert one.head() == before
        assert one.noted() == []

    def test_refuses_politely_when_there_is_no_gap(self, one, state):
        said = state(one, "accept-gap", "--yes")
        assert said.code == 1
        assert "there is no gap" in said.err

    def test_only_the_table_that_was_rolled_back_loses_what_kafka_lost(self, fan_out, state, check):
        first = fan_out.head("db.a")
        fan_out.send(range(10, 15))
        fan_out.run()
        fan_out.roll_to(first, "db.a")
        fan_out.delete_records(before=12)
        assert "Kafka has deleted some of that" in check(fan_out).out
        with pytest.raises(RetentionOverrun, match="rolled back"):
            fan_out.run()
        said = state(fan_out, "accept-gap", "--yes")
        assert said.code == 0, said.err
        assert "At most 2 records that the rollback removed from db.a" in said.out
        assert "db.b" not in said.out
        assert fan_out.journal() == ["accept-gap"]
        assert check(fan_out).code == 0
        fan_out.run()
        assert fan_out.ids("db.a") == [*range(5), 12, 13, 14]
        assert fan_out.ids("db.b") == list(range(5, 10))
        fan_out.send(range(15, 17))
        fan_out.run()
        assert fan_out.ids("db.a") == [*range(5), *range(12, 17)], "and it goes on as before"
        assert "there is no gap" in state(fan_out, "accept-gap", "--yes").err

    def test_nothing_of_what_was_removed_is_left_to_read(self, fan_out, state):
        first = fan_out.head("db.a")
        fan_out.send(range(10, 15))
        fan_out.run()
        fan_out.roll_to(first, "db.a")
        fan_out.send(range(15, 20))
        fan_out.delete_records(before=17)
        assert state(fan_out, "accept-gap", "--yes").code == 0
        fan_out.run()
        assert fan_out.ids("db.a") == [*range(5), 17, 18, 19]
        assert fan_out.ids("db.b") == list(range(5, 10))

    def test_an_operator_who_is_stopped_after_the_ledger_decides_again(self, fan_out, state):
        first = fan_out.head("db.a")
        fan_out.send(range(10, 15))
        fan_out.run()
        fan_out.roll_to(first, "db.a")
        fan_out.delete_records(before=12)
        parts = open_parts(load(fan_out.file))
        ledger = parts.ledger.load()
        known, stands = operations_of(parts).statuses(ledger)
        decision = accept_gap(known, parts.broker.survey([fan_out.topic]), "operator", stands)
        parts.ledger.change(ledger, decision.new, decision.note())
        with pytest.raises(RetentionOverrun):
            fan_out.run()
        assert state(fan_out, "accept-gap", "--yes").code == 0
        fan_out.run()
        assert fan_out.ids("db.a") == [*range(5), 12, 13, 14]

    def test_a_table_that_changed_in_the_meantime_learns_nothing(self, fan_out):
        first = fan_out.head("db.a")
        fan_out.send(range(10, 15))
        fan_out.run()
        second = fan_out.head("db.a")
        fan_out.roll_to(first, "db.a")
        fan_out.delete_records(before=12)
        parts = open_parts(load(fan_out.file))
        known, stands = operations_of(parts).statuses(parts.ledger.load())
        (changed,) = accept_gap(known, parts.broker.survey([fan_out.topic]), "operator", stands).marks
        fan_out.roll_to(second, "db.a")
        with pytest.raises(Fenced, match=r"db\.a changed during this command"):
            restate(parts.sink.place("db.a"), changed.view, changed.mark)
        assert fan_out.head("db.a") == second

    def test_a_lost_ledger_is_made_from_the_tables_first(self, fan_out, state):
        fan_out.send(range(10, 20))
        fan_out.delete_records(before=12)
        (fan_out.folder / "landonce.ledger").unlink()
        with pytest.raises(RetentionOverrun):
            fan_out.run()
        assert state(fan_out, "accept-gap", "--yes").code == 0
        fan_out.run()
        assert fan_out.ids("db.a") == [*range(5), *range(12, 20)]
        assert fan_out.ids("db.b") == list(range(5, 10))

    def test_a_table_of_format_version_3(self, pipeline, state):
        pipeline.write_sink(table="db.t", create=True, properties={"format-version": 3})
        pipeline.send(range(10))
        pipeline.run()
        assert pipeline.held().metadata.format_version == 3
        pipeline.send(range(10, 20))
        pipeline.delete_records(before=15)
        said = state(pipeline, "accept-gap", "--yes")
        assert said.code == 0, said.err
        assert pipeline.noted() == ["accept-gap"]
        pipeline.run()
        assert pipeline.ids() == [*range(10), *range(15, 20)]


class TestRebase:
    def test_a_recreated_topic_beside_the_old_rows(self, one, state):
        one.recreate_topic()
        one.send(range(100, 103))
        with pytest.raises(TopicRecreated):
            one.run()
        said = state(one, "rebase", "--yes")
        assert said.code == 0, said.err
        assert one.noted() == ["rebase"]
        one.run()
        assert one.ids() == [*range(10), 100, 101, 102]
        topics = set(one.held().scan().to_arrow()["_topic"].to_pylist())
        assert len(topics) == 2
        assert one.topic in topics

    def test_a_recreated_topic_in_a_fan_out(self, fan_out, state):
        fan_out.recreate_topic()
        fan_out.send(range(100, 103))
        fan_out.send(range(103, 105), kind="b")
        assert state(fan_out, "rebase", "--yes").code == 0
        fan_out.run()
        assert fan_out.ids("db.a") == [*range(5), 100, 101, 102]
        assert fan_out.ids("db.b") == [*range(5, 10), 103, 104]

    def test_a_pending_plan_must_be_dropped_by_name(self, fan_out, state):
        prepare(fan_out, 10, 12)
        fan_out.recreate_topic()
        fan_out.send(range(100, 103))
        said = state(fan_out, "rebase", "--yes")
        assert said.code == 3
        assert "--drop-pending" in said.err
        assert state(fan_out, "rebase", "--drop-pending", "--yes").code == 0
        fan_out.run()
        assert fan_out.ids("db.a") == [*range(5), 100, 101, 102]

    def test_refuses_politely_when_nothing_changed(self, one, state):
        assert "agree on the cluster" in state(one, "rebase", "--yes").err


class TestPlans:
    def test_fill_is_not_for_iceberg(self, one, state):
        said = state(one, "fill", "--yes")
        assert said.code == 1
        assert "lands whole, with its position, or not at all" in said.err

    def test_one_table_never_needs_accept_change(self, one, state):
        assert "applies from the next batch on" in state(one, "accept-change", "--yes").err

    def test_a_fan_out_settles_by_the_present_file(self, fan_out, state, check):
        fan_out.send(range(10, 12))
        prepare(fan_out, 10, 12)
        assert "landonce state accept-change" in check(fan_out).out
        with pytest.raises(PlanChanged):
            fan_out.run()
        said = state(fan_out, "accept-change", "--yes")
        assert said.code == 0, said.err
        assert "Tables that already hold the batch keep it" in said.out
        fan_out.run()
        assert fan_out.ids("db.a") == [*range(5), 10, 11]


class TestAcceptPosition:
    """A table that somebody rewrote without the values of its coordinates, and whose history is gone: nobody can tell how far it was."""

    def lose_history(self, pipeline, name="db.t"):
        table = pipeline.held(name)
        rows = table.scan().to_arrow()
        for each in COLUMNS:
            at = rows.column_names.index(each)
            rows = rows.set_column(at, rows.field(at), pa.nulls(rows.num_rows, rows.field(at).type))
        table.overwrite(rows)
        pipeline.forget_history(name)

    def test_the_copy_counts(self, pipeline, state, check):
        pipeline.write_sink(table="db.t", create=True)
        pipeline.send(range(10))
        pipeline.run()
        assert "not in doubt" in state(pipeline, "accept-position", "--yes").err
        self.lose_history(pipeline)
        pipeline.send(range(10, 12))
        with pytest.raises(PositionUncertain):
            pipeline.run()
        found = check(pipeline)
        assert found.code == 1
        assert f"landonce state accept-position {pipeline.file}" in found.out
        said = state(pipeline, "accept-position", "--yes")
        assert said.code == 0, said.err
        assert "all of batch 1" in said.out
        assert f"{pipeline.topic}[0] at 10" in said.out
        assert pipeline.noted() == ["accept-position"]
        pipeline.run()
        assert pipeline.ids() == list(range(12))
        assert "not in doubt" in state(pipeline, "accept-position", "--yes").err

    def test_one_table_of_a_fan_out(self, pipeline, state, check):
        pipeline.write_sink(table="db.{kind}", create=True)
        pipeline.send(range(5))
        pipeline.send(range(5, 10), kind="b")
        pipeline.run()
        self.lose_history(pipeline, "db.a")
        pipeline.send(range(10, 12))
        with pytest.raises(PositionUncertain):
            pipeline.run()
        assert "db.a" in check(pipeline).out
        assert "table db.a: uncertain" in state(pipeline, "show").out
        assert "not in doubt" in state(pipeline, "accept-position", "db.b", "--yes").err
        assert "no table db.c" in state(pipeline, "accept-position", "db.c", "--yes").err
        said = state(pipeline, "accept-position", "db.a", "--yes")
        assert said.code == 0, said.err
        pipeline.run()
        assert pipeline.ids("db.a") == [*range(5), 10, 11]
        assert pipeline.ids("db.b") == list(range(5, 10))


class TestAcceptPositionByRows:
    """Rolled back to a snapshot of somebody else, and all others expired: no snapshot is left that one could roll forward to."""

    def foreign(self, pipeline, name):
        """Somebody else's row."""
        table = pipeline.held(name)
        rows = table.scan().to_arrow().slice(0, 1).to_pylist()
        table.append(pa.Table.from_pylist([{**rows[0], "id": 1000, "_topic": "elsewhere"}], table.schema().as_arrow()))
        return pipeline.head(name)

    def set_back(self, pipeline, name):
        middle = self.foreign(pipeline, name)
        pipeline.send(range(20, 25))
        pipeline.send(range(30, 35), partition=1)
        pipeline.run()
        pipeline.roll_to(middle, name)
        pipeline.forget_history(name)

    def test_what_the_rows_lack_is_delivered_again(self, kafka, new_topic, tmp_path, state):
        pipeline = Operated(kafka, tmp_path, new_topic(partitions=2))
        pipeline.write_sink(table="db.t", create=True)
        pipeline.send(range(10))
        pipeline.run()
        self.set_back(pipeline, "db.t")
        with pytest.raises(PositionUncertain, match=re.escape("accept-position {file} --by-rows")):
            pipeline.run()
        said = state(pipeline, "accept-position", "--by-rows", "--yes")
        assert said.code == 0, said.err
        assert f"{pipeline.topic}[0] at 10" in said.out
        assert f"{pipeline.topic}[1] at 0" in said.out
        assert "at most 10 records" in said.out
        assert pipeline.noted() == ["accept-position"]
        pipeline.run()
        whole = [*range(10), *range(20, 25), *range(30, 35), 1000]
        assert pipeline.ids() == whole
        pipeline.run()
        assert pipeline.ids() == whole
        assert "not in doubt" in state(pipeline, "accept-position", "--by-rows", "--yes").err

    def test_one_table_of_a_fan_out_gets_it_alone(self, kafka, new_topic, tmp_path, state):
        pipeline = Operated(kafka, tmp_path, new_topic(partitions=2))
        pipeline.write_sink(table="db.{kind}", create=True)
        pipeline.send(range(5))
        pipeline.send(range(5, 10), kind="b")
        pipeline.run()
        self.set_back(pipeline, "db.a")
        with pytest.raises(PositionUncertain, match=re.escape("db.a --by-rows")):
            pipeline.run()
        said = state(pipeline, "accept-position", "db.a", "--by-rows", "--yes")
        assert said.code == 0, said.err
        pipeline.send([40])
        pipeline.run()
        assert pipeline.ids("db.a") == [*range(5), *range(20, 25), *range(30, 35), 40, 1000]
        assert pipeline.ids("db.b") == list(range(5, 10))

    def test_rows_without_coordinates_do_not_say_it(self, pipeline, state):
        pipeline.write_sink(table="db.t", create=True)
        pipeline.send(range(10))
        pipeline.run()
        TestAcceptPosition().lose_history(pipeline)
        with pipeline.held("db.t").update_schema() as change:
            for name in COLUMNS:
                change.delete_column(name)
        said = state(pipeline, "accept-position", "--by-rows", "--yes")
        assert said.code == 3
        assert "its position cannot be found from its rows" in said.err


class TestForgetTable:
    def test_a_new_table_gets_new_records_only(self, fan_out, state, check):
        fan_out.catalog.drop_table("db.a")
        fan_out.send(range(10, 12))
        with pytest.raises(TableReplaced):
            fan_out.run()
        assert f"landonce state forget-table {fan_out.file} db.a" in check(fan_out).out
        assert "table db.a: missing" in state(fan_out, "show").out
        assert "create the table" in state(fan_out, "forget-table", "db.a", "--replay", "--yes").err
        said = state(fan_out, "forget-table", "db.a", "--yes")
        assert said.code == 0, said.err
        assert fan_out.journal() == ["forget-table"]
        fan_out.run()
        assert fan_out.ids("db.a") == [10, 11]
        assert fan_out.ids("db.b") == list(range(5, 10))

    def test_with_replay_it_is_filled_up_alone(self, fan_out, state):
        make_again(fan_out, "db.a")
        fan_out.send(range(10, 12))
        with pytest.raises(TableReplaced):
            fan_out.run()
        said = state(fan_out, "forget-table", "db.a", "--replay", "--yes")
        assert said.code == 0, said.err
        assert "At most 10 records are read again, for this table alone" in said.out
        fan_out.run()
        assert fan_out.ids("db.a") == [*range(5), 10, 11]
        assert fan_out.ids("db.b") == list(range(5, 10))

    def test_with_replay_beyond_what_kafka_has(self, fan_out, state):
        make_again(fan_out, "db.a")
        fan_out.delete_records(before=3)
        said = state(fan_out, "forget-table", "db.a", "--replay", "--yes")
        assert "accept-gap" in said.out
        with pytest.raises(RetentionOverrun):
            fan_out.run()
        assert state(fan_out, "accept-gap", "--yes").code == 0
        fan_out.run()
        assert fan_out.ids("db.a") == [3, 4]

    def test_refuses_politely(self, fan_out, one_file, state):
        assert "still the one that the ledger knows" in state(fan_out, "forget-table", "db.a", "--yes").err
        assert "the ledger knows no table a" in state(fan_out, "forget-table", "a", "--yes").err
        said = state(one_file, "forget-table", "db.t", "--yes")
        assert "its own ledger" in said.err

    @pytest.fixture
    def one_file(self, kafka, new_topic, tmp_path_factory):
        made = Operated(kafka, tmp_path_factory.mktemp("one"), new_topic())
        made.write_sink(table="db.t")
        return made
