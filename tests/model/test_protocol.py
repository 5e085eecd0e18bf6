"""No schedule of crashes, zombies, lost answers, late inserts and restored ledgers duplicates or loses a record."""

from __future__ import annotations

import pytest

from .core import Core, load
from .scenarios import BEYOND, SCENARIOS
from .search import search
from .values import Scenario
from .world import Model

ENOUGH = 200_000
_seen: dict[str, int] = {}


@pytest.fixture(scope="module")
def core() -> Core:
    return load()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
def test_every_record_lands_exactly_once(core: Core, scenario: Scenario) -> None:
    searched = search(Model(core, scenario))
    print(searched)
    _seen[scenario.name] = searched.worlds
    assert searched.found is None, f"{scenario.name}: {searched.found}"


def test_the_search_is_wide_enough() -> None:
    if len(_seen) < len(SCENARIOS):
        pytest.skip("only some of the scenarios were run")
    print(f"{sum(_seen.values())} worlds in all")
    assert sum(_seen.values()) >= ENOUGH


@pytest.mark.parametrize("scenario", BEYOND, ids=lambda each: each.name)
def test_what_is_not_promised_is_seen_to_break(core: Core, scenario: Scenario) -> None:
    """The documented conditions are needed: without them the same checker finds a duplicate or a loss."""
    searched = search(Model(core, scenario), 300_000, shortest=True)
    print(searched.found)
    assert searched.found is not None
    assert "is in the target twice" in searched.found.what
