"""What landonce 0.1 wrote opens: ledgers, a table with its ledger, dead letters, marks. A plan that it left pending is refused in a sentence."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from landonce import errors
from landonce.engine import dead_letters
from landonce.ledger.as_text import state_from_text, state_to_text
from landonce.ledger.block_ledgers import PushLedger, PushPlace, TargetLedger
from landonce.ledger.open import sqlite_ledger
from landonce.ledger.sql import SqlLedger
from landonce.protocol.batch import Machine, Policy
from landonce.protocol.block_rows import Claim
from landonce.protocol.blocks import Block, Plan
from landonce.protocol.claimed import Claimed
from landonce.protocol.deduplicating import Deduplicating
from landonce.protocol.ledger import LedgerState, Note, Position, TableMark, Totals, prepared, taken
from landonce.protocol.own_ledger import own_state
from landonce.protocol.packing import Limits
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.reasons import Code
from landonce.protocol.receipt import Receipt
from landonce.protocol.source import Extent, SourceView
from landonce.protocol.steps import Effect, Step, Surveyed
from landonce.protocol.transactional import Transactional
from landonce.sinks.iceberg.marks import copy_name, copy_of, own_view
from landonce.sinks.sql.fingerprint import refuse_replaced
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.sql.table import SqlTable

OLD = Path(__file__).parents[1] / "of_0_1"
P, Q = Partition("clicks", 0), Partition("clicks", 1)
POSITIONS = ((P, Position(10, 14)), (Q, Position(0, 4)))
VIEW = SourceView("cluster-1", (("clicks", "kafka-topic-id-1"),), ((P, Extent(10, 99)), (Q, Extent(0, 99))))


def restored(folder: Path, name: str) -> Path:
    path = folder / f"{name}.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((OLD / f"{name}.sql").read_text())
    return path


def after_survey(policy: Policy, state: LedgerState) -> Effect:
    """What a start does next, once it knows what the brokers have."""
    machine = Machine(policy, step=Step.SURVEY, ledger=state)
    return machine.advance(Surveyed(VIEW, 0, Limits(9, 9), 10))[1]


def changed(ledger: SqlLedger) -> LedgerState:
    """The ledger takes what this landonce writes, and gives it back."""
    state = ledger.load()
    assert state is not None
    state = ledger.change(state, taken(state, "driver of today"), Note("now", "upgrade", ""))
    blocks = (Block((Range(P, 14, 20),), "events"),)
    state = ledger.change(state, prepared(state, Plan(state.batch + 1, blocks, "today", 0)))
    assert ledger.load() == state
    assert [note.action for note in ledger.journal()][-1] == "upgrade"
    return state


def test_a_ledger_goes_on_where_0_1_stopped(tmp_path: Path) -> None:
    with closing(sqlite_ledger(restored(tmp_path, "ledger"), "stopped")) as ledger:
        state = ledger.load()
        assert state is not None
        assert (state.positions, state.totals, state.pending) == (POSITIONS, Totals(6, 1, 1), None)
        assert state.tables == (("events", TableMark("uuid-of-events", 1)),)
        assert [note.action for note in ledger.journal()] == ["create", "rebase"]
        assert after_survey(Deduplicating("events", "today"), state).step is Step.KILL
        changed(ledger)


@pytest.mark.parametrize("policy", [Deduplicating, Transactional, Claimed])
def test_a_plan_that_0_1_left_pending_is_refused(policy: type[Policy], tmp_path: Path) -> None:
    """It is replayed literally or not at all: what 0.1 would have written of these records, nobody knows."""
    with closing(sqlite_ledger(restored(tmp_path, "ledger"), "killed")) as ledger:
        state = ledger.load()
    assert state is not None
    assert state.pending is not None
    with pytest.raises(errors.PlanChanged, match=r"^the pending plan was made with another [^.]*\. "):
        after_survey(policy("events", "today"), state)
    assert isinstance(after_survey(policy("events", state.pending.fingerprint), state), Effect)


def test_a_state_that_a_plug_in_kept_as_text() -> None:
    text = (OLD / "ledger.txt").read_text()
    state = state_from_text(text)
    assert (state.positions, state.pending is not None) == (POSITIONS, True)
    assert json.loads(state_to_text(state)) == json.loads(text)


@pytest.mark.parametrize(("name", "landed"), [("target", [False]), ("target_killed", [True, False])])
def test_a_table_with_its_ledger(name: str, landed: list[bool], tmp_path: Path) -> None:
    """It is the table that 0.1 wrote to. An empty one in its place is refused."""
    path = restored(tmp_path, name)
    sink = SqlSink(f"sqlite:///{path}", "events", "payments")
    with (
        closing(sink.open_table()) as table,
        closing(TargetLedger(sqlite_ledger(path, "payments").database, "payments")) as ledger,
    ):
        assert isinstance(table, SqlTable)
        assert refuse_replaced(table, ledger).startswith("schema ")
        state = ledger.load()
        assert state is not None
        assert (state.positions, state.totals) == (POSITIONS, Totals(7, 0, 1))
        if state.pending is None:
            assert table.look([(P, 14), (Q, 4)]).ends == ()
            changed(ledger)
            assert [row.claim.owner for row in ledger.blocks(2)] == ["driver of today"]
        else:
            receipts = [row.receipt for row in ledger.blocks(state.pending.batch)]
            assert [each is not None for each in receipts] == landed
            assert Receipt.from_json(str(receipts[0])) == Receipt(read=4, landed=4)
            with pytest.raises(errors.PlanChanged):
                after_survey(Transactional("events", "today"), state)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("ALTER TABLE events RENAME TO old; CREATE TABLE events AS SELECT * FROM old WHERE 0")
    with pytest.raises(errors.TableReplaced, match="is not the one that"):
        refuse_replaced(sink.open_table(), TargetLedger(sqlite_ledger(path, "payments").database, "payments"))


def test_blocks_that_0_1_pushed(tmp_path: Path) -> None:
    """One has landed, and what became of the other's attempt is not known: it is still claimed."""
    place = PushPlace(restored(tmp_path, "pushes"), "pushes")
    with closing(place.open()) as ledger:
        assert isinstance(ledger, PushLedger)
        state = ledger.load()
        assert state is not None
        state = ledger.change(state, taken(state, "driver of today"))
        first, second = ledger.status(1).rows
        assert (first.mark.value, second.mark.value, second.nonce, second.wait) == ("AFTER", "CLAIMED", "nonce-2", 1000)
        assert {first.claim, second.claim} == {Claim.of(state)}
        assert Receipt.from_json(str(first.receipt)).landed == 4


def test_dead_letters(tmp_path: Path) -> None:
    for file in OLD.glob("*.jsonl"):
        shutil.copy(file, tmp_path)
    held = list(dead_letters.with_refusals(tmp_path, "payments"))
    assert [refused for _, refused in held] == [False, False, False, True]
    assert [dead_letters.place_of(entry)[1:] for entry, _ in held] == [(0, 11), (0, 13), (1, 2), (1, 3)]
    assert [dead_letters.as_bytes(entry, "value") for entry, _ in held] == [
        b'{"id": "x"}',
        b"\xff\xfe",
        None,
        b'{"id": 9}',
    ]
    assert dead_letters.as_bytes(held[0][0]["headers"][1], "value") == b"\xff"
    first = dead_letters.reason_of(held[0][0])
    assert (first.code, str(first)) == (Code.of(None), "field `id`: 'x' is not a BIGINT")


def test_the_mark_of_an_iceberg_table(tmp_path: Path) -> None:
    summary = json.loads((OLD / "summary.json").read_text())
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("db")
    rows = pa.table({"_topic": ["clicks"], "_partition": pa.array([0], pa.int32()), "_offset": [13]})
    table = catalog.create_table("db.events", rows.schema)
    table.append(rows, summary)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    with table.transaction() as properties:
        properties.set_properties({copy_name("lake", "main"): copy_of(summary, snapshot.snapshot_id)})
    view = own_view(table.metadata, "lake", "main")
    state = own_state(view)
    assert state is not None
    assert view.valid == view.copy
    assert (state.positions, state.totals, state.labels) == (POSITIONS, Totals(6, 1, 1), (("clicks", "clicks#2"),))
    assert view.mark is not None
    assert (view.mark.started, view.mark.tops) == (((P, 10), (Q, 0)), ((P, 13), (Q, 3)))
    assert view.mark.letters_in == "/var/lib/landonce/dead"
