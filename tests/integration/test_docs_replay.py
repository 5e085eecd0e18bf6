"""The pages on dead letters are true."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import run_page

from landonce.local import LocalKafka

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("spark", [False, pytest.param(True, marks=pytest.mark.long)], ids=["plain", "spark"])
def test_the_page_is_true(kafka: LocalKafka, tmp_path: Path, spark: bool) -> None:
    assert run_page("replay.md", kafka, ("invoices",), tmp_path, spark=spark) >= 19


def test_the_example_of_a_topic_is_true(kafka: LocalKafka, tmp_path: Path) -> None:
    assert run_page("dead-letters.md", kafka, ("refunds", "refunds.dead"), tmp_path, spark=False) == 6
