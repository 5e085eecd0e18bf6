"""The contract kit: the suites that landonce's own sinks and ledgers pass, for everybody who writes one.

Inherit a suite, give it a fixture `site`, and pytest runs every case against it:

    class TestMyLedger(landonce.testing.LedgerContract):
        @pytest.fixture
        def site(self, tmp_path):
            return MySite(tmp_path)

A site is empty at the start of every case. A case that does not apply to what the site declares is a skip with its reason (`pytest -rs` lists
them). Needs pytest, and neither a server nor Spark. `docs/plugins.md` says how to write a plug-in and prove it.
"""

from __future__ import annotations

from typing import Any

try:
    import pytest
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError("landonce.testing needs pytest: pip install 'landonce[testing]'") from missing

_ASSERTING = (
    "cases_ledgers",
    "cases_offsets",
    "cases_sinks",
    "cases_snapshots",
    "cases_transactions",
    "cases_wrapped",
    "ledger_sites",
    "sink_sites",
)
pytest.register_assert_rewrite(*(f"landonce.testing.{each}" for each in _ASSERTING))

from landonce.testing.case import Case, Need, Site, Suite  # noqa: E402
from landonce.testing.cases_ledgers import LEDGER_CASES  # noqa: E402
from landonce.testing.cases_offsets import OFFSET_CASES, OffsetSite  # noqa: E402
from landonce.testing.cases_sinks import SINK_CASES  # noqa: E402
from landonce.testing.cases_snapshots import KILLING, SNAPSHOT_CASES, SnapshotSite  # noqa: E402
from landonce.testing.cases_transactions import TRANSACTION_CASES, TransactionSite  # noqa: E402
from landonce.testing.cases_wrapped import WRAPPED_CASES, WrappedSite  # noqa: E402
from landonce.testing.crashing import apart  # noqa: E402
from landonce.testing.ledger_sites import LedgerSite  # noqa: E402
from landonce.testing.sink_sites import Row, SinkSite  # noqa: E402

__all__ = [
    "LEDGER_CASES",
    "OFFSET_CASES",
    "SINK_CASES",
    "SNAPSHOT_CASES",
    "TRANSACTION_CASES",
    "WRAPPED_CASES",
    "Case",
    "LedgerContract",
    "LedgerSite",
    "Need",
    "OffsetContract",
    "OffsetSite",
    "Row",
    "SinkContract",
    "SinkSite",
    "SnapshotContract",
    "SnapshotSite",
    "Suite",
    "TransactionContract",
    "TransactionSite",
    "WrappedContract",
    "WrappedSite",
    "prove",
]


def prove(case: Case[Site], site: Site) -> None:
    """Runs a case against a site, or skips it with the reason why it does not apply."""
    if reason := case.excused(site):
        pytest.skip(f"{case.name}: {reason}")
    case.check(site)


class _Contract:
    @pytest.fixture
    def site(self) -> Any:
        raise NotImplementedError("give the class a fixture `site` that returns an empty site")


class LedgerContract(_Contract):
    """What every ledger keeps: `site` is a `LedgerSite`."""

    @pytest.mark.parametrize("case", tuple(LEDGER_CASES), ids=str)
    def test_ledger(self, site: Any, case: Case[Any]) -> None:
        prove(case, site)


class SinkContract(_Contract):
    """What every deduplicating sink keeps: `site` is a `SinkSite`."""

    @pytest.mark.parametrize("case", tuple(SINK_CASES), ids=str)
    def test_sink(self, site: Any, case: Case[Any]) -> None:
        prove(case, site)


class WrappedContract(_Contract):
    """What every wrapped sink keeps: `site` is a `WrappedSite`."""

    @pytest.mark.parametrize("case", tuple(WRAPPED_CASES), ids=str)
    def test_wrapped(self, site: Any, case: Case[Any]) -> None:
        prove(case, site)


class SnapshotContract(_Contract):
    """What every snapshot sink keeps: `site` is a `SnapshotSite`."""

    @pytest.mark.parametrize("case", tuple(SNAPSHOT_CASES), ids=str)
    def test_snapshot(self, site: Any, case: Case[Any]) -> None:
        """A case that kills processes starts them itself. It must find this process untouched by libraries that do not survive a fork."""
        if site.forks or case.excused(site) or case.name == KILLING:
            prove(case, site)
        else:
            apart(lambda: case.check(site))


class OffsetContract(_Contract):
    """What every handler of a plain consumer's offsets keeps: `site` is an `OffsetSite`."""

    @pytest.mark.parametrize("case", tuple(OFFSET_CASES), ids=str)
    def test_offsets(self, site: Any, case: Case[Any]) -> None:
        prove(case, site)


class TransactionContract(_Contract):
    """What every database keeps that holds rows and ledger: `site` is a `TransactionSite`."""

    @pytest.mark.parametrize("case", tuple(TRANSACTION_CASES), ids=str)
    def test_transaction(self, site: Any, case: Case[Any]) -> None:
        prove(case, site)
