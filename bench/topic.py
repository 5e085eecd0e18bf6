"""The topic that everybody reads: JSON records of about 125 bytes in 8 partitions."""

from __future__ import annotations

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

TOPIC = "bench"
PARTITIONS = 8
SCHEMA = "id BIGINT NOT NULL, user STRING NOT NULL, event STRING NOT NULL, at TIMESTAMP(3) NOT NULL, amount DOUBLE NOT NULL, page STRING NOT NULL"


def fill(bootstrap_servers: str, records: int) -> None:
    """Makes the topic and its records."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for future in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)]).values():
        future.result(timeout=30)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "linger.ms": 50,
            "batch.size": 1_000_000,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    for number in range(records):
        while True:
            try:
                producer.produce(TOPIC, _record(number), partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
    if producer.flush(300):
        raise RuntimeError("not every record could be produced")


def _record(number: int) -> bytes:
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
