"""Small pipelines into Iceberg, and no Spark: PyIceberg puts rows where a run would put them.

Nothing here uses landonce's own writing code, so that an audit is tried against rows that it did not make.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import yaml
from pipelines import SmallPipeline
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

from landonce.local import LocalKafka

_ids = itertools.count()

SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "kind", StringType()),
    NestedField(3, "_topic", StringType()),
    NestedField(4, "_kafka_partition", IntegerType()),
    NestedField(5, "_offset", LongType()),
)
COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("kind", pa.string()),
        ("_topic", pa.string()),
        ("_kafka_partition", pa.int32()),
        ("_offset", pa.int64()),
    ]
)


class AuditedLake(SmallPipeline):
    """One topic, tables in an embedded catalog, one file, and a ledger beside it."""

    def __init__(self, kafka: LocalKafka, folder: Path, topic: str, table: str) -> None:
        super().__init__(kafka, None, folder, topic, table)  # type: ignore[arg-type]
        self.snapshots: list[int] = []
        self.write_file()

    def write_file(self, **changes: object) -> None:
        document: dict[str, object] = {
            "pipeline": self.table,
            "source": {"kafka": {"bootstrap_servers": self.kafka.bootstrap_servers, "topics": [self.topic]}},
            "sink": {"iceberg": {"table": self.name()}},
            "ledger": {"sqlite": "clicks.ledger"},
            **changes,
        }
        self.file.write_text(yaml.safe_dump({name: each for name, each in document.items() if each is not None}))

    def write_sink(self, **iceberg: object) -> None:
        self.write_file(sink={"iceberg": iceberg})

    def name(self, table: str = "") -> str:
        return f"db.{table or self.table}"

    @cached_property
    def catalog(self) -> Catalog:
        lake = self.folder / "lake"
        lake.mkdir(exist_ok=True)
        catalog = load_catalog(
            "landonce", type="sql", uri=f"sqlite:///{lake / 'catalog.db'}", warehouse=f"file://{lake}"
        )
        catalog.create_namespace_if_not_exists("db")
        return catalog

    def make_table(self, table: str = "", **properties: str) -> Table:
        return self.catalog.create_table(self.name(table), SCHEMA, properties=properties)

    def load(self, table: str = "") -> Table:
        return self.catalog.load_table(self.name(table))

    def rows(self, offsets: Iterable[int], partition: int = 0, topic: str = "", ids: Iterable[int] = ()) -> pa.Table:
        listed = list(offsets)
        return pa.table(
            {
                "id": list(ids) or [next(_ids) for _ in listed],
                "kind": ["a"] * len(listed),
                "_topic": [topic or self.topic] * len(listed),
                "_kafka_partition": [partition] * len(listed),
                "_offset": listed,
            },
            COLUMNS,
        )

    def land(
        self,
        offsets: Iterable[int],
        partition: int = 0,
        topic: str = "",
        *,
        table: str = "",
        branch: str = "main",
        ids: Iterable[int] = (),
    ) -> int:
        """One snapshot, whose id is given back."""
        held = self.load(table)
        held.append(self.rows(offsets, partition, topic, ids), branch=branch)
        return self.load(table).metadata.refs[branch].snapshot_id

    def forget(self, condition: str, table: str = "") -> None:
        self.load(table).delete(condition)

    def files(self, table: str = "") -> list[DataFile]:
        """What the current snapshot registers."""
        held = self.load(table)
        return [
            entry.data_file
            for manifest in held.current_snapshot().manifests(held.io)
            for entry in manifest.fetch_manifest_entry(held.io)
        ]

    def register(self, file: DataFile, table: str = "") -> int:
        """Once more, as a committer would that forgot that it had done so."""
        with self.load(table).transaction() as transaction, transaction.update_snapshot().fast_append() as append:
            append.append_data_file(file)
        return self.load(table).current_snapshot().snapshot_id
