"""Operator decisions: what changes, what must not, and what is said. Every one takes the next epoch."""

from dataclasses import replace

import pytest

from landonce import errors
from landonce.errors import NothingToDo, PlanPending
from landonce.ledger.memory import MemoryLedger
from landonce.protocol.block_rows import BlockState as RowMark
from landonce.protocol.block_rows import Claim, PushRow
from landonce.protocol.blocks import Block, Kind, Plan, token
from landonce.protocol.ledger import LedgerState, Position, TableMark
from landonce.protocol.marks import Mark, TableView, Verdict, behind_ranges, status_of, verdict
from landonce.protocol.operate import (
    Decision,
    accept_change,
    accept_gap,
    accept_own_position,
    accept_own_rows,
    accept_position,
    accept_rows,
    fill,
    forget_table,
    known_state,
    rebase,
    settle,
)
from landonce.protocol.ranges import Partition, Range, generation_of
from landonce.protocol.source import Extent, SourceView, Start, bind
from landonce.protocol.target import TargetView

P0, P1, Q0 = Partition("t", 0), Partition("t", 1), Partition("u", 0)
NOTHING_HELD = TargetView(())


def range_(partition, first, end):
    return Range(partition, first, end)


def plan(*blocks, **changes):
    made = Plan(
        batch=7, blocks=tuple(Block(tuple(ranges), "table") for ranges in blocks), fingerprint="old", deadline=99
    )
    return replace(made, **changes)


def ledger(positions=None, pending=None, **changes):
    positions = positions or {P0: (0, 10), P1: (0, 20)}
    state = LedgerState(
        "p",
        lineage="lineage",
        epoch=3,
        owner="driver",
        version=12,
        cluster_id="cluster",
        topic_ids=(("t", "id-of-t-1"), ("u", "id-of-u-1")),
        positions=tuple(sorted((each, Position(*at)) for each, at in positions.items())),
        pending=pending,
        batch=7,
    )
    return replace(state, **changes)


def view(extents, cluster="cluster", t="id-of-t-1", u="id-of-u-1"):
    topics = {each.topic for each in extents}
    ids = tuple((name, id_) for name, id_ in (("t", t), ("u", u)) if name in topics)
    return SourceView(cluster, ids, tuple(sorted((each, Extent(*at)) for each, at in extents.items())))


def committed(decision: Decision):
    return decision.new.committed()


def is_one_change(old: LedgerState, decision: Decision):
    """It takes the pipeline in one compare-and-set, leaves its note, and fences the driver that had it."""
    store = MemoryLedger("p")
    store.create(old)
    store.change(old, decision.new, decision.note())
    assert decision.new.epoch == old.epoch + 1
    assert decision.new.owner == "operator"
    assert [note.action for note in store.journal()] == [decision.action]
    with pytest.raises(errors.Fenced):
        store.change(old, replace(old, version=old.version + 1))


class TestAcceptGap:
    def test_moves_only_what_is_overrun(self):
        old = ledger()
        decision = accept_gap(old, view({P0: (15, 30), P1: (5, 30)}), "operator")
        assert committed(decision) == {P0: 15, P1: 20}
        assert dict(decision.new.positions)[P0].first == 0
        assert decision.lost == (range_(P0, 10, 15),)
        assert "At most 5 records" in decision.costs[0]
        is_one_change(old, decision)

    def test_the_pipeline_can_go_on_afterwards(self):
        source = view({P0: (15, 30), P1: (5, 30)})
        with pytest.raises(errors.RetentionOverrun):
            bind(ledger(), source, Start.EARLIEST)
        bind(accept_gap(ledger(), source, "operator").new, source, Start.EARLIEST)

    def test_nothing_to_do(self):
        with pytest.raises(NothingToDo, match="no gap"):
            accept_gap(ledger(), view({P0: (10, 30), P1: (20, 30)}), "operator")

    def test_another_topic_is_not_a_gap(self):
        with pytest.raises(errors.TopicRecreated):
            accept_gap(ledger(), view({P0: (15, 30)}, t="another"), "operator")
        with pytest.raises(errors.ClusterChanged):
            accept_gap(ledger(), view({P0: (15, 30)}, cluster="another"), "operator")

    def test_crops_a_pending_plan(self):
        pending = plan([range_(P0, 10, 14), range_(P1, 20, 25)], [range_(P0, 14, 30)], [range_(P1, 25, 40)])
        old = ledger(pending=pending)
        decision = accept_gap(old, view({P0: (16, 30), P1: (5, 40)}), "operator")
        left = decision.new.pending
        assert [block.ranges for block in left.blocks] == [
            (range_(P1, 20, 25),),
            (range_(P0, 16, 30),),
            (range_(P1, 25, 40),),
        ]
        assert left.deadline == pending.deadline, "the old inserts are still to be waited out"
        assert committed(decision) == {P0: 16, P1: 20}
        assert decision.new.lineage == old.lineage
        is_one_change(old, decision)

    def test_cropped_blocks_have_other_tokens_and_whole_ones_the_same(self):
        pending = plan([range_(P0, 10, 14), range_(P1, 20, 25)], [range_(P1, 25, 40)])
        old = ledger(pending=pending)
        new = accept_gap(old, view({P0: (12, 30), P1: (5, 40)}), "operator").new
        tokens = [token(old.identity, block) for block in pending.blocks]
        left = [token(new.identity, block) for block in new.pending.blocks]
        assert left[0] != tokens[0]
        assert left[1] == tokens[1]

    @pytest.mark.parametrize("start", [13, 14, 20, 25, 30])
    def test_what_landed_and_is_accounted_for_stays_whole(self, start):
        """Its receipt names its dead letters, which nobody can read again."""
        blocks = (
            Block((range_(P0, 10, 14), range_(P1, 20, 25)), "table", number=0),
            Block((range_(P0, 14, 20),), "table", number=1),
            Block((range_(P0, 20, 30),), "table", number=2),
        )
        old = ledger(pending=plan(blocks=blocks))
        decision = accept_gap(old, view({P0: (start, 40), P1: (5, 40)}), "operator", landed=frozenset({0, 2}))
        left = {block.number: block for block in decision.new.pending.blocks}
        assert left[0] == blocks[0]
        assert left[2] == blocks[2]
        assert left.get(1) == {13: blocks[1], 14: blocks[1]}.get(start)
        assert committed(decision) == {P0: start, P1: 20}
        is_one_change(old, decision)

    @pytest.mark.parametrize("start", range(31))
    def test_nothing_is_skipped_beyond_what_is_said(self, start):
        """Every offset is given up, or still planned, or still ahead: for every place where the topic may begin."""
        pending = plan([range_(P0, 10, 14)], [range_(P0, 14, 20)])
        old = ledger({P0: (0, 10)}, pending)
        source = view({P0: (start, 30)})
        if start <= 10:
            with pytest.raises(NothingToDo):
                accept_gap(old, source, "operator")
            return
        decision = accept_gap(old, source, "operator")
        lost = {at for gap in decision.lost for at in range(gap.first, gap.end)}
        blocks = decision.new.pending.blocks if decision.new.pending else ()
        planned = {at for block in blocks for each in block.ranges for at in range(each.first, each.end)}
        end = max([committed(decision)[P0], *(each.end for block in blocks for each in block.ranges)])
        assert lost | planned | set(range(end, 30)) == set(range(10, 30))
        assert not lost & planned
        assert (decision.new.pending is None) == (start >= 20)


class TestRebase:
    def test_a_recreated_topic_begins_again_under_a_label(self):
        old = ledger({P0: (0, 10), P1: (0, 20), Q0: (0, 5)})
        decision = rebase(old, view({P0: (2, 4), Q0: (0, 9)}, t="NEWID-of-t"), NOTHING_HELD, "operator")
        assert decision.new.positions == ((P0, Position(2, 2)), (Q0, Position(0, 5)))
        assert decision.new.labels == (("t", "t@NEWID-of"),)
        assert dict(decision.new.topic_ids) == {"t": "NEWID-of-t", "u": "id-of-u-1"}
        assert decision.new.lineage not in (old.lineage, old.owner)
        assert any("Unchanged: u" in line for line in decision.does)
        is_one_change(old, decision)

    def test_the_pipeline_can_go_on_afterwards(self):
        source = view({P0: (2, 4)}, cluster="other", t="new")
        old = ledger({P0: (0, 10)})
        with pytest.raises(errors.ClusterChanged):
            bind(old, source, Start.EARLIEST)
        bind(rebase(old, source, NOTHING_HELD, "operator").new, source, Start.EARLIEST)

    def test_to_latest_says_what_is_never_delivered(self):
        decision = rebase(ledger(), view({P0: (2, 40)}, t="new"), NOTHING_HELD, "operator", to=Start.LATEST)
        assert committed(decision) == {P0: 40}
        assert any("At most 38 records" in line and "never be delivered" in line for line in decision.costs)

    def test_a_migrated_cluster_with_new_topic_ids(self):
        decision = rebase(ledger(), view({P0: (0, 4), P1: (0, 4)}, cluster="other", t="new"), NOTHING_HELD, "operator")
        assert decision.new.cluster_id == "other"
        assert committed(decision) == {P0: 0, P1: 0}

    def test_a_cluster_with_the_same_topics_keeps_positions_and_labels(self):
        decision = rebase(ledger(), view({P0: (0, 30), P1: (0, 30)}, cluster="other"), NOTHING_HELD, "operator")
        assert committed(decision) == {P0: 10, P1: 20}
        assert decision.new.labels == ()

    def test_a_vanished_partition_goes_and_the_others_stay(self):
        decision = rebase(ledger(), view({P0: (0, 30)}), NOTHING_HELD, "operator")
        assert decision.new.positions == ((P0, Position(0, 10)),)
        assert (decision.new.label("t"), decision.new.labelled(P1).topic) == ("t", "t@id-of-t-"), "if it comes back"

    def test_a_position_beyond_the_end(self):
        decision = rebase(ledger(), view({P0: (0, 4), P1: (0, 30)}), NOTHING_HELD, "operator", to=Start.LATEST)
        assert committed(decision) == {P0: 4, P1: 20}
        assert decision.new.labels == (("t[0]", "t@id-of-t-"),)

    def test_a_second_rebase_of_the_same_topic_has_yet_another_label(self):
        old = ledger(labels=(("t", "t@id-of-t-"),))
        decision = rebase(old, view({P0: (0, 4), P1: (0, 30)}), NOTHING_HELD, "operator")
        assert decision.new.labels == (("t", "t@id-of-t-"), ("t[0]", "t@id-of-t-.2"))
        assert [generation_of(each) for each in ("t", "t@id-of-t-", "t@id-of-t-.2", "a.b", "a.b@x.12")] == [
            0,
            1,
            2,
            0,
            12,
        ]

    def test_a_target_that_holds_what_the_topic_cannot_have(self):
        fresh = ledger({P0: (0, 0)}, batch=0)
        held = TargetView(((P0, 500),))
        decision = rebase(fresh, view({P0: (0, 30)}), held, "operator")
        assert decision.new.label("t") != "t"

    def test_a_lost_ledger_before_a_table_of_another_topic(self):
        """A start refuses to bind it (the target is ahead of what the topic can have); this command binds it."""
        lost = LedgerState("p", lineage="lineage", epoch=1, owner="driver", version=1)
        decision = rebase(lost, view({P0: (3, 30), P1: (0, 9)}), TargetView(((P0, 500),)), "operator")
        assert decision.new.label("t") == "t@id-of-t-"
        assert committed(decision) == {P0: 3, P1: 0}
        is_one_change(lost, decision)
        with pytest.raises(NothingToDo):
            rebase(lost, view({P0: (3, 30)}), TargetView(((P0, 30),)), "operator")

    def test_no_label_where_nothing_was_ever_written(self):
        decision = rebase(ledger(batch=0), view({P0: (0, 4)}, t="new"), NOTHING_HELD, "operator")
        assert decision.new.labels == ()

    def test_nothing_to_do(self):
        with pytest.raises(NothingToDo):
            rebase(ledger(), view({P0: (0, 30), P1: (0, 30)}), NOTHING_HELD, "operator")

    def test_a_pending_plan_is_not_forgotten_unasked(self):
        old = ledger(pending=plan([range_(P0, 10, 14)]))
        source = view({P0: (0, 4)}, t="new")
        with pytest.raises(PlanPending, match="batch 7") as refused:
            rebase(old, source, NOTHING_HELD, "operator")
        assert "--drop-pending" in refused.value.command
        decision = rebase(old, source, NOTHING_HELD, "operator", drop_pending=True)
        assert decision.new.pending is None
        assert any("forgotten" in line for line in decision.does)
        is_one_change(old, decision)


class TestFill:
    def test_the_pending_plan_becomes_one_to_fill(self):
        old = ledger(pending=plan([range_(P0, 10, 14)]))
        decision = fill(old, "operator")
        assert decision.new.pending == replace(old.pending, kind=Kind.FILL)
        assert decision.new.positions == old.positions
        is_one_change(old, decision)

    def test_nothing_to_do(self):
        with pytest.raises(NothingToDo):
            fill(ledger(), "operator")
        with pytest.raises(NothingToDo):
            fill(ledger(pending=plan([range_(P0, 10, 14)], kind=Kind.FILL)), "operator")


class TestAcceptChange:
    def test_the_fingerprint_is_replaced_and_nothing_else(self):
        old = ledger(pending=plan([range_(P0, 10, 14)]))
        decision = accept_change(old, "new", "operator")
        assert decision.new.pending == replace(old.pending, fingerprint="new")
        assert token(decision.new.identity, decision.new.pending.blocks[0]) == token(
            old.identity, old.pending.blocks[0]
        )
        is_one_change(old, decision)

    def test_nothing_to_do(self):
        with pytest.raises(NothingToDo, match="no plan is pending"):
            accept_change(ledger(), "new", "operator")
        with pytest.raises(NothingToDo, match="made with this pipeline file"):
            accept_change(ledger(pending=plan([range_(P0, 10, 14)])), "old", "operator")


def test_a_gap_behind_a_lost_ledger_is_accepted_by_binding_the_ledger_where_the_topics_begin() -> None:
    lost = LedgerState("clicks", lineage="first")
    view = SourceView("cluster", (("t", "id"),), ((Partition("t", 0), Extent(70, 90)),))
    decision = accept_gap(lost, view, "operator")
    assert decision.new.committed() == {Partition("t", 0): 70}
    assert not decision.new.fresh
    assert (decision.new.epoch, decision.new.owner, decision.new.version) == (1, "operator", lost.version + 1)


def fan_out(*known, positions=None, **changes):
    """A ledger at batch 7 that knows tables by (name, batch)."""
    tables = tuple(sorted((name, TableMark(f"uuid-{name}", batch)) for name, batch in known))
    return ledger(positions or {P0: (0, 10)}, tables=tables, **changes)


def carrying(name, batch, positions=None, latest=None, state=None, **changes):
    """A table whose newest mark is of `batch`, at these positions; `latest` is the last batch it ever carried."""
    placed = tuple((each, Position(0, at)) for each, at in (positions or {P0: 10}).items())
    carried = replace(state or ledger({P0: (0, 10)}), batch=batch, positions=placed, tables=(), pending=None)
    return TableView(f"{name}", f"uuid-{name}", Mark(carried, snapshot=batch * 10, **changes), latest or batch)


def stands(state, *views):
    return tuple(status_of(state, view) for view in views)


def afterwards(decision, *views):
    """How the tables stand once the decision was carried out."""
    marks = {each.view.table: each.mark for each in decision.marks}
    return [
        status_of(decision.new, replace(view, mark=marks[view.table], latest=marks[view.table].batch))
        if view.table in marks
        else status_of(decision.new, view)
        for view in views
    ]


class TestAcceptGapInAFanOut:
    SOURCE = view({P0: (6, 30)})

    def test_only_the_table_that_was_rolled_back_goes_on_behind_the_gap(self):
        old = fan_out(("a", 7), ("b", 5))
        a, b = carrying("a", 2, {P0: 3}, latest=7), carrying("b", 5, {P0: 8})
        assert [each.behind for each in stands(old, a, b)] == [True, False]
        decision = accept_gap(old, self.SOURCE, "operator", stands(old, a, b))
        assert committed(decision) == {P0: 10}, "the pipeline as a whole had read on"
        assert decision.lost == ()
        assert [each.view.table for each in decision.marks] == ["a"]
        there, beside = afterwards(decision, a, b)
        assert (there.behind, there.floors) == (True, ((P0, 6),))
        assert behind_ranges(decision.new, [there]) == (range_(P0, 6, 10),)
        assert not beside.behind
        assert any("At most 3 records" in line and "a" in line for line in decision.costs)
        is_one_change(old, decision)

    def test_a_table_of_which_nothing_can_be_read_again_is_in_step(self):
        old = fan_out(("a", 7), positions={P0: (0, 10), P1: (0, 4)})
        a = carrying("a", 2, {P0: 3, P1: 4}, latest=7)
        source = view({P0: (12, 30), P1: (0, 4)})
        decision = accept_gap(old, source, "operator", stands(old, a))
        assert committed(decision) == {P0: 12, P1: 4}
        assert decision.lost == (range_(P0, 10, 12),)
        (there,) = afterwards(decision, a)
        assert (there.behind, there.floors) == (False, ())
        bind(decision.new, source, Start.EARLIEST)

    def test_a_table_that_lost_its_first_batch_too(self):
        old = fan_out(("a", 7))
        a = TableView("a", "uuid-a", None, latest=7)
        decision = accept_gap(old, self.SOURCE, "operator", stands(old, a))
        (there,) = afterwards(decision, a)
        assert (there.behind, there.floors) == (True, ((P0, 6),))

    def test_a_table_that_is_being_filled_up_already(self):
        old = fan_out(("a", 7))
        a = carrying("a", 7, {P0: 3}, behind=True)
        decision = accept_gap(old, self.SOURCE, "operator", stands(old, a))
        (there,) = afterwards(decision, a)
        assert (there.behind, there.floors) == (True, ((P0, 6),))

    def test_a_pending_plan_that_fills_up_is_cropped(self):
        pending = plan([range_(P0, 3, 5)], [range_(P0, 5, 10)], kind=Kind.REPLAY)
        old = fan_out(("a", 6), pending=pending)
        a = carrying("a", 2, {P0: 3}, latest=6)
        new = accept_gap(old, self.SOURCE, "operator", stands(old, a)).new
        assert [block.ranges for block in new.pending.blocks] == [(range_(P0, 6, 10),)]
        assert new.pending.kind is Kind.REPLAY

    def test_a_driver_that_looked_before_finds_the_table_moved(self):
        old = fan_out(("a", 7))
        a = carrying("a", 2, {P0: 3}, latest=7)
        (decided,) = accept_gap(old, self.SOURCE, "operator", stands(old, a)).marks
        seen = replace(a, mark=replace(decided.mark, snapshot=99), latest=decided.mark.batch)
        assert verdict(a, seen, replace(old, batch=8)) is Verdict.MOVED

    def test_nothing_to_do_where_the_rest_can_be_read(self):
        old = fan_out(("a", 7))
        with pytest.raises(NothingToDo):
            accept_gap(old, self.SOURCE, "operator", stands(old, carrying("a", 2, {P0: 6}, latest=7)))


class TestStatus:
    def test_a_lost_ledger_is_what_the_tables_say(self):
        lost = LedgerState("p", lineage="lineage", epoch=1, owner="driver", version=1)
        a = carrying("a", 7, {P0: 10}, started=((P0, 8),))
        found = known_state(lost, [a])
        assert found.committed() == {P0: 8}, "where the newest batch began"
        decision = accept_gap(found, view({P0: (9, 30)}), "operator", stands(found, a))
        assert committed(decision) == {P0: 9}
        assert decision.new.version > lost.version
        assert decision.new.epoch > a.mark.state.epoch

    def test_a_ledger_that_is_bound_counts(self):
        assert known_state(ledger(), [carrying("a", 7, {P0: 3})]) == ledger()

    def test_where_no_table_knows_anything_nothing_is_decided(self):
        with pytest.raises(NothingToDo, match="no position yet"):
            known_state(LedgerState("p", lineage="lineage"), [TableView("a", "uuid-a")])


class TestRebaseInAFanOut:
    def test_says_what_a_table_that_is_behind_never_gets(self):
        old = fan_out(("a", 7), ("b", 7))
        seen = stands(old, carrying("a", 2, {P0: 3}, latest=7), carrying("b", 7))
        decision = rebase(old, view({P0: (0, 4)}, t="new"), NOTHING_HELD, "operator", statuses=seen)
        assert [line for line in decision.costs if "a by a rollback" in line and "t[0] [3, 10)" in line]
        assert not [line for line in decision.costs if "from b" in line]

    def test_tables_take_the_new_topic_from_its_beginning(self):
        old = fan_out(("a", 7), ("b", 5))
        views = carrying("a", 7), carrying("b", 5, {P0: 8})
        new = rebase(old, view({P0: (2, 4)}, t="new"), NOTHING_HELD, "operator").new
        assert [(each.behind, each.floors) for each in stands(new, *views)] == [(False, ()), (False, ())]

    def test_tables_take_a_truncated_topic_from_its_beginning(self):
        """Same id, but the ledger's position was beyond the end: the marks speak of rows under the old label."""
        old = fan_out(("a", 7))
        new = rebase(old, view({P0: (0, 4)}), NOTHING_HELD, "operator").new
        assert new.committed() == {P0: 0}
        (there,) = stands(new, carrying("a", 7))
        assert not there.behind
        assert all(floor <= 0 for _, floor in there.floors)


class TestAcceptChangeInAFanOut:
    def test_says_which_tables_get_what(self):
        old = fan_out(("a", 7), pending=plan([range_(P0, 10, 14)]))
        decision = accept_change(old, "new", "operator", fan_out=True)
        assert any("Tables that already hold the batch" in line for line in decision.costs)
        assert not any("PartialPresence" in line for line in decision.costs)


class TestAcceptPosition:
    def test_a_table_is_where_the_copy_of_its_last_mark_says(self):
        old = fan_out(("a", 7), ("b", 7))
        carried = carrying("a", 7, started=((P0, 8),))
        a, b = replace(carried, mark=None, uncertain=True), carrying("b", 7)
        with pytest.raises(errors.PositionUncertain):
            status_of(old, a)
        decision = accept_position(old, [(a, carried.mark)], "operator")
        (there,) = decision.marks
        assert there.mark.state.committed() == {P0: 10}
        assert (there.mark.state.owner, there.mark.state.epoch) == ("operator", old.epoch + 1)
        assert there.mark.started == ((P0, 8),)
        assert [each.behind for each in afterwards(decision, replace(a, uncertain=False), b)] == [False, False]
        assert any("batch 7" in line and "t[0] at 10" in line for line in decision.does)
        is_one_change(old, decision)

    def test_a_table_that_missed_a_batch_stays_behind(self):
        old = fan_out(("a", 7))
        carried = carrying("a", 5, {P0: 8})
        a = replace(carried, mark=None, uncertain=True)
        (there,) = afterwards(accept_position(old, [(a, carried.mark)], "operator"), replace(a, uncertain=False))
        assert (there.behind, there.floors) == (True, ((P0, 8),))

    def test_another_table_of_that_name_is_another_matter(self):
        carried = carrying("a", 7)
        a = replace(carried, mark=None, uncertain=True, uuid="another")
        with pytest.raises(NothingToDo, match="created again") as refused:
            accept_position(fan_out(("a", 7)), [(a, carried.mark)], "operator")
        assert "forget-table" in refused.value.command

    def test_nothing_is_in_doubt(self):
        with pytest.raises(NothingToDo, match="not in doubt"):
            accept_position(fan_out(("a", 7)), [], "operator")

    def test_the_one_table(self):
        old = ledger({P0: (0, 10)})
        decision = accept_own_position(old, Mark(old), "operator")
        assert committed(decision) == {P0: 10}
        assert any("batch 7" in line for line in decision.does)
        is_one_change(old, decision)


class TestAcceptRows:
    def test_a_table_is_where_its_last_rows_are_and_gets_what_it_lacks(self):
        old = fan_out(("a", 7), ("b", 7))
        marked = carrying("a", 7)
        a = replace(marked, mark=None, uncertain=True)
        decision = accept_rows(old, [(a, marked.mark, {P0: 5})], "operator")
        (there,) = decision.marks
        assert (there.mark.behind, there.mark.tops) == (True, ((P0, 5),))
        (status, _) = afterwards(decision, replace(a, uncertain=False), carrying("b", 7))
        assert behind_ranges(decision.new, [status]) == (range_(P0, 6, 10),)
        assert "at most 4 records, t[0] [6, 10)" in decision.costs[0]
        is_one_change(old, decision)

    def test_a_table_without_rows_gets_everything(self):
        marked = carrying("a", 7)
        a = replace(marked, mark=None, uncertain=True)
        decision = accept_rows(fan_out(("a", 7)), [(a, marked.mark, {})], "operator")
        assert decision.marks[0].mark.state.committed() == {P0: 0}

    def test_nothing_is_in_doubt(self):
        with pytest.raises(NothingToDo, match="not in doubt"):
            accept_rows(fan_out(("a", 7)), [], "operator")

    def test_the_one_table(self):
        old = ledger({P0: (0, 10), P1: (0, 20)})
        decision = accept_own_rows(old, {P0: 6, P1: 19}, "operator")
        assert committed(decision) == {P0: 7, P1: 20}
        assert decision.new.batch == old.batch + 1, (
            "as after a rollback: no later mark has the number of a batch that it lacks"
        )
        assert "at most 3 records" in decision.costs[0]
        whole = accept_own_rows(old, {P0: 9, P1: 19}, "operator")
        assert "nothing" in whole.costs[0]
        is_one_change(old, decision)


class TestSettle:
    BLOCKS = (Block((range_(P0, 10, 14),), "sink", number=0), Block((range_(P1, 20, 25),), "sink", number=1))
    OLD = ledger(pending=plan(blocks=BLOCKS))
    ROWS = (
        PushRow(0, Claim(3, "driver"), RowMark.CLAIMED, nonce="n"),
        PushRow(1, Claim(3, "driver"), RowMark.AFTER),
    )
    KEYS = {"first": BLOCKS[0], "second": BLOCKS[1]}

    @pytest.mark.parametrize(
        ("landed", "said"), [(True, "never pushed again"), (False, "pushed again at the next start")]
    )
    def test_a_person_says_what_became_of_a_push(self, landed, said):
        decision, row = settle(self.OLD, self.KEYS, self.ROWS, "first", "operator", landed=landed)
        assert row.nonce == "n", "the attempt that was looked for, and no later one"
        assert said in decision.does[0]
        assert decision.new.pending == self.OLD.pending
        is_one_change(self.OLD, decision)

    def test_what_is_known_is_not_decided(self):
        with pytest.raises(errors.ConfigError, match="these are: first"):
            settle(self.OLD, self.KEYS, self.ROWS, "second", "operator", landed=True)
        with pytest.raises(NothingToDo, match="nothing to settle"):
            settle(self.OLD, self.KEYS, self.ROWS[1:], "first", "operator", landed=True)


class TestForgetTable:
    NEW = TableView("a", "another")

    def test_the_new_table_gets_new_records_only(self):
        old = fan_out(("a", 7), ("b", 5))
        with pytest.raises(errors.TableReplaced):
            status_of(old, self.NEW)
        decision = forget_table(old, self.NEW, "operator")
        assert dict(decision.new.tables) == {"b": TableMark("uuid-b", 5)}
        (there,) = afterwards(decision, self.NEW)
        assert (there.behind, there.floors) == (False, ())
        assert any("uuid-a" in line for line in decision.does)
        is_one_change(old, decision)

    def test_with_replay_it_is_filled_up_from_the_first_offset(self):
        old = fan_out(("a", 2), positions={P0: (4, 10)})
        decision = forget_table(old, self.NEW, "operator", replay=True, source=view({P0: (0, 30)}))
        (there,) = afterwards(decision, self.NEW)
        assert (there.behind, there.floors) == (True, ((P0, 4),))
        assert behind_ranges(decision.new, [there]) == (range_(P0, 4, 10),)
        assert any("At most 6 records are read again" in line for line in decision.costs)
        assert not any("accept-gap" in line for line in decision.costs)

    def test_with_replay_says_that_kafka_has_deleted_some(self):
        decision = forget_table(fan_out(("a", 2)), self.NEW, "operator", replay=True, source=view({P0: (3, 30)}))
        assert any("accept-gap" in line for line in decision.costs)

    def test_a_table_that_is_gone(self):
        gone = TableView("a")
        decision = forget_table(fan_out(("a", 7)), gone, "operator")
        assert decision.new.tables == ()
        with pytest.raises(NothingToDo, match="does not exist") as refused:
            forget_table(fan_out(("a", 7)), gone, "operator", replay=True)
        assert "--replay" in refused.value.command

    def test_a_restored_table_lacks_what_is_above_its_own_mark(self):
        old = fan_out(("a", 7))
        restored = replace(carrying("a", 3, {P0: 6}), uuid="another")
        (new_only,) = afterwards(forget_table(old, restored, "operator"), restored)
        assert (new_only.behind, new_only.floors) == (False, ())
        filled = forget_table(old, restored, "operator", replay=True, source=view({P0: (0, 30)}))
        (there,) = afterwards(filled, restored)
        assert (there.behind, there.floors) == (True, ((P0, 6),))
        assert any("At most 4 records" in line for line in filled.costs)

    def test_nothing_to_do(self):
        with pytest.raises(NothingToDo, match="still the one"):
            forget_table(fan_out(("a", 7)), carrying("a", 7), "operator")
        with pytest.raises(NothingToDo, match="it knows a"):
            forget_table(fan_out(("a", 7)), TableView("c", "uuid-c"), "operator")
