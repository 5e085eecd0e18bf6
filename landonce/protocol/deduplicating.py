"""Where the target deduplicates: a token against races, a deadline against zombies, a probe as the proof. Pure.

A plan carries a deadline on the target's clock, and each block a token. After any doubt:

    await     the target's clock is past the deadline      no insert of the pending plan can begin any more
    kill      what runs under our query ids is ended       none of them runs any more
    rearm     the ledger: a new deadline, and the next     the plan may be written again, by me only
              generation for tokens that are used up
    write     workers probe, and send what is missing      `protocol.settle`

The first write of a plan is not probed. Rows are counted instead: above the position before a plan is made, and in its blocks after the
first write. That finds a second driver with another ledger, which writes the same rows under other tokens. If the target is ahead of the
ledger, what it holds is reconciled first: read again, compared, and written only if absent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from landonce import errors
from landonce.protocol import ledger as states
from landonce.protocol.batch import Machine, Next, Policy, bind, change, commit_or_recover, do, go_on, prepare, settle
from landonce.protocol.blocks import Kind, Plan
from landonce.protocol.ledger import LedgerState, TableMark
from landonce.protocol.letters import refuse_ahead
from landonce.protocol.ranges import Range
from landonce.protocol.receipt import BlockResult, Fate, Want
from landonce.protocol.settle import Mode
from landonce.protocol.steps import Await, Count, Kill, Look, Open, Reply, Step, Write
from landonce.protocol.target import TargetView, above, ahead, below_start, nobody_else, refuse_below_start

MOST_USED_UP = 2
"""Tokens of one block that may be used up without a word."""


@dataclass(frozen=True)
class Deduplicating(Policy):
    """ClickHouse, and whatever else deduplicates by a token."""

    compares = True
    owed_as = Kind.RECONCILE

    # A pending plan.

    def plan_changed(self) -> errors.PlanChanged:
        return errors.PlanChanged(
            "the pending plan was made with another shard map, transform, schema or decoder: the pipeline file or the table's "
            "columns were changed since. What was written and what would be written again are not the same rows.",
            safe="Nothing was written. The plan is still pending in the ledger.",
            command="put the old pipeline file or columns back, run `landonce run {file} --once`, then make the change; "
            "or `landonce state accept-change {file}`",
        )

    def recover(self, machine: Machine) -> Next:
        return do(machine, Await(machine.pending.deadline))

    def after_await(self, machine: Machine) -> Next:
        return do(machine, Kill())

    def after_kill(self, machine: Machine, now: int) -> Next:
        """Without a pending plan, this ended inserts of a plan that a restored ledger has forgotten. Now the target is looked at."""
        if machine.state.pending is None:
            return do(machine, Look(machine.floors))
        return settle(replace(machine, deadline=now + machine.world.patience))

    def write_again(self, machine: Machine) -> Next:
        """The new deadline and generations are durable before anything is sent under them."""
        plan = machine.pending.regenerated(machine.used_up).rearmed(machine.deadline)
        return change(machine, Step.REARM, states.amended(machine.state, plan))

    # Before planning.

    def look(self, machine: Machine) -> Next:
        """What still runs is ended first: a restored ledger may have forgotten the plan that it belongs to."""
        return do(machine, Kill())

    def after_look(self, machine: Machine, reply: Reply) -> Next:
        """A new ledger is bound only if the look refuses nothing, and then the target is looked at again."""
        if not isinstance(reply, TargetView):
            return self._after_count(machine, reply)
        if self.replay:
            refuse_ahead(reply.ends)
        found = ahead(machine.bound, reply, machine.source.view, self.start, unbound=machine.state.fresh)
        if machine.state.fresh:
            below = below_start(machine.bound, reply, self.start)
            return do(machine, Count(below)) if below else bind(machine)
        ends = (*machine.ahead, *((each.partition, each.end) for each in found))
        return go_on(replace(machine, looked=machine.looked | machine.partitions, counted=True, ahead=ends))

    def owed(self, machine: Machine) -> tuple[Range, ...]:
        """What the target may hold already of what is undelivered."""
        ends = dict(machine.ahead)
        return tuple(
            replace(each, end=min(each.end, ends[each.partition]))
            for each in machine.source.undelivered(machine.state)
            if each.first < ends.get(each.partition, 0)
        )

    def deliver(self, machine: Machine, ranges: tuple[Range, ...]) -> Next:
        if not machine.counted:
            return do(machine, Count(above(ranges)))
        return prepare(machine, ranges, Kind.DELIVER)

    def deadline(self, machine: Machine) -> int:
        return machine.world.target_now + machine.world.patience

    # Writing.

    def write(self, machine: Machine, mode: Mode) -> Next:
        refuse_not_kept(machine.pending, machine.used_up, machine.gone)
        machine = replace(machine, used_up=frozenset(), first=mode is Mode.FIRST)
        return do(machine, Write(machine.pending, machine.unwritten, mode, final=machine.opened))

    def wrote(self, machine: Machine, results: tuple[BlockResult, ...]) -> Next:
        """What was written for the first time is counted. What came too late gets twice the time."""
        used_up = [result for result in results if result.fate is Fate.TOKEN_USED_UP]
        gone = next((result.why for result in used_up if result.why), "")
        machine = replace(machine, used_up=frozenset(result.index for result in used_up), gone=gone)
        if any(result.fate is Fate.LATE for result in results):
            machine = replace(machine, surveyed=machine.world.patient())
        if machine.first and machine.receipts:
            landed = (machine.pending.blocks[index] for index, _ in machine.receipts)
            return do(machine, Count(tuple(each for block in landed for each in block.ranges)))
        return commit_or_recover(machine)

    def opens(self, machine: Machine, results: tuple[BlockResult, ...], wants: tuple[Want, ...]) -> Next:
        """What is in doubt is settled first, and then asks again: a table is changed only while nothing is under way."""
        doubt = any(result.fate not in (Fate.LANDED, Fate.WAITING) for result in results)
        return self.wrote(machine, results) if doubt else do(machine, Open(wants))

    def after_open(self, machine: Machine, *, new_tables: bool) -> Next:
        """A block that waits has sent nothing. One that was written for the first time may still be: it begins as it would have."""
        return self.write(replace(machine, opened=not new_tables), Mode.FIRST if machine.first else Mode.RESOLVE)

    def recorded(self, machine: Machine) -> LedgerState:
        """With the tables that got rows, where there are several, and with their columns, where they evolve."""
        known = {name: mark.columns for name, mark in machine.state.tables}
        columns: dict[str, set[str]] = {}
        for _, receipt in machine.receipts:
            for name, some in (*((name, ()) for name, _ in receipt.rows), *receipt.columns):
                columns.setdefault(name, set(known.get(name, ()))).update(some)
        marks = {name: TableMark("", machine.pending.batch, tuple(sorted(each))) for name, each in columns.items()}
        return states.recorded(machine.state, machine.totals, marks, machine.lately)

    def _after_count(self, machine: Machine, reply: Reply) -> Next:
        """Before a plan is made, no row may be above the position. After its first write, its blocks have as many rows as their receipts say.
        Where a new ledger begins in the middle, no row may be below."""
        rows = reply if isinstance(reply, int) else None
        if machine.state.fresh:
            refuse_below_start(rows or 0, self.start)
            return bind(machine)
        planned = machine.state.pending is not None
        landed = sum(receipt.rows_landed for _, receipt in machine.receipts) if planned else 0
        nobody_else(self.target, machine.state, rows, landed)
        return commit_or_recover(machine) if planned else prepare(machine, machine.new_ranges, Kind.DELIVER)


def refuse_not_kept(plan: Plan, used_up: frozenset[int], why: str) -> None:
    """Raises where tokens of a block are used up again and again: no server dies so often between token and part. The next generation is
    recorded by then, so that the next start tries once more."""
    for block in (plan.blocks[index] for index in sorted(used_up)):
        if block.generation > MOST_USED_UP:
            raise errors.RowsNotKept(
                f"block {block}: the target acknowledged its rows {block.generation} times, each time under a new "
                f"token, and does not hold them. {why}".strip(),
                safe="The position did not move, and the plan is pending.",
                command="stop whatever removes the rows, then `landonce run {file}`",
            )
