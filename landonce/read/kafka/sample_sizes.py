"""A glance at the records that come next: how large they are, so that the first batch has the right size.

Only a hint: whatever goes wrong here gives none, and reading the batch itself says what is the matter.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from landonce.protocol.ranges import Range

_PARTITIONS = 8
_RECORDS = 200
_BYTES = 8 * 2**20
_HAND, _GLANCE = 50, 0.05


def record_bytes(ranges: tuple[Range, ...], options: Mapping[str, Any], *, seconds: float = 1.0) -> float | None:
    """The mean size of the first records of some of these ranges; None if none came in time."""
    longest = sorted(ranges, key=lambda each: each.span, reverse=True)[:_PARTITIONS]
    try:
        consumer = Consumer({**options, "queued.max.messages.kbytes": 1024}, logger=None)
    except KafkaException:
        return None
    try:
        consumer.assign([TopicPartition(each.partition.topic, each.partition.number, each.first) for each in longest])
        return _mean(consumer, len(longest), time.monotonic() + seconds)
    except KafkaException:
        return None
    finally:
        consumer.close()


def _mean(consumer: Consumer, partitions: int, until: float) -> float | None:
    count = size = 0
    ended: set[tuple[str | None, int | None]] = set()
    while count < _RECORDS and size < _BYTES and len(ended) < partitions and time.monotonic() < until:
        for message in consumer.consume(_HAND, timeout=_GLANCE):
            error = message.error()
            if error is None:
                count, size = count + 1, size + _size(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add((message.topic(), message.partition()))
    return size / count if count else None


def _size(message: Message) -> int:
    return len(message.value() or b"")
