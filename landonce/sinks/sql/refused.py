"""Which rows of a block a database refuses: searched in a transaction that is rolled back, half by half."""

from __future__ import annotations

import pyarrow as pa

from landonce.protocol.block_rows import Claim
from landonce.sinks.transactional import Altered, Blame, BlockTransaction, Opened, Trouble, named

MOST = 1_000
"""Rows of one block. Where there are more, it is the table that is wrong, and not the rows."""
_SAVE, _BACK = "SAVEPOINT landonce_half", "ROLLBACK TO SAVEPOINT landonce_half"
_DONE = "RELEASE SAVEPOINT landonce_half"

Found = tuple[tuple[int, Trouble], ...]


def refused_rows(opened: Opened, claim: Claim, rows: pa.Table, where: str) -> Found | None:
    """The rows that are to blame, by their index, and what the database said of each. None if the block is not mine any more.

    Halves that are taken stay while the rest is tried, as in the block's own transaction. The search ends early with a row
    that is refused for what else the table holds, which no dead letter can mend, and after `MOST` rows.
    """
    try:
        writer = opened()
        try:
            if not writer.flip(claim, ""):
                return None
            if not writer.unaltered():
                raise Altered
            return _search(writer, rows)
        finally:
            writer.close()
    except Trouble as trouble:
        raise named(trouble, where) from None


def _search(writer: BlockTransaction, rows: pa.Table) -> Found:
    found: list[tuple[int, Trouble]] = []
    left = [(0, rows.num_rows)]
    while left and len(found) <= MOST:
        first, end = left.pop()
        trouble = _tried(writer, rows.slice(first, end - first))
        if trouble is None:
            continue
        if end - first == 1:
            found.append((first, trouble))
            if trouble.blame is not Blame.ROW:
                break
        else:
            middle = (first + end) // 2
            left += [(middle, end), (first, middle)]
    return tuple(found)


def _tried(writer: BlockTransaction, rows: pa.Table) -> Trouble | None:
    told = None
    writer.savepoint(_SAVE)
    try:
        writer.write(rows)
    except Trouble as trouble:
        if trouble.blame is Blame.ELSE:
            raise
        writer.savepoint(_BACK)
        told = trouble
    writer.savepoint(_DONE)
    return told
