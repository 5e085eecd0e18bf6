"""A broken sink for every case: the reference sink with one promise less. Nothing but a test of the kit may open one."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from landonce.errors import TargetUnavailable
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.settle import Reply
from landonce.protocol.target import TargetView
from landonce.read.schema.fields import Field, Schema
from landonce.sinks.contract import BlockWriter, Finding, Guarantee, Insert, Level, Probe, Target
from landonce.testing import SinkSite
from landonce.testing.reference_sinks import ReferenceWriter, SqliteSink, SqliteSite, SqliteTarget, coordinates, opened


@dataclass(frozen=True)
class Built(SqliteSink):
    """A sink of two classes."""

    writes: type[ReferenceWriter] = ReferenceWriter
    looks: type[SqliteTarget] = SqliteTarget

    def target(self) -> Target:
        return self.looks(self.path)

    def writer(self) -> BlockWriter:
        return self.writes(self.path)


class Boasting(SqliteSink):
    guarantee: ClassVar[Guarantee] = Guarantee.TRANSACTIONAL  # type: ignore[misc]


@dataclass(frozen=True)
class Rooted(SqliteSink):
    """Holds what cannot travel."""

    opened: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "opened", threading.Lock())


class Talkative(SqliteSink):
    def __repr__(self) -> str:
        return "Talkative(password='s3cret-word')"


class Emptying(SqliteTarget):
    def create(self, declared: Schema, **options: Any) -> None:
        self.path.unlink(missing_ok=True)
        super().create(declared, **options)


class OfAnyTopic(SqliteTarget):
    """Removes by partition and offset alone."""

    def remove(self, ranges: Iterable[Range]) -> None:
        with opened(self.path) as connection:
            for each in ranges:
                where = "_partition = ? AND _offset >= ? AND _offset < ?"
                connection.execute(f"DELETE FROM events WHERE {where}", (each.partition.number, each.first, each.end))


class Uncovered(SqliteTarget):
    def schema(self) -> Schema:
        return Schema((*super().schema().fields, Field("_offset", pa.int64())))


class Refusing(SqliteTarget):
    def check(self) -> tuple[Finding, ...]:
        return (Finding(Level.REFUSED, "never"),)


class Dropping(ReferenceWriter):
    def write(self, connection: sqlite3.Connection, rows: pa.Table) -> None:
        super().write(connection, rows.slice(0, rows.num_rows - rows.num_rows // 100))


class Smoothing(ReferenceWriter):
    """Nothing is the empty string."""

    def write(self, connection: sqlite3.Connection, rows: pa.Table) -> None:
        super().write(connection, rows.set_column(4, "word", rows.column("word").fill_null("")))


class Tokenless(ReferenceWriter):
    def first(self, connection: sqlite3.Connection, token: str) -> bool:
        del connection, token
        return True


class ShortTokens(ReferenceWriter):
    def first(self, connection: sqlite3.Connection, token: str) -> bool:
        return super().first(connection, token[:16])


class Timeless(ReferenceWriter):
    def send(self, rows: pa.Table, insert: Insert) -> Reply:
        return super().send(rows, replace(insert, deadline=2**62))


class Stopped(SqliteTarget):
    def now(self) -> int:
        return 2**42


class ChunkTokens(ReferenceWriter):
    """What a block is called depends on how Arrow cut it."""

    def send(self, rows: pa.Table, insert: Insert) -> Reply:
        return super().send(rows, replace(insert, token=f"{insert.token}{len(rows.to_batches())}"))


class FirstPartition(ReferenceWriter):
    def write(self, connection: sqlite3.Connection, rows: pa.Table) -> None:
        partition = [each[:2] for each in coordinates(rows)]
        super().write(connection, rows.filter(pa.array([each == partition[0] for each in partition])))


class Rewriting(ReferenceWriter):
    """Reads all, and writes all with what is new, as a file that is replaced."""

    def transact(self, connection: sqlite3.Connection, rows: pa.Table, insert: Insert) -> Reply:
        before = connection.execute("SELECT * FROM events").fetchall()
        time.sleep(0.5)
        connection.execute("BEGIN IMMEDIATE")
        if self.first(connection, insert.token):
            connection.execute("DELETE FROM events")
            connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?)", before)
            self.write(connection, rows)
        connection.execute("COMMIT")
        return Reply.ACKNOWLEDGED


class LookingFirst(ReferenceWriter):
    """Looks for the token, and writes it in another transaction."""

    def first(self, connection: sqlite3.Connection, token: str) -> bool:
        known = connection.execute("SELECT 1 FROM tokens WHERE token = ?", (token,)).fetchone()
        connection.execute("COMMIT")
        time.sleep(0.5)
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT OR IGNORE INTO tokens VALUES (?)", (token,))
        return known is None


# What a sink finds, and what a crash leaves.


class Assuming(ReferenceWriter):
    """What was asked for is there."""

    def present(self, ranges: Iterable[Range]) -> Counter[tuple[str, int, int]]:
        return super().present(ranges) or Counter(
            {
                (each.partition.topic, each.partition.number, at): 1
                for each in ranges
                for at in range(each.first, each.end)
            }
        )


class Forgetful(ReferenceWriter):
    def present(self, ranges: Iterable[Range]) -> Counter[tuple[str, int, int]]:
        del ranges
        return Counter()


class Careless(ReferenceWriter):
    """Knows how many are missing, and not which."""

    def probe(self, rows: pa.Table, ranges: Iterable[Range]) -> Probe:
        found = super().probe(rows, ranges)
        return Probe(found.presence, pa.array(sorted(found.missing.to_pylist()), pa.bool_()))


class OffsetsAlone(ReferenceWriter):
    def present(self, ranges: Iterable[Range]) -> Counter[tuple[str, int, int]]:
        asked = tuple(ranges)
        offsets = super().present(Range(Partition("t", 0), each.first, each.end) for each in asked)
        return Counter({(*_name(asked[0]), at): number for (_, _, at), number in offsets.items()})


def _name(each: Range) -> tuple[str, int]:
    return each.partition.topic, each.partition.number


class Subtracting(ReferenceWriter):
    """Expects as many rows as the range is long."""

    def probe(self, rows: pa.Table, ranges: Iterable[Range]) -> Probe:
        asked = tuple(ranges)
        found = super().probe(rows, asked)
        lacking = sum(each.end - each.first for each in asked) - rows.num_rows
        more = replace(found.presence, missing=found.presence.missing + lacking)
        return Probe(more, found.missing)


class Lenient(ReferenceWriter):
    def probe(self, rows: pa.Table, ranges: Iterable[Range]) -> Probe:
        found = super().probe(rows, ranges)
        return Probe(replace(found.presence, torn=False), found.missing)


class Distinct(ReferenceWriter):
    def present(self, ranges: Iterable[Range]) -> Counter[tuple[str, int, int]]:
        return Counter(set(super().present(ranges)))


class SaidHarmless(ReferenceWriter):
    @property
    def resend_harmless(self) -> bool:
        return True


class ClosedRanges(ReferenceWriter):
    def count(self, ranges: Iterable[Range]) -> int:
        return super().count(Range(each.partition, each.first, each.end + 1) for each in ranges)


class Uncounted(SqliteTarget):
    def count(self, ranges: Iterable[Range]) -> int:
        del ranges
        return 0


class LastOffsets(SqliteTarget):
    def look(self, floors: Iterable[tuple[Partition, int]]) -> TargetView:
        return TargetView(tuple((partition, end - 1) for partition, end in super().look(floors).ends))


class Floorless(SqliteTarget):
    def look(self, floors: Iterable[tuple[Partition, int]]) -> TargetView:
        return super().look((partition, 0) for partition, _ in floors)


class Remembering(ReferenceWriter):
    """Drops every row whose coordinates were ever sent."""

    def write(self, connection: sqlite3.Connection, rows: pa.Table) -> None:
        connection.execute("CREATE TABLE IF NOT EXISTS seen (topic TEXT, number INTEGER, at INTEGER UNIQUE)")
        new = [
            connection.execute("INSERT OR IGNORE INTO seen VALUES (?, ?, ?)", each).rowcount == 1
            for each in coordinates(rows)
        ]
        super().write(connection, rows.filter(pa.array(new)))


class Hopeful(ReferenceWriter):
    """Every request is as good as done."""

    def send(self, rows: pa.Table, insert: Insert) -> Reply:
        reply = super().send(rows, insert)
        return Reply.ACKNOWLEDGED if reply is Reply.REFUSED else reply


class Hasty(ReferenceWriter):
    """No answer is no rows."""

    def present(self, ranges: Iterable[Range]) -> Counter[tuple[str, int, int]]:
        try:
            return super().present(ranges)
        except TargetUnavailable:
            return Counter()


class Clearing(SqliteTarget):
    def kill(self) -> None:
        super().kill()
        with opened(self.path) as connection:
            connection.execute("DELETE FROM events")


_SOON = 20.0


class Lingering(ReferenceWriter):
    """Looks at the deadline, and then takes its time where no kill finds it."""

    def transact(self, connection: sqlite3.Connection, rows: pa.Table, insert: Insert) -> Reply:
        left = insert.deadline / 1000 - time.time()
        time.sleep(left + 1.5 if 0 < left < _SOON else 0)
        return super().transact(connection, rows, replace(insert, deadline=2**62))


class RowByRow(ReferenceWriter):
    """A transaction for each row."""

    def write(self, connection: sqlite3.Connection, rows: pa.Table) -> None:
        for at in range(rows.num_rows):
            super().write(connection, rows.slice(at, 1))
            connection.execute("COMMIT")
            connection.execute("BEGIN IMMEDIATE")


class TokenAsProof(ReferenceWriter):
    """Notes first that the block is there, and believes the note."""

    def write(self, connection: sqlite3.Connection, rows: pa.Table) -> None:
        self._note(connection, rows)
        connection.execute("COMMIT")
        connection.execute("BEGIN IMMEDIATE")
        super().write(connection, rows)

    def _note(self, connection: sqlite3.Connection, rows: pa.Table) -> None:
        connection.execute("CREATE TABLE IF NOT EXISTS noted (topic TEXT, number INTEGER, at INTEGER)")
        connection.executemany("INSERT INTO noted VALUES (?, ?, ?)", coordinates(rows))

    def present(self, ranges: Iterable[Range]) -> Counter[tuple[str, int, int]]:
        asked = tuple(ranges)
        with opened(self.path) as connection:
            noted = set(connection.execute("SELECT * FROM noted"))
        return Counter(
            {
                (*_name(each), at): 1
                for each in asked
                for at in range(each.first, each.end)
                if (*_name(each), at) in noted
            }
        )


def with_writer(kind: type[ReferenceWriter]) -> Callable[[Path], SinkSite]:
    return lambda folder: SqliteSite(folder, lambda path: Built(path, writes=kind))


def with_target(kind: type[SqliteTarget]) -> Callable[[Path], SinkSite]:
    return lambda folder: SqliteSite(folder, lambda path: Built(path, looks=kind))


BROKEN_SINKS: dict[str, Callable[[Path], SinkSite]] = {
    "the_guarantee_is_one_that_this_port_keeps": lambda folder: SqliteSite(folder, Boasting),
    "a_sink_travels_to_the_workers": lambda folder: SqliteSite(folder, Rooted),
    "no_secret_is_shown": lambda folder: SqliteSite(folder, Talkative, "s3cret-word"),
    "a_table_is_made_once": with_target(Emptying),
    "the_schema_comes_back": with_target(Uncovered),
    "a_fit_table_is_not_refused": with_target(Refusing),
    "what_is_acknowledged_is_there": with_writer(Dropping),
    "values_come_back_as_they_were": with_writer(Smoothing),
    "the_same_token_lands_once": with_writer(Tokenless),
    "another_token_is_another_block": with_writer(ShortTokens),
    "a_late_insert_is_refused": with_writer(Timeless),
    "the_clock_counts_milliseconds": with_target(Stopped),
    "chunks_are_one_block": with_writer(ChunkTokens),
    "a_block_of_several_partitions_lands_whole": with_writer(FirstPartition),
    "blocks_land_side_by_side": with_writer(Rewriting),
    "two_sends_of_one_token_at_once_land_once": with_writer(LookingFirst),
    "an_empty_table_holds_nothing": with_writer(Assuming),
    "a_probe_finds_what_is_there": with_writer(Forgetful),
    "a_probe_names_exactly_the_missing_rows": with_writer(Careless),
    "a_probe_tells_partitions_and_topics_apart": with_writer(OffsetsAlone),
    "gaps_between_offsets_are_no_loss": with_writer(Subtracting),
    "a_part_of_a_block_is_torn": with_writer(Lenient),
    "copies_are_counted": with_writer(Distinct),
    "a_row_that_is_sent_twice_becomes_one": with_writer(SaidHarmless),
    "a_count_is_of_the_ranges": with_writer(ClosedRanges),
    "the_driver_counts_what_it_asks_for": with_target(Uncounted),
    "a_look_finds_the_ends": with_target(LastOffsets),
    "a_look_says_nothing_below_the_floor": with_target(Floorless),
    "exactly_the_rows_of_the_ranges_are_removed": with_target(OfAnyTopic),
    "a_used_up_token_is_replaced": with_writer(Remembering),
    "a_silent_target_acknowledges_nothing": with_writer(Hopeful),
    "a_silent_target_is_not_an_empty_one": with_writer(Hasty),
    "a_kill_harms_nothing_that_landed": with_target(Clearing),
    "nothing_lands_after_deadline_and_kill": with_writer(Lingering),
    "a_send_that_is_killed_at_any_line_is_whole_or_absent": with_writer(RowByRow),
    "after_a_crash_at_any_line_a_block_lands_once": with_writer(TokenAsProof),
}
