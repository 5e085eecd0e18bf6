"""Claims in the entry of any ledger: the same as in tables, whatever comes in between, without an answer, and without a clock that could be
asked. Tables in SQLite are the judge; for every guarantee there is a control."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from importlib.metadata import EntryPoint
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from claim_places import EXAMPLE, FolderPlace
from hypothesis import given, settings
from hypothesis import strategies as st

import landonce
from landonce.config.secrets import redact
from landonce.errors import Fenced, LandonceError, LedgerUnavailable, LedgerUnreadable
from landonce.ledger import entry_claims
from landonce.ledger.block_ledgers import PushPlace
from landonce.ledger.claims import AttemptDecision, ClaimLedger
from landonce.ledger.entry_claims import EntryClaims, PluginPlace
from landonce.ledger.memory import MemoryLedger, MemoryStore
from landonce.protocol import ledger as states
from landonce.protocol.block_rows import BlockState, Claim, PushRow, Spot, over
from landonce.protocol.ledger import LedgerState, Note, Totals, key
from landonce.testing.ledger_sites import claimable_plan, claimable_state, claims_of

NAME, BLOCKS, SPOT = "orders", 2, Spot(1, 0)


def prepared(ledger: ClaimLedger, blocks: int = BLOCKS) -> LedgerState:
    state = ledger.create(LedgerState(NAME, "lineage"))
    begun = replace(claimable_state(blocks), version=state.version + 1, lineage=state.lineage)
    return ledger.change(ledger.change(state, begun), states.prepared(begun, claimable_plan(blocks)))


# The same as in tables.


@dataclass
class Side:
    """One ledger, and the states that its drivers hold."""

    ledger: ClaimLedger
    held: list[LedgerState] = field(default_factory=list)

    @property
    def last(self) -> LedgerState:
        return self.held[-1]

    def do(self, act: str, number: int, nonce: str, seen: str, which: int) -> object:
        ledger, spot, plan = self.ledger, Spot(self.last.batch, number), self.last.pending
        claim = Claim.of(self.held[-1 - which % min(len(self.held), 4)])
        if act == "take":
            return self.change(states.taken(self.last, f"owner {len(self.held)}"))
        if act == "prepare" and plan is None:
            return self.change(states.prepared(self.last, replace(claimable_plan(BLOCKS), batch=self.last.batch + 1)))
        if act == "record" and plan is not None:
            return self.change(states.recorded(self.last, Totals(1)))
        if act == "amend" and plan is not None:
            return self.change(states.amended(self.last, replace(plan, deadline=plan.deadline + 1)))
        if act == "forget":
            return self.change(replace(states.taken(self.last, "person"), pending=None))
        if act == "stale":
            return self.change(states.taken(self.held[0], "stale"), old=self.held[0])
        if act == "decide" and plan is not None:
            return self.change(states.taken(self.last, "person"), decision=AttemptDecision(spot, seen, which % 2 == 0))
        if act in ("settle", "release"):
            return ledger.settle(spot, nonce, "{}") if act == "settle" else ledger.release(spot, nonce)
        if act == "claim":
            return shown(ledger.claim(spot, claim, nonce, harmless=which % 3 == 0, wait=which))
        if act == "reclaim":
            return shown(ledger.reclaim(spot, claim, nonce, seen, wait=which))
        if act == "found":
            return ledger.found(spot, claim, seen, "{}")
        return ledger.skip(spot, claim, "{}") if act == "skip" else None

    def change(
        self, new: LedgerState, old: LedgerState | None = None, decision: AttemptDecision | None = None
    ) -> object:
        before, note = old or self.last, Note("now", "test", str(new.version))
        if decision is not None:
            self.held.append(self.ledger.decide(before, new, note, decision))
        else:
            self.held.append(self.ledger.change(before, new, note))
        return self.last

    def outcome(self, *act: Any) -> tuple[object, ...]:
        """What came of it, and all that can be seen afterwards."""
        try:
            came: object = self.do(*act)
        except LandonceError as error:
            came = type(error)
        rows = [shown(each) for each in self.ledger.status(self.last.batch).rows]
        return came, rows, self.ledger.load(), self.ledger.journal()


def shown(row: PushRow | None) -> PushRow | None:
    """Without the time of its claim: each kind of ledger has its own clock."""
    return None if row is None else replace(row, claimed_at=0)


ACTS = (
    "claim claim claim reclaim settle settle found skip release take prepare prepare record amend forget stale decide"
)
EVENTS = st.tuples(
    st.sampled_from(ACTS.split()),
    st.integers(0, BLOCKS),
    st.sampled_from("abc"),
    st.sampled_from("abc"),
    st.integers(0, 9),
)


@settings(max_examples=30, deadline=None)
@given(st.lists(EVENTS, min_size=10, max_size=40))
def test_it_does_what_tables_do(events: list[tuple[str, int, str, str, int]]) -> None:
    with TemporaryDirectory() as folder, closing(PushPlace(Path(folder) / "ledger", NAME).open()) as tables:
        sides = [Side(tables), Side(claims_of(MemoryLedger(NAME)))]
        for side in sides:
            side.held.append(prepared(side.ledger))
        for event in events:
            told, mine = (side.outcome(*event) for side in sides)
            assert mine == told, event


# What comes in between.


class Between(MemoryLedger):
    """Before a change, something happens."""

    happens: list[Callable[[], object]]

    def change(self, old: LedgerState, new: LedgerState, note: Note | None = None) -> LedgerState:
        if self.happens:
            self.happens.pop()()
        return super().change(old, new, note)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def between(store: MemoryStore, *happens: Callable[[], object]) -> EntryClaims:
    ledger = Between(NAME, store)
    ledger.happens = list(happens)
    return claims_of(ledger)


def test_a_claim_that_comes_while_its_plan_is_forgotten_forbids_that(store: MemoryStore) -> None:
    """The rows were read, and nobody had claimed. Else a block would be on its way that no ledger knows."""
    worker = claims_of(MemoryLedger(NAME, store))
    state = prepared(worker)
    driver = between(store, lambda: worker.claim(SPOT, Claim.of(state), "a", harmless=False))
    with pytest.raises(LandonceError, match="nobody knows whether it arrived"):
        driver.change(state, replace(states.taken(state, "person"), pending=None))
    assert driver.load() == state


def test_a_takeover_while_a_block_is_claimed_ends_the_claim(store: MemoryStore) -> None:
    driver = claims_of(MemoryLedger(NAME, store))
    state = prepared(driver)
    worker = between(store, lambda: driver.change(state, states.taken(state, "newer")))
    assert worker.claim(SPOT, Claim.of(state), "a", harmless=True) is None
    assert [row.mark for row in driver.status(1).rows] == [BlockState.BEFORE] * BLOCKS


def test_claims_in_between_do_not_fence_their_own_driver(store: MemoryStore) -> None:
    driver = claims_of(MemoryLedger(NAME, store))
    state = prepared(driver)
    for number in range(BLOCKS):
        other = between(store, lambda: None)
        assert other.claim(Spot(1, number), Claim.of(state), str(number), harmless=False)
        assert other.settle(Spot(1, number), str(number), "{}")
    assert driver.load() == state
    assert driver.change(state, states.recorded(state, Totals(1))).pending is None


def test_who_knows_nothing_of_claims_leaves_them(store: MemoryStore) -> None:
    """An operator's command with another sink in the file: the block that is on its way is still known."""
    plain, mine = MemoryLedger(NAME, store), claims_of(MemoryLedger(NAME, store))
    state = prepared(mine)
    assert mine.claim(SPOT, Claim.of(state), "a", harmless=False)
    stored = plain.load()
    assert stored is not None
    taken = plain.change(stored, states.taken(stored, "person"))
    seen = mine.load()
    assert seen is not None
    assert (seen.owner, seen.version, seen.labels) == ("person", taken.version, ())
    with pytest.raises(Fenced):
        mine.change(state, states.taken(state, "driver"))
    state = mine.change(seen, states.taken(seen, "driver"))
    assert [row.mark for row in mine.status(1).rows] == [BlockState.CLAIMED, BlockState.BEFORE]
    assert mine.claim(Spot(1, 1), Claim.of(state), "b", harmless=False)


# Without an answer.


class Silent(MemoryLedger):
    """Changes that are applied, or not, and whose answer is lost."""

    plan: list[tuple[bool, type[Exception]]]

    def change(self, old: LedgerState, new: LedgerState, note: Note | None = None) -> LedgerState:
        if not self.plan:
            return super().change(old, new, note)
        applied, error = self.plan.pop(0)
        if applied:
            super().change(old, new, note)
        raise error("no answer")


def silent(store: MemoryStore, *plan: tuple[bool, type[Exception]]) -> EntryClaims:
    ledger = Silent(NAME, store)
    ledger.plan = list(plan)
    return claims_of(ledger)


@pytest.mark.parametrize("applied", [True, False])
def test_a_change_without_an_answer_may_be_made_again(store: MemoryStore, applied: bool) -> None:
    worker = claims_of(MemoryLedger(NAME, store))
    state = prepared(worker)
    driver, new, note = silent(store, (applied, LedgerUnavailable)), states.taken(state, "me"), Note("now", "a", "b")
    with pytest.raises(LedgerUnavailable):
        driver.change(state, new, note)
    if applied:  # and somebody claims a block before it is made again
        assert worker.claim(SPOT, Claim.of(new), "a", harmless=False)
    assert driver.change(state, new, note) == new
    assert driver.journal() == (note,)
    with pytest.raises(Fenced):
        driver.change(state, new, note)


def test_a_change_that_was_applied_and_is_called_fenced_is_found(store: MemoryStore) -> None:
    """A plug-in that sends again meets its own change, with another worker's claim on top."""
    state = prepared(claims_of(MemoryLedger(NAME, store)))
    new = states.taken(state, "me")
    assert silent(store, (True, Fenced)).change(state, new) == new
    row = silent(store, (True, Fenced)).claim(SPOT, Claim.of(new), "a", harmless=False)
    assert row is not None
    assert row.attempt == 1
    assert silent(store, (True, Fenced)).settle(SPOT, "a", "{}")
    with pytest.raises(Fenced):
        silent(store).change(state, new)


def test_a_ledger_that_fences_for_no_reason_is_named(store: MemoryStore) -> None:
    state = prepared(claims_of(MemoryLedger(NAME, store)))
    with pytest.raises(LedgerUnreadable):
        silent(store, (False, Fenced)).claim(SPOT, Claim.of(state), "a", harmless=False)


class ByKey(MemoryLedger):
    """Takes a change for its own if its key is there: sound, as long as two changes never make one key."""

    def change(self, old: LedgerState, new: LedgerState, note: Note | None = None) -> LedgerState:
        try:
            return super().change(old, new, note)
        except Fenced:
            seen = self.load()
            if seen is not None and key(seen) == key(new):
                return new
            raise


class Meeting(ByKey):
    """Another worker is always faster."""

    other: EntryClaims
    claim: Claim

    def change(self, old: LedgerState, new: LedgerState, note: Note | None = None) -> LedgerState:
        self.other.claim(SPOT, self.claim, "other", harmless=False)
        return super().change(old, new, note)


def _both_claim(store: MemoryStore, before: Callable[[], None] = lambda: None) -> int:
    other = claims_of(ByKey(NAME, store))
    state = prepared(other)
    before()
    slower = Meeting(NAME, store)
    slower.other, slower.claim = other, Claim.of(state)
    won = claims_of(slower).claim(SPOT, Claim.of(state), "mine", harmless=False)
    [first, *_] = other.status(1).rows
    return (won is not None) + (first.nonce == "other")


def test_a_ledger_that_knows_its_changes_by_their_key_is_not_mistaken(store: MemoryStore) -> None:
    assert _both_claim(store) == 1


def test_the_control_without_a_random_owner_both_would_have_the_block(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Same:
        hex = "same"

    assert _both_claim(store, lambda: monkeypatch.setattr(entry_claims.uuid, "uuid4", Same)) == 2


# Time.


class Clocks:
    """What each observer's clock says: all run equally fast, and none knows what another one says."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.time, self.offset = 1000.0, 0.0
        patch.setattr(entry_claims, "now", lambda: self.time + self.offset)


def test_an_attempt_is_over_once_somebody_waited_for_it(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what one waited for, another knows: the driver waits, its workers ask the probe."""
    clocks = Clocks(monkeypatch)
    driver = claims_of(MemoryLedger(NAME, store))
    state = prepared(driver)
    clocks.offset = 5e6  # a worker on a machine that runs much longer
    assert claims_of(MemoryLedger(NAME, store)).claim(SPOT, Claim.of(state), "a", harmless=False, wait=3000)
    clocks.offset = 0.0
    clocks.time += 1e6
    seen = driver.status(1)
    assert not over(seen.rows[0], seen.now, 0), "nobody knows how long ago it was claimed"
    clocks.time += 2.9
    seen = driver.status(1)
    assert not over(seen.rows[0], seen.now, 0)
    clocks.time += 0.6
    seen = driver.status(1)
    assert over(seen.rows[0], seen.now, 0)
    clocks.offset = -7e5
    seen = claims_of(MemoryLedger(NAME, store)).row(SPOT)
    assert over(seen.rows[0], seen.now, 0), "a worker that comes now does not wait again"
    assert not over(seen.rows[0], seen.now, 60_000)


def test_no_age_is_more_than_the_time_that_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any(_ages_ahead(seed, monkeypatch, EntryClaims) for seed in range(60))


def test_the_control_an_age_from_when_one_began_to_look_is_more(monkeypatch: pytest.MonkeyPatch) -> None:
    class SinceOpened(EntryClaims):
        """As a clock of the ledger would do that everybody moves on by the time since he looked last."""

        def _aged(self, batch: int, rows: Any) -> Any:
            for each in rows:
                self._seen.setdefault((batch, each.number, each.nonce), (self._began, each.age))
            return super()._aged(batch, rows)

    assert any(_ages_ahead(seed, monkeypatch, SinceOpened) for seed in range(60))


def _ages_ahead(seed: int, monkeypatch: pytest.MonkeyPatch, kind: type[EntryClaims]) -> bool:
    """Claims, observers that come and go on machines of their own, and time that passes: whether an attempt seems older than it is."""
    chance, clocks, store = random.Random(seed), Clocks(monkeypatch), MemoryStore()
    first = claims_of(MemoryLedger(NAME, store))
    state = prepared(first, 1)
    observers: list[tuple[float, EntryClaims]] = [(0.0, first)]
    made, nonce = 0.0, ""
    for step in range(40):
        clocks.time += chance.choice([0, 0.2, 1, 7])
        act = chance.randrange(4)
        if act == 0:
            clocks.offset = chance.uniform(-9e5, 9e5)
            observers.append((clocks.offset, kind(MemoryLedger(NAME, store), first.address)))
        clocks.offset, who = chance.choice(observers)
        if act == 1:
            made, nonce = clocks.time, f"{step}"
            assert who.claim(SPOT, Claim.of(state), nonce, harmless=True)
        seen = who.status(1)
        [row] = seen.rows
        if nonce and seen.now - row.claimed_at > (clocks.time - made) * 1000 + 1:
            return True
    return False


# What is wrong is named, and nothing is shown.


def test_a_store_without_the_entry_is_named(store: MemoryStore) -> None:
    with pytest.raises(LedgerUnreadable, match=r"no entry of pipeline 'orders' on .*another store"):
        claims_of(MemoryLedger(NAME, store)).claim(SPOT, Claim(1, "o"), "a", harmless=False)
    state = LedgerState(NAME, "lineage")
    with pytest.raises(Fenced, match="no entry"):
        claims_of(MemoryLedger(NAME, store)).change(state, states.taken(state, "me"))


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"rows": [{"colour": 1}]}'])
def test_what_are_no_claims_is_named(store: MemoryStore, text: str) -> None:
    mine = claims_of(MemoryLedger(NAME, store))
    prepared(mine)
    stored = store.states[NAME]
    store.states[NAME] = replace(stored, labels=tuple((name, text) for name, _ in stored.labels))
    with pytest.raises(LedgerUnreadable, match=r"claims of blocks .* cannot be read"):
        mine.load()


def test_a_place_travels_to_workers_and_is_quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offered = EntryPoint("folder", "landonce_jsonl.ledger:open_ledger", "landonce.ledgers")
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.setattr("landonce.packages.entry_points", lambda **_: (offered,))
    secret = PluginPlace("folder", NAME, tmp_path, (("path", "."), ("password", "s3cret-word")))
    assert "s3cret-word" not in repr(secret)
    with pytest.raises(LandonceError):
        secret.open()
    assert "s3cret-word" not in redact("the password is s3cret-word"), "a worker does not know what is secret"
    place: PluginPlace = pickle.loads(pickle.dumps(PluginPlace("folder", NAME, tmp_path, (("path", "."),))))
    with closing(place.open()) as driver, closing(driver.address.open()) as worker:
        assert worker.claim(SPOT, Claim.of(prepared(driver)), "a", harmless=False)
        assert driver.status(1).rows[0].nonce == "a"


def test_where_claims_are_nothing_else_changes(tmp_path: Path) -> None:
    """What an author's ledger stores is a state like any other: he may read it with landonce's own functions."""
    mine = FolderPlace(tmp_path, NAME).open()
    state = prepared(mine)
    [text, *_] = (tmp_path / f"{NAME}.json").read_text().splitlines()
    fields = json.loads(text)
    assert (fields["epoch"], fields["batch"], fields["pipeline"]) == (state.epoch, state.batch, NAME)
    assert [name for name, _ in json.loads(fields["labels"])] == ["claims of blocks"]
    assert fields["owner"] != state.owner


def test_a_push_lands_with_a_plug_in_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a program names it. A push without an answer comes again under the same key, from another process's point of view, too."""
    offered = EntryPoint("folder", "landonce_jsonl.ledger:open_ledger", "landonce.ledgers")
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.setattr("landonce.packages.entry_points", lambda **_: (offered,))
    attempts: list[tuple[str, int]] = []

    def push(block: landonce.PushedBlock) -> None:
        attempts.append((block.key, block.attempt))
        if len(attempts) == 1:
            raise OSError("no answer")

    for number in (1, 2):
        ledger = {"plugin": {"name": "folder", "options": {"path": str(tmp_path)}}}
        with landonce.ExactlyOnceSink(landonce.wrap(push, idempotent=True), ledger, name=NAME) as once:
            once.push(0, [{"_offset": at, "id": at} for at in range(3 * number)])
            assert once.position(0) == 3 * number
    [(first, one), (again, two), (_, next_one)] = attempts
    assert (first, one, two, next_one) == (again, 1, 2, 1)
