"""Every bug that was planted in the protocol of wrapped sinks is found, with a schedule that says how it does harm."""

from __future__ import annotations

import pytest

from .harm import does_harm
from .mutants import Mutant
from .wrapped_mutants import MUTANTS
from .wrapped_scenarios import SCENARIOS
from .wrapped_world import Pushes

ENOUGH = 20
LIMIT = 20_000


@pytest.mark.uncounted
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.name)
def test_a_planted_bug_is_found(mutant: Mutant) -> None:
    does_harm(mutant, Pushes, SCENARIOS, LIMIT)


def test_there_are_enough_of_them() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= ENOUGH
