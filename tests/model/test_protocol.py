"""No schedule of crashes, zombies, lost answers, late inserts and restored ledgers duplicates or loses a record."""

from __future__ import annotations

import pytest

from .scenarios import BEYOND, SCENARIOS
from .values import Scenario
from .wide import Wide, too_large
from .world import Model

ALL = Wide(Model, SCENARIOS)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
def test_every_record_lands_exactly_once(scenario: Scenario) -> None:
    ALL.holds(scenario)


@pytest.mark.long
@pytest.mark.parametrize("scenario", too_large(SCENARIOS), ids=lambda each: each.name)
def test_farther_into_what_is_too_large(scenario: Scenario) -> None:
    ALL.holds_farther(scenario)


@pytest.mark.long
def test_the_search_is_far_enough() -> None:
    ALL.is_far("deduplicating")


def test_the_search_is_wide_enough() -> None:
    ALL.is_wide("deduplicating")


@pytest.mark.uncounted
@pytest.mark.parametrize("scenario", BEYOND, ids=lambda each: each.name)
def test_what_is_not_promised_is_seen_to_break(scenario: Scenario) -> None:
    """The documented conditions are needed: without them the same checker finds a duplicate or a loss."""
    ALL.breaks(scenario, 300_000, "is in the target twice")
