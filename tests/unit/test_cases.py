"""The table for ranges from outside, over every relation of two ranges, against an oracle that follows each offset.

The oracle knows nothing of the table. It knows what the target may hold, tries every set of offsets that could be
written, and says whether any choice is exact in every world that the ledger cannot tell apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import pytest

from landonce import errors
from landonce.protocol import cases
from landonce.protocol import ledger as states
from landonce.protocol.blocks import Block, Plan
from landonce.protocol.cases import (
    Last,
    OnRewind,
    Phase,
    RangeCase,
    RangeDecision,
    TopicOrigin,
    classify,
    decide,
    resolved,
)
from landonce.protocol.ledger import LedgerState, Position, Totals
from landonce.protocol.match_ranges import Incoming, again, follow, refuse_early
from landonce.protocol.ranges import Partition, Range

OFFSETS = 6
PARTITION = Partition("t", 0)
ORIGIN = TopicOrigin("cluster", "id")


@dataclass(frozen=True)
class Situation:
    """An incoming `[a, b)` against the last `[x, y)`. `landed` is the truth, which only a probe can tell."""

    a: int
    b: int
    x: int
    y: int
    f: int
    phase: Phase
    landed: bool
    can_probe: bool

    @property
    def incoming(self) -> Range:
        return Range(PARTITION, self.a, self.b)

    @property
    def last(self) -> Last:
        return Last(Range(PARTITION, self.x, self.y), self.phase, self.f, ORIGIN)


def ranges() -> Iterator[tuple[int, int]]:
    return ((first, end) for first in range(OFFSETS) for end in range(first + 1, OFFSETS + 1))


def situations() -> Iterator[Situation]:
    knowledge = ((Phase.AFTER, True, True), *product((Phase.BEFORE,), (True, False), (True, False)))
    for (a, b), (x, y) in product(ranges(), ranges()):
        for f in range(x + 1):
            for phase, landed, can_probe in knowledge:
                yield Situation(a, b, x, y, f, phase, landed, can_probe)


def bits(first: int, end: int) -> int:
    return sum(1 << offset for offset in range(first, end))


# ── the oracle ──────────────────────────────────────────────────────────────────────────────────────────────────────


@cache
def decidable(situation: Situation) -> bool:
    """Whether any choice of offsets to write, and of writing `[x, y)` again, is exact in every world that may be."""
    return any(
        all(exact(present, written, again, situation) for present in possible(situation))
        for again in (False, True)
        for written in subsets(situation)
        if not again or (situation.a <= situation.x and situation.y <= situation.b)
    )


def possible(situation: Situation) -> Iterator[int]:
    """What the target may hold: before `f` anything, up to `x` everything, and of `[x, y)` all or nothing."""
    known = situation.phase is Phase.AFTER or situation.can_probe
    for older in range(1 << situation.f):
        for landed in (situation.landed,) if known else (True, False):
            last = bits(situation.x, situation.y) if landed else 0
            yield older | bits(situation.f, situation.x) | last


def subsets(situation: Situation) -> Iterator[int]:
    for choice in range(1 << (situation.b - situation.a)):
        yield choice << situation.a


def exact(present: int, written: int, again: bool, situation: Situation) -> bool:
    """Nothing twice, and everything that this range and the ones before it hold is there."""
    if again:
        present |= bits(situation.x, situation.y)
    required = bits(min(situation.a, situation.f), situation.b) & ~bits(0, min(situation.a, situation.f))
    return not present & written and not required & ~(present | written)


# ── the target ──────────────────────────────────────────────────────────────────────────────────────────────────────

Decide = Callable[..., RangeDecision]


def carry_out(situation: Situation, existing: int, decide: Decide, resolved: Decide) -> list[int]:
    """Does what was decided, and gives back how often each offset is in the target."""
    rows = bits(situation.f, situation.x) | (bits(situation.x, situation.y) if situation.landed else 0)
    counts = [int(bool(rows & existing & 1 << offset)) for offset in range(OFFSETS)]
    tokens = {(situation.x, situation.y)} if situation.landed else set()
    for part in parts_to_write(situation, decide, resolved):
        assert situation.a <= part.first, "what is written has to be in the range that came"
        assert part.end <= situation.b, "what is written has to be in the range that came"
        if (part.first, part.end) not in tokens:
            tokens.add((part.first, part.end))
            for offset in range(part.first, part.end):
                counts[offset] += existing >> offset & 1
    return counts


def parts_to_write(situation: Situation, decide: Decide, resolved: Decide) -> list[Range]:
    decision = decide(situation.incoming, situation.last, ORIGIN, can_probe=situation.can_probe)
    if decision.resolve is not None:
        assert situation.can_probe
        assert decision.resolve == situation.last.range
        decision = resolved(situation.incoming, situation.last, landed=situation.landed)
    parts = [part for part in (decision.drop, decision.again, decision.new) if part is not None]
    assert [part.first for part in parts] == [situation.a, *(part.end for part in parts[:-1])], "parts leave no gap"
    assert parts[-1].end == situation.b
    return [part for part in (decision.again, decision.new) if part is not None]


def refusal(situation: Situation, decide: Decide, resolved: Decide) -> errors.Halt | None:
    try:
        parts_to_write(situation, decide, resolved)
    except errors.Halt as error:
        return error
    return None


def judge(decide: Decide = decide, resolved: Decide = resolved) -> int:
    """Every situation and every set of offsets that exist: exact, or refused where the oracle says that it must be."""
    judged = 0
    for situation in situations():
        refused = refusal(situation, decide, resolved)
        assert (refused is None) >= decidable(situation), f"refused without need: {situation}: {refused}"
        assert (refused is None) <= decidable(situation), f"guessed: {situation}"
        if refused is not None:
            judged += 1
            continue
        required = bits(situation.f, situation.b)
        for existing in range(1 << OFFSETS):
            counts = carry_out(situation, existing, decide, resolved)
            assert max(counts) <= 1, f"twice: {situation}, existing {existing:06b}: {counts}"
            there = sum(1 << offset for offset, count in enumerate(counts) if count)
            assert not required & existing & ~there, f"lost: {situation}, existing {existing:06b}: {counts}"
            judged += 1
    return judged


@pytest.mark.uncounted
def test_every_offset_has_one_fate_in_every_situation() -> None:
    assert judge() > 100_000


def written_by_a_query(situation: Situation) -> list[Range] | type[errors.Halt]:
    """What the machine writes of the range, from what the ledger keeps: of a recorded plan the position alone."""
    incoming = Incoming((situation.incoming,), "cluster", (("t", "id"),))
    plan = Plan(1, (Block((situation.last.range,), "table"),), "same", 0)
    pending = situation.phase is Phase.BEFORE
    position = Position(situation.f, situation.x if pending else situation.y)
    state = LedgerState(
        "p", "l", 1, "o", 1, "cluster", (("t", "id"),), ((PARTITION, position),), plan if pending else None
    )
    parts: list[Range] = []
    try:
        refuse_early(state, incoming, OnRewind.DROP)
        if pending and again(state, plan, incoming, "same", OnRewind.DROP):
            parts, state = [situation.last.range], states.recorded(state, Totals())
        elif pending:
            follow(state, plan.blocks[0], incoming, landed=situation.landed)
            state = states.resolved(state, {0: Totals()} if situation.landed else {}, None)
    except errors.Halt as error:
        return type(error)
    return [*parts, *incoming.undelivered(state)]


def test_a_query_writes_what_the_table_says() -> None:
    """The table is judged above. Here the code that a query runs is held against it."""
    judged = 0
    for situation in situations():
        if situation.can_probe:
            refused = refusal(situation, decide, resolved)
            expected = type(refused) if refused is not None else parts_to_write(situation, decide, resolved)
            assert written_by_a_query(situation) == expected, situation
            judged += 1
    assert judged == 3_528


def test_the_first_range_is_new_wherever_it_begins() -> None:
    for first, end in ranges():
        assert decide(at(first, end), None, ORIGIN) == RangeDecision(RangeCase.FIRST, new=at(first, end))


# ── controls: a wrong table is seen to be wrong ─────────────────────────────────────────────────────────────────────


def wrong(case: RangeCase, phase: Phase, mistake: Callable[[Range, Last], RangeDecision]) -> Decide:
    """The table with one wrong entry."""

    def mistaken(incoming: Range, last: Last, origin: TopicOrigin, **options: bool) -> RangeDecision:
        if incoming.first >= last.first and classify(incoming, last) is case and last.phase is phase:
            return mistake(incoming, last)
        return decide(incoming, last, origin, **options)

    return mistaken


def everything(incoming: Range, last: Last) -> RangeDecision:
    return RangeDecision(RangeCase.NEXT, new=incoming)


def nothing(incoming: Range, last: Last) -> RangeDecision:
    return RangeDecision(RangeCase.SAME, drop=incoming)


def trusting(incoming: Range, last: Last) -> RangeDecision:
    return decide(incoming, replace(last, phase=Phase.AFTER), ORIGIN)


MISTAKES = {
    "contained, AFTER: written as new": wrong(RangeCase.CONTAINED, Phase.AFTER, everything),
    "same, BEFORE: dropped": wrong(RangeCase.SAME, Phase.BEFORE, nothing),
    "overlapping, AFTER: written whole": wrong(RangeCase.OVERLAPPING, Phase.AFTER, everything),
    "overlapping, BEFORE: one block under a new token": wrong(RangeCase.OVERLAPPING, Phase.BEFORE, everything),
    "overlapping, BEFORE: taken for landed": wrong(RangeCase.OVERLAPPING, Phase.BEFORE, trusting),
    "contained, BEFORE: dropped, as into the dead letters": wrong(RangeCase.CONTAINED, Phase.BEFORE, nothing),
    "contained, BEFORE: written as new": wrong(RangeCase.CONTAINED, Phase.BEFORE, everything),
    "crossing, AFTER: written whole": wrong(RangeCase.CROSSING, Phase.AFTER, everything),
    "crossing, BEFORE: taken for landed": wrong(RangeCase.CROSSING, Phase.BEFORE, trusting),
    "next, BEFORE: written without a look at the last": wrong(RangeCase.NEXT, Phase.BEFORE, everything),
    "beyond: the gap is ignored": wrong(RangeCase.BEYOND, Phase.AFTER, everything),
    "wholly before: written again": wrong(RangeCase.WHOLLY_BEFORE, Phase.AFTER, everything),
}


@pytest.mark.uncounted
@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES.keys())
def test_a_wrong_entry_is_found(mistake: Decide) -> None:
    with pytest.raises(AssertionError, match=r"guessed|twice|lost"):
        judge(mistake)


def test_a_range_before_the_beginning_cannot_be_cropped() -> None:
    def cropping(incoming: Range, last: Last, origin: TopicOrigin, **options: bool) -> RangeDecision:
        return decide(incoming, replace(last, first=0), origin, **options)

    with pytest.raises(AssertionError, match="guessed"):
        judge(cropping)


def test_an_absent_range_that_is_not_here_cannot_be_skipped() -> None:
    def skipping(incoming: Range, last: Last, *, landed: bool) -> RangeDecision:
        return resolved(incoming, last, landed=True)

    with pytest.raises(AssertionError, match=r"guessed|lost"):
        judge(decide, skipping)


# ── the names in the table ──────────────────────────────────────────────────────────────────────────────────────────


def at(first: int, end: int) -> Range:
    return Range(PARTITION, first, end)


BEFORE = Last(at(4, 8), Phase.BEFORE, 2, ORIGIN)
AFTER = replace(BEFORE, phase=Phase.AFTER)


@pytest.mark.parametrize(
    ("incoming", "last", "expected"),
    [
        (at(0, 9), None, RangeDecision(RangeCase.FIRST, new=at(0, 9))),
        (at(4, 8), AFTER, RangeDecision(RangeCase.SAME, drop=at(4, 8))),
        (at(4, 8), BEFORE, RangeDecision(RangeCase.SAME, again=at(4, 8))),
        (at(4, 9), AFTER, RangeDecision(RangeCase.OVERLAPPING, drop=at(4, 8), new=at(8, 9))),
        (at(4, 9), BEFORE, RangeDecision(RangeCase.OVERLAPPING, again=at(4, 8), new=at(8, 9))),
        (at(5, 8), AFTER, RangeDecision(RangeCase.CONTAINED, drop=at(5, 8))),
        (at(5, 8), BEFORE, RangeDecision(RangeCase.CONTAINED, resolve=at(4, 8))),
        (at(6, 9), AFTER, RangeDecision(RangeCase.CROSSING, drop=at(6, 8), new=at(8, 9))),
        (at(6, 9), BEFORE, RangeDecision(RangeCase.CROSSING, resolve=at(4, 8))),
        (at(8, 9), AFTER, RangeDecision(RangeCase.NEXT, new=at(8, 9))),
        (at(8, 9), BEFORE, RangeDecision(RangeCase.NEXT, resolve=at(4, 8))),
        (at(3, 9), AFTER, RangeDecision(RangeCase.OVERLAPPING, drop=at(3, 8), new=at(8, 9))),
        (at(3, 9), BEFORE, RangeDecision(RangeCase.OVERLAPPING, drop=at(3, 4), again=at(4, 8), new=at(8, 9))),
        (at(3, 6), BEFORE, RangeDecision(RangeCase.CONTAINED, resolve=at(4, 8))),
        (at(2, 4), AFTER, RangeDecision(RangeCase.WHOLLY_BEFORE, drop=at(2, 4))),
        (at(2, 4), BEFORE, RangeDecision(RangeCase.WHOLLY_BEFORE, drop=at(2, 4))),
    ],
)
def test_the_table(incoming: Range, last: Last | None, expected: RangeDecision) -> None:
    assert decide(incoming, last, ORIGIN) == expected


@pytest.mark.parametrize(
    ("incoming", "landed", "expected"),
    [
        (at(5, 8), True, RangeDecision(RangeCase.CONTAINED, drop=at(5, 8))),
        (at(4, 6), False, RangeDecision(RangeCase.CONTAINED, new=at(4, 6))),
        (at(3, 6), False, RangeDecision(RangeCase.CONTAINED, drop=at(3, 4), new=at(4, 6))),
        (at(6, 9), True, RangeDecision(RangeCase.CROSSING, drop=at(6, 8), new=at(8, 9))),
        (at(8, 9), True, RangeDecision(RangeCase.NEXT, new=at(8, 9))),
    ],
)
def test_what_follows_a_probe(incoming: Range, landed: bool, expected: RangeDecision) -> None:
    assert resolved(incoming, BEFORE, landed=landed) == expected


@pytest.mark.parametrize("last", [BEFORE, AFTER])
@pytest.mark.parametrize(
    ("incoming", "origin", "options", "error"),
    [
        (at(9, 10), ORIGIN, {}, errors.GapRefused),
        (at(1, 9), ORIGIN, {}, errors.RewindRefused),
        (at(0, 1), ORIGIN, {}, errors.RewindRefused),
        (at(2, 3), ORIGIN, {"on_rewind": OnRewind.ERROR}, errors.RewindRefused),
        (at(4, 8), TopicOrigin("another", "id"), {}, errors.ClusterChanged),
        (at(4, 8), TopicOrigin("cluster", "another"), {}, errors.TopicRecreated),
    ],
)
def test_named_errors(
    last: Last, incoming: Range, origin: TopicOrigin, options: dict[str, OnRewind], error: type[errors.Halt]
) -> None:
    with pytest.raises(error) as raised:
        decide(incoming, last, origin, **options)
    assert raised.value.safe
    assert raised.value.command


@pytest.mark.parametrize("incoming", [at(5, 8), at(6, 9), at(8, 9)])
def test_a_sink_that_cannot_be_asked_halts(incoming: Range) -> None:
    with pytest.raises(errors.OutcomeUnknown):
        decide(incoming, BEFORE, ORIGIN, can_probe=False)


@pytest.mark.parametrize("incoming", [at(5, 8), at(6, 9), at(8, 9)])
def test_what_is_absent_and_not_here_is_a_gap(incoming: Range) -> None:
    with pytest.raises(errors.GapRefused):
        resolved(incoming, BEFORE, landed=False)


def test_ranges_of_different_partitions_are_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="different partitions"):
        decide(Range(Partition("t", 1), 0, 1), AFTER, ORIGIN)
    with pytest.raises(ValueError, match="before the first offset"):
        cases.Last(at(0, 1), Phase.AFTER, 1, ORIGIN)
