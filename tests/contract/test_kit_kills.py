"""A case that is about crashes fails where none could be tried: whatever it found, it found after acts that ended well."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from broken_transactions import SqliteTransactions
from broken_wrapped import FilesSite

from landonce.testing import (
    LEDGER_CASES,
    SINK_CASES,
    SNAPSHOT_CASES,
    TRANSACTION_CASES,
    WRAPPED_CASES,
    Case,
    cases_ledgers,
    cases_sinks,
    cases_snapshots,
    cases_transactions,
    cases_wrapped,
)
from landonce.testing.crashing import apart, require_kills
from landonce.testing.ledger_sites import InSqlite
from landonce.testing.reference_sinks import FolderSite, SqliteSite

pytestmark = pytest.mark.timeout(300)
KILLING: list[tuple[Any, Any, Callable[[Path], Any], str]] = [
    (cases_ledgers, LEDGER_CASES, InSqlite, "a_create_that_is_killed_at_any_line_is_whole_or_absent"),
    (cases_ledgers, LEDGER_CASES, InSqlite, "a_change_that_is_killed_at_any_line_is_whole_or_absent"),
    (cases_ledgers, LEDGER_CASES, InSqlite, "a_driver_that_was_killed_locks_nobody_out"),
    (cases_sinks, SINK_CASES, SqliteSite, "a_send_that_is_killed_at_any_line_is_whole_or_absent"),
    (cases_sinks, SINK_CASES, SqliteSite, "after_a_crash_at_any_line_a_block_lands_once"),
    (cases_snapshots, SNAPSHOT_CASES, FolderSite, "after_a_crash_at_any_line_rows_and_position_agree"),
    (cases_transactions, TRANSACTION_CASES, SqliteTransactions, "after_a_crash_at_any_line_a_block_lands_once"),
    (cases_wrapped, WRAPPED_CASES, FilesSite, "after_a_crash_at_any_line_a_block_lands_once"),
    (cases_wrapped, WRAPPED_CASES, FilesSite, "after_a_crash_between_its_portions_a_large_block_lands_once"),
]


@pytest.mark.parametrize(
    ("module", "cases", "opened", "name"), KILLING, ids=[f"{each[1].kind}-{each[3]}" for each in KILLING]
)
def test_a_case_in_which_nobody_was_killed_fails(
    module: Any, cases: Any, opened: Callable[[Path], Any], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def survived(_lines: object, act: Callable[[], object], _moment: int) -> bool:
        return bool(apart(lambda: act() is act))

    monkeypatch.setattr(module, "crashed", survived)
    site, case = opened(tmp_path), cases[name]
    monkeypatch.setattr(site, "moments", 2)
    assert isinstance(case, Case)
    with pytest.raises(AssertionError, match=r"of \d+ crashes 0 could be tried"):
        case.check(site)


def test_most_crashes_have_to_be_tried() -> None:
    require_kills([True, True, False])
    for deaths in ([], [False], [True, False], [True, False, False]):
        with pytest.raises(AssertionError, match="could be tried"):
            require_kills(deaths)
