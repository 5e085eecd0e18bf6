"""No schedule of crashes, zombies, lost answers and restarts duplicates or loses a record of a user's own query into a database."""

from __future__ import annotations

import pytest

from .harm import does_harm
from .mutants import Mutant
from .transaction_queries import DatabaseQueries
from .transaction_query_mutants import MUTANTS
from .transaction_query_scenarios import SCENARIOS
from .transaction_values import Scenario
from .wide import Wide, too_large

ALL = Wide(DatabaseQueries, SCENARIOS)
LIMIT = 20_000


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
def test_every_row_is_in_the_table_exactly_once(scenario: Scenario) -> None:
    ALL.holds(scenario)


@pytest.mark.long
@pytest.mark.parametrize("scenario", too_large(SCENARIOS), ids=lambda each: each.name)
def test_farther_into_what_is_too_large(scenario: Scenario) -> None:
    ALL.holds_farther(scenario)


def test_the_search_is_wide_enough() -> None:
    ALL.is_wide("transactional, queries")


@pytest.mark.uncounted
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.name)
def test_a_planted_bug_is_found(mutant: Mutant) -> None:
    does_harm(mutant, DatabaseQueries, SCENARIOS, LIMIT)


def test_there_are_enough_of_them() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 6
