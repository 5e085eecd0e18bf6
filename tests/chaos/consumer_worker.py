"""One consumer of the chaos tests: `python consumer_worker.py SPEC`, a JSON object. Ends when it is killed.

Every record becomes one row of `results`, or one record of the topic `results`, in the transaction that saves its
offset. Without a fence (`naive`), or without offsets of its own (`plain`), it is a control. It stops at the failpoints
`consumer.open` (rows are in the transaction, nothing is saved), `consumer.saved` (not committed yet) and
`consumer.committed` (Kafka does not know yet). What it refuses is one line of its output.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping
from typing import Any

from confluent_kafka import Consumer
from sqlalchemy import Connection, create_engine, select, text, update

from landonce.consumer import Fenced, KafkaOffsets, OffsetStep, OffsetStore, Partition, SqlOffsets, Stored
from landonce.failpoints import reach


class NaiveOffsets(SqlOffsets):
    """The control: offsets in the same transaction as the results, and no fence."""

    def load(
        self, group: str, partitions: Collection[Partition], held: Mapping[Partition, Stored] | None = None
    ) -> dict[Partition, Stored]:
        found = {}
        for each in partitions:
            with self._engine.connect() as connection:
                row = connection.execute(select(self._table).where(self._key(group, each))).one_or_none()
            if row is None:
                return super().load(group, partitions)
            found[each] = Stored(row.next_offset, row.epoch, row.owner, row.topic_id)
        return found

    def save(self, group: str, steps: Mapping[Partition, OffsetStep], transaction: Any) -> None:
        for each, step in steps.items():
            values = {"next_offset": step.offset, "topic_id": step.topic_id}
            transaction.execute(update(self._table).where(self._key(group, each)).values(values))


def write(connection: Connection, name: str, messages: list[Any]) -> None:
    rows = [{"p": each.partition(), "o": each.offset(), "w": name} for each in messages]
    connection.execute(text("INSERT INTO results VALUES (:p, :o, :w)"), rows)


def to_database(store: OffsetStore, engine: Any, spec: dict[str, Any]) -> None:
    messages = store.consume(spec["batch"], timeout=0.2)
    if not messages:
        return
    with engine.begin() as connection:
        write(connection, spec["name"], messages)
        reach("consumer.open")
        store.save_many(messages, connection)
        reach("consumer.saved")
    reach("consumer.committed")
    store.committed()


def to_topic(store: OffsetStore, spec: dict[str, Any]) -> None:
    messages = store.consume(spec["batch"], timeout=0.2)
    if not messages:
        return
    with store.transaction() as transaction:
        for each in messages:
            transaction.producer(each).produce(spec["results"], each.value())
        reach("consumer.open")
        store.save_many(messages, transaction)
        for each in messages:
            transaction.producer(each).flush(30)
        reach("consumer.saved")
    reach("consumer.committed")


def plainly(spec: dict[str, Any]) -> None:
    """What many write: the database first, then Kafka."""
    engine = create_engine(spec["url"])
    consumer = Consumer(spec["config"] | {"auto.offset.reset": "earliest", "enable.auto.commit": False})
    consumer.subscribe([spec["topic"]])
    while True:
        if messages := consumer.consume(spec["batch"], timeout=0.2):
            with engine.begin() as connection:
                write(connection, spec["name"], messages)
            reach("consumer.committed")
            consumer.commit(asynchronous=False)


def main(spec: dict[str, Any]) -> None:
    if spec["control"] == "plain":
        return plainly(spec)
    engine = create_engine(spec["url"])
    handler: Any = (NaiveOffsets if spec["control"] == "naive" else SqlOffsets)(engine)
    if spec["results"]:
        handler = KafkaOffsets(
            {"bootstrap.servers": spec["config"]["bootstrap.servers"]}, topic=f"{spec['topic']}-offsets"
        )
    with OffsetStore.connect(spec["config"], [spec["topic"]], handler, timeout_check=spec["timeout_check"]) as store:
        while True:
            try:
                to_topic(store, spec) if spec["results"] else to_database(store, engine, spec)
            except Fenced as refused:
                print(json.dumps({"refused": type(refused).__name__, "what": refused.what}), flush=True)
                store.rewind()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
