"""A block's row in SQLite, in PostgreSQL and in the entry of any other ledger: of many that claim it one has it, and only who has it says what became of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from claim_places import PLACES, place_of
from ledger_sites import before_statement
from sqlalchemy import update
from sqlalchemy.exc import OperationalError

from landonce.errors import Fenced, LedgerUnavailable, NothingToDo, PlanPending, Unbalanced
from landonce.ledger.block_ledgers import PushPlace
from landonce.ledger.claims import AttemptDecision, ClaimLedger, ClaimPlace
from landonce.ledger.open import sqlite_ledger
from landonce.ledger.tables import push_table
from landonce.protocol import ledger as states
from landonce.protocol.block_rows import BlockState, Claim, PushRow, Spot, accounted
from landonce.protocol.blocks import Block, Plan
from landonce.protocol.ledger import LedgerState, Note, Totals
from landonce.protocol.operate import accept_gap
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.source import Extent, SourceView

SPOT = Spot(1, 0)


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> ClaimPlace:
    return place_of(request.param, tmp_path, lambda: request.getfixturevalue("new_database")())


@pytest.fixture
def ledger(place: ClaimPlace) -> Iterator[ClaimLedger]:
    with closing(place.open()) as opened:
        yield opened


def plan(*ends: int) -> Plan:
    ranges = [Range(Partition("t", number), 0, end) for number, end in enumerate(ends)]
    return Plan(1, tuple(Block((each,), "s", number=at) for at, each in enumerate(ranges)), "f", 0)


def prepared(ledger: ClaimLedger, blocks: int = 2) -> LedgerState:
    state = ledger.create(LedgerState("p", "lineage"))
    state = ledger.change(state, states.taken(state, "owner"))
    added = {Partition("t", number): 0 for number in range(blocks)}
    state = ledger.change(state, states.bound(state, "c", {"t": "id"}, added))
    return ledger.change(state, states.prepared(state, plan(*[5] * blocks)))


def row_of(ledger: ClaimLedger, spot: Spot = SPOT) -> PushRow:
    [row] = ledger.row(spot).rows
    return row


def test_of_many_attempts_one_has_the_block(place: ClaimPlace, ledger: ClaimLedger) -> None:
    """And where pushing again is harmless, the last one."""
    claim = Claim.of(prepared(ledger))

    def attempt(number: int) -> bool:
        with closing(place.open()) as mine:
            return mine.claim(SPOT, claim, f"nonce {number}", harmless=False) is not None

    with ThreadPoolExecutor(4) as workers:
        won = list(workers.map(attempt, range(8)))
    assert sum(won) == 1
    row = row_of(ledger)
    assert (row.mark, row.nonce, row.attempt) == (BlockState.CLAIMED, f"nonce {won.index(True)}", 1)
    assert ledger.claim(SPOT, claim, "later", harmless=False) is None
    taken = ledger.claim(SPOT, claim, "later", harmless=True)
    assert taken is not None
    assert (taken.nonce, taken.attempt) == ("later", 2)


def test_who_has_the_block_says_what_became_of_it(ledger: ClaimLedger) -> None:
    claim = Claim.of(prepared(ledger))
    assert ledger.claim(SPOT, claim, "a", harmless=False)
    assert not ledger.settle(SPOT, "b", "{}")
    assert not ledger.release(SPOT, "b")
    assert ledger.release(SPOT, "a")
    assert row_of(ledger).mark is BlockState.BEFORE
    assert not ledger.settle(SPOT, "a", "{}")
    assert ledger.claim(SPOT, claim, "c", harmless=False)
    assert ledger.settle(SPOT, "c", "receipt")
    assert ledger.settle(SPOT, "c", "receipt"), "the same word again, because its answer was lost"
    assert not ledger.settle(SPOT, "a", "other")
    row = row_of(ledger)
    assert (row.mark, row.receipt, row.attempt) == (BlockState.AFTER, "receipt", 2)
    assert ledger.claim(SPOT, claim, "d", harmless=True) is None
    assert not ledger.skip(SPOT, claim, "other")


def test_two_that_waited_an_attempt_out_do_not_both_follow_it(ledger: ClaimLedger) -> None:
    claim = Claim.of(prepared(ledger))
    assert ledger.claim(SPOT, claim, "lost", harmless=False)
    assert ledger.reclaim(SPOT, claim, "one", "lost")
    assert ledger.reclaim(SPOT, claim, "two", "lost") is None
    assert not ledger.found(SPOT, claim, "lost", "{}")
    assert not ledger.settle(SPOT, "lost", "{}")
    assert ledger.found(SPOT, claim, "one", "{}")


def test_a_takeover_ends_claims_to_come_and_not_those_that_are_made(ledger: ClaimLedger) -> None:
    """What an attempt of an earlier driver says of itself is true, even if another driver has taken over."""
    state = prepared(ledger)
    old, other = Claim.of(state), Spot(1, 1)
    assert ledger.claim(SPOT, old, "a", harmless=False)
    new = Claim.of(ledger.change(state, states.taken(state, "newer")))
    assert ledger.claim(other, old, "b", harmless=True) is None
    assert ledger.reclaim(SPOT, old, "b", "a") is None
    assert not ledger.skip(other, old, "{}")
    assert row_of(ledger).claim == new
    assert ledger.settle(SPOT, "a", "{}")
    assert ledger.claim(other, new, "b", harmless=False)


def test_a_batch_is_recorded_when_all_of_it_is_there(ledger: ClaimLedger) -> None:
    state = prepared(ledger)
    assert ledger.skip(SPOT, Claim.of(state), "{}")
    done = states.recorded(state, Totals(10))
    with pytest.raises(Unbalanced):
        ledger.change(state, done)
    assert ledger.claim(Spot(1, 1), Claim.of(state), "a", harmless=False)
    with pytest.raises(Unbalanced):
        ledger.change(state, done)
    assert ledger.settle(Spot(1, 1), "a", "{}")
    assert ledger.change(state, done) == done
    assert ledger.status(1).rows == ()
    assert ledger.load() == done


def test_a_block_in_doubt_is_neither_forgotten_nor_cut(ledger: ClaimLedger) -> None:
    state = prepared(ledger)
    assert ledger.claim(SPOT, Claim.of(state), "a", harmless=False)
    taken = states.taken(state, "person")
    forgotten = LedgerState(**{**taken.__dict__, "pending": None})
    short = Range(Partition("t", 0), 2, 5)
    pending = plan(5, 5)
    cut = Plan(1, (Block((short,), "s"), pending.blocks[1]), "f", 0)
    for new in (forgotten, LedgerState(**{**taken.__dict__, "pending": cut})):
        with pytest.raises(PlanPending):
            ledger.change(state, new)
    assert ledger.load() == state
    assert ledger.release(SPOT, "a")
    assert ledger.change(state, forgotten) == forgotten


def test_a_claim_that_comes_while_its_plan_is_forgotten_is_not_made(new_database: Callable[[], str]) -> None:
    """The rows were read and are about to go. Else a block would be on its way that no ledger knows."""
    place = PushPlace(new_database(), "p")
    with closing(place.open()) as ledger, closing(place.open()) as worker, ThreadPoolExecutor(1) as others:
        state = prepared(ledger)
        forgotten = LedgerState(**{**states.taken(state, "person").__dict__, "pending": None})
        made: list[Future[PushRow | None]] = []

        def claim() -> None:
            made.append(others.submit(worker.claim, SPOT, Claim.of(state), "a", harmless=False))
            _until(lambda: made[0].done() or _waits(place))

        with before_statement(ledger, "DELETE FROM landonce_push", claim):
            assert ledger.change(state, forgotten) == forgotten
        assert made[0].result(30) is None
        assert ledger.status(1).rows == ()


def test_a_claim_that_is_being_made_is_seen_before_its_plan_is_forgotten(new_database: Callable[[], str]) -> None:
    place = PushPlace(new_database(), "p")
    with closing(place.open()) as ledger, closing(place.open()) as worker, ThreadPoolExecutor(1) as others:
        state = prepared(ledger)
        forgotten = LedgerState(**{**states.taken(state, "person").__dict__, "pending": None})
        with worker.database.writing() as connection:
            connection.execute(update(push_table).where(push_table.c.number == 0).values(state="CLAIMED", nonce="a"))
            given = others.submit(ledger.change, state, forgotten)
            _until(lambda: given.done() or _waits(place))
        with pytest.raises(PlanPending):
            given.result(30)
        assert ledger.load() == state
        assert row_of(ledger).mark is BlockState.CLAIMED


def _until(happened: Callable[[], bool]) -> None:
    ends = time.monotonic() + 20
    while not happened():
        assert time.monotonic() < ends
        time.sleep(0.02)


def _waits(place: PushPlace) -> bool:
    """Whether somebody waits for a lock in this database."""
    with psycopg.connect(str(place.where).replace("+psycopg", "")) as connection:
        found = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        return connection.execute(found).fetchone() is not None


@pytest.mark.parametrize("receipt", ["{}", None], ids=["with a receipt", "by a person's word alone"])
def test_a_block_that_is_accounted_for_is_not_cut(ledger: ClaimLedger, receipt: str | None) -> None:
    """Its receipt names its dead letters. Without one its records would have to be read, which are gone."""
    state = prepared(ledger)
    assert ledger.claim(SPOT, Claim.of(state), "a", harmless=False)
    if receipt is not None:
        assert ledger.settle(SPOT, "a", receipt)
    else:
        given = states.taken(state, "person")
        state = ledger.decide(state, given, Note("now", "settle", ""), AttemptDecision(SPOT, "a", landed=True))
    rows = ledger.status(1).rows
    view = SourceView("c", (("t", "id"),), tuple((Partition("t", number), Extent(2, 9)) for number in range(2)))
    if receipt is not None:
        cut = accept_gap(state, view, "person")
        with pytest.raises(PlanPending, match="names its dead letters"):
            ledger.change(state, cut.new)
    new = accept_gap(state, view, "person", landed=accounted(rows)).new
    assert ledger.change(state, new) == new
    assert new.pending is not None
    assert [each.ranges[0].first for each in new.pending.blocks] == ([0, 2] if receipt is not None else [2, 2])


@pytest.mark.parametrize("landed", [True, False])
def test_a_person_decides_about_the_last_attempt_only(ledger: ClaimLedger, landed: bool) -> None:
    state = prepared(ledger)
    assert ledger.claim(SPOT, Claim.of(state), "a", harmless=False)
    taken, note = states.taken(state, "person"), Note("now", "settle", "seen")
    with pytest.raises(NothingToDo):
        ledger.decide(state, taken, note, AttemptDecision(SPOT, "other", landed))
    assert ledger.load() == state
    assert ledger.journal() == ()
    ledger.decide(state, taken, note, AttemptDecision(SPOT, "a", landed))
    row = row_of(ledger)
    assert (row.mark, row.receipt) == (BlockState.AFTER if landed else BlockState.BEFORE, None)
    assert ledger.journal() == (note,)
    assert ledger.settle(SPOT, "a", "{}") is landed
    with pytest.raises(Fenced):
        ledger.change(state, states.taken(state, "driver"))


def test_the_clock_is_the_ledgers(place: ClaimPlace, ledger: ClaimLedger) -> None:
    state = prepared(ledger)
    before = ledger.status(1).now
    row = ledger.claim(SPOT, Claim.of(state), "a", harmless=False)
    assert row is not None
    assert before <= row.claimed_at <= ledger.status(1).now
    asked = _clock(place)
    assert abs(asked - ledger.status(1).now) < 60_000


def _clock(place: ClaimPlace) -> int:
    if isinstance(place, PushPlace) and isinstance(place.where, str):
        with psycopg.connect(place.where.replace("+psycopg", "")) as connection:
            return int(connection.execute("SELECT extract(epoch FROM now())").fetchone()[0]) * 1000
    return int(time.time() * 1000)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_claim_whose_answer_is_lost_is_found_again(
    tmp_path: Path, new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The change is made, and its answer is an error: the attempt's nonce in the row says so."""
    ledger = PushPlace(tmp_path / "ledger" if kind == "sqlite" else new_database(), "p").open()
    state = prepared(ledger)
    writing, lost = ledger.database.writing, [True, True]

    @contextmanager
    def unanswered() -> Iterator[object]:
        with writing() as connection:
            yield connection
        if lost:
            lost.pop()
            raise OperationalError("UPDATE", {}, Exception("server closed the connection"))

    monkeypatch.setattr(ledger.database, "writing", unanswered)
    row = ledger.claim(SPOT, Claim.of(state), "a", harmless=False)
    assert row is not None
    assert row.attempt == 1
    lost.extend([True])
    assert ledger.settle(SPOT, "a", "{}")
    ledger.close()


def test_a_ledger_of_another_kind_of_sink_becomes_one(tmp_path: Path) -> None:
    with closing(sqlite_ledger(tmp_path / "ledger", "p")) as other:
        other.create(LedgerState("p", "lineage"))
    with closing(PushPlace(tmp_path / "ledger", "p").open()) as ledger:
        state = ledger.load()
        assert state is not None
        state = ledger.change(state, states.taken(state, "owner"))
        state = ledger.change(state, states.bound(state, "c", {"t": "id"}, {Partition("t", 0): 0}))
        ledger.change(state, states.prepared(state, plan(5)))
        assert [row.mark for row in ledger.status(1).rows] == [BlockState.BEFORE]


def test_an_address_is_quiet() -> None:
    assert "secret" not in repr(PushPlace("postgresql://me:secret@nowhere/d", "p"))


def test_a_ledger_that_is_away_says_so() -> None:
    away = PushPlace("postgresql://me:secret@127.0.0.1:1/d", "p").open()
    away._attempts, away._backoff = 2, 0.01
    with pytest.raises(LedgerUnavailable) as error:
        away.claim(SPOT, Claim(1, "o"), "a", harmless=False)
    assert "secret" not in str(error.value)
