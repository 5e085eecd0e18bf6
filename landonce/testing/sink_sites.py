"""Where the cases of a deduplicating sink run, and the rows and plans that the cases of every sink write."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, TypeVar

import pyarrow as pa

from landonce.protocol.blocks import Block, Plan
from landonce.protocol.ledger import Ledger, LedgerState, bound, prepared, taken
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.settle import Reply
from landonce.read.schema.ddl import parse_schema
from landonce.read.schema.fields import Schema
from landonce.sinks.contract import COORDINATES, DeduplicatingSink, Finding, Guarantee, Insert, Level
from landonce.testing.case import Need, overrides
from landonce.testing.crashing import SOME_MOMENTS

SinkT = TypeVar("SinkT")
SCHEMA = parse_schema("id BIGINT NOT NULL, word STRING")
TOPIC = "t"
PIPELINE = "contract"
_IDS = (0, -1, 2**63 - 1, -(2**63), 2**53 + 1)
_WORDS = (
    *("", None, "ü ✓ 漢 😀", "e\u0301", 'it\'s "quoted"', "two\nlines\tand a tab", "\r\n", "\\", "\\n", "{} %s ? :x"),
    *(" spaces ", "null", "NaN", "0012", "1e3", "true", "x" * 10_000),
)
"""What is often cut, trimmed, guessed at or taken for something else."""


class Row(NamedTuple):
    """One row as a user reads it."""

    topic: str
    partition: int
    offset: int
    id: int
    word: str | None


class SinkSite(ABC):
    """A table of its own for one case, which does not exist yet, and what is declared of it.

    What the sink itself declares (`guarantee`, `atomic`, `resend_harmless`) decides which cases apply. Implement `remove` and `unreachable`
    if you can: without them the cases that need them are excused, and pytest says so.
    """

    secret = ""
    """A part of the sink's description that must not appear in a log: a password."""
    moments = SOME_MOMENTS
    """At how many lines, at most, a crash is tried."""

    @abstractmethod
    def sink(self) -> DeduplicatingSink:
        """The sink, as a pipeline opens it. Always of the same table."""

    @abstractmethod
    def held(self) -> list[Row]:
        """All that the table holds, in any order, read without the sink: by plain SQL, from files."""

    def remove(self, rows: Iterable[Row]) -> None:
        """Removes rows, as an operator, a TTL or a lost disk would."""
        raise NotImplementedError

    def unreachable(self) -> AbstractContextManager[None]:
        """While it is open, the target does not answer."""
        raise NotImplementedError


PROBED: Need[SinkSite] = Need(
    lambda site: site.sink().guarantee is Guarantee.DEDUPLICATING,
    "the sink declares tokens alone: its table has no coordinates to look at",
)
ATOMIC: Need[SinkSite] = Need(
    lambda site: made(site).writer().atomic, "the sink declares that a block may land in part (atomic is False)"
)
COPIES: Need[SinkSite] = Need(
    lambda site: not made(site).writer().resend_harmless, "the sink declares that a row sent twice becomes one"
)
NO_COPIES: Need[SinkSite] = Need(
    lambda site: made(site).writer().resend_harmless, "the sink declares that a row sent twice is two (resend_harmless)"
)
CLEARS: Need[SinkSite] = Need(
    lambda site: not made(site).target().no_removal(), "the sink declares that it cannot remove rows (no_removal)"
)
REMOVES = overrides(SinkSite, "remove", "the site has no way to take rows away")
LEAVES = overrides(SinkSite, "unreachable", "the site has no way to make its target unreachable")


def made(site: SinkSite) -> DeduplicatingSink:
    """The sink, with its table."""
    sink = site.sink()
    target = sink.target()
    target.create(SCHEMA)
    target.close()
    return sink


def rows(*offsets: int, topic: str = TOPIC, partition: int = 0, words: Iterable[str | None] = ()) -> pa.Table:
    """Rows with coordinates, in order."""
    given = [*words] or [f"w{at}" for at in offsets]
    return pa.table(
        {
            "_topic": pa.array([topic] * len(offsets), pa.string()),
            "_partition": pa.array([partition] * len(offsets), pa.int32()),
            "_offset": pa.array(offsets, pa.int64()),
            "id": pa.array(offsets, pa.int64()),
            "word": pa.array(given, pa.string()),
        }
    )


def odd_rows() -> pa.Table:
    """Rows that are hard to bring back as they were."""
    table = rows(*range(2**62, 2**62 + len(_WORDS)), words=_WORDS)
    return table.set_column(3, "id", pa.array([*_IDS, *range(len(_WORDS) - len(_IDS))], pa.int64()))


def as_rows(*tables: pa.Table) -> list[Row]:
    """What a user should read."""
    found = pa.concat_tables(tables).to_pydict()
    return in_order(Row(*each) for each in zip(*found.values(), strict=True))


class _Holds(Protocol):
    def held(self) -> list[Row]: ...


def held(site: _Holds) -> list[Row]:
    return in_order(site.held())


def in_order(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=str)


def pending(ledger: Ledger, partitions: int, size: int) -> LedgerState:
    """The state of a driver whose plan is pending: a block of so many records for each of so many partitions."""
    state = ledger.create(LedgerState(PIPELINE, "lineage"))
    state = ledger.change(state, taken(state, "first"))
    starts = {Partition(TOPIC, number): 0 for number in range(partitions)}
    state = ledger.change(state, bound(state, "cluster", {TOPIC: "id"}, starts))
    blocks = tuple(Block((span(0, size, partition=at),), "events", number=at) for at in range(partitions))
    return ledger.change(state, prepared(state, Plan(1, blocks, "fingerprint", 0)))


REMOVED = (Range(Partition(TOPIC, 0), 2, 5), Range(Partition(TOPIC, 0), 7, 8), Range(Partition(TOPIC, 1), 0, 3))
"""What the cases of a removal take away, of offsets 0 to 9 of partitions 0 and 1, and of another topic."""


def neighbours() -> list[pa.Table]:
    """Blocks of which `REMOVED` takes a part, or nothing."""
    return [rows(*range(10), topic=topic, partition=at) for topic, at in ((TOPIC, 0), (TOPIC, 1), ("t2", 0), ("T", 0))]


def left(*tables: pa.Table) -> list[Row]:
    """What of these rows is not in `REMOVED`."""
    gone = {(each.partition.topic, each.partition.number, at) for each in REMOVED for at in range(each.first, each.end)}
    return [row for row in as_rows(*tables) if (row.topic, row.partition, row.offset) not in gone]


def span(first: int, end: int, topic: str = TOPIC, partition: int = 0) -> Range:
    return Range(Partition(topic, partition), first, end)


def token(number: int) -> str:
    """As long as a real one. All of them have the same beginning."""
    return f"{number:064x}"


def insert(sink: DeduplicatingSink, number: int, *, attempt: int = 0) -> Insert:
    target = sink.target()
    try:
        return Insert(token(number), target.now() + 60_000, f"attempt{number}x{attempt}")
    finally:
        target.close()


def send(sink: DeduplicatingSink, table: pa.Table, number: int) -> None:
    """One insert that must be acknowledged."""
    writer = sink.writer()
    reply = writer.send(table, insert(sink, number))
    assert reply is Reply.ACKNOWLEDGED, f"a sound insert was not acknowledged: {reply.value} {writer.said}"


def copied(sink: SinkT) -> SinkT:
    """The sink as a worker gets it."""
    try:
        copy: SinkT = pickle.loads(pickle.dumps(sink))  # noqa: S301
    except Exception as error:
        raise AssertionError(f"the sink cannot be pickled: {error}") from error
    return copy


def check_columns(found: Schema) -> None:
    seen = found.by_name()
    types = {name: each.type for name, each in seen.items() if name not in COORDINATES}
    assert types == {each.name: each.type for each in SCHEMA.fields}, "the table's columns are not the declared ones"
    assert not set(seen) & set(COORDINATES), "coordinates are landonce's own, and no record fills them"


def check_not_refused(findings: Iterable[Finding]) -> None:
    refusals = [finding.what for finding in findings if finding.level is Level.REFUSED]
    assert not refusals, f"a table that the sink created itself is refused: {refusals}"
