"""The demo on Apache Iceberg: the driver is killed three times, each time with the files of a batch not yet committed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow.compute as pc
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from rich.console import Console
from rich.table import Table as Shown

from landonce.demo.stage import TOPIC, InFlight, Proof, Stage, proof_of
from landonce.sinks.snapshot import origin_of

_TABLE = f"demo.{TOPIC}"


class OnIceberg(Stage):
    """Kills while a batch has written files that the table does not contain yet."""

    place = "the Iceberg table"

    @contextmanager
    def servers(self) -> Iterator[str]:
        yield "an Iceberg catalog in a SQLite file, which needs no server"

    def sink(self) -> str:
        return f"sink:\n  iceberg: {{table: {_TABLE}, create: true}}"

    def in_flight(self, after: int) -> InFlight | None:
        origins = (origin_of(path.name) for path in self.folder.glob(f"lake/demo/{TOPIC}/data/**/*.parquet"))
        batch = max((origin.batch for origin in origins if origin is not None), default=0)
        if batch <= max(after, self._committed()):
            return None
        return InFlight(batch, "its files are written and not committed yet")

    def _committed(self) -> int:
        table = self._load()
        head = table.current_snapshot() if table is not None else None
        return int(head.summary["landonce.batch"] or 0) if head is not None and head.summary is not None else 0

    def prove(self, produced: list[int], kills: int) -> Proof:
        """Read with PyIceberg: rows and distinct (partition, offset, id) per partition."""
        table = self._load()
        rows = table.scan(selected_fields=("id", "_kafka_partition", "_offset")).to_arrow() if table else None
        if rows is None:
            return proof_of({}, 0, produced, kills)
        ids, numbers = (np.asarray(rows.column(name).to_numpy()) for name in ("id", "_kafka_partition"))
        right = (ids % len(produced) == numbers) & (
            ids // len(produced) == np.asarray(rows.column("_offset").to_numpy())
        )
        found = {}
        for number in np.unique(numbers[right]):
            here = ids[right & (numbers == number)]
            found[int(number)] = (len(here), int(pc.count_distinct(here).as_py()))
        return proof_of(found, rows.num_rows, produced, kills)

    def epilogue(self, console: Console) -> None:
        """The snapshots: what each batch added, and the position after it."""
        shown = Shown(title="its snapshots")
        for name in ("snapshot", "epoch", "batch", "added rows", "files", "offsets in all"):
            shown.add_column(name, justify="right", no_wrap=True)
        table = self._load()
        for each in table.snapshots() if table else ():
            summary = each.summary.additional_properties if each.summary is not None else {}
            position = sum(
                committed
                for partitions in json.loads(summary.get("landonce.position", "{}")).values()
                for _, committed in partitions.values()
            )
            shown.add_row(
                str(each.snapshot_id),
                summary.get("landonce.epoch", ""),
                summary.get("landonce.batch", ""),
                f"{int(summary.get('added-records', 0)):,}",
                summary.get("added-data-files", "0"),
                f"{position:,}",
            )
        console.print(shown)

    def _load(self) -> Table | None:
        if not (self.folder / "lake" / "catalog.db").exists():
            return None
        catalog = load_catalog("landonce", type="sql", uri=f"sqlite:///{self.folder / 'lake' / 'catalog.db'}")
        try:
            return catalog.load_table(_TABLE)
        except NoSuchTableError:
            return None
