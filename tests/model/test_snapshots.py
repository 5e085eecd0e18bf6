"""No schedule of crashes, zombies, lost answers, rollbacks and lost ledgers duplicates or loses a row of an atomic table."""

from __future__ import annotations

import pytest

from .core import Core, load
from .search import search
from .snapshot_scenarios import BEYOND, SCENARIOS
from .snapshot_values import Scenario
from .snapshot_world import Snapshots

ENOUGH = 300_000
_seen: dict[str, int] = {}


@pytest.fixture(scope="module")
def core() -> Core:
    return load()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
def test_every_row_is_in_its_tables_exactly_once(core: Core, scenario: Scenario) -> None:
    searched = search(Snapshots(core, scenario))
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
    """The documented conditions are needed: without them the same checker finds a loss."""
    searched = search(Snapshots(core, scenario), 40_000, shortest=True)
    print(searched.found)
    assert searched.found is not None
    assert "is not in table A" in searched.found.what or "which is not there" in searched.found.what
