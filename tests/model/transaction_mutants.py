"""Bugs that were planted on purpose in the protocol of transactions: each must be found. See `mutants`.

That a batch is recorded only if all of its blocks are there is checked twice, by the driver and in the transaction that
records it: bugs of the one are planted without the other.
"""

from __future__ import annotations

from .core import Patch
from .mutants import (
    ACCOUNT,
    BATCH,
    BOUND_FIRST,
    CHANGED,
    COUNTED_AGAIN,
    DISORDER,
    DROPPED,
    ENDLESS,
    INCOMPLETE,
    LEDGER,
    LOST,
    OTHER_ROWS,
    RECORDED_FIRST,
    SWAP,
    TOO_MANY,
    TWICE,
    UNCOMMITTED,
    UNPREPARED,
    halts,
    planted,
)

TRANSACTIONAL = "landonce.protocol.transactional"
TRANSACT = "landonce.protocol.transact"
BLOCKS = "landonce.protocol.block_rows"

_FLIP = 'return {"epoch": claim.epoch, "owner": claim.owner, "state": BlockState.BEFORE.value}'
_CLAIM = "claim=Claim.of(new) if after is not None and Claim.of(old) != Claim.of(new) else None,"
UNCHECKED = Patch(BLOCKS, "block.number not in there and new.epoch", "block.number is None and new.epoch")
_UNJUDGED = (BATCH, "if (error := _too_many(machine)) is not None:", "if (error := None) is not None:")
_READ = "    if row is not None and row.mark is BlockState.AFTER:\n"

_CLAIMS = (
    planted(
        "a block is flipped whoever claims it",
        "the database is restored under its drivers",
        LOST,
        BLOCKS,
        _FLIP,
        'return {"state": BlockState.BEFORE.value}',
    ),
    planted(
        "a block is flipped by its epoch alone",
        "the database is restored under its drivers",
        LOST,
        BLOCKS,
        _FLIP,
        'return {"epoch": claim.epoch, "state": BlockState.BEFORE.value}',
    ),
    planted(
        "a block is flipped whatever it says",
        "workers outlive their driver",
        TWICE,
        BLOCKS,
        _FLIP,
        'return {"epoch": claim.epoch, "owner": claim.owner}',
        Patch(BLOCKS, _CLAIM, "claim=None,"),
    ),
    planted(
        "a takeover leaves the blocks as they are",
        "a driver dies, answers are lost",
        halts("Fenced"),
        BLOCKS,
        _CLAIM,
        "claim=None,",
    ),
    planted(
        "a block that landed before is flipped again",
        "tasks run again",
        TWICE,
        BLOCKS,
        _FLIP,
        'return {"epoch": claim.epoch, "owner": claim.owner}',
    ),
    planted("a takeover keeps its epoch and its name", "a driver dies, answers are lost", halts("Fenced"), LEDGER,
        "return replace(state, epoch=state.epoch + 1, owner=owner, version=state.version + 1)",
        "return replace(state, version=state.version + 1)",
    ),
)  # fmt: skip

_STEPS = (
    planted(
        "the rows are written outside the transaction",
        "a driver dies, answers are lost",
        LOST,
        TRANSACT,
        "return replace(transacting, stage=TransactStage.ROWS if flipped else TransactStage.READ)",
        "return replace(transacting, stage=TransactStage.COMMIT if flipped else TransactStage.READ)",
        Patch(
            TRANSACT,
            "        return replace(transacting, fate=Fate.LANDED)\n    return replace(transacting, stage=TransactStage.FLIP)\n\n\ndef after_read",
            "        return replace(transacting, stage=TransactStage.ROWS)\n    return replace(transacting, stage=TransactStage.FLIP)\n\n\ndef after_read",
        ),
        Patch(TRANSACT, "    return replace(transacting, stage=TransactStage.COMMIT)\n\n\ndef after_commit",
              "    return replace(transacting, fate=Fate.LANDED)\n\n\ndef after_commit"),
    ),
    planted(
        "a block that was flipped before is taken for another's",
        "a driver dies, answers are lost",
        ENDLESS,
        TRANSACT,
        _READ,
        "    if row is None:\n",
    ),
    planted(
        "a commit without an answer counts as landed",
        "a driver dies, answers are lost",
        LOST,
        TRANSACT,
        "    if answered:\n",
        "    if answered or True:\n",
        UNCHECKED,
    ),
    planted(
        "a commit without an answer sends the rows again",
        "a driver dies, answers are lost",
        TWICE,
        TRANSACT,
        "    return replace(transacting, stage=TransactStage.FLIP)\n\n\ndef after_read",
        "    return replace(transacting, stage=TransactStage.ROWS)\n\n\ndef after_read",
    ),
)  # fmt: skip

_DRIVER = (
    planted(
        "prepare is skipped",
        "a driver dies, answers are lost",
        halts("Fenced"),
        *UNPREPARED,
    ),
    planted(
        "a pending plan is dropped",
        "a driver dies, answers are lost",
        ACCOUNT,
        *DROPPED,
    ),
    planted(
        "the batch is recorded before all of its blocks are there",
        "the database is restarted",
        LOST,
        *INCOMPLETE,
        UNCHECKED,
    ),
    planted(
        "the position moves before the blocks are written",
        "a driver dies, answers are lost",
        LOST,
        *RECORDED_FIRST,
        UNCHECKED,
    ),
    planted(
        "what was added counts as written",
        "columns are added",
        LOST,
        BATCH,
        "        return self.write(replace(machine, opened=True), Mode.RESOLVE)\n",
        "        return change(machine, Step.RECORD, self.recorded(machine))\n",
        UNCHECKED,
    ),
    planted(
        "dead letters are forgotten",
        "dead letters, filtered records",
        LOST,
        *UNCOMMITTED,
    ),
    planted(
        "dead letters are judged after the batch is recorded",
        "one bad record is too many",
        TOO_MANY,
        *_UNJUDGED,
        Patch(BATCH, "return do(policy.forget(machine), Survey())", "return _late(machine)"),
        Patch(
            BATCH,
            "def not_again(machine: Machine) -> tuple[int, ...]:",
            "def _late(machine: Machine) -> Next:\n"
            "    if machine.policy.tolerance.too_many(machine.totals):\n"
            "        raise errors.TooManyDeadLetters('late')\n"
            "    return do(machine.policy.forget(machine), Survey())\n\n\n"
            "def not_again(machine: Machine) -> tuple[int, ...]:",
        ),
    ),
    planted(
        "dead letters of a plan that is written again are not judged",
        "one bad record is too many",
        TOO_MANY,
        BATCH,
        "    if machine.pending.kind in (Kind.REPLAY, Kind.LETTERS):\n        return None\n",
        "    if machine.state.inherited:\n        return None\n",
    ),
    planted(
        "dead letters of earlier batches are not counted",
        "too many dead letters",
        TOO_MANY,
        BATCH,
        "    before, lately = machine.state.totals, machine.state.lately\n",
        "    before, lately = Totals(), Totals()\n",
    ),
    planted(
        "a restart forgets that the last batches were beyond the limit",
        "too many dead letters after good records",
        TOO_MANY,
        BATCH,
        "    before, lately = machine.state.totals, machine.state.lately\n",
        "    before, lately = machine.state.totals, Totals()\n",
    ),
    planted(
        "the ledger does not keep that a batch was beyond the limit",
        "too many dead letters after good records",
        TOO_MANY,
        BATCH,
        "states.recorded(machine.state, machine.totals, lately=machine.lately)",
        "states.recorded(machine.state, machine.totals)",
    ),
    planted(
        "a plan is given up though rows of it have landed",
        "one bad record is too many",
        halts("PlanPending"),
        BATCH,
        "machine.pending.kind is Kind.DELIVER and machine.totals.landed == 0",
        "machine.pending.kind is Kind.DELIVER",
    ),
    planted(
        "a plan is given up though rows of it have landed, and the ledger does not notice",
        "one bad record is too many",
        TWICE + "|" + halts("TargetAhead"),
        BATCH,
        "machine.pending.kind is Kind.DELIVER and machine.totals.landed == 0",
        "machine.pending.kind is Kind.DELIVER",
        Patch(
            BLOCKS,
            "if block.number in there and not all(past) and block.number not in empty:",
            "if block.number is None:",
        ),
    ),
    planted(
        "a plan is not given up, and its empty blocks stay",
        "too many dead letters",
        TWICE + "|" + halts("PlanPending"),
        BLOCKS,
        "row.receipt is not None and Receipt.from_json(row.receipt).landed == 0",
        "False",
    ),
    planted(
        "a plan of another transform is written",
        "the transform changes",
        OTHER_ROWS,
        *CHANGED,
    ),
    planted(
        "keyed blocks are cut as others are",
        "keyed: two drivers",
        DISORDER,
        BATCH,
        "        if self.ordered:\n",
        "        if machine.ledger is None:\n",
    ),
    planted(
        "the table is not looked at",
        "the ledger is lost",
        TWICE,
        TRANSACTIONAL,
        "for partition, end in reply.ends:",
        "for partition, end in ():",
    ),
    planted(
        "a new ledger is bound before the table is looked at, at the end",
        "the ledger is lost, and the pipeline begins at the end",
        ACCOUNT,
        *BOUND_FIRST,
        Patch(BATCH, "return machine.partitions <= machine.looked", "return True"),
    ),
    planted(
        "a pending plan is not expected in the table",
        "a driver dies, answers are lost",
        halts("TargetAhead"),
        BATCH,
        "max(at, ends.get(partition, 0))",
        "at",
    ),
    planted(
        "receipts of the batch before are counted again",
        "nothing fails, two drivers",
        halts("Unbalanced"),
        *COUNTED_AGAIN,
        Patch(BATCH, "zip(self.pending.blocks, receipts, strict=True)", "zip(self.pending.blocks, receipts)"),
    ),
)

LEDGER_WITH_BLOCKS = (
    planted(
        "the rows of a batch stay when it is recorded",
        "nothing fails, two drivers",
        ACCOUNT,
        BLOCKS,
        "removed=before if after is None else None,",
        "removed=None,",
    ),
    planted(
        "a plan is prepared without rows for its blocks",
        "nothing fails, two drivers",
        halts("Fenced"),
        BLOCKS,
        "return BlockChange(before, None, tuple(block.number for block in new.pending.blocks))",
        "return BlockChange(before)",
    ),
    planted(
        "any state may be swapped",
        "nothing fails, two drivers",
        TWICE,
        SWAP,
        "return (state.pipeline, state.epoch, state.owner, state.version, state.lineage)",
        "return (state.pipeline,)",
    ),
)
"""Of a ledger that keeps a row for each block, whatever writes the blocks."""

_LEDGER = (
    *LEDGER_WITH_BLOCKS,
    planted(
        "a batch is recorded though the database forgot its blocks",
        "the database is restored under its drivers",
        LOST,
        BLOCKS,
        "block.number not in there and new.epoch",
        "block.number is None and new.epoch",
    ),
)

MUTANTS = _CLAIMS + _STEPS + _DRIVER + _LEDGER
