"""No schedule of crashes, zombies, lost answers and restarts duplicates or loses a row in a target that takes whatever comes."""

from __future__ import annotations

import pytest

from .wide import Wide, too_large
from .wrapped_scenarios import SCENARIOS
from .wrapped_values import Scenario
from .wrapped_world import Pushes

ALL = Wide(Pushes, SCENARIOS)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
def test_every_row_arrives_exactly_once(scenario: Scenario) -> None:
    ALL.holds(scenario)


@pytest.mark.long
@pytest.mark.parametrize("scenario", too_large(SCENARIOS), ids=lambda each: each.name)
def test_farther_into_what_is_too_large(scenario: Scenario) -> None:
    ALL.holds_farther(scenario)


def test_the_search_is_wide_enough() -> None:
    ALL.is_wide("claimed")
