"""Blocks that have a row of their own in the ledger: it says which of them landed before a crash, and holds their receipts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from landonce.protocol.block_rows import BlockRow, Mark, PushRow
from landonce.protocol.blocks import Plan
from landonce.protocol.receipt import BlockResult, Fate, Receipt

_PAUSE = 1.0
"""After doubt: what is in its way may pass."""

Rows = Iterable[BlockRow | PushRow]


def receipts_of(rows: Rows) -> dict[int, Receipt]:
    """Of the blocks that landed, by their numbers."""
    return {
        row.number: Receipt.from_json(row.receipt) for row in rows if row.mark is Mark.AFTER and row.receipt is not None
    }


def write_rest(
    plan: Plan, indexes: Sequence[int], rows: Rows, write: Callable[[list[int]], tuple[BlockResult, ...]]
) -> tuple[BlockResult, ...]:
    """Has those of these blocks written that did not land yet; the others are not read again."""
    receipts = receipts_of(rows)
    landed = {index: receipts[number] for index in indexes if (number := plan.blocks[index].number) in receipts}
    rest = [index for index in indexes if index not in landed]
    results = write(rest) if rest else ()
    if any(result.fate is Fate.DOUBTFUL for result in results):
        time.sleep(_PAUSE)
    return (*(BlockResult(index, Fate.LANDED, receipt) for index, receipt in landed.items()), *results)
