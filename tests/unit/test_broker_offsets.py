"""A broker that has just started answers without an error and without an offset: that is no place where a topic ends."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition

from landonce.consumer.kafka import KafkaOffsets
from landonce.errors import LedgerUnavailable, SourceUnavailable
from landonce.read.kafka.broker import Broker


def answered(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


@pytest.mark.parametrize("offset", [-1001, -1])
def test_an_answer_without_an_offset_is_asked_for_again(offset: int) -> None:
    info = SimpleNamespace(topic_id="id", partitions=[SimpleNamespace(id=0)])
    broker = Broker("127.0.0.1:1", {})
    broker._admin = SimpleNamespace(  # type: ignore[assignment]
        poll=lambda _: 0,
        describe_cluster=lambda **_: answered(SimpleNamespace(cluster_id="c")),
        describe_topics=lambda *_, **__: {"t": answered(info)},
        list_offsets=lambda *_, **__: {TopicPartition("t", 0): answered(SimpleNamespace(offset=offset))},
    )
    with pytest.raises(SourceUnavailable, match=r"t\[0\]"):
        broker.survey(["t"])


def test_a_consumer_does_not_take_it_for_an_empty_store() -> None:
    """It would begin at the beginning, and give out again what was done."""
    store = object.__new__(KafkaOffsets)
    store._topic, store._patience = "offsets", 1.0
    place = TopicPartition("offsets", 0)
    store._admin = SimpleNamespace(list_offsets=lambda *_, **__: {place: answered(SimpleNamespace(offset=-1001))})  # type: ignore[assignment]
    with pytest.raises(LedgerUnavailable, match=r"offsets\[0\]"):
        store._end()


@pytest.mark.timeout(20)
def test_offsets_in_a_topic_without_a_leader_are_waited_for_no_longer_than_said() -> None:
    """Brokers describe it, and say with its partitions that none of them serves it."""
    store = object.__new__(KafkaOffsets)
    store._topic, store._patience = "offsets", 0.3
    lost = SimpleNamespace(error=KafkaError(KafkaError.LEADER_NOT_AVAILABLE), partitions={})
    store._admin = SimpleNamespace(  # type: ignore[assignment]
        describe_configs=lambda asked: {asked[0]: answered({"cleanup.policy": SimpleNamespace(value="compact")})},
        list_topics=lambda *_, **__: SimpleNamespace(topics={"offsets": lost}),
    )
    with pytest.raises(LedgerUnavailable, match="did not serve the offsets"):
        store._check_topic()
