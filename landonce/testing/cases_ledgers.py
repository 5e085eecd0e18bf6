"""What every ledger keeps, and what one keeps that several processes share: races between them, and crashes at every line of it.

Each case opens its ledgers again from the site, as other drivers would.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Any

from landonce.errors import Fenced, LedgerUnreadable
from landonce.ledger.entry_claims import EntryClaims
from landonce.protocol.block_rows import BlockState as BlockMark
from landonce.protocol.block_rows import Claim, Spot
from landonce.protocol.ledger import LedgerState, Note, prepared, taken
from landonce.testing.case import Suite, refused
from landonce.testing.crashing import (
    FORK,
    MOST_MOMENTS,
    SOME_MOMENTS,
    Moment,
    apart,
    crashed,
    in_processes,
    in_threads,
    lines_of,
    moments,
    require_kills,
    started,
)
from landonce.testing.ledger_sites import (
    BARE,
    PIPELINE,
    SHARED,
    LedgerSite,
    advanced,
    check_whole,
    claimable_plan,
    claimable_state,
    claims_of,
    counted,
    counter,
    first_state,
    full_state,
    marched,
    moved,
    note,
    wide_state,
)

LEDGER_CASES: Suite[LedgerSite] = Suite("ledger")
case = LEDGER_CASES.case


@case()
def an_empty_store_has_no_state_and_no_notes(site: LedgerSite) -> None:
    """A first start would be taken for a later one, and would begin at positions that nobody chose."""
    ledger = site.open(PIPELINE)
    assert ledger.load() is None, "an empty store has a state"
    assert ledger.journal() == (), "an empty store has notes"


@case()
def looking_makes_nothing(site: LedgerSite) -> None:
    """`landonce check` would change what it examines."""
    for _ in range(2):
        assert site.open(PIPELINE).load() is None, "a look made a state"
        assert site.open(PIPELINE).journal() == (), "a look made a note"
    assert site.open(PIPELINE).create(first_state(lineage="first")).lineage == "first", "a look made a state"


@case()
def the_first_state_stays(site: LedgerSite) -> None:
    """Two drivers that start at once would each believe that they created the ledger, and the positions of one are lost."""
    first, second = site.open(PIPELINE), site.open(PIPELINE)
    assert first.create(first_state(lineage="one")) == first_state(lineage="one")
    assert second.create(first_state(lineage="two")) == first_state(lineage="one"), "the first state was replaced"
    assert second.load() == first_state(lineage="one"), "the first state was replaced"


@case()
def every_field_comes_back_after_create(site: LedgerSite) -> None:
    """Every field decides what is delivered: a position, a topic's id, the pending plan."""
    site.open(PIPELINE).create(full_state())
    assert site.open(PIPELINE).load() == full_state(), "a field did not come back as it was"


@case()
def every_field_comes_back_after_a_change(site: LedgerSite) -> None:
    """The same, for what a batch changes."""
    ledger = site.open(PIPELINE)
    ledger.create(first_state())
    assert ledger.change(first_state(), full_state()) == full_state(), "the answer is not the new state"
    assert site.open(PIPELINE).load() == full_state(), "a field did not come back as it was"


@case()
def what_a_change_takes_away_is_gone(site: LedgerSite) -> None:
    """A rebased topic's old positions, or a recorded plan, would come back."""
    ledger = site.open(PIPELINE)
    full = ledger.create(full_state())
    bare = replace(first_state(), lineage="another life", version=full.version + 1)
    fewer = replace(full, version=full.version + 2, positions=full.positions[1:3], labels=(), pending=None)
    assert ledger.change(full, bare) == bare
    assert site.open(PIPELINE).load() == bare, "something of the old state is still there"
    assert ledger.change(bare, fewer) == fewer
    assert site.open(PIPELINE).load() == fewer, "something of an older state is still there"


@case()
def ten_thousand_partitions_fit(site: LedgerSite) -> None:
    """A large pipeline would stop, or silently forget partitions."""
    ledger = site.open(PIPELINE)
    state = wide_state(10_000)
    ledger.create(state)
    assert ledger.load() == state, "not every partition came back"
    state = ledger.change(state, moved(state))
    assert site.open(PIPELINE).load() == state, "not every position moved"


_WRONG: dict[str, Callable[[LedgerState], LedgerState]] = {
    "epoch": lambda state: replace(state, epoch=state.epoch - 1),
    "owner": lambda state: replace(state, owner="an owner of the same epoch"),
    "version": lambda state: replace(state, version=state.version - 1),
    "lineage": lambda state: replace(state, lineage="an earlier life"),
}


def _wrong_in(part: str) -> Callable[[LedgerSite], None]:
    def check(site: LedgerSite) -> None:
        state = site.open(PIPELINE).create(full_state())
        stale = _WRONG[part](state)
        refused(
            Fenced,
            lambda: site.open(PIPELINE).change(stale, replace(stale, version=state.version + 1)),
            f"a driver with another {part} was let through",
        )
        assert site.open(PIPELINE).load() == state, f"a driver with another {part} changed the state"

    return check


for _part in _WRONG:
    LEDGER_CASES.add(
        f"a_driver_with_another_{_part}_is_fenced",
        _wrong_in(_part),
        loses=f"A driver that was replaced continues: only its {_part} tells it from the one that replaced it.",
    )


@case()
def a_fenced_driver_hears_who_owns_the_pipeline(site: LedgerSite) -> None:
    """A reader of the log would not know which driver took over."""
    mine = site.open(PIPELINE).create(first_state())
    theirs = site.open(PIPELINE).change(mine, taken(mine, "newer"))
    error = refused(Fenced, lambda: site.open(PIPELINE).change(mine, taken(mine, "older")), "an older epoch changed it")
    assert "epoch 0, version 0" in str(error), (
        "the error does not say which epoch was held (`protocol.ledger.fenced` does)"
    )
    assert "epoch 1, version 1" in str(error), "the error does not say which epoch is there"
    assert site.open(PIPELINE).load() == theirs


@case()
def a_fenced_change_leaves_no_note(site: LedgerSite) -> None:
    """The journal would hold decisions that were never applied."""
    state = site.open(PIPELINE).create(first_state())
    site.open(PIPELINE).change(state, taken(state, "newer"))
    stale = taken(state, "older")
    refused(Fenced, lambda: site.open(PIPELINE).change(state, stale, note(1)), "an older epoch changed it")
    assert site.open(PIPELINE).journal() == (), "a change that was refused left its note"


@case()
def the_same_change_twice_is_fenced(site: LedgerSite) -> None:
    """Two drivers that make the same change would both continue. Only after a lost answer may a look decide."""
    state = site.open(PIPELINE).create(first_state())
    ledger = site.open(PIPELINE)
    ledger.change(state, taken(state, "me"))
    refused(Fenced, lambda: ledger.change(state, taken(state, "me")), "a change was taken twice")


@case()
def a_pipeline_without_an_entry_is_fenced(site: LedgerSite) -> None:
    """A ledger that was deleted under a running driver would come back with its state, unnoticed."""
    ledger = site.open(PIPELINE)
    error = refused(Fenced, lambda: ledger.change(first_state(), taken(first_state(), "me")), "an entry was made")
    assert "no entry" in str(error), "the error does not say that there is none"
    assert ledger.load() is None, "an entry was made"


@case()
def notes_come_back_in_order(site: LedgerSite) -> None:
    """What an operator decided, and when, would not be recorded as it happened."""
    ledger = site.open(PIPELINE)
    state = ledger.create(counter())
    for number in range(12):
        state = ledger.change(state, moved(state), note(number) if number % 2 else None)
    notes = tuple(note(number) for number in range(1, 12, 2))
    assert ledger.journal() == notes, "notes are missing, or in another order"
    assert site.open(PIPELINE).journal() == notes, "another driver reads other notes"


@case()
def pipelines_do_not_see_each_other(site: LedgerSite) -> None:
    """A pipeline would continue at another one's position."""
    names = ("orders", "Orders", "orders.v2", "заказы", "o'rders%")
    for number, name in enumerate(names):
        state = full_state(name)
        assert site.open(name).create(state) == state, f"pipeline {name!r} has another one's state"
        assert site.open(name).load() == state, f"pipeline {name!r} has another one's state"
        site.open(name).change(state, replace(state, version=state.version + 1 + number), note(number))
    for number, name in enumerate(names):
        mine = replace(full_state(name), version=full_state().version + 1 + number)
        assert site.open(name).load() == mine, f"pipeline {name!r} has another one's state"
        assert site.open(name).journal() == (note(number),), f"pipeline {name!r} has another one's notes"


@case()
def mistakes_of_the_caller_change_nothing(site: LedgerSite) -> None:
    """A defect elsewhere would become a damaged ledger (`protocol.ledger.check_change` refuses them)."""
    ledger = site.open(PIPELINE)
    state = ledger.create(full_state())
    unordered = replace(state, version=state.version + 1, positions=state.positions[::-1])
    for what, wrong in (
        ("positions out of order", unordered),
        ("the version of the state before", replace(state, batch=99)),
        ("another pipeline", full_state("another")),
    ):
        refused(
            ValueError,
            lambda wrong=wrong: ledger.change(state, wrong),  # type: ignore[misc]
            f"an invalid change was accepted ({what}; `protocol.ledger.check_change` refuses it)",
        )
    refused(ValueError, lambda: ledger.create(full_state("another")), "another pipeline's state was taken")
    assert ledger.load() == state, "a change that was refused left something"


@case()
def a_driver_sees_what_another_changed(site: LedgerSite) -> None:
    """A driver that caches what it read would plan from an old position."""
    watching, state = site.open(PIPELINE), site.open(PIPELINE).create(first_state())
    assert watching.load() == state
    state = site.open(PIPELINE).change(state, taken(state, "newer"), note(1))
    assert watching.load() == state, "a driver reads a state of the past"
    assert watching.journal() == (note(1),), "a driver reads a journal of the past"


@case()
def threads_that_create_at_once_agree(site: LedgerSite) -> None:
    """As `the_first_state_stays`, in a race."""
    _race_to_create(site, in_threads, 6)


@case()
def threads_that_count_at_once_lose_nothing(site: LedgerSite) -> None:
    """Two drivers would both believe to have moved the position."""
    _race_to_count(site, in_threads, 4, 8)


@case()
def a_closed_ledger_loses_nothing(site: LedgerSite) -> None:
    """Every ordinary end of a run would cost the position."""
    ledger = site.open(PIPELINE)
    state = ledger.create(first_state())
    state = ledger.change(state, taken(state, "me"), note(1))
    ledger.close()
    assert site.open(PIPELINE).load() == state, "the state went with the connection"
    assert site.open(PIPELINE).journal() == (note(1),), "the journal went with the connection"


# Between processes.


@case(SHARED)
def the_store_outlives_its_process(site: LedgerSite) -> None:
    """Every restart would begin again, and deliver everything again."""
    apart(lambda: site.open(PIPELINE).create(full_state()))
    assert site.open(PIPELINE).load() == full_state(), "the state ended with the process that made it"


@case(SHARED)
def processes_that_create_at_once_agree(site: LedgerSite) -> None:
    """As for threads, between machines' drivers."""
    _race_to_create(site, in_processes, 3)


@case(SHARED)
def every_epoch_has_one_owner(site: LedgerSite) -> None:
    """Two drivers would both own the pipeline, and both deliver."""
    site.open(PIPELINE).create(first_state())
    won = in_processes(2, lambda name: [state.epoch for state in _changed(site, 15, lambda old: taken(old, name))])
    assert sorted(chain(*won)) == list(range(1, 31)), "an epoch has two owners, or none"


@case(SHARED)
def processes_that_count_at_once_lose_nothing(site: LedgerSite) -> None:
    """As for threads, between machines' drivers."""
    _race_to_count(site, in_processes, 2, 20)


@case(SHARED)
def a_create_that_is_killed_at_any_line_is_whole_or_absent(site: LedgerSite) -> None:
    """A first start that crashed would leave a ledger that no later start can read, or one with a part of its positions."""
    for name, moment in _kills(site, lambda name: lambda: site.open(name).create(full_state(name))):
        seen, _ = _read(site, name, moment)
        assert seen is None or seen == full_state(name), f"torn: a part of the state is there (line {moment})"
        again = site.open(name).create(full_state(name))
        assert again == full_state(name), f"a later start cannot continue (line {moment})"


@case(SHARED)
def a_change_that_is_killed_at_any_line_is_whole_or_absent(site: LedgerSite) -> None:
    """A crash would leave the position of some partitions behind, or move it without its note."""

    def states(name: str) -> tuple[LedgerState, LedgerState]:
        before = replace(marched(2), pipeline=name)
        return before, moved(before)

    def changing(name: str) -> Callable[[], object]:
        before, after = states(name)
        site.open(name).create(before)
        return lambda: site.open(name).change(before, after, note(1))

    for name, moment in _kills(site, changing):
        before, after = states(name)
        seen, notes = _read(site, name, moment)
        assert seen in (before, after), f"torn: a part of the change is there (line {moment})"
        assert notes == ((note(1),) if seen == after else ()), f"torn: note and change are not together (line {moment})"


@case(SHARED)
def a_driver_that_was_killed_locks_nobody_out(site: LedgerSite) -> None:
    """After a crash no driver could start before a person has cleaned up."""
    site.open(PIPELINE).create(first_state())

    def change() -> None:
        mine = site.open(PIPELINE)
        state = mine.load()
        assert state is not None
        mine.change(state, taken(state, "dies"))

    for _, moment in _kills(site, lambda _: change):
        state, _ = _read(site, PIPELINE, moment)
        assert state is not None, f"the state is gone (line {moment})"
        try:
            site.open(PIPELINE).change(state, taken(state, "next"))
        except Exception as error:
            raise AssertionError(f"the next driver cannot take over (line {moment}): {error}") from error


@case(SHARED, BARE)
def killed_at_any_time(site: LedgerSite) -> None:
    """A change that was answered would not survive, or half of one would."""
    for race, seconds in enumerate((0.05, 0.11, 0.23)):
        name = f"{PIPELINE}{race}"
        site.open(name).create(first_state(name))
        answered = _kill_marcher(site, name, seconds)
        seen = _after_kill(site, name, answered)
        try:
            assert site.open(name).change(seen, advanced(seen)) == advanced(seen)
        except Fenced:
            if seen.version > answered:
                raise
            late = _after_kill(site, name, answered)  # what was under way reached the server only now
            assert site.open(name).change(late, advanced(late)) == advanced(late)


def _after_kill(site: LedgerSite, name: str, answered: int) -> LedgerState:
    seen = site.open(name).load()
    check_whole(replace(seen, pipeline=PIPELINE) if seen else None)
    assert seen is not None
    assert answered <= seen.version <= answered + 1, "what was answered is not there, or more than one change is"
    return seen


# Claims of blocks, which landonce keeps in the pipeline's entry for wrapped sinks. The ledger does nothing for them.


@case(BARE)
def claims_of_blocks_come_back(site: LedgerSite) -> None:
    """A block that a wrapped sink delivered would be delivered again: the ledger cut off or changed what landonce keeps in the entry."""
    blocks, receipt = 500, json.dumps({"read": 1, "why": "ü ✓ '\" \\"})
    state, mine = claimable_state(blocks), claims_of(site.open(PIPELINE))
    mine.create(state)
    state = mine.change(state, prepared(state, claimable_plan(blocks)))
    try:
        for number in range(3):
            assert mine.claim(Spot(1, number), Claim.of(state), f"nonce {number}", harmless=False, wait=7), "no claim"
        assert mine.settle(Spot(1, 1), "nonce 1", receipt), "an attempt cannot say that it landed"
        seen = claims_of(site.open(PIPELINE))
        assert seen.load() == state, "claims changed the state"
        rows = {row.number: row for row in seen.status(1).rows}
    except LedgerUnreadable as error:
        raise AssertionError(f"claims did not come back as they were: {error}") from error
    assert len(rows) == blocks, "blocks of the plan are not there"
    assert (rows[0].mark, rows[0].nonce, rows[0].attempt, rows[0].wait) == (BlockMark.CLAIMED, "nonce 0", 1, 7)
    assert (rows[1].mark, rows[1].receipt) == (BlockMark.AFTER, receipt), "what became of an attempt did not come back"
    assert rows[3].mark is BlockMark.BEFORE, "a block is claimed that nobody claimed"


@case(BARE)
def threads_that_claim_at_once_have_a_block_each(site: LedgerSite) -> None:
    """Two workers would both deliver one block."""
    _race_to_claim(site, in_threads, 4, 3)


@case(BARE)
def a_takeover_and_claims_know_each_other(site: LedgerSite) -> None:
    """A worker of the driver that was replaced would deliver a block that the new driver delivers, too."""
    state, _ = _claiming(site, PIPELINE, 40)
    held, begun = Claim.of(state), threading.Event()

    def take_over() -> list[int]:
        ledger = claims_of(site.open(PIPELINE))
        begun.wait(60)
        ledger.change(state, taken(state, "newer"))
        return [each.number for each in ledger.status(1).rows if each.mark is BlockMark.CLAIMED]

    def claim_all() -> list[int]:
        ledger, won = claims_of(site.open(PIPELINE)), []
        for number in range(40):
            if ledger.claim(Spot(1, number), held, str(number), harmless=False) is not None:
                won.append(number)
            if number == 3:
                begun.set()
        return won

    seen, made = in_threads(2, lambda name: take_over() if name.endswith("-0") else claim_all())
    assert made == seen, "a claim was made that the takeover did not see"
    assert claims_of(site.open(PIPELINE)).claim(Spot(1, 39), held, "late", harmless=True) is None, "an old claim holds"


@case(SHARED, BARE)
def processes_that_claim_at_once_have_a_block_each(site: LedgerSite) -> None:
    """As for threads, between machines' workers."""
    _race_to_claim(site, in_processes, 2, 8)


@case(SHARED, BARE)
def a_claim_that_is_killed_at_any_line_is_made_or_not(site: LedgerSite) -> None:
    """A worker that crashed would leave an entry that no later start can read, or fence the driver that it works for."""

    def claiming(name: str) -> Callable[[], object]:
        state, _ = _claiming(site, name, 2)
        return lambda: claims_of(site.open(name)).claim(Spot(1, 0), Claim.of(state), "mine", harmless=False)

    for name, moment in _kills(site, claiming, SOME_MOMENTS // 2):
        try:
            ledger = claims_of(site.open(name))
            state, row = ledger.load(), ledger.row(Spot(1, 0)).rows[0]
        except Exception as error:
            raise AssertionError(f"torn: it cannot be read (line {moment}): {type(error).__name__}: {error}") from error
        wanted = prepared(claimable_state(2, name), claimable_plan(2))
        assert state == wanted, f"torn: a part of the claim is there, and the state is another (line {moment})"
        assert (row.mark, row.nonce) in ((BlockMark.BEFORE, ""), (BlockMark.CLAIMED, "mine")), f"torn (line {moment})"
        again = ledger.claim(Spot(1, 1), Claim.of(wanted), "next", harmless=False)
        assert again is not None, f"the next worker cannot claim a block (line {moment})"


def _read(site: LedgerSite, name: str, moment: Moment) -> tuple[LedgerState | None, tuple[Note, ...]]:
    """What the next start finds."""
    try:
        return site.open(name).load(), site.open(name).journal()
    except Exception as error:
        raise AssertionError(f"torn: it cannot be read (line {moment}): {type(error).__name__}: {error}") from error


def _kills(
    site: LedgerSite, act_on: Callable[[str], Callable[[], object]], most: int = MOST_MOMENTS
) -> Iterator[tuple[str, Moment]]:
    """Kills an act on one pipeline after the other, each at another line. Then the case looks at what is left of it."""
    lines = (*lines_of(site.open(PIPELINE)), *site.packages)
    deaths = []
    for number, moment in enumerate(moments(lines, act_on(f"{PIPELINE}-whole"), min(most, site.moments))):
        name = f"{PIPELINE}{number}"
        deaths.append(crashed(lines, act_on(name), moment))
        yield name, moment
    require_kills(deaths)


Run = Callable[[int, Callable[[str], Any]], list[Any]]
"""`in_threads` or `in_processes`."""


def _race_to_create(site: LedgerSite, run: Run, drivers: int) -> None:
    for race in range(4):
        name = f"{PIPELINE}{race}"
        created = run(drivers, lambda who, name=name: site.open(name).create(first_state(name, who)))  # type: ignore[misc]
        seen = site.open(name).load()
        assert all(each == seen for each in created), "two creators each believe that theirs is the ledger"


def _race_to_count(site: LedgerSite, run: Run, writers: int, times: int) -> None:
    site.open(PIPELINE).create(counter())
    won = run(writers, lambda name: [each.version for each in _changed(site, times, lambda old: counted(old, name))])
    seen = site.open(PIPELINE).load()
    assert seen is not None
    assert seen.positions[0][1].committed == writers * times, "an update was lost"
    assert sorted(chain(*won)) == list(range(1, writers * times + 1)), "two writers made one version"


def _claiming(site: LedgerSite, name: str, blocks: int) -> tuple[LedgerState, EntryClaims]:
    """A plan that is prepared, and its ledger."""
    ledger, state = claims_of(site.open(name)), claimable_state(blocks, name)
    ledger.create(state)
    return ledger.change(state, prepared(state, claimable_plan(blocks))), ledger


def _race_to_claim(site: LedgerSite, run: Run, workers: int, blocks: int) -> None:
    state, ledger = _claiming(site, PIPELINE, blocks)

    def claim(name: str) -> list[int]:
        mine = claims_of(site.open(PIPELINE))
        spots = [Spot(1, number) for number in range(blocks)]
        return [
            each.number for each in spots if mine.claim(each, Claim.of(state), f"{name} {each.number}", harmless=False)
        ]

    won = sorted(chain(*run(workers, claim)))
    assert won == list(range(blocks)), "a block was claimed by two workers, or by none"
    assert all(row.mark is BlockMark.CLAIMED and row.attempt == 1 for row in ledger.status(1).rows), "a claim was lost"


def _changed(site: LedgerSite, times: int, change: Callable[[LedgerState], LedgerState]) -> list[LedgerState]:
    """Changes the state so many times; the states that this writer believes to have made."""
    ledger = site.open(PIPELINE)
    won: list[LedgerState] = []
    while len(won) < times:
        state = ledger.load()
        assert state is not None
        with suppress(Fenced):
            won.append(ledger.change(state, change(state)))
    return won


def _kill_marcher(site: LedgerSite, name: str, seconds: float) -> int:
    """Lets a process march for a while, kills it, and returns the last version that was answered."""
    reading, sending = FORK.Pipe(duplex=False)

    def go() -> None:
        ledger = site.open(name)
        state = ledger.load()
        while state is not None:
            state = ledger.change(state, advanced(state))
            sending.send(state.version)

    worker = started(go)
    sending.close()
    answered = reading.recv()
    time.sleep(seconds)
    worker.kill()
    worker.join(60)
    with suppress(EOFError):
        while True:
            answered = reading.recv()
    return int(answered)
