"""The contract of a ledger, for every store alike.

`LedgerContract` is what any ledger keeps inside one process; `ProcessContract` what a ledger keeps between processes
that race and are killed. Both ask for a fixture `site` (see `ledger_sites`) with an empty store. A store that declares
no `processes` capability is simply never handed to `ProcessContract`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from ledger_sites import COMMIT, Site, before_statement
from ledger_states import (
    PIPELINE,
    advanced,
    check_whole,
    counted,
    first_state,
    full_state,
    march,
    marched,
    wide_state,
)

from landonce.errors import Fenced
from landonce.plan.ranges import Partition
from landonce.record.ledger import Ledger, LedgerState, Note, Position, Totals, recorded, taken

_FORK = multiprocessing.get_context("fork")
KEY_PARTS: dict[str, Callable[[LedgerState], LedgerState]] = {
    "epoch": lambda state: replace(state, epoch=state.epoch - 1),
    "owner": lambda state: replace(state, owner="an owner of the same epoch"),
    "version": lambda state: replace(state, version=state.version - 1),
    "lineage": lambda state: replace(state, lineage="an earlier life"),
}
AFTERWARDS = "after the answer"
MOMENTS = ("UPDATE landonce_pipeline", "landonce_position", "landonce_journal", COMMIT, AFTERWARDS)


def note(number: int) -> Note:
    return Note(f"2026-11-01T00:00:{number:02}Z", "accept-gap", f"detail {number} ✓")


class LedgerContract:
    """What every ledger keeps."""

    def test_an_empty_store_has_no_state_and_no_notes(self, site: Site) -> None:
        ledger = site.open(PIPELINE)
        assert ledger.load() is None
        assert ledger.journal() == ()

    def test_the_first_state_stays(self, site: Site) -> None:
        first, second = site.open(PIPELINE), site.open(PIPELINE)
        assert first.create(first_state(lineage="one")) == first_state(lineage="one")
        assert second.create(first_state(lineage="two")) == first_state(lineage="one")
        assert second.load() == first_state(lineage="one")

    def test_every_field_comes_back_after_create(self, site: Site) -> None:
        site.open(PIPELINE).create(full_state())
        assert site.open(PIPELINE).load() == full_state()

    def test_every_field_comes_back_after_change(self, site: Site) -> None:
        ledger = site.open(PIPELINE)
        ledger.create(first_state())
        assert ledger.change(first_state(), full_state()) == full_state()
        assert site.open(PIPELINE).load() == full_state()

    def test_what_a_change_takes_away_is_gone(self, site: Site) -> None:
        ledger = site.open(PIPELINE)
        full = ledger.create(full_state())
        bare = replace(first_state(), lineage="another life", version=full.version + 1)
        fewer = replace(full, version=full.version + 2, positions=full.positions[1:3], labels=(), pending=None)
        assert ledger.change(full, bare) == bare
        assert site.open(PIPELINE).load() == bare
        assert ledger.change(bare, fewer) == fewer
        assert site.open(PIPELINE).load() == fewer

    def test_ten_thousand_partitions(self, site: Site) -> None:
        began = time.monotonic()
        ledger = site.open(PIPELINE)
        state = ledger.create(wide_state(10_000))
        assert ledger.load() == state
        state = ledger.change(state, recorded(state, Totals(landed=1)))
        assert ledger.load() == state
        assert time.monotonic() - began < 15

    @pytest.mark.parametrize("part", KEY_PARTS)
    def test_a_driver_that_is_wrong_in_one_part_of_the_key_is_fenced(self, site: Site, part: str) -> None:
        state = site.open(PIPELINE).create(full_state())
        stale = KEY_PARTS[part](state)
        with pytest.raises(Fenced):
            site.open(PIPELINE).change(stale, replace(stale, version=state.version + 1), note(1))
        assert site.open(PIPELINE).load() == state
        assert site.open(PIPELINE).journal() == ()

    def test_an_older_epoch_is_fenced_and_says_so(self, site: Site) -> None:
        mine = site.open(PIPELINE).create(first_state())
        theirs = site.open(PIPELINE).change(mine, taken(mine, "newer"))
        with pytest.raises(Fenced, match="this driver holds epoch 0, version 0, and the ledger has epoch 1, version 1"):
            site.open(PIPELINE).change(mine, taken(mine, "older"))
        assert site.open(PIPELINE).load() == theirs

    def test_the_same_change_twice_is_fenced(self, site: Site) -> None:
        """An answer that did arrive is not forgotten: only a lost one is settled by looking."""
        state = site.open(PIPELINE).create(first_state())
        ledger = site.open(PIPELINE)
        ledger.change(state, taken(state, "me"))
        with pytest.raises(Fenced):
            ledger.change(state, taken(state, "me"))

    def test_a_pipeline_without_an_entry_is_fenced(self, site: Site) -> None:
        ledger = site.open(PIPELINE)
        with pytest.raises(Fenced, match="no entry at all"):
            ledger.change(first_state(), taken(first_state(), "me"))
        assert ledger.load() is None

    def test_notes_come_back_in_order(self, site: Site) -> None:
        ledger = site.open(PIPELINE)
        state = ledger.create(first_state())
        for number in range(12):
            state = ledger.change(state, advanced(state), note(number) if number % 2 else None)
        assert ledger.journal() == tuple(note(number) for number in range(1, 12, 2))
        assert site.open(PIPELINE).journal() == ledger.journal()

    def test_pipelines_do_not_see_each_other(self, site: Site) -> None:
        names = ("orders", "Orders", "orders ", "заказы", "o'rders%")
        for number, name in enumerate(names):
            state = site.open(name).create(full_state(name))
            site.open(name).change(state, replace(state, version=state.version + 1 + number), note(number))
        for number, name in enumerate(names):
            assert site.open(name).load() == replace(full_state(name), version=full_state().version + 1 + number)
            assert site.open(name).journal() == (note(number),)

    def test_mistakes_of_the_caller_change_nothing(self, site: Site) -> None:
        ledger = site.open(PIPELINE)
        state = ledger.create(full_state())
        unordered = replace(state, version=state.version + 1, positions=state.positions[::-1])
        for wrong in (unordered, replace(state, batch=99), full_state("another")):
            with pytest.raises(ValueError):
                ledger.change(state, wrong)
        with pytest.raises(ValueError):
            ledger.create(full_state("another"))
        assert ledger.load() == state

    def test_threads_that_create_at_once_agree(self, site: Site) -> None:
        created = in_threads(6, lambda name: site.open(PIPELINE).create(first_state(lineage=name)))
        check_agreed(created, site.open(PIPELINE).load())

    def test_threads_that_count_at_once_lose_nothing(self, site: Site) -> None:
        site.open(PIPELINE).create(counter())
        won = in_threads(4, lambda name: count(site.open(PIPELINE), name, 8))
        check_counted(site.open(PIPELINE).load(), won, 4 * 8)

    def test_close_and_go_on(self, site: Site) -> None:
        ledger = site.open(PIPELINE)
        ledger.create(first_state())
        ledger.close()
        assert site.open(PIPELINE).load() == first_state()


class ProcessContract:
    """What a ledger keeps that several processes share."""

    def test_processes_that_create_at_once_agree(self, site: Site) -> None:
        created = in_processes(3, lambda name: site.open(PIPELINE).create(first_state(lineage=name)))
        check_agreed(created, site.open(PIPELINE).load())

    def test_every_epoch_has_one_owner(self, site: Site) -> None:
        site.open(PIPELINE).create(first_state())
        won = in_processes(2, lambda name: take(site.open(PIPELINE), name, 15))
        assert sorted(epoch for each in won for epoch in each) == list(range(1, 31))

    def test_processes_that_count_at_once_lose_nothing(self, site: Site) -> None:
        site.open(PIPELINE).create(counter())
        won = in_processes(2, lambda name: count(site.open(PIPELINE), name, 20))
        check_counted(site.open(PIPELINE).load(), won, 2 * 20)

    @pytest.mark.parametrize("moment", MOMENTS)
    def test_killed_at_a_chosen_moment(self, site: Site, moment: str) -> None:
        check_killed_at(site, moment)

    @pytest.mark.parametrize("seconds", [0.05, 0.11, 0.23, 0.31])
    def test_killed_at_any_time(self, site: Site, seconds: float) -> None:
        """What was answered is there, what is there is whole, and at most one change more than was answered."""
        site.open(PIPELINE).create(first_state())
        answered = kill_marcher(site, seconds)
        seen = site.open(PIPELINE).load()
        check_whole(seen)
        assert answered <= seen.version <= answered + 1
        assert site.open(PIPELINE).change(seen, advanced(seen)) == marched(seen.version + 1)


# What the tests above do, and what they look at. Controls use the same with a ledger that is broken.


def counter() -> LedgerState:
    return replace(first_state(), positions=((Partition("counter", 0), Position(0, 0)),))


def count(ledger: Ledger, name: str, times: int) -> list[int]:
    """Adds one so many times; gives back the versions that this writer believes to have made."""
    won: list[int] = []
    while len(won) < times:
        state = ledger.load()
        assert state is not None
        with suppress(Fenced):
            won.append(ledger.change(state, counted(state, name)).version)
    return won


def take(ledger: Ledger, name: str, times: int) -> list[int]:
    won: list[int] = []
    while len(won) < times:
        state = ledger.load()
        assert state is not None
        with suppress(Fenced):
            won.append(ledger.change(state, taken(state, name)).epoch)
    return won


def check_counted(seen: LedgerState | None, won: list[list[int]], total: int) -> None:
    assert seen is not None
    assert seen.positions[0][1].committed == total, "an update was lost"
    assert sorted(version for each in won for version in each) == list(range(1, total + 1))


def check_agreed(created: list[LedgerState], seen: LedgerState | None) -> None:
    assert all(each == seen for each in created), "two creators each believe that theirs is the ledger"


def check_killed_at(site: Site, moment: str) -> None:
    """kill -9 right before a statement of a change that moves every position and writes a note, or after it."""
    before, after = marched(4), marched(5)
    site.open(PIPELINE).create(before)
    moving = replace(recorded(after, Totals(landed=1)), owner="moved")

    def die_midway(name: str) -> None:
        ledger = site.open(PIPELINE)
        ledger.change(before, after)
        with before_statement(ledger, moment, lambda: os.kill(os.getpid(), signal.SIGKILL)):
            ledger.change(after, moving, note(1))
        os.kill(os.getpid(), signal.SIGKILL)

    worker = _FORK.Process(target=die_midway, args=("dies",))
    worker.start()
    worker.join(20)
    assert worker.exitcode == -signal.SIGKILL
    applied = moment == AFTERWARDS
    assert site.open(PIPELINE).load() == (moving if applied else after), "torn: a part of the change is there"
    assert site.open(PIPELINE).journal() == ((note(1),) if applied else ())


def kill_marcher(site: Site, seconds: float) -> int:
    """Lets a process march for a while, kills it, and gives back the last version that it was answered."""
    told, tell = _FORK.Pipe(duplex=False)

    def go(name: str) -> None:
        ledger = site.open(PIPELINE)
        states = march(ledger.load())
        old = next(states)
        for new in states:
            ledger.change(old, new)
            tell.send(new.version)
            old = new

    worker = _FORK.Process(target=go, args=("marches",))
    worker.start()
    tell.close()
    answered = told.recv()
    time.sleep(seconds)
    worker.kill()
    worker.join(20)
    with suppress(EOFError):
        while True:
            answered = told.recv()
    return int(answered)


def in_threads(number: int, work: Callable[[str], Any]) -> list[Any]:
    """All start at once; what each gives back."""
    gate, results = threading.Barrier(number), {}

    def one(name: str) -> None:
        gate.wait(20)
        results[name] = work(name)

    workers = [threading.Thread(target=one, args=(f"thread-{each}",)) for each in range(number)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(40)
    assert len(results) == number, "a worker failed; see its traceback"
    return list(results.values())


def in_processes(number: int, work: Callable[[str], Any]) -> list[Any]:
    """All start at once; what each gives back. A process that fails says so by its exit code."""
    gate = _FORK.Barrier(number)
    pipes, workers = [], []

    def one(name: str, tell: Any) -> None:
        gate.wait(20)
        tell.send(work(name))

    for each in range(number):
        told, tell = _FORK.Pipe(duplex=False)
        worker = _FORK.Process(target=one, args=(f"process-{each}", tell))
        worker.start()
        tell.close()
        pipes.append(told)
        workers.append(worker)
    results = [told.recv() for told in pipes if told.poll(40)]
    for worker in workers:
        worker.join(10)
    assert [worker.exitcode for worker in workers] == [0] * number
    return results
