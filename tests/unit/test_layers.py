"""The tree is the architecture: a folder imports what is below it, never what is above or beside it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "landonce"
LAYERS = (
    ("errors", "failpoints", "clock", "config", "packages", "jars", "jvm", "tls"),
    ("protocol",),
    ("read", "ledger"),
    ("sinks",),
    ("engine",),
    ("dedup",),
    ("query", "push", "verify", "check", "consumer"),
    ("cli",),
)
"""From the bottom to the top. Modules of the first layer may import each other."""
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
BESIDE = ("testing", "local", "demo", "plugin")
"""What production code does not import. The command line offers the local servers and the demo; `plugin` is for other packages."""


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
    assert violations() == set()


def test_protocol_imports_errors_alone() -> None:
    """It is pure: no other module of the first layer is."""
    assert {each for path in (ROOT / "protocol").rglob("*.py") for each in imported(path)} <= {"protocol", "errors"}


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
        ("engine", "dedup", True),
        ("dedup", "engine", False),
        ("config", "dedup", True),
        ("cli", "local", False),
        ("cli", "testing", True),
        ("config", "errors", False),
        ("errors", "protocol", True),
    ],
)
def test_the_rule_can_be_broken(here: str, there: str, wrong: bool) -> None:
    assert refused(here, there) is wrong


SEAM = (
    *(f"engine/{name}.py" for name in ("driver", "perform", "task", "pipeline", "committing", "workers", "publish")),
    *(
        f"sinks/{name}.py"
        for name in ("contract", "run", "worker", "deduplicating", "snapshot", "transactional", "claimed")
    ),
    *(str(path.relative_to(ROOT)) for path in (ROOT / "protocol").glob("*.py") if path.name != "blocks.py"),
)
"""What passes between the driver, its machine, the workers and a sink is typed. `blocks.py` reads plans from JSON."""


def names_any(source: str) -> bool:
    """Whether `Any` is imported or named. The linter finds one that is not imported."""
    nodes = ast.walk(ast.parse(source))
    return any(
        "Any" in (getattr(each, "id", ""), getattr(each, "attr", ""), getattr(each, "name", "")) for each in nodes
    )


def test_no_any_at_the_seam() -> None:
    assert [path for path in SEAM if names_any((ROOT / path).read_text())] == []


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("from typing import Any", True),
        ("files: tuple[typing.Any, ...] = ()", True),
        ("FileT = TypeVar('FileT', default=Any)", True),
        ("AnyRecipe = Recipe[Task]", False),
        ("FileT = TypeVar('FileT', default=object)", False),
    ],
)
def test_an_any_is_found(source: str, named: bool) -> None:
    assert names_any(source) is named


def folder_of(module: str) -> str:
    """The folder of a module below `landonce`; a module without a folder stands for itself. What is below a sink's folder is the sink's."""
    parts = module.split(".")
    while len(parts) > 2 and not ROOT.joinpath(*parts[1:]).is_dir():
        parts = parts[:-1]
    return ".".join(parts[:3] if parts[1:2] == ["sinks"] else parts)


def runs(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those below `if TYPE_CHECKING`, which no program runs."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            yield node
            yield from runs(node)


@cache
def imports_by_folder(root: Path = ROOT) -> dict[str, set[str]]:
    """Which folders each folder imports, also inside functions."""
    found: dict[str, set[str]] = {}
    for path in root.rglob("*.py"):
        here = folder_of(
            ".".join(("landonce", *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__")
        )
        for node in runs(ast.parse(path.read_text())):
            names = [each.name for each in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            modules = [f"{node.module}.{each}" for each in names] if isinstance(node, ast.ImportFrom) else names
            there = {folder_of(each) for each in modules if each.startswith("landonce.")}
            found.setdefault(here, set()).update(there - {here})
    return found


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """Nodes that lead to each other, with those that need them; or none."""
    left = {here: set(there) & set(graph) for here, there in graph.items()}
    while free := [here for here, there in left.items() if not there]:
        for here in free:
            del left[here]
        left = {here: there - set(free) for here, there in left.items()}
    return sorted(left)


def test_no_folders_import_each_other() -> None:
    graph = imports_by_folder()
    assert {"landonce.sinks", "landonce.sinks.sql", "landonce.read.schema", "landonce.errors"} <= graph.keys()
    assert cycle(graph) == []


@pytest.mark.parametrize(
    ("here", "there"),
    [
        ("landonce.sinks", "landonce.sinks.sql"),
        ("landonce.read.schema", "landonce.read.formats.json"),
        ("landonce.errors", "landonce.config"),
    ],
)
def test_a_cycle_is_found(here: str, there: str) -> None:
    graph = imports_by_folder()
    assert {here, there} <= set(cycle({**graph, here: graph[here] | {there}}))


def test_what_is_imported_for_types_alone_makes_no_cycle() -> None:
    source = (
        "if TYPE_CHECKING:\n    from landonce.sinks.sql import sink\ndef late():\n    from landonce.sinks import run\n"
    )
    found = [ast.unparse(node) for node in runs(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    assert found == ["from landonce.sinks import run"]


def test_every_sink_has_the_same_files() -> None:
    """A wrapped sink has no table that is created, described or read back."""
    for folder in sorted(path.parent for path in (ROOT / "sinks").glob("*/sink.py")):
        common = {"config", "sink", "driver", "worker", "check"}
        of_tables = set() if folder.name == "wrapped" else {"table", "types", "held"}
        assert {path.stem for path in folder.glob("*.py")} >= common | of_tables, folder.name
    assert len(list((ROOT / "sinks").glob("*/sink.py"))) == 4


def named_twice(sources: dict[str, str]) -> dict[str, list[str]]:
    """Public classes by their names, with the files that define one; nested ones, too. Other packages' words, such as a type of Avro, count."""
    found: dict[str, list[str]] = {}
    for path, source in sorted(sources.items()):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(path)
    return {name: paths for name, paths in found.items() if len(paths) > 1}


def test_one_name_is_one_class() -> None:
    sources = {str(path.relative_to(ROOT)): path.read_text() for path in ROOT.rglob("*.py")}
    assert named_twice(sources) == {}


def test_a_name_of_two_classes_is_found() -> None:
    sources = {"a.py": "class Mark: ...\nclass _Here: ...", "b.py": "class Box:\n    class Mark: ...\nclass _Here: ..."}
    assert named_twice(sources) == {"Mark": ["a.py", "b.py"]}
