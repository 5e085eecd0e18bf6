"""Looking at a table: its marks, and where its history is cut off, what its rows and files show of the last one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyiceberg import expressions
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH

from landonce.errors import TableUnfit
from landonce.protocol.ledger import LedgerState
from landonce.protocol.marks import Mark
from landonce.protocol.own_ledger import OwnView
from landonce.protocol.ranges import Partition
from landonce.sinks.iceberg.coordinates import COLUMNS, OFFSET, PARTITION, TOPIC
from landonce.sinks.iceberg.marker import ancestry, own_view, summary_of
from landonce.sinks.snapshot import origin_of

CONNECT_OFFSETS = "kafka.connect.offsets."
"""A snapshot's summary has `kafka.connect.offsets.<control topic>.<group>`: {"0": next offset to read there}."""
STREAMING_QUERY = "spark.sql.streaming.queryId"
_CARRIERS = {
    "Iceberg's Kafka Connect sink": CONNECT_OFFSETS,
    "a Spark streaming query": STREAMING_QUERY,
}
term: Any = expressions
"""PyIceberg's own annotations do not know how its expressions are made."""


def look_at(table: Table, pipeline: str, branch: str, *, vouching: bool = False) -> OwnView:
    """What the table says of the pipeline. `vouching`: an operator says that the last commit counts."""
    view = own_view(table.metadata, pipeline, branch)
    if view.mark is None and view.copy is not None and not view.whole and not view.vouched:
        return replace(view, vouched=vouching or _shows(table, view.copy, branch))
    return view


def holds(table: Table, branch: str, labels: Iterable[str]) -> bool:
    """Whether the branch holds a record of a topic with one of these labels."""
    ref = branch if branch in table.metadata.refs else MAIN_BRANCH
    if ref not in table.metadata.refs or any(each not in table.schema().column_names for each in COLUMNS):
        return False
    scan = table.scan(term.In(TOPIC, set(labels)), selected_fields=(TOPIC,), limit=1)
    return bool(scan.use_ref(ref).to_arrow().num_rows)


def last_rows(table: Table, branch: str, state: LedgerState) -> dict[Partition, int]:
    """The highest offset that the branch holds of each partition that the pipeline covers."""
    if any(name not in table.schema().column_names for name in COLUMNS):
        raise TableUnfit(
            f"{'.'.join(table.name())} has no coordinate columns, so its rows do not say how far it is.",
            safe="Nothing was changed.",
            command="landonce state accept-position {file}, without --by-rows; or begin a new table",
        )
    names = {state.labelled(each): each for each, _ in state.positions}
    scan = table.scan(term.In(TOPIC, {each.topic for each in names}), selected_fields=COLUMNS).use_ref(branch)
    found: dict[Partition, int] = {}
    for batch in scan.to_arrow_batch_reader():
        highest = pa.Table.from_batches([batch]).group_by([TOPIC, PARTITION]).aggregate([(OFFSET, "max")])
        for row in highest.to_pylist():
            each = names.get(Partition(row[TOPIC], row[PARTITION]))
            if each is not None:
                found[each] = max(row[f"{OFFSET}_max"], found.get(each, 0))
    return found


def filled_by(table: Table, branch: str) -> str:
    """Whoever else carried records of Kafka into the branch, by what they leave in their snapshots; empty if nobody did."""
    for snapshot in ancestry(table.metadata, branch):
        for name in summary_of(snapshot):
            for writer, prefix in _CARRIERS.items():
                if name.startswith(prefix):
                    return writer
    return ""


def _shows(table: Table, copy: Mark, branch: str) -> bool:
    """Whether the copy's commit is part of what is left, and the last one: one of its files is there, or else (a compaction
    writes other files) the last row that the table got in every partition, and none at or above its position."""
    return _holds_file(table, copy, branch) or _holds_rows(table, copy, branch)


def _holds_file(table: Table, copy: Mark, branch: str) -> bool:
    head = table.metadata.snapshot_by_name(branch)
    for manifest in head.manifests(table.io) if head is not None else ():
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            origin = origin_of(entry.data_file.file_path)
            if origin is not None and (origin.pipeline, origin.batch) == (copy.state.pipeline, copy.batch):
                return True
    return False


def _holds_rows(table: Table, copy: Mark, branch: str) -> bool:
    if any(name not in table.schema().column_names for name in COLUMNS):
        return False
    tops = dict(copy.tops)
    for partition, position in copy.state.positions:
        here = (table, branch, copy.state.labelled(partition).topic, partition.number)
        if _holds_row(*here, term.GreaterThanOrEqual(OFFSET, position.committed)):
            return False
        if partition in tops and not _holds_row(*here, term.EqualTo(OFFSET, tops[partition])):
            return False
    return bool(tops)


def _holds_row(table: Table, branch: str, label: str, number: int, offset: Any) -> bool:
    here = term.And(term.EqualTo(TOPIC, label), term.EqualTo(PARTITION, number), offset)
    return bool(table.scan(here, selected_fields=(OFFSET,), limit=1).use_ref(branch).to_arrow().num_rows)
