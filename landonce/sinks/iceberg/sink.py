"""The Iceberg sink as a picklable description: which catalog, which tables, how they are written, and what holds for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from landonce.jars import spark_jars
from landonce.protocol.ledger import Ledger, LedgerState
from landonce.protocol.marks import TableView
from landonce.protocol.own_ledger import OwnView
from landonce.read.route import Routing
from landonce.sinks.contract import Guarantee, Sink
from landonce.sinks.iceberg.catalog import CatalogSpec, catalog_errors
from landonce.sinks.iceberg.commit import IcebergTable, TableBranch
from landonce.sinks.iceberg.config import Iceberg
from landonce.sinks.iceberg.files import WrittenFile
from landonce.sinks.pipeline_file import Pipeline
from landonce.sinks.promise import READ_IN_TIME, Promise, ledger_condition, transform_condition
from landonce.sinks.snapshot import TableLedger, table_view

if TYPE_CHECKING:
    from landonce.sinks.audit import HeldTables
    from landonce.sinks.checking import CheckRun, Sections
    from landonce.sinks.iceberg.driver import OpenIceberg
    from landonce.sinks.operations import Operations, Sessions
    from landonce.sinks.parts import Parts
    from landonce.sinks.run import Run


@dataclass
class IcebergSink(Sink):
    """One pipeline's tables. Making one connects to nothing."""

    spec: CatalogSpec
    config: Iceberg
    pipeline: str
    guarantee: Guarantee = field(default=Guarantee.SNAPSHOT, init=False)
    interval = 60.0
    short_interval = 10.0
    short_interval_costs = (
        "every batch is a snapshot and small files, which slow readers down and make the metadata grow"
    )

    @staticmethod
    def of(config: Iceberg, pipeline: str) -> IcebergSink:
        spark = {name: str(value) for name, value in config.catalog.spark.items()}
        return IcebergSink(CatalogSpec(config.catalog.name, config.catalog.properties(), spark), config, pipeline)

    @cached_property
    def catalog(self) -> Catalog:
        return self.spec.open()

    def open(self, run: Run) -> OpenIceberg:
        from landonce.sinks.iceberg.driver import OpenIceberg

        return OpenIceberg(self, run)

    @property
    def follow(self) -> bool:
        """A table that was rolled back gets the removed ranges again. Otherwise the run halts."""
        return self.config.rollback == "follow"

    def open_ledger(self, config: Pipeline) -> Ledger:
        return self.own_ledger() if config.own_ledger else super().open_ledger(config)

    def promise(self, config: Pipeline) -> Promise:
        """Rows and position are one atomic commit."""
        iceberg = self.config
        where = "in the table once" if iceberg.one_table else "once in each table that it is meant for"
        what = f"record is {where}" if iceberg.changes is None else f"change is applied {where}"
        filtered = "or filtered" + ("" if config.transform.empty else " by `where`")
        recovery = (
            "the table is its own ledger: a driver that starts takes it with a snapshot, and fences every earlier driver"
            if config.own_ledger
            else "every batch is planned in the ledger before its first commit, and each table says itself which batch it holds: "
            "after a crash only those are committed to that lack it"
        )
        return Promise(
            f"exactly once: every {what}, or in the dead letters once, {filtered}",
            (
                "rows and position are one atomic commit: neither is ever in a table without the other",
                "inside every attempt of a commit, position and epoch of the table are the ones that the batch was planned "
                "from, or nothing is committed: a driver that comes late is refused",
                "files of tasks and drivers that died were never committed, and count for nothing",
                recovery,
            ),
            (*_conditions(config, iceberg), *transform_condition(config), READ_IN_TIME),
        )

    @property
    def changes_rows(self) -> bool:
        return self.config.changes is not None

    @property
    def no_query(self) -> str:
        one = self.config.one_table
        return super().no_query if one else f"{self} stands for many tables, and a query is delivered to one."

    def open_query_ledger(self, where: str | Path | None, name: str) -> TableLedger[WrittenFile]:
        del where, name
        return self.own_ledger()

    def spark_conf(self) -> dict[str, str]:
        """What a Spark session needs to read and write the sink's catalog."""
        return {**self.spec.spark_conf(), "spark.jars": ",".join(map(str, spark_jars(s3=self.spec.in_s3)))}

    def own_ledger(self, *, follow: bool | None = None) -> TableLedger[WrittenFile]:
        """The one table as its own ledger. `follow`: a rollback, whatever the file says."""
        followed = self.follow if follow is None else follow
        return TableLedger(IcebergTable(self.place(self.static[0])), self.pipeline, follow=followed)

    def checks(self, run: CheckRun) -> Sections:
        from landonce.sinks.iceberg.check import sections

        return sections(run, self)

    def held(self, parts: Parts, state: LedgerState | None) -> HeldTables:
        from landonce.sinks.iceberg.held import IcebergTables

        return IcebergTables(parts, self, state)

    def operations(self, parts: Parts, sessions: Sessions) -> Operations:
        from landonce.sinks.iceberg.operations import IcebergOperations

        return IcebergOperations(parts, sessions, self)

    @property
    def identity(self) -> str:
        return f"{self.spec.identity} {self} {self.config.branch}"

    def __str__(self) -> str:
        names = ", ".join(self.config.names)
        branch = "" if self.config.branch == "main" else f" (branch {self.config.branch})"
        return f"Iceberg {names}{branch}"

    @cached_property
    def routing(self) -> Routing:
        """Which records go where."""
        return self.config.routing

    @property
    def static(self) -> tuple[str, ...]:
        """The tables that the file names."""
        return self.routing.static

    @property
    def table(self) -> str:
        """The one table, where there is one."""
        return str(self.config.table)

    def place(self, table: str) -> TableBranch:
        return TableBranch(self.spec, lambda: self.catalog, table, self.config.branch, self.pipeline)

    def dynamic(self) -> tuple[str, ...]:
        """The existing tables whose names fit the template: for a ledger that does not know them."""
        template = self.routing.template
        if template is None:
            return ()
        namespace, _, _ = template.rpartition(".")
        if not self.catalog.namespace_exists(namespace):
            return ()
        listed = (".".join(each) for each in self.catalog.list_tables(namespace))
        return tuple(sorted(filter(self.routing.could_make, listed)))


def _conditions(pipeline: Pipeline, config: Iceberg) -> Iterator[str]:
    if not pipeline.own_ledger:
        yield ledger_condition(pipeline)
    if not config.one_table:
        yield "a batch becomes visible in one table after another; each of them is exact at every moment"
    yield "the catalog swaps a table's metadata only if it is still what was read (REST, SQL, Hive and Glue catalogs do)"
    yield (
        f"nobody removes the marks: snapshots may expire, but the table property landonce.{pipeline.pipeline}.{config.branch} "
        "stays"
    )
    yield "nothing but this pipeline writes rows with these coordinates"
    if config.changes is not None:
        yield "changes of one row come in one partition of a topic: their order is that of its offsets"
    if config.inserts == "append":
        yield "an insert is the first change of its row: nothing older is deleted for it (`inserts: append`)"
    yield (
        "a table that is rolled back gets the removed ranges again, as far as Kafka still has them"
        if config.rollback == "follow"
        else "a table that is rolled back is a reason to halt (`rollback: refuse`)"
    )


@dataclass(frozen=True)
class SeenTable:
    """One table and what it says of the pipeline. Both are None if the table does not exist."""

    name: str
    table: Table | None = None
    own: OwnView | None = None

    @property
    def view(self) -> TableView:
        return table_view(self.name, self.own)


def catalog_exists(sink: IcebergSink) -> bool:
    """Whether there is a catalog to ask: opening a SQLite catalog would create its file."""
    path = sink.spec.sqlite_file
    return path is None or path.exists()


def table_names(sink: IcebergSink, state: LedgerState | None) -> tuple[str, ...]:
    """The tables that the file names, those that the ledger knows, and those whose names fit the template."""
    known = (table for table, _ in state.tables) if state is not None else ()
    with catalog_errors(sink.spec):
        return tuple(sorted({*sink.static, *known, *sink.dynamic()}))


def survey(sink: IcebergSink, names: Iterable[str]) -> tuple[SeenTable, ...]:
    """The tables and their marks as they are now. Reads only."""
    places = map(sink.place, names)
    found = ((place, place.find()) for place in places)
    return tuple(SeenTable(at.identifier, table, at.look(table) if table is not None else None) for at, table in found)
