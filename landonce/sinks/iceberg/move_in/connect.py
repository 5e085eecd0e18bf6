"""Where Iceberg's sink for Kafka Connect stopped.

A snapshot of the sink records how far its coordinator had read the control topic: files that were reported before that
are in the table, files reported later are not. The consumer group moves when files are reported, so it is ahead of the
table until they are committed. Only while no reported file waits, the group's offsets are where the table ends:

    control topic    …  files  files │ files           group → 1600, table → 1500: importing the group's offsets loses 100
                          the table's offset ┘ └ these wait: start the sink again, and it commits them

`Cluster` asks Kafka; everything that is decided from its answers is pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from pyiceberg.table import Table

from landonce.errors import ImportRefused, SourceUnavailable, TopicMissing
from landonce.protocol.operate.decision import listed
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.source import Extent
from landonce.read.kafka.broker import Broker
from landonce.read.kafka.client import QUIET, committed, known_offset, source_error
from landonce.read.kafka.records import read
from landonce.sinks.iceberg.marks import CONNECT_OFFSETS
from landonce.sinks.iceberg.move_in.events import Complete, Written, event_of
from landonce.sinks.iceberg.move_in.history import (
    Found,
    History,
    LastCommit,
    histories,
    history_of,
    missing,
    refused,
    same_topics,
)
from landonce.sinks.iceberg.sink import IcebergSink

_DRAIN = (
    "start the connector again, wait until it has committed (its commit interval is 5 minutes by default), stop it, "
    "then import"
)
T = TypeVar("T")
_PATIENCE = 20.0


@dataclass(frozen=True)
class Reported:
    """Files that were reported, and where in the control topic."""

    partition: int
    offset: int
    written: Written


@dataclass(frozen=True)
class ControlLog:
    """What the control topic still holds of one sink."""

    topic: str
    starts: Mapping[int, int]
    """The first offset of each partition: earlier events expired."""
    ends: Mapping[int, int]
    unfinished: frozenset[int] = frozenset()
    """Partitions with a transaction that is neither committed nor aborted."""
    reported: tuple[Reported, ...] = ()
    completed: Mapping[Partition, int] = field(default_factory=dict)
    """The greatest next offset that tasks reported, for each partition of the source that they had records of."""
    assigned: frozenset[Partition] = frozenset()
    """All partitions of the source that tasks had."""


@dataclass(frozen=True)
class Connector:
    """The sink as Kafka knows it."""

    connector: str
    group: str
    members: int
    """Of its consumer groups, the coordinator's too."""
    offsets: Mapping[Partition, int]
    log: ControlLog

    def __str__(self) -> str:
        return f"the connector {self.connector!r}"


def control_topic_in(summary: Mapping[str, str], group: str) -> str | None:
    """The control topic of the sink that made a snapshot."""
    mine = (key for key in summary if key.startswith(CONNECT_OFFSETS) and key.endswith(f".{group}"))
    return next((key.removeprefix(CONNECT_OFFSETS).removesuffix(f".{group}") for key in sorted(mine)), None)


def said_by(control: str, group: str, summary: Mapping[str, str]) -> str | None:
    """How far the coordinator had read, if the sink made the snapshot."""
    return summary.get(f"{CONNECT_OFFSETS}{control}.{group}")


def stopped_at(sink: Connector, histories: Sequence[History], topics: Iterable[str]) -> dict[Partition, int]:
    """The next offset of each partition that the sink ever delivered from; one history for each table of the pipeline."""
    _idle(sink)
    unknown = [each.table for each in histories if each.last is None and not each.whole]
    if unknown or not any(each.last for each in histories):
        raise _unknown(sink, unknown or [each.table for each in histories])
    for each in histories:
        _nothing_expired(sink, each)
        _nothing_waits(sink, each)
    read = frozenset(each.topic for each in (*sink.offsets, *sink.log.assigned))
    same_topics(str(sink), read, frozenset(topics))
    return _agreed(sink)


def covered(sink: Connector, history: History) -> frozenset[str]:
    """Files that were reported before what the table records, so that they should be in it."""
    recorded = _recorded(history)
    before = (each for each in _reported(sink, history) if each.offset < recorded.get(each.partition, 0))
    return frozenset(path for each in before for path in each.written.files)


def _reported(sink: Connector, history: History) -> list[Reported]:
    return [each for each in sink.log.reported if each.written.table == history.table and each.written.files]


def _recorded(history: History) -> dict[int, int]:
    """How far the coordinator had read the control topic, by partition."""
    parsed = json.loads(history.last.text) if history.last is not None else {}
    return {int(partition): int(offset) for partition, offset in parsed.items()}


def _idle(sink: Connector) -> None:
    if sink.members:
        raise refused(
            f"{sink} is running: its consumer groups {sink.group} and {sink.group}-coord have {sink.members} members.",
            "stop the connector, then import. One that was killed is a member until its session ends, about a minute",
        )
    if sink.log.unfinished:
        raise refused(
            f"a transaction of {sink} on its control topic {sink.log.topic} is still open.",
            "try again in a minute: Kafka ends the transaction of a producer that is gone",
        )


def _nothing_expired(sink: Connector, history: History) -> None:
    recorded = _recorded(history)
    gone = [each for each, start in sorted(sink.log.starts.items()) if start > recorded.get(each, 0)]
    if gone and history.last is not None:
        place = f"{sink.log.topic}[{gone[0]}]"
        raise refused(
            f"{history.table} records offset {recorded.get(gone[0], 0)} of {place}, which begins at "
            f"{sink.log.starts[gone[0]]} now: files may have been reported in between and never committed.",
            "let the connector commit at least one more record to the table, stop it, then import",
        )


def _nothing_waits(sink: Connector, history: History) -> None:
    recorded = _recorded(history)
    left = [each for each in _reported(sink, history) if each.offset >= recorded.get(each.partition, 0)]
    if left:
        files, rows = sum(len(each.written.files) for each in left), sum(each.written.rows for each in left)
        raise refused(
            f"{files} file(s) with {rows} rows for {history.table} were reported on {sink.log.topic} and are not in the table, "
            f"the first at offset {left[0].offset} of partition {left[0].partition}. The offsets of group {sink.group} are past "
            "them already.",
            f"{_DRAIN}. If the table was rolled back, roll it forward",
        )


def _agreed(sink: Connector) -> dict[Partition, int]:
    """The group's offsets, which the tasks' reports confirm; the reports alone, where the group's offsets expired."""
    log, offsets = sink.log, dict(sink.offsets)
    if not offsets and any(log.starts.values()):
        raise refused(
            f"the consumer group {sink.group} has no offsets (any more), and the beginning of {log.topic} expired: nothing "
            f"shows where {sink} stopped.",
            f"{_DRAIN}. Check its name and --group",
        )
    for partition, reported in sorted(log.completed.items()):
        if offsets.setdefault(partition, reported) != reported:
            raise refused(
                f"{partition}: the consumer group {sink.group} is at offset {offsets[partition]}, and the last report of {sink} "
                f"was {reported}. Somebody moved the group's offsets.",
                f"set the group's offset back to {reported}, then import",
            )
    return offsets


def _unknown(sink: Connector, tables: Iterable[str]) -> ImportRefused:
    return refused(
        f"no snapshot of {', '.join(tables)} was committed by {sink} (group {sink.group}, control topic {sink.log.topic}), as "
        "far as the history of the branch goes back.",
        "check the connector's name, --group and --control-topic, and `table` and `branch` in {file}; if the snapshots "
        "expired, let the connector commit at least one more record",
    )


@dataclass(frozen=True)
class Cluster:
    """The brokers that the sink and the pipeline read from."""

    servers: str
    options: Mapping[str, Any]
    consumer: Mapping[str, Any]
    """As the pipeline's own readers are set up."""

    def sink(self, connector: str, group: str, control: str, topics: Iterable[str]) -> Connector:
        """The sink as it is now, with its offsets in these topics and in all that its tasks had."""
        admin = AdminClient({**QUIET, **self.options, "bootstrap.servers": self.servers})
        described = admin.describe_consumer_groups([group, f"{group}-coord"], request_timeout=_PATIENCE)
        members = sum(len(self._answer(each).members) for each in described.values())
        log = self._log(admin, control, group)
        asked = {*log.assigned, *(each for each, _ in self._broker.survey(topics).extents)}
        offsets = self._offsets(group, asked) if not log.unfinished else {}
        return Connector(connector, group, members, offsets, log)

    @property
    def _broker(self) -> Broker:
        return Broker(self.servers, self.options)

    def _offsets(self, group: str, partitions: Iterable[Partition]) -> dict[Partition, int]:
        try:
            return committed(group, partitions, self.consumer, timeout=_PATIENCE)
        except KafkaException as error:
            raise source_error(error.args[0], f"the consumer group {group}") from None

    def _log(self, admin: AdminClient, control: str, group: str) -> ControlLog:
        extents = self._extents(control)
        asked = {TopicPartition(control, each.number): OffsetSpec.latest() for each in extents}
        answers = admin.list_offsets(asked, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=_PATIENCE)
        ends = {
            each.partition: known_offset(self._answer(future), Partition(control, each.partition))
            for each, future in answers.items()
        }
        reported: list[Reported] = []
        completed: dict[Partition, int] = {}
        assigned: set[Partition] = set()
        for number, offset, event in self._events(extents, group):
            if isinstance(event, Written):
                reported.append(Reported(number, offset, event))
                continue
            for partition, at in event.offsets:
                assigned.add(partition)
                if at is not None:
                    completed[partition] = max(at, completed.get(partition, at))
        return ControlLog(
            topic=control,
            starts={each.number: extent.start for each, extent in extents.items()},
            ends=ends,
            unfinished=frozenset(each.number for each, at in extents.items() if ends[each.number] > at.stable_end),
            reported=tuple(sorted(reported, key=lambda each: (each.partition, each.offset))),
            completed=completed,
            assigned=frozenset(assigned),
        )

    def _extents(self, control: str) -> dict[Partition, Extent]:
        try:
            return dict(self._broker.survey((control,)).extents)
        except TopicMissing:
            raise refused(
                f"the control topic {control} is not there at {self.servers}.",
                "name the connector's `iceberg.control.topic` with --control-topic",
            ) from None

    def _events(self, extents: Mapping[Partition, Extent], group: str) -> Iterator[tuple[int, int, Written | Complete]]:
        """What the group's tasks reported, with partition and offset."""
        ranges = [Range(each, at.start, at.stable_end) for each, at in extents.items() if at.start < at.stable_end]
        for records in read(tuple(ranges), self.consumer):
            for offset, value in zip(records.offsets.to_pylist(), records.values.to_pylist(), strict=True):
                try:
                    event = event_of(value or b"", group)
                except (ValueError, KeyError, TypeError):
                    raise refused(
                        f"offset {offset} of {records.partition} is not an event of Iceberg's sink.",
                        "name the connector's `iceberg.control.topic` with --control-topic",
                    ) from None
                if event is not None:
                    yield records.partition.number, offset, event

    def _answer(self, future: Future[T]) -> T:
        try:
            return future.result(timeout=_PATIENCE * 2)
        except KafkaException as error:
            raise source_error(error.args[0], f"Kafka at {self.servers}") from None
        except (TimeoutError, futures.TimeoutError):
            raise SourceUnavailable(f"Kafka at {self.servers} did not answer in time.") from None


@dataclass
class ConnectWriter:
    """A connector with Iceberg's sink for Kafka Connect."""

    tables: IcebergSink
    cluster: Cluster
    topics: tuple[str, ...]
    connector: str
    group: str
    control: str | None = None

    def look(self) -> Found:
        sink = self.cluster.sink(self.connector, self.group, self._control, self.topics)
        found = histories(self.tables, self._says)
        positions = stopped_at(sink, found, self.topics)
        return Found(
            writer=str(sink),
            commits=tuple(each.last for each in found if each.last is not None),
            positions=tuple(sorted(positions.items())),
            notes=tuple(note for each in found for note in self._lost(sink, each)),
            seen=(tuple(sorted(sink.log.ends.items())), tuple(sorted(sink.offsets.items()))),
        )

    def last_commit(self, name: str, table: Table) -> LastCommit | None:
        return history_of(table, name, self.tables.config.branch, self._says).last

    @cached_property
    def _control(self) -> str:
        """The control topic that the operator named, or else the one in the newest snapshot of the group."""
        if self.control is not None:
            return self.control
        named = histories(self.tables, lambda summary: control_topic_in(summary, self.group))
        commits = [each.last for each in named if each.last is not None]
        if not commits:
            raise refused(
                f"no snapshot of {self.tables} names the group {self.group}, as far as the history of the branch goes back: "
                f"nothing was committed by a connector {self.connector!r}.",
                "check the connector's name, --group, and `table` and `branch` in {file}; if the snapshots expired, let the "
                "connector commit at least one more record",
            )
        return max(commits, key=lambda each: each.at).text

    def _says(self, summary: Mapping[str, str]) -> str | None:
        return said_by(self._control, self.group, summary)

    def _lost(self, sink: Connector, history: History) -> tuple[str, ...]:
        table = self.tables.place(history.table).find()
        files = covered(sink, history)
        lost = missing(table, self.tables.config.branch, files) if table is not None else frozenset()
        said = (
            f"{history.table} lacks {len(lost)} file(s) that {sink} reported and then passed over: their rows are missing by "
            "its own fault, and landonce does not deliver them. Iceberg's procedure `add_files` brings in what is still there: "
            f"{listed(sorted(lost), 3)}."
        )
        return (said,) if lost else ()
