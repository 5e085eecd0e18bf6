"""A planted bug must do harm in its scenario, and the schedule that shows it begins where drivers begin."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from .core import load
from .mutants import Mutant
from .search import search


def does_harm(mutant: Mutant, model: Callable[[Any, Any], Any], scenarios: Iterable[Any], limit: int) -> None:
    scenario = next(each for each in scenarios if each.name == mutant.scenario)
    expected = re.compile(mutant.expects)
    patched = model(load(*mutant.patches), scenario)
    searched = search(patched, limit, shortest=True, wanted=lambda what: expected.search(what) is not None)
    assert searched.found is not None, f"{mutant.name} does not do the harm that is expected of it in {searched}"
    print(f"{mutant.name}, after {searched.worlds} worlds: {searched.found}")
    assert re.match(r"(driver|query) 1 starts", searched.found.schedule[0]), searched.found
    assert any(": acquire" in step for step in searched.found.schedule), searched.found
