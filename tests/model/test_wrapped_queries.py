"""No schedule of crashes, zombies, lost answers and restarts duplicates or loses a record of a user's own query into a wrapped sink."""

from __future__ import annotations

import pytest

from .harm import does_harm
from .mutants import Mutant
from .transaction_queries import WrappedQueries
from .wide import Wide
from .wrapped_query_mutants import MUTANTS
from .wrapped_query_scenarios import SCENARIOS
from .wrapped_values import Scenario

ALL = Wide(WrappedQueries, SCENARIOS)
LIMIT = 20_000


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
def test_every_row_arrives_exactly_once(scenario: Scenario) -> None:
    ALL.holds(scenario)


def test_the_search_is_wide_enough() -> None:
    ALL.is_wide("claimed, queries")


@pytest.mark.uncounted
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.name)
def test_a_planted_bug_is_found(mutant: Mutant) -> None:
    does_harm(mutant, WrappedQueries, SCENARIOS, LIMIT)
