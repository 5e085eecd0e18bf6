"""Tokens: same rows, same token; any other component, another token; and a value that no release may change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import given as given_any
from hypothesis import strategies as st

from landonce.protocol.blocks import Block, Identity, Kind, Plan, table_token, token
from landonce.protocol.ranges import Partition, Range


def given(*arguments: st.SearchStrategy[Any], **named: st.SearchStrategy[Any]) -> Callable[..., Any]:
    """Without Hypothesis's deadline per example: on a busy machine it would measure the neighbours."""
    return lambda test: settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])(
        given_any(*arguments, **named)(test)
    )


# Short texts of characters that a careless encoding would use between fields.
texts = st.text(st.sampled_from('ab01",:[]{}\\/|-_ \n\x00é'), max_size=4)
topics = st.text(st.sampled_from("ab-._"), min_size=1, max_size=3)
partitions = st.builds(Partition, topics, st.integers(0, 12))


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    chosen = sorted(draw(st.sets(partitions, min_size=1, max_size=3)))
    firsts = [draw(st.integers(0, 200)) for _ in chosen]
    ranges = tuple(
        Range(partition, first, first + draw(st.integers(1, 200)))
        for partition, first in zip(chosen, firsts, strict=True)
    )
    return Block(ranges, draw(texts), draw(texts), draw(st.integers(0, 20)))


@st.composite
def named_blocks(draw: st.DrawFn) -> tuple[Identity, Block]:
    """A block, and an identity that knows at least its topics."""
    block = draw(blocks())
    known = {each.partition.topic for each in block.ranges} | draw(st.sets(topics, max_size=2))
    ids = tuple((topic, draw(texts)) for topic in sorted(known))
    return Identity(draw(texts), draw(texts), draw(texts), ids), block


def meaning(identity: Identity, block: Block) -> tuple[Any, ...]:
    """All that a token stands for."""
    written = {each.partition.topic for each in block.ranges}
    ids = tuple(pair for pair in identity.topic_ids if pair[0] in written)
    return identity.pipeline, identity.lineage, identity.cluster_id, ids, block


@given(named_blocks(), named_blocks())
def test_tokens_are_equal_exactly_when_all_components_are(
    one: tuple[Identity, Block], other: tuple[Identity, Block]
) -> None:
    assert (token(*one) == token(*other)) == (meaning(*one) == meaning(*other))


@given(named_blocks())
def test_the_same_rows_have_the_same_token_however_they_were_made(named: tuple[Identity, Block]) -> None:
    identity, block = named
    plan = Plan.from_json(Plan(1, (block,), "f", 0).to_json())
    copy = Identity(str(identity.pipeline), identity.lineage, identity.cluster_id, tuple(identity.topic_ids))
    assert token(copy, plan.blocks[0]) == token(identity, block)


@given(named_blocks(), texts)
def test_another_topic_of_the_pipeline_changes_nothing(named: tuple[Identity, Block], topic_id: str) -> None:
    """A topic that is added to the pipeline must not change the tokens of a pending plan."""
    identity, block = named
    wider = replace(identity, topic_ids=(*identity.topic_ids, ("zzz", topic_id)))
    assert token(wider, block) == token(identity, block)


IDENTITY = Identity("orders", "0af1", "cluster-1", (("orders", "topic-1"),))
BLOCK = Block((Range(Partition("orders", 3), 100, 250), Range(Partition("orders", 11), 7, 9)), "db.orders", "s1", 2)


@pytest.mark.parametrize(
    ("identity", "block"),
    [
        (replace(IDENTITY, pipeline="order"), BLOCK),
        (replace(IDENTITY, lineage="0af2"), BLOCK),
        (replace(IDENTITY, cluster_id="cluster-2"), BLOCK),
        (replace(IDENTITY, topic_ids=(("orders", "topic-2"),)), BLOCK),
        (IDENTITY, replace(BLOCK, table="db.order")),
        (IDENTITY, replace(BLOCK, shard="s2")),
        (IDENTITY, replace(BLOCK, shard="", table="db.orderss1")),
        (IDENTITY, replace(BLOCK, generation=3)),
        (IDENTITY, replace(BLOCK, ranges=BLOCK.ranges[:1])),
        (IDENTITY, replace(BLOCK, ranges=(Range(Partition("orders", 3), 100, 251), BLOCK.ranges[1]))),
        (IDENTITY, replace(BLOCK, ranges=(Range(Partition("orders", 3), 99, 250), BLOCK.ranges[1]))),
        (IDENTITY, replace(BLOCK, ranges=(Range(Partition("orders", 4), 100, 250), BLOCK.ranges[1]))),
        (IDENTITY, replace(BLOCK, ranges=(BLOCK.ranges[0], Range(Partition("orders", 117), 0, 9)))),
        (replace(IDENTITY, pipeline="orders0", lineage="af1"), BLOCK),
        (replace(IDENTITY, lineage="0af1cluster", cluster_id="-1"), BLOCK),
    ],
)
def test_every_component_counts(identity: Identity, block: Block) -> None:
    assert token(identity, block) != token(IDENTITY, BLOCK)


def test_the_value_is_the_same_in_every_release() -> None:
    """A pending plan is replayed by whatever version starts next: another value here would write its rows again."""
    assert token(IDENTITY, BLOCK) == "38547c9c7ec3f3b0e8295619c3a08d5253826a01526bb1fb4a03b904ed8c5c0d"


# ── plans ───────────────────────────────────────────────────────────────────────────────────────────────────────────

plans = st.builds(
    Plan,
    batch=st.integers(0, 2**40),
    blocks=st.lists(blocks(), max_size=4).map(tuple),
    fingerprint=texts,
    deadline=st.integers(0, 2**53),
    kind=st.sampled_from(Kind),
    late=st.lists(st.integers(0, 9), max_size=3).map(tuple),
)


@given(plans)
def test_a_plan_comes_back_from_json_as_it_was(plan: Plan) -> None:
    assert Plan.from_json(plan.to_json()) == plan


@given(plans, st.frozensets(st.integers(0, 3)), st.integers(0, 2**53))
def test_blocks_with_a_used_up_token_get_the_next_generation_and_nothing_else_changes(
    plan: Plan, used_up: frozenset[int], deadline: int
) -> None:
    again = plan.regenerated(used_up).rearmed(deadline)
    assert again.deadline == deadline
    assert replace(again, deadline=plan.deadline, blocks=plan.blocks) == plan
    for index, (before, after) in enumerate(zip(plan.blocks, again.blocks, strict=True)):
        assert after == replace(before, generation=before.generation + (index in used_up))


@given(plans)
def test_a_plan_ends_where_its_last_ranges_end(plan: Plan) -> None:
    ends = plan.ends()
    every = [each for block in plan.blocks for each in block.ranges]
    moved = set() if plan.kind is Kind.LETTERS else {each.partition for each in every}
    assert set(ends) == moved, "letters move no position"
    assert all(ends[partition] == max(each.end for each in every if each.partition == partition) for partition in ends)


def test_a_block_has_ranges_in_order_one_of_each_partition() -> None:
    first, second = BLOCK.ranges
    for wrong in ((), (second, first), (Range(first.partition, 0, 5), first)):
        with pytest.raises(ValueError, match="a block has at least one range"):
            Block(wrong, "t")


def test_each_table_of_a_block_has_a_token_of_its_own() -> None:
    block = Block((Range(Partition("t", 0), 0, 9),), "a, b")
    whole = token(Identity("p", "lineage", "c", ()), block)
    tokens = [table_token(whole, block, name) for name in ("a", "b", "a")]
    assert tokens[0] == tokens[2], "a pure function of block and table"
    assert len({whole, *tokens}) == 3
    assert table_token(whole, block, block.table) == whole, "of the one table there is, it is the block's"
    again = token(Identity("p", "lineage", "c", ()), replace(block, generation=1))
    assert table_token(again, block, "a") not in tokens
