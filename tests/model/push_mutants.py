"""Bugs that were planted on purpose where a program pushes: each must be found. See `mutants`."""

from __future__ import annotations

from .mutants import (
    BATCH,
    DELIVERED_AGAIN,
    DROPPED,
    LOST,
    MATCH,
    NOT_FOLLOWED,
    NOT_REFUSED,
    RECORDED_FIRST,
    TWICE,
    UNCOMMITTED,
    UNCOUNTED,
    UNCOVERED,
    UNLOOKED,
    halts,
    planted,
)
from .snapshot_mutants import OWN
from .wrapped_mutants import CLAIMED, ROWS, WORKER

IN_CLICKHOUSE = (
    planted(
        "what one program pushes again lands again",
        "one program pushes again and again",
        TWICE,
        *DELIVERED_AGAIN,
        UNCOUNTED,
    ),
    planted(
        "a push that is older than the position is not left out",
        "one program pushes again and again",
        halts("ValueError"),
        MATCH,
        "            if committed[each.partition] < each.end\n",
        "",
    ),
    planted("a push that begins above the position is taken", "one program pushes again and again", LOST, *NOT_REFUSED),
    planted("the position moves before anything is written", "two programs push one partition", LOST, *RECORDED_FIRST),
    planted("a pending plan is dropped", "a program dies, an answer is lost", TWICE, *DROPPED, UNCOUNTED),
    planted("what is behind an absent block is taken", "a program dies, an answer is lost", LOST, *NOT_FOLLOWED),
    planted("there is no look at the target", "the ledger is lost", TWICE, *UNLOOKED, UNCOUNTED),
)
_OLDER = (MATCH, "            if committed[each.partition] < each.end\n", "")
"""What is older than the position is not left out."""
IN_DATABASES = (
    planted(
        "a database: what is pushed again lands again", "one program pushes again and again", TWICE, *DELIVERED_AGAIN
    ),
    planted(
        "a database: an older push is not left out", "one program pushes again and again", halts("ValueError"), *_OLDER
    ),
    planted("a database: a push above the position is taken", "one program pushes again and again", LOST, *NOT_REFUSED),
    planted(
        "a database: a pending block that does not come again never was",
        "a program dies, an answer is lost",
        halts("PlanPending"),
        BATCH,
        "    landed = {each.index: each.totals for each in found if each.landed}\n",
        "    landed: dict[int, Totals] = {}\n",
    ),
    planted(
        "a database: what is behind an absent block is taken", "a program dies, an answer is lost", LOST, *NOT_FOLLOWED
    ),
)
WRAPPED = (
    planted("wrapped: what is pushed again is pushed", "one program pushes again and again", TWICE, *DELIVERED_AGAIN),
    planted("wrapped: a push above the position is taken", "one program pushes again and again", LOST, *NOT_REFUSED),
    planted(
        "wrapped: what is behind an absent block is taken",
        "probe: a program dies, an answer is lost",
        LOST,
        *NOT_FOLLOWED,
    ),
    planted(
        "wrapped: a block that was claimed and does not come again was never pushed",
        "probe: a program dies, an answer is lost",
        TWICE,
        CLAIMED,
        "    if row.mark is BlockState.CLAIMED:\n",
        "    if row.mark is None:\n",
    ),
    planted(
        "wrapped: two programs push a block at once",
        "two programs push one partition",
        TWICE,
        ROWS,
        "if harmless else (BlockState.BEFORE.value,)",
        "if True else (BlockState.BEFORE.value,)",
    ),
    planted(
        "wrapped: a zombie is not waited for",
        "a zombie pushes",
        TWICE,
        ROWS,
        "return now > ends(row, wait)",
        "return True",
    ),
    planted(
        "wrapped: a zombie pushes without a claim",
        "a zombie pushes",
        TWICE,
        WORKER,
        "    return replace(pushing, stage=PushStage.PUSH if won else PushStage.ROW)\n",
        "    return replace(pushing, stage=PushStage.PUSH)\n",
    ),
)
IN_TABLES = (
    planted("a table: what is pushed again lands again", "one program pushes again and again", TWICE, *DELIVERED_AGAIN),
    planted("a table: a push above the position is taken", "one program pushes again and again", LOST, *NOT_REFUSED),
    planted("a table: the position moves before the commit", "two programs push one partition", LOST, *UNCOMMITTED),
    planted(
        "a table: nobody hears that they were fenced",
        "two programs push one partition",
        UNCOVERED,
        OWN,
        "    if verdict is Verdict.FENCED:\n",
        "    if verdict is Verdict.FENCED and seen.last is None:\n",
    ),
)
MUTANTS = (*IN_CLICKHOUSE, *IN_DATABASES, *WRAPPED, *IN_TABLES)
