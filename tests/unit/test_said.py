"""The helper with which tests look for words does not find them inside of others."""

from __future__ import annotations

import pytest
from said import says


@pytest.mark.parametrize(
    "text", ["0 missing", "read 0 missing.", "a\n0\n  missing, and more", "(0 missing)", "=0 missing"]
)
def test_words_are_found(text: str) -> None:
    assert says(text, "0 missing")


@pytest.mark.parametrize(
    "text", ["10 missing", "1,000 missing", "3.0 missing", "0 missing1", "-0 missing", "0 missingness", ""]
)
def test_parts_of_words_are_not(text: str) -> None:
    assert not says(text, "0 missing")
