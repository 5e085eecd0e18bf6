"""No schedule of racing drivers, crashes, lost answers, expiry, other shards and restored stores loses an event or lets it in twice."""

from __future__ import annotations

import pytest

from .dedup_scenarios import BEYOND, SCENARIOS
from .dedup_values import Scenario
from .dedup_world import Deduplication
from .wide import Wide, too_large

ALL = Wide(Deduplication, SCENARIOS)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
def test_every_event_is_accepted_once_and_lands_once(scenario: Scenario) -> None:
    ALL.holds(scenario)


@pytest.mark.long
@pytest.mark.parametrize("scenario", too_large(SCENARIOS), ids=lambda each: each.name)
def test_farther_into_what_is_too_large(scenario: Scenario) -> None:
    ALL.holds_farther(scenario)


def test_the_search_is_wide_enough() -> None:
    ALL.is_wide("content")


@pytest.mark.uncounted
@pytest.mark.parametrize("scenario", BEYOND, ids=lambda each: each.name)
def test_what_is_not_promised_is_seen_to_break(scenario: Scenario) -> None:
    """The documented conditions are needed: without them the same checker finds a copy."""
    ALL.breaks(scenario, 40_000, "is in the target twice|other bytes are sent")
