"""Where Iceberg's sink for Kafka Connect stopped.

A snapshot of the sink records how far its coordinator had read the control topic: files that were reported before that
are in the table, files reported later are not. The consumer group moves when files are reported, so it is ahead of the
table until they are committed. Only while no reported file waits, the group's offsets are where the table ends:

    control topic    …  files  files │ files           group → 1600, table → 1500: importing the group's offsets loses 100
                          the table's offset ┘ └ these wait: start the sink again, and it commits them

`Cluster` asks Kafka; everything that is decided from its answers is pure.

A task that is asked for a commit sends one `DATA_WRITTEN` for each table that it wrote files for, then one `DATA_COMPLETE`
with the next offset of each of its partitions, and commits the same offsets to the consumer group: all of it in one
transaction of Kafka, before anything is in a table. An event is one Avro value with its schema before it:

    C2 01 | length of the schema, 2 bytes | the schema as JSON | the value
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, TypeVar

import fastavro
from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from fastavro.schema import SchemaParseException
from pyiceberg.table import Table

from landonce.errors import SourceUnavailable, TopicMissing
from landonce.protocol.operate.decision import listed, refused
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.source import Extent
from landonce.read.kafka.broker import QUIET, Broker, committed, known_offset, source_error
from landonce.read.kafka.records import read
from landonce.sinks.iceberg.marks import CONNECT_OFFSETS
from landonce.sinks.iceberg.move_in.adopt import (
    History,
    LastCommit,
    WriterCommits,
    histories,
    history_of,
    missing,
    same_topics,
)
from landonce.sinks.iceberg.sink import IcebergSink

_DRAIN = (
    "start the connector again, wait until it has committed (its commit interval is 5 minutes by default), stop it, "
    "then import"
)
T = TypeVar("T")
_PATIENCE = 20.0
_MAGIC = b"\xc2\x01"
_HEADER = 4
_DATA_WRITTEN, _DATA_COMPLETE = 1, 2


def decode(message: bytes) -> Any:
    """The value: records are dicts. `ValueError` for what is not in this form."""
    if message[:2] != _MAGIC:
        raise ValueError("not an Avro value with its schema before it")
    end = _HEADER + int.from_bytes(message[2:_HEADER], "big")
    try:
        return fastavro.schemaless_reader(io.BytesIO(message[end:]), _schema(message[_HEADER:end]), None)
    except (EOFError, IndexError, SchemaParseException) as error:
        raise ValueError(f"an Avro value cannot be read: {error}") from None


@lru_cache(maxsize=64)
def _schema(text: bytes) -> Any:
    return fastavro.parse_schema(_plain(json.loads(text), "", set()))


def _plain(schema: Any, space: str, named: set[str]) -> Any:
    """The schema without namespaces and logical types: values are wanted as they were written.

    Java names a type that has no namespace by its bare name, even inside a record that has one, where fastavro takes the name for
    one of the record's namespace. Each full name becomes a name of its own.
    """
    if isinstance(schema, list):
        return [_plain(each, space, named) for each in schema]
    if isinstance(schema, str):
        return next((_flat(each) for each in (f"{space}.{schema}", schema) if each in named), schema)
    kind = schema["type"]
    if kind == "array":
        return {"type": kind, "items": _plain(schema["items"], space, named)}
    if kind == "map":
        return {"type": kind, "values": _plain(schema["values"], space, named)}
    if kind not in ("record", "fixed", "enum"):
        return _plain(kind, space, named)
    space = schema.get("namespace", space)
    name = f"{space}.{schema['name']}" if space and "." not in schema["name"] else schema["name"]
    named.add(name)
    rest = {key: schema[key] for key in ("size", "symbols") if key in schema}
    fields = [{"name": each["name"], "type": _plain(each["type"], space, named)} for each in schema.get("fields", ())]
    return {"type": kind, "name": _flat(name), **rest, **({"fields": fields} if kind == "record" else {})}


def _flat(name: str) -> str:
    return name.replace("_", "__").replace(".", "_")


@dataclass(frozen=True)
class Written:
    """Files of rows, and of deletes, that are meant for a table."""

    table: str
    files: tuple[str, ...]
    rows: int


@dataclass(frozen=True)
class Complete:
    """The partitions of a task, and the next offset of each that it had records of."""

    offsets: tuple[tuple[Partition, int | None], ...]


def event_of(message: bytes, group: str) -> Written | Complete | None:
    """None for events of other groups, and for those that say nothing of files or offsets."""
    event = decode(message)
    if event["group_id"] != group:
        return None
    payload = event["payload"]
    if event["type"] == _DATA_WRITTEN:
        files = [*(payload["data_files"] or ()), *(payload["delete_files"] or ())]
        kept = [each for each in files if each["record_count"] > 0]
        table = ".".join((*payload["table_reference"]["namespace"], payload["table_reference"]["name"]))
        return Written(table, tuple(each["file_path"] for each in kept), sum(each["record_count"] for each in kept))
    if event["type"] == _DATA_COMPLETE:
        assignments = payload["assignments"] or ()
        return Complete(tuple((Partition(each["topic"], each["partition"]), each["offset"]) for each in assignments))
    return None


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


def stopped_at(sink: Connector, histories: Sequence[History], topics: Iterable[str]) -> dict[Partition, int]:
    """The next offset of each partition that the sink ever delivered from; one history for each table of the pipeline."""
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
    unknown = [each.table for each in histories if each.last is None and not each.whole]
    if unknown or not any(each.last for each in histories):
        tables = ", ".join(unknown or [each.table for each in histories])
        raise refused(
            f"no snapshot of {tables} was committed by {sink} (group {sink.group}, control topic {sink.log.topic}), as "
            "far as the history of the branch goes back.",
            "check the connector's name, --group and --control-topic, and `table` and `branch` in {file}; if the snapshots "
            "expired, let the connector commit at least one more record",
        )
    for each in histories:
        _refuse_unfinished(sink, each)
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


def _refuse_unfinished(sink: Connector, history: History) -> None:
    """Reports that expired may be of files that were never committed; others are of files that wait."""
    recorded = _recorded(history)
    gone = [each for each, start in sorted(sink.log.starts.items()) if start > recorded.get(each, 0)]
    if gone and history.last is not None:
        place = f"{sink.log.topic}[{gone[0]}]"
        raise refused(
            f"{history.table} records offset {recorded.get(gone[0], 0)} of {place}, which begins at "
            f"{sink.log.starts[gone[0]]} now: files may have been reported in between and never committed.",
            "let the connector commit at least one more record to the table, stop it, then import",
        )
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
        try:
            offsets = committed(group, asked, self.consumer, timeout=_PATIENCE) if not log.unfinished else {}
        except KafkaException as error:
            raise source_error(error.args[0], f"the consumer group {group}", self.consumer) from None
        return Connector(connector, group, members, offsets, log)

    @property
    def _broker(self) -> Broker:
        return Broker(self.servers, self.options)

    def _log(self, admin: AdminClient, control: str, group: str) -> ControlLog:
        try:
            extents = dict(self._broker.survey((control,)).extents)
        except TopicMissing:
            raise refused(
                f"the control topic {control} is not there at {self.servers}.",
                "name the connector's `iceberg.control.topic` with --control-topic",
            ) from None
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
            raise source_error(error.args[0], f"Kafka at {self.servers}", self.options) from None
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

    def look(self) -> WriterCommits:
        sink = self.cluster.sink(self.connector, self.group, self._control, self.topics)
        found = histories(self.tables, self._says)
        positions = stopped_at(sink, found, self.topics)
        return WriterCommits(
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
        """How far the coordinator had read, if the sink made the snapshot."""
        return summary.get(f"{CONNECT_OFFSETS}{self._control}.{self.group}")

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
