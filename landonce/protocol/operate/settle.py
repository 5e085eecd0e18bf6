"""A person says what became of a block that was pushed and never settled. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from landonce.errors import ConfigError, NothingToDo
from landonce.protocol.block_rows import Mark
from landonce.protocol.blocks import Block
from landonce.protocol.claims import PushRow
from landonce.protocol.ledger import LedgerState, taken
from landonce.protocol.operate.decision import Decision, listed


def settle(
    state: LedgerState, blocks: Mapping[str, Block], rows: tuple[PushRow, ...], key: str, owner: str, *, landed: bool
) -> tuple[Decision, PushRow]:
    """The block with this key arrived, or it did not. `blocks` are those of the pending plan, by their keys."""
    claimed = {row.number: row for row in rows if row.mark is Mark.CLAIMED}
    open_ = [name for name, block in blocks.items() if block.number in claimed]
    if not open_:
        raise NothingToDo(
            "there is nothing to settle: no block was pushed of which nobody knows whether it arrived.",
            safe="Nothing was changed.",
            command="landonce run {file}",
        )
    if key not in open_:
        raise ConfigError(
            f"--block: {key!r} is not a block whose outcome is unknown; these are: {listed(open_)}.",
            safe="Nothing was changed.",
        )
    return _decision(state, blocks[key], key, owner, landed=landed), claimed[blocks[key].number]


def _decision(state: LedgerState, block: Block, key: str, owner: str, *, landed: bool) -> Decision:
    batch = state.pending.batch if state.pending is not None else 0
    if landed:
        does = f"Block {key} ({block}) of batch {batch} counts as landed, and is never pushed again."
        cost = "If it did not arrive, its records are missing in the target for ever."
    else:
        does = f"Block {key} ({block}) of batch {batch} counts as absent, and is pushed again at the next start."
        cost = "If it did arrive, all of it, its records are in the target twice."
    return Decision("settle", taken(state, owner), (does,), (cost,))
