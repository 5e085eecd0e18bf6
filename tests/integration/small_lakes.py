"""Small Iceberg pipelines with a real Kafka and real Spark, and looks at their tables that use PyIceberg alone, or Spark's reader."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka import Producer
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table
from pyspark.sql import Row, SparkSession

from landonce.engine.observe import Silent
from landonce.engine.pipeline import run_pipeline
from landonce.local import LocalKafka
from landonce.protocol.ledger import Totals
from landonce.sinks.pipeline_file import load


class Heard(Silent):
    """What a run reported of its troubles."""

    def __init__(self) -> None:
        self.troubles: list[str] = []

    def trouble(self, what: str) -> None:
        self.troubles.append(what)


@dataclass
class SmallLake:
    """One topic, one pipeline file, one catalog: the embedded one by default."""

    kafka: LocalKafka
    folder: Path
    topic: str
    name: str = "pipe"
    schema: str | None = "id BIGINT, kind STRING"
    properties: dict[str, str] = field(default_factory=dict)
    heard: Heard = field(default_factory=Heard)

    @property
    def file(self) -> Path:
        return self.folder / f"{self.name}.yaml"

    @property
    def catalog(self) -> Catalog:
        if self.properties:
            return load_catalog("landonce", **self.properties)
        lake = self.folder / "lake"
        lake.mkdir(exist_ok=True)
        return load_catalog("landonce", type="sql", uri=f"sqlite:///{lake}/catalog.db", warehouse=f"file://{lake}")

    def write_file(self, iceberg: dict[str, Any], **more: Any) -> None:
        kafka: dict[str, Any] = {"bootstrap_servers": self.kafka.bootstrap_servers, "topics": [self.topic]}
        if self.schema is not None:
            kafka["schema"] = self.schema
        catalog = {"catalog": self.properties} if self.properties else {}
        document = {
            "pipeline": self.name,
            "source": {"kafka": kafka},
            "sink": {"iceberg": {**catalog, **iceberg}},
            "batch": {"interval": "0s"},
            "dead_letters": {"path": f"dead-{self.name}"},
            **more,
        }
        self.file.write_text(yaml.safe_dump(document))

    def produce(self, values: Iterable[Any], partition: int = 0, timestamp: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers, "log_level": 0})
        for value in values:
            data = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
            producer.produce(self.topic, data, partition=partition, timestamp=timestamp)
        assert producer.flush(30) == 0

    def run(self, heard: Heard | None = None) -> Totals:
        self.heard = heard or Heard()
        return run_pipeline(load(self.file), once=True, observer=self.heard)

    def table(self, name: str) -> Table:
        return self.catalog.load_table(name)

    def rows(self, name: str, branch: str = "main") -> list[dict[str, Any]]:
        table = self.table(name)
        if branch not in table.metadata.refs:
            return []
        rows = table.scan().use_ref(branch).to_arrow().to_pylist()
        return sorted(rows, key=lambda row: (row["_topic"], row["_kafka_partition"], row["_offset"]))

    def offsets(self, name: str, branch: str = "main") -> Counter[tuple[int, int]]:
        """How often each coordinate is there."""
        return Counter((row["_kafka_partition"], row["_offset"]) for row in self.rows(name, branch))

    def letters(self) -> list[dict[str, Any]]:
        files = sorted((self.folder / f"dead-{self.name}").glob("*.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def rollback(self, name: str, batch: int) -> None:
        """To the last snapshot of this batch."""
        table = self.table(name)
        found = [each for each in table.snapshots() if each.summary and each.summary["landonce.batch"] == str(batch)]
        table.manage_snapshots().rollback_to_snapshot(found[-1].snapshot_id).commit()


def once(count: int, partition: int = 0, first: int = 0) -> Counter[tuple[int, int]]:
    """Every offset of a stretch, once."""
    return Counter({(partition, offset): 1 for offset in range(first, first + count)})


def reading(session: SparkSession, lake: SmallLake) -> SparkSession:
    """Iceberg's own code, which reads every format."""
    conf = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "jdbc",
        ".uri": f"jdbc:sqlite:{lake.folder}/lake/catalog.db",
        ".warehouse": f"file://{lake.folder}/lake",
        ".jdbc.schema-version": "V1",
        ".cache-enabled": "false",
    }
    own = session.newSession()
    for key, value in conf.items():
        own.conf.set(f"spark.sql.catalog.landonce{key}", value)
    return own


def by_spark(session: SparkSession, lake: SmallLake) -> list[Row]:
    return reading(session, lake).table("landonce.db.t").collect()
