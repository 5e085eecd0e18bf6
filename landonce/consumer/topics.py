"""The offset to read a partition from, by the brokers and the stored offset. It never skips records silently."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from landonce.consumer.handler import Stored
from landonce.consumer.options import Start
from landonce.errors import (
    Halt,
    PositionBeyondEnd,
    RetentionOverrun,
    SourceRefused,
    SourceUnavailable,
    TopicMissing,
    TopicRecreated,
)
from landonce.protocol.ranges import Partition
from landonce.read.kafka.offsets import committed, known_offset

T = TypeVar("T")
_PATIENCE = 10.0
_NOTHING = "Nothing was read or skipped."
_REFUSALS = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._AUTHENTICATION,
    KafkaError._FATAL,
    KafkaError.FENCED_INSTANCE_ID,
)


@dataclass(frozen=True)
class Extent:
    """One partition, as the brokers know it."""

    topic_id: str
    first: int
    end: int


def start_of(partition: Partition, stored: Stored, extent: Extent, committed: int | None, start: Start) -> int:
    """The offset to read from, or a named error that says why there is none."""
    offset = stored.offset if stored.offset is not None else committed
    if offset is None:
        return extent.first if start == "earliest" else extent.end
    by_hand = _by_hand(partition)
    if stored.offset is not None and stored.topic_id not in ("", extent.topic_id):
        raise recreated(partition, stored.topic_id, extent.topic_id)
    if offset < extent.first:
        raise RetentionOverrun(
            f"{partition}: the next offset to read is {offset}, and the topic now begins at {extent.first}.",
            safe=_NOTHING,
            command=by_hand,
        )
    if offset > extent.end:
        raise PositionBeyondEnd(
            f"{partition}: the next offset to read is {offset}, and the topic ends at {extent.end}.",
            safe=_NOTHING,
            command=by_hand,
        )
    return offset


def recreated(partition: Partition, stored: str, found: str, safe: str = _NOTHING) -> TopicRecreated:
    return TopicRecreated(
        f"topic {partition.topic!r} is not the one whose offsets are stored: it was deleted and created again, or "
        f"these brokers are another cluster (stored id {stored}, now {found}).",
        safe=safe,
        command=_by_hand(partition),
    )


def _by_hand(partition: Partition) -> str:
    return f"handler.reset(group, {{{partition!r}: OFFSET}}), with the offset to continue from"


def named(error: KafkaError, topic: str = "") -> SourceUnavailable | Halt:
    """Kafka's error as an error of landonce."""
    if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return TopicMissing(f"topic {topic!r} does not exist.", safe=_NOTHING, command="create the topic")
    if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
        return RetentionOverrun(
            f"topic {topic!r}: records were deleted before they were read ({error.str()}).",
            safe="Nothing was skipped.",
            command="handler.reset(group, {Partition(topic, number): OFFSET}), with the offset to continue from",
        )
    if error.code() in _REFUSALS or error.fatal():
        return SourceRefused(
            f"Kafka refused: {error.str()}.",
            safe="Nothing was skipped.",
            command="fix what Kafka names, then create a new OffsetStore",
        )
    return SourceUnavailable(f"Kafka: {error.str()}.")


class Topics:
    """Asks the brokers through an admin client, apart from the consumer and its group."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = {"log_level": 2, **config}
        self._admin = AdminClient(self._config)

    def extents(self, partitions: Collection[Partition]) -> dict[Partition, Extent]:
        ids = self.ids({each.topic for each in partitions})
        firsts, ends = self._offsets(partitions, OffsetSpec.earliest()), self._offsets(partitions, OffsetSpec.latest())
        return {each: Extent(ids[each.topic], firsts[each], ends[each]) for each in partitions}

    def ids(self, names: Collection[str], patience: float = _PATIENCE) -> dict[str, str]:
        if not names:
            return {}
        described = self._admin.describe_topics(TopicCollection(sorted(names)), request_timeout=patience)
        return {name: str(_answer(future, name).topic_id) for name, future in described.items()}

    def committed(self, group: str, partitions: Collection[Partition]) -> dict[Partition, int]:
        """The offsets that the group has committed to Kafka, if any."""
        try:
            return committed(group, partitions, self._config, timeout=_PATIENCE)
        except KafkaException as error:
            raise named(error.args[0]) from None

    def _offsets(self, partitions: Collection[Partition], spec: OffsetSpec) -> dict[Partition, int]:
        specs = {TopicPartition(each.topic, each.number): spec for each in partitions}
        found = self._admin.list_offsets(specs, request_timeout=_PATIENCE)
        return {
            (where := Partition(each.topic, each.partition)): known_offset(_answer(future, each.topic), where)
            for each, future in found.items()
        }


def _answer(future: Future[T], topic: str = "") -> T:
    try:
        return future.result(timeout=_PATIENCE * 2)
    except KafkaException as error:
        raise named(error.args[0], topic) from None
    except (TimeoutError, futures.TimeoutError):
        raise SourceUnavailable("Kafka did not answer in time.") from None
