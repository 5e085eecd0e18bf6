"""The contract kit: the suites that landonce's own sinks and ledgers pass, for everybody who writes one.

    import pytest
    from landonce.testing import LedgerContract, LedgerSite

Needs pytest, and neither a server nor Spark. `docs/plugins.md` tells how to write a plug-in and prove it.
"""

from __future__ import annotations

try:
    import pytest
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError("landonce.testing needs pytest: pip install 'landonce[testing]'") from missing

pytest.register_assert_rewrite(
    "landonce.testing.cases_ledgers",
    "landonce.testing.cases_ledgers_shared",
    "landonce.testing.cases_sinks",
    "landonce.testing.cases_sinks_doubt",
    "landonce.testing.cases_snapshots",
    "landonce.testing.cases_transactions",
    "landonce.testing.cases_wrapped",
    "landonce.testing.ledger_sites",
)

from landonce.testing.case import Case, Need, Suite  # noqa: E402
from landonce.testing.cases_transactions import TransactionSite  # noqa: E402
from landonce.testing.contracts import (  # noqa: E402
    LEDGER_CASES,
    SINK_CASES,
    SNAPSHOT_CASES,
    TRANSACTION_CASES,
    WRAPPED_CASES,
    LedgerContract,
    SinkContract,
    SnapshotContract,
    TransactionContract,
    WrappedContract,
    prove,
)
from landonce.testing.ledger_sites import LedgerSite  # noqa: E402
from landonce.testing.sink_sites import Row, SinkSite  # noqa: E402
from landonce.testing.snapshot_sites import SnapshotSite  # noqa: E402
from landonce.testing.wrapped_sites import WrappedSite  # noqa: E402

__all__ = [
    "LEDGER_CASES",
    "SINK_CASES",
    "SNAPSHOT_CASES",
    "TRANSACTION_CASES",
    "WRAPPED_CASES",
    "Case",
    "LedgerContract",
    "LedgerSite",
    "Need",
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
