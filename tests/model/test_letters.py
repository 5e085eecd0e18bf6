"""No schedule of crashes, zombies, lost answers and restored ledgers makes a replayed dead letter land twice, or not at all."""

from __future__ import annotations

import pytest

from .harm import does_harm
from .letters_mutants import MUTANTS
from .letters_world import SCENARIOS, LetterModel
from .mutants import Mutant
from .values import Scenario
from .wide import Wide, too_large

ALL = Wide(LetterModel, SCENARIOS)
LIMIT = 150_000


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
def test_every_letter_lands_exactly_once(scenario: Scenario) -> None:
    ALL.holds(scenario)


@pytest.mark.long
@pytest.mark.parametrize("scenario", too_large(SCENARIOS), ids=lambda each: each.name)
def test_farther_into_what_is_too_large(scenario: Scenario) -> None:
    ALL.holds_farther(scenario)


@pytest.mark.uncounted
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.name)
def test_a_planted_bug_is_found(mutant: Mutant) -> None:
    does_harm(mutant, LetterModel, SCENARIOS, LIMIT)
