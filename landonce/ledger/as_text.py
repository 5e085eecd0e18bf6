"""A ledger's state, or a table's mark, as text: for what keeps it in one piece, such as a file, a key-value store or a commit.

Reading the text returns exactly what it was made from, also if a later landonce adds fields to it.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from landonce.errors import LedgerUnreadable
from landonce.ledger.tables import pipeline_row, position_rows, state_of
from landonce.protocol.ledger import LedgerState
from landonce.protocol.marks import Floors, Mark
from landonce.protocol.ranges import Partition


def state_to_text(state: LedgerState) -> str:
    """One line of JSON."""
    positions = [[*row.values()][1:] for row in position_rows(state.pipeline, state.positions)]
    return json.dumps({**pipeline_row(state), "positions": positions}, separators=(",", ":"))


def state_from_text(text: str) -> LedgerState:
    """Raises `LedgerUnreadable` if the text is not a state."""
    try:
        fields: dict[str, Any] = json.loads(text)
        names = ("topic", "partition", "first", "committed")
        positions: list[Any] = [
            SimpleNamespace(**dict(zip(names, each, strict=True))) for each in fields.pop("positions")
        ]
        row: Any = SimpleNamespace(**fields)
        return state_of(row, positions)
    except (ValueError, KeyError, TypeError, AttributeError) as failure:
        raise LedgerUnreadable(
            f"the ledger's entry cannot be read ({type(failure).__name__}): it is damaged, or was edited by hand.",
            safe="Nothing was changed.",
            command="restore the ledger from a backup, then: landonce run {file}",
        ) from failure


def mark_to_text(mark: Mark) -> str:
    """One line of JSON. It does not hold the snapshot's id: the snapshot itself has it."""
    fields = {
        "state": json.loads(state_to_text(mark.state)),
        "started": _listed(mark.started),
        "behind": mark.behind,
        "letters": mark.letters,
        "letters_in": mark.letters_in,
        "tops": _listed(mark.tops),
    }
    return json.dumps(fields, separators=(",", ":"))


def mark_from_text(text: str, snapshot: int) -> Mark:
    """Raises `LedgerUnreadable` if the text is not a mark."""
    try:
        fields: dict[str, Any] = json.loads(text)
        return Mark(
            state=state_from_text(json.dumps(fields["state"])),
            started=_floors(fields["started"]),
            behind=fields["behind"],
            snapshot=snapshot,
            letters=tuple(fields["letters"]),
            letters_in=fields["letters_in"],
            tops=_floors(fields["tops"]),
        )
    except (ValueError, KeyError, TypeError) as failure:
        raise LedgerUnreadable(
            f"the mark in the table cannot be read ({type(failure).__name__}): it is damaged, or was edited by hand.",
            safe="Nothing was changed.",
            command="restore the table from a backup, then: landonce run {file}",
        ) from failure


def _listed(floors: Floors) -> list[list[object]]:
    return [[partition.topic, partition.number, offset] for partition, offset in floors]


def _floors(listed: list[list[Any]]) -> Floors:
    return tuple((Partition(topic, number), offset) for topic, number, offset in listed)
