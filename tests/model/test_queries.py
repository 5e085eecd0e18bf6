"""No schedule of crashes, zombies, lost answers, lost and restored ledgers duplicates or loses a record of a user's own query."""

from __future__ import annotations

import pytest

from .harm import does_harm
from .mutants import Mutant
from .query_mutants import MUTANTS
from .query_mutants import OF_SEVERAL_PARTITIONS as PARTITIONS_MUTANTS
from .query_scenarios import OF_SEVERAL_PARTITIONS, SCENARIOS
from .query_world import Queries, SeveralPartitions
from .values import Scenario
from .wide import Wide, too_large

ALL = Wide(Queries, SCENARIOS)
OF_SEVERAL = Wide(SeveralPartitions, OF_SEVERAL_PARTITIONS)
ENOUGH = 8
LIMIT = 150_000


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
def test_every_record_lands_exactly_once(scenario: Scenario) -> None:
    ALL.holds(scenario)


@pytest.mark.parametrize("scenario", OF_SEVERAL_PARTITIONS, ids=lambda each: each.name)
def test_every_record_of_several_partitions_lands_exactly_once(scenario: Scenario) -> None:
    OF_SEVERAL.holds(scenario)


@pytest.mark.long
@pytest.mark.parametrize("scenario", too_large(SCENARIOS), ids=lambda each: each.name)
def test_farther_into_what_is_too_large(scenario: Scenario) -> None:
    ALL.holds_farther(scenario)


def test_the_search_is_wide_enough() -> None:
    ALL.is_wide("deduplicating, queries")
    OF_SEVERAL.is_wide("deduplicating, queries of several partitions")


@pytest.mark.uncounted
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.name)
def test_a_planted_bug_is_found(mutant: Mutant) -> None:
    does_harm(mutant, Queries, SCENARIOS, LIMIT)


@pytest.mark.uncounted
@pytest.mark.parametrize("mutant", PARTITIONS_MUTANTS, ids=lambda each: each.name)
def test_a_planted_bug_is_found_where_a_query_reads_several_partitions(mutant: Mutant) -> None:
    does_harm(mutant, SeveralPartitions, OF_SEVERAL_PARTITIONS, LIMIT)


def test_there_are_enough_of_them() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= ENOUGH
