"""The page on beginning and going back is true."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import run_page

from landonce.local import LocalKafka

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def test_the_page_is_true(kafka: LocalKafka, tmp_path: Path) -> None:
    assert run_page("going-back.md", kafka, ("going-back",), tmp_path, spark=False, LAST_COPY="1") == 46
