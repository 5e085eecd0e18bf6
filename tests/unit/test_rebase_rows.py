"""What a table holds after a partition lost its end, a plan was pending, and an operator said `rebase --drop-pending`.

A small world without brokers: records, rows, and a start that recognises rows by their coordinates, for every plan that is
tried, every subset of its blocks that landed, and every offset at which one of two partitions may end. No coordinate ever
stands for two records, and no record has two of them.
"""

from dataclasses import replace
from itertools import chain, combinations

import pyarrow as pa
import pytest

from landonce import errors
from landonce.protocol.block_rows import BlockRow, BlockState, Claim, PushRow, claims_may_change, may_change
from landonce.protocol.blocks import Block, Plan, token
from landonce.protocol.ledger import LedgerState, Position, TableMark, Totals, recorded
from landonce.protocol.marks import Mark as CarriedMark
from landonce.protocol.marks import TableView, status_of
from landonce.protocol.operate import landed_too, rebase
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.source import Extent, SourceView, Start, bind
from landonce.protocol.target import TargetView
from landonce.read.block import rejected_row
from landonce.read.rows import from_floors
from landonce.sinks.worker import Task

P0, P1 = Partition("t", 0), Partition("t", 1)
END = {P0: 18, P1: 24}
LATER = 30
PLANS = (
    (((P0, 10, 14), (P1, 20, 24)), ((P0, 14, 18),)),
    (((P0, 10, 18),), ((P1, 20, 22),), ((P1, 22, 24),)),
    (((P0, 10, 12), (P1, 20, 22)), ((P0, 12, 18), (P1, 22, 24))),
)


def planned(blocks):
    made = tuple(
        Block(tuple(Range(*each) for each in ranges), "table", number=number) for number, ranges in enumerate(blocks)
    )
    return Plan(batch=7, blocks=made, fingerprint="f", deadline=99)


def ledger(plan):
    positions = ((P0, Position(0, 10)), (P1, Position(0, 20)))
    return LedgerState("p", "l", 3, "driver", 12, "cluster", (("t", "id-of-t-1"),), positions, plan, 7)


def source(ends):
    return SourceView("cluster", (("t", "id-of-t-1"),), tuple((each, Extent(0, end)) for each, end in ends.items()))


def subsets(blocks):
    return chain.from_iterable(combinations(range(len(blocks)), size) for size in range(len(blocks) + 1))


class World:
    """Records are (partition, offset, whether they came after the end was lost); rows are coordinates of records."""

    def __init__(self, state, landed, ends):
        self.state, self.ends, self.rows = state, ends, {}
        for partition, position in state.positions:
            self.write(Range(partition, 0, position.committed), lost=False)
        for block in state.pending.blocks:
            if block.number in landed:
                for each in block.ranges:
                    self.write(each, lost=False)

    def write(self, each, *, lost=True):
        for offset in range(each.first, each.end):
            at = (self.state.labelled(each.partition), offset)
            new = lost and offset >= self.ends[each.partition]
            self.rows.setdefault(at, []).append((each.partition, offset, new))

    def held(self):
        asked = [(each, self.state.labelled(each)) for each, _ in self.state.positions]
        offsets = {each: [offset for there, offset in self.rows if there == label] for each, label in asked}
        return TargetView(tuple((each, max(found) + 1) for each, found in offsets.items() if found))

    def start(self, landed):
        """As a driver does it: the pending plan first, then all that is there. What has its coordinates is not written."""
        bind(self.state, source(dict.fromkeys(END, LATER)), Start.EARLIEST)
        for block in self.state.pending.blocks if self.state.pending else ():
            for each in block.ranges:
                if not self.holds(each):
                    assert block.number not in landed
                    self.write(each)
        if self.state.pending:
            self.state = recorded(self.state, Totals())
        for partition, committed in self.state.committed().items():
            for offset in range(committed, LATER):
                if not self.holds(Range(partition, offset, offset + 1)):
                    self.write(Range(partition, offset, offset + 1))

    def holds(self, each):
        label = self.state.labelled(each.partition)
        return any((label, offset) in self.rows for offset in range(each.first, each.end))

    def coordinates(self):
        found = {}
        for at, records in self.rows.items():
            for record in records:
                found.setdefault(record, []).append(at)
        return found


@pytest.mark.parametrize("blocks", PLANS)
@pytest.mark.parametrize("end", range(25))
def test_no_record_lands_twice_and_no_coordinate_is_used_twice(blocks, end):
    plan = planned(blocks)
    for landed in subsets(blocks):
        world = World(ledger(plan), landed, {P0: LATER, P1: end})
        seen = landed_too(world.held(), plan, landed)
        ends = {P0: 18, P1: end}
        if end == 24:
            with pytest.raises(errors.NothingToDo):
                rebase(world.state, source(ends), seen, "operator")
            continue
        decision = rebase(world.state, source(ends), seen, "operator", to=Start.LATEST, drop_pending=True)
        may_change(world.state, decision.new, marks(plan, landed))
        world.state = replace(decision.new, owner="next")
        world.start(landed)
        said = (end, landed)
        assert not [at for at, records in world.rows.items() if len(records) > 1], said
        assert not [each for each, found in world.coordinates().items() if len(found) > 1], said
        assert {(P0, offset, False) for offset in range(LATER)} <= world.coordinates().keys(), said
        assert {(P1, offset, True) for offset in range(end, LATER)} <= world.coordinates().keys(), said


def marks(plan, landed):
    claim = Claim(3, "driver")
    return tuple(
        BlockRow(block.number, claim, BlockState.AFTER if block.number in landed else BlockState.BEFORE)
        for block in plan.blocks
    )


class TestWhatStays:
    PLAN = planned((((P0, 10, 18),), ((P1, 20, 24),)))
    LOST = source({P0: 18, P1: 5})

    def test_the_part_of_the_plan_that_can_still_be_read_is_settled_under_its_own_tokens(self):
        old = ledger(self.PLAN)
        new = rebase(old, self.LOST, TargetView(()), "operator", drop_pending=True).new
        assert new.pending == replace(self.PLAN, blocks=self.PLAN.blocks[:1])
        assert token(new.identity, new.pending.blocks[0]) == token(old.identity, self.PLAN.blocks[0])
        assert (new.labelled(P0), new.labelled(P1)) == (P0, Partition("t@id-of-t-", 1))
        assert new.positions == ((P0, Position(0, 10)), (P1, Position(0, 0)))

    def test_a_plan_of_which_nothing_is_lost_needs_no_leave(self):
        old = ledger(planned((((P0, 10, 18),),)))
        assert rebase(old, self.LOST, TargetView(()), "operator").new.pending == old.pending
        other = replace(source({P0: 18, P1: 24}), cluster_id="another")
        assert rebase(old, other, TargetView(()), "operator").new.pending == old.pending

    def test_a_plan_that_goes_beyond_the_end_is_something_to_do(self):
        """The position is inside the topic, and a start refuses: `rebase` must not say that there is nothing to do."""
        beyond = source({P0: 18, P1: 22})
        with pytest.raises(errors.PositionBeyondEnd):
            bind(ledger(self.PLAN), beyond, Start.EARLIEST)
        with pytest.raises(errors.PlanPending, match=r"t\[1\] \[20, 24\)") as refused:
            rebase(ledger(self.PLAN), beyond, TargetView(()), "operator")
        assert "--drop-pending" in refused.value.command
        new = rebase(ledger(self.PLAN), beyond, TargetView(()), "operator", drop_pending=True).new
        assert (new.labels, new.committed()) == ((), {P0: 10, P1: 20})
        bind(new, beyond, Start.EARLIEST)

    def test_a_topic_that_is_made_again_takes_the_labels_of_its_partitions_with_it(self):
        old = replace(ledger(None), labels=(("t[1]", "t@id-of-t-"), ("u[0]", "u@x")))
        again = replace(source({P0: 3, P1: 3}), topic_ids=(("t", "ANOTHER-ID"),))
        new = rebase(old, again, TargetView(()), "operator").new
        assert new.labels == (("t", "t@ANOTHER-.2"), ("u[0]", "u@x"))
        again = rebase(old, source({P0: 3, P1: 24}), TargetView(()), "operator").new
        assert (again.labelled(P0).topic, again.labelled(P1).topic) == ("t@id-of-t-.2", "t@id-of-t-")

    def test_what_landed_of_a_forgotten_plan_is_recognised(self):
        whole = source({P0: 18, P1: 24})
        decision = rebase(ledger(self.PLAN), whole, TargetView(()), "operator", drop_pending=True)
        assert [each for each in decision.costs if "recognises" in each]


class TestLedgersThatKnowWhatLanded:
    PLAN = planned((((P0, 10, 18),), ((P1, 20, 24),)))

    def test_a_plan_is_not_cut_out_of_a_block_that_landed(self):
        old = ledger(self.PLAN)
        new = replace(old, epoch=4, owner="operator", pending=replace(self.PLAN, blocks=self.PLAN.blocks[1:]))
        may_change(old, new, marks(self.PLAN, {1}))
        with pytest.raises(errors.PlanPending, match="would be delivered again"):
            may_change(old, new, marks(self.PLAN, {0}))

    def test_a_label_of_another_partition_excuses_nothing(self):
        old = ledger(self.PLAN)
        new = replace(old, epoch=4, owner="operator", pending=None, labels=(("t[1]", "t@x"),))
        may_change(old, new, marks(self.PLAN, {1}))
        with pytest.raises(errors.PlanPending, match="would be delivered again"):
            may_change(old, new, marks(self.PLAN, {0}))

    def test_a_push_in_doubt_keeps_its_key(self):
        """In another cluster the block has another token: a probe by its new key would not find it."""
        old = ledger(self.PLAN)
        rows = tuple(PushRow(number, Claim(3, "driver"), BlockState.CLAIMED) for number in (0, 1))
        new = replace(old, epoch=4, owner="operator")
        claims_may_change(old, new, rows)
        with pytest.raises(errors.PlanPending, match="nobody knows whether it arrived"):
            claims_may_change(old, replace(new, cluster_id="another"), rows)


class TestLabels:
    LABELS = (("t[1]", "t@x"), ("u", "u@y"))

    def test_a_block_knows_its_ranges_by_their_labels(self):
        ranges = tuple(Range(each, 0, 5) for each in (P0, P1, Partition("u", 1)))
        task = Task(index=0, batch=1, plan="", block=Block(ranges, "table"), labels=self.LABELS)
        assert [str(each) for each in task.labelled] == ["t[0] [0, 5)", "t@x[1] [0, 5)", "u@y[1] [0, 5)"]

    def test_a_row_that_does_not_fit_is_a_record_of_its_topic(self):
        rows = pa.table({"_topic": ["t", "t@x", "u@y"], "_partition": [0, 1, 1], "_offset": [7, 8, 9]})
        found = [rejected_row(dict(self.LABELS), rows, at, "").partition for at in range(3)]
        assert found == [P0, P1, Partition("u", 1)]

    def test_a_table_leaves_out_what_it_has_of_the_partition_under_its_label(self):
        rows = pa.table({"_topic": ["t", "t", "t@x"], "_partition": [0, 1, 1], "_offset": [1, 1, 1]})
        assert from_floors(rows, {P1: 5}, dict(self.LABELS)).column("_topic").to_pylist() == ["t", "t"]

    def test_a_mark_of_a_table_counts_for_the_partitions_that_did_not_move(self):
        old = replace(ledger(None), tables=(("a", TableMark("uuid", 7)),))
        carried = replace(old, batch=8, positions=((P0, Position(0, 18)), (P1, Position(0, 24))), tables=())
        new = rebase(old, source({P0: 18, P1: 5}), TargetView(()), "operator").new
        there = status_of(new, TableView("a", "uuid", CarriedMark(carried), 8))
        assert dict(there.floors) == {P0: 18, P1: 0}
