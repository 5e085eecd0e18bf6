"""What `maintain` may take away: snapshots, files and staging branches. The rules alone, on metadata and on real files."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataV2
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import LongType, NestedField
from typer.testing import CliRunner

from landonce.cli import app
from landonce.protocol.ledger import LedgerState, taken
from landonce.protocol.marks import Mark, TableView, Verdict, past_epochs, verdict
from landonce.protocol.own_ledger import OwnView, own_state, own_verdict
from landonce.read.schema.ddl import literal
from landonce.sinks.iceberg.maintain import files
from landonce.sinks.iceberg.maintain.compact import census, worth_rewriting
from landonce.sinks.iceberg.maintain.expire import Expiry, ExpiryPolicy, expiry
from landonce.sinks.iceberg.maintain.files import (
    FoundFile,
    TableBounds,
    bounds,
    dead_stages,
    files_of,
    files_only_in,
    moment_of,
    orphans,
)
from landonce.sinks.iceberg.maintain.run import Deleted, MaintenanceReport, size
from landonce.sinks.iceberg.marks import copy_name, copy_of, own_view, pipelines_of, to_summary
from landonce.sinks.iceberg.spark import StageOf
from landonce.sinks.snapshot import Origin, table_view

NOW = 1_000_000
LONG, SHORT = timedelta(days=3), timedelta()


@dataclass
class History:
    """A table's metadata as it grows."""

    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    refs: dict[str, dict[str, Any]] = field(default_factory=dict)
    properties: dict[str, str] = field(default_factory=dict)
    files: dict[int, frozenset[str]] = field(default_factory=dict)

    def head(self, branch: str = "main") -> int | None:
        return self.refs[branch]["snapshot-id"] if branch in self.refs else None

    def add(
        self,
        parent: int | None,
        at: int,
        mark: Mark | str | None = None,
        *,
        branch: str = "",
        file: str = "",
    ) -> int:
        """A snapshot on top of another, with a mark in full, or only the name of whose it is."""
        number = max(self.files, default=0) + 1
        summary = {"landonce.pipeline": mark} if isinstance(mark, str) else to_summary(mark) if mark else {}
        self.snapshots[number] = Snapshot(
            **{
                "snapshot-id": number,
                "parent-snapshot-id": parent,
                "sequence-number": number,
                "timestamp-ms": at,
                "manifest-list": f"list-{number}",
                "summary": {"operation": "append", **summary},
            }
        )
        self.files[number] = self.files.get(parent or 0, frozenset()) | ({file} if file else set())
        if branch:
            self.point(branch, number)
        if branch and isinstance(mark, Mark):
            self.properties[copy_name(mark.state.pipeline, branch)] = copy_of(summary, number)
        return number

    def point(self, name: str, snapshot: int, kind: str = "branch", **more: int) -> None:
        self.refs[name] = {"snapshot-id": snapshot, "type": kind, **more}

    def drop(self, *snapshots: int) -> None:
        for each in snapshots:
            del self.snapshots[each]

    def metadata(self) -> TableMetadataV2:
        return TableMetadataV2.model_validate(
            {
                "format-version": 2,
                "location": "file:///nowhere",
                "table-uuid": uuid.UUID(int=1),
                "last-updated-ms": NOW,
                "last-column-id": 1,
                "last-sequence-number": len(self.files),
                "schemas": [{"type": "struct", "schema-id": 0, "fields": []}],
                "current-schema-id": 0,
                "partition-specs": [{"spec-id": 0, "fields": []}],
                "default-spec-id": 0,
                "last-partition-id": 999,
                "sort-orders": [{"order-id": 0, "fields": []}],
                "default-sort-order-id": 0,
                "current-snapshot-id": self.head(),
                "snapshots": [each.model_dump(by_alias=True) for each in self.snapshots.values()],
                "refs": self.refs,
                "properties": self.properties,
            }
        )

    def line(self, snapshot: int | None) -> list[int]:
        """Its ancestry, itself first, as far as it is kept."""
        found = []
        while snapshot is not None and snapshot in self.snapshots:
            found.append(snapshot)
            snapshot = self.snapshots[snapshot].parent_snapshot_id
        return found

    def marked(self, snapshot: int) -> str:
        summary = self.snapshots[snapshot].summary
        return summary.additional_properties.get("landonce.pipeline", "") if summary else ""


def chain(*marks: str | None, step: int = 10) -> History:
    """One branch, oldest first; the last snapshot is as old as now."""
    history, parent = History(), None
    for number, mark in enumerate(marks):
        parent = history.add(parent, NOW - step * (len(marks) - 1 - number), mark, branch="main")
    return history


def gone(history: History, **changes: Any) -> list[int]:
    return sorted(expiry(history.metadata(), replace(ExpiryPolicy(age_ms=0, least=1), **changes), NOW).ids)


# Snapshots.


def test_history_goes_by_age_and_count() -> None:
    history = chain(*["p"] * 20)
    assert gone(history) == list(range(1, 20))
    assert gone(history, least=5) == list(range(1, 16))
    assert gone(history, age_ms=70) == list(range(1, 13))
    assert gone(history, age_ms=70, least=10) == list(range(1, 11))
    assert gone(history, least=50) == []


def test_everything_down_to_the_newest_mark_stays() -> None:
    history = chain("p", "p", None, None, None)
    assert gone(history) == [1]
    found = expiry(history.metadata(), ExpiryPolicy(age_ms=0, least=1), NOW)
    assert (found.for_positions, found.pipelines) == (3, ("p",))


def test_the_slowest_pipeline_counts_unless_it_is_retired() -> None:
    history = chain("slow", "p", "p", "p", None)
    assert gone(history) == []
    assert expiry(history.metadata(), ExpiryPolicy(age_ms=0, least=1), NOW).pipelines == ("p", "slow")
    assert gone(history, retired=frozenset({"slow"})) == [1, 2, 3]


def test_what_can_be_rolled_back_to_keeps_its_position() -> None:
    """The window of three ends between two marks: the older one is part of what the lowest of them means."""
    history = chain("p", "p", None, None, "p", None)
    assert gone(history, least=3) == [1]


def test_tags_and_branches_keep_theirs() -> None:
    history = chain("p", None, None, "p", "p", "p")
    history.point("kept", 3, "tag")
    assert gone(history) == [4, 5]
    history.point("audit", 5)
    assert gone(history) == [4]


def test_a_branch_may_have_a_rule_of_its_own() -> None:
    history = chain(*["p"] * 6)
    history.point("main", 6, **{"min-snapshots-to-keep": 4})
    assert gone(history) == [1, 2]
    history.point("main", 6, **{"max-snapshot-age-ms": 20})
    assert gone(history) == [1, 2, 3]


def test_what_no_branch_leads_to_goes_when_it_is_old() -> None:
    history = chain("p", "p", "p", "p")
    history.point("main", 2)
    assert gone(history, age_ms=0) == [1, 3]
    assert gone(history, age_ms=0, least=9) == [3], "the newest one is as young as now"
    assert gone(history, age_ms=10, least=9) == []


def test_a_history_that_shows_that_nothing_was_written_yet_stays_whole() -> None:
    """Rolled back to before the pipeline's first commit: cut off, this would look like an expired mark."""
    history = chain(None, None, None, "p")
    history.properties[copy_name("p", "main")] = copy_of({"landonce.pipeline": "p"}, 4)
    history.point("main", 3)
    assert gone(history, age_ms=-1) == [4]
    history.properties.clear()
    history.drop(4)
    assert gone(history, age_ms=-1) == [1, 2], "nobody's position: nobody's history"


def test_the_command_says_how_much_or_the_table_does() -> None:
    properties = {"history.expire.max-snapshot-age-ms": "7000", "history.expire.min-snapshots-to-keep": "3"}
    assert ExpiryPolicy.of({}, None, None) == ExpiryPolicy(5 * 86_400_000, 10)
    assert ExpiryPolicy.of(properties, None, None) == ExpiryPolicy(7000, 3)
    assert ExpiryPolicy.of(properties, 1, 2, ["old"]) == ExpiryPolicy(1, 2, frozenset({"old"}))


def test_pipelines_are_known_by_their_marks_and_copies() -> None:
    history = chain("a", None)
    history.properties = {
        copy_name("b.c-d", "some.branch"): copy_of({"landonce.pipeline": "b.c-d"}, 1),
        copy_name("b.c-d", "some.branch") + ".journal": "[]",
        "owner": "me",
    }
    assert pipelines_of(history.metadata()) == {"a", "b.c-d"}


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Trees of snapshots with marks of two pipelines, branches and tags, some of it cut off already."""
    history = History()
    for number in range(draw(st.integers(1, 14))):
        parents = [None, *history.snapshots][-4:]
        mark = draw(st.sampled_from([None, "a", "b"]))
        history.add(draw(st.sampled_from(parents)), NOW - 200 + number * draw(st.integers(1, 12)), mark)
    names = draw(st.dictionaries(st.sampled_from(["main", "x", "y"]), st.sampled_from(list(history.snapshots))))
    for name, snapshot in names.items():
        history.point(name, snapshot, "tag" if name == "y" else "branch")
    if draw(st.booleans()):
        history.properties[copy_name("c", "main")] = copy_of({"landonce.pipeline": "c"}, 99)
    free = [each for each in history.snapshots if each not in names.values()]
    history.drop(*(draw(st.sets(st.sampled_from(free), max_size=2)) if free else ()))
    return history


@given(histories(), st.integers(-1, 200), st.integers(1, 4))
def test_exactly_what_nobody_needs_goes(history: History, age: int, least: int) -> None:
    """Against the rule, spelled out snapshot by snapshot."""
    wanted = set()
    led = {each for ref in history.refs.values() for each in history.line(ref["snapshot-id"])}
    for each, snapshot in history.snapshots.items():
        if each not in led and snapshot.timestamp_ms >= NOW - age:
            wanted.add(each)
    for ref in history.refs.values():
        wanted.add(ref["snapshot-id"])
        for count, each in enumerate(history.line(ref["snapshot-id"]) if ref["type"] == "branch" else ()):
            if count >= least and history.snapshots[each].timestamp_ms < NOW - age:
                break
            wanted.add(each)
    pipelines = {history.marked(each) for each in history.snapshots} | ({"c"} if history.properties else set())
    for top, pipeline in product(list(wanted), pipelines - {""}):
        for each in history.line(top):
            wanted.add(each)
            if history.marked(each) == pipeline:
                break
    left = set(history.snapshots) - set(expiry(history.metadata(), ExpiryPolicy(age, least), NOW).ids)
    assert left == wanted


# Files.


def test_names_say_whose_files_they_are() -> None:
    name = Origin("a.b-c", 3, 14, 2).file_name()
    assert moment_of(name, "a.b-c") == (3, 14)
    assert moment_of(name, "a.b") is None
    assert moment_of(name, "b-c") is None
    assert moment_of(f"copy-of-{name}", "a.b-c") is None
    assert moment_of(name.removesuffix(".parquet"), "a.b-c") is None
    assert moment_of("00000-0-6f0c.parquet", "a.b-c") is None
    twisted = Origin("a-e1-b2-0", 5, 6, 7).file_name()
    assert moment_of(twisted, "a-e1-b2-0") == (5, 6)
    assert moment_of(twisted, "a") is None


@pytest.mark.parametrize(("epoch", "batch"), list(product(range(5), range(5))))
def test_what_the_mark_passed_is_dead_at_once(epoch: int, batch: int) -> None:
    at = TableBounds(mark=(2, 2), owner=2)
    expected = epoch < 2 or (epoch == 2 and batch <= 2)
    assert at.dead((epoch, batch), SHORT, LONG) is expected
    assert at.passed((epoch, batch)) is expected
    assert at.dead((epoch, batch), 2 * LONG, LONG) is expected, "the owner's files are never too old"


@pytest.mark.parametrize(("epoch", "batch"), list(product(range(6), range(5))))
def test_what_a_superseded_driver_left_is_dead_after_a_long_time(epoch: int, batch: int) -> None:
    """A fan-out: the pipeline is at epoch 4, and this table was last committed to in epoch 1."""
    at = TableBounds(mark=(1, 2), owner=4)
    passed = epoch < 1 or (epoch == 1 and batch <= 2)
    assert at.dead((epoch, batch), LONG, LONG) is passed
    assert at.dead((epoch, batch), LONG + timedelta(seconds=1), LONG) is (epoch < 4)


def test_a_table_without_a_mark_keeps_everything_for_a_long_time() -> None:
    assert not TableBounds(None, 3).dead((1, 1), LONG, LONG)
    assert TableBounds(None, 3).dead((1, 1), 2 * LONG, LONG)
    assert not TableBounds().dead((0, 0), 100 * LONG, LONG)


def test_only_files_of_the_pipeline_that_nobody_names_are_orphans() -> None:
    now = datetime(2026, 1, 1, tzinfo=timezone.utc)
    dead, named, flying, others = (Origin(name, 1, batch, 0).file_name() for name, batch in _FILES)
    found = [FoundFile(f"s3://x/data/{each}", 5, now) for each in (dead, named, flying, others, "00000-0-1.parquet")]
    result = orphans(found, {named}, "p", TableBounds((1, 2), 1), now, LONG)
    assert [each.name for each in result.dead] == [dead]
    assert [each.name for each in result.waiting] == [flying]


_FILES = (("p", 1), ("p", 2), ("p", 3), ("q", 1))


def state(epoch: int, batch: int, owner: str = "me", pipeline: str = "p", version: int = 0) -> LedgerState:
    return LedgerState(pipeline, "lineage", epoch, owner, version or 100 * epoch + batch, cluster_id="c", batch=batch)


def test_the_bounds_are_the_tables_own_mark() -> None:
    history = History()
    assert bounds(history.metadata(), "p", "main") == TableBounds(None, 0)
    first = history.add(None, 1, Mark(state(1, 5)), branch="main")
    history.add(first, 2, branch="main")
    assert bounds(history.metadata(), "p", "main") == TableBounds((1, 5), 1)
    assert bounds(history.metadata(), "p", "main", ledger_epoch=7) == TableBounds((1, 5), 7)
    assert bounds(history.metadata(), "q", "main", ledger_epoch=7) == TableBounds(None, 7)


def test_after_a_rollback_the_mark_that_is_left_counts() -> None:
    history = History()
    first = history.add(None, 1, Mark(state(1, 5)), branch="main")
    history.add(first, 2, Mark(state(2, 6)), branch="main")
    history.point("main", first)
    assert bounds(history.metadata(), "p", "main") == TableBounds((1, 5), 2)


def test_where_a_pipeline_works_on_two_branches_both_must_be_past_it() -> None:
    history = History()
    first = history.add(None, 1, Mark(state(1, 5)), branch="main")
    history.point("somebody's", first)
    history.add(first, 2, Mark(state(4, 9)), branch="main")
    assert bounds(history.metadata(), "p", "main") == TableBounds((4, 9), 4), (
        "that it was copied from does not make it one"
    )
    history.add(first, 3, Mark(state(2, 6)), branch="audit")
    assert bounds(history.metadata(), "p", "main") == TableBounds((2, 6), 2)
    assert bounds(history.metadata(), "p", "audit") == TableBounds((2, 6), 2)
    assert bounds(history.metadata(), "p", "new") == TableBounds((2, 6), 2), "it would begin where the main one is"


def test_staging_branches_of_the_dead() -> None:
    history = History()
    first = history.add(None, 1, Mark(state(2, 5)), branch="main")
    dead, also, flying, others = (
        StageOf(*each).new_name() for each in (("p", 1, 9), ("p", 2, 5), ("p", 2, 6), ("q", 1, 1))
    )
    for name in (dead, also, flying, others, "landonce_stage_p"):
        history.point(name, first)
    metadata = history.metadata()
    assert dead_stages(metadata, "p", bounds(metadata, "p", "main")) == tuple(sorted((dead, also)))
    assert dead_stages(metadata, "p", TableBounds(None, 9)) == ()


# Drivers, zombies and maintenance, in any order.


@dataclass
class Driver:
    """One driver, which may be slow: it goes on whenever it is called, whatever happened meanwhile."""

    held: LedgerState
    own: OwnView | None = None
    view: TableView | None = None
    expected: TableView | None = None
    file: str = ""
    alive: bool = True


@dataclass
class World:
    """A table, its storage, its drivers. Every commit is judged by what landonce judges it by."""

    history: History = field(default_factory=History)
    stored: set[str] = field(default_factory=set)
    drivers: list[Driver] = field(default_factory=list)
    clock: int = 0

    def names(self) -> set[str]:
        return {file for each in self.history.snapshots for file in self.history.files[each]}

    def readable(self) -> None:
        assert self.names() <= self.stored, "a snapshot names a file that was deleted"

    def write(self, driver: Driver, batch: int) -> None:
        driver.file = Origin("p", driver.held.epoch, batch, 0).file_name()
        self.stored.add(driver.file)

    def foreign(self) -> None:
        self.clock += 1
        self.history.add(self.history.head(), self.clock, branch="main")

    def roll_back(self, pick: int) -> None:
        if self.history.snapshots:
            self.history.point("main", list(self.history.snapshots)[pick % len(self.history.snapshots)])

    def commit(self, driver: Driver, after: LedgerState) -> None:
        self.clock += 1
        self.history.add(self.history.head(), self.clock, Mark(after), branch="main", file=driver.file)
        driver.file = ""

    def maintain(self, least: int, limit: timedelta, ledger_epoch: int | None) -> None:
        """As `TableMaintenance.run` does it: listed, expired, loaded, deleted."""
        now = datetime.now(timezone.utc)
        found = [FoundFile(f"data/{each}", 1, now - timedelta(days=1)) for each in self.stored]
        going = expiry(self.history.metadata(), ExpiryPolicy(age_ms=-1, least=least), self.clock)
        cleaned = {file for each in going.ids for file in self.history.files[each]}
        self.history.drop(*going.ids)
        self.stored -= cleaned - self.names()
        at = bounds(self.history.metadata(), "p", "main", ledger_epoch)
        self.stored -= {each.name for each in orphans(found, self.names(), "p", at, now, limit).dead}


@dataclass
class OwnWorld(World):
    """The table is the ledger."""

    def look(self) -> OwnView:
        return own_view(self.history.metadata(), "p", "main")

    def start(self) -> None:
        view = self.look()
        if view.uncertain:  # rolled back to before the first mark, where somebody's older history was cut off: refused
            return
        before = own_state(view) or state(0, 0, owner="nobody", version=1)
        driver = Driver(taken(before, f"driver {len(self.drivers)}"), own=view)
        self.drivers.append(driver)
        self._swap(driver, driver.held)

    def step(self, driver: Driver) -> None:
        """Writes a file, or commits the one that it wrote."""
        if not driver.file:
            self.write(driver, driver.held.batch + 1)
            return
        after = replace(driver.held, batch=driver.held.batch + 1, version=driver.held.version + 1)
        self._swap(driver, after)

    def _swap(self, driver: Driver, new: LedgerState) -> None:
        assert driver.own is not None
        if own_verdict(driver.own, self.look(), new) is Verdict.GO:
            self.commit(driver, new)
            driver.held, driver.own = new, self.look()
        else:
            driver.alive = False


@dataclass
class FanWorld(World):
    """One table of a fan-out, with a ledger outside of it that may be restored from a copy of itself."""

    ledger: LedgerState = field(default_factory=lambda: state(0, 0, owner="nobody", version=1))
    pending: int = 0
    backups: list[tuple[LedgerState, int]] = field(default_factory=list)

    def look(self) -> TableView:
        return table_view("t", own_view(self.history.metadata(), "p", "main"))

    def start(self) -> None:
        self.backups.append((self.ledger, self.pending))
        self.ledger = taken(self.ledger, f"driver {len(self.drivers)}")
        self.drivers.append(Driver(self.ledger))

    def restore(self, pick: int) -> None:
        if self.backups:
            self.ledger, self.pending = self.backups[pick % len(self.backups)]

    def step(self, driver: Driver) -> None:
        """Looks and writes a file, or commits the one that it wrote: without asking the ledger, as any commit."""
        if driver.file:
            self._commit(driver)
        elif self.ledger.owner != driver.held.owner:
            driver.alive = False
        else:
            self._plan(driver)

    def _plan(self, driver: Driver) -> None:
        view = self.look()
        past = past_epochs([view] if view.mark and view.mark.state.owner != driver.held.owner else [])
        epoch = max(past, self.ledger.epoch)
        self.pending = self.pending or max(self.ledger.batch, view.batch) + 1
        self.ledger = replace(self.ledger, epoch=epoch, version=self.ledger.version + 1, batch=self.pending)
        driver.held, driver.view = self.ledger, view
        if view.mark is None or view.mark.batch < self.pending:
            self.write(driver, self.pending)
        else:
            self.pending = 0

    def _commit(self, driver: Driver) -> None:
        assert driver.view is not None
        seen = self.look()
        judged = verdict(driver.view, seen, driver.held)
        if judged is Verdict.GO:
            self.commit(driver, driver.held)
        driver.file = ""
        if judged is not Verdict.MOVED and self.ledger.owner == driver.held.owner:
            self.pending = 0


_STEPS = st.lists(
    st.tuples(st.sampled_from("sddddddfrmmb"), st.integers(0, 7), st.integers(1, 3)), min_size=5, max_size=40
)


@given(_STEPS, st.booleans())
def test_a_table_that_is_its_own_ledger_never_misses_a_file_or_its_position(
    steps: list[tuple[str, int, int]], impatient: bool
) -> None:
    """Even if files of superseded drivers are deleted at once: no commit of theirs is ever accepted."""
    world = OwnWorld()
    for what, pick, least in steps:
        if what == "s":
            world.start()
        elif what == "d" and world.drivers and (driver := world.drivers[pick % len(world.drivers)]).alive:
            world.step(driver)
        elif what == "f":
            world.foreign()
        elif what == "r":
            world.roll_back(pick)
        elif what == "m":
            before = world.look()
            world.maintain(least, SHORT if impatient else LONG, None)
            after = world.look()
            assert after.mark == before.mark, "the copy is never needed"
            assert after.uncertain is before.uncertain
            assert after.uncertain or own_state(after) == own_state(before)
        world.readable()


@given(_STEPS)
def test_a_table_of_a_fan_out_never_misses_a_file_or_its_position(steps: list[tuple[str, int, int]]) -> None:
    world = FanWorld()
    for what, pick, least in steps:
        if what == "s":
            world.start()
        elif what == "d" and world.drivers and (driver := world.drivers[pick % len(world.drivers)]).alive:
            world.step(driver)
        elif what == "f":
            world.foreign()
        elif what == "r":
            world.roll_back(pick)
        elif what == "b":
            world.restore(pick)
        elif what == "m":
            before = world.look()
            world.maintain(least, LONG, world.ledger.epoch)
            assert world.look() == before
        world.readable()


def test_an_older_driver_may_still_commit_to_a_table_of_a_fan_out() -> None:
    """The control: by the ledger's epoch its file would look dead, and it is in flight."""
    world = FanWorld()
    world.start()
    [first] = world.drivers
    world.step(first)
    world.step(first)
    world.step(first)
    flying = first.file
    world.start()
    world.maintain(1, LONG, world.ledger.epoch)
    assert flying in world.stored
    world.step(first)
    assert flying in world.names()
    world.readable()

    world.step(first)
    assert not first.alive
    world.step(world.drivers[1])
    left = Origin("p", 1, 2, 0).file_name()
    world.stored.add(left)
    world.maintain(1, LONG, world.ledger.epoch)
    assert left not in world.stored, "of a batch that the table is past"


# What snapshots name, and folders, with real files.


@pytest.fixture
def table(tmp_path: Path) -> Table:
    catalog = load_catalog("c", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("db")
    return catalog.create_table("db.t", Schema(NestedField(1, "id", LongType())))


def rows(first: int, count: int = 3) -> pa.Table:
    return pa.table({"id": pa.array(range(first, first + count), pa.int64())})


def on_disk(table: Table) -> set[str]:
    root = Path(table.location().removeprefix("file://"))
    return {f"file://{each}" for each in root.rglob("*") if each.is_file() and each.suffix != ".json"}


def test_what_only_expired_snapshots_name_goes_and_nothing_else(table: Table) -> None:
    table.append(rows(0))
    table.append(rows(10))
    table.overwrite(rows(20))
    table.append(rows(30))
    table.delete("id = 30")
    table.manage_snapshots().create_tag(table.snapshots()[1].snapshot_id, "kept").commit()
    before = table.metadata
    assert set(files_of(table.io, before).data) | set(files_of(table.io, before).metadata) == on_disk(table)
    kept = {ref.snapshot_id for ref in before.refs.values()}
    going = [each.snapshot_id for each in before.snapshots if each.snapshot_id not in kept]
    table.maintenance.expire_snapshots().by_ids(going).commit()

    after = files_of(table.io, table.metadata)
    only = files_only_in(table.io, before, going, after)
    wanted = {snapshot: sorted(_ids(table, snapshot)) for snapshot in kept}
    assert files.delete(table, [*only.data, *only.metadata, "file:///nowhere/at-all"]) == 0
    assert on_disk(table) == set(after.data) | set(after.metadata)
    assert {snapshot: sorted(_ids(table, snapshot)) for snapshot in kept} == wanted
    assert sorted(map(len, wanted.values())) == [5, 6]
    assert only.data
    assert all(size > 0 for size in only.data.values())
    again = files_only_in(table.io, before, going, after)
    assert not again.data, "what was cleaned already says nothing more"


def _ids(table: Table, snapshot: int) -> list[int]:
    return list(table.scan(snapshot_id=snapshot).to_arrow().column("id").to_pylist())


def test_folders_are_listed_whole_and_other_tables_in_them_are_not(table: Table) -> None:
    root = Path(table.location().removeprefix("file://"))
    for name in ("data/a=1/x.parquet", "data/y.parquet", "data/inner/data/z.parquet", "landonce-staged/s.parquet"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"12345")
    folders = files.folders_of(table, shared=True)
    assert folders == (f"{table.location()}/data", f"{table.location()}/landonce-staged")
    found = files.listed(table, folders, [f"{table.location()}/data/inner"])
    assert {each.path.removeprefix(table.location()) for each in found} == {
        "/data/a=1/x.parquet",
        "/data/y.parquet",
        "/landonce-staged/s.parquet",
    }
    assert {each.size for each in found} == {5}
    assert all(datetime.now(timezone.utc) - each.modified < timedelta(minutes=5) for each in found)
    assert files.delete(table, [each.path for each in found]) == 0
    assert files.listed(table, folders) == (FoundFile(f"{table.location()}/data/inner/data/z.parquet", 5, _any),)


class _Any(datetime):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


_any = _Any(2026, 1, 1)


def test_a_data_folder_that_other_tables_may_share_is_not_searched(table: Table, tmp_path: Path) -> None:
    with table.transaction() as change:
        change.set_properties({"write.data.path": f"file://{tmp_path}/elsewhere"})
    staged = f"{table.location()}/landonce-staged"
    assert files.folders_of(table, shared=True) == (staged,)
    assert files.folders_of(table, shared=False) == (f"file://{tmp_path}/elsewhere", staged)


# Compaction, and words.


def test_files_worth_rewriting() -> None:
    target = 1000
    assert worth_rewriting({None: [10] * 4}, target) == 0
    assert worth_rewriting({None: [10] * 5}, target) == 5
    assert worth_rewriting({1: [10] * 4, 2: [10] * 4}, target) == 0
    assert worth_rewriting({1: [10] * 6, 2: [800] * 9}, target) == 6
    assert worth_rewriting({None: [700, 700]}, target) == 2
    assert worth_rewriting({None: [1900]}, target) == 1
    assert worth_rewriting({None: [1800]}, target) == 0


def test_the_census_of_a_branch(table: Table) -> None:
    assert census(table, "main", None).files == 0
    for number in range(5):
        table.append(rows(10 * number))
    found = census(table, "main", None)
    assert (found.files, found.small, found.deletes, found.vectors) == (5, 5, 0, 0)
    assert found.manifests == 5
    assert not found.many_manifests
    assert census(table, "main", target=1).small == 5, "too large"
    assert census(table, "nowhere", None).files == 0


def test_strings_in_a_statement() -> None:
    assert literal("day = 'x'") == r"'day = \'x\''"
    assert literal(r"a\b") == r"'a\\b'"


def test_words_for_people() -> None:
    assert [size(each) for each in (0, 999, 1000, 12_345_678)] == ["0 B", "999 B", "1.0 kB", "12.3 MB"]
    assert MaintenanceReport("db.t").lines() == ["nothing to do"]
    assert MaintenanceReport("db.t", error="away").lines() == ["left as it is: away"]
    text = MaintenanceReport("db.t", orphans=Deleted(2, 2000, 1), waiting=3).lines()
    assert text == [
        "deleted: 2 orphan files (2.0 kB); 3 files may be in flight and stay",
        "note: the storage did not delete 1 files",
    ]


@pytest.mark.parametrize("wrong", [("--expire-older-than", "5 weeks"), ("--target-size", "big"), ("--keep-last", "0")])
def test_a_call_that_is_wrong(wrong: tuple[str, str]) -> None:
    assert CliRunner().invoke(app, ["maintain", "nowhere.yaml", *wrong]).exit_code == 2


def test_nothing_expires_where_there_is_nothing() -> None:
    assert expiry(History().metadata(), ExpiryPolicy(), NOW) == Expiry()
