"""Guards that exactly-once rests on, each at the very place where it decides: one offset, one owner, one attempt further, and it must refuse."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from broken_transactions import SqliteTransactions
from test_push_ledgers import SPOT, prepared

import landonce
from landonce.engine import task as tasks
from landonce.engine.committing import CommitPerformer
from landonce.engine.perform import InsertPerformer, PushPerformer
from landonce.engine.publish import NoLetters
from landonce.engine.task import guarded
from landonce.errors import Fenced, OutcomeUnknown, RetentionOverrun
from landonce.ledger.block_ledgers import PushLedger, PushPlace
from landonce.ledger.memory import MemoryLedger
from landonce.protocol import ledger as states
from landonce.protocol.batch import Machine
from landonce.protocol.block_rows import Claim, PushRow, over
from landonce.protocol.blocks import Block, Kind, Plan
from landonce.protocol.claimed import Claimed
from landonce.protocol.deduplicating import Deduplicating
from landonce.protocol.ledger import LedgerState, Totals
from landonce.protocol.match_ranges import Incoming
from landonce.protocol.packing import Limits
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.receipt import BlockResult, Fate, Receipt
from landonce.protocol.settle import Mode
from landonce.protocol.steps import Await, LookAtClaims, LookAtTables, Resolve, Resolved, Step, Surveyed, Write
from landonce.query.rows import QueryWorkers
from landonce.read.schema.ddl import parse_schema
from landonce.sinks.deduplicating import InsertTask, InsertWorker
from landonce.sinks.wrapped.worker import WrappedRecipe
from landonce.testing.cases_transactions import RECEIPT, _prepared, _settled

GIVEN = parse_schema("id BIGINT")
NOTHING: Any = SimpleNamespace()
BLOCK = Block((Range(Partition("t", 0), 0, 5),), "t")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[PushLedger]:
    with closing(PushPlace(tmp_path / "ledger", "p").open()) as opened:
        yield opened


def other_owner(state: LedgerState) -> Claim:
    """A ledger that was restored has handed out the same epoch to another driver."""
    return replace(Claim.of(state), owner="another")


# Who may write a block.


@pytest.mark.parametrize("harmless", [True, False])
def test_an_owner_of_the_same_epoch_claims_no_block_of_another(ledger: PushLedger, harmless: bool) -> None:
    state = prepared(ledger)
    assert ledger.claim(SPOT, other_owner(state), "theirs", harmless=harmless) is None
    assert not ledger.skip(SPOT, other_owner(state), "{}")
    assert ledger.claim(SPOT, Claim.of(state), "mine", harmless=harmless) is not None
    assert ledger.reclaim(SPOT, other_owner(state), "theirs", "mine") is None
    assert not ledger.found(SPOT, other_owner(state), "mine", "{}")
    assert ledger.reclaim(SPOT, Claim.of(state), "again", "mine") is not None


def test_a_claim_that_was_not_made_is_not_taken_for_ones_own(ledger: PushLedger) -> None:
    """The row is claimed, by somebody else."""
    state = prepared(ledger)
    assert ledger.claim(SPOT, Claim.of(state), "first", harmless=False) is not None
    assert ledger.claim(SPOT, Claim.of(state), "second", harmless=False) is None


def test_a_transaction_of_the_same_epoch_and_another_owner_writes_nothing(tmp_path: Path) -> None:
    site = SqliteTransactions(tmp_path)
    state = _prepared(site, 1)
    assert _settled(site, replace(state, owner="another"), 0, RECEIPT).fate is Fate.HALTED
    assert site.held() == []
    assert _settled(site, state, 0, RECEIPT).fate is Fate.LANDED


def test_tables_are_not_looked_at_for_a_driver_that_another_of_the_same_epoch_has_replaced() -> None:
    kept = MemoryLedger("p")
    mine = kept.change(
        state := kept.create(LedgerState("p", "lineage", cluster_id="c")), states.taken(state, "another")
    )
    run, nothing = SimpleNamespace(topics=tuple), lambda _: ()
    tables: Any = SimpleNamespace(own=None, run=run, tables=(), views=nothing, discover=lambda: (), holds=nothing)
    performer = CommitPerformer(NOTHING, tables, QueryWorkers(), NOTHING, kept)
    assert performer.perform(LookAtTables(), mine) is not None
    with pytest.raises(Fenced):
        performer.perform(LookAtTables(), replace(mine, owner="me"))


# Attempts that may still take effect.


def test_an_attempt_is_over_when_its_time_has_passed_and_not_before() -> None:
    row = PushRow(0, Claim(1, "me"), mark=NOTHING, claimed_at=1_000, wait=500)
    assert not over(row, 1_500, 200), "its last moment is its own"
    assert over(row, 1_501, 200)
    assert not over(row, 1_700, 700), "the sink says now that it takes longer"
    assert over(row, 1_701, 700)


def test_a_pipeline_waits_until_every_claimed_attempt_is_over(ledger: PushLedger) -> None:
    state = prepared(ledger)
    for number in (0, 1):
        assert ledger.claim(replace(SPOT, number=number), Claim.of(state), f"lost{number}", harmless=False)
    settings: Any = SimpleNamespace(wait=600_000)
    performer = PushPerformer(settings, NOTHING, NOTHING, NOTHING, ledger)
    done = threading.Event()

    def wait() -> None:
        performer.perform(Await(0), state)
        done.set()

    threading.Thread(target=wait, daemon=True).start()
    assert not done.wait(0.8), "two attempts may still take effect"
    an_hour_passes(ledger, 0)
    assert not done.wait(0.8), "one attempt may still take effect"
    an_hour_passes(ledger, 1)
    assert done.wait(30)


def an_hour_passes(ledger: PushLedger, number: int) -> None:
    with ledger.database.writing() as connection:
        connection.exec_driver_sql(
            f"UPDATE landonce_push SET claimed_at = claimed_at - 3600000 WHERE number = {number}"
        )


@pytest.mark.parametrize("can_probe", [True, False])
def test_a_query_pushes_no_block_again_of_which_nobody_can_tell_whether_it_arrived(
    ledger: PushLedger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_probe: bool
) -> None:
    """Where there is a probe, the worker asks it."""
    state = prepared(ledger, 1)
    assert ledger.claim(SPOT, Claim.of(state), "lost", harmless=False)
    an_hour_passes(ledger, 0)
    probe = (lambda _: True) if can_probe else None
    sink = landonce.wrap(print, idempotent=False, probe=probe, settles_within=600, name="s")
    recipe = WrappedRecipe(
        pipeline="p", source=GIVEN, target=GIVEN, sink=sink, ledger=PushPlace(tmp_path / "ledger", "p"), shuffled=True
    )
    policy = Claimed("s", "f", once=True, block_rows=5, can_probe=can_probe, wait=sink.wait)
    performer = PushPerformer(policy, recipe, QueryWorkers(), NoLetters(), ledger)
    assert state.pending is not None
    came = Incoming(state.pending.blocks[0].ranges, state.cluster_id, state.topic_ids)
    machine = Machine(policy, ledger=state, surveyed=Surveyed(came, 0, Limits(5, 5), 0), step=Step.LOOK)
    seen = performer.perform(LookAtClaims(state.pending), state)
    if can_probe:
        _, effect = machine.advance(seen)
        assert isinstance(effect, Write)
    else:
        with pytest.raises(OutcomeUnknown):
            machine.advance(seen)


# What proves that a block landed.


@pytest.mark.parametrize(("number", "again"), [(None, False), (0, False), (1, True), (2, True)])
def test_a_task_that_spark_runs_again_knows_it(
    number: int | None, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = None if number is None else SimpleNamespace(attemptNumber=lambda: number)
    monkeypatch.setattr(tasks, "TaskContext", SimpleNamespace(get=lambda: context))
    assert tasks.rerun() is again


@pytest.mark.parametrize(
    ("rows", "atomic", "kind", "whole"),
    [
        (3, True, Kind.DELIVER, True),
        (0, True, Kind.DELIVER, False),
        (3, False, Kind.DELIVER, False),
        (3, True, Kind.RECONCILE, False),
    ],
    ids=["some rows of a block that lands whole", "no rows", "it may land in part", "it was cut otherwise before"],
)
def test_rows_of_a_pending_block_prove_it_only_where_it_lands_whole(
    rows: int, atomic: bool, kind: Kind, whole: bool
) -> None:
    writer = SimpleNamespace(count=lambda _: rows, atomic=atomic)
    recipe: Any = SimpleNamespace(sink=SimpleNamespace(writer=lambda: writer))
    policy = Deduplicating("t", "f", once=True, block_rows=5)
    performer = InsertPerformer(policy, recipe, NOTHING, QueryWorkers(), NoLetters())
    plan = Plan(1, (BLOCK,), "f", 0, kind)
    resolved = performer.perform(Resolve(plan, (0,)), LedgerState("p", "lineage"))
    assert isinstance(resolved, Resolved)
    (found,) = resolved.found
    assert (found.landed, found.totals) == (whole, Totals(landed=rows) if whole else Totals())


@pytest.mark.parametrize(
    ("mode", "kind", "rows", "atomic", "fate"),
    [
        (Mode.RESOLVE, Kind.DELIVER, 5, True, Fate.LANDED),
        (Mode.RESOLVE, Kind.DELIVER, 0, True, Fate.HALTED),
        (Mode.RESOLVE, Kind.DELIVER, 5, False, Fate.HALTED),
        (Mode.RESOLVE, Kind.RECONCILE, 5, True, Fate.HALTED),
        (Mode.FIRST, Kind.DELIVER, 5, True, Fate.HALTED),
    ],
    ids=["landed", "no rows", "may be there in part", "cut otherwise", "never sent before"],
)
def test_records_that_are_gone_are_landed_only_where_their_rows_prove_it(
    mode: Mode, kind: Kind, rows: int, atomic: bool, fate: Fate, tmp_path: Path
) -> None:
    writer = SimpleNamespace(count=lambda _: rows, atomic=atomic)
    recipe: Any = SimpleNamespace(sink=SimpleNamespace(writer=lambda: writer), dead_letters=tmp_path, one_table=True)
    task = InsertTask(index=0, batch=1, plan="p", block=BLOCK, token="token", deadline=0, mode=mode, kind=kind)

    def gone() -> BlockResult:
        raise RetentionOverrun("gone")

    assert guarded(recipe, task, InsertWorker(recipe, task), gone).fate is fate


@pytest.mark.parametrize("lost", [1, -1], ids=["a record is lost", "a row too many"])
def test_an_account_that_does_not_balance_is_neither_side_right(lost: int) -> None:
    assert Receipt(10, 7, filtered=2, dead_lettered=1).balanced
    assert not Receipt(10 + lost, 7, filtered=2, dead_lettered=1).balanced
