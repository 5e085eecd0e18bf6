"""Nothing outside `sinks/` names a sink: no import of one, no `isinstance` on one. Other code asks by capability, not for the kind of a sink."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "landonce"
SINKS = tuple(sorted(path.name for path in (ROOT / "sinks").iterdir() if path.is_dir() and path.name != "__pycache__"))
CLASSES = ("ClickHouseSink", "IcebergSink", "SqlSink", "WrappedSink", "ClickHouse", "Iceberg", "Sql", "Wrapped")
"""The descriptions of the built-in sinks and their sections in a pipeline file."""
ALLOWED = ("sinks", "testing", "local", "demo", "__init__.py", "plugin.py")
"""The sinks themselves; what names one on purpose, each for itself: the suites, the servers, the demo; the public names."""


def named(source: str) -> list[str]:
    """Where a source names a sink or a kind: imports of a sink's modules, `isinstance` on a sink, `config.sink.NAME`, `parts.NAME`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[:2] == ["landonce", "sinks"]:
            parts = [*str(node.module).split(".")[2:], *(alias.name for alias in node.names)]
            found += [f"from {node.module}"] if parts[0] in SINKS else []
        elif isinstance(node, ast.Import):
            found += [each.name for each in node.names if each.name.split(".")[:2] == ["landonce", "sinks"]]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
            kinds = {each.id for each in ast.walk(node.args[1]) if isinstance(each, ast.Name)}
            found += [f"isinstance {kind}" for kind in sorted(kinds & set(CLASSES))]
        elif isinstance(node, ast.Attribute) and node.attr in SINKS:
            owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
            found += [f"{owner}.{node.attr}"] if owner in ("sink", "parts", "_parts") else []
        elif isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "Guarantee":
            found += [f"Guarantee.{node.attr}"]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found += [node.value for sink in SINKS if node.value.startswith(f"landonce.sinks.{sink}")]
    return found


def still_named() -> dict[str, int]:
    files = [path for path in ROOT.rglob("*.py") if path.relative_to(ROOT).parts[0] not in ALLOWED]
    counts = {str(path.relative_to(ROOT)): len(named(path.read_text())) for path in files}
    return {path: count for path, count in sorted(counts.items()) if count}


def test_nothing_outside_names_a_sink() -> None:
    assert still_named() == {}


@pytest.mark.parametrize(
    ("source", "times"),
    [
        ("from landonce.sinks.sql.table import SqlTable", 1),
        ("from landonce.sinks import iceberg", 1),
        ("import landonce.sinks.wrapped.find", 1),
        ("if isinstance(parts.sink, ClickHouseSink | SqlSink): ...", 2),
        ("config.sink.iceberg is not None", 1),
        ("parts.clickhouse", 1),
        ("parts.sink.guarantee is Guarantee.SNAPSHOT", 1),
        ("session.work = 'landonce.sinks.sql.work'", 1),
        ("from landonce.sinks.contract import Sink", 0),
        ("from landonce.sinks import registry", 0),
        ("isinstance(sink, Sink)", 0),
    ],
)
def test_the_rule_can_be_broken(source: str, times: int) -> None:
    assert len(named(source)) == times
