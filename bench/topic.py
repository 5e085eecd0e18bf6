"""The topic that everybody reads: JSON records of about 125 bytes in 8 partitions."""

from __future__ import annotations

import random
from collections.abc import Iterable

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

TOPIC = "bench"
PARTITIONS = 8
SCHEMA = "id BIGINT NOT NULL, user STRING NOT NULL, event STRING NOT NULL, at TIMESTAMP(3) NOT NULL, amount DOUBLE NOT NULL, page STRING NOT NULL"


def fill(bootstrap_servers: str, records: int, *, begin: int = 0, make: bool = True) -> None:
    """Makes the topic and its records, or more of them."""
    if make:
        make_topic(bootstrap_servers, TOPIC)
    produce(bootstrap_servers, TOPIC, (record(number) for number in range(begin, begin + records)))


def make_topic_by_kind(bootstrap_servers: str, kinds: int, records: int = 200_000) -> str:
    """A topic whose records are of so many kinds, all of them in every stretch of it."""
    topic = f"kinds{kinds}"
    make_topic(bootstrap_servers, topic)
    produce(
        bootstrap_servers,
        topic,
        (b'{"id":%d,"kind":"k%d"}' % (each, each // PARTITIONS % kinds) for each in range(records)),
    )
    return topic


def make_topic_with_copies(
    bootstrap_servers: str, records: int, copies: float, name: str = "copies"
) -> tuple[str, int]:
    """A topic in which this share of the records are copies of earlier ones, however far back; and how many are not."""
    topic, chance = f"{name}{copies * 100:.0f}", random.Random(20261118)
    numbers: list[int] = []
    unique = 0
    for _ in range(records):
        if unique and chance.random() < copies:
            numbers.append(chance.randrange(unique))
        else:
            numbers.append(unique)
            unique += 1
    make_topic(bootstrap_servers, topic)
    produce(bootstrap_servers, topic, map(record, numbers))
    return topic, unique


def make_topic(bootstrap_servers: str, topic: str) -> None:
    """A topic without records."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(timeout=30)


def produce(bootstrap_servers: str, topic: str, records: Iterable[bytes]) -> None:
    """One after the other to the partitions, in turn."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "linger.ms": 50,
            "batch.size": 1_000_000,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 1_000_000,
            "log_level": 0,
        }
    )
    for number, each in enumerate(records):
        while True:
            try:
                producer.produce(topic, each, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
    if producer.flush(300):
        raise RuntimeError("not every record could be produced")


def record(number: int) -> bytes:
    """About 125 bytes."""
    return (
        b'{"id":%d,"user":"user-%05d","event":"click","at":"2026-11-01T12:%02d:%02d.%03dZ","amount":%d.25,"page":"/p/%d"}'
        % (
            number,
            number % 50_000,
            number // 60_000 % 60,
            number // 1000 % 60,
            number % 1000,
            number % 100,
            number % 500,
        )
    )
