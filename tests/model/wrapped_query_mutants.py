"""Bugs that were planted on purpose where a user's own query meets a wrapped sink: each must be found. See `mutants`."""

from __future__ import annotations

from .mutants import (
    BATCH,
    DELIVERED_AGAIN,
    ENDLESS,
    LOST,
    NOT_FOLLOWED,
    NOT_REFUSED,
    OTHER_ROWS,
    RECORDED_FIRST,
    REWRITTEN,
    TOO_EARLY,
    TWICE,
    UNHEARD,
    UNPREPARED,
    halts,
    planted,
)
from .transaction_mutants import UNCHECKED
from .wrapped_mutants import CLAIMED

MUTANTS = (
    planted("what was delivered comes again", "nothing fails, two queries of one name", TWICE, *DELIVERED_AGAIN),
    planted(
        "a batch that begins above the position is taken", "nothing fails, two queries of one name", LOST, *NOT_REFUSED
    ),
    planted("prepare is skipped", "nothing fails, two queries of one name", halts("Fenced"), *UNPREPARED),
    planted(
        "the position moves before anything is pushed",
        "probe: a query dies, an answer is lost",
        LOST,
        *RECORDED_FIRST,
        UNCHECKED,
    ),
    planted("a block without an answer counts as pushed", "probe: pushes are refused", halts("ValueError"), *UNHEARD),
    planted(
        "a pending block that does not come again never was",
        "probe: a query dies, an answer is lost",
        halts("PlanPending"),
        BATCH,
        "    landed = {each.index: each.totals for each in found if each.landed}\n",
        "    landed: dict[int, Totals] = {}\n",
    ),
    planted(
        "a pending block that does not come again landed",
        "probe: a query dies, an answer is lost",
        halts("Unbalanced"),
        BATCH,
        "    landed = {each.index: each.totals for each in found if each.landed}\n",
        "    landed = {each.index: each.totals for each in found}\n",
    ),
    planted("what is behind an absent block is taken", "probe: a query dies, an answer is lost", LOST, *NOT_FOLLOWED),
    planted(
        "a block that was claimed and does not come again was never pushed",
        "probe: a query dies, an answer is lost",
        TWICE,
        CLAIMED,
        "    if row.mark is BlockState.CLAIMED:\n",
        "    if row.mark is None:\n",
    ),
    planted(
        "a block that was claimed and does not come again landed",
        "probe: a worker outlives its query",
        LOST,
        CLAIMED,
        "    if row.mark is BlockState.CLAIMED:\n        raise refusals.pushed(machine.pending, block, key_of(machine.state, block))\n"
        "    totals = Receipt.from_json(row.receipt).totals if row.receipt is not None else Totals()\n"
        "    return FoundBlock(index, row.mark is BlockState.AFTER, totals)\n",
        "    totals = Receipt.from_json(row.receipt).totals if row.receipt is not None else Totals()\n"
        "    return FoundBlock(index, row.mark is not BlockState.BEFORE, totals)\n",
        UNCHECKED,
    ),
    planted(
        "a person is asked while an attempt may still take effect",
        "probe: a worker outlives its query",
        TOO_EARLY,
        CLAIMED,
        "        if any(not over(row, reply.now, self.wait) for row in claimed):\n",
        "        if machine.ledger is None:\n",
    ),
    planted(
        "a query without a probe goes on as if it had one",
        "no probe: a worker outlives its query",
        ENDLESS,
        CLAIMED,
        "        if claimed and not self.can_probe:\n            raise outcome_unknown(machine.state, *claimed)\n",
        "",
    ),
    planted("a plan of another query is pushed", "probe: the query is another one", OTHER_ROWS, *REWRITTEN),
)
