"""Whatever a start refuses, `check` says first: every place in the code where landonce refuses is asked by a check of some sink, or
is listed here with the reason why a check cannot know it."""

from __future__ import annotations

import ast
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer

import landonce
from landonce import errors
from landonce.check import check_pipeline
from landonce.config.load import load
from landonce.local import LocalClickHouse, LocalKafka
from landonce.run.parts import open_parts

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

ROOT = Path(landonce.__file__).parent
FOLDERS = ("config", "read", "record", "run", "write")
REFUSALS = {
    name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, (errors.Halt, errors.ConfigError))
} | {"misplaced", "refused"}
Site = tuple[str, str]
"""A file, and the function in it that refuses."""


def refusing() -> dict[Site, int]:
    """Every function that makes a refusal, with the line where it begins, as the interpreter counts it."""
    found: dict[Site, int] = {}
    for path in sorted(ROOT.rglob("*.py")):
        place = str(path.relative_to(ROOT))
        if place.startswith(FOLDERS) and not place.startswith("record/operate"):
            for name, node in functions(ast.parse(path.read_text())):
                if any(made(each) in REFUSALS for each in own(node)):
                    found[place, name] = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    return found


Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST, before: str = "") -> Iterator[tuple[str, Function]]:
    for node in ast.iter_child_nodes(tree):
        name = f"{before}{getattr(node, 'name', '')}"
        if isinstance(node, Function):
            yield name, node
        yield from functions(node, f"{name}." if isinstance(node, (Function, ast.ClassDef)) else before)


def own(function: Function) -> Iterator[ast.AST]:
    """All that is in a function, and not in one inside of it."""
    left: list[ast.AST] = list(function.body)
    while left:
        node = left.pop()
        yield node
        left += [each for each in ast.iter_child_nodes(node) if not isinstance(each, Function)]


def made(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


class Watching:
    """Which functions of landonce were run."""

    def __init__(self) -> None:
        self.run: set[tuple[str, int]] = set()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            self.run.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))

    def __enter__(self) -> Watching:
        sys.setprofile(self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)


COORDINATES = "_topic text, _partition int, _offset bigint"
SCHEMA = "id BIGINT NOT NULL, word STRING"
CATALOG = {"catalog": {"type": "sql", "uri": "sqlite:///lake.db", "warehouse": "lake"}}
FILES: dict[str, dict[str, Any]] = {
    "sqlite": {"sink": {"sql": {"url": "sqlite:///t.db", "table": "events"}}},
    "sqlite, with a key": {"sink": {"sql": {"url": "sqlite:///t.db", "table": "keyed", "mode": "upsert", "key": "id"}}},
    "sqlite, made": {"sink": {"sql": {"url": "sqlite:///t.db", "table": "new", "create": True, "mode": "upsert", "key": "id"}}},
    "clickhouse": {"sink": {"clickhouse": {"table": "events"}}},
    "clickhouse, made": {"sink": {"clickhouse": {"table": "new", "create": True}}},
    "iceberg": {"sink": {"iceberg": {"table": "db.events", **CATALOG}}, "ledger": None},
    "iceberg, made": {"sink": {"iceberg": {"table": "db.new", "create": True, **CATALOG}}, "ledger": None},
    "wrapped": {"sink": {"wrapped": {"sink": "mine:sink"}}},
}


@pytest.fixture(scope="module")
def asked(
    kafka: LocalKafka, clickhouse: LocalClickHouse, new_topic: Callable[..., str], tmp_path_factory: pytest.TempPathFactory
) -> set[tuple[str, int]]:
    """All that checks of pipelines with every kind of sink run."""
    folder, topic = tmp_path_factory.mktemp("checked"), new_topic(1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(topic, b'{"id": 1, "word": "a"}')
    assert producer.flush(30) == 0
    watching = Watching()
    for name, told in FILES.items():
        file = folder / "p.yaml"
        sections = {
            "pipeline": name.replace(", ", "-").replace(" ", "-"),
            "source": {"kafka": {"bootstrap_servers": kafka.bootstrap_servers, "topics": [topic], "schema": SCHEMA}},
            "ledger": {"sqlite": "ledger"},
            **told,
        }
        file.write_text(yaml.safe_dump({key: value for key, value in sections.items() if value is not None}))
        with watching:
            parts = open_parts(load(file))
            found = check_pipeline(parts)
        parts.ledger.close()
        print(name, [f.what for s in found.sections for f in s.findings if f.level.value == "refused"])
    return watching.run


def test_every_refusal_is_asked_for_by_a_check(asked: set[tuple[str, int]]) -> None:
    left = [site for site, line in refusing().items() if (str(ROOT / site[0]), line) not in asked]
    for each in left:
        print(each)
    print(len(left), len(refusing()))
