"""`ExactlyOnceSink`: rows with growing offsets from anywhere land once, in every kind of sink.

    once = landonce.ExactlyOnceSink(landonce.sql("sqlite:///shop.db", "visits", create=True), name="visits")
    once.push("visits.log", [{"_offset": 17, "page": "/"}])
    once.position("visits.log")  # 18

The source delivers at least once: it reads again from `position` after a crash. What it brings is held against the ledger, partition by
partition, by the table of `protocol.cases`: skip, write again, or insert.

Every partition has an entry of its own in the ledger, with its own epoch, its own pending plan and its own connections. So threads and
processes push different partitions at the same time, and nothing that happens to one holds up another. A table that is its own ledger
takes one commit after the other, and says in each how far all partitions are: there they share one entry, and threads take turns. Nothing is
ever pending in such a table, so none waits for what became of another's rows.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Literal

import pyarrow as pa

from landonce import errors
from landonce.engine.driver import Driver
from landonce.engine.observe import Observer
from landonce.engine.outside import (
    LedgerChoice,
    Logged,
    NamedSink,
    Outside,
    named_sink,
    outside_basics,
    refuse_mistakes,
    sound_name,
)
from landonce.engine.waiting import Waiting
from landonce.protocol import query_refusals as refusals
from landonce.protocol.cases import OnRewind
from landonce.protocol.ledger import LedgerState
from landonce.protocol.match_ranges import pieces
from landonce.protocol.ranges import NO_END, Partition, Range
from landonce.push.rows import Given, PartitionId, PushWorkers, Rows, given, partition_of, require_changes
from landonce.sinks.run import Run

_MOST = 100
"""Characters of a name that a position is kept under."""


@dataclass(frozen=True)
class PushResult:
    """What became of the rows of one push. All of them are in the target when it is returned."""

    landed: int
    """Rows that were not delivered before."""
    skipped: int
    """Rows that earlier pushes had delivered. Nothing was done with them."""
    position: int
    """The offset at which the next push begins."""


@dataclass
class _Opened:
    """All that is open for one partition, for rows of one schema."""

    columns: str
    driver: Driver
    workers: PushWorkers
    sink: str
    """What the sink says of itself in every fingerprint."""
    stack: ExitStack


@dataclass
class _Lane:
    """One partition, or all that share an entry of the ledger. One thread at a time pushes it."""

    name: str
    """Under which the ledger keeps its position."""
    turn: threading.Lock = field(default_factory=threading.Lock)
    opened: _Opened | None = None
    fenced: errors.Fenced | None = None
    """What to say to whoever pushes it still."""

    def close(self) -> None:
        if self.opened is not None:
            opened, self.opened = self.opened, None
            opened.stack.close()


class ExactlyOnceSink:
    """Lands rows that a program pushes, each of them once. Threads may share it."""

    def __init__(
        self,
        sink: NamedSink,
        ledger: LedgerChoice = None,
        *,
        name: str,
        schema: pa.Schema | None = None,
        on_rewind: Literal["drop", "error"] = "drop",
        block_rows: int = 100_000,
        stall: float = 300.0,
        observer: Observer | None = None,
    ) -> None:
        """`sink`, `ledger`, `on_rewind`, `stall` and `observer` are those of `landonce.exactly_once`.

        `name`: what the positions are kept under. `schema`: the columns of the rows, without the offset; without it they are those of each
        push. `block_rows`: how many rows are written as one unit.
        """
        refuse_mistakes(sink, ledger, on_rewind, block_rows)
        if schema is not None and not isinstance(schema, pa.Schema):
            raise errors.ConfigError(f"schema: a pyarrow Schema, not {type(schema).__name__}.")
        self._name, self._schema, self._block_rows = sound_name(name), schema, block_rows
        # A push is cut by its rows: its offsets may be bytes of a file, and far apart.
        self._outside = Outside(sink, ledger, OnRewind(on_rewind), NO_END, stall, observer or Logged())
        self._lanes: dict[str, _Lane] = {}
        opened = named_sink(sink, name)
        self._shared, self._applies_changes = opened.commits_batches, opened.applies_changes
        self._lock = threading.Lock()
        self._closed = False

    def push(
        self,
        partition: PartitionId,
        rows: Rows,
        *,
        offset: str = "_offset",
        first: int | None = None,
        end: int | None = None,
    ) -> PushResult:
        """Returns once all of these rows are in the target, each of them once. After an error, push them again.

        `partition`: a number, a text, or both. `rows`: a pyarrow Table or RecordBatch, or a list of dicts, in the order of their offsets.
        `offset`: the column that holds the offsets. Without such a column, they are counted from `first`.

        The rows stand for the offsets `[first, end)`, by default from the first row to the last one. Name both where rows were filtered
        or offsets have gaps: the next push must begin where this one ends.
        """
        at = partition_of(self._name, partition)
        brought = given(at, rows, self._schema, offset=offset, first=first, end=end)
        if self._applies_changes:
            require_changes(brought)
        with self._turn(at) as lane:
            if lane.fenced is not None:
                raise _again(lane.fenced)
            try:
                return self._deliver(lane, at, brought)
            except BaseException as error:
                lane.close()
                if isinstance(error, errors.LandonceError):
                    error.command = error.command.replace("{file}", "FILE")
                if isinstance(error, errors.Fenced):
                    lane.fenced = _again(error)
                raise

    def position(self, partition: PartitionId) -> int | None:
        """The offset at which the next push of this partition begins: all before it is delivered. None: it was never pushed.

        What a crash left in doubt lies at or above it. The next push settles it, and should hold as many rows as the one before the crash:
        a wrapped sink without a probe needs all of them again.
        """
        at = partition_of(self._name, partition)
        with self._turn(at) as lane:
            state = self._state(lane)
            return state.committed().get(at) if state is not None else None

    def release(self, partition: PartitionId) -> None:
        """Gives back the connections of a partition that others push from now on. Pushing it again takes it back."""
        at = partition_of(self._name, partition)
        with self._turn(at) as lane:
            lane.fenced = None
            lane.close()

    def close(self) -> None:
        """Waits for pushes that are under way, and gives all connections back. Nothing is pushed any more."""
        with self._lock:
            self._closed, lanes = True, list(self._lanes.values())
        for lane in lanes:
            with lane.turn:
                lane.close()

    def __enter__(self) -> ExactlyOnceSink:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @contextmanager
    def _turn(self, at: Partition) -> Iterator[_Lane]:
        name = self._name if self._shared else _lane_name(self._name, at)
        with self._lock:
            lane = self._lanes.setdefault(name, _Lane(name))
        with lane.turn:
            if self._closed:
                raise refusals.push("this sink is closed", "make another ExactlyOnceSink")
            yield lane

    def _state(self, lane: _Lane) -> LedgerState | None:
        """What the ledger says, or this process as long as it pushes the partition."""
        if lane.opened is not None and lane.opened.driver.state is not None:
            return lane.opened.driver.state
        with closing(self._outside.open_ledger(named_sink(self._outside.sink, lane.name), lane.name)) as ledger:
            return Waiting(self._outside.stall, self._outside.observer.trouble).until(ledger.load)

    def _deliver(self, lane: _Lane, at: Partition, brought: Given) -> PushResult:
        state, whole = self._state(lane), brought.range
        position = state.committed().get(at) if state is not None else None
        if whole is None:
            return PushResult(0, 0, position if position is not None else 0)
        before = position if position is not None else whole.first
        pending = state.pending.ends().get(at, 0) if state is not None and state.pending is not None else 0
        for piece in pieces(whole, brought.offsets.tolist(), before, pending, self._block_rows):
            self._run(lane, brought, piece)
        skipped = int((brought.offsets < before).sum())
        return PushResult(brought.rows.num_rows - skipped, skipped, max(before, whole.end))

    def _run(self, lane: _Lane, brought: Given, piece: Range) -> None:
        """One micro-batch of the batch machine."""
        opened = self._entered(lane, brought, piece)
        performer = opened.driver.performer
        performer.settings = replace(performer.settings, fingerprint=brought.fingerprint(opened.sink))
        opened.workers.rows, opened.workers.range = brought.rows, piece
        try:
            opened.driver.run()
        finally:
            opened.workers.rows = None

    def _entered(self, lane: _Lane, brought: Given, piece: Range) -> _Opened:
        """Rows with other columns than those before: all is examined again."""
        if lane.opened is not None and lane.opened.columns != brought.columns:
            lane.close()
        if lane.opened is None:
            outside, workers = self._outside, PushWorkers(brought.rows, piece)
            sink = named_sink(outside.sink, lane.name)
            with ExitStack() as stack:
                ledger = stack.enter_context(closing(outside.open_ledger(sink, lane.name)))
                run = Run(
                    name=lane.name,
                    ledger=ledger,
                    basics=outside_basics(lane.name, shuffled=False),
                    query=brought.rows.schema,
                    pushed=True,
                    tell=outside.observer.trouble,
                )
                driver = outside.driver(sink, outside.opened(sink, run, stack), workers, parallelism=1)
                said = driver.performer.settings.fingerprint
                lane.opened = _Opened(brought.columns, driver, workers, said, stack.pop_all())
        return lane.opened


def _again(error: errors.Fenced) -> errors.Fenced:
    """The same without its traceback, which would hold the rows, and grow with every push."""
    return type(error)(error.what, safe=error.safe, command=error.command)


def _lane_name(name: str, at: Partition) -> str:
    """Under which name the ledger keeps the position of a partition. A dot between its parts is single, and one in a part double: a part
    begins with no dot, so no two partitions have one name."""
    parts = (name, str(at.number)) if at.topic == name else (name, at.topic, str(at.number))
    made = ".".join(each.replace(".", "..") for each in parts)
    if len(made) > _MOST:
        raise refusals.push(
            f"its position would be kept as {made!r}, which has {len(made)} characters, and may have {_MOST}",
            "shorter names of the sink and of the partition, or fewer dots in them",
        )
    return sound_name(made)
