"""Offsets in a Kafka topic, results in another: one Kafka transaction, and zombies that Kafka itself refuses."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from landonce import errors
from landonce.consumer import KafkaOffsets, KafkaTransaction, OffsetStep, OffsetStore, Partition
from landonce.local import LocalKafka

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


def config(kafka: LocalKafka, **more: Any) -> dict[str, Any]:
    return {"bootstrap.servers": kafka.bootstrap_servers, "log_level": 2, **more}


def produce(kafka: LocalKafka, topic: str, count: int, partitions: int = 1) -> None:
    producer = Producer(config(kafka))
    for number in range(count):
        producer.produce(topic, f"{number % partitions}:{number}", partition=number % partitions)
    assert producer.flush(30) == 0


def read(store: OffsetStore, count: int) -> list[Message]:
    found: list[Message] = []
    deadline = time.monotonic() + 90
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records came"
        found += store.consume(count - len(found), timeout=0.2)
    return found


def copy(transaction: KafkaTransaction, messages: list[Message], into: str) -> None:
    for each in messages:
        transaction.producer(each).produce(into, each.value())


def committed(kafka: LocalKafka, topic: str, isolation: str = "read_committed") -> list[str]:
    """What any other reader of the results sees."""
    options = {"group.id": "reader", "isolation.level": isolation, "enable.partition.eof": True}
    found = []
    with closing(Consumer(config(kafka, **options))) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while True:
            message = consumer.poll(30)
            assert message is not None
            if message.error() is None:
                found.append((message.value() or b"").decode())
            elif message.error().code() == KafkaError._PARTITION_EOF:
                return sorted(found, key=lambda each: int(each.partition(":")[2]))


def expected(count: int, partitions: int = 1) -> list[str]:
    return [f"{number % partitions}:{number}" for number in range(count)]


def test_exactly_once_from_topic_to_topic(kafka: LocalKafka, new_topic: Callable[..., str]) -> None:
    source, results = new_topic(2), new_topic()
    produce(kafka, source, 20, partitions=2)
    settings = config(kafka, **{"group.id": source})
    with OffsetStore.connect(settings, [source], KafkaOffsets(config(kafka), topic=f"{source}-offsets")) as store:
        messages = read(store, 8)
        with store.transaction() as transaction:
            copy(transaction, messages, results)
            store.save_many(messages, transaction)
        messages = read(store, 6)
        with pytest.raises(RuntimeError), store.transaction() as transaction:  # noqa: PT012
            copy(transaction, messages, results)
            store.save_many(messages, transaction)
            for each in messages:
                transaction.producer(each).flush(30)
            raise RuntimeError("the user's own")
        assert len(committed(kafka, results)) == 8
        again = read(store, 6)
        with store.transaction() as transaction:
            copy(transaction, again, results)
            store.save_many(again, transaction)
    with OffsetStore.connect(settings, [source], KafkaOffsets(config(kafka), topic=f"{source}-offsets")) as store:
        rest = read(store, 6)
        with store.transaction() as transaction:
            copy(transaction, rest, results)
            store.save_many(rest, transaction)
    assert committed(kafka, results) == expected(20, 2)
    assert len(committed(kafka, results, "read_uncommitted")) > 20, "the control: what was rolled back had been sent"


def test_a_zombie_producer_is_fenced(kafka: LocalKafka, new_topic: Callable[..., str]) -> None:
    """It has sent its results and saved its offset, and then another takes the partition: its commit is refused."""
    source, results = new_topic(), new_topic()
    produce(kafka, source, 10)
    offsets = f"{source}-offsets"
    settings = config(kafka, **{"group.id": source, "session.timeout.ms": 2500, "heartbeat.interval.ms": 300})
    with OffsetStore.connect(settings, [source], KafkaOffsets(config(kafka), topic=offsets)) as store:
        messages = read(store, 10)
        with pytest.raises(errors.Fenced), store.transaction() as zombie:  # noqa: PT012
            copy(zombie, messages, results)
            store.save_many(messages, zombie)
            zombie.producer(messages[0]).flush(30)
            successor = KafkaOffsets(config(kafka), topic=offsets)
            successor.initialize(source)
            (found,) = successor.load(source, [Partition(source, 0)]).values()
            assert found.offset == 0, "the zombie's open transaction is not seen"
        assert committed(kafka, results) == []
        again = read(store, 10)
        with store.transaction() as transaction:
            copy(transaction, again, results)
            store.save_many(again, transaction)
    assert committed(kafka, results) == expected(10)
    assert len(committed(kafka, results, "read_uncommitted")) == 20, "the control: the zombie's results are there"


def test_results_of_a_partition_without_its_offset_are_not_committed(
    kafka: LocalKafka, new_topic: Callable[..., str]
) -> None:
    """The transactions are the partitions': one offset does not speak for the other's results."""
    source, results = new_topic(2), new_topic()
    produce(kafka, source, 8, partitions=2)
    handler = KafkaOffsets(config(kafka), topic=f"{source}-offsets")
    with OffsetStore.connect(config(kafka, **{"group.id": source}), [source], handler) as store:
        messages = read(store, 8)
        with pytest.raises(errors.OffsetsNotSaved), store.transaction() as transaction:
            copy(transaction, messages, results)
        messages = read(store, 8)
        first = [each for each in messages if each.partition() == 0]
        with pytest.raises(errors.OffsetsNotSaved, match=r"\[1\]"), store.transaction() as transaction:  # noqa: PT012
            copy(transaction, messages, results)
            store.save_many(first, transaction)
        assert committed(kafka, results) == []
        again = read(store, 8)
        with store.transaction() as transaction:
            copy(transaction, again, results)
            store.save_many(again, transaction)
    assert committed(kafka, results) == expected(8, 2)


def test_groups_and_topics_that_read_alike_do_not_fence_each_other(
    kafka: LocalKafka, new_topic: Callable[..., str]
) -> None:
    """Group `a` with topic `b-c`, and group `a-b` with topic `c`."""
    topic = new_topic()
    offsets = KafkaOffsets(config(kafka), topic=f"{topic}-offsets")
    other = KafkaOffsets(config(kafka), topic=f"{topic}-offsets")
    offsets.initialize("a")
    other.initialize("a-b")
    mine, theirs = Partition(f"b-{topic}", 0), Partition(topic, 0)
    stored = offsets.load("a", [mine])[mine]
    other.load("a-b", [theirs])
    with offsets.transaction() as transaction:
        offsets.save("a", {mine: OffsetStep(None, 1, stored.epoch, stored.owner, "")}, transaction)
    assert offsets.load("a", [mine])[mine].offset == 1


def test_an_offset_put_by_hand(kafka: LocalKafka, new_topic: Callable[..., str]) -> None:
    source = new_topic()
    produce(kafka, source, 10)
    handler = KafkaOffsets(config(kafka), topic=f"{source}-offsets")
    with OffsetStore.connect(config(kafka, **{"group.id": source}), [source], handler) as store:
        read(store, 1)
    KafkaOffsets(config(kafka), topic=f"{source}-offsets").reset(source, {Partition(source, 0): 7})
    with pytest.raises(errors.ConfigError, match="one KafkaOffsets for each"):
        OffsetStore.connect(config(kafka, **{"group.id": source}), [source], handler)
    handler = KafkaOffsets(config(kafka), topic=f"{source}-offsets")
    with OffsetStore.connect(config(kafka, **{"group.id": source}), [source], handler) as store:
        assert read(store, 1)[0].offset() == 7


def test_a_topic_that_would_forget_is_refused(kafka: LocalKafka, new_topic: Callable[..., str]) -> None:
    with pytest.raises(errors.ConfigError, match=r"cleanup\.policy=delete"):
        KafkaOffsets(config(kafka), topic=new_topic()).initialize("g")
    with pytest.raises(errors.ConfigError, match=r"\b2 partitions\b"):
        KafkaOffsets(config(kafka), topic=new_topic(2, cleanup_policy="compact")).initialize("g")


def test_who_saved_an_offset_and_a_text_with_it(kafka: LocalKafka, new_topic: Callable[..., str]) -> None:
    source, offsets = new_topic(), new_topic(cleanup_policy="compact")
    produce(kafka, source, 2)
    settings, here = config(kafka, **{"group.id": source}), Partition(source, 0)
    with OffsetStore.connect(settings, [source], KafkaOffsets(config(kafka), topic=offsets)) as store:
        messages = read(store, 2)
        with store.transaction() as transaction:
            store.save(messages[0], transaction, metadata="file 7")
        mine = store.origins()[here]
        assert mine.metadata == "file 7"
        assert mine.member
    with OffsetStore.connect(settings, [source], KafkaOffsets(config(kafka), topic=offsets)) as store:
        read(store, 1)
        assert store.origins() == {here: mine}
