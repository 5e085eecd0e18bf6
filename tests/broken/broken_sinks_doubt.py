"""Broken sinks for the cases of doubt: what a sink sees, and what a crash leaves. For tests of the kit only."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from landonce.errors import TargetUnavailable
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.settle import Reply
from landonce.protocol.target import TargetView
from landonce.sinks.contract import BlockWriter, Insert, Probe, Target
from landonce.testing.reference_sinks import SqliteSink, SqliteSite, SqliteTarget, SqliteWriter, coordinates, opened
from landonce.testing.sink_sites import SinkSite


@dataclass(frozen=True)
class Built(SqliteSink):
    """A sink of two classes."""

    writes: type[SqliteWriter] = SqliteWriter
    looks: type[SqliteTarget] = SqliteTarget

    def target(self) -> Target:
        return self.looks(self.path)

    def writer(self) -> BlockWriter:
        return self.writes(self.path)


class Assuming(SqliteWriter):
    """What was asked for is there."""

    def present(self, ranges: Iterable[Range]) -> Counter[tuple[str, int, int]]:
        return super().present(ranges) or Counter(
            {
                (each.partition.topic, each.partition.number, at): 1
                for each in ranges
                for at in range(each.first, each.end)
            }
        )


class Forgetful(SqliteWriter):
    def present(self, ranges: Iterable[Range]) -> Counter[tuple[str, int, int]]:
        del ranges
        return Counter()


class Careless(SqliteWriter):
    """Knows how many are missing, and not which."""

    def probe(self, rows: pa.Table, ranges: Iterable[Range]) -> Probe:
        found = super().probe(rows, ranges)
        return Probe(found.presence, pa.array(sorted(found.missing.to_pylist()), pa.bool_()))


class OffsetsAlone(SqliteWriter):
    def present(self, ranges: Iterable[Range]) -> Counter[tuple[str, int, int]]:
        told = tuple(ranges)
        offsets = super().present(Range(Partition("t", 0), each.first, each.end) for each in told)
        return Counter({(*_name(told[0]), at): number for (_, _, at), number in offsets.items()})


def _name(each: Range) -> tuple[str, int]:
    return each.partition.topic, each.partition.number


class Subtracting(SqliteWriter):
    """Expects as many rows as the range is long."""

    def probe(self, rows: pa.Table, ranges: Iterable[Range]) -> Probe:
        told = tuple(ranges)
        found = super().probe(rows, told)
        lacking = sum(each.end - each.first for each in told) - rows.num_rows
        more = replace(found.presence, missing=found.presence.missing + lacking)
        return Probe(more, found.missing)


class Lenient(SqliteWriter):
    def probe(self, rows: pa.Table, ranges: Iterable[Range]) -> Probe:
        found = super().probe(rows, ranges)
        return Probe(replace(found.presence, torn=False), found.missing)


class Distinct(SqliteWriter):
    def present(self, ranges: Iterable[Range]) -> Counter[tuple[str, int, int]]:
        return Counter(set(super().present(ranges)))


class SaidHarmless(SqliteWriter):
    @property
    def resend_harmless(self) -> bool:
        return True


class ClosedRanges(SqliteWriter):
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


class Remembering(SqliteWriter):
    """Drops every row whose coordinates were ever sent."""

    def write(self, connection: sqlite3.Connection, rows: pa.Table) -> None:
        connection.execute("CREATE TABLE IF NOT EXISTS seen (topic TEXT, number INTEGER, at INTEGER UNIQUE)")
        new = [
            connection.execute("INSERT OR IGNORE INTO seen VALUES (?, ?, ?)", each).rowcount == 1
            for each in coordinates(rows)
        ]
        super().write(connection, rows.filter(pa.array(new)))


class Hopeful(SqliteWriter):
    """Every request is as good as done."""

    def send(self, rows: pa.Table, insert: Insert) -> Reply:
        reply = super().send(rows, insert)
        return Reply.ACKNOWLEDGED if reply is Reply.REFUSED else reply


class Hasty(SqliteWriter):
    """No answer is no rows."""

    def present(self, ranges: Iterable[Range]) -> Counter[tuple[str, int, int]]:
        try:
            return super().present(ranges)
        except TargetUnavailable:
            return Counter()


class Reaping(SqliteTarget):
    def kill(self) -> None:
        super().kill()
        with opened(self.path) as connection:
            connection.execute("DELETE FROM events")


_SOON = 20.0


class Lingering(SqliteWriter):
    """Looks at the deadline, and then takes its time where no kill finds it."""

    def transact(self, connection: sqlite3.Connection, rows: pa.Table, insert: Insert) -> Reply:
        left = insert.deadline / 1000 - time.time()
        time.sleep(left + 1.5 if 0 < left < _SOON else 0)
        return super().transact(connection, rows, replace(insert, deadline=2**62))


class RowByRow(SqliteWriter):
    """A transaction for each row."""

    def write(self, connection: sqlite3.Connection, rows: pa.Table) -> None:
        for at in range(rows.num_rows):
            super().write(connection, rows.slice(at, 1))
            connection.execute("COMMIT")
            connection.execute("BEGIN IMMEDIATE")


class TokenAsProof(SqliteWriter):
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
        told = tuple(ranges)
        with opened(self.path) as connection:
            noted = set(connection.execute("SELECT * FROM noted"))
        return Counter(
            {
                (*_name(each), at): 1
                for each in told
                for at in range(each.first, each.end)
                if (*_name(each), at) in noted
            }
        )


def with_writer(kind: type[SqliteWriter]) -> Callable[[Path], SinkSite]:
    return lambda folder: SqliteSite(folder, lambda path: Built(path, writes=kind))


def with_target(kind: type[SqliteTarget]) -> Callable[[Path], SinkSite]:
    return lambda folder: SqliteSite(folder, lambda path: Built(path, looks=kind))


BROKEN_IN_DOUBT: dict[str, Callable[[Path], SinkSite]] = {
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
    "a_used_up_token_is_replaced": with_writer(Remembering),
    "a_silent_target_acknowledges_nothing": with_writer(Hopeful),
    "a_silent_target_is_not_an_empty_one": with_writer(Hasty),
    "a_kill_harms_nothing_that_landed": with_target(Reaping),
    "nothing_lands_after_deadline_and_kill": with_writer(Lingering),
    "a_send_that_is_killed_at_any_line_is_whole_or_absent": with_writer(RowByRow),
    "after_a_crash_at_any_line_a_block_lands_once": with_writer(TokenAsProof),
}
