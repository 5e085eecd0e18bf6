"""Every bug that was planted in the protocol of transactions is found, with a schedule that says how it does harm."""

from __future__ import annotations

import pytest

from .harm import does_harm
from .mutants import Mutant
from .transaction_mutants import MUTANTS
from .transaction_scenarios import SCENARIOS
from .transaction_world import Transactions

ENOUGH = 20
LIMIT = 20_000


@pytest.mark.uncounted
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.name)
def test_a_planted_bug_is_found(mutant: Mutant) -> None:
    does_harm(mutant, Transactions, SCENARIOS, LIMIT)


def test_there_are_enough_of_them() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= ENOUGH
