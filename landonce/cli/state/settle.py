"""`landonce state settle`: a person has looked into the target of a wrapped sink."""

from __future__ import annotations

import time
from pathlib import Path

from landonce.cli.state.decide import decide, new_owner, operating
from landonce.errors import ConfigError, NothingToDo
from landonce.ledger.block_ledgers import Decision, PushLedger
from landonce.protocol import operate
from landonce.protocol.block_rows import Spot, over
from landonce.protocol.claimed import key_of

_NOTHING = "there is nothing to settle: no plan of a wrapped sink is pending."


def settle(file: Path, *, block: str, landed: bool, absent: bool, yes: bool) -> None:
    if landed == absent:
        raise ConfigError("say --landed or --absent: one of them.", safe="Nothing was changed.")
    with operating(file) as target:
        ledger, state = target.parts.ledger, target.required()
        if not isinstance(ledger, PushLedger) or state.pending is None:
            raise NothingToDo(_NOTHING, safe="Nothing was changed.", command="landonce run {file}")
        batch = state.pending.batch
        wait = target.settles_within
        blocks = {key_of(state, each): each for each in state.pending.blocks}
        decision, row = operate.settle(
            state, blocks, ledger.status(batch).rows, block, new_owner(), landed=landed
        )  # fmt: skip

        def wait_out() -> None:
            while not over(row, ledger.status(batch).now, wait):
                time.sleep(0.5)

        def change() -> None:
            verdict = Decision(Spot(batch, row.number), row.nonce, landed)
            ledger.decide(state, decision.new, decision.note(), verdict)

        decide(target, file, state, decision, yes=yes, before=wait_out, change=change)
