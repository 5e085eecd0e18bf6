"""What a ledger keeps that several processes share: races between them, and crashes at every line of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from landonce.errors import Fenced
from landonce.protocol.ledger import Ledger, LedgerState, Note, taken
from landonce.testing.cases_ledgers import check_agreed, check_counted, count
from landonce.testing.crashing import (
    FORK,
    Lines,
    Moment,
    crashed,
    in_another_process,
    in_processes,
    lines_of,
    moments,
    require_kills,
    started,
)
from landonce.testing.ledger_sites import (
    BARE,
    LEDGER_CASES,
    PIPELINE,
    SHARED,
    LedgerSite,
    advanced,
    check_whole,
    counter,
    first_state,
    full_state,
    march,
    marched,
    moved,
    note,
)

__all__ = ["LEDGER_CASES"]

case = LEDGER_CASES.case


@case(SHARED)
def the_store_outlives_its_process(site: LedgerSite) -> None:
    """Every restart would begin again, and deliver everything again."""
    in_another_process(lambda: site.open(PIPELINE).create(full_state()))
    assert site.open(PIPELINE).load() == full_state(), "the state ended with the process that made it"


@case(SHARED)
def processes_that_create_at_once_agree(site: LedgerSite) -> None:
    """As for threads, between machines' drivers."""
    for race in range(4):
        name = f"{PIPELINE}{race}"
        created = in_processes(3, lambda who, name=name: site.open(name).create(first_state(name, who)))  # type: ignore[misc]
        check_agreed(created, site.open(name).load())


@case(SHARED)
def every_epoch_has_one_owner(site: LedgerSite) -> None:
    """Two drivers would both own the pipeline, and both deliver."""
    site.open(PIPELINE).create(first_state())
    won = in_processes(2, lambda name: _take(site.open(PIPELINE), name, 15))
    epochs = sorted(epoch for each in won for epoch in each)
    assert epochs == list(range(1, 31)), "an epoch has two owners, or none"


@case(SHARED)
def processes_that_count_at_once_lose_nothing(site: LedgerSite) -> None:
    """As for threads, between machines' drivers."""
    site.open(PIPELINE).create(counter())
    won = in_processes(2, lambda name: count(site.open(PIPELINE), name, 20))
    check_counted(site.open(PIPELINE).load(), won, 2 * 20)


@case(SHARED)
def a_create_that_is_killed_at_any_line_is_whole_or_absent(site: LedgerSite) -> None:
    """A first start that crashed would leave a ledger that no later start can read, or one with a part of its positions."""
    names, deaths = _names(), []
    for moment in moments(*_creating(site, names()), site.moments):
        name = names()
        deaths.append(crashed(*_creating(site, name), moment))
        seen, _ = _read(site, name, moment)
        assert seen is None or seen == full_state(name), f"torn: a part of the state is there (line {moment})"
        assert site.open(name).create(full_state(name)) == full_state(name), (
            f"a later start cannot go on (line {moment})"
        )
    require_kills(deaths)


@case(SHARED)
def a_change_that_is_killed_at_any_line_is_whole_or_absent(site: LedgerSite) -> None:
    """A crash would leave the position of some partitions behind, or move it without its note."""
    names, deaths = _names(), []
    for moment in moments(*_changing(site, names()), site.moments):
        name = names()
        before, after = _marching(name)
        deaths.append(crashed(*_changing(site, name), moment))
        seen, notes = _read(site, name, moment)
        assert seen in (before, after), f"torn: a part of the change is there (line {moment})"
        assert notes == ((note(1),) if seen == after else ()), f"torn: note and change are not together (line {moment})"
    require_kills(deaths)


@case(SHARED)
def a_driver_that_was_killed_locks_nobody_out(site: LedgerSite) -> None:
    """After a crash no driver could start before a person has cleaned up."""
    site.open(PIPELINE).create(first_state())
    lines = _lines(site, PIPELINE)

    def change() -> None:
        mine = site.open(PIPELINE)
        state = mine.load()
        assert state is not None
        mine.change(state, taken(state, "dies"))

    deaths = []
    for moment in moments(lines, change, site.moments):
        deaths.append(crashed(lines, change, moment))
        state, _ = _read(site, PIPELINE, moment)
        assert state is not None, f"the state is gone (line {moment})"
        try:
            site.open(PIPELINE).change(state, taken(state, "next"))
        except Exception as error:
            raise AssertionError(f"the next driver cannot take over (line {moment}): {error}") from error
    require_kills(deaths)


@case(SHARED, BARE)
def killed_at_any_time(site: LedgerSite) -> None:
    """A change that was answered would not survive, or half of one would."""
    for race, seconds in enumerate((0.05, 0.11, 0.23)):
        name = f"{PIPELINE}{race}"
        site.open(name).create(_named(first_state(), name))
        answered = _kill_marcher(site, name, seconds)
        seen = site.open(name).load()
        check_whole(_named(seen, PIPELINE) if seen else None)
        assert seen is not None
        assert answered <= seen.version <= answered + 1, "what was answered is not there, or more than one change is"
        assert site.open(name).change(seen, advanced(seen)) == advanced(seen)


def _read(site: LedgerSite, name: str, moment: Moment) -> tuple[LedgerState | None, tuple[Note, ...]]:
    """What the next start finds."""
    try:
        return site.open(name).load(), site.open(name).journal()
    except Exception as error:
        raise AssertionError(f"torn: it cannot be read (line {moment}): {type(error).__name__}: {error}") from error


def _names() -> Callable[[], str]:
    made = iter(range(10_000))
    return lambda: f"{PIPELINE}{next(made)}"


def _named(state: LedgerState, name: str) -> LedgerState:
    return replace(state, pipeline=name)


def _lines(site: LedgerSite, name: str) -> Lines:
    return (*lines_of(site.open(name)), *site.packages)


def _creating(site: LedgerSite, name: str) -> tuple[Lines, Callable[[], object]]:
    return _lines(site, name), lambda: site.open(name).create(full_state(name))


def _marching(name: str) -> tuple[LedgerState, LedgerState]:
    """Thirty partitions, and all of them one step further."""
    before = _named(marched(2), name)
    return before, moved(before)


def _changing(site: LedgerSite, name: str) -> tuple[Lines, Callable[[], object]]:
    before, after = _marching(name)
    site.open(name).create(before)
    return _lines(site, name), lambda: site.open(name).change(before, after, note(1))


def _take(ledger: Ledger, name: str, times: int) -> list[int]:
    won: list[int] = []
    while len(won) < times:
        state = ledger.load()
        assert state is not None
        with suppress(Fenced):
            won.append(ledger.change(state, taken(state, name)).epoch)
    return won


def _kill_marcher(site: LedgerSite, name: str, seconds: float) -> int:
    """Lets a process march for a while, kills it, and gives back the last version that it was answered."""
    reading, sending = FORK.Pipe(duplex=False)

    def go() -> None:
        ledger = site.open(name)
        states = march(ledger.load())
        old = next(states)
        for new in states:
            ledger.change(old, new)
            sending.send(new.version)
            old = new

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
