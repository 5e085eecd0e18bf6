"""The example that lands a PostgreSQL's changes: its README is true, and a kill at every step neither loses nor doubles a change.

The source is a real PostgreSQL with a slot of logical decoding. Transactions overlap, so that LSNs do not grow.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from harness import Home
from open_folder import open_folder
from plain_driver import PlainDrivers

from landonce.local.postgres import LocalPostgres, _postgres_binary

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(300)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "postgres-changes"
PLACES = [
    "prepare.after",
    "write.before",
    "rows.after",
    "landed.after",
    "commit.before",
    "record.before",
    "record.after",
    "survey.before",
]


@pytest.fixture(scope="module")
def source(postgres_made: Path) -> Iterator[LocalPostgres]:
    """A server that decodes."""
    with open_folder() as folder:
        (folder / "postgres").mkdir()
        made = [postgres_made / "data", postgres_made / "password"]
        subprocess.run(["cp", "-a", *made, folder / "postgres"], check=True)
        with (folder / "postgres" / "data" / "postgresql.auto.conf").open("a") as file:
            file.write("wal_level = logical\n")
        with LocalPostgres(folder / "postgres", fsync=False) as server:
            yield server


@pytest.fixture
def url(source: LocalPostgres) -> Iterator[str]:
    at = source.url.replace("+psycopg", "")
    yield at
    with psycopg.connect(at, autocommit=True) as connection:
        connection.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
        connection.execute("DROP TABLE IF EXISTS prices")


def landed(path: Path) -> list[str]:
    with closing(sqlite3.connect(path, timeout=60)) as connection:
        return [change for (change,) in connection.execute("SELECT change FROM changes ORDER BY _offset")]


def test_the_readme_is_true(url: str, tmp_path: Path) -> None:
    shutil.copy(EXAMPLE / "changes.py", tmp_path)
    binaries = f"{Path(sys.executable).parent}:{_postgres_binary('psql').parent}:{os.environ['PATH']}"
    text = (EXAMPLE / "README.md").read_text()
    ran = 0
    for step in text.partition("```console\n$ ")[2].partition("```")[0].split("\n$ "):
        command, _, shown = step.partition("\n")
        done = subprocess.run(
            command,
            shell=True,
            cwd=tmp_path,
            env=os.environ | {"SOURCE": url, "PATH": binaries},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"$ {command}\n{done.stderr}"
        assert not shown.strip() or done.stdout == f"{shown.strip()}\n", f"$ {command}"
        ran += 1
    assert ran == 6
    assert len(landed(tmp_path / "changes.db")) == 503


@dataclass
class Changes(PlainDrivers):
    """Processes of the example."""

    variables: Mapping[str, str] = field(default_factory=dict)

    def spawn(self, arguments: tuple[str, ...], environment: Mapping[str, str], log: Path) -> Any:
        return super().spawn(arguments, {**environment, **self.variables}, log)


def test_a_kill_at_every_step_loses_and_doubles_nothing(url: str, tmp_path: Path) -> None:
    """Between push and slot, too: after `record.after` the slot is behind, and its changes come again."""
    variables = {"SOURCE": url, "TARGET": f"sqlite:///{tmp_path}/changes.db"}
    command = (sys.executable, str(EXAMPLE / "changes.py"))
    due: list[str] = []
    with (
        Changes(Home(tmp_path), command, variables=variables) as drivers,
        psycopg.connect(url, autocommit=True) as one,
        psycopg.connect(url) as other,
    ):
        one.execute("CREATE TABLE prices (id int, price int)")
        drivers.drain()
        for number, place in enumerate(PLACES):
            other.execute("INSERT INTO prices VALUES (%s, 1)", [-number - 1])  # begins first, and commits last
            one.execute("INSERT INTO prices SELECT g, %s FROM generate_series(1, 3) g", [number])
            other.commit()
            due += [f"id[integer]:{each} price[integer]:{number}" for each in (1, 2, 3)]
            due += [f"id[integer]:{-number - 1} price[integer]:1"]
            drivers.kill_at(place)
        drivers.drain()
    assert landed(tmp_path / "changes.db") == [f"table public.prices: INSERT: {each}" for each in due]
