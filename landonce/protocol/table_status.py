"""How a table of a fan-out stands, for people. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from landonce.errors import PositionUncertain, TableReplaced
from landonce.protocol.ledger import LedgerState
from landonce.protocol.marks import Stand, TableView, behind_ranges, stand
from landonce.protocol.ranges import Range


class Status(str, Enum):
    """In one word or two."""

    UNTOUCHED = "untouched"
    """Nothing was committed to it yet, or it is not made yet."""
    IN_STEP = "in step"
    AHEAD = "ahead"
    BEHIND = "behind"
    UNCERTAIN = "uncertain"
    REPLACED = "replaced"
    MISSING = "missing"


@dataclass(frozen=True)
class Standing:
    """A table, what that means, and what goes on where a person is needed."""

    view: TableView
    status: Status
    words: str
    command: str = ""
    lacks: tuple[Range, ...] = ()
    """What is delivered again to a table that is behind."""


def standing_of(ledger: LedgerState, view: TableView) -> Standing:
    """As a start would find it."""
    try:
        found = stand(ledger, view)
    except PositionUncertain as error:
        return Standing(view, Status.UNCERTAIN, error.what, error.command)
    except TableReplaced as error:
        return Standing(view, Status.REPLACED if view.uuid else Status.MISSING, error.what, error.command)
    return _fine(ledger, view, found)


def _fine(ledger: LedgerState, view: TableView, found: Stand) -> Standing:
    if found.behind:
        lacks = behind_ranges(ledger, [found])
        again = ", ".join(map(str, lacks)) or "nothing that was meant for it"
        return Standing(view, Status.BEHIND, f"was rolled back; delivered to it again: {again}", lacks=lacks)
    if view.mark is None:
        there = "nothing was committed to it yet" if view.uuid else "is made once there is something for it"
        return Standing(view, Status.UNTOUCHED, there)
    committed = ledger.committed()
    if any(at > committed[partition] for partition, at in found.floors):
        return Standing(
            view, Status.AHEAD, f"holds batch {view.mark.batch}, which is not recorded; it is not written again"
        )
    return Standing(view, Status.IN_STEP, f"batch {view.mark.batch} is the last one that held anything for it")
