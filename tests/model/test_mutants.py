"""Every planted bug is found, with a schedule that says how it does harm."""

from __future__ import annotations

import pytest

from .core import Patch, load
from .harm import does_harm
from .mutants import DEDUPLICATING, MUTANTS, Mutant
from .scenarios import SCENARIOS
from .world import Model

ENOUGH = 14
LIMIT = 150_000


@pytest.mark.uncounted
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.name)
def test_a_planted_bug_is_found(mutant: Mutant) -> None:
    does_harm(mutant, Model, SCENARIOS, LIMIT)


def test_there_are_enough_of_them() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= ENOUGH


def test_a_patch_that_fits_no_more_is_an_error() -> None:
    with pytest.raises(AssertionError, match="occurs 0 times"):
        load(Patch(DEDUPLICATING, "this is not in the source", ""))
