"""Where ClickHouse's sink for Kafka Connect stopped, and a pipeline's first position from that. Pure.

With `exactlyOnce`, the connector keeps one row per partition in a KeeperMap table: the batch that it inserted last. It writes the row
before the insert (BEFORE_PROCESSING), and again once ClickHouse has acknowledged it (AFTER_PROCESSING):

    state     of the batch's records, the table holds   the pipeline begins
    ────────  ───────────────────────────────────────   ─────────────────────────────────
    AFTER     (nobody asks)                             at maxOffset + 1
    BEFORE    all                                       at maxOffset + 1
              none                                      at minOffset
              some, or nobody can tell                  where the operator says; else refused

Offsets are missing where Kafka compacted them or has a transaction's marker, so records are compared one by one, never counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from landonce.protocol.ledger import LedgerState, bound, taken
from landonce.protocol.operate.decision import Decision, listed, refused
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.source import Extent, GroupOffsets, SourceView, Start
from landonce.sinks.clickhouse.address import TableName

BEFORE, AFTER = "BEFORE_PROCESSING", "AFTER_PROCESSING"
_KEY = re.compile(r"(.+)-(\d+)", re.DOTALL)
_COMMENTS = re.compile(r"--[^\n]*(?:\n|$)|/\*.*?\*/", re.DOTALL)
_PART = r"(`(?:[^`\\]|\\.|``)*`|\"(?:[^\"\\]|\\.|\"\")*\"|[A-Za-z_]\w*)"
_INTO = re.compile(
    rf"\s*INSERT\s+INTO\s+(?!(?:TABLE\s+)?FUNCTION\b)(?:TABLE\s+)?{_PART}(?:\s*\.\s*{_PART})?\s*(?![\w.`\"])",
    re.IGNORECASE,
)
_CORRECT = "correct `source.kafka` in {file}: the topic was created again, or is another one"
_SAYS = "look for these records in the table, and import with `--before landed` (all are there) or `--before absent` (none is)"
_AGAIN = "start the connector again, wait until it has caught up, stop it, then import; or "


def inserts_into(table: TableName, query: str, database: str) -> bool:
    """Whether this INSERT, of a session with this database, is into the table. One that cannot be read is, if it names the table anywhere."""
    found = _INTO.match(_COMMENTS.sub(" ", query))
    if found is None:
        return table.name in query
    first, second = (_unquoted(each) if each else None for each in found.groups())
    return (
        (first, second) == (table.database, table.name) if second else (database, first) == (table.database, table.name)
    )


def _unquoted(name: str) -> str:
    mark = name[0]
    if mark not in '`"':
        return name
    return re.sub(rf"\\(.)|{mark}({mark})", lambda found: found[1] or found[2], name[1:-1])


@dataclass(frozen=True)
class LastBatch:
    """The last batch of one partition, as the state table names it. Both offsets are of records in it."""

    partition: Partition
    first: int
    last: int
    state: str

    def __str__(self) -> str:
        return f"{self.state} [{self.first}, {self.last}]"


@dataclass(frozen=True)
class ComparedBatch:
    """A batch whose insert was never confirmed, compared with the table."""

    records: int = 0
    """Of the batch, that Kafka still has."""
    rows: int = 0
    """How many of them the table holds."""
    unknown: str = ""
    """Why the table cannot tell."""


@dataclass(frozen=True)
class WriterStops:
    """Where the writer stopped. Two of these are equal only if nothing happened in between."""

    writer: str
    stops: tuple[tuple[Partition, int, str], ...]
    """The next offset of each partition that it delivered from, and how that is known."""
    notes: tuple[str, ...] = ()


def batches(rows: Iterable[tuple[str, int, int, str]], view: SourceView) -> tuple[LastBatch, ...]:
    """Those of the pipeline's partitions. `rows`: key, minOffset, maxOffset and state. Other keys are of other topics."""
    topics, extents = dict(view.topic_ids), dict(view.extents)
    found: dict[Partition, LastBatch] = {}
    for key, first, last, state in rows:
        named = _KEY.fullmatch(key)
        if named is None or named[1] not in topics:
            continue
        partition = Partition(named[1], int(named[2]))
        batch = LastBatch(partition, first, last, state)
        if partition not in extents:
            raise refused(f"the state table names {partition}, and the topic does not have that partition.", _CORRECT)
        if state not in (BEFORE, AFTER) or not 0 <= first <= last or partition in found:
            raise refused(
                f"{partition}: the state table says {batch}, which is not a state that the connector writes, or says two things.",
                "name the connector's own state table: `--from-clickhouse-connect TABLE` (its option `zkDatabase`)",
            )
        found[partition] = batch
    return tuple(found[each] for each in sorted(found))


def readable(batch: LastBatch, extent: Extent) -> tuple[Range, ...]:
    """What Kafka still has of a batch. Raises where the topic ends before it."""
    end = batch.last + 1
    _refuse_outside(batch.partition, end, extent, Start.EARLIEST)
    first = max(batch.first, extent.start)
    return (Range(batch.partition, first, end),) if first < end else ()


def stop_of(batch: LastBatch, compared: ComparedBatch | None, landed: bool | None) -> tuple[Partition, int, str]:
    """The position after the connector's last batch. `landed`: what an operator says of a batch that cannot be settled."""
    if compared is None:
        return batch.partition, batch.last + 1, str(batch)
    unknown = compared.unknown or ("" if compared.records else "Kafka has none of its records any more")
    if not unknown and compared.rows == compared.records:
        what = f"{batch}, and the table holds all {compared.records} records of it"
        return batch.partition, batch.last + 1, what
    if not unknown and not compared.rows:
        return batch.partition, batch.first, f"{batch}, and the table holds none of its {compared.records} records"
    if landed is not None:
        said = "counts as landed" if landed else "counts as absent"
        return batch.partition, batch.last + 1 if landed else batch.first, f"{batch}, which {said}: you said so"
    if unknown:
        raise refused(
            f"{batch.partition}: the connector never learned whether its insert of {batch} landed, and nobody can tell: {unknown}.",
            _AGAIN + _SAYS,
        )
    raise refused(
        f"{batch.partition}: the connector never learned whether its insert of {batch} landed, and the table holds {compared.rows} of its "
        f"{compared.records} records.",
        f"{_AGAIN}remove these rows, and import; or say so: `--before landed` (the others were tombstones or dead letters, and are not "
        "delivered), `--before absent` (the first run compares; if it halts with PartialPresence, `landonce state fill {file}` has what is missing written)",
    )


def stops_of(name: str, group: GroupOffsets) -> tuple[tuple[Partition, int, str], ...]:
    """Where a consumer group stopped."""
    refuse_members(name, group)
    for partition, text in sorted(group.metadata.items()):
        raise refused(
            f"{partition}: the consumer group {name!r} committed metadata ({text[:40]!r}) with its offset. Some clients keep in it which "
            "later records they have processed, and landonce cannot read it.",
            "name the offsets to begin at in {file}: `start: {offsets: …}`",
        )
    return tuple((each, at, "committed by the group") for each, at in sorted(group.committed.items()))


def refuse_members(name: str, group: GroupOffsets) -> None:
    if group.members:
        raise refused(
            f"the consumer group {name!r} has {group.members} active members: the connector is running.",
            "stop it, then import. One that was killed is a member until its session ends, about a minute",
        )


def begin(state: LedgerState, found: WriterStops, view: SourceView, owner: str, missing: Start | None) -> Decision:
    """Binds the ledger to the cluster and the topics as they are, at the offsets that were found. `missing`: where a partition begins that
    the writer says nothing of, or whose next records Kafka has deleted."""
    stops, extents = {partition: (at, why) for partition, at, why in found.stops}, dict(view.extents)
    if missing is None and (unknown := [each for each in extents if each not in stops]):
        raise refused(
            f"{found.writer} says nothing of {listed(unknown)}.",
            "if nothing was delivered from there yet: import with `--missing earliest`. `--missing latest` leaves out what is there now",
        )
    firsts: dict[Partition, int] = {}
    does = [f"{state.pipeline} goes on where {found.writer} stopped."]
    for partition, extent in extents.items():
        at, why = stops.get(partition, (-1, f"{found.writer} says nothing of it"))
        _refuse_outside(partition, at, extent, missing)
        first = at if at >= extent.start else extent.start if missing is not Start.LATEST else extent.stable_end
        lost = f"; [{at}, {first}) is never delivered" if 0 <= at < first else ""
        does.append(f"{partition}: next offset {first}, lag {extent.stable_end - first}; {why}{lost}")
        firsts[partition] = first
    new = bound(taken(state, owner), view.cluster_id, dict(view.topic_ids), firsts)
    return Decision(
        "import", new, tuple(does), (*found.notes, _FROM_HERE, f"If {found.writer} goes on, records land twice.")
    )


def _refuse_outside(partition: Partition, at: int, extent: Extent, missing: Start | None) -> None:
    if at > extent.stable_end:
        raise refused(
            f"{partition}: the next offset would be {at}, and the topic ends at {extent.stable_end}.",
            f"{_CORRECT}. If a producer's transaction is open, wait for its end",
        )
    if at < extent.start and missing is None:
        raise refused(
            f"{partition}: the next offset would be {at}, and the topic now begins at {extent.start}: Kafka has deleted [{at}, {extent.start}).",
            "import with `--missing earliest` to begin at the first record that is left",
        )


def no_proof(named: Mapping[str, Iterable[str]], topic: str) -> str:
    """Why rows cannot tell whether a batch of this topic landed; empty if they can. `named`: the values of `_topic` in each table."""
    for table, values in named.items():
        if "" in values:
            return f"{table} holds rows without coordinates"
    topics = {each for values in named.values() for each in values}
    if topics and topic not in topics:
        return f"no row names the topic {topic!r} in `_topic`, so that its rows may have none of its coordinates"
    return ""


_FROM_HERE = "Rows of records before these offsets are not landonce's: `landonce verify` does not judge them."
