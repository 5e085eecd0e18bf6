"""A plain process that tails files and pushes their lines is killed before and after every step, and everywhere in a block's way to the target.

The kills are chained, and the files grow before each. Neither Kafka nor Spark is there. The judge compares the files with the target.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import oracle
import push_tailer
import pytest
from chain import failpoints_in
from example_scene import install
from harness import DriverRun, Home
from plain_driver import PlainDrivers
from pyiceberg.catalog import load_catalog
from wrapped_scene import age_claims

from landonce.local import LocalClickHouse
from landonce.protocol.push import PushStage
from landonce.protocol.steps import Step

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(600)]

Line = tuple[int, str]
"""The byte where it begins, and its text."""
OTHERS = {Step.STOP, Step.IDLE, Step.OPEN}
"""What no push comes to: it waits for nothing, and rows fit the table or not."""


def sides(*names: str) -> list[str]:
    return [f"{name}.{side}" for name in names for side in ("before", "after")]


IN_SQLITE = [
    *("acquire.after", "look.before", "look.after", "bind.after", "prepare.after", "write.before"),
    *("flip.before", "flip.after", "rows.after", "landed.after"),
    *("write.after", "commit.after", "record.before"),
]
"""Other sides of the same steps are in the other chains."""
IN_CLICKHOUSE = [
    *("acquire.after", "survey.after", "kill.before", "look.after", "bind.after"),
    *("prepare.after", "await.before", "await.after", "kill.after", "rearm.before", "rearm.after", "write.before"),
    *sides("probe", "send"),
    *("write.after", "commit.after", "record.before", "record.after"),
]
"""A start that settles something waits for a deadline: other sides of the same steps are in the other chains."""
WRAPPED = [
    *sides("acquire", "survey", "bind", "prepare", "write", "claim"),
    *sides("await", "look", "row", "probe", "reclaim", "push"),
    *sides("found", "settle", "commit", "record"),
]
IN_KEEPER_MAP = ["prepare.after", "send.after", "rearm.after", "record.after"]
IN_ENTRY = [
    *("acquire.after", "bind.after", "prepare.after", "claim.after", "await.after", "probe.after", "reclaim.after"),
    *("push.before", "push.after", "found.before", "settle.before", "settle.after", "commit.before", "record.after"),
]
"""Wherever the ledger or the target has changed."""
_FIRST_COMMIT, _THIRD_COMMIT = 1, 3
"""How many commits are made before: taking the table is one; binding a new partition another."""
IN_ICEBERG = [
    # A table that knows nothing yet, then one that was taken, then one that is bound to the first file; at last the second one's binding.
    *(
        ("attempt.before", 0),
        ("attempt.after", 0),
        ("bind.before", 0),
        ("attempt.after", _FIRST_COMMIT),
        ("bind.after", 0),
    ),
    # The rows of the first file: files that no commit names, a batch that is built and not sent, then sent, and nobody knows.
    *(("files.after", 0), ("commit.before", 0), ("attempt.before", _FIRST_COMMIT), ("attempt.after", _FIRST_COMMIT)),
    *(("commit.after", 0), ("record.before", 0), ("record.after", 0)),
    # Those of the second one, after those of the first one, in the same entry.
    *(("files.after", 2), ("attempt.before", _THIRD_COMMIT), ("attempt.after", _THIRD_COMMIT), ("record.before", 2)),
]
"""Each with how often it is passed first. The partitions of such a table have one entry: two files are tailed. Other steps are in the other chains."""
SMALLER = ["resolve.before", "resolve.after", "rearm.after"]
"""The process after the kill pushes less at once: what was pending does not come again as it was."""


@dataclass
class Tailed:
    """Files that grow, who tails them, and what arrived."""

    drivers: PlainDrivers
    kind: str
    target: str
    ask: Callable[[], list[Line]]
    lines: int = 0
    names: tuple[str, ...] = ("tailed",)

    @property
    def folder(self) -> Path:
        return self.drivers.site.folder

    @property
    def files(self) -> list[Path]:
        return [self.folder / f"{name}.log" for name in self.names]

    def grow(self, lines: Iterable[str] = ()) -> None:
        written = list(lines)
        for path in self.files:
            of_file = written or [
                "" if number % 5 == 4 else f"{path.stem} {number} größer"
                for number in range(self.lines, self.lines + 7)
            ]
            with path.open("a") as file:
                file.write("".join(f"{line}\n" for line in of_file))
        self.lines += 7

    def starts(self, at_once: int = 60) -> PlainDrivers:
        words = (self.kind, self.target, str(self.folder), str(at_once))
        self.drivers.command = (sys.executable, push_tailer.__file__, *words)
        return self.drivers

    def killed(self, place: str, at_once: int = 60, skip: int = 0) -> None:
        self.grow()
        waits = place.startswith("await.")
        if not waits:
            self.an_hour_passes()
        run = self.starts(at_once).start(place, skip=skip)
        while waits and not run.reached.exists() and run.process.poll() is None:
            if "await" in run.steps():
                self.an_hour_passes()
            time.sleep(0.1)
        run.wait_reached()
        run.kill()
        self.unspoiled(place)

    def an_hour_passes(self) -> None:
        """For the ledger of a wrapped sink: no attempt is under way any more."""
        if self.kind == "plugin":
            for file in (self.folder / "ledgers").glob("*.json"):
                age_claims(file)
        if self.kind == "wrapped" and (self.folder / "ledger").exists():
            with (
                closing(sqlite3.connect(self.folder / "ledger", timeout=60)) as ledger,
                suppress(sqlite3.OperationalError),
            ):
                ledger.execute("UPDATE landonce_push SET claimed_at = claimed_at - 3600000 WHERE state = 'CLAIMED'")
                ledger.commit()

    def ends(self, at_once: int = 60) -> DriverRun:
        self.an_hour_passes()
        return self.starts(at_once).drain()

    def due(self) -> list[Line]:
        found = []
        for path in self.files:
            at = 0
            for line in path.read_bytes().split(b"\n")[:-1]:
                if line.strip():
                    found.append((at, line.decode()))
                at += len(line) + 1
        return sorted(found)

    def unspoiled(self, place: str) -> None:
        found, due = sorted(self.ask()), self.due()
        assert len(set(found)) == len(found), f"twice, after {place}"
        assert set(found) <= set(due), f"surplus, after {place}"

    def exact(self) -> None:
        assert sorted(self.ask()) == self.due()


def in_sqlite(path: Path) -> list[Line]:
    if not path.exists():
        return []
    with closing(sqlite3.connect(path, timeout=60)) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'lines'").fetchall():
            return []
        return connection.execute("SELECT _offset, line FROM lines").fetchall()


def in_clickhouse(url: str, table: str) -> list[Line]:
    if oracle.ask(url, f"EXISTS {table}").strip() == "0":
        return []
    found = oracle.ask(url, f"SELECT _offset, line FROM {table} FORMAT JSONCompactEachRow")
    return [tuple(json.loads(line)) for line in found.splitlines()]


def in_iceberg(catalog: dict[str, str]) -> list[Line]:
    lake = load_catalog("landonce", **catalog)
    if not lake.table_exists("shop.lines"):
        return []
    found = lake.load_table("shop.lines").scan(selected_fields=("_offset", "line")).to_arrow()
    return list(zip(found.column("_offset").to_pylist(), found.column("line").to_pylist(), strict=True))


def test_every_step_and_every_place_is_killed() -> None:
    """A new step or a new place fails here until a chain kills it."""
    steps = {place for step in set(Step) - OTHERS for place in sides(step.value)}
    transactions = failpoints_in("sinks/transactional.py", "sinks/sql/**/*.py")
    inserts = failpoints_in("sinks/deduplicating.py", "sinks/clickhouse/*.py")
    inserts -= {
        "shard.after",
        "remove.shard",
        "create.shard",
    }  # between shards: of a sink with several, which has chains of its own
    inserts -= {"open.table", "create.table"}  # of several tables, in test_clickhouse_fan_out
    commits = failpoints_in("sinks/snapshot.py", "sinks/iceberg/**/*.py")
    stages = {place for stage in set(PushStage) - {PushStage.RELEASE, PushStage.SKIP} for place in sides(stage.value)}
    assert {
        *IN_SQLITE,
        *IN_CLICKHOUSE,
        *WRAPPED,
        *SMALLER,
        *sides("release", "skip"),
        *(place for place, _ in IN_ICEBERG),
    } >= steps | transactions | inserts | stages | commits
    assert {place for place, _ in IN_ICEBERG} >= commits


def test_into_sqlite(tmp_path: Path) -> None:
    target = tmp_path / "target.db"
    with PlainDrivers(Home(tmp_path)) as drivers:
        tailed = Tailed(drivers, "sql", f"sqlite:///{target}", lambda: in_sqlite(target))
        for place in IN_SQLITE:
            tailed.killed(place)
        for before, place in zip(("prepare.after", "commit.before", "commit.before"), SMALLER, strict=True):
            tailed.killed(before, at_once=200)  # nothing landed, or all of it
            tailed.killed(place, at_once=40)
        tailed.ends()
        tailed.exact()


def test_into_clickhouse(tmp_path: Path, clickhouse: LocalClickHouse, new_table: Callable[[], str]) -> None:
    table = new_table()
    with PlainDrivers(Home(tmp_path)) as drivers:
        tailed = Tailed(
            drivers, "clickhouse", f"{clickhouse.url}#{table}", lambda: in_clickhouse(clickhouse.url, table)
        )
        for place in IN_CLICKHOUSE:
            tailed.killed(place)
        tailed.ends()
        tailed.exact()


def test_with_the_ledger_in_keeper_map(
    tmp_path: Path, clickhouse_with_zookeeper: LocalClickHouse, new_table: Callable[[], str]
) -> None:
    """After its changes."""
    url, table = clickhouse_with_zookeeper.url, new_table()
    with PlainDrivers(Home(tmp_path)) as drivers:
        tailed = Tailed(drivers, "keeper_map", f"{url}#{table}", lambda: in_clickhouse(url, table))
        for place in IN_KEEPER_MAP:
            tailed.killed(place)
        tailed.ends()
        tailed.exact()
    assert int(oracle.ask(url, f"SELECT count() FROM of_{table} WHERE name LIKE 'lines.%'")) == 1


def test_two_files_into_iceberg(tmp_path: Path) -> None:
    """The table is its own ledger: both files have one entry in it, and a commit for the one says how far the other is."""
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/lake"}
    with PlainDrivers(Home(tmp_path)) as drivers:
        tailed = Tailed(
            drivers, "iceberg", json.dumps(catalog), lambda: in_iceberg(catalog), names=("tailed", "tailed1")
        )
        for place, skip in IN_ICEBERG:
            tailed.killed(place, at_once=200, skip=skip)
        tailed.ends()
        tailed.exact()


def test_into_a_wrapped_sink(tmp_path: Path) -> None:
    """Pushing a block again would do harm. Whether it is there can be asked."""
    with PlainDrivers(Home(tmp_path)) as drivers:
        tailed = Tailed(drivers, "wrapped", "sqlite:///unused", lambda: in_sqlite(tmp_path / "target.db"))
        for place in WRAPPED:
            tailed.killed(place)
        tailed.ends()
        for place in sides("release"):
            (tmp_path / "refuse").touch()
            tailed.killed(place)
        tailed.ends()
        for place in sides("skip"):
            tailed.ends()
            tailed.grow([" "] * 3)
            run = tailed.starts().start(place)
            run.wait_reached()
            run.kill()
        tailed.ends()
        tailed.exact()


def test_into_a_wrapped_sink_with_another_packages_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows nothing of claims: they are in the entry of the partition."""
    site = str(install("landonce-jsonl", tmp_path / "package"))
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", site)
    (tmp_path / "ledgers").mkdir()
    with PlainDrivers(Home(tmp_path)) as drivers:
        tailed = Tailed(drivers, "plugin", "", lambda: in_sqlite(tmp_path / "target.db"))
        for place in IN_ENTRY:
            tailed.killed(place)
        tailed.ends()
        (tmp_path / "refuse").touch()
        tailed.killed("release.after")
        tailed.ends()
        tailed.exact()
    assert list((tmp_path / "ledgers").glob("*.json"))
    assert not (tmp_path / "ledger").exists()


def test_the_control_a_plain_tailer_duplicates(tmp_path: Path) -> None:
    """The same kill, without landonce."""
    with PlainDrivers(Home(tmp_path)) as drivers:
        tailed = Tailed(drivers, "plain", "", lambda: in_sqlite(tmp_path / "target.db"))
        tailed.killed("record.before")
        tailed.ends()
        assert len(tailed.ask()) == 2 * len(set(tailed.ask()))
