"""What a worker does next with its block, at the turns where a wrong step would write twice or write for a driver that was replaced."""

from __future__ import annotations

import pytest

from landonce.protocol import push, settle, transact
from landonce.protocol.block_rows import BlockRow, BlockState, Claim, PushRow
from landonce.protocol.push import Outcome
from landonce.protocol.receipt import Fate

MINE = Claim(3, "me")
OTHERS = [Claim(4, "other"), Claim(3, "other"), Claim(2, "me")]
"""A restored ledger hands out an epoch twice: the owner tells the two drivers apart."""


@pytest.mark.parametrize("other", OTHERS, ids=["newer", "same epoch, another owner", "older"])
def test_a_transaction_that_finds_its_block_claimed_by_another_driver_halts(other: Claim) -> None:
    reading = transact.after_flip(transact.begin(), flipped=False)
    assert transact.after_read(reading, BlockRow(0, other, BlockState.BEFORE), MINE).fate is Fate.HALTED


def test_a_transaction_goes_on_with_its_own_block() -> None:
    reading = transact.after_flip(transact.begin(), flipped=False)
    again = transact.after_read(reading, BlockRow(0, MINE, BlockState.BEFORE), MINE)
    assert (again.stage, again.fate) == (transact.TransactStage.FLIP, None)
    assert transact.after_read(reading, None, MINE).fate is Fate.HALTED
    landed = transact.after_read(reading, BlockRow(0, OTHERS[0], BlockState.AFTER, "receipt"), MINE)
    assert (landed.fate, landed.settled) == (Fate.LANDED, "receipt")


@pytest.mark.parametrize("harmless", [True, False])
@pytest.mark.parametrize("other", OTHERS, ids=["newer", "same epoch, another owner", "older"])
def test_a_push_of_a_block_that_another_driver_claims_halts(other: Claim, harmless: bool) -> None:
    asked = push.after_claim(push.begin(harmless=harmless, can_probe=True), won=False)
    for mark in (BlockState.BEFORE, BlockState.CLAIMED):
        assert push.after_row(asked, PushRow(0, other, mark), MINE, over=True).fate is Fate.HALTED


@pytest.mark.parametrize("mark", [BlockState.BEFORE, BlockState.CLAIMED])
@pytest.mark.parametrize("harmless", [True, False])
@pytest.mark.parametrize("can_probe", [True, False])
def test_a_worker_that_has_pushed_pushes_no_more(can_probe: bool, harmless: bool, mark: BlockState) -> None:
    """Its push returned, and its claim was gone when it came to settle: what happened meanwhile, nobody knows."""
    pushed = push.after_push(push.begin(harmless=harmless, can_probe=can_probe), Outcome.RETURNED)
    asked = push.after_settle(pushed, won=False)
    assert asked.stage is push.PushStage.ROW
    assert push.after_row(asked, PushRow(0, MINE, mark), MINE, over=True).fate is Fate.DOUBTFUL


def test_an_attempt_of_another_worker_is_probed_only_when_it_can_take_effect_no_more() -> None:
    asked = push.after_claim(push.begin(harmless=False, can_probe=True), won=False)
    row = PushRow(0, MINE, BlockState.CLAIMED, nonce="theirs")
    assert push.after_row(asked, row, MINE, over=False).fate is Fate.DOUBTFUL
    probing = push.after_row(asked, row, MINE, over=True)
    assert (probing.stage, probing.seen, probing.fate) == (push.PushStage.PROBE, "theirs", None)
    assert push.after_probe(probing, there=False).stage is push.PushStage.RECLAIM
    assert push.after_probe(probing, there=True).stage is push.PushStage.FOUND


def test_rows_that_are_there_twice_or_in_part_halt_a_worker() -> None:
    """Neither sending again nor going on could be right. An operator may have what is missing of a part written."""
    probing = settle.begin(settle.Mode.RESOLVE)
    twice = settle.after_probe(probing, settle.Presence(3, 0, duplicated=1))
    assert (twice.fate, twice.problem) == (Fate.HALTED, settle.Problem.DUPLICATE)
    torn = settle.Presence(3, 1, torn=True)
    part = settle.after_probe(probing, torn)
    assert (part.fate, part.problem) == (Fate.HALTED, settle.Problem.PARTIAL)
    filling = settle.after_probe(settle.begin(settle.Mode.RESOLVE, fill=True), torn)
    assert (filling.fate, filling.stage, filling.missing_only) == (None, settle.InsertStage.SEND, True)


def test_a_block_that_newer_rows_replace_whole_is_sent_once_more() -> None:
    """It may never have been sent: views behind the table would lack it. Once it is acknowledged, nothing is missing."""
    gone = settle.Presence(3, 0, unproven=True)
    probing = settle.begin(settle.Mode.RESOLVE, fill=True)
    again = settle.after_probe(probing, gone)
    assert (again.fate, again.stage, again.sends) == (None, settle.InsertStage.SEND, 1)
    probing = settle.after_send(again, settle.Reply.ACKNOWLEDGED)
    assert settle.after_probe(probing, gone).fate is Fate.LANDED
    assert settle.after_probe(probing, settle.Presence(3, 1)).fate is Fate.TOKEN_USED_UP


def test_nothing_is_sent_again_under_a_token_that_may_have_outlived_its_rows() -> None:
    """The table would ignore it, and views behind the table would count it."""
    probing = settle.begin(settle.Mode.RESOLVE, suspect=True)
    assert settle.after_probe(probing, settle.Presence(3, 3)).fate is Fate.TOKEN_USED_UP
    assert settle.after_probe(probing, settle.Presence(3, 0)).fate is Fate.LANDED
    first = settle.begin(settle.Mode.FIRST, suspect=True)
    refused = settle.after_send(first, settle.Reply.REFUSED)
    assert settle.after_probe(refused, settle.Presence(3, 3)).stage is settle.InsertStage.SEND, "nobody died"


def test_an_insert_that_the_target_refused_is_looked_for_before_it_is_sent_again() -> None:
    """Some of its rows may have landed before the error."""
    first = settle.begin(settle.Mode.FIRST)
    assert settle.after_send(first, settle.Reply.REFUSED).stage is settle.InsertStage.PROBE
    assert settle.after_send(first, settle.Reply.LATE).fate is Fate.LATE


def test_a_block_with_several_tables_has_landed_when_all_of_them_have_their_rows() -> None:
    begun = settle.begin(settle.Mode.RESOLVE)
    landed = settle.after_probe(begun, settle.Presence(3, 0))
    late = settle.after_send(settle.begin(settle.Mode.FIRST), settle.Reply.LATE)
    assert settle.block_fate([], 0) is Fate.LANDED, "no row is left of its records"
    assert settle.block_fate([], 2) is None
    assert settle.block_fate([landed], 2) is None, "the probe of one table proves nothing of another"
    assert settle.block_fate([landed, late], 3) is Fate.LATE
    assert settle.block_fate([landed, landed], 2) is Fate.LANDED
