"""How the kit itself is judged: a broken one must fail its case by an assertion of the kit, and be sound in most other ways."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from landonce.testing import Case


def check_fails(case: Case[Any], site: Any) -> None:
    """The kit's own assertion says so, and nothing that the broken one raised by itself."""
    with pytest.raises(AssertionError) as caught:
        case.check(site)
    place = Path(str(caught.traceback[-1].path))
    assert place.parent.name == "testing", f"{case}: {caught.value}"


def check_mostly_sound(cases: Iterable[Case[Any]], opened: Callable[[str], Any], own: str) -> None:
    """Of other cases that apply, it passes at least half: it is not simply useless."""
    passed, failed = [], []
    for case in cases:
        site = opened(case.name)
        if case.name == own or case.excused(site):
            continue
        try:
            case.check(site)
            passed.append(case.name)
        except Exception:
            failed.append(case.name)
    assert len(passed) >= len(failed), f"it fails nearly everything: {failed}"
