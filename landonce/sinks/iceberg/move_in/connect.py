"""Where Iceberg's sink for Kafka Connect stopped. Pure.

A snapshot of the sink records how far its coordinator had read the control topic: files that were reported before that
are in the table, files reported later are not. The consumer group moves when files are reported, so it is ahead of the
table until they are committed. Only while no reported file waits, the group's offsets are where the table ends:

    control topic    …  files  files │ files           group → 1600, table → 1500: importing the group's offsets loses 100
                          the table's offset ┘ └ these wait: start the sink again, and it commits them
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from landonce.errors import ImportRefused
from landonce.protocol.ranges import Partition
from landonce.sinks.iceberg.look import CONNECT_OFFSETS
from landonce.sinks.iceberg.move_in.events import Written
from landonce.sinks.iceberg.move_in.found import History, refused, same_topics

_DRAIN = (
    "start the connector again, wait until it has committed (its commit interval is 5 minutes unless told otherwise), stop it, "
    "then import"
)


@dataclass(frozen=True)
class Reported:
    """Files that were reported, and where in the control topic."""

    partition: int
    offset: int
    written: Written


@dataclass(frozen=True)
class ControlLog:
    """All that is left of the control topic, for one sink."""

    topic: str
    starts: Mapping[int, int]
    """Where each partition begins: what stood before expired."""
    ends: Mapping[int, int]
    unfinished: frozenset[int] = frozenset()
    """Partitions with a transaction that is neither committed nor aborted."""
    reported: tuple[Reported, ...] = ()
    completed: Mapping[Partition, int] = field(default_factory=dict)
    """The greatest next offset that tasks reported, for each partition of the source that they had records of."""
    assigned: frozenset[Partition] = frozenset()
    """All partitions of the source that tasks had."""


@dataclass(frozen=True)
class Sink:
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


def stopped_at(sink: Sink, histories: Sequence[History], topics: Iterable[str]) -> dict[Partition, int]:
    """The next offset of each partition that the sink ever delivered from; one history for each table of the pipeline."""
    _idle(sink)
    unknown = [each.table for each in histories if each.told is None and not each.whole]
    if unknown or not any(each.told for each in histories):
        raise _unknown(sink, unknown or [each.table for each in histories])
    for each in histories:
        _nothing_expired(sink, each)
        _nothing_waits(sink, each)
    read = frozenset(each.topic for each in (*sink.offsets, *sink.log.assigned))
    same_topics(str(sink), read, frozenset(topics))
    return _agreed(sink)


def covered(sink: Sink, history: History) -> frozenset[str]:
    """Files that were reported before what the table records, so that they should be in it."""
    recorded = _recorded(history)
    before = (each for each in _reported(sink, history) if each.offset < recorded.get(each.partition, 0))
    return frozenset(path for each in before for path in each.written.files)


def _reported(sink: Sink, history: History) -> list[Reported]:
    return [each for each in sink.log.reported if each.written.table == history.table and each.written.files]


def _recorded(history: History) -> dict[int, int]:
    """How far the coordinator had read the control topic, by partition."""
    parsed = json.loads(history.told.said) if history.told is not None else {}
    return {int(partition): int(offset) for partition, offset in parsed.items()}


def _idle(sink: Sink) -> None:
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


def _nothing_expired(sink: Sink, history: History) -> None:
    recorded = _recorded(history)
    gone = [each for each, start in sorted(sink.log.starts.items()) if start > recorded.get(each, 0)]
    if gone and history.told is not None:
        place = f"{sink.log.topic}[{gone[0]}]"
        raise refused(
            f"{history.table} records offset {recorded.get(gone[0], 0)} of {place}, which begins at "
            f"{sink.log.starts[gone[0]]} now: whether files were reported in between and never committed cannot be told.",
            "let the connector commit at least one more record to the table, stop it, then import",
        )


def _nothing_waits(sink: Sink, history: History) -> None:
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


def _agreed(sink: Sink) -> dict[Partition, int]:
    """The group's offsets, which the tasks' reports confirm; the reports alone, where the group's offsets expired."""
    log, offsets = sink.log, dict(sink.offsets)
    if not offsets and any(log.starts.values()):
        raise refused(
            f"the consumer group {sink.group} has no offsets (any more), and the beginning of {log.topic} expired: where {sink} "
            "stopped cannot be told.",
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


def _unknown(sink: Sink, tables: Iterable[str]) -> ImportRefused:
    return refused(
        f"no snapshot of {', '.join(tables)} was committed by {sink} (group {sink.group}, control topic {sink.log.topic}), as "
        "far as the history of the branch goes back.",
        "check the connector's name, --group and --control-topic, and `table` and `branch` in {file}; if the snapshots "
        "expired, let the connector commit at least one more record",
    )
