"""Moving the position by an operator's word: what is decided, and that no kill in between loses or doubles a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from landonce import errors
from landonce.ledger.memory import MemoryLedger
from landonce.protocol.blocks import Block, Kind, Plan
from landonce.protocol.ledger import LedgerState, Note, Position, Totals, taken
from landonce.protocol.operate import (
    Ability,
    Seeking,
    counted_in,
    counted_ranges,
    kept_notes,
    kept_ranges,
    rebase,
    resume,
    seek,
    skipped_ranges,
    stay,
    uncounted,
)
from landonce.protocol.ranges import Partition, Range, without
from landonce.protocol.seek_marker import interrupted
from landonce.protocol.source import Extent, SourceView
from landonce.protocol.target import TargetView

P, Q = Partition("t", 0), Partition("t", 1)
VIEW = SourceView("c", (("t", "id"),), ((P, Extent(0, 30)), (Q, Extent(5, 9))))
STATE = LedgerState(
    "p",
    "l",
    cluster_id="c",
    topic_ids=(("t", "id"),),
    positions=((P, Position(3, 20)), (Q, Position(5, 9))),
    batch=4,
    totals=Totals(20, 3, 1),
)
ALL = Ability(compares=True)
REMOVES, NEITHER = Ability(), Ability(no_removal="it cannot.", instead="do something else")


def test_back_with_rows_removed_is_marked_until_the_position_has_moved() -> None:
    found = seek(STATE, VIEW, {P: 1}, "op", REMOVES, remove=True)
    assert found.marked is not None
    assert found.marked.committed() == STATE.committed()
    assert found.marked.epoch == STATE.epoch + 1
    assert found.marked.pending is not None
    assert found.marked.pending.kind is Kind.SEEK
    assert found.removed == (Range(P, 1, 30),), "also what a restored ledger does not know"
    new = found.decision.new
    assert dict(new.positions) == {P: Position(1, 1), Q: Position(5, 9)}
    assert (new.pending, new.version, new.batch) == (None, found.marked.version + 1, 5)
    assert found.decision.does == ("Delivered again: t[0] [1, 20).", "Removed: t[0] [1, 30).")
    assert "At most 19 records are delivered again." in found.decision.costs
    with pytest.raises(errors.PlanPending, match=r"interrupted while it removed rows \(t\[0\] to 1\)") as caught:
        raise interrupted(found.marked.pending)
    assert "--resume" in caught.value.command
    for to in ({P: 2}, {Q: 6}):
        with pytest.raises(errors.PlanPending, match="was interrupted"):
            seek(found.marked, VIEW, to, "op", REMOVES, remove=True)


def test_what_was_interrupted_is_finished_and_not_decided_again() -> None:
    found = uncounted(seek(STATE, VIEW, {P: 1, Q: 9}, "op", REMOVES, remove=True), Totals(15, 2, 1))
    assert found.marked is not None
    again = resume(found.marked, "op2")
    assert again.marked == replace(taken(found.marked, "op2"))
    assert (again.removed, again.decision.does) == (found.removed, found.decision.does)
    assert again.decision.new.positions == found.decision.new.positions
    assert again.decision.new.totals == found.decision.new.totals == Totals(5, 1, 0)
    with pytest.raises(ValueError, match="no seek is pending"):
        resume(STATE, "op")


def test_back_with_rows_kept_needs_a_target_that_is_compared() -> None:
    found = uncounted(seek(STATE, VIEW, {P: 1}, "op", ALL, remove=False), Totals(15, 9))
    assert found.marked is None
    assert found.decision.new.totals == Totals(5, 0, 1)
    assert "recognised" in found.decision.costs[0]
    for able in (REMOVES, NEITHER):
        with pytest.raises(errors.SeekRefused, match="would be in the target twice"):
            seek(STATE, VIEW, {P: 1}, "op", able, remove=False)
    with pytest.raises(errors.SeekRefused, match=r"it cannot\."):
        seek(STATE, VIEW, {P: 1}, "op", NEITHER, remove=True)
    with pytest.raises(errors.SeekRefused, match="changes rows by a key"):
        seek(STATE, VIEW, {P: 1}, "op", replace(ALL, keyed=True), remove=True)
    versioned = replace(ALL, keyed=True, versioned=True)
    with pytest.raises(errors.SeekRefused, match="changes rows by a key"):
        seek(STATE, VIEW, {P: 1}, "op", versioned, remove=True)
    with pytest.raises(errors.SeekRefused, match="the totals would be wrong"):
        seek(replace(STATE, totals=Totals(5, 0, 1)), VIEW, {P: 1}, "op", versioned, remove=False)
    unfiltered = replace(STATE, totals=Totals(20, 3))
    assert not seek(unfiltered, VIEW, {P: 1}, "op", versioned, remove=False).removed


def test_a_skip_is_taken_back_where_rows_could_not_be_told_apart() -> None:
    """None are there."""
    for able in (REMOVES, NEITHER, replace(NEITHER, keyed=True)):
        found = seek(STATE, VIEW, {P: 15}, "op", able, remove=False, before=[Range(P, 12, 17), Range(P, 17, 20)])
        assert found.decision.does == ("Delivered again: t[0] [15, 20).",)
        assert found.decision.costs == ("At most 5 records are delivered again.",)
        assert found.decision.new.committed() == {P: 15, Q: 9}
        with pytest.raises(errors.SeekRefused):
            seek(STATE, VIEW, {P: 15}, "op", able, remove=False, before=[Range(P, 12, 19)])


def test_forwards_skips_and_says_so() -> None:
    found = seek(STATE, VIEW, {P: 25, Q: 9}, "op", NEITHER, remove=False)
    assert found.decision.does == ("Skipped: t[0] [20, 25).",)
    assert found.decision.costs == ("At most 5 records are skipped and will never be delivered.",)
    assert found.decision.lost == (Range(P, 20, 25),)
    assert found.decision.new.committed() == {P: 25, Q: 9}
    with pytest.raises(errors.NothingToDo, match="there already"):
        seek(STATE, VIEW, {P: 20}, "op", NEITHER, remove=False)
    found = seek(STATE, VIEW, {P: 20, Q: 9}, "op", REMOVES, remove=True)
    assert found.removed == (Range(P, 20, 30),)
    assert found.decision.does == ("The position stays where it is.", "Removed: t[0] [20, 30).")
    assert resume(found.marked or STATE, "o").decision.does == found.decision.does
    assert seek(STATE, VIEW, {P: 30}, "op", REMOVES, remove=True).marked is None, "nothing can be there"


class Moves:
    """One position that operators move, and the journal that they leave. All records but those that were skipped have rows."""

    def __init__(self, state: LedgerState = STATE) -> None:
        self.state, self.journal = state, list[Note]()

    def to(self, offset: int, *, remove: bool = False, partition: Partition = P) -> Seeking:
        before, kept = skipped_ranges(self.journal), kept_ranges(self.journal)
        found = seek(self.state, VIEW, {partition: offset}, "op", ALL, remove=remove, before=before, kept=kept)
        self.journal.append(found.decision.note())
        self.state = found.decision.new
        return found

    def run(self, offset: int) -> None:
        self.state = replace(self.state, positions=((P, Position(0, offset)), self.state.positions[1]))


def test_forwards_over_rows_that_were_kept_gives_them_back() -> None:
    """They are there, so they are not skipped. They count again, and an audit expects them."""
    moves = Moves()
    assert moves.to(3).decision.does[1:] == ("Stays in the target, but for what was filtered: t[0] [3, 20).",)
    found = moves.to(24)
    assert found.decision.does == ("Skipped: t[0] [20, 24).", "Counted again: t[0] [3, 20).")
    assert (found.regained, found.filtered, found.decision.lost) == ((Range(P, 3, 20),), True, (Range(P, 20, 24),))
    assert "17 records are counted again" in found.decision.costs[1]
    assert uncounted(found, Totals(-14, -2, -1)).decision.new.totals == STATE.totals.plus(Totals(14, 2, 1))
    assert (skipped_ranges(moves.journal), kept_ranges(moves.journal)) == ((Range(P, 20, 24),), {})
    with pytest.raises(errors.SeekRefused, match="twice"):
        seek(moves.state, VIEW, {P: 3}, "op", REMOVES, remove=False, before=skipped_ranges(moves.journal))


def test_only_what_is_there_is_given_back() -> None:
    """Not what a run landed since, what was skipped before, what lies before the first offset ever covered, or what was removed."""
    moves = Moves(replace(STATE, totals=Totals(20, 3)))
    moves.to(24)
    moves.to(0)
    assert kept_ranges(moves.journal) == {Range(P, 3, 20): False}
    moves.run(8)
    found = moves.to(22)
    assert (found.regained, found.filtered) == ((Range(P, 8, 20),), False)
    assert skipped_ranges(moves.journal) == (Range(P, 20, 22),)
    moves.to(6)
    moves.to(10, remove=True)
    assert moves.to(14).decision.does == ("Skipped: t[0] [10, 14).",), "its rows were removed"
    moves = Moves()
    moves.to(4)
    moves.to(4, remove=True)
    assert moves.to(20).regained == ()
    moves = Moves()
    moves.to(5, partition=Q)
    assert kept_ranges(moves.journal) == {Range(Q, 5, 9): True}
    assert moves.to(25).filtered is False, "another partition"


def test_what_was_interrupted_gives_back_the_same() -> None:
    moves = Moves()
    moves.to(4)
    kept = kept_ranges(moves.journal)
    found = seek(moves.state, VIEW, {P: 12, Q: 6}, "op", ALL, remove=True, kept=kept)
    assert found.regained == (Range(P, 4, 12),)
    assert found.removed == (Range(P, 12, 30), Range(Q, 6, 9))
    again = resume(uncounted(found, Totals(-6, 1)).marked or STATE, "op2", kept)
    assert again.decision.does == found.decision.does
    assert again.decision.new.totals == moves.state.totals.plus(Totals(6, -1))


def test_what_cannot_be_meant() -> None:
    for to, what in (
        ({P: 31}, r"Kafka has \[0, 30\), and offset 31"),
        ({Q: 4}, r"Kafka has \[5, 9\), and offset 4"),
        ({Partition("u", 0): 1}, r"no position in u\[0\]"),
    ):
        with pytest.raises(errors.SeekRefused, match=what):
            seek(STATE, VIEW, to, "op", ALL, remove=False)
    with pytest.raises(errors.ClusterChanged):
        seek(STATE, replace(VIEW, cluster_id="d"), {P: 1}, "op", ALL, remove=False)
    with pytest.raises(errors.TopicRecreated):
        seek(STATE, replace(VIEW, topic_ids=(("t", "new"),)), {P: 1}, "op", ALL, remove=False)
    planned = replace(STATE, pending=Plan(5, (Block((Range(P, 20, 25),), "t"),), "f", 0))
    with pytest.raises(errors.PlanPending, match="batch 5 is pending"):
        seek(planned, VIEW, {P: 1}, "op", ALL, remove=False)


def test_a_table_that_was_rolled_back_stays() -> None:
    back = replace(STATE, positions=((P, Position(3, 8)), (Q, Position(5, 9))))
    found = stay(back, STATE, "op")
    assert found.new.committed() == STATE.committed()
    assert found.does == ("The table stays as the rollback left it.", "Skipped: t[0] [8, 20).")
    with pytest.raises(errors.NothingToDo, match="was not rolled back"):
        stay(STATE, STATE, "op")


def test_an_audit_knows_what_was_skipped_and_not_asked_for_since() -> None:
    def note(action: str, *lines: str) -> Note:
        return Note("now", action, " ".join(lines))

    skip, other = (
        note("seek", "Skipped: t[0] [5, 20).", "Skipped: t-x.y[1] [0, 3)."),
        note("fill", "Skipped: t[0] [1, 2)."),
    )
    assert skipped_ranges([skip, other]) == (Range(P, 5, 20), Range(Partition("t-x.y", 1), 0, 3))
    back = note("seek", "Delivered again: t[0] [8, 12).", "Skipped: t[1] [1, 2).")
    assert skipped_ranges([skip, back])[:-1] == (Range(P, 5, 8), Range(P, 12, 20), Range(Q, 1, 2))
    assert skipped_ranges([skip, note("seek", "Delivered again: t[0] [0, 20).")]) == (
        Range(Partition("t-x.y", 1), 0, 3),
    )


def test_a_rebase_forgets_what_was_skipped_of_the_topics_that_it_names() -> None:
    """The words are those of the decisions themselves."""
    names = [Partition("a.b", 0), Partition("a.b", 1), Partition("c", 0)]
    state = replace(
        STATE,
        topic_ids=(("a.b", "1"), ("c", "2")),
        positions=tuple((each, Position(0, 20)) for each in names),
    )
    skip = Note("now", "seek", " ".join(f"Skipped: {each} [5, 9)." for each in names))
    for changed, ends, left in (
        ({"a.b": "other"}, (30, 30, 30), (False, False, True)),
        ({"c": "other"}, (30, 30, 30), (True, True, False)),
        ({}, (30, 10, 30), (True, False, True)),
        ({}, (30, None, 30), (True, False, True)),
        ({"a.b": "other"}, (30, 30, 10), (False, False, False)),
    ):
        there = [(each, Extent(0, end)) for each, end in zip(names, ends, strict=True) if end is not None]
        view = SourceView("c", tuple({"a.b": "1", "c": "2", **changed}.items()), tuple(there))
        note = rebase(state, view, TargetView(()), "op").note()
        assert skipped_ranges([skip, note]) == tuple(
            Range(each, 5, 9) for each, stays in zip(names, left, strict=True) if stays
        )
        assert len(skipped_ranges([skip, note, skip])) == 3
    moved = rebase(
        state,
        replace(
            view, cluster_id="d", topic_ids=state.topic_ids, extents=tuple((each, Extent(0, 30)) for each in names)
        ),
        TargetView(()),
        "op",
    )
    assert len(skipped_ranges([skip, moved.note()])) == 3, "the same topics, in a cluster that has another id"


WORDS = (
    "Skipped",
    "Delivered again",
    "Counted again",
    "Removed",
    "Stays in the target",
    "Stays in the target, but for what was filtered",
)


@given(
    st.lists(st.tuples(st.sampled_from(WORDS), st.integers(0, 9), st.integers(1, 5)), max_size=12),
    st.integers(1, 4),
)
def test_whatever_notes_are_dropped_the_same_is_skipped_and_kept(moves: list[tuple[str, int, int]], most: int) -> None:
    notes = [Note(f"t{at}", "seek", f"{kind}: {Range(P, at, at + span)}.") for kind, at, span in moves]
    kept: tuple[Note, ...] = ()
    for each in notes:
        kept = kept_notes((*kept, each), most)
    assert {at for each in skipped_ranges(kept) for at in range(each.first, each.end)} == {
        at for each in skipped_ranges(notes) for at in range(each.first, each.end)
    }
    assert {(at, some) for each, some in kept_ranges(kept).items() for at in range(each.first, each.end)} == {
        (at, some) for each, some in kept_ranges(notes).items() for at in range(each.first, each.end)
    }
    assert kept[-most:] == tuple(notes[-most:])
    assert len(kept) <= most + 1


def test_a_range_without_others() -> None:
    whole = Range(P, 3, 9)
    assert without(whole, []) == without(whole, [Range(Q, 0, 20), Range(P, 0, 3), Range(P, 9, 12)]) == (whole,)
    assert without(whole, [Range(P, 7, 8), Range(P, 4, 5)]) == (Range(P, 3, 4), Range(P, 5, 7), Range(P, 8, 9))
    assert without(whole, [Range(P, 0, 5), Range(P, 5, 20)]) == ()


def test_totals_of_what_is_delivered_again() -> None:
    """What was skipped, or lies before the first offset ever covered, was never counted."""
    found = seek(STATE, VIEW, {P: 1, Q: 7}, "op", ALL, remove=False)
    assert counted_ranges(STATE, found.decision.new) == (Range(P, 3, 20), Range(Q, 7, 9))
    assert counted_ranges(STATE, seek(STATE, VIEW, {P: 25}, "op", ALL, remove=False).decision.new) == ()
    some = Totals(20, 3, 1)
    assert counted_in(some, 10, 6, 2) == Totals(6, 2, 2)
    assert counted_in(some, 10, 9, 2) == Totals(8, 2, 0), "rows of records that Kafka does not hold any more"
    assert counted_in(replace(some, filtered=0), 10, 6, 2) == Totals(8, 2, 0), "two rows were removed by hand"
    assert counted_in(some, 3, 6, 4) == Totals(0, 3, 0)


# Every interleaving of one command, one kill and drivers that start in between. A target that does not compare: what is written again is
# there twice, what is missing is lost.


@dataclass
class World:
    """Ten records of one partition, and what became of them."""

    ledger: MemoryLedger = field(default_factory=lambda: MemoryLedger("p"))
    rows: list[int] = field(default_factory=lambda: list(range(3, 20)))

    def __post_init__(self) -> None:
        self.ledger.create(STATE)

    @property
    def state(self) -> LedgerState:
        found = self.ledger.load()
        assert found is not None
        return found

    def drive(self, held: LedgerState | None = None) -> None:
        """A driver: takes the pipeline, unless it has it, and delivers what is there. `held`: what one that runs believes."""
        state = held
        if state is None:
            state = self.ledger.change(self.state, taken(self.state, "driver"))
            if state.pending is not None:
                raise interrupted(state.pending)
        first = dict(state.positions)[P].committed
        moved = replace(state, version=state.version + 1, positions=((P, Position(3, 30)), state.positions[1]))
        self.ledger.change(state, moved)
        self.rows += range(first, 30)


Steps = Callable[[World, LedgerState, Seeking], Iterator[None]]


def carried_out(world: World, state: LedgerState, found: Seeking) -> Iterator[None]:
    """As `Operations.carry_out` does it; it may be killed at each `yield`."""
    assert found.marked is not None
    yield
    world.ledger.change(state, found.marked)
    yield
    yield from _removed(world, found)
    world.ledger.change(found.marked, found.decision.new, found.decision.note())
    yield


def _removed(world: World, found: Seeking) -> Iterator[None]:
    for half in (range(3, 15), range(15, 30)):
        gone = {each for each in half if found.removed[0].holds(each)}
        world.rows = [each for each in world.rows if each not in gone]
        yield


def without_marker(world: World, state: LedgerState, found: Seeking) -> Iterator[None]:
    """Planted: rows go first, and nothing says so."""
    yield
    yield from _removed(world, found)
    world.ledger.change(world.state, replace(found.decision.new, version=world.state.version + 1))
    yield


def moved_first(world: World, state: LedgerState, found: Seeking) -> Iterator[None]:
    """Planted: the position moves before the rows go."""
    yield
    world.ledger.change(state, found.decision.new)
    yield
    yield from _removed(world, found)


def unfenced(world: World, state: LedgerState, found: Seeking) -> Iterator[None]:
    """Planted: a driver that runs keeps its epoch, so that the position moves under it."""
    yield
    yield from _removed(world, found)
    same = replace(found.decision.new, epoch=state.epoch, owner=state.owner, version=state.version)
    world.ledger._store.states["p"] = same
    yield


def faults(steps: Steps) -> set[str]:
    """What goes wrong, over all places of a kill, with and without drivers in between."""
    wrong = set()
    places = sum(1 for _ in steps(*_begun()))
    for killed in range(places + 1):
        for driver in ("none", "starts", "runs"):
            world, state, found = _begun()
            for place, _ in enumerate(steps(world, state, found)):
                if place == killed:
                    break
            if driver != "none":
                with suppress(errors.Fenced, errors.PlanPending):
                    world.drive(state if driver == "runs" else None)
            if world.state.pending is not None:
                again = resume(world.state, "op2")
                for _ in carried_out(world, world.state, again):
                    pass
            try:
                world.drive()
            except errors.Fenced:
                wrong.add("fenced by nobody")
            wrong |= {"lost"} if set(range(3, 30)) - set(world.rows) else set()
            wrong |= {"twice"} if len(world.rows) > len(set(world.rows)) else set()
    return wrong


def _begun() -> tuple[World, LedgerState, Seeking]:
    world = World()
    return world, world.state, seek(world.state, VIEW, {P: 3}, "op", REMOVES, remove=True)


def test_no_kill_loses_or_doubles_a_row() -> None:
    assert faults(carried_out) == set()


@pytest.mark.parametrize(("steps", "found"), [(without_marker, "lost"), (moved_first, "twice"), (unfenced, "lost")])
def test_each_planted_bug_is_found(steps: Steps, found: str) -> None:
    assert found in faults(steps)
