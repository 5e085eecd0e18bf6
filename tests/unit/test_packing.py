"""Packing: nothing lost, nothing twice, limits kept, every partition served, every core busy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import given as given_any
from hypothesis import strategies as st

from landonce.protocol.blocks import Block
from landonce.protocol.packing import Limits, pack, ready_first, take
from landonce.protocol.ranges import Partition, Range


def given(*arguments: st.SearchStrategy[Any], **named: st.SearchStrategy[Any]) -> Callable[..., Any]:
    """Without Hypothesis's deadline per example: on a busy machine it would measure the neighbours."""
    return lambda test: settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])(
        given_any(*arguments, **named)(test)
    )


names = st.sampled_from(["a", "b", "orders"])
partitions = st.builds(Partition, names, st.integers(0, 20))
spans = st.integers(1, 5_000)


@st.composite
def available(draw: st.DrawFn, most: int = 12) -> tuple[Range, ...]:
    """At most one range of each partition, in any order, as the broker gives them."""
    chosen = draw(st.lists(partitions, min_size=1, max_size=most, unique=True))
    firsts = draw(st.lists(st.integers(0, 2**40), min_size=len(chosen), max_size=len(chosen)))
    sizes = draw(st.lists(spans, min_size=len(chosen), max_size=len(chosen)))
    return tuple(
        Range(partition, first, first + size) for partition, first, size in zip(chosen, firsts, sizes, strict=True)
    )


limits = st.builds(
    Limits, max_rows=st.integers(1, 20_000), block_rows=st.integers(1, 3_000), parallelism=st.integers(1, 16)
)


def merged(ranges: list[Range]) -> list[Range]:
    """Ranges that touch become one; ranges that overlap are an error."""
    result: list[Range] = []
    for each in sorted(ranges):
        if result and result[-1].partition == each.partition:
            assert result[-1].end <= each.first, "an offset is in two blocks"
            if result[-1].end == each.first:
                result[-1] = Range(each.partition, result[-1].first, each.end)
                continue
        result.append(each)
    return result


# ── pack ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(available(), limits)
def test_blocks_hold_exactly_the_offsets_that_were_given(ranges: tuple[Range, ...], limits: Limits) -> None:
    blocks = pack(ranges, "t", limits)
    assert merged([each for block in blocks for each in block.ranges]) == sorted(ranges)


@given(available(), limits)
def test_blocks_are_in_the_order_of_the_offsets(ranges: tuple[Range, ...], limits: Limits) -> None:
    flat = [each for block in pack(ranges, "t", limits) for each in block.ranges]
    assert flat == sorted(flat)


@given(available(), limits)
def test_no_block_is_larger_than_its_limit(ranges: tuple[Range, ...], limits: Limits) -> None:
    assert all(block.span <= limits.block_rows for block in pack(ranges, "t", limits))


@given(available(), limits)
def test_blocks_are_even_and_keep_every_core_busy(ranges: tuple[Range, ...], limits: Limits) -> None:
    """No core has more to do than the fairest cut gives it: the rounds are as few, and as long, as they have to be."""
    spans = [block.span for block in pack(ranges, "t", limits)]
    total = sum(spans)
    assert len(set(spans[:-1])) <= 1
    assert spans[-1] <= spans[0]
    if len(spans) > 1:
        rounds = math.ceil(math.ceil(total / limits.block_rows) / limits.parallelism)
        assert spans[0] == math.ceil(total / (rounds * limits.parallelism))
        assert math.ceil(len(spans) / limits.parallelism) <= rounds


@given(available(), limits, st.randoms())
def test_the_cut_does_not_depend_on_the_order_of_the_answer(ranges: tuple[Range, ...], limits: Limits, random) -> None:  # type: ignore[no-untyped-def]
    shuffled = list(ranges)
    random.shuffle(shuffled)
    assert pack(shuffled, "t", limits) == pack(ranges, "t", limits)


def test_nothing_is_no_block() -> None:
    assert pack((), "t", Limits(1, 1)) == ()


# ── take ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(available(), st.integers(1, 20_000))
def test_what_is_taken_is_the_beginning_of_each_range(ranges: tuple[Range, ...], max_rows: int) -> None:
    """Every partition that has anything moves: none starves, in this batch or in any."""
    taken = {each.partition: each for each in take(ranges, max_rows)}
    assert set(taken) == {each.partition for each in ranges}
    for each in ranges:
        assert taken[each.partition].first == each.first
        assert taken[each.partition].end <= each.end


@given(available(), st.integers(1, 20_000))
def test_a_batch_is_as_large_as_it_may_be(ranges: tuple[Range, ...], max_rows: int) -> None:
    """No more than the limit, or one record of each partition; and no less, while there is more."""
    size = sum(each.span for each in take(ranges, max_rows))
    assert size == min(sum(each.span for each in ranges), max(max_rows, len(ranges)))


@given(available(), st.integers(1, 20_000))
def test_shares_are_even(ranges: tuple[Range, ...], max_rows: int) -> None:
    """A partition gets less than another only if it has no more, or by the one record that does not divide."""
    taken = {each.partition: each.span for each in take(ranges, max_rows)}
    most = max(taken.values())
    assert all(taken[each.partition] in (each.span, most, most - 1) for each in ranges)


@given(available(most=6), st.integers(1, 500), st.lists(st.integers(0, 300), min_size=6, max_size=6))
def test_no_partition_starves_under_load(ranges: tuple[Range, ...], max_rows: int, arriving: list[int]) -> None:
    """Batch after batch, with records that keep arriving: what waited at the beginning is read in the end."""
    waiting = {each.partition: each for each in ranges}
    goals = {partition: min(each.end, each.first + 20) for partition, each in waiting.items()}
    for _ in range(20):
        for each in take(waiting.values(), max_rows):
            end = waiting[each.partition].end
            waiting[each.partition] = Range(each.partition, each.end, max(end, each.end + 1))
        for more, partition in zip(arriving, sorted(waiting), strict=False):
            each = waiting[partition]
            waiting[partition] = Range(partition, each.first, each.end + more)
    assert all(waiting[partition].first >= goal for partition, goal in goals.items())


# ── limits ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(
    rows=st.integers(1, 10**6),
    size=st.integers(1, 10**9),
    block=st.integers(1, 10**6),
    parallelism=st.integers(0, 64),
    record=st.floats(0, 10**7),
)
def test_bytes_become_records_and_the_tighter_limit_counts(
    rows: int, size: int, block: int, parallelism: int, record: float
) -> None:
    made = Limits.of(
        max_rows=rows,
        max_bytes=size,
        block_rows=block,
        block_bytes=size,
        parallelism=parallelism,
        record_bytes=record,
    )
    assert 1 <= made.max_rows <= rows
    assert 1 <= made.block_rows <= block
    assert made.parallelism >= 1
    for count in (made.max_rows, made.block_rows):
        assert count == 1 or count * max(record, 1.0) <= size * (1 + 1e-12), "but for the rounding of a float"


# ── what goes ahead ─────────────────────────────────────────────────────────────────────────────────────────────────


@given(available(), limits, st.data())
def test_what_goes_ahead_begins_each_partition_and_is_all_that_can(
    ranges: tuple[Range, ...], limit: Limits, data: st.DataObject
) -> None:
    blocks = pack(ranges, "t", limit)
    ready = data.draw(st.sets(st.integers(0, len(blocks) - 1)))
    ahead = ready_first(blocks, ready)
    assert set(ahead) <= ready
    taken = [each for index in ahead for each in blocks[index].ranges]
    begins = {each.partition: each.first for each in ranges}
    assert all(each.first == begins[each.partition] for each in merged(taken)), "a partition has a hole"
    for index in ready - set(ahead):
        assert any(_waits_for(blocks, index, other) for other in range(len(blocks)) if other not in ahead)


def _waits_for(blocks: tuple[Block, ...], index: int, other: int) -> bool:
    return any(
        mine.partition == theirs.partition and theirs.first < mine.first
        for mine in blocks[index].ranges
        for theirs in blocks[other].ranges
    )


def test_a_block_of_two_partitions_waits_for_both() -> None:
    p, q = Partition("t", 0), Partition("t", 1)
    blocks = [
        Block((Range(p, 0, 8),), "t"),
        Block((Range(p, 8, 9), Range(q, 0, 7)), "t"),
        Block((Range(q, 7, 9),), "t"),
    ]
    assert ready_first(blocks, {1, 2}) == (), "the second waits for the first, and the third for the second"
    assert ready_first(blocks, {0, 2}) == (0,)
    assert ready_first(blocks, {0, 1}) == (0, 1)
