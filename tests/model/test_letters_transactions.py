"""No schedule of crashes, workers that live on and lost answers makes a dead letter that is replayed in transactions land twice, or not at all."""

from __future__ import annotations

import pytest

from .harm import does_harm
from .letters_mutants import TRANSACTIONS
from .letters_transactions import SCENARIOS, LetterTransactions
from .mutants import Mutant
from .transaction_values import Scenario
from .wide import Wide

ALL = Wide(LetterTransactions, SCENARIOS)
LIMIT = 100_000


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
def test_every_letter_lands_exactly_once(scenario: Scenario) -> None:
    ALL.holds(scenario)


@pytest.mark.uncounted
@pytest.mark.parametrize("mutant", TRANSACTIONS, ids=lambda each: each.name)
def test_a_planted_bug_is_found(mutant: Mutant) -> None:
    does_harm(mutant, LetterTransactions, SCENARIOS, LIMIT)
