"""No schedule of crashes, zombies, lost answers and restarts duplicates or loses a row where rows and ledger are one database."""

from __future__ import annotations

import pytest

from .core import Core, load
from .search import search
from .transaction_scenarios import SCENARIOS
from .transaction_values import Scenario
from .transaction_world import Transactions

ENOUGH = 50_000
_seen: dict[str, int] = {}


@pytest.fixture(scope="module")
def core() -> Core:
    return load()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
def test_every_row_is_in_the_table_exactly_once(core: Core, scenario: Scenario) -> None:
    searched = search(Transactions(core, scenario))
    print(searched)
    _seen[scenario.name] = searched.worlds
    assert searched.found is None, f"{scenario.name}: {searched.found}"


def test_the_search_is_wide_enough() -> None:
    if len(_seen) < len(SCENARIOS):
        pytest.skip("only some of the scenarios were run")
    print(f"{sum(_seen.values())} worlds in all")
    assert sum(_seen.values()) >= ENOUGH
