"""The example that tails files, as a process of its own that is killed: into SQLite, ClickHouse, Iceberg, or a wrapped sink that can be asked;
with the position in SQLite, in a KeeperMap table, or in another package's ledger."""

from __future__ import annotations

import importlib.util
import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import landonce
from landonce.engine.observe import Silent
from landonce.failpoints import reach
from landonce.sinks.wrapped.sink import find_sink

EXAMPLE = Path(__file__).parents[2] / "examples" / "file-tailer" / "tail.py"


def example() -> Any:
    spec = importlib.util.spec_from_file_location("tail", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Steps(Silent):
    """Prints them as `landonce run --verbose` does."""

    def step(self, effect: Any) -> None:
        print(json.dumps({"event": "step", "step": effect.step.value}), flush=True)


def plain(tail: Any, folder: Path, at_once: int) -> None:
    """What one writes without landonce: the lines, and then the position, with nothing that joins the two."""
    noted = folder / "position"
    position = int(noted.read_text()) if noted.exists() else 0
    with (folder / "tailed.log").open("rb") as file:
        rows, end = tail.read(file, position, at_once)
    with closing(sqlite3.connect(folder / "target.db")) as connection, connection:
        connection.execute("CREATE TABLE IF NOT EXISTS lines (_offset INT, line TEXT)")
        connection.executemany("INSERT INTO lines VALUES (?, ?)", [tuple(row.values()) for row in rows])
    reach("record.before")
    noted.write_text(str(end))


def main(kind: str, target: str, folder: str, at_once: str) -> None:
    tail = example()
    if kind == "plain":
        plain(tail, Path(folder), int(at_once))
        return
    ledger: Any = None if kind in ("sql", "iceberg") else f"sqlite:///{folder}/ledger"
    if kind in ("clickhouse", "keeper_map"):
        url, _, table = target.rpartition("#")
        sink: Any = landonce.clickhouse(url, table, create=True, deadline=1)
        if kind == "keeper_map":
            ledger = {"keeper_map": {"path": f"/landonce/{table}", "table": f"of_{table}"}}
    elif kind in ("wrapped", "plugin"):
        if kind == "plugin":
            ledger = {"plugin": {"name": "folder", "options": {"path": f"{folder}/ledgers"}}}
        sink = find_sink("push_target:sink", {"folder": folder}, Path(__file__).parent)
    elif kind == "iceberg":
        sink = landonce.iceberg("shop.lines", json.loads(target), create=True)
    else:
        sink = landonce.sql(target, "lines", create=True)
    with landonce.ExactlyOnceSink(sink, ledger, name="lines", schema=tail.SCHEMA, observer=Steps()) as once:
        for file in sorted(Path(folder).glob("tailed*.log")):
            tail.tail(once, file, int(at_once))


if __name__ == "__main__":
    main(*sys.argv[1:])
