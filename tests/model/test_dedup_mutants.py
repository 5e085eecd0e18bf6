"""Every bug that was planted in deduplication is found, with a schedule that says how it does harm."""

from __future__ import annotations

import pytest

from .dedup_mutants import MUTANTS
from .dedup_scenarios import SCENARIOS
from .dedup_world import Deduplication
from .harm import does_harm
from .mutants import Mutant

ENOUGH = 25
LIMIT = 40_000


@pytest.mark.uncounted
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.name)
def test_a_planted_bug_is_found(mutant: Mutant) -> None:
    does_harm(mutant, Deduplication, SCENARIOS, LIMIT)


def test_there_are_enough_of_them() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= ENOUGH
