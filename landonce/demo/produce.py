"""Records for the demo: small JSON objects, and a count of what was produced."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

SCHEMA = (
    "id BIGINT NOT NULL, user STRING NOT NULL, event STRING NOT NULL, at TIMESTAMP(3) NOT NULL, amount DOUBLE NOT NULL"
)
_EVENTS = (b"view", b"click", b"buy", b"leave")
_REPORT = 20_000


def make_topic(bootstrap_servers: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for future in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        future.result(timeout=30)


def produce(
    bootstrap_servers: str, topic: str, partitions: int, records: int, report: Callable[[int], None]
) -> list[int]:
    """Produces the records, spread over the partitions, and returns how many each partition got."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 1_000_000,
            "enable.idempotence": True,
            "log_level": 2,
        }
    )
    counts = [0] * partitions
    for number in range(records):
        partition = number % partitions
        while True:
            try:
                producer.produce(topic, _record(number), partition=partition)
                break
            except BufferError:
                producer.poll(0.1)
        counts[partition] += 1
        if number % _REPORT == 0:
            producer.poll(0)
            report(number)
    left = producer.flush(120)
    if left:
        raise RuntimeError(f"{left} records could not be produced")
    report(records)
    return counts


def _record(number: int) -> bytes:
    return b'{"id":%d,"user":"user-%05d","event":"%s","at":"2026-11-01T12:%02d:%02d.%03dZ","amount":%d.%02d}' % (
        number,
        number * 7919 % 50_000,
        _EVENTS[number % 4],
        number // 60_000 % 60,
        number // 1000 % 60,
        number % 1000,
        number % 997,
        number % 100,
    )
