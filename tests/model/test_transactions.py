"""No schedule of crashes, zombies, lost answers and restarts duplicates or loses a row where rows and ledger are one database."""

from __future__ import annotations

import pytest

from .transaction_scenarios import SCENARIOS
from .transaction_values import Scenario
from .transaction_world import Transactions
from .wide import Wide

ALL = Wide(Transactions, SCENARIOS)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
def test_every_row_is_in_the_table_exactly_once(scenario: Scenario) -> None:
    ALL.holds(scenario)


def test_the_search_is_wide_enough() -> None:
    ALL.is_wide("transactional")
