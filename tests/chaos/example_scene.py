"""A pipeline with a sink of an example package, which is installed and found by its entry point; and judges that read the target without landonce."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

import duckdb
import oracle
from deltalake import DeltaTable
from harness import SCHEMA, Drivers, Feed, Home
from scene import Play

from landonce.local import LocalKafka

EXAMPLES = Path(__file__).parents[2] / "examples"
_PIPELINE = Template("""\
pipeline: chaos
source:
  kafka: {bootstrap_servers: "$bootstrap", topics: [$topic], schema: "$schema"}
sink: {$sink}
${ledger}batch: {interval: 0s, max_rows: 40, block_rows: 8}
dead_letters: {path: dead}
stall: 60s
spark: {master: "local[1]"}
""")
NAMES = ("_topic", "_partition", "_offset", "id", "word", "amount")
_ROWS = f"SELECT {', '.join(NAMES)} FROM events"


def install(package: str, folder: Path) -> Path:
    """The package with its entry points, in a folder of its own. Nothing is fetched."""
    source = folder / "source"
    shutil.copytree(
        EXAMPLES / package, source, ignore=shutil.ignore_patterns("__pycache__", ".*", "build", "*.egg-info")
    )
    uv = (Path(sys.executable).parent / "uv", "pip", "install", "--quiet", "--offline", "--no-deps")
    options = ("--no-build-isolation", "--python", sys.executable, "--target", folder / "site")
    subprocess.run([*uv, *options, source], check=True, timeout=300)
    return folder / "site"


def duckdb_rows(folder: Path) -> list[oracle.Row]:
    path = folder / "events.duckdb"
    if not path.exists():
        return []
    with duckdb.connect(str(path)) as connection:
        tables = connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()
        return connection.execute(_ROWS).fetchall() if ("events",) in tables else []


def delta_rows(folder: Path) -> list[oracle.Row]:
    path = folder / "events"
    if not DeltaTable.is_deltatable(str(path)):
        return []
    table = DeltaTable(path)
    paths = table.file_uris()
    assert len(paths) == len(set(paths)), "a file is in the table twice"
    return [tuple(row.values()) for row in table.to_pyarrow_table(columns=list(NAMES)).select(NAMES).to_pylist()]


def jsonl_rows(folder: Path) -> list[oracle.Row]:
    """Of each file, what its index counts."""
    found = []
    for index in (folder / "landed").glob("*.index.json"):
        lines = index.with_name(index.name.replace(".index.json", ".jsonl")).read_bytes()
        rows = map(json.loads, lines[: json.loads(index.read_text())["bytes"]].splitlines())
        found += [tuple(row[name] for name in NAMES) for row in rows]
    return found


def shelf_rows(folder: Path) -> list[oracle.Row]:
    with closing(sqlite3.connect(folder / "events.db", timeout=60)) as connection:
        return connection.execute(_ROWS).fetchall()


_SHELF = """
from pathlib import Path

from landonce.plugin import SinkSection
from landonce.testing.reference_sinks import SqliteSink


class Quick(SqliteSink):
    deadline = 2.0


class Shelf(SinkSection):
    path: Path

    def beside(self, folder):
        return self.model_copy(update={"path": folder.absolute() / self.path})

    def to_sink(self, pipeline):
        return Quick(self.path)
"""
"""A module of another package: a deduplicating sink, whose plans are settled two seconds after a crash."""


def install_shelf(folder: Path) -> Path:
    """Its module and its entry point."""
    metadata = folder / "shelf-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: shelf\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[landonce.sinks]\nshelf = shelf:Shelf\n")
    (folder / "shelf.py").write_text(_SHELF)
    return folder


@dataclass
class Example(Play):
    """A pipeline that writes to the target of an example package."""

    judge: Callable[[Path], list[oracle.Row]] = field(kw_only=True)

    def landed(self) -> dict[str, list[oracle.Row]]:
        return {"events": self.judge(self.site.folder)}


@contextmanager
def example(
    folder: Path,
    kafka: LocalKafka,
    topic: str,
    sink: str,
    judge: Callable[[Path], list[oracle.Row]],
    drivers: type[Drivers],
    ledger: str = "",
) -> Iterator[Example]:
    """`ledger`: where the position is kept, if the sink does not keep it itself."""
    home = Home(folder)
    values = {"topic": topic, "schema": SCHEMA, "sink": sink, "ledger": ledger and f"ledger: {{{ledger}}}\n"}
    home.save(_PIPELINE.substitute(values, bootstrap=kafka.bootstrap_servers))
    with drivers(home) as started:
        yield Example(home, started, Feed(kafka.bootstrap_servers, topic), judge=judge)
