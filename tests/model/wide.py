"""All scenarios of one protocol: every schedule ends well, and together they are wide enough to mean something."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import pytest

from .core import Core, load
from .search import search

MOST = 300_000
"""Worlds of a scenario that is searched whole."""
AT_MOST = 0
"""Where it is not 0 (`--worlds`), no scenario is searched farther. `make test-long` searches all of them as far as they say."""
FARTHER = 40
"""In the long run, so many times as many worlds are searched where not all of them are."""

WORLDS = {
    "deduplicating": 500_000,
    "deduplicating, queries": 160_000,
    "deduplicating, queries of several partitions": 30_000,
    "deduplicating, pushes": 40_000,
    "snapshot": 300_000,
    "snapshot, queries": 220_000,
    "snapshot, pushes": 25_000,
    "transactional": 170_000,
    "transactional, queries": 13_000,
    "transactional, pushes": 4_000,
    "claimed": 150_000,
    "claimed, queries": 130_000,
    "claimed, pushes": 20_000,
    "content": 100_000,
}
"""What is seen at least without such a limit, by kind of sink and source of ranges."""
FAR = {"deduplicating": 500_000}
"""What is seen at least, farther into scenarios that are too large."""


def too_large(scenarios: Sequence[Any]) -> list[Any]:
    """Those of them that are searched in part."""
    return [each for each in scenarios if each.part]


class Wide:
    """Searches them one by one, and counts."""

    def __init__(self, model: Callable[[Core, Any], Any], scenarios: Sequence[Any]) -> None:
        self._model, self._scenarios = model, scenarios
        self._seen: dict[str, int] = {}
        self._far: dict[str, int] = {}

    @cached_property
    def _core(self) -> Core:
        return load()

    def holds(self, scenario: Any) -> None:
        """All worlds are seen, or as many as the scenario says: one that outgrows its limit, or could be seen whole, is noticed."""
        searched = search(self._model(self._core, scenario), AT_MOST or scenario.part or MOST)
        print(searched)
        assert searched.found is None, f"{scenario.name}: {searched.found}"
        if AT_MOST:
            return
        self._seen[scenario.name] = searched.worlds
        assert searched.whole is not bool(scenario.part), f"{searched}; the scenario says part={scenario.part}"

    def holds_farther(self, scenario: Any) -> None:
        """Of a scenario that is too large: many times as many worlds."""
        searched = search(self._model(self._core, scenario), FARTHER * scenario.part)
        print(searched)
        self._far[scenario.name] = searched.worlds
        assert searched.found is None, f"{scenario.name}: {searched.found}"

    def is_wide(self, of: str) -> None:
        self._sum(self._seen, self._scenarios, WORLDS[of])

    def is_far(self, of: str) -> None:
        self._sum(self._far, too_large(self._scenarios), FAR[of])

    def _sum(self, seen: dict[str, int], scenarios: Sequence[Any], enough: int) -> None:
        if len(seen) < len(scenarios):
            pytest.skip("only some of the scenarios were run")
        print(f"{sum(seen.values())} worlds in all")
        assert sum(seen.values()) >= enough

    def breaks(self, scenario: Any, limit: int, expected: str) -> None:
        """What goes wrong where a documented condition does not hold: a violation that says `expected`."""
        found = re.compile(expected)
        model = self._model(self._core, scenario)
        searched = search(model, limit, shortest=True, wanted=lambda what: found.search(what) is not None)
        print(searched.found)
        assert searched.found is not None, f"{searched}: nothing says {expected!r}"
