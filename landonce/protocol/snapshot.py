"""Where tables commit atomically: workers write files, and one commit adds them with the position. Pure.

There is no deadline, no token and no probe. Every attempt to commit requires the mark that was looked at. A commit that comes late finds
another mark and is refused; then the tables are looked at again, and the plan is written again. A table that was rolled back has an older
mark, and the ranges that are gone are planned again, for that table alone (`marks`).

    write     workers: files                              nothing is visible: files only count once they are committed
    open      tables: made, or their schema evolved       then look again, and write again: files of one batch have the columns of one
                                                          moment
    rearm     ledger: the plan, cut to the blocks that     once the commit timeout is over: what was slow follows in the next plan
              are ready
    commit    each table: files, position and epoch       if a table's mark moved: look again, and write again
    record    ledger: the position moves                  where the table is the ledger, the commit did that

Only the driver that made a plan cuts it, and only before anything of it is committed. What is left of it is the beginning of each partition's
ranges, as if the plan had been made smaller: no order changes, and a driver that finds the plan pending writes it as it is. The next plan is
waited for, however slow its blocks are: unless the driver ends in between, a block is cut off once at most.

Where the table is its own ledger, a plan need not be durable: it lands as a whole and together with its position, or not at all. The table of
a user's own query is always its own ledger. It is looked at for each micro-batch, for it may have been taken over, rolled back or changed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from landonce import errors
from landonce.protocol import ledger as states
from landonce.protocol.batch import (
    Machine,
    Next,
    Policy,
    bind,
    change,
    commit_or_recover,
    do,
    go_on,
    unexpected,
)
from landonce.protocol.blocks import Block, Kind, Plan
from landonce.protocol.ledger import LedgerState, Totals
from landonce.protocol.marks import (
    TableStatus,
    adopted,
    behind_ranges,
    learnt,
    past_epochs,
    status_of,
    takes_part,
)
from landonce.protocol.match_ranges import cut
from landonce.protocol.own_ledger import rollback_refused
from landonce.protocol.packing import ready_first, take
from landonce.protocol.ranges import Range
from landonce.protocol.receipt import BlockResult, Fate, Receipt
from landonce.protocol.settle import Mode
from landonce.protocol.steps import CommitTables, Committed, LookAtTables, Looked, Moved, Reply, Step, Write
from landonce.protocol.tolerance import CORRECT_AND_RUN


@dataclass(frozen=True)
class Snapshot(Policy):
    """Iceberg, and whatever else commits files atomically."""

    own_ledger: bool = False
    """The one table is the ledger."""
    follow: bool = True
    """A table that was rolled back gets the removed ranges again. Otherwise the run halts."""
    in_parts: bool = False
    """There is a commit timeout, after which blocks that are ready go ahead."""

    # A pending plan.

    def plan_changed(self) -> errors.PlanChanged:
        return errors.PlanChanged(
            "the pending plan was made with another transform, routing or decoder than the pipeline file has now. "
            "Some tables may already hold it.",
            safe="Nothing was written. The plan is still pending in the ledger.",
            command="put the old pipeline file back, run `landonce run {file} --once`, then make the change; "
            "or `landonce state accept-change {file}`",
        )

    def replays(self, plan: Plan) -> bool:
        """Tables that have the pending batch keep it as it was written; for the others it must mean the same."""
        return self.own_ledger or super().replays(plan)

    def recover(self, machine: Machine) -> Next:
        """Files of a task that failed do not count, so it is simply done again."""
        return self.look(machine) if machine.tables is None else self.write(machine, Mode.RESOLVE)

    # Before planning.

    def surveyed(self, machine: Machine) -> Machine:
        """It may be time to look at the tables again."""
        due = machine.world.look and machine.state.pending is None
        return replace(machine, tables=None) if due else machine

    def looks_unbound(self, machine: Machine) -> bool:
        """A topic that is new to a query may be in its table already."""
        return machine.state.fresh or machine.incoming is not None

    def has_looked(self, machine: Machine) -> bool:
        return machine.tables is not None

    def look(self, machine: Machine) -> Next:
        return do(machine, LookAtTables())

    def after_look(self, machine: Machine, reply: Reply) -> Next:
        """A ledger that was restored may have handed out an epoch that a table knows already: the next one is past all of them."""
        if not isinstance(reply, Looked):
            raise unexpected(machine, reply)
        if machine.incoming is not None:
            refuse_unmarked(reply)
            return bind(replace(machine, tables=()))
        if machine.state.fresh:
            return change(machine, Step.BIND, _first_binding(machine, reply))
        past = past_epochs(view for view in reply.views if view.mark and view.mark.state.owner != machine.state.owner)
        if past > machine.state.epoch:
            raised = replace(machine.state, epoch=past, version=machine.state.version + 1)
            return change(replace(machine, tables=None, receipts=()), Step.BIND, raised)
        tables = tuple(status_of(machine.state, view) for view in reply.views)
        behind = [each.view.table for each in tables if each.behind and not (each.view.mark and each.view.mark.behind)]
        if behind and not self.follow:
            raise rollback_refused(behind)
        return go_on(replace(machine, tables=tables))

    def owed(self, machine: Machine) -> tuple[Range, ...]:
        """What tables that are behind lack. Kafka must still have it."""
        again = behind_ranges(machine.state, machine.tables or ())
        extents = dict(machine.source.view.extents) if again else {}
        for each in again:
            extent = extents.get(each.partition)
            if extent is None or extent.start > each.first:
                raise errors.RetentionOverrun(
                    f"a table was rolled back to offset {each.first} of {each.partition}, and the topic now begins at "
                    f"{extent.start if extent else 'nowhere'}.",
                    safe="Nothing was skipped.",
                    command="roll the table forward again, or `landonce state accept-gap {file}`",
                )
        return take(again, machine.world.limits.max_rows)

    # Planning and writing.

    def blocks(self, machine: Machine, ranges: tuple[Range, ...]) -> tuple[Block, ...]:
        """All pieces of Spark's ranges land together, or not at all, so a partition may have many."""
        if machine.incoming is not None:
            return cut(ranges, self.target, self.block_rows)
        return super().blocks(machine, ranges)

    def refuse_letters(self, machine: Machine) -> None:
        """A table that is not in step would not get its rows, or would seem to hold them."""
        for each in machine.tables or ():
            if each.behind or each.floors:
                raise errors.ReplayRefused(
                    f"the table {each.view.table} is not in step with the ledger: it was rolled back, or the ledger was restored.",
                    safe="Nothing was written.",
                    command="landonce run {file} --once   (brings it in step), then the same command again",
                )

    def next_batch(self, machine: Machine) -> int:
        """Batches are numbered past everything that any table ever carried, so that a later one has a higher number than an earlier one."""
        return max([machine.state.batch, *(each.view.batch for each in machine.tables or ())]) + 1

    def write(self, machine: Machine, mode: Mode) -> Next:
        if mode is Mode.FIRST:
            machine = replace(machine, untried=self.in_parts and not machine.owes, owes=False)
        if not machine.unwritten:
            return commit_or_recover(machine)
        taking, untried = _taking(machine), machine.untried
        write = Write(machine.pending, machine.unwritten, tables=taking, final=machine.opened, in_parts=untried)
        return do(machine, write)

    def wrote(self, machine: Machine, results: tuple[BlockResult, ...]) -> Next:
        """Where blocks were slow, what is ready goes ahead. The ledger says so first: a plan that is pending is written as it is there."""
        plan, receipts = machine.pending, dict(machine.receipts)
        ready = ready_first(plan.blocks, receipts) if any(each.fate is Fate.SLOW for each in results) else ()
        if not ready:
            return commit_or_recover(machine)
        late = tuple(block.number for index, block in enumerate(plan.blocks) if index not in ready)
        cut = replace(plan, blocks=tuple(plan.blocks[index] for index in ready), late=late)
        kept = tuple((at, receipts[index]) for at, index in enumerate(ready))
        machine = replace(machine, receipts=kept, untried=False, owes=True)
        return change(machine, Step.REARM, states.amended(machine.state, cut))

    def after_open(self, machine: Machine, *, new_tables: bool) -> Next:
        return self.look(replace(machine, receipts=(), opened=not new_tables))

    def may_give_up(self, machine: Machine) -> bool:
        """A table that is its own ledger never holds a plan: there is nothing to give up."""
        return not self.own_ledger and super().may_give_up(machine)

    def once_corrected(self, machine: Machine) -> str:
        """Files that are not committed are nothing, whatever they hold."""
        if self.own_ledger or self.may_give_up(machine):
            return CORRECT_AND_RUN
        return self.once_changed

    @property
    def once_changed(self) -> str:
        return CORRECT_AND_RUN if self.own_ledger else super().once_changed

    # Committing.

    def commit(self, machine: Machine, receipts: tuple[Receipt, ...]) -> CommitTables:
        return CommitTables(machine.pending, receipts, _taking(machine), self.recorded(machine))

    def after_commit(self, machine: Machine, reply: Reply) -> Next:
        if isinstance(reply, Moved):
            return self.look(replace(machine, receipts=(), opened=False, tables=None, untried=False))
        if not isinstance(reply, Committed):
            raise unexpected(machine, reply)
        now = {view.table: view for view in reply.views}
        tables = tuple(replace(each, view=now.get(each.view.table, each.view)) for each in machine.tables or ())
        machine = replace(machine, tables=tables)
        return change(machine, Step.RECORD, self.recorded(machine))

    def recorded(self, machine: Machine) -> LedgerState:
        """What was delivered again was counted when it was delivered first."""
        totals = machine.totals if machine.pending.kind is not Kind.REPLAY else Totals()
        tables = learnt(machine.state, machine.pending, machine.tables or ())
        return states.recorded(machine.state, totals, tables, machine.lately)

    def forget(self, machine: Machine) -> Machine:
        tables = tuple(status_of(machine.state, each.view) for each in machine.tables or ())
        return replace(super().forget(machine), tables=tables, untried=False)


def _first_binding(machine: Machine, looked: Looked) -> LedgerState:
    """From the marks of the tables, if there are any: then the ledger was lost. Otherwise from where the topics begin."""
    found = adopted(machine.state, looked.views)
    if found is not None:
        return replace(machine.source.bound(found, machine.policy.start), version=found.version)
    refuse_unmarked(looked)
    return machine.bound


def refuse_unmarked(looked: Looked) -> None:
    """Raises where a table holds, or may hold, what is about to be delivered to it, and no mark says how much of it."""
    if looked.filled_by:
        raise errors.TargetAhead(
            f"{looked.filled_by} wrote to the table {looked.held}, and nothing in the table says which records of "
            "these topics it holds.",
            safe="Nothing was written.",
            command="`landonce state import {file}` continues where that writer stopped. If it wrote other topics, "
            "add --from-nothing",
        )
    if looked.held:
        raise errors.TargetAhead(
            f"the table {looked.held} holds records of these topics, but no position of this pipeline.",
            safe="Nothing was written. Another pipeline wrote them, or the table's properties and history were removed.",
            command="use a new table, use the name of the pipeline that wrote them, or run `landonce state import "
            "{file}`",
        )


def _taking(machine: Machine) -> tuple[TableStatus, ...]:
    """The tables that take part in the pending plan, and where each begins."""
    ranges = tuple(each for block in machine.pending.blocks for each in block.ranges)
    return tuple(each for each in machine.tables or () if takes_part(machine.pending.kind, ranges, each))
