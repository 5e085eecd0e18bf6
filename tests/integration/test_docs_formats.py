"""The page on formats is true."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import run_page

from landonce.local import LocalKafka

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]


def test_the_page_is_true(kafka: LocalKafka, tmp_path: Path) -> None:
    topics = ("lines", "tabs", "texts", "bytes", "framed")
    assert run_page("formats.md", kafka, topics, tmp_path, spark=False) == 7
