"""Every bug that was planted in the protocol of wrapped sinks is found, with a schedule that says how it does harm."""

from __future__ import annotations

import pytest

from .core import load
from .mutants import Mutant
from .search import search
from .wrapped_mutants import MUTANTS
from .wrapped_scenarios import SCENARIOS
from .wrapped_world import Pushes

ENOUGH = 20
LIMIT = 20_000


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.name)
def test_a_planted_bug_is_found(mutant: Mutant) -> None:
    scenario = next(each for each in SCENARIOS if each.name == mutant.scenario)
    searched = search(Pushes(load(*mutant.patches), scenario), LIMIT, shortest=True)
    assert searched.found is not None, f"{mutant.name} does no harm in {searched}"
    print(f"{mutant.name}, after {searched.worlds} worlds: {searched.found}")
    assert searched.found.schedule[0] == "driver 1 starts"
    assert any(": acquire" in step for step in searched.found.schedule)


def test_there_are_enough_of_them() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= ENOUGH
