"""The kit as others import it: its names, what it needs, and that every case says what a user would lose."""

from __future__ import annotations

import subprocess
import sys

import pytest

from landonce import testing
from landonce.testing import (
    LEDGER_CASES,
    OFFSET_CASES,
    SINK_CASES,
    SNAPSHOT_CASES,
    TRANSACTION_CASES,
    WRAPPED_CASES,
    Suite,
)

SUITES = [LEDGER_CASES, OFFSET_CASES, SINK_CASES, SNAPSHOT_CASES, TRANSACTION_CASES, WRAPPED_CASES]
WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pytest":
            raise ModuleNotFoundError("No module named 'pytest'", name="pytest")

sys.meta_path.insert(0, Missing())
import landonce
import landonce.testing
"""


def test_the_public_names() -> None:
    assert testing.__all__ == [
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
    for name in testing.__all__:
        assert getattr(testing, name) is not None


def test_there_are_many_cases() -> None:
    assert sum(map(len, SUITES)) >= 90


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.kind)
def test_every_case_says_what_a_user_would_lose(suite: Suite) -> None:
    for case in suite:
        assert case.loses.endswith("."), case.name
        assert len(case.loses) > 20, case.name


def test_importing_the_kit_starts_nothing() -> None:
    code = "import sys, landonce.testing; sys.exit('pyspark' in sys.modules or 'chdb' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_pytest_the_error_says_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False)
    assert "pip install 'landonce[testing]'" in done.stderr


def test_two_cases_of_one_name_are_a_mistake() -> None:
    suite: Suite[object] = Suite("any")
    suite.add("one", lambda _: None, loses="Everything.")
    with pytest.raises(ValueError, match="twice"):
        suite.add("one", lambda _: None, loses="Everything.")
    with pytest.raises(ValueError, match="what a user would lose"):
        suite.add("two", lambda _: None, loses="")
