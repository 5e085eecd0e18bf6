"""What one writes without landonce: a consumer, an append, and the offsets saved in a file after it.

Run by the negative controls as a process of its own, with failpoints around its commit as landonce has them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import iceberg_oracle
import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition
from pyiceberg.table import Table

from landonce.failpoints import reach

EACH = 16


def main(folder: str, name: str, bootstrap: str, topic: str) -> None:
    """Until all that is there has landed, so many records of every partition at a time."""
    table = iceberg_oracle.embedded(Path(folder)).load_table(name)
    saved = Path(folder) / "offsets.json"
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "plain", "enable.auto.commit": False})
    while rows := _next(consumer, topic, position := json.loads(saved.read_text()) if saved.exists() else {}):
        _append(table, rows)
        saved.write_text(json.dumps(position))
    consumer.close()


def _next(consumer: Consumer, topic: str, position: dict[str, int]) -> list[dict[str, object]]:
    """Records from the position on, which moves behind them."""
    rows = []
    for number in consumer.list_topics(topic, 30).topics[topic].partitions:
        first = position.get(str(number), 0)
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, number), 30)
        consumer.assign([TopicPartition(topic, number, first)])
        for message in consumer.consume(min(EACH, end - first), 30) if end > first else ():
            coordinates = {"_topic": topic, "_kafka_partition": number, "_offset": message.offset()}
            rows.append(json.loads(message.value()) | coordinates)
            position[str(number)] = message.offset() + 1
    return rows


def _append(table: Table, rows: list[dict[str, object]]) -> None:
    """Built, then committed."""
    transaction = table.transaction()
    transaction.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))
    reach("attempt.before")
    transaction.commit_transaction()
    reach("attempt.after")


if __name__ == "__main__":
    main(*sys.argv[1:])
