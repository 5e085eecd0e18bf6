"""A broken handler for every case of a consumer's offsets: the example's with one promise less. For tests of the kit only."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from landonce.consumer import OffsetHandler, OffsetStep, Partition, Stored
from landonce.errors import OffsetOutOfStep
from landonce.testing import OffsetSite

sys.path.append(str(Path(__file__).parents[2] / "examples" / "consumer"))
from own_offsets import TABLE, OwnOffsets

Held = Mapping[Partition, Stored] | None


class InOneFile(OffsetSite):
    """Offsets and results in one SQLite file."""

    def __init__(self, folder: Path, handler: type[OwnOffsets] = OwnOffsets) -> None:
        self.path, self.handler = str(folder / "offsets.db"), handler
        with closing(sqlite3.connect(self.path)) as connection:
            connection.execute("CREATE TABLE results (text TEXT)")

    def open(self) -> OffsetHandler:
        return self.handler(self.path)

    def write(self, transaction: Any, text: str) -> None:
        transaction.execute("INSERT INTO results VALUES (?)", (text,))

    def results(self) -> list[str]:
        with closing(sqlite3.connect(self.path)) as connection:
            return [row[0] for row in connection.execute("SELECT text FROM results ORDER BY rowid")]


class OnlyOne(OwnOffsets):
    def initialize(self, group: str) -> None:
        with self.transaction() as connection:
            connection.execute(TABLE.replace("IF NOT EXISTS", ""))


class BeginsAtZero(OwnOffsets):
    def load(self, group: str, partitions: Collection[Partition], held: Held = None) -> dict[Partition, Stored]:
        found = super().load(group, partitions, held)
        return {each: replace(stored, offset=stored.offset or 0) for each, stored in found.items()}


class ForgetsTopics(OwnOffsets):
    def load(self, group: str, partitions: Collection[Partition], held: Held = None) -> dict[Partition, Stored]:
        return {each: replace(stored, topic_id="") for each, stored in super().load(group, partitions, held).items()}


class ForgetsWho(OwnOffsets):
    def load(self, group: str, partitions: Collection[Partition], held: Held = None) -> dict[Partition, Stored]:
        return {each: Stored(*_plain(stored)) for each, stored in super().load(group, partitions, held).items()}


def _plain(stored: Stored) -> tuple[Any, ...]:
    return stored.offset, stored.epoch, stored.owner, stored.topic_id


class CommitsAnyway(OwnOffsets):
    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path, timeout=60, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            finally:
                connection.execute("COMMIT")


class FencesNobody(OwnOffsets):
    def save(self, group: str, steps: Mapping[Partition, OffsetStep], connection: sqlite3.Connection) -> None:
        with suppress(OffsetOutOfStep):
            super().save(group, _as_owner(self, connection, group, steps), connection)


def _as_owner(
    handler: OwnOffsets, connection: sqlite3.Connection, group: str, steps: Mapping[Partition, OffsetStep]
) -> dict[Partition, OffsetStep]:
    """The same steps under whatever fence there is."""
    found = {}
    for each, step in steps.items():
        where = "WHERE name = ? AND topic = ? AND number = ?"
        row = connection.execute(f"SELECT epoch, owner FROM offsets {where}", (group, each.topic, each.number))
        epoch, owner = row.fetchone()
        found[each] = replace(step, epoch=epoch, owner=owner)
    return found


class OneOwner(OwnOffsets):
    def load(self, group: str, partitions: Collection[Partition], held: Held = None) -> dict[Partition, Stored]:
        found = super().load(group, partitions, held)
        with self.transaction() as connection:
            connection.execute("UPDATE offsets SET owner = 'me'")
        return {each: replace(stored, owner="me") for each, stored in found.items()}


class JumpsAhead(OwnOffsets):
    def save(self, group: str, steps: Mapping[Partition, OffsetStep], connection: sqlite3.Connection) -> None:
        where = "WHERE name = ? AND topic = ? AND number = ?"
        for each, step in steps.items():
            key = (group, each.topic, each.number)
            (found,) = connection.execute(f"SELECT next FROM offsets {where}", key).fetchone()
            super().save(group, {each: replace(step, previous=found)}, connection)


class SavesOnce(OwnOffsets):
    def save(self, group: str, steps: Mapping[Partition, OffsetStep], connection: sqlite3.Connection) -> None:
        before = connection.total_changes
        if before > 1:
            return
        super().save(group, steps, connection)


class SavesEachByItself(OwnOffsets):
    def save(self, group: str, steps: Mapping[Partition, OffsetStep], connection: sqlite3.Connection) -> None:
        for each, step in steps.items():
            super().save(group, {each: step}, connection)
            connection.execute("COMMIT")
            connection.execute("BEGIN IMMEDIATE")


class RenewsEverything(OwnOffsets):
    def load(self, group: str, partitions: Collection[Partition], held: Held = None) -> dict[Partition, Stored]:
        return super().load(group, partitions)


class DoesNotWait(OwnOffsets):
    """Reads beside an open transaction, and takes the fence only where it gets the lock at once."""

    def load(self, group: str, partitions: Collection[Partition], held: Held = None) -> dict[Partition, Stored]:
        with closing(sqlite3.connect(self.path, timeout=0, isolation_level=None)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("ROLLBACK")
            except sqlite3.OperationalError:
                return {each: Stored(None, 1, "me") for each in partitions}
        return super().load(group, partitions, held)


class OneGroup(OwnOffsets):
    def load(self, group: str, partitions: Collection[Partition], held: Held = None) -> dict[Partition, Stored]:
        return super().load(group.lower(), partitions, held)

    def save(self, group: str, steps: Mapping[Partition, OffsetStep], connection: sqlite3.Connection) -> None:
        where = {
            each: replace(step, previous=self._next(connection, group.lower(), each)) for each, step in steps.items()
        }
        super().save(group.lower(), where if group != group.lower() else steps, connection)

    def _next(self, connection: sqlite3.Connection, group: str, each: Partition) -> int | None:
        where = "WHERE name = ? AND topic = ? AND number = ?"
        row = connection.execute(f"SELECT next FROM offsets {where}", (group, each.topic, each.number)).fetchone()
        return None if row is None else row[0]


class ResetsQuietly(OwnOffsets):
    def reset(self, group: str, offsets: Mapping[Partition, int | None]) -> None:
        with self.transaction() as connection:
            for each, offset in offsets.items():
                key = (group, each.topic, each.number)
                connection.execute(
                    "INSERT INTO offsets VALUES (?, ?, ?, NULL, 0, '', '', '', NULL, '') ON CONFLICT DO NOTHING", key
                )
                connection.execute(
                    "UPDATE offsets SET next = ?, topic_id = '' WHERE name = ? AND topic = ? AND number = ?",
                    (offset, *key),
                )


class ForgetsNothing(OwnOffsets):
    def reset(self, group: str, offsets: Mapping[Partition, int | None]) -> None:
        super().reset(group, {each: offset for each, offset in offsets.items() if offset is not None})


BROKEN_OFFSETS: dict[str, type[OwnOffsets]] = {
    "a_second_consumer_begins_too": OnlyOne,
    "a_new_partition_has_no_offset": BeginsAtZero,
    "an_offset_comes_back": ForgetsTopics,
    "who_saved_comes_back": ForgetsWho,
    "results_and_offset_are_one_transaction": CommitsAnyway,
    "a_successor_fences": FencesNobody,
    "every_load_has_a_fence_of_its_own": OneOwner,
    "a_save_follows_the_stored_offset": JumpsAhead,
    "two_saves_of_one_transaction_follow_each_other": SavesOnce,
    "of_several_partitions_all_are_saved_or_none": SavesEachByItself,
    "only_a_fence_that_is_still_held_is_renewed": RenewsEverything,
    "load_sees_what_an_open_transaction_leaves": DoesNotWait,
    "names_that_read_alike_are_apart": OneGroup,
    "an_offset_that_is_put_by_hand_counts": ResetsQuietly,
    "a_partition_can_be_forgotten": ForgetsNothing,
}
