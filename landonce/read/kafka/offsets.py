"""Offsets that Kafka is asked for: what a consumer group has committed, and where partitions begin and end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import ListOffsetsResultInfo

from landonce.errors import SourceUnavailable
from landonce.protocol.ranges import Partition


def committed(
    group: str, partitions: Iterable[Partition], options: Mapping[str, Any], *, timeout: float
) -> dict[Partition, int]:
    """The group's offsets, where it has any. Raises `KafkaException`.

    Asked as a consumer that never joins: librdkafka's own request for a group's offsets ends the process where the
    group's coordinator is moving.
    """
    asked = [TopicPartition(each.topic, each.number) for each in sorted(partitions)]
    consumer = Consumer({**options, "group.id": group, "enable.auto.commit": False}, logger=None)
    try:
        told = consumer.committed(asked, timeout=timeout)
    finally:
        consumer.close()
    for each in told:
        if each.error is not None:
            raise KafkaException(each.error)
    return {Partition(each.topic, each.partition): each.offset for each in told if each.offset >= 0}


def known_offset(answer: ListOffsetsResultInfo, where: Partition) -> int:
    """A broker that has just started may answer without an error and without an offset: librdkafka gives a negative one then."""
    if answer.offset < 0:
        raise SourceUnavailable(f"Kafka does not know yet where {where} begins and ends.")
    return int(answer.offset)
