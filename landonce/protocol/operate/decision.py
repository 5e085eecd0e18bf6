"""One change that an operator may make, before it is made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone

from landonce.protocol.ledger import LedgerState, Note
from landonce.protocol.marks import Mark, TableView
from landonce.protocol.ranges import Range

_LISTED = 5


@dataclass(frozen=True)
class Restated:
    """A table of a fan-out gets a mark by an operator: an empty snapshot with this mark, on the table as it was seen."""

    view: TableView
    mark: Mark


@dataclass(frozen=True)
class Decision:
    """What changes, what that does, and what it costs."""

    action: str
    new: LedgerState
    does: tuple[str, ...]
    """What the command will do, line by line."""
    costs: tuple[str, ...]
    """What that means, in numbers where there are any."""
    lost: tuple[Range, ...] = ()
    """Offsets that will never be delivered, unless they are in the target already."""
    marks: tuple[Restated, ...] = ()
    """Written once the ledger is changed. An operator who is stopped in between decides again, with the same result."""

    def note(self) -> Note:
        at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        return Note(at, self.action, " ".join((*self.does, *self.costs)))


def listed(things: Iterable[object], most: int = _LISTED) -> str:
    """Some of them, and how many more there are."""
    named = [str(each) for each in things]
    more = f" and {len(named) - most} more" if len(named) > most else ""
    return ", ".join(named[:most]) + more
