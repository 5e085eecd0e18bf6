"""One consumer of the chaos tests: `python consumer_worker.py SPEC`, a JSON object. Ends when it is killed.

Every record becomes one row of `results`, in the transaction that saves its offset. It stops at the failpoints
`consumer.open` (rows are in the transaction, nothing is saved), `consumer.saved` (not committed yet) and
`consumer.committed` (Kafka does not know yet). What it refuses is one line of its output.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection, create_engine, select, text, update

from landonce.consumer import Fenced, OffsetStore, Partition, SqlOffsets, Step, Stored
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

    def save(self, group: str, steps: Mapping[Partition, Step], transaction: Any) -> None:
        for each, step in steps.items():
            values = {"next_offset": step.offset, "topic_id": step.topic_id}
            transaction.execute(update(self._table).where(self._key(group, each)).values(values))


def write(connection: Connection, name: str, messages: list[Any]) -> None:
    rows = [{"p": each.partition(), "o": each.offset(), "w": name} for each in messages]
    connection.execute(text("INSERT INTO results VALUES (:p, :o, :w)"), rows)


def step(store: OffsetStore, engine: Any, spec: dict[str, Any]) -> None:
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


def main(spec: dict[str, Any]) -> None:
    engine = create_engine(spec["url"])
    handler = (NaiveOffsets if spec["naive"] else SqlOffsets)(engine)
    with OffsetStore.connect(spec["config"], [spec["topic"]], handler, timeout_check=spec["timeout_check"]) as store:
        while True:
            try:
                step(store, engine, spec)
            except Fenced as refused:
                print(json.dumps({"refused": type(refused).__name__, "what": refused.what}), flush=True)
                store.rewind()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
