"""How large the next records are, as a real broker shows them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from landonce.local.kafka import LocalKafka
from landonce.protocol.ranges import Partition, Range
from landonce.read.kafka.broker import Broker

pytestmark = pytest.mark.integration


def test_the_mean_of_the_next_records_and_nothing_of_those_before(
    kafka: LocalKafka, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(partitions=2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for size, times in ((100_000, 10), (300, 3), (100, 3)):
        for _ in range(times):
            producer.produce(topic, b"x" * size, partition=0)
        assert producer.flush(60) == 0
    broker = Broker(kafka.bootstrap_servers, {})
    next_ones = (Range(Partition(topic, 0), 10, 16), Range(Partition(topic, 1), 0, 1))
    assert broker.record_bytes(next_ones, seconds=60) == 200
    whole = broker.record_bytes((Range(Partition(topic, 0), 0, 16),), seconds=60)
    assert whole == (10 * 100_000 + 3 * 300 + 3 * 100) / 16


def test_where_nothing_comes_nothing_is_said(kafka: LocalKafka, new_topic: Callable[..., str]) -> None:
    broker = Broker(kafka.bootstrap_servers, {})
    assert broker.record_bytes((Range(Partition(new_topic(), 0), 0, 1),)) is None
    assert broker.record_bytes((Range(Partition("topic-that-is-not", 0), 0, 1),)) is None
