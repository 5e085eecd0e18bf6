"""All scenarios of one protocol: every schedule ends well, and together they are wide enough to mean something."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import pytest

from .core import Core, load
from .search import search


class Wide:
    """Searches them one by one, and counts."""

    def __init__(self, model: Callable[[Core, Any], Any], scenarios: Sequence[Any]) -> None:
        self._model, self._scenarios = model, scenarios
        self._seen: dict[str, int] = {}

    @cached_property
    def _core(self) -> Core:
        return load()

    def holds(self, scenario: Any) -> None:
        searched = search(self._model(self._core, scenario))
        print(searched)
        self._seen[scenario.name] = searched.worlds
        assert searched.found is None, f"{scenario.name}: {searched.found}"

    def is_wide(self, enough: int) -> None:
        if len(self._seen) < len(self._scenarios):
            pytest.skip("only some of the scenarios were run")
        print(f"{sum(self._seen.values())} worlds in all")
        assert sum(self._seen.values()) >= enough

    def breaks(self, scenario: Any, limit: int) -> str:
        """What goes wrong first where a documented condition does not hold."""
        searched = search(self._model(self._core, scenario), limit, shortest=True)
        print(searched.found)
        assert searched.found is not None
        return searched.found.what
