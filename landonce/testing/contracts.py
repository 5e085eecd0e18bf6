"""The contract as pytest classes: inherit one, give it a fixture `site`, and pytest runs every case against it.

    class TestMyLedger(landonce.testing.LedgerContract):
        @pytest.fixture
        def site(self, tmp_path):
            return MySite(tmp_path)

A site is empty at the beginning of every case. A case that does not apply to what the site declares is a skip with its
reason (`pytest -rs` lists them).
"""

from __future__ import annotations

from typing import Any

import pytest

from landonce.testing.case import Case, Site
from landonce.testing.cases_ledgers_shared import LEDGER_CASES
from landonce.testing.cases_sinks_doubt import SINK_CASES
from landonce.testing.cases_snapshots import KILLING, SNAPSHOT_CASES
from landonce.testing.cases_transactions import TRANSACTION_CASES
from landonce.testing.cases_wrapped import WRAPPED_CASES
from landonce.testing.snapshot_sites import apart

__all__ = [
    "LEDGER_CASES",
    "SINK_CASES",
    "SNAPSHOT_CASES",
    "TRANSACTION_CASES",
    "WRAPPED_CASES",
    "LedgerContract",
    "SinkContract",
    "SnapshotContract",
    "TransactionContract",
    "WrappedContract",
    "prove",
]

_NO_SITE = "give the class a fixture `site` that returns an empty site"


def prove(case: Case[Site], site: Site) -> None:
    """Runs a case against a site, or skips it with the reason why it does not apply."""
    if reason := case.excused(site):
        pytest.skip(f"{case.name}: {reason}")
    case.check(site)


class LedgerContract:
    """What every ledger keeps: `site` is a `LedgerSite`."""

    @pytest.fixture
    def site(self) -> Any:
        raise NotImplementedError(_NO_SITE)

    @pytest.mark.parametrize("case", tuple(LEDGER_CASES), ids=str)
    def test_ledger(self, site: Any, case: Case[Any]) -> None:
        prove(case, site)


class SinkContract:
    """What every deduplicating sink keeps: `site` is a `SinkSite`."""

    @pytest.fixture
    def site(self) -> Any:
        raise NotImplementedError(_NO_SITE)

    @pytest.mark.parametrize("case", tuple(SINK_CASES), ids=str)
    def test_sink(self, site: Any, case: Case[Any]) -> None:
        prove(case, site)


class WrappedContract:
    """What every wrapped sink keeps: `site` is a `WrappedSite`."""

    @pytest.fixture
    def site(self) -> Any:
        raise NotImplementedError(_NO_SITE)

    @pytest.mark.parametrize("case", tuple(WRAPPED_CASES), ids=str)
    def test_wrapped(self, site: Any, case: Case[Any]) -> None:
        prove(case, site)


class SnapshotContract:
    """What every snapshot sink keeps: `site` is a `SnapshotSite`."""

    @pytest.fixture
    def site(self) -> Any:
        raise NotImplementedError(_NO_SITE)

    @pytest.mark.parametrize("case", tuple(SNAPSHOT_CASES), ids=str)
    def test_snapshot(self, site: Any, case: Case[Any]) -> None:
        """A case that kills processes starts them itself. It must find this process untouched by libraries that do not survive a fork."""
        if site.forks or case.excused(site) or case.name == KILLING:
            prove(case, site)
        else:
            apart(lambda: case.check(site))


class TransactionContract:
    """What every database keeps that holds rows and ledger: `site` is a `TransactionSite`."""

    @pytest.fixture
    def site(self) -> Any:
        raise NotImplementedError(_NO_SITE)

    @pytest.mark.parametrize("case", tuple(TRANSACTION_CASES), ids=str)
    def test_transaction(self, site: Any, case: Case[Any]) -> None:
        prove(case, site)
