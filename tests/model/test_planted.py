"""How many bugs are planted in all. That each of them is found, the test beside its scenarios shows."""

from __future__ import annotations

from . import (
    mutants,
    query_mutants,
    snapshot_mutants,
    snapshot_query_mutants,
    transaction_mutants,
    transaction_query_mutants,
    wrapped_mutants,
    wrapped_query_mutants,
)

PLANTED = (
    mutants,
    query_mutants,
    snapshot_mutants,
    snapshot_query_mutants,
    transaction_mutants,
    transaction_query_mutants,
    wrapped_mutants,
    wrapped_query_mutants,
)


def test_there_are_enough_of_them_and_each_has_a_name_of_its_own() -> None:
    named = [(module.__name__, mutant.name) for module in PLANTED for mutant in module.MUTANTS]
    print(f"{len(named)} planted bugs")
    assert len(set(named)) == len(named) >= 180
