"""What one writes without landonce and without Spark: a consumer that inserts sixteen records at a time and then commits their offsets.

Run by the negative control as a process of its own, until it has read all. It has the same failpoints around its insert as landonce's worker.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import oracle
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from landonce.failpoints import reach


def main(bootstrap: str, topic: str, url: str, table: str, _checkpoint: str) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"plain-{topic}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    partitions = consumer.list_topics(topic, 30).topics[topic].partitions
    consumer.assign(consumer.committed([TopicPartition(topic, number) for number in partitions], 30))
    for batch in batches(consumer, len(partitions)):
        rows = [
            {
                "_topic": each.topic(),
                "_partition": each.partition(),
                "_offset": each.offset(),
                **json.loads(each.value()),
            }
            for each in batch
        ]
        reach("send.before")
        oracle.ask(url, f"INSERT INTO {table} FORMAT JSONEachRow\n" + "\n".join(map(json.dumps, rows)))
        reach("send.after")
        ends = {each.partition(): each.offset() + 1 for each in batch}
        consumer.commit(offsets=[TopicPartition(topic, *end) for end in ends.items()], asynchronous=False)
    consumer.close()


def batches(consumer: Consumer, partitions: int) -> Iterator[list[Message]]:
    batch: list[Message] = []
    ended: set[int] = set()
    while len(ended) < partitions:
        message = consumer.poll(30)
        assert message is not None, "Kafka says nothing"
        error = message.error()
        if error is None:
            batch.append(message)
        elif error.code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition())
        else:
            raise RuntimeError(error.str())
        if len(batch) == 16:
            yield batch
            batch = []
    if batch:
        yield batch


if __name__ == "__main__":
    main(*sys.argv[1:])
