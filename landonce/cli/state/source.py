"""`landonce state accept-gap` and `rebase`: the source is not what it was."""

from __future__ import annotations

from pathlib import Path

from landonce.cli.state.decide import decide, new_owner, operating
from landonce.errors import Halt, Transient
from landonce.protocol import operate
from landonce.protocol.block_rows import accounted
from landonce.protocol.ledger import LedgerState
from landonce.protocol.ranges import Range
from landonce.protocol.source import Start
from landonce.protocol.target import TargetView
from landonce.sinks.operations import Operations


def accept_gap(file: Path, *, yes: bool) -> None:
    with operating(file) as target:
        state, view = target.required(bound=False), target.parts.source()
        known, stands = target.stands(state)
        decision = operate.accept_gap(known, view, new_owner(), stands, accounted(target.rows(state)))
        decide(target, file, state, decision, yes=yes, also=landed_of(target, state, decision.lost))


def rebase(file: Path, *, to: str, drop_pending: bool, yes: bool) -> None:
    with operating(file) as target:
        state, view = target.required(bound=False), target.parts.source()
        known, stands = target.stands(state)
        partitions = {*known.committed(), *(partition for partition, _ in view.extents)}

        def ask() -> TargetView:
            return target.ahead(known, stands, partitions)

        def give_up() -> None:
            if state.pending is not None:
                target.give_up(state.pending, held, ask)

        held = ask()
        decision = operate.rebase(
            known, view, held, new_owner(), to=Start(to), drop_pending=drop_pending, stands=stands
        )
        decide(target, file, state, decision, yes=yes, before=give_up)


def landed_of(target: Operations, state: LedgerState, ranges: tuple[Range, ...]) -> str:
    """How much of these ranges the target holds; silent where it cannot be asked."""
    labelled = [Range(state.labelled(each.partition), each.first, each.end) for each in ranges]
    try:
        rows = target.count(labelled)
    except (Transient, Halt):
        return ""
    return f"The target holds {rows} rows of these offsets now." if rows is not None else ""
