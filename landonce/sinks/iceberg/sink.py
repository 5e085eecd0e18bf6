"""The Iceberg sink as a description: which catalog, which tables, and how they are written. Picklable."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pyiceberg.catalog import Catalog

from landonce.jars import spark_jars
from landonce.protocol.ledger import Ledger
from landonce.read.route import Routing, Rule
from landonce.sinks.contract import Guarantee, Sink
from landonce.sinks.iceberg.catalog import CatalogSpec
from landonce.sinks.iceberg.commit import Place
from landonce.sinks.iceberg.config import Iceberg
from landonce.sinks.iceberg.ledger import TableLedger

if TYPE_CHECKING:
    from landonce.sinks.checking import CheckRun, Sections
    from landonce.sinks.operations import Operations, Sessions
    from landonce.sinks.parts import Parts
    from landonce.sinks.pipeline_file import Pipeline
    from landonce.sinks.promise import Promise

_FIELD = re.compile(r"\{([^{}]+)\}")


@dataclass
class IcebergSink(Sink):
    """One pipeline's tables. Opening it connects to nothing yet."""

    spec: CatalogSpec
    told: Iceberg
    pipeline: str
    guarantee: Guarantee = field(default=Guarantee.SNAPSHOT, init=False)

    @staticmethod
    def of(told: Iceberg, pipeline: str) -> IcebergSink:
        spark = {name: str(value) for name, value in told.catalog.spark.items()}
        return IcebergSink(CatalogSpec(told.catalog.name, told.catalog.properties(), spark), told, pipeline)

    @cached_property
    def catalog(self) -> Catalog:
        return self.spec.open()

    def open_ledger(self, config: Pipeline) -> Ledger:
        return self.own_ledger() if config.own_ledger else super().open_ledger(config)

    def promise(self, config: Pipeline) -> Promise:
        from landonce.sinks.iceberg.promise import promise

        return promise(config, self.told)

    @property
    def changes_rows(self) -> bool:
        return self.told.changes is not None

    def open_query_ledger(self, where: str | Path | None, name: str) -> TableLedger:
        del where, name
        return self.own_ledger()

    def spark_conf(self) -> dict[str, str]:
        """A session with these settings reads and writes the sink's catalog."""
        return {**self.spec.spark_conf(), "spark.jars": ",".join(map(str, spark_jars()))}

    def own_ledger(self) -> TableLedger:
        """The one table as its own ledger."""
        return TableLedger(self.place(self.static[0]), follow=self.told.rollback == "follow")

    def checks(self, run: CheckRun) -> Sections:
        from landonce.sinks.iceberg.check import sections

        return sections(run, self)

    def operations(self, parts: Parts, sessions: Sessions) -> Operations:
        from landonce.sinks.iceberg.operations import IcebergOperations

        return IcebergOperations(parts, sessions, self)

    @property
    def identity(self) -> str:
        return f"{self.spec.identity} {self} {self.told.branch}"

    def __str__(self) -> str:
        names = self.told.table or ", ".join(each.table for each in self.told.tables)
        branch = "" if self.told.branch == "main" else f" (branch {self.told.branch})"
        return f"Iceberg {names}{branch}"

    @cached_property
    def routing(self) -> Routing:
        """Which records go where."""
        told = self.told
        if told.table is not None:
            found = _FIELD.search(told.table)
            if found is None:
                return Routing(None, (Rule(told.table),))
            return Routing(found[1], (), told.table.replace(found[0], "{value}"))
        rules = tuple(Rule(each.table, each.equals, each.match) for each in told.tables)
        return Routing(told.route_field, rules)

    @property
    def static(self) -> tuple[str, ...]:
        """The tables that the file names."""
        return tuple(rule.table for rule in self.routing.rules)

    @property
    def table(self) -> str:
        """The one table, where there is one."""
        return str(self.told.table)

    def place(self, table: str) -> Place:
        return Place(self.spec, lambda: self.catalog, table, self.told.branch, self.pipeline)

    def dynamic(self) -> tuple[str, ...]:
        """The tables that are there and could be of the template: for a ledger that does not know them."""
        template = self.routing.template
        if template is None:
            return ()
        namespace, _, _ = template.rpartition(".")
        name = re.compile(re.escape(template).replace(re.escape("{value}"), r"\w+"))
        if not self.catalog.namespace_exists(namespace):
            return ()
        listed = (".".join(each) for each in self.catalog.list_tables(namespace))
        return tuple(sorted(each for each in listed if name.fullmatch(each)))
