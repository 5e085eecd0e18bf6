"""Where the cases of a deduplicating sink run, and the rows that they write."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import NamedTuple

import pyarrow as pa

from landonce.protocol.ranges import Partition, Range
from landonce.protocol.settle import Reply
from landonce.read.schema.ddl import parse_schema
from landonce.sinks.contract import BlockWriter, DeduplicatingSink, Guarantee, Insert
from landonce.testing.case import Need, Suite
from landonce.testing.crashing import SOME_MOMENTS

SCHEMA = parse_schema("id BIGINT NOT NULL, word STRING")
TOPIC = "t"
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
    """A table of its own for one case, which is not there yet, and what is declared of it.

    What the sink itself declares (`guarantee`, `atomic`, `resend_harmless`) decides which cases apply. `remove` and `unreachable`
    are worth having: without them the cases that need them are excused, and pytest says so.
    """

    secret = ""
    """A word of the sink's description that nobody may read in a log: a password."""
    moments = SOME_MOMENTS
    """At how many lines, at most, a crash is tried."""

    @abstractmethod
    def sink(self) -> DeduplicatingSink:
        """The sink, as a pipeline opens it. Always of the same table."""

    @abstractmethod
    def held(self) -> list[Row]:
        """All that the table holds, in any order, read without the sink: by plain SQL, from files."""

    def remove(self, rows: Iterable[Row]) -> None:
        """Takes rows away, as an operator, a TTL or a lost disk would."""
        raise NotImplementedError

    def unreachable(self) -> AbstractContextManager[None]:
        """While it is open, the target does not answer."""
        raise NotImplementedError


SINK_CASES: Suite[SinkSite] = Suite("sink")

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
SECRET: Need[SinkSite] = Need(lambda site: bool(site.secret), "the site names no secret")
REMOVES: Need[SinkSite] = Need(
    lambda site: type(site).remove is not SinkSite.remove, "the site has no way to take rows away (remove)"
)
LEAVES: Need[SinkSite] = Need(
    lambda site: type(site).unreachable is not SinkSite.unreachable,
    "the site has no way to make its target unreachable (unreachable)",
)


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
    return sorted(Row(*each) for each in zip(*found.values(), strict=True))


def held(site: SinkSite) -> list[Row]:
    return sorted(site.held())


def span(first: int, end: int, topic: str = TOPIC, partition: int = 0) -> Range:
    return Range(Partition(topic, partition), first, end)


def token(number: int) -> str:
    """Tokens are as long as real ones, and begin alike."""
    return f"{number:064x}"


def insert(sink: DeduplicatingSink, number: int, *, milliseconds: int = 60_000, attempt: int = 0) -> Insert:
    target = sink.target()
    try:
        return Insert(token(number), target.now() + milliseconds, f"attempt{number}x{attempt}")
    finally:
        target.close()


def send(sink: DeduplicatingSink, table: pa.Table, number: int, *, writer: BlockWriter | None = None) -> None:
    """One insert that must be acknowledged."""
    writer = writer or sink.writer()
    reply = writer.send(table, insert(sink, number))
    assert reply is Reply.ACKNOWLEDGED, f"a sound insert was not acknowledged: {reply.value} {writer.said}"
