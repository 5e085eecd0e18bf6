"""A pipeline with a sink of an example package, which is installed and found by its entry point; and judges that read the target without landonce."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
batch: {interval: 0s, max_rows: 40, block_rows: 8}
dead_letters: {path: dead}
stall: 60s
spark: {master: "local[1]"}
""")
_ROWS = "SELECT _topic, _partition, _offset, id, word, amount FROM events"


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
    names = ["_topic", "_partition", "_offset", "id", "word", "amount"]
    return [tuple(row.values()) for row in table.to_pyarrow_table(columns=names).select(names).to_pylist()]


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
) -> Iterator[Example]:
    home = Home(folder)
    home.save(_PIPELINE.substitute(bootstrap=kafka.bootstrap_servers, topic=topic, schema=SCHEMA, sink=sink))
    with drivers(home) as started:
        yield Example(home, started, Feed(kafka.bootstrap_servers, topic), judge=judge)
