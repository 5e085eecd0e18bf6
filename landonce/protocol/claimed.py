"""Where a user's own function delivers: each attempt is claimed in the ledger before it is made, and settled after it. Pure.

Where pushing a block again is harmless, one without an answer is simply pushed again. Where it is not, an attempt that was claimed and never
settled is waited out, and then the worker asks the sink's probe (`protocol.push`); without one the driver halts:

    look      ledger: the blocks' rows, and its clock           which attempts were claimed and never settled
    await     ledger: its clock is past the last of them        nothing of them can take effect any more
    look      the same again                                    another worker may have settled them meanwhile
    write     workers: claim, push, settle                      the block's row says AFTER once it is there

A partition has one block at a time, so its blocks arrive in order. The target is never looked at: it may be anything.
"""

from __future__ import annotations

from dataclasses import dataclass

from landonce import errors
from landonce.protocol import query_refusals as refusals
from landonce.protocol.batch import Machine, Next, Policy, do, not_again, resolve, unexpected
from landonce.protocol.block_rows import BlockState, PushRow, PushRows, ends, over
from landonce.protocol.blocks import Block, block_key
from landonce.protocol.ledger import LedgerState, Totals
from landonce.protocol.receipt import Receipt
from landonce.protocol.settle import Mode
from landonce.protocol.steps import Await, FoundBlock, LookAtClaims, Reply


@dataclass(frozen=True)
class Claimed(Policy):
    """A wrapped sink."""

    harmless: bool = False
    """Pushing a block again changes nothing."""
    can_probe: bool = False
    wait: int = 0
    """Milliseconds from a claim until nothing of its attempt can take effect any more."""
    ordered: bool = True
    keeps_receipts = True

    def plan_changed(self) -> errors.PlanChanged:
        return errors.PlanChanged(
            "the pending plan was made with another sink, transform, schema, decoder or version of pyarrow. What was "
            "pushed and what would be pushed again may not be the same bytes.",
            safe="Nothing was pushed. The plan is still pending in the ledger.",
            command="put the old pipeline file (or version) back, run `landonce run {file} --once`, then make the change; "
            "or `landonce state accept-change {file}`",
        )

    def looks_unbound(self, machine: Machine) -> bool:
        del machine
        return False

    def has_looked(self, machine: Machine) -> bool:
        del machine
        return True

    def recover(self, machine: Machine) -> Next:
        """Where pushing again may do harm, earlier attempts come first. So they do where a block does not come again."""
        if self.harmless and not not_again(machine):
            return self.write(machine, Mode.RESOLVE)
        return do(machine, LookAtClaims(machine.pending))

    def after_await(self, machine: Machine) -> Next:
        return do(machine, LookAtClaims(machine.pending))

    def after_look(self, machine: Machine, reply: Reply) -> Next:
        """Attempts of which nobody has said what became of them are waited out, all of them, before anything is pushed."""
        if not isinstance(reply, PushRows):
            raise unexpected(machine, reply)
        others = not_again(machine)
        claimed = [row for row in reply.rows if row.mark is BlockState.CLAIMED]
        if any(not over(row, reply.now, self.wait) for row in claimed):
            return do(machine, Await(max(ends(row, self.wait) for row in claimed)))
        if others:
            rows = {row.number: row for row in reply.rows}
            return resolve(machine, tuple(_found(machine, index, rows) for index in others))
        if claimed and not self.can_probe:
            raise outcome_unknown(machine.state, *claimed)
        return self.write(machine, Mode.RESOLVE)


def _found(machine: Machine, index: int, rows: dict[int, PushRow]) -> FoundBlock:
    """A block that nobody claimed was never pushed: workers of earlier drivers can claim it no more. One that was claimed may have arrived,
    and a probe cannot be asked about rows that Spark does not bring."""
    block = machine.pending.blocks[index]
    row = rows.get(block.number)
    if row is None:
        raise refusals.taken_over()
    if row.mark is BlockState.CLAIMED:
        raise refusals.pushed(machine.pending, block, key_of(machine.state, block))
    totals = Receipt.from_json(row.receipt).totals if row.receipt is not None else Totals()
    return FoundBlock(index, row.mark is BlockState.AFTER, totals)


def outcome_unknown(state: LedgerState, row: PushRow, *others: PushRow) -> errors.OutcomeUnknown:
    """What a driver says that may neither push again nor go on. A person who looks for one block can look for all."""
    if state.pending is None:
        raise ValueError("there is no pending plan")
    plan = state.pending
    block = next(each for each in plan.blocks if each.number == row.number)
    key = key_of(state, block)
    more = (
        f" The same holds for {len(others)} more blocks of the batch: `landonce state show` names them."
        if others
        else ""
    )
    return errors.OutcomeUnknown(
        f"block {key} ({block}) of batch {plan.batch} was pushed (attempt {row.attempt}) and no answer came. The sink "
        f"has no probe, so nobody knows whether it arrived.{more}",
        safe="It was not pushed again, and the position did not move. That attempt can no longer take effect.",
        command=f"look for the block in the target, then: landonce state settle {{file}} --block {key} --landed   (or --absent)",
    )


def key_of(state: LedgerState, block: Block) -> str:
    """The key of a block of the pending plan."""
    return block_key(state.identity, block, state.labelled(block.ranges[0].partition).topic)
