"""The batch machine where no world leads: replies that do not belong to a step, what is not known yet, and a driver that is asked to stop."""

from __future__ import annotations

from dataclasses import replace

import pytest

from landonce import errors
from landonce.protocol.batch import Machine, Policy, begin, resolve
from landonce.protocol.block_rows import Claim, Mark, PushRow, PushRows
from landonce.protocol.blocks import Block, Plan
from landonce.protocol.claimed import Claimed, outcome_unknown
from landonce.protocol.deduplicating import Deduplicating
from landonce.protocol.ledger import LedgerState, Position
from landonce.protocol.marks import Mark as TableMark
from landonce.protocol.marks import TableStatus, TableView
from landonce.protocol.match_ranges import Incoming
from landonce.protocol.packing import Limits
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.snapshot import Snapshot
from landonce.protocol.source import Extent, SourceView
from landonce.protocol.steps import Change, Idle, Looked, Reply, Step, Stop, Survey, Surveyed
from landonce.protocol.transactional import Transactional

P = Partition("t", 0)
VIEW = SourceView("c", (("t", "id"),), ((P, Extent(0, 9)),))
CAME = Incoming((Range(P, 0, 9),), "c", (("t", "id"),))
STATE = LedgerState("p", "me", 1, "me", 3, "c", (("t", "id"),), ((P, Position(0, 0)),), batch=1)
PENDING = replace(STATE, pending=Plan(2, (Block((Range(P, 0, 9),), "t"),), "f", 0))
POLICIES = (Deduplicating, Snapshot, Transactional, Claimed)


def surveyed(source: SourceView | Incoming = VIEW, **more: bool) -> Surveyed:
    return Surveyed(source, 0, Limits(9, 9), 10, **more)


@pytest.mark.parametrize(
    ("policy", "step", "reply"),
    [
        *((policy, Step.SURVEY, None) for policy in POLICIES),
        *((policy, Step.AWAIT, None) for policy in (Snapshot, Transactional)),
        *((policy, Step.KILL, 7) for policy in (Snapshot, Transactional, Claimed)),
        *((policy, Step.LOOK, None) for policy in (Snapshot, Transactional, Claimed)),
        (Snapshot, Step.COMMIT, None),
        (Deduplicating, Step.KILL, None),
        (Deduplicating, Step.STOP, PushRows((), 0)),
    ],
)
def test_a_reply_that_does_not_belong_to_the_step_is_a_mistake(policy: type[Policy], step: Step, reply: Reply) -> None:
    machine = Machine(policy("t", "f"), step=step, ledger=PENDING, surveyed=surveyed())
    with pytest.raises(ValueError, match=f"step '{step.value}' does not take the reply"):
        machine.advance(reply)


def test_what_is_not_known_yet_is_not_made_up() -> None:
    machine, _ = begin(Deduplicating("t", "f"))
    with pytest.raises(ValueError, match="not acquired yet"):
        _ = machine.state
    with pytest.raises(ValueError, match="nothing was surveyed"):
        _ = machine.world
    with pytest.raises(ValueError, match="no pending plan"):
        _ = replace(machine, ledger=STATE).pending
    with pytest.raises(ValueError, match="does not bring again"):
        resolve(replace(machine, ledger=PENDING, surveyed=surveyed()), ())


@pytest.mark.parametrize("policy", POLICIES)
def test_a_driver_that_is_asked_to_stop_stops_but_a_batch_that_spark_brought_is_delivered(policy: type[Policy]) -> None:
    """Spark takes a batch for delivered that came to its end."""
    machine = Machine(policy("t", "f", block_rows=9), Step.BIND, STATE, looked=frozenset({P}), counted=True, tables=())
    _, effect = replace(machine, surveyed=surveyed(stop=True)).advance(STATE)
    assert isinstance(effect, Stop)
    _, effect = replace(machine, surveyed=surveyed(CAME, stop=True)).advance(STATE)
    assert isinstance(effect, Change)
    assert effect.step is Step.PREPARE


def test_a_driver_waits_for_records_and_stops_when_it_is_told_so() -> None:
    done = replace(STATE, positions=((P, Position(0, 9)),))
    machine = Machine(Deduplicating("t", "f"), Step.BIND, done, surveyed(), looked=frozenset({P}), counted=True)
    machine, effect = machine.advance(done)
    assert isinstance(effect, Idle)
    after, effect = machine.advance(True)
    assert (isinstance(effect, Survey), after.counted) == (True, False)
    assert isinstance(machine.advance(False)[1], Stop)


def test_a_batch_is_made_when_it_is_full_or_its_interval_is_over() -> None:
    machine = Machine(Transactional("t", "f"), Step.BIND, STATE, looked=frozenset({P}))
    for due, rows, step in ((False, 9, Step.PREPARE), (False, 10, Step.IDLE), (True, 10, Step.PREPARE)):
        world = Surveyed(VIEW, 0, Limits(rows, 9), 10, due=due)
        assert replace(machine, surveyed=world).advance(STATE)[1].step is step


def test_a_block_that_spark_does_not_bring_again_is_settled_by_its_row() -> None:
    nothing = Incoming((), "c", (("t", "id"),))
    machine = Machine(Claimed("t", "f", once=True, block_rows=9), Step.LOOK, PENDING, surveyed(nothing))
    with pytest.raises(errors.Fenced, match="another start of this query"):
        machine.advance(PushRows((), 0))
    _, effect = machine.advance(PushRows((PushRow(0, Claim(1, "me"), Mark.BEFORE),), 0))
    assert isinstance(effect, Change)
    assert (effect.step, effect.new.pending, effect.new.committed()) == (Step.REARM, None, {P: 0})


def test_nobody_asks_about_a_block_of_no_plan() -> None:
    with pytest.raises(ValueError, match="no pending plan"):
        outcome_unknown(STATE, PushRow(0, Claim(1, "me"), Mark.CLAIMED))


@pytest.mark.parametrize(("extents", "said"), [(((P, Extent(3, 9)),), "begins at 3"), ((), "begins at nowhere")])
def test_what_a_rollback_removed_and_kafka_deleted_is_not_skipped(
    extents: tuple[tuple[Partition, Extent], ...], said: str
) -> None:
    behind = TableStatus(TableView("a", "uuid"), ((P, 1),), behind=True)
    done = replace(STATE, positions=((P, Position(0, 5)),))
    world = surveyed(SourceView("c", (("t", "id"),), extents))
    with pytest.raises(errors.RetentionOverrun, match=said):
        Machine(Snapshot("t", "f"), Step.BIND, done, world, tables=(behind,)).advance(done)


def test_what_a_rollback_removed_is_read_again() -> None:
    behind = TableStatus(TableView("a", "uuid"), ((P, 1),), behind=True)
    done = replace(STATE, positions=((P, Position(0, 5)),))
    _, effect = Machine(Snapshot("t", "f"), Step.BIND, done, surveyed(), tables=(behind,)).advance(done)
    assert isinstance(effect, Change)
    assert effect.new.pending is not None
    assert effect.new.pending.blocks[0].ranges == (Range(P, 1, 5),)


def test_a_restored_ledger_takes_an_epoch_that_no_table_has_seen() -> None:
    """Two drivers never write files under one epoch."""
    seen = TableView("a", "uuid", TableMark(replace(STATE, epoch=6, owner="other")))
    machine = Machine(Snapshot("t", "f"), Step.LOOK, STATE, surveyed())
    _, effect = machine.advance(Looked((seen,)))
    assert isinstance(effect, Change)
    assert (effect.step, effect.new.epoch) == (Step.BIND, 7)
