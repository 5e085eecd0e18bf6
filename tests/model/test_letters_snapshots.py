"""No schedule of crashes, commits that come late and lost answers makes a dead letter that is replayed by commits land twice, or not at all."""

from __future__ import annotations

import pytest

from .harm import does_harm
from .letters_mutants import SNAPSHOTS
from .letters_snapshots import SCENARIOS, LetterSnapshots
from .mutants import Mutant
from .snapshot_values import Scenario
from .wide import Wide

ALL = Wide(LetterSnapshots, SCENARIOS)
LIMIT = 100_000


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
def test_every_letter_lands_exactly_once(scenario: Scenario) -> None:
    ALL.holds(scenario)


@pytest.mark.uncounted
@pytest.mark.parametrize("mutant", SNAPSHOTS, ids=lambda each: each.name)
def test_a_planted_bug_is_found(mutant: Mutant) -> None:
    does_harm(mutant, LetterSnapshots, SCENARIOS, LIMIT)
