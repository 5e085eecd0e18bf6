"""No schedule of crashes, zombies, lost answers, rollbacks and lost ledgers duplicates or loses a row of an atomic table."""

from __future__ import annotations

import pytest

from .snapshot_scenarios import BEYOND, SCENARIOS
from .snapshot_values import Scenario
from .snapshot_world import Snapshots
from .wide import Wide, too_large

ALL = Wide(Snapshots, SCENARIOS)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
def test_every_row_is_in_its_tables_exactly_once(scenario: Scenario) -> None:
    ALL.holds(scenario)


@pytest.mark.long
@pytest.mark.parametrize("scenario", too_large(SCENARIOS), ids=lambda each: each.name)
def test_farther_into_what_is_too_large(scenario: Scenario) -> None:
    ALL.holds_farther(scenario)


def test_the_search_is_wide_enough() -> None:
    ALL.is_wide("snapshot")


@pytest.mark.uncounted
@pytest.mark.parametrize("scenario", BEYOND, ids=lambda each: each.name)
def test_what_is_not_promised_is_seen_to_break(scenario: Scenario) -> None:
    """The documented conditions are needed: without them the same checker finds a loss."""
    ALL.breaks(scenario, 40_000, "is not in table A|which is not there")
