"""Bugs that were planted on purpose in the protocol of wrapped sinks: each must be found. See `mutants`.

That a batch is recorded only if all of its blocks are there is checked twice, by the driver and in the transaction that
records it: bugs of the one are planted without the other.
"""

from __future__ import annotations

from .core import Patch
from .mutants import (
    ACCOUNT,
    BATCH,
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
    TOO_EARLY,
    TWICE,
    UNCOMMITTED,
    UNPREPARED,
    halts,
    planted,
)
from .transaction_mutants import BLOCKS, LEDGER_WITH_BLOCKS, UNCHECKED

CLAIMED = "landonce.protocol.claimed"
WORKER = "landonce.protocol.push"
ROWS = "landonce.protocol.block_rows"

_CLAIM = "claim=Claim.of(new) if after is not None and Claim.of(old) != Claim.of(new) else None,"
_PROBED = "    if pushing.can_probe and over:\n"

_CLAIMS = (
    planted(
        "a block that is claimed is claimed again",
        "probe: tasks run again",
        TWICE,
        ROWS,
        "if harmless else (BlockState.BEFORE.value,)",
        "if True else (BlockState.BEFORE.value,)",
    ),
    planted(
        "two attempts follow one that was waited out",
        "probe: two look at once",
        TWICE,
        ROWS,
        '        "nonce": (seen,),\n',
        "",
    ),
    planted(
        "an attempt settles the claim of another",
        "probe: tasks run again",
        TWICE,
        ROWS,
        'return {"state": (BlockState.CLAIMED.value,), "nonce": (nonce,)}',
        'return {"state": (BlockState.CLAIMED.value, BlockState.BEFORE.value)}',
        Patch(WORKER, "    return replace(pushing, stage=PushStage.PUSH if won else PushStage.ROW)\n",
              "    return replace(pushing, stage=PushStage.PUSH if won else PushStage.RELEASE)\n"),
    ),
    planted(
        "a takeover leaves the blocks as they are",
        "probe: workers outlive their driver",
        halts("Fenced"),
        BLOCKS,
        _CLAIM,
        "claim=None,",
    ),
    planted(
        "an attempt is over at once",
        "probe: one worker outlives its driver",
        TWICE,
        ROWS,
        "return now > ends(row, wait)",
        "return True",
    ),
    planted(
        "an attempt is over a moment too early",
        "probe: one worker outlives its driver",
        TWICE,
        ROWS,
        "return now > ends(row, wait)",
        "return now >= ends(row, wait)",
    ),
    planted(
        "an attempt is over when a later declaration says so",
        "probe: a sink is declared again",
        TWICE,
        ROWS,
        "max(wait, row.wait)",
        "wait",
    ),
)  # fmt: skip

_WORKERS = (
    planted(
        "a block is pushed without a claim",
        "probe: tasks run again",
        TWICE,
        WORKER,
        "    return replace(pushing, stage=PushStage.PUSH if won else PushStage.ROW)\n",
        "    return replace(pushing, stage=PushStage.PUSH)\n",
    ),
    planted(
        "the probe is asked before the attempt is over",
        "probe: tasks run again",
        TWICE,
        WORKER,
        _PROBED,
        "    if pushing.can_probe:\n",
    ),
    planted(
        "what the probe finds is pushed",
        "probe: a driver dies",
        TWICE,
        WORKER,
        "stage=PushStage.FOUND if there else PushStage.RECLAIM",
        "stage=PushStage.RECLAIM",
    ),
    planted(
        "what the probe does not find counts as there",
        "probe: a driver dies",
        LOST,
        WORKER,
        "stage=PushStage.FOUND if there else PushStage.RECLAIM",
        "stage=PushStage.FOUND",
    ),
    planted(
        "what may have arrived is set free",
        "probe: a driver dies",
        TWICE,
        WORKER,
        "    if outcome is Outcome.UNKNOWN:\n        return replace(pushing, fate=Fate.DOUBTFUL)\n",
        "",
    ),
    planted(
        "what may have arrived counts as there",
        "probe: a driver dies",
        LOST,
        WORKER,
        "    if outcome is Outcome.RETURNED:\n",
        "    if outcome in (Outcome.RETURNED, Outcome.UNKNOWN):\n",
    ),
    planted(
        "what did not arrive counts as there",
        "no probe: pushes are refused",
        LOST,
        WORKER,
        "    if outcome is Outcome.RETURNED:\n",
        "    if outcome in (Outcome.RETURNED, Outcome.NOT_PUSHED):\n",
    ),
    planted(
        "a refused block is never pushed again",
        "no probe: pushes are refused",
        LOST,
        WORKER,
        "fate=Fate.HALTED if pushing.refused else Fate.DOUBTFUL",
        "fate=Fate.LANDED",
        UNCHECKED,
    ),
    planted(
        "another's claim counts as landed",
        "probe: tasks run again",
        LOST,
        WORKER,
        "        return replace(pushing, stage=PushStage.PROBE, seen=row.nonce)\n    return replace(pushing, fate=Fate.DOUBTFUL)\n",
        "        return replace(pushing, stage=PushStage.PROBE, seen=row.nonce)\n    return replace(pushing, fate=Fate.LANDED)\n",
        UNCHECKED,
    ),
    planted(
        "a block that landed before is pushed again",
        "no probe: a driver dies",
        ENDLESS,
        WORKER,
        "    if row is not None and row.mark is BlockState.AFTER:\n",
        "    if row is not None and row.mark is None:\n",
    ),
    planted(
        "a block without rows counts before it is settled",
        "a block without rows",
        halts("Unbalanced"),
        WORKER,
        "    first = PushStage.SKIP if empty else PushStage.CLAIM\n    return Pushing(first, harmless or empty, can_probe, first)\n",
        "    return Pushing(PushStage.CLAIM, harmless, can_probe, PushStage.CLAIM, fate=Fate.LANDED if empty else None)\n",
    ),
)

_DRIVERS = (
    planted(
        "prepare is skipped",
        "probe: a driver dies",
        halts("Fenced"),
        *UNPREPARED,
    ),
    planted(
        "a pending plan is dropped",
        "probe: a driver dies",
        ACCOUNT,
        *DROPPED,
    ),
    planted(
        "a driver without a probe goes on as if it had one",
        "no probe: a driver dies",
        ENDLESS,
        CLAIMED,
        "        if claimed and not self.can_probe:\n            raise outcome_unknown(machine.state, *claimed)\n",
        "",
    ),
    planted(
        "a driver asks a person while an attempt may still take effect",
        "no probe: one worker outlives its driver",
        TOO_EARLY,
        CLAIMED,
        "        if any(not over(row, reply.now, self.wait) for row in claimed):\n",
        "        if machine.ledger is None:\n",
    ),
    planted(
        "the batch is recorded before all of its blocks are there",
        "probe: a driver dies",
        ACCOUNT,
        *INCOMPLETE,
        UNCHECKED,
    ),
    planted(
        "the position moves before the blocks are pushed",
        "probe: a driver dies",
        LOST,
        *RECORDED_FIRST,
        UNCHECKED,
    ),
    planted(
        "dead letters are forgotten",
        "dead letters, filtered records",
        LOST,
        *UNCOMMITTED,
    ),
    planted(
        "a plan of another transform is pushed",
        "the transform changes",
        OTHER_ROWS,
        *CHANGED,
    ),
    planted(
        "receipts of the batch before are counted again",
        "nothing fails, two drivers",
        halts("Unbalanced"),
        *COUNTED_AGAIN,
    ),
    planted(
        "a partition has two blocks in a batch",
        "probe: in order",
        DISORDER,
        BATCH,
        "            return one_each(ranges, self.target, machine.world.limits)\n",
        "            from landonce.protocol.packing import Limits, pack\n            return pack(ranges, 'sink', Limits(8, 1))\n",
    ),
)

_LEDGER = (
    *LEDGER_WITH_BLOCKS,
    planted(
        "a takeover keeps its epoch and its name",
        "probe: workers outlive two drivers",
        halts("Fenced"),
        LEDGER,
        "return replace(state, epoch=state.epoch + 1, owner=owner, version=state.version + 1)",
        "return replace(state, version=state.version + 1)",
    ),
)

MUTANTS = _CLAIMS + _WORKERS + _DRIVERS + _LEDGER
