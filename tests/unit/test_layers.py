"""The tree is the architecture: a folder imports what is below it, never what is above or beside it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "landonce"
LAYERS = (
    ("errors", "failpoints", "clock", "config", "packages", "jars", "jvm"),
    ("protocol",),
    ("read", "ledger"),
    ("sinks",),
    ("engine",),
    ("query", "verify", "check", "consumer"),
    ("cli",),
)
"""From the bottom to the top. Modules of the first layer may import each other."""
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
BESIDE = ("testing", "local", "demo", "plugin")
"""What production code does not import. The command line offers the local servers and the demo; `plugin` is for other packages."""
TO_BE_REMOVED: set[tuple[str, str]] = set()
"""Imports that are still against the rule. This set may only become smaller."""


def imported(path: Path) -> Iterator[str]:
    """The folders and modules directly below `landonce` that a file imports, wherever in it the statement stands."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "landonce":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("landonce."):
            yield str(node.module).split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("landonce."))


def refused(here: str, there: str) -> bool:
    if here == there or here in BESIDE:
        return False
    if there in BESIDE:
        return here != "cli" or there in ("testing", "plugin")
    if here not in RANK or there not in RANK:
        return False
    return RANK[there] > RANK[here] or (RANK[there] == RANK[here] > 0)


def violations() -> set[tuple[str, str]]:
    return {
        (str(path.relative_to(ROOT)), there)
        for path in ROOT.rglob("*.py")
        for there in imported(path)
        if refused(path.relative_to(ROOT).parts[0].removesuffix(".py"), there)
    }


def test_no_import_goes_up_or_sideways() -> None:
    assert violations() == TO_BE_REMOVED


def test_every_folder_has_a_layer() -> None:
    found = {path.name.removesuffix(".py") for path in ROOT.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert found - {"__init__", "__main__", "__pycache__", "py.typed"} == {*RANK, *BESIDE}


@pytest.mark.parametrize(
    ("here", "there", "wrong"),
    [
        ("protocol", "read", True),
        ("read", "ledger", True),
        ("sinks", "engine", True),
        ("engine", "sinks", False),
        ("engine", "local", True),
        ("cli", "local", False),
        ("cli", "testing", True),
        ("config", "errors", False),
        ("errors", "protocol", True),
    ],
)
def test_the_rule_can_be_broken(here: str, there: str, wrong: bool) -> None:
    assert refused(here, there) is wrong
