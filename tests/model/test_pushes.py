"""No schedule of pushes, in whatever cuts, of crashes, zombies, lost answers and lost ledgers duplicates or loses a row, in any kind of sink."""

from __future__ import annotations

from typing import Any

import pytest

from . import push_mutants as mutants
from . import push_scenarios as scenarios
from .harm import does_harm
from .mutants import Mutant
from .push_world import DatabasePushes, LakePushes, Pushes, WrappedPushes
from .wide import Wide

KINDS: dict[str, tuple[Any, Any, tuple[Mutant, ...]]] = {
    "deduplicating": (Pushes, scenarios.IN_CLICKHOUSE, mutants.IN_CLICKHOUSE),
    "snapshot": (LakePushes, scenarios.IN_TABLES, mutants.IN_TABLES),
    "transactional": (DatabasePushes, scenarios.IN_DATABASES, mutants.IN_DATABASES),
    "claimed": (WrappedPushes, scenarios.WRAPPED, mutants.WRAPPED),
}
ALL = {kind: Wide(model, listed) for kind, (model, listed, _) in KINDS.items()}
LIMIT = 60_000


@pytest.mark.parametrize(
    ("kind", "scenario"),
    [pytest.param(kind, each, id=f"{kind}-{each.name}") for kind, (_, listed, _) in KINDS.items() for each in listed],
)
def test_every_row_lands_exactly_once(kind: str, scenario: Any) -> None:
    ALL[kind].holds(scenario)


@pytest.mark.parametrize("kind", KINDS)
def test_the_search_is_wide_enough(kind: str) -> None:
    ALL[kind].is_wide(f"{kind}, pushes")


@pytest.mark.uncounted
@pytest.mark.parametrize(
    ("kind", "mutant"),
    [pytest.param(kind, each, id=each.name) for kind, (_, _, planted) in KINDS.items() for each in planted],
)
def test_a_planted_bug_is_found(kind: str, mutant: Mutant) -> None:
    model, listed, _ = KINDS[kind]
    does_harm(mutant, model, listed, LIMIT)
