"""The page on deduplication is true, and so is its example."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pages import run_page

from landonce.local import LocalKafka

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "dedup"
FILES = ("produce.py", "placed.yaml")


@pytest.mark.parametrize("spark", [False, pytest.param(True, marks=pytest.mark.long)], ids=["plain", "spark"])
def test_the_page_is_true(kafka: LocalKafka, tmp_path: Path, spark: bool) -> None:
    assert run_page("dedup.md", kafka, ("placed", "sold"), tmp_path, spark=spark) >= 17


def test_the_example_is_true(kafka: LocalKafka, tmp_path: Path) -> None:
    for name in FILES:
        shutil.copy(EXAMPLE / name, tmp_path)
    assert run_page("../examples/dedup/README.md", kafka, ("placed",), tmp_path, spark=False) == 5


@pytest.mark.parametrize("name", FILES)
def test_the_page_shows_the_files_of_the_example(name: str) -> None:
    assert f"\n{(EXAMPLE / name).read_text()}```" in (ROOT / "docs" / "dedup.md").read_text()
