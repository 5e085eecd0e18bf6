"""A table as its own ledger, in a real catalog and without Spark: two drivers around one commit, and tables that took another's place."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

from landonce.errors import Fenced, LedgerSetBack, RolledBack, TableUnfit
from landonce.protocol.ledger import LedgerState, Position, bound, taken
from landonce.protocol.ranges import Partition
from landonce.read.schema.fields import Field, Schema
from landonce.sinks.iceberg.catalog import CatalogSpec
from landonce.sinks.iceberg.commit import Attempt, IcebergTable, TableBranch
from landonce.sinks.iceberg.config import Iceberg
from landonce.sinks.iceberg.files import write_files
from landonce.sinks.iceberg.maintain import files as maintained_files
from landonce.sinks.iceberg.maintain import run as maintaining
from landonce.sinks.iceberg.maintain.run import TableMaintenance
from landonce.sinks.iceberg.sink import IcebergSink
from landonce.sinks.iceberg.table import Creation, TableShape, create_table
from landonce.sinks.operations import Upkeep
from landonce.sinks.snapshot import Origin, TableLedger

P = Partition("topic", 0)
NAME = "shop.events"


class Interrupted(TableBranch):
    """Something happens between a commit and the look at what the table is afterwards, as with Spark's own commit and REST's answer."""

    meanwhile: Callable[[], None] | None = None

    def send(self, table: Table, attempt: Attempt) -> None:
        super().send(table, attempt)
        meanwhile, Interrupted.meanwhile = Interrupted.meanwhile, None
        if meanwhile is not None:
            meanwhile()
            table.refresh()


@dataclass
class Driver:
    """One driver of the pipeline. Every offset is a row."""

    catalog: Catalog
    spec: CatalogSpec
    kind: type[TableBranch] = TableBranch
    ledger: TableLedger = field(init=False)
    state: LedgerState = field(init=False)

    def __post_init__(self) -> None:
        self.place = self.kind(self.spec, lambda: self.catalog, NAME, "main", "events")
        self.ledger = TableLedger(IcebergTable(self.place), "events")
        state = self.ledger.load() or self.ledger.create(LedgerState("events", lineage="l"))
        state = self.ledger.change(state, taken(state, uuid.uuid4().hex))
        self.state = (
            self.ledger.change(state, bound(state, "cluster", {"topic": "id"}, {P: 0})) if state.fresh else state
        )

    def deliver(self, end: int) -> None:
        """Up to this offset."""
        old = self.state
        first = old.committed()[P]
        new = replace(old, version=old.version + 1, batch=old.batch + 1, positions=((P, Position(0, end)),))
        rows = pa.table(
            {
                "id": range(first, end),
                "_topic": ["topic"] * (end - first),
                "_kafka_partition": pa.array([0] * (end - first), pa.int32()),
                "_offset": range(first, end),
            }
        )
        files = write_files(TableShape.of(self.place.load()), rows, Origin("events", old.epoch, new.batch, 0))

        self.ledger.commit(old, new, files, started=((P, first),))
        self.state = new


@dataclass
class Lake:
    folder: Path

    def __post_init__(self) -> None:
        self.properties = {
            "type": "sql",
            "uri": f"sqlite:///{self.folder}/c.db",
            "warehouse": f"file://{self.folder}/w",
        }
        self.catalog = load_catalog("c", **self.properties)
        self.make()

    def make(self) -> None:
        create_table(self.catalog, NAME, Schema((Field("id", pa.int64()),)), Creation())

    def driver(self, kind: type[TableBranch] = TableBranch) -> Driver:
        return Driver(self.catalog, CatalogSpec("c", self.properties), kind)

    def ids(self, name: str = NAME) -> list[int]:
        return sorted(self.catalog.load_table(name).scan().to_arrow()["id"].to_pylist())


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    yield Lake(tmp_path)
    Interrupted.meanwhile = None


def test_a_commit_of_another_that_is_seen_with_ones_own_fences(lake: Lake) -> None:
    """The first one's commit is made; before it looks at the table again the second takes the pipeline and delivers more."""
    first = lake.driver(Interrupted)

    def second() -> None:
        lake.driver().deliver(20)

    Interrupted.meanwhile = second
    with pytest.raises(Fenced):
        first.deliver(10)
    assert lake.ids() == list(range(20))
    with pytest.raises(Fenced):
        first.deliver(20)
    assert lake.ids() == list(range(20))


def test_a_catalog_that_is_restored_under_a_driver_is_distinguished_from_a_newer_driver(lake: Lake) -> None:
    """To before this driver came: nobody goes on, so it is to be started again. Then the rows that are gone are delivered again."""
    lake.driver().deliver(3)
    shutil.copy(lake.folder / "c.db", lake.folder / "backup")
    driver = lake.driver()
    driver.deliver(6)
    shutil.copy(lake.folder / "backup", lake.folder / "c.db")
    for attempt in (lambda: driver.deliver(9), lambda: driver.ledger.check_owner(driver.state)):
        with pytest.raises(LedgerSetBack, match="was set back") as failure:
            attempt()
        assert failure.value.exit_code == 5
    assert lake.ids() == [0, 1, 2]
    again = lake.driver()
    again.deliver(9)
    assert lake.ids() == list(range(9))
    with pytest.raises(Fenced, match="the newer driver continues") as newer:
        driver.deliver(12)
    assert newer.value.exit_code == 4


def test_a_catalog_that_is_restored_to_a_moment_of_the_same_driver_is_followed(lake: Lake) -> None:
    driver = lake.driver()
    driver.deliver(3)
    shutil.copy(lake.folder / "c.db", lake.folder / "backup")
    driver.deliver(6)
    shutil.copy(lake.folder / "backup", lake.folder / "c.db")
    with pytest.raises(RolledBack):
        driver.deliver(9)
    state = driver.ledger.load()
    assert state is not None
    assert state.committed() == {P: 3}
    assert "its catalog was restored" in driver.ledger.noticed
    driver.ledger.load()
    assert driver.ledger.noticed == "", "it is said once"


def tended(lake: Lake, driver: Driver) -> Any:
    return TableMaintenance(
        driver.place, Upkeep(compact=False), lambda: pytest.fail("Spark was started"), lambda _: None
    ).run()


def test_files_of_a_table_that_was_renamed_are_not_taken_for_orphans(lake: Lake) -> None:
    """A rename moves no files, and the table that takes the name takes the folder, too."""
    old = lake.driver()
    for end in (3, 6, 9):
        old.deliver(end)
    lake.catalog.rename_table(NAME, "shop.archive")
    lake.make()
    new = lake.driver()
    for end in (2, 4, 6, 8):
        new.deliver(end)
    places = {lake.catalog.load_table(name).location() for name in (NAME, "shop.archive")}
    assert len(places) == 1, "the scene: both lie in one folder"
    report = tended(lake, new)
    assert report.orphans.files == 0
    assert any("renamed" in each for each in report.notes)
    assert lake.ids("shop.archive") == list(range(9))
    assert lake.ids() == list(range(8))


def test_orphans_are_found_where_the_folder_is_the_tables_own(lake: Lake) -> None:
    """The control, with more metadata files than the table's log names."""
    driver = lake.driver()
    for end in range(1, 30):
        driver.deliver(end)
    write_files(
        TableShape.of(driver.place.load()),
        pa.table({"id": [1], "_topic": ["topic"], "_kafka_partition": pa.array([0], pa.int32()), "_offset": [1]}),
        Origin("events", 1, 1, 7),
    )
    metadata = Path(lake.catalog.load_table(NAME).location().removeprefix("file://")) / "metadata"
    known = len(lake.catalog.load_table(NAME).metadata.metadata_log) + 1
    assert len(list(metadata.glob("*.metadata.json"))) >= known
    report = tended(lake, driver)
    assert report.orphans.files == 1
    assert report.notes == ()


def test_a_table_that_cannot_be_tended_keeps_no_other_from_it(lake: Lake) -> None:
    """What is wrong with one table is an error of landonce, which `maintain` reports before it goes on to the next one."""
    driver = lake.driver()
    driver.deliver(3)
    with driver.place.load().transaction() as change:
        change.set_properties({"history.expire.max-snapshot-age-ms": "5 days"})
    with pytest.raises(TableUnfit, match="not a whole number: '5 days'"):
        tended(lake, driver)


def test_metadata_may_be_removed_while_it_is_looked_through(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pipeline commits meanwhile, and every commit removes the oldest file of the table's metadata."""
    driver, found = lake.driver(), maintained_files._files
    driver.deliver(3)

    def with_gone(io: PyArrowFileIO, folder: str) -> Iterator[Any]:
        yield from found(io, folder)
        if folder.endswith("/metadata"):
            yield maintained_files.FoundFile(f"{folder}/gone.metadata.json", 1, datetime.now(timezone.utc))

    monkeypatch.setattr(maintained_files, "_files", with_gone)
    assert tended(lake, driver).notes == ()


def test_tables_that_only_look_as_if_they_were_the_pipelines_are_left_alone(lake: Lake) -> None:
    """`shop.events_{kind}`, and somebody else's `shop.events_daily`."""
    lake.catalog.create_table("shop.events_daily", pa.schema([("n", pa.int64())]))
    sink = IcebergSink(CatalogSpec("c", lake.properties), Iceberg(table="shop.events_{kind}"), "events")
    lake.catalog.rename_table(NAME, "shop.events_a")
    names = ("shop.events_a", "shop.events_daily")

    def ours(ledger: LedgerState | None) -> tuple[str, ...]:
        return maintaining.tables_of(sink, ledger, names, maintaining.tables_there(sink, names))

    assert ours(None) == ()
    lake.catalog.rename_table("shop.events_a", NAME)
    lake.driver().deliver(3)
    lake.catalog.rename_table(NAME, "shop.events_a")
    assert ours(None) == ("shop.events_a",)
    known = LedgerState("events", lineage="l", tables=(("shop.events_daily", None),))  # type: ignore[arg-type]
    assert ours(known) == names
