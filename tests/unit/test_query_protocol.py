"""The step machine of a query, in a small world of its own: every cut, every crash, every start after it.

The world holds a ledger and a target. A driver may die before or after every effect, a write may land and not be answered,
and Spark may come back with any range. Whatever happens, no record stands twice, and a query that continues from the ledger's position
brings all of them in.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from landonce import errors
from landonce.protocol import batch
from landonce.protocol import ledger as states
from landonce.protocol.batch import Machine, Policy, begin
from landonce.protocol.blocks import Block, Kind, Plan
from landonce.protocol.cases import OnRewind
from landonce.protocol.deduplicating import Deduplicating
from landonce.protocol.ledger import LedgerState, Position, Totals
from landonce.protocol.match_ranges import Begun, Incoming
from landonce.protocol.packing import Limits
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.receipt import BlockResult, Fate, Receipt
from landonce.protocol.settle import Mode
from landonce.protocol.steps import (
    Acquire,
    Await,
    Change,
    Commit,
    Count,
    Effect,
    FoundBlock,
    Kill,
    Look,
    Reply,
    Resolve,
    Resolved,
    Stop,
    Survey,
    Surveyed,
    Write,
)
from landonce.protocol.target import TargetView
from landonce.protocol.transactional import Transactional

P, Q = Partition("t", 0), Partition("t", 1)
END = 3


@dataclass
class World:
    """A ledger and a target, and what the target can do."""

    kind: type[Policy] = Deduplicating
    state: LedgerState = field(default_factory=lambda: LedgerState("p", "lineage"))
    held: Counter[tuple[Partition, int]] = field(default_factory=Counter)
    look_first: bool = True
    """A worker that resolves looks before it writes."""
    atomic: bool = True
    """Otherwise the table has two partitions of its own, for even and odd offsets, and a block may land in one of them only."""
    takes_a_part_for_all: bool = False
    keeps: bool = True
    """Otherwise rows are acknowledged and gone."""

    def copy(self) -> World:
        return replace(self, held=self.held.copy())

    def key(self) -> object:
        state = self.state
        return (state.positions, state.pending, state.batch, tuple(sorted(self.held.items())))

    def rows(self, block: Block) -> list[tuple[Partition, int]]:
        (each,) = block.ranges
        return [(each.partition, at) for at in range(each.first, each.end)]

    def there(self, block: Block) -> bool:
        return any(self.held[row] for row in self.rows(block))

    def parts(self, block: Block) -> list[list[tuple[Partition, int]]]:
        """What can land without the rest."""
        rows = self.rows(block)
        return (
            [rows] if self.atomic else [part for odd in (0, 1) if (part := [row for row in rows if row[1] % 2 == odd])]
        )

    def land(self, block: Block, mode: Mode, parts: int = 2) -> None:
        for part in self.parts(block)[:parts]:
            if not (mode is Mode.RESOLVE and self.look_first and any(self.held[row] for row in part)):
                self.held.update(part)

    def found(self, block: Block) -> bool:
        return self.there(block) and (self.atomic or self.takes_a_part_for_all)

    @property
    def exact(self) -> bool:
        return all(count == 1 for count in self.held.values())


class Died(Exception):
    pass


@dataclass
class Crash:
    """In the effect with this number: a change of the ledger is made and not heard of, of a write some blocks landed."""

    at: int
    landed: int = 0
    parts: int = 2
    """How much of the last of these blocks landed, where it can land in part."""


def incoming(*ranges: Range) -> Incoming:
    return Incoming(tuple(sorted(ranges)), "cluster", (("t", "id"),))


def deliver(world: World, came: Incoming, crash: Crash | None = None, fingerprint: str = "f") -> list[Effect]:
    """One run of the query with one micro-batch, and what it did."""
    done: list[Effect] = []
    machine, effect = begin(world.kind("table", fingerprint, once=True, block_rows=2))
    for number in itertools.count():
        if isinstance(effect, Stop):
            return done
        done.append(effect)
        if crash is not None and crash.at == number:
            die(world, effect, crash)
        machine, effect = machine.advance(perform(world, effect, came))
    raise AssertionError


def die(world: World, effect: Effect, crash: Crash) -> None:
    if isinstance(effect, Write):
        for index in effect.indexes[: crash.landed]:
            last = index == effect.indexes[crash.landed - 1]
            world.land(effect.plan.blocks[index], effect.mode, crash.parts if last else 2)
    elif isinstance(effect, Change | Acquire):
        perform(world, effect, incoming())
    raise Died


def perform(world: World, effect: Effect, came: Incoming) -> Reply:
    if isinstance(effect, Acquire):
        world.state = states.taken(world.state, f"owner{world.state.epoch}")
        return world.state
    if isinstance(effect, Change):
        assert effect.old == world.state
        world.state = effect.new
        return world.state
    if isinstance(effect, Survey):
        return Surveyed(came, 1000, Limits(1, 1), 10)
    if isinstance(effect, Kill):
        return 1000
    if isinstance(effect, Await | Commit):
        return None
    if isinstance(effect, Look):
        ends = {}
        for partition, floor in effect.floors:
            found = [at for (where, at), count in world.held.items() if where == partition and at >= floor and count]
            if found:
                ends[partition] = max(found) + 1
        return TargetView(tuple(ends.items()))
    if isinstance(effect, Count):
        return sum(
            count
            for (where, at), count in world.held.items()
            if any(each.partition == where and each.holds(at) for each in effect.ranges)
        )
    if isinstance(effect, Resolve):
        return Resolved(
            tuple(
                FoundBlock(index, world.found(effect.plan.blocks[index]), Totals(landed=1)) for index in effect.indexes
            )
        )
    assert isinstance(effect, Write)
    if not world.keeps:
        return tuple(BlockResult(index, Fate.TOKEN_USED_UP, why="There is a TTL.") for index in effect.indexes)
    results = []
    for index in effect.indexes:
        block = effect.plan.blocks[index]
        world.land(block, effect.mode)
        results.append(
            BlockResult(index, Fate.LANDED, Receipt(read=len(world.rows(block)), landed=len(world.rows(block))))
        )
    return tuple(results)


def cuts(partition: Partition) -> list[Range | None]:
    return [None, *(Range(partition, a, b) for a in range(END) for b in range(a + 1, END + 1))]


def crashes(world: World, came: Incoming) -> Iterator[Crash | None]:
    """Every place where a run can die: each effect, and of a write after each of its blocks."""
    yield None
    with contextlib.suppress(errors.LandonceError):
        for at, effect in enumerate(deliver(world.copy(), came)):
            blocks = len(effect.indexes) if isinstance(effect, Write) else 0
            yield from (Crash(at, landed) for landed in range(blocks + 1))
            if not world.atomic:
                yield from (Crash(at, landed, parts=1) for landed in range(1, blocks + 1))


def finish(world: World) -> None:
    """Starts where the ledger stands, as `starting_offsets` says, and brings everything in."""
    committed = world.state.committed()
    ranges = [Range(each, at, END) for each, at in committed.items() if at < END]
    if ranges or world.state.pending is not None:
        deliver(world, incoming(*ranges))
    firsts = {each: position.first for each, position in world.state.positions}
    wanted = {(each, at) for each, first in firsts.items() for at in range(first, END)}
    assert world.exact
    assert set(world.held) >= wanted, (world.state, world.held)


def batches() -> list[tuple[Range, ...]]:
    return [tuple(filter(None, each)) for each in itertools.product(cuts(P), (None, Range(Q, 0, 2))) if any(each)]


def explore(start: World, depth: int = 2) -> int:
    """All that can follow, one micro-batch after the other."""
    seen, worlds = {start.key()}, [start]
    for _ in range(depth):
        following = []
        for world, ranges in itertools.product(worlds, batches()):
            came = incoming(*ranges)
            for crash in crashes(world, came):
                later = world.copy()
                try:
                    deliver(later, came, crash)
                except Died:
                    pass
                except (errors.GapRefused, errors.RewindRefused, errors.OutcomeUnknown, errors.TargetAhead):
                    assert later.held == world.held, "refused, and written all the same"
                assert later.exact, (world.state, came, crash, later.held)
                if later.key() not in seen:
                    seen.add(later.key())
                    following.append(later)
                    finish(later.copy())
        worlds = following
    return len(seen)


@pytest.mark.uncounted
@pytest.mark.parametrize("kind", [Deduplicating, Transactional])
def test_no_cut_and_no_crash_duplicates_or_loses(kind: type[Policy]) -> None:
    assert explore(World(kind)) > 60


@pytest.mark.uncounted
def test_blocks_that_land_in_part_are_made_whole_whichever_cut_comes_next() -> None:
    assert explore(World(atomic=False)) > 60


@pytest.mark.uncounted
def test_a_part_that_is_taken_for_the_whole_is_caught() -> None:
    with pytest.raises(AssertionError):
        explore(World(atomic=False, takes_a_part_for_all=True))


@pytest.mark.uncounted
def test_a_worker_that_does_not_look_is_caught() -> None:
    with pytest.raises(AssertionError):
        explore(World(look_first=False))


@pytest.mark.uncounted
def test_a_probe_that_says_landed_too_often_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "there", lambda _self, _block: True)
    with pytest.raises(AssertionError):
        explore(World())


@pytest.mark.uncounted
def test_a_range_that_is_not_judged_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "refuse_early", lambda *_: None)
    with pytest.raises(AssertionError):
        explore(World())


# One case after the other, by name.


def at(*positions: tuple[Partition, int, int], pending: tuple[Range, ...] = (), fingerprint: str = "f") -> World:
    """A pipeline that stands there, and what is pending."""
    state = states.taken(LedgerState("p", "lineage"), "first")
    state = states.bound(state, "cluster", {"t": "id"}, {})
    placed = tuple((partition, Position(first, committed)) for partition, first, committed in positions)
    state = replace(state, positions=placed, batch=1)
    if pending:
        blocks = tuple(Block((each,), "table", number=number) for number, each in enumerate(pending))
        state = states.prepared(state, Plan(2, blocks, fingerprint, 5))
    world = World(state=state)
    for partition, first, committed in positions:
        world.held.update((partition, offset) for offset in range(first, committed))
    return world


def steps(world: World, came: Incoming, on_rewind: OnRewind = OnRewind.DROP) -> list[str]:
    taken: list[str] = []
    machine, effect = begin(world.kind("table", "f", once=True, block_rows=100, on_rewind=on_rewind))
    while not isinstance(effect, Stop):
        taken.append(effect.step.value)
        machine, effect = machine.advance(perform(world, effect, came))
    return taken


RECOVERED = ["acquire", "survey", "await", "kill", "rearm", "write", "commit", "record", "survey"]


def test_the_same_range_again_is_dropped_when_it_landed() -> None:
    world = at((P, 0, 10))
    assert steps(world, incoming(Range(P, 5, 10))) == ["acquire", "survey", "kill", "look"]
    assert world.exact
    assert len(world.held) == 10


def test_the_same_range_again_is_written_again_when_it_was_pending() -> None:
    world = at((P, 0, 5), pending=(Range(P, 5, 10),))
    before = world.state.pending
    assert before is not None
    assert steps(world, incoming(Range(P, 5, 10))) == [*RECOVERED, "kill", "look"]
    assert world.state.committed() == {P: 10}


def test_rows_that_are_never_kept_halt_and_land_under_a_token_of_their_own_once_they_are() -> None:
    world = at((P, 0, 5), pending=(Range(P, 5, 10),))
    world.keeps = False
    for generation in (3, 4):
        with pytest.raises(errors.RowsNotKept, match=f"{generation} times.* There is a TTL"):
            steps(world, incoming(Range(P, 5, 10)))
        assert world.state.pending is not None
        assert world.state.pending.blocks[0].generation == generation
    world.keeps = True
    assert steps(world, incoming(Range(P, 5, 10)))[: len(RECOVERED)] == RECOVERED
    assert world.exact
    assert len(world.held) == 10


def test_an_overlapping_range_is_written_again_and_goes_on() -> None:
    world = at((P, 0, 5), pending=(Range(P, 5, 10),))
    taken = steps(world, incoming(Range(P, 0, 12)))
    assert taken == [*RECOVERED, "kill", "look", "prepare", "write", "look", "commit", "record", "survey"]
    assert world.exact
    assert len(world.held) == 12


@pytest.mark.parametrize("landed", [True, False])
@pytest.mark.parametrize("came", [Range(P, 5, 8), Range(P, 3, 8)])
def test_a_contained_range_is_compared_where_it_comes_again(came: Range, landed: bool) -> None:
    """What does not come again of the block is compared when it does."""
    world = at((P, 0, 5), pending=(Range(P, 5, 10),))
    if landed:
        world.held.update((P, offset) for offset in range(5, 10))
    assert "resolve" not in steps(world, incoming(came))
    assert world.state.committed() == {P: 8}
    assert world.exact
    assert len(world.held) == (10 if landed else 8)
    steps(world, incoming(Range(P, 8, 10)))
    assert world.state.committed() == {P: 10}
    assert world.exact
    assert len(world.held) == 10


def test_a_row_that_another_plan_wrote_is_no_proof_of_a_block() -> None:
    """The ledger was restored: its plan is pending again, and of its offsets one was written by a plan that it has forgotten."""
    for came in (Range(P, 5, 6), Range(P, 6, 7)):
        world = at((P, 0, 5), pending=(Range(P, 5, 7),))
        world.held[P, 5] += 1
        steps(world, incoming(came))
        if world.state.committed()[P] < 7:
            steps(world, incoming(Range(P, world.state.committed()[P], 7)))
        assert world.exact
        assert len(world.held) == 7, f"{came}: a record is lost"


@pytest.mark.parametrize("came", [Range(P, 7, 12), Range(P, 10, 12)], ids=["crossing", "next"])
def test_what_comes_behind_a_pending_block_goes_on_if_that_landed(came: Range) -> None:
    world = at((P, 0, 5), pending=(Range(P, 5, 10),))
    absent = world.copy()
    world.held.update((P, offset) for offset in range(5, 10))
    steps(world, incoming(came))
    assert world.exact
    assert len(world.held) == 12
    with pytest.raises(errors.GapRefused, match=rf"the next offset is 5, and the source continues at {came.first}"):
        steps(absent, incoming(came))
    assert absent.state.pending is not None, "the plan is still there for the query that brings it"


def test_a_gap_is_refused_before_another_partition_is_written() -> None:
    world = at((P, 0, 5), (Q, 0, 5))
    with pytest.raises(errors.GapRefused):
        steps(world, incoming(Range(P, 5, 8), Range(Q, 6, 8)))
    assert len(world.held) == 10


def test_a_rewind_is_dropped_or_refused() -> None:
    world = at((P, 2, 9))
    assert steps(world, incoming(Range(P, 2, 5))) == ["acquire", "survey", "kill", "look"]
    with pytest.raises(errors.RewindRefused, match="was already delivered"):
        steps(world, incoming(Range(P, 2, 5)), on_rewind=OnRewind.ERROR)
    assert steps(world, incoming(Range(P, 5, 9)), on_rewind=OnRewind.ERROR), "a replay of the last range is none"


def test_a_rewind_is_refused_while_a_plan_is_pending_too() -> None:
    world = at((P, 0, 5), pending=(Range(P, 5, 10),))
    with pytest.raises(errors.RewindRefused, match="was already delivered"):
        steps(world, incoming(Range(P, 0, 4)), on_rewind=OnRewind.ERROR)
    assert world.state.pending is not None
    steps(world, incoming(Range(P, 0, 4)))
    assert world.state.committed() == {P: 5}


def test_partitions_that_bring_nothing_yet_are_known_from_the_first_batch_on() -> None:
    """So that a query which comes back behind their beginning skips nothing."""
    world = World()
    steps(world, replace(incoming(Range(P, 0, 5)), begun=(Begun(P, 0, 0), Begun(Q, 3, 3))))
    assert world.state.committed() == {P: 5, Q: 3}
    with pytest.raises(errors.GapRefused, match="the next offset is 3, and the source continues at 4"):
        steps(world, incoming(Range(Q, 4, 9)))


@pytest.mark.parametrize("first", [2, 4], ids=["records before", "one record before"])
def test_a_ledger_that_knows_nothing_of_a_query_that_is_under_way_is_refused(first: int) -> None:
    came = replace(incoming(Range(P, 5, 10)), begun=(Begun(P, first, 5),))
    with pytest.raises(errors.GapRefused, match=r"t\[0\]: the ledger has no position for it"):
        steps(World(), came)
    steps(World(), replace(came, begun=(Begun(P, 5, 5),)))


def test_a_ledger_that_was_lost_is_noticed_by_rows_below_the_beginning_of_the_query() -> None:
    """What lies between them may never have landed. One that knows of a batch has no need to look there."""
    came = replace(incoming(Range(P, 5, 10)), begun=(Begun(P, 5, 5),))
    lost = World()
    lost.held.update((P, at) for at in range(3))
    with pytest.raises(errors.TargetAhead, match=r"Kafka deleted \[3, 5\)"):
        steps(lost, came)
    assert sum(lost.held.values()) == 3
    known = at((P, 0, 5))
    known.held.update((P, offset) for offset in range(3))
    steps(known, incoming(Range(P, 5, 10)))
    assert known.state.committed() == {P: 10}


def test_what_lies_before_the_beginning_is_refused() -> None:
    with pytest.raises(errors.RewindRefused, match="the first one of this pipeline"):
        steps(at((P, 2, 9)), incoming(Range(P, 1, 12)))
    with pytest.raises(errors.RewindRefused, match="the first one of this pipeline"):
        steps(at((P, 2, 2)), incoming(Range(P, 1, 12)))


def test_another_cluster_or_topic_is_refused() -> None:
    world = at((P, 0, 5))
    with pytest.raises(errors.ClusterChanged):
        steps(world, Incoming((Range(P, 5, 8),), "other", (("t", "id"),)))
    with pytest.raises(errors.TopicRecreated):
        steps(world, Incoming((Range(P, 5, 8),), "cluster", (("t", "new"),)))


@pytest.mark.parametrize("landed", [True, False])
def test_a_changed_query_does_not_write_an_old_plan_again_but_asks_what_became_of_it(landed: bool) -> None:
    world = at((P, 0, 5), pending=(Range(P, 5, 10),), fingerprint="old")
    if landed:
        world.held.update((P, offset) for offset in range(5, 10))
    taken = steps(world, incoming(Range(P, 5, 12)))
    assert taken[:6] == ["acquire", "survey", "await", "kill", "resolve", "rearm"]
    assert world.exact
    assert len(world.held) == 12


def test_a_plan_for_another_table_is_refused() -> None:
    world = at((P, 0, 5), pending=(Range(P, 5, 10),))
    pending = world.state.pending
    assert pending is not None
    blocks = tuple(replace(each, table="elsewhere") for each in pending.blocks)
    world.state = replace(world.state, pending=replace(pending, blocks=blocks))
    with pytest.raises(errors.PlanChanged, match="a plan for elsewhere is pending"):
        steps(world, incoming(Range(P, 5, 12)))


def test_a_plan_of_landonce_run_is_refused() -> None:
    world = at((P, 0, 5), pending=(Range(P, 5, 8), Range(P, 8, 10)))
    with pytest.raises(errors.PlanChanged, match="landonce run"):
        steps(world, incoming(Range(P, 5, 12)))


def test_a_lost_ledger_compares_what_the_table_holds() -> None:
    world = World()
    world.held.update((P, offset) for offset in range(6))
    machine, effect = begin(Deduplicating("table", "f", once=True, block_rows=100))
    kinds = []
    while not isinstance(effect, Stop):
        if isinstance(effect, Write):
            kinds.append((effect.plan.kind, effect.mode, str(effect.plan.blocks[0])))
        machine, effect = machine.advance(perform(world, effect, incoming(Range(P, 0, 9))))
    assert kinds == [
        (Kind.RECONCILE, Mode.RESOLVE, "t[0] [0, 6)"),
        (Kind.DELIVER, Mode.FIRST, "t[0] [6, 9)"),
    ]
    assert world.exact
    assert len(world.held) == 9


def test_a_table_that_is_ahead_of_its_own_ledger_is_refused() -> None:
    world = World(Transactional)
    world.held[P, 3] = 1
    with pytest.raises(errors.TargetAhead, match="the ledger is at offset 0"):
        deliver(world, incoming(Range(P, 0, 9)))


def test_a_large_batch_is_written_in_several_plans() -> None:
    world = World()
    deliver(world, incoming(Range(P, 0, 7), Range(Q, 0, 2)))
    assert world.state.batch == 4
    assert world.exact
    assert len(world.held) == 9


def test_another_writer_of_the_same_records_is_noticed_before_a_plan_and_after_a_write() -> None:
    """A query with another ledger: before a micro-batch its rows are above the position, or they come while it is written."""
    world = World()
    machine, effect = begin(Deduplicating("table", "f", once=True, block_rows=2))
    while not isinstance(effect, Stop):
        machine, effect = machine.advance(perform(world, effect, incoming(Range(P, 0, 1))))

    world.held[P, 1] += 1
    with pytest.raises(errors.AnotherWriter, match="1 rows above the position"):
        go_on(world, machine, Range(P, 1, 2))

    world.held[P, 1] -= 1
    with pytest.raises(errors.AnotherWriter, match=r"holds 2 rows of batch .*, and this driver wrote 1"):
        go_on(world, machine, Range(P, 1, 2), meanwhile=1)


def go_on(world: World, before: Machine, came: Range, meanwhile: int = 0) -> None:
    """The next micro-batch of the same run. `meanwhile`: rows that somebody else adds once it is planned."""
    machine, effect = begin(before.policy, before)
    while not isinstance(effect, Stop):
        if isinstance(effect, Write):
            world.held[came.partition, came.first] += meanwhile
        machine, effect = machine.advance(perform(world, effect, incoming(came)))
