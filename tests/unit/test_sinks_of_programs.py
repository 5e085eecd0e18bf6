"""`landonce.clickhouse(…)` and its like take what the section of a pipeline file takes, as far as a program can use it."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from pydantic import SecretStr

import landonce
from landonce.sinks.section import SinkSection

PAGE = Path(__file__).parents[2] / "docs" / "query.md"
ROWS_CHANGE = {"mode", "key", "changes"}
"""Queries and pushes add rows, to one table."""
PIPELINES_ONLY = {
    "clickhouse": {*ROWS_CHANGE, "evolve", "tables", "route_field"},
    "iceberg": {
        *ROWS_CHANGE,
        "identity",
        "unpartitioned",
        "case_insensitive",
        "evolve",
        "tables",
        "route_field",
        "branch",
        "rollback",
        "write",
        "inserts",
    },
    "sql": {*ROWS_CHANGE, "evolve"},
}


def made(name: str) -> SinkSection:
    """With nothing but what is needed."""
    address = {"url": "sqlite:///x.db"} if name == "sql" else {"url": "http://x"} if name == "clickhouse" else {}
    section: SinkSection = getattr(landonce, name)(table="db.t", **address)
    return section


@pytest.mark.parametrize("name", PIPELINES_ONLY)
def test_the_function_takes_what_the_section_takes_with_the_same_defaults(name: str) -> None:
    section = made(name)
    fields = type(section).model_fields
    assert set(inspect.signature(getattr(landonce, name)).parameters) == set(fields) - PIPELINES_ONLY[name]
    for field in set(fields) - {"url", "table", "catalog"}:  # a catalog is made in the current folder
        assert getattr(section, field) == fields[field].get_default(call_default_factory=True), field


@pytest.mark.parametrize("name", PIPELINES_ONLY)
def test_the_page_names_every_argument(name: str) -> None:
    shown = re.search(rf"`landonce\.{name}\((.+?)\)`", PAGE.read_text())
    assert shown is not None
    arguments = re.sub(r"\([^)]*\)|\{[^}]*\}", "", shown[1]).split(", ")
    assert [each.partition("=")[0] for each in arguments] == list(inspect.signature(getattr(landonce, name)).parameters)


def test_a_secret_of_the_address_is_not_shown() -> None:
    made = landonce.clickhouse("http://user:secret@host", "t")
    assert isinstance(made.url, SecretStr)
    assert "secret@" not in repr(made)
