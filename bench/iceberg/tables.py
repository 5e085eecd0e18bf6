"""The tables that everybody writes: the record's columns and its coordinates, in one REST catalog."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from iceberg_servers import LocalRestCatalog
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, IntegerType, LongType, NestedField, StringType, TimestamptzType

from landonce.sinks.iceberg.catalog import CatalogSpec

_SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "user", StringType(), required=False),
    NestedField(3, "event", StringType(), required=False),
    NestedField(4, "at", TimestamptzType(), required=False),
    NestedField(5, "amount", DoubleType(), required=False),
    NestedField(6, "page", StringType(), required=False),
    NestedField(7, "_topic", StringType(), required=False),
    NestedField(8, "_kafka_partition", IntegerType(), required=False),
    NestedField(9, "_offset", LongType(), required=False),
)

_COMPRESSION = {"write.parquet.compression-codec": "zstd", "write.parquet.compression-level": "3"}


@dataclass(frozen=True)
class Written:
    """What a table consists of."""

    commits: int
    files: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.commits} commits, {self.files} files, {self.bytes / 1e6:,.0f} MB"


class Lake:
    """One REST catalog."""

    def __init__(self, rest: LocalRestCatalog) -> None:
        self.rest = rest
        self.spec = CatalogSpec("landonce", {**rest.properties, "type": "rest"})
        self.catalog: Catalog = load_catalog("landonce", **self.spec.properties)
        self.catalog.create_namespace_if_not_exists("bench")

    def make(self, table: str, properties: Mapping[str, str] | None = None) -> None:
        self.catalog.create_table(table, _SCHEMA, properties={**_COMPRESSION, **(properties or {})})

    def written(self, table: str) -> Written:
        """By the table's own account."""
        loaded = self.catalog.load_table(table)
        head = loaded.current_snapshot()
        if head is None or head.summary is None:
            raise RuntimeError(f"{table} is empty")
        commits = sum(1 for each in loaded.snapshots() if each.summary and each.summary["added-records"])
        return Written(commits, int(head.summary["total-data-files"] or 0), int(head.summary["total-files-size"] or 0))

    def rows(self, table: str) -> int:
        """What the head says; nothing is read."""
        head = self.catalog.load_table(table).current_snapshot()
        return int(head.summary["total-records"] or 0) if head is not None and head.summary is not None else 0
