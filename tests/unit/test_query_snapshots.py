"""The step machine of a query whose table is its ledger, in a small world of its own: every cut, every crash, every start.

The world is one table: its mark and its rows, which change together. A driver may die before or after every effect, and Spark
may come back with any range. Whatever happens, the table holds exactly what its mark says: every offset from the first one up
to the position, once, and nothing else.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache

import pytest

from landonce import errors
from landonce.protocol import batch, match_ranges
from landonce.protocol import ledger as states
from landonce.protocol.batch import Machine, Next, begin
from landonce.protocol.cases import OnRewind
from landonce.protocol.ledger import LedgerState
from landonce.protocol.match_ranges import Incoming
from landonce.protocol.packing import Limits
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.receipt import BlockResult, Fate, Receipt
from landonce.protocol.snapshot import Snapshot
from landonce.protocol.steps import (
    Acquire,
    Change,
    CommitTables,
    Committed,
    Effect,
    LookAtTables,
    Looked,
    Moved,
    Reply,
    Step,
    Stop,
    Survey,
    Surveyed,
    Write,
)

P, Q = Partition("t", 0), Partition("t", 1)
END = 3
POLICY = Snapshot("db.t", "f", once=True, own_ledger=True, block_rows=1)


@dataclass
class World:
    """A table: the state in its last mark, and its rows."""

    state: LedgerState = field(default_factory=lambda: LedgerState("q", "lineage"))
    held: Counter[tuple[Partition, int]] = field(default_factory=Counter)
    looked: Looked = field(default_factory=lambda: Looked(()))
    reshaped: int = 0
    """So many commits find that somebody changed the table's columns."""

    def copy(self) -> World:
        return replace(self, held=self.held.copy())

    def key(self) -> object:
        return (self.state.positions, tuple(sorted(self.held.items())))

    @property
    def exact(self) -> bool:
        due = [
            (each, at) for each, position in self.state.positions for at in range(position.first, position.committed)
        ]
        return self.held == Counter(due)


class Died(Exception):
    pass


@dataclass(frozen=True)
class Crash:
    """At the effect with this number: before it, or after it was made and before anybody heard of it."""

    at: int
    after: bool


def incoming(*ranges: Range) -> Incoming:
    return Incoming(tuple(sorted(ranges)), "cluster", (("t", "id"),))


def deliver(
    world: World,
    came: Incoming,
    crash: Crash | None = None,
    before: Machine | None = None,
    on_rewind: OnRewind = OnRewind.DROP,
) -> tuple[Machine, list[Effect]]:
    """One micro-batch, and what was done for it."""
    done: list[Effect] = []
    driver, effect = begin(replace(POLICY, on_rewind=on_rewind), before)
    for number in itertools.count():
        if isinstance(effect, Stop):
            return driver, done
        done.append(effect)
        if crash is not None and crash.at == number:
            if crash.after:
                perform(world, effect, came)
            raise Died
        driver, effect = driver.advance(perform(world, effect, came))
    raise AssertionError


def perform(world: World, effect: Effect, came: Incoming) -> Reply:
    if isinstance(effect, Acquire):
        world.state = states.taken(world.state, f"owner{world.state.epoch}")
        return world.state
    if isinstance(effect, Change):
        if effect.new.pending is None:  # a plan is not kept
            assert world.state.owner == effect.new.owner
            world.state = effect.new
        return effect.new
    if isinstance(effect, Survey):
        return Surveyed(came, 0, Limits(1, 1), 0)
    if isinstance(effect, LookAtTables):
        return world.looked
    if isinstance(effect, Write):
        spans = {index: effect.plan.blocks[index].span for index in effect.indexes}
        return tuple(BlockResult(at, Fate.LANDED, Receipt(span, span)) for at, span in spans.items())
    assert isinstance(effect, CommitTables)
    if world.reshaped:
        world.reshaped -= 1
        return Moved()
    world.state = effect.after
    for block in effect.plan.blocks:
        (each,) = block.ranges
        world.held.update((each.partition, at) for at in range(each.first, each.end))
    return Committed()


def every_incoming() -> Iterator[Incoming]:
    spans = [None, *((first, end) for first in range(END) for end in range(first + 1, END + 1))]
    for one, other in itertools.product(spans, spans):
        ranges = [Range(each, *span) for each, span in ((P, one), (Q, other)) if span is not None]
        if ranges:
            yield incoming(*ranges)


def crashes(world: World, came: Incoming) -> Iterator[Crash]:
    try:
        _, done = deliver(world.copy(), came)
    except errors.LandonceError:
        return
    for at in range(len(done)):
        yield Crash(at, after=False)
        yield Crash(at, after=True)


@cache
def explored() -> tuple[World, ...]:
    """Every world that any order of micro-batches and crashes leads to, as often as it is reached."""
    return tuple(_explored())


def _explored() -> Iterator[World]:
    seen, todo = {World().key()}, [World()]
    while todo:
        world = todo.pop()
        for came in every_incoming():
            for crash in (None, *crashes(world, came)):
                after = world.copy()
                with contextlib.suppress(Died, errors.GapRefused, errors.RewindRefused):
                    deliver(after, came, crash)
                yield after
                if after.exact and after.key() not in seen:
                    seen.add(after.key())
                    todo.append(after)


@pytest.fixture(autouse=True)
def two_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch is soon too large for one commit."""
    monkeypatch.setattr(match_ranges, "MOST_BLOCKS", 2)


@pytest.mark.uncounted
def test_whatever_comes_and_whenever_it_dies_the_table_holds_what_its_mark_says() -> None:
    assert len(explored()) > 10_000
    assert all(world.exact for world in explored())


@pytest.mark.uncounted
def test_from_everywhere_a_query_that_starts_at_the_position_brings_all_in() -> None:
    for world in {world.key(): world.copy() for world in explored()}.values():
        firsts = {P: 0, Q: 0, **world.state.committed()}
        ranges = [Range(each, first, END) for each, first in firsts.items() if first < END]
        if ranges:
            deliver(world, incoming(*ranges))
        assert world.exact
        assert set(world.state.committed().values()) == {END}


@pytest.mark.parametrize("planted", ["what is below the mark is written again", "the position does not move"])
def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, planted: str) -> None:
    """The control. The batch is over after its first commit, or a planted bug would never end."""
    go_on, done = batch.go_on, []

    def one_commit(machine: Machine) -> Next:
        over = machine.step is Step.SURVEY and bool(done)
        done[:] = [machine.step] if machine.step is Step.SURVEY else done
        return (replace(machine, step=Step.STOP), Stop()) if over else go_on(machine)

    monkeypatch.setattr(batch, "go_on", one_commit)
    if planted == "the position does not move":
        monkeypatch.setattr(Snapshot, "recorded", lambda _, machine: replace(machine.state, pending=None))
    else:
        monkeypatch.setattr(Incoming, "undelivered", lambda came, _: came.ranges)
    world = World()
    deliver(world, incoming(Range(P, 0, 2)))
    deliver(world, incoming(Range(P, 0, 2)))
    assert not world.exact


def test_what_was_written_for_other_columns_is_written_again() -> None:
    came = incoming(Range(P, 0, 2))
    world = World(reshaped=1)
    _, done = deliver(world, came)
    again = ["look", "write", "commit", "record"]
    first = ["acquire", "survey", "look", "bind", "prepare", "write", "commit"]
    assert [each.step.value for each in done] == [*first, *again, "survey"]
    assert [each.indexes for each in done if isinstance(each, Write)] == [(0, 1), (0, 1)]
    assert world.exact
    for crash in crashes(World(reshaped=1), came):
        world = World(reshaped=1)
        with contextlib.suppress(Died):
            deliver(world, came, crash)
        deliver(world, came)
        assert world.exact
        assert world.state.committed() == {P: 2}


def test_the_pipeline_is_taken_once_and_the_table_is_looked_at_for_every_batch() -> None:
    world = World()
    driver, done = deliver(world, incoming(Range(P, 0, 2)))
    delivered = ["prepare", "write", "commit", "record", "survey"]
    assert [each.step.value for each in done] == ["acquire", "survey", "look", "bind", *delivered]
    driver, done = deliver(world, incoming(Range(P, 2, 3)), before=driver)
    assert [each.step.value for each in done] == ["survey", "look", *delivered]
    driver, done = deliver(world, incoming(Range(P, 0, 3)), before=driver)
    assert [each.step.value for each in done] == ["survey", "look"]
    assert world.exact


def test_a_batch_that_is_too_large_for_one_commit_takes_several() -> None:
    world = World()
    _, done = deliver(world, incoming(Range(P, 0, 5)))
    commits = [each for each in done if isinstance(each, CommitTables)]
    assert [[str(block.ranges[0]) for block in each.plan.blocks] for each in commits] == [
        [str(Range(P, at, at + 1)) for at in some] for some in ((0, 1), (2, 3), (4,))
    ]
    assert world.exact


def test_a_block_without_an_answer_is_written_again_before_anything_is_committed() -> None:
    world, driver, came = World(), begin(POLICY), incoming(Range(P, 0, 2))
    while not isinstance(driver[1], Write):
        driver = driver[0].advance(perform(world, driver[1], came))
    landed, _ = perform(world, driver[1], came)  # type: ignore[misc]
    driver = driver[0].advance((landed, BlockResult(1, Fate.DOUBTFUL)))
    assert isinstance(driver[1], Write)
    assert driver[1].indexes == (1,)
    driver = driver[0].advance(perform(world, driver[1], came))
    assert isinstance(driver[1], CommitTables)
    assert len(driver[1].receipts) == 2


def test_what_went_back_is_refused_where_the_user_says_so() -> None:
    world = World()
    deliver(world, incoming(Range(P, 0, 3)))
    with pytest.raises(errors.RewindRefused):
        deliver(world, incoming(Range(P, 0, 2)), on_rewind=OnRewind.ERROR)


def test_rows_of_these_topics_without_a_mark_are_refused_before_anything_is_bound() -> None:
    for looked, said in (
        (Looked((), "db.t"), "holds records of these topics"),
        (Looked((), "db.t", "X"), "X wrote to"),
    ):
        world = World(looked=looked)
        with pytest.raises(errors.TargetAhead, match=said):
            deliver(world, incoming(Range(P, 0, 3)))
        assert world.state.fresh
