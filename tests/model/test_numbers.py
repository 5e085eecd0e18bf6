"""How many bugs are planted and how many worlds are searched, in all. The tests beside the scenarios hold each to its part."""

from __future__ import annotations

from . import (
    dedup_mutants,
    letters_mutants,
    mutants,
    push_mutants,
    query_mutants,
    snapshot_mutants,
    snapshot_query_mutants,
    transaction_mutants,
    transaction_query_mutants,
    wrapped_mutants,
    wrapped_query_mutants,
)
from .wide import FAR, WORLDS

PLANTED = (
    dedup_mutants,
    letters_mutants,
    mutants,
    push_mutants,
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
    assert len(set(named)) == len(named) >= 260


def test_two_million_worlds_are_searched() -> None:
    """By `make test-long`. `make test` takes the first 6,000 of each scenario."""
    assert sum(WORLDS.values()) >= 1_000_000
    assert sum(WORLDS.values()) + sum(FAR.values()) >= 2_000_000
