"""A handler for `landonce.consumer.OffsetStore` where the store of the results has no transactions. All that it needs is one write that takes
effect whole, and only if a condition holds.

Every row of results holds the offset after it and the fence that it was written under: a partition's last row says where to go on, and
whose it is. What a consumer does between two saves is gathered, and written at the end if the rows that it has read are the last ones still.
"""

import json
import sqlite3
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

from landonce.consumer import OffsetOrigin, OffsetStep, Partition, Stored, fenced, out_of_step

TABLE = """
CREATE TABLE IF NOT EXISTS results (
  id INTEGER PRIMARY KEY AUTOINCREMENT, result TEXT, name TEXT, topic TEXT, number INTEGER, next INTEGER,
  epoch INTEGER, owner TEXT, topic_id TEXT, member TEXT, generation INTEGER, metadata TEXT)
"""
LAST = """
SELECT id, next, epoch, owner, topic_id, member, generation, metadata FROM results
WHERE name = ? AND topic = ? AND number = ? ORDER BY id DESC LIMIT 1
"""
WRITE = f"""
INSERT INTO results (result, name, topic, number, next, epoch, owner, topic_id, member, generation, metadata)
SELECT {", ".join(f"json_extract(rows.value, '$[{at}]')" for at in range(11))} FROM json_each(?) AS rows
WHERE NOT EXISTS (
  SELECT 1 FROM json_each(?) AS seen WHERE json_extract(seen.value, '$[3]') IS NOT (
    SELECT max(id) FROM results WHERE name = json_extract(seen.value, '$[0]')
    AND topic = json_extract(seen.value, '$[1]') AND number = json_extract(seen.value, '$[2]')))
"""
Place = tuple[str, str, int]
"""Group, topic and partition."""


@dataclass
class Gathered:
    """What stands for a transaction. Nothing of it is written before its end."""

    results: list[str] = field(default_factory=list)
    """Since the last save. They go into the rows of the next one."""
    rows: list[list[object]] = field(default_factory=list)
    seen: dict[Place, tuple[int | None, Stored]] = field(default_factory=dict)
    """The last row of each partition, and what the rows gathered here make of it."""

    def add(self, result: str) -> None:
        self.results.append(result)


class OffsetsInRows:
    def __init__(self, path: str) -> None:
        self.path = path

    def initialize(self, group: str) -> None:  # noqa: ARG002
        with self.connected() as connection:
            connection.execute(TABLE)

    @contextmanager
    def transaction(self) -> Iterator[Gathered]:
        gathered = Gathered()
        yield gathered
        if gathered.rows and not self.write(gathered.rows, {place: id for place, (id, _) in gathered.seen.items()}):
            raise fenced(*(Partition(topic, number) for _, topic, number in gathered.seen))

    def load(
        self, group: str, partitions: Collection[Partition], held: Mapping[Partition, Stored] | None = None
    ) -> dict[Partition, Stored]:
        """Writes a row without a result under a new fence; with `held`, only where the last row has the held one."""
        found = {}
        for each in partitions:
            while each not in found:
                id, last = self.last(group, each)
                if held is not None and (last.epoch, last.owner) != (held[each].epoch, held[each].owner):
                    break
                taken = Stored(last.offset, last.epoch + 1, uuid.uuid4().hex, last.topic_id, last.origin)
                if self.write([row(group, each, taken)], {(group, each.topic, each.number): id}):
                    found[each] = taken
        return found

    def save(self, group: str, steps: Mapping[Partition, OffsetStep], gathered: Gathered) -> None:
        for each, step in steps.items():
            place = (group, each.topic, each.number)
            id, last = gathered.seen.get(place) or self.last(group, each)
            if (last.epoch, last.owner) != (step.epoch, step.owner):
                raise fenced(each)
            if last.offset != step.previous:
                raise out_of_step(each, last.offset, step)
            now = Stored(step.offset, step.epoch, step.owner, step.topic_id, step.origin)
            gathered.rows += [row(group, each, now, result) for result in gathered.results or (None,)]
            gathered.results, gathered.seen[place] = [], (id, now)

    def reset(self, group: str, offsets: Mapping[Partition, int | None]) -> None:
        for each, offset in offsets.items():
            written = False
            while not written:
                id, last = self.last(group, each)
                put = Stored(offset, last.epoch + 1, uuid.uuid4().hex)
                written = self.write([row(group, each, put)], {(group, each.topic, each.number): id})

    def last(self, group: str, partition: Partition) -> tuple[int | None, Stored]:
        """The id of a partition's last row, and what it says."""
        with self.connected() as connection:
            found = connection.execute(LAST, (group, partition.topic, partition.number)).fetchone()
        if found is None:
            return None, Stored(None, 0, "")
        id, offset, epoch, owner, topic_id, *origin = found
        return id, Stored(offset, epoch, owner, topic_id, OffsetOrigin(*origin))

    def write(self, rows: list[list[object]], seen: Mapping[Place, int | None]) -> bool:
        """All of the rows, if each of these partitions has the last row that was seen. One statement, which commits by itself."""
        with self.connected() as connection:
            condition = [[*place, id] for place, id in seen.items()]
            return connection.execute(WRITE, (json.dumps(rows), json.dumps(condition))).rowcount == len(rows)

    @contextmanager
    def connected(self) -> Iterator[sqlite3.Connection]:
        """Every statement is a transaction of its own."""
        with closing(sqlite3.connect(self.path, timeout=60, isolation_level=None)) as connection:
            yield connection


def row(group: str, partition: Partition, state: Stored, result: str | None = None) -> list[object]:
    by = state.origin
    fence = (state.offset, state.epoch, state.owner, state.topic_id)
    return [result, group, partition.topic, partition.number, *fence, by.member, by.generation, by.metadata]
