"""No schedule of crashes, zombies, lost answers and restarts duplicates or loses a row in a target that takes whatever comes."""

from __future__ import annotations

import pytest

from .core import Core, load
from .search import search
from .wrapped_scenarios import SCENARIOS
from .wrapped_values import Scenario
from .wrapped_world import Pushes

ENOUGH = 50_000
_seen: dict[str, int] = {}


@pytest.fixture(scope="module")
def core() -> Core:
    return load()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
def test_every_row_arrives_exactly_once(core: Core, scenario: Scenario) -> None:
    searched = search(Pushes(core, scenario))
    print(searched)
    _seen[scenario.name] = searched.worlds
    assert searched.found is None, f"{scenario.name}: {searched.found}"


def test_the_search_is_wide_enough() -> None:
    if len(_seen) < len(SCENARIOS):
        pytest.skip("only some of the scenarios were run")
    print(f"{sum(_seen.values())} worlds in all")
    assert sum(_seen.values()) >= ENOUGH
