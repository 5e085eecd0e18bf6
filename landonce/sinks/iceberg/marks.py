"""A pipeline's marks in a table: in the summary of each of its snapshots, with a copy in the table's properties.

landonce.pipeline        whose mark it is; a table may carry those of several pipelines
landonce.epoch, .owner, .version, .lineage, .batch
landonce.cluster         the Kafka cluster's id
landonce.topics          JSON: topic → id
landonce.position        JSON: topic → partition → [first offset ever, next offset to read]
landonce.started         JSON: topic → partition → the pipeline's position before this batch
landonce.landed          JSON: topic → partition → the offset of the last row that the table got
landonce.labels          JSON: topic → what `_topic` holds for it, where that is not its name
landonce.totals          JSON: [landed, dead-lettered, filtered]
landonce.lately          JSON: the same of the last batches, if they were beyond the limit of dead letters
landonce.behind          "true" while a table that was rolled back is being filled up again
landonce.letters         JSON: the batch's dead-letter files
landonce.letters-in      their folder
landonce.commit-id       of this commit alone: every attempt to commit has another one
landonce.valid-through   every record up to this moment is in: the minimum, over all partitions, of the latest timestamp
                         that was read. Absent if a partition had no record in the batch

If the history that held the mark was cut off, the table's rows and files may still show that the copy's commit is part of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
from pyiceberg import expressions
from pyiceberg.expressions import BooleanExpression
from pyiceberg.expressions.visitors import bind
from pyiceberg.io.pyarrow import expression_to_pyarrow
from pyiceberg.table import DataScan, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Snapshot

from landonce.errors import TableUnfit
from landonce.protocol.ledger import LedgerState, Position, Totals
from landonce.protocol.marks import Mark
from landonce.protocol.operate import PastCommit
from landonce.protocol.own_ledger import OwnView
from landonce.protocol.ranges import Partition
from landonce.sinks.iceberg.held_files import PinnedTable
from landonce.sinks.iceberg.table import live_files
from landonce.sinks.iceberg.types import COLUMNS, OFFSET, PARTITION, TOPIC
from landonce.sinks.snapshot import origin_of

_PREFIX = "landonce."
_FIRST = 1
"""The sequence number of a table's first snapshot. That a snapshot has no parent proves nothing: PyIceberg removes an expired parent from
its children."""
CONNECT_OFFSETS = "kafka.connect.offsets."
"""A snapshot's summary has `kafka.connect.offsets.<control topic>.<group>`: {"0": next offset to read there}."""
STREAMING_QUERY = "spark.sql.streaming.queryId"
_OTHER_WRITERS = {"Iceberg's Kafka Connect sink": CONNECT_OFFSETS, "a Spark streaming query": STREAMING_QUERY}
term: Any = expressions
"""As `Any`: PyIceberg's annotations do not accept the arguments that its expressions take."""


def copy_name(pipeline: str, branch: str) -> str:
    """The table property that holds the copy of the last mark."""
    return f"{_PREFIX}{pipeline}.{branch}"


def journal_name(pipeline: str, branch: str) -> str:
    """The table property that holds operators' decisions, if the table is the ledger."""
    return f"{copy_name(pipeline, branch)}.journal"


def to_summary(mark: Mark, valid_through: int | None = None) -> dict[str, str]:
    """What a snapshot's summary says of the pipeline."""
    state = mark.state
    values = {
        "pipeline": state.pipeline,
        "epoch": str(state.epoch),
        "owner": state.owner,
        "version": str(state.version),
        "lineage": state.lineage,
        "batch": str(state.batch),
        "cluster": state.cluster_id,
        "topics": _json(dict(state.topic_ids)),
        "position": _json(_nested((each, [at.first, at.committed]) for each, at in state.positions)),
        "started": _json(_nested(mark.started)),
        "landed": _json(_nested(mark.tops)),
        "totals": _json(state.totals.listed),
    }
    if mark.commit:
        values["commit-id"] = mark.commit
    if state.labels:
        values["labels"] = _json(dict(state.labels))
    if state.lately.read:
        values["lately"] = _json(state.lately.listed)
    if mark.behind:
        values["behind"] = "true"
    if mark.letters:
        values["letters"] = _json(list(mark.letters))
        values["letters-in"] = mark.letters_in
    if valid_through is not None:
        moment = datetime.fromtimestamp(valid_through / 1000, timezone.utc)
        values["valid-through"] = moment.isoformat(timespec="milliseconds")
    return {_PREFIX + name: value for name, value in values.items()}


def copy_of(summary: Mapping[str, str], snapshot: int) -> str:
    """The copy for the table's properties: the same, with the id of the snapshot."""
    return _json({"snapshot": snapshot, **summary})


def own_view(metadata: TableMetadata, pipeline: str, branch: str) -> OwnView:
    """What a table's metadata says of a pipeline, on one branch: the newest mark, or else how far back the history goes."""
    mark, oldest, copy = None, None, None
    for oldest in ancestry(metadata, branch):
        if summary_of(oldest).get(_PREFIX + "pipeline") == pipeline:
            mark = _read(summary_of(oldest), oldest.snapshot_id)
            break
    parsed = json.loads(metadata.properties.get(copy_name(pipeline, branch), "{}"))
    if parsed.get(_PREFIX + "pipeline") == pipeline:
        copy = _read(parsed, int(parsed["snapshot"]))
    whole = oldest is None or is_first(oldest)
    vouched = copy is not None and oldest is not None and oldest.parent_snapshot_id == copy.snapshot
    return OwnView(str(metadata.table_uuid), mark, copy, whole, vouched)


def history(metadata: TableMetadata, pipeline: str, branch: str) -> tuple[PastCommit, ...]:
    """The branch's commits, newest first. A compaction replaces files, and changes no rows."""
    return tuple(_commit(each, pipeline) for each in ancestry(metadata, branch))


def _commit(snapshot: Snapshot, pipeline: str) -> PastCommit:
    summary, number = summary_of(snapshot), snapshot.snapshot_id
    at = datetime.fromtimestamp(snapshot.timestamp_ms / 1000, timezone.utc).isoformat(timespec="milliseconds")
    operation = snapshot.summary.operation if snapshot.summary is not None else None
    mark = _read(summary, number) if summary.get(_PREFIX + "pipeline") == pipeline else None
    named = operation.value if operation is not None else "unknown"
    return PastCommit(number, at, named, mark, same_rows=operation is Operation.REPLACE)


def is_first(snapshot: Snapshot) -> bool:
    """Whether it is the table's first snapshot."""
    return snapshot.parent_snapshot_id is None and snapshot.sequence_number == _FIRST


def ancestry(metadata: TableMetadata, branch: str) -> Iterator[Snapshot]:
    """The branch's snapshots, newest first, as far back as they are kept; the main branch's if it does not exist yet."""
    ref = metadata.refs.get(_branch_of(metadata, branch))
    known = {each.snapshot_id: each for each in metadata.snapshots}
    return with_ancestors(ref.snapshot_id if ref is not None else None, known)


def _branch_of(metadata: TableMetadata, branch: str) -> str:
    """The branch that a pipeline's branch is, or will be created from."""
    return branch if branch in metadata.refs else MAIN_BRANCH


def with_ancestors(at: int | None, known: Mapping[int, Snapshot]) -> Iterator[Snapshot]:
    """A snapshot and those before it, newest first, as far back as they are kept."""
    while at is not None and at in known:
        yield known[at]
        at = known[at].parent_snapshot_id


def summary_of(snapshot: Snapshot) -> Mapping[str, str]:
    """The summary of a snapshot, without its operation."""
    return snapshot.summary.additional_properties if snapshot.summary is not None else {}


def _read(summary: Mapping[str, Any], snapshot: int) -> Mark:
    summary = {name.removeprefix(_PREFIX): value for name, value in summary.items()}
    positions = [
        (partition, Position(first, committed))
        for partition, (first, committed) in _flat(json.loads(summary["position"]))
    ]
    state = LedgerState(
        pipeline=summary["pipeline"],
        lineage=summary["lineage"],
        epoch=int(summary["epoch"]),
        owner=summary["owner"],
        version=int(summary["version"]),
        cluster_id=summary["cluster"],
        topic_ids=tuple(sorted(json.loads(summary["topics"]).items())),
        positions=tuple(sorted(positions)),
        batch=int(summary["batch"]),
        totals=Totals(*json.loads(summary["totals"])),
        labels=tuple(sorted(json.loads(summary.get("labels", "{}")).items())),
        lately=Totals(*json.loads(summary.get("lately", "[]"))),
    )
    return Mark(
        state=state,
        started=tuple(sorted(_flat(json.loads(summary["started"])))),
        behind=summary.get("behind") == "true",
        snapshot=snapshot,
        letters=tuple(json.loads(summary.get("letters", "[]"))),
        letters_in=summary.get("letters-in", ""),
        tops=tuple(sorted(_flat(json.loads(summary["landed"])))),
        commit=summary.get("commit-id", ""),
    )


def _nested(pairs: Iterable[tuple[Partition, Any]]) -> dict[str, dict[str, Any]]:
    nested: dict[str, dict[str, Any]] = {}
    for partition, value in pairs:
        nested.setdefault(partition.topic, {})[str(partition.number)] = value
    return nested


def _flat(nested: Mapping[str, Mapping[str, Any]]) -> list[tuple[Partition, Any]]:
    return [
        (Partition(topic, int(number)), value)
        for topic, partitions in nested.items()
        for number, value in partitions.items()
    ]


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def look_at(table: Table, pipeline: str, branch: str, *, vouching: bool = False) -> OwnView:
    """What the table says of the pipeline. `vouching`: an operator accepts the last commit."""
    view = own_view(table.metadata, pipeline, branch)
    if view.mark is None and view.copy is not None and not view.whole and not view.vouched:
        shown = vouching or _holds_file(table, view.copy, branch) or _holds_rows(table, view.copy, branch)
        return replace(view, vouched=shown)
    return view


def holds(table: Table, branch: str, labels: Iterable[str]) -> bool:
    """Whether the branch holds a record of a topic with one of these labels."""
    return any(each.num_rows for each in _rows(table, branch, term.In(TOPIC, set(labels)), limit=1))


def last_rows(table: Table, branch: str, state: LedgerState) -> dict[Partition, int]:
    """The highest offset that the branch holds of each partition that the pipeline covers."""
    if not set(COLUMNS) <= set(table.schema().column_names):
        raise TableUnfit(
            f"{'.'.join(table.name())} has no coordinate columns, so its position cannot be found from its rows.",
            safe="Nothing was changed.",
            command="landonce state accept-position {file}, without --by-rows; or use a new table",
        )
    names = {state.labelled(each): each for each, _ in state.positions}
    found: dict[Partition, int] = {}
    for batch in _rows(table, branch, term.In(TOPIC, {each.topic for each in names})):
        highest = pa.Table.from_batches([batch]).group_by([TOPIC, PARTITION]).aggregate([(OFFSET, "max")])
        for row in highest.to_pylist():
            each = names.get(Partition(row[TOPIC], row[PARTITION]))
            if each is not None:
                found[each] = max(row[f"{OFFSET}_max"], found.get(each, 0))
    return found


def _rows(table: Table, branch: str, where: BooleanExpression, limit: int | None = None) -> Iterator[pa.RecordBatch]:
    """The coordinates of the rows that meet a condition on them: with `limit`, of that many or more. None without the columns.

    The columns are those of the table as it is now. PyIceberg's scan of a branch has those of its newest snapshot, which lacks the coordinate
    columns if they were added since.
    """
    metadata = table.metadata
    ref = _branch_of(metadata, branch)
    if ref not in metadata.refs or not set(COLUMNS) <= set(table.schema().column_names):
        return
    pinned = PinnedTable(".".join(table.name()), table, ref)
    if not pinned.has_equality_deletes:
        at_head = metadata.model_copy(update={"current_snapshot_id": metadata.refs[ref].snapshot_id})
        yield from DataScan(at_head, table.io, where, COLUMNS, limit=limit).to_arrow_batch_reader()
        return
    condition = expression_to_pyarrow(bind(table.schema(), where, case_sensitive=True))
    for _, batch in pinned.rows(COLUMNS):  # PyIceberg does not read equality deletes
        yield from pa.Table.from_batches([batch]).filter(condition).to_batches()


def pipelines_of(metadata: TableMetadata) -> frozenset[str]:
    """The pipelines that ever committed to the table, as far as its metadata shows."""
    found = {pipeline_of(each) for each in metadata.snapshots}
    for name, value in metadata.properties.items():
        if name.startswith(_PREFIX):
            with suppress(ValueError):  # a property of the user's own that begins like ours
                copy = json.loads(value)
                found.add(copy.get(_PREFIX + "pipeline", "") if isinstance(copy, dict) else "")
    return frozenset(found - {""})


def pipeline_of(snapshot: Snapshot) -> str:
    """The pipeline whose mark a snapshot carries."""
    return summary_of(snapshot).get(_PREFIX + "pipeline", "")


def filled_by(table: Table, branch: str) -> str:
    """Another writer that brought records of Kafka into the branch, by what it leaves in its snapshots; empty if none did."""
    names = (name for snapshot in ancestry(table.metadata, branch) for name in summary_of(snapshot))
    writers = (writer for name in names for writer, prefix in _OTHER_WRITERS.items() if name.startswith(prefix))
    return next(writers, "")


def _holds_file(table: Table, copy: Mark, branch: str) -> bool:
    """Whether the table holds a file of the copy's commit: then that commit is part of it."""
    origins = (origin_of(each.data_file.file_path) for each in live_files(table, _branch_of(table.metadata, branch)))
    mine = copy.state.pipeline, copy.batch
    return any(each is not None and (each.pipeline, each.batch) == mine for each in origins)


def _holds_rows(table: Table, copy: Mark, branch: str) -> bool:
    """Whether the table's rows prove it, as a compaction writes other files: the last row of every partition is there, and none at
    or above the position."""

    def found(partition: Partition, offset: Any) -> bool:
        label = copy.state.labelled(partition).topic
        here = term.And(term.EqualTo(TOPIC, label), term.EqualTo(PARTITION, partition.number), offset)
        return any(each.num_rows for each in _rows(table, branch, here, limit=1))

    tops = dict(copy.tops)
    if not tops:
        return False
    for partition, position in copy.state.positions:
        if found(partition, term.GreaterThanOrEqual(OFFSET, position.committed)):
            return False
        if partition in tops and not found(partition, term.EqualTo(OFFSET, tops[partition])):
            return False
    return True
