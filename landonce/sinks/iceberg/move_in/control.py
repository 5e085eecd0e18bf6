"""Asking Kafka about Iceberg's sink for Kafka Connect: its consumer groups, and what is left of its control topic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from landonce.errors import SourceUnavailable, TopicMissing
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.source import Extent
from landonce.read.kafka.broker import Broker
from landonce.read.kafka.client import QUIET, committed, known_offset, source_error
from landonce.read.kafka.records import read
from landonce.sinks.iceberg.move_in.connect import ControlLog, Reported, Sink
from landonce.sinks.iceberg.move_in.events import Complete, Written, event_of
from landonce.sinks.iceberg.move_in.found import refused

T = TypeVar("T")
_PATIENCE = 20.0


@dataclass(frozen=True)
class Cluster:
    """The brokers that the sink and the pipeline read from."""

    servers: str
    options: Mapping[str, Any]
    consumer: Mapping[str, Any]
    """As the pipeline's own readers are set up."""

    def sink(self, connector: str, group: str, control: str, topics: Iterable[str]) -> Sink:
        """The sink as it is now, with its offsets in these topics and in all that its tasks had."""
        admin = AdminClient({**QUIET, **self.options, "bootstrap.servers": self.servers})
        described = admin.describe_consumer_groups([group, f"{group}-coord"], request_timeout=_PATIENCE)
        members = sum(len(self._answer(each).members) for each in described.values())
        log = self._log(admin, control, group)
        asked = {*log.assigned, *(each for each, _ in self._broker.survey(topics).extents)}
        offsets = self._offsets(group, asked) if not log.unfinished else {}
        return Sink(connector, group, members, offsets, log)

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
        """Whatever the group's tasks reported, with its place."""
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
