"""Every bug that was planted in the protocol of snapshots is found, with a schedule that says how it does harm."""

from __future__ import annotations

import pytest

from .harm import does_harm
from .mutants import Mutant
from .snapshot_mutants import MUTANTS
from .snapshot_scenarios import SCENARIOS
from .snapshot_world import Snapshots

ENOUGH = 20
LIMIT = 20_000


@pytest.mark.uncounted
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.name)
def test_a_planted_bug_is_found(mutant: Mutant) -> None:
    does_harm(mutant, Snapshots, SCENARIOS, LIMIT)


def test_there_are_enough_of_them() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= ENOUGH
