"""The kit's ledger cases, tried: each broken ledger fails the case it is for. `test_ledgers` has the sound ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from broken_ledgers import BROKEN_LEDGERS
from kit_controls import check_fails, check_mostly_sound

from landonce.ledger.block_ledgers import PushLedger, TargetLedger
from landonce.testing import LEDGER_CASES, Case, LedgerContract, LedgerSite
from landonce.testing.ledger_sites import SHARED, InMemory, InSqlite

pytestmark = pytest.mark.timeout(300)


class WithBlocks(InSqlite):
    """A ledger that looks at the rows of its blocks, which `TransactionContract` and `WrappedContract` try."""

    bare = False


class TestWithBlocks(LedgerContract):
    @pytest.fixture(params=[TargetLedger, PushLedger])
    def site(self, request: pytest.FixtureRequest, tmp_path: Path) -> LedgerSite:
        return WithBlocks(tmp_path, request.param)


@pytest.mark.parametrize("case", tuple(LEDGER_CASES), ids=str)
def test_a_broken_ledger_fails_its_case(case: Case[LedgerSite], tmp_path: Path) -> None:
    check_fails(case, BROKEN_LEDGERS[case.name](tmp_path))


def test_every_broken_ledger_is_for_a_case() -> None:
    assert set(BROKEN_LEDGERS) == {case.name for case in LEDGER_CASES}


def test_what_does_not_apply_has_a_reason() -> None:
    reasons = LEDGER_CASES.excused(InMemory())
    assert {"the_store_outlives_its_process", "killed_at_any_time"} <= set(reasons)
    assert all("ends with its process" in reason for reason in reasons.values())


@pytest.mark.long
@pytest.mark.parametrize("name", BROKEN_LEDGERS)
def test_a_broken_one_is_sound_otherwise(name: str, tmp_path: Path) -> None:
    def opened(other: str):
        (tmp_path / other).mkdir()
        return BROKEN_LEDGERS[name](tmp_path / other)

    check_mostly_sound(
        [case for case in LEDGER_CASES if SHARED not in case.needs and "threads" not in case.name], opened, name
    )
