"""Iceberg pipelines that an operator looks at and decides about: real runs, and a catalog that is read apart from landonce."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import yaml
from pipelines import SmallPipeline
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.table import Table

from landonce.engine.pipeline import run_pipeline
from landonce.ledger.open import sqlite_ledger
from landonce.local import LocalKafka
from landonce.protocol.ledger import Totals
from landonce.sinks.pipeline_file import load

PARTITION = "_kafka_partition"


class Operated(SmallPipeline):
    """One topic and one file; the catalog is the one beside it."""

    def __init__(self, kafka: LocalKafka, folder: Path, topic: str) -> None:
        super().__init__(kafka, None, folder, topic, "pipe")  # type: ignore[arg-type]
        self.options: dict[str, object] = {}

    def write_sink(self, schema: str = "", transform: object = None, **changes: object) -> None:
        """What was said of the sink before stays said."""
        self.options |= changes
        kafka = {"bootstrap_servers": self.kafka.bootstrap_servers, "topics": [self.topic]}
        document = {
            "pipeline": "pipe",
            "source": {"kafka": {**kafka, "schema": schema} if schema else kafka},
            "sink": {"iceberg": self.options},
            **({"transform": transform} if transform else {}),
        }
        self.file.write_text(yaml.safe_dump(document))

    def send(self, ids: Iterable[int], kind: str = "a", partition: int = 0) -> None:
        self.produce((json.dumps({"id": each, "kind": kind}).encode() for each in ids), partition)

    def run(self) -> Totals:
        return run_pipeline(load(self.file), once=True)

    @cached_property
    def catalog(self) -> Catalog:
        lake = self.folder / "lake"
        lake.mkdir(exist_ok=True)
        return load_catalog("landonce", type="sql", uri=f"sqlite:///{lake}/catalog.db", warehouse=f"file://{lake}")

    def held(self, name: str = "db.t") -> Table:
        return self.catalog.load_table(name)

    def ids(self, name: str = "db.t", branch: str = "main") -> list[int]:
        """As they are in the table, in order; what is twice is there twice."""
        table = self.held(name)
        if branch not in table.metadata.refs:
            return []
        return sorted(table.scan(AlwaysTrue()).use_ref(branch).to_arrow()["id"].to_pylist())

    def head(self, name: str = "db.t") -> int:
        snapshot = self.held(name).current_snapshot()
        assert snapshot is not None
        return snapshot.snapshot_id

    def roll_to(self, snapshot: int, name: str = "db.t") -> None:
        with self.held(name).manage_snapshots() as change:
            change.set_current_snapshot(snapshot_id=snapshot)

    def forget_history(self, name: str = "db.t") -> None:
        """Only the newest snapshot is left."""
        table = self.held(name)
        old = [each.snapshot_id for each in table.metadata.snapshots if each.snapshot_id != self.head(name)]
        table.maintenance.expire_snapshots().by_ids(old).commit()

    def journal(self) -> list[str]:
        """What operators decided, where the ledger is a file."""
        return [note.action for note in sqlite_ledger(self.folder / "landonce.ledger", "pipe").journal()]

    def noted(self, name: str = "db.t", branch: str = "main") -> list[str]:
        """What operators decided, where the table is the ledger."""
        journal = json.loads(self.held(name).properties.get(f"landonce.pipe.{branch}.journal", "[]"))
        return [action for _, action, _ in journal]
