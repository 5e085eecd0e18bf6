"""The operator's commands with real servers: they explain, ask, change the ledger once, and leave a note."""

import io
import json

import pytest
from pipelines import SmallPipeline, landonce
from said import says

from landonce.errors import Fenced, RetentionOverrun, TopicRecreated
from landonce.ledger.open import sqlite_ledger
from landonce.protocol.blocks import Kind
from landonce.protocol.ledger import taken
from landonce.protocol.ranges import Partition
from landonce.protocol.source import Start, bind
from landonce.read.kafka.broker import Broker

pytestmark = pytest.mark.integration


@pytest.fixture
def state(capsys, monkeypatch):
    return lambda pipeline, command, *options: landonce(capsys, monkeypatch, "state", command, pipeline.file, *options)


@pytest.fixture
def pipeline(kafka, clickhouse, new_topic, new_table, tmp_path):
    """One partition with 100 records, of which 40 are committed."""
    made = SmallPipeline(kafka, clickhouse, tmp_path, new_topic(), new_table())
    made.write_file()
    made.make_table()
    made.produce(json.dumps({"id": at}).encode() for at in range(100))
    made.land(range(40))
    made.commit({0: (0, 40)})
    return made


def view(pipeline):
    return Broker(pipeline.kafka.bootstrap_servers, {}).survey([pipeline.topic])


def journal(pipeline):
    return sqlite_ledger(pipeline.folder / "clicks.ledger", pipeline.table).journal()


class TestShow:
    def test_in_words(self, pipeline, state):
        pipeline.prepare((0, 40, 70))
        said = state(pipeline, "show")
        assert said.code == 0
        assert f"{pipeline.topic}[0]: next offset 40, since 0, lag 60, retention is 40 offsets behind" in said.out
        assert "batch 2 is pending (deliver): 1 blocks, at most 30 records" in said.out

    def test_as_a_document(self, pipeline, state):
        document = state(pipeline, "show", "--json").json
        (position,) = document["ledger"]["positions"]
        assert (position["committed"], position["lag"], position["stable_end"]) == (40, 60, 100)
        assert document["ledger"]["pending"] is None
        assert document["journal"] == []

    def test_an_overrun_is_shown(self, pipeline, state):
        pipeline.delete_records(before=55)
        assert "OVERRUN by 15 offsets" in state(pipeline, "show").out

    def test_without_a_ledger_nothing_is_made(self, pipeline, state):
        (pipeline.folder / "clicks.ledger").unlink()
        said = state(pipeline, "show")
        assert said.code == 0
        assert "no ledger yet" in said.out
        assert state(pipeline, "show", "--json").json["ledger"] is None
        assert not (pipeline.folder / "clicks.ledger").exists()


class TestAcceptGap:
    def test_goes_on_behind_the_gap_and_records_it(self, pipeline, state):
        pipeline.delete_records(before=55)
        with pytest.raises(RetentionOverrun):
            bind(pipeline.ledger(), view(pipeline), Start.EARLIEST)
        said = state(pipeline, "accept-gap", "--yes")
        assert said.code == 0
        assert "the position moves from 40 to 55" in said.out
        assert "At most 15 records" in said.out
        assert "The target holds 0 rows of these offsets now." in said.out
        bind(pipeline.ledger(), view(pipeline), Start.EARLIEST)
        (note,) = journal(pipeline)
        assert note.action == "accept-gap"
        assert "from 40 to 55" in note.detail
        assert "accept-gap" in state(pipeline, "show").out

    def test_fences_a_driver_that_runs(self, pipeline, state):
        ledger = sqlite_ledger(pipeline.folder / "clicks.ledger", pipeline.table)
        driver = ledger.change(pipeline.ledger(), taken(pipeline.ledger(), "driver"))
        pipeline.delete_records(before=55)
        assert state(pipeline, "accept-gap", "--yes").code == 0
        with pytest.raises(Fenced):
            ledger.change(driver, taken(driver, "driver"))

    def test_asks_and_takes_no_for_an_answer(self, pipeline, state, monkeypatch):
        pipeline.delete_records(before=55)
        before = pipeline.ledger()
        for answer in ("n\n", "\n", ""):
            monkeypatch.setattr("sys.stdin", io.StringIO(answer))
            said = state(pipeline, "accept-gap")
            assert said.code == 1
            assert "the position moves from 40 to 55" in said.out
            assert pipeline.ledger() == before
        assert journal(pipeline) == ()

    def test_crops_a_pending_plan(self, pipeline, state):
        pipeline.prepare((0, 40, 50), (0, 50, 70))
        pipeline.delete_records(before=55)
        said = state(pipeline, "accept-gap", "--yes")
        assert "keeps what is left: 1 of 2 blocks" in said.out
        (block,) = pipeline.ledger().pending.blocks
        assert [(each.first, each.end) for each in block.ranges] == [(55, 70)]

    def test_refuses_politely_when_there_is_no_gap(self, pipeline, state):
        before = pipeline.ledger()
        said = state(pipeline, "accept-gap", "--yes")
        assert said.code == 1
        assert "NothingToDo" in said.err
        assert "there is no gap" in said.err
        assert pipeline.ledger() == before

    def test_refuses_politely_when_there_is_no_ledger(self, pipeline, state):
        (pipeline.folder / "clicks.ledger").unlink()
        said = state(pipeline, "accept-gap", "--yes")
        assert said.code == 1
        assert "no position yet" in said.err
        assert not (pipeline.folder / "clicks.ledger").exists()


class TestRebase:
    def test_a_recreated_topic(self, pipeline, state):
        old = pipeline.ledger()
        pipeline.recreate_topic()
        pipeline.produce([b'{"id": 1}'] * 3)
        with pytest.raises(TopicRecreated):
            bind(pipeline.ledger(), view(pipeline), Start.EARLIEST)
        said = state(pipeline, "rebase", "--yes")
        assert said.code == 0
        new = pipeline.ledger()
        topic_id = dict(view(pipeline).topic_ids)[pipeline.topic]
        assert new.label(pipeline.topic) == f"{pipeline.topic}@{topic_id[:8]}".replace("/", "_").replace("+", "-")
        assert new.committed() == {Partition(pipeline.topic, 0): 0}
        assert new.lineage != old.lineage
        assert "At most 3 records" in said.out
        bind(new, view(pipeline), Start.EARLIEST)
        assert "was rebased" in state(pipeline, "show").out

    def test_to_latest(self, pipeline, state):
        pipeline.recreate_topic()
        pipeline.produce([b'{"id": 1}'] * 3)
        said = state(pipeline, "rebase", "--to", "latest", "--yes")
        assert pipeline.ledger().committed() == {Partition(pipeline.topic, 0): 3}
        assert says(said.out, "3 records that are in them now will never be delivered")

    def test_a_pending_plan_must_be_dropped_by_name(self, pipeline, state):
        pipeline.prepare((0, 40, 70))
        pipeline.recreate_topic()
        said = state(pipeline, "rebase", "--yes")
        assert said.code == 3
        assert "PlanPending" in said.err
        assert f"landonce state rebase {pipeline.file} --drop-pending" in said.err
        said = state(pipeline, "rebase", "--drop-pending", "--yes")
        assert said.code == 0
        assert pipeline.ledger().pending is None

    @pytest.mark.parametrize("command", [("rebase", "--drop-pending"), ("accept-gap",)], ids=["rebase", "accept-gap"])
    def test_dead_letters_of_a_plan_that_is_given_up_count(self, pipeline, state, command):
        """They may be the only copy of their records."""
        held = pipeline.prepare((0, 40, 70))
        name = f"{pipeline.table}.batch-{held.pending.batch:09d}-{held.lineage[:8]}-0000.jsonl"
        pipeline.dead.mkdir()
        letter = json.dumps({"topic": pipeline.topic, "partition": 0, "offset": 50, "reason": "broken"}) + "\n"
        (pipeline.dead / f"{name}.staged").write_text(letter)
        pipeline.delete_records(before=80)
        assert state(pipeline, *command).code != 0, "nobody said yes"
        assert not (pipeline.dead / name).exists()
        assert state(pipeline, *command, "--yes").code == 0
        assert (pipeline.dead / name).read_text() == letter
        assert len(list(pipeline.dead.iterdir())) == 1

    def test_refuses_politely_when_nothing_changed(self, pipeline, state):
        said = state(pipeline, "rebase", "--yes")
        assert said.code == 1
        assert "agree on the cluster" in said.err


class TestFill:
    def test_the_plan_is_to_be_filled(self, pipeline, state):
        pipeline.prepare((0, 40, 70))
        pipeline.land(range(45, 50))
        said = state(pipeline, "fill", "--yes")
        assert said.code == 0
        assert "The target holds 5 rows of these offsets now." in said.out
        assert pipeline.ledger().pending.kind is Kind.FILL
        assert state(pipeline, "fill", "--yes").code == 1

    def test_refuses_politely_without_a_plan(self, pipeline, state):
        assert "nothing to fill" in state(pipeline, "fill", "--yes").err


class TestAcceptChange:
    def test_takes_the_present_fingerprint(self, pipeline, state):
        pipeline.prepare((0, 40, 70), fingerprint="of another file")
        said = state(pipeline, "accept-change", "--yes")
        assert said.code == 0
        assert "stay as the old file made them" in said.out
        assert pipeline.ledger().pending.fingerprint != "of another file"
        again = state(pipeline, "accept-change", "--yes")
        assert again.code == 1
        assert "made with this pipeline file" in again.err

    def test_refuses_politely_without_a_plan(self, pipeline, state):
        assert "applies from the next batch on" in state(pipeline, "accept-change", "--yes").err


class TestUpAndDown:
    def test_addresses_a_snippet_and_the_next_command(self, capsys, monkeypatch, in_folder):
        said = landonce(capsys, monkeypatch, "up", "--folder", "stack")
        try:
            assert said.code == 0
            assert "landonce check clicks.yaml" in said.out
            document = landonce(capsys, monkeypatch, "up", "--folder", "stack", "--json").json
            assert document["kafka"]["bootstrap_servers"] in said.out
            snippet = said.out[said.out.index("pipeline: clicks") : said.out.index("Next:")]
            from landonce.sinks.pipeline_file import parse

            config = parse(snippet, in_folder / "clicks.yaml")
            assert config.source.kafka.bootstrap_servers == document["kafka"]["bootstrap_servers"]
        finally:
            assert landonce(capsys, monkeypatch, "down", "--folder", "stack").code == 0
