# own_offsets.py: offsets in a SQLite file, with plain sqlite3 (examples/consumer/own_offsets.py has it, too)
"""A handler of one's own for `landonce.consumer.OffsetStore`."""

import sqlite3
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager

from landonce.consumer import OffsetOrigin, OffsetStep, Partition, Stored, fenced, out_of_step

TABLE = """
CREATE TABLE IF NOT EXISTS offsets (
  name TEXT, topic TEXT, number INTEGER, next INTEGER, epoch INTEGER, owner TEXT, topic_id TEXT,
  member TEXT, generation INTEGER, metadata TEXT, PRIMARY KEY (name, topic, number))
"""
NEW = "INSERT INTO offsets VALUES (?, ?, ?, NULL, 0, '', '', '', NULL, '') ON CONFLICT DO NOTHING"
FENCE = "UPDATE offsets SET epoch = epoch + 1, owner = ? WHERE name = ? AND topic = ? AND number = ?"
READ = (
    "SELECT next, epoch, owner, topic_id, member, generation, metadata FROM offsets "
    "WHERE name = ? AND topic = ? AND number = ?"
)
MOVE = (
    "UPDATE offsets SET next = ?, topic_id = ?, member = ?, generation = ?, metadata = ? "
    "WHERE name = ? AND topic = ? AND number = ?"
)


class OwnOffsets:
    def __init__(self, path: str) -> None:
        self.path = path

    def initialize(self, group: str) -> None:  # noqa: ARG002
        with self.transaction() as connection:
            connection.execute(TABLE)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """BEGIN IMMEDIATE takes the file's lock: a `load` waits for the end of a transaction that has saved."""
        with closing(sqlite3.connect(self.path, timeout=60, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    def load(
        self, group: str, partitions: Collection[Partition], held: Mapping[Partition, Stored] | None = None
    ) -> dict[Partition, Stored]:
        """Takes the fence of each partition; with `held`, only where it is still the held one."""
        with self.transaction() as connection:
            found = {}
            for each in partitions:
                key = (group, each.topic, each.number)
                if held is None:
                    connection.execute(NEW, key)
                elif not self.is_ours(connection, group, each, held[each]):
                    continue
                connection.execute(FENCE, (uuid.uuid4().hex, *key))
                offset, epoch, owner, topic_id, *origin = connection.execute(READ, key).fetchone()
                found[each] = Stored(offset, epoch, owner, topic_id, OffsetOrigin(*origin))
            return found

    def save(self, group: str, steps: Mapping[Partition, OffsetStep], connection: sqlite3.Connection) -> None:
        """Compares fence and offset, in the transaction that holds the results. What it raises rolls that back."""
        for each, step in steps.items():
            key = (group, each.topic, each.number)
            if not self.is_ours(connection, group, each, step):
                raise fenced(each)
            (found, *_) = connection.execute(READ, key).fetchone()
            if found != step.previous:
                raise out_of_step(each, found, step)
            by = step.origin
            connection.execute(MOVE, (step.offset, step.topic_id, by.member, by.generation, by.metadata, *key))

    def reset(self, group: str, offsets: Mapping[Partition, int | None]) -> None:
        self.load(group, offsets)
        with self.transaction() as connection:
            for each, offset in offsets.items():
                connection.execute(MOVE, (offset, "", "", None, "", group, each.topic, each.number))

    def is_ours(
        self, connection: sqlite3.Connection, group: str, partition: Partition, fence: Stored | OffsetStep
    ) -> bool:
        row = connection.execute(READ, (group, partition.topic, partition.number)).fetchone()
        return row is not None and row[1:3] == (fence.epoch, fence.owner)
