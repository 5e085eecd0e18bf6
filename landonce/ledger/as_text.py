"""A ledger's state as text, for ledgers that keep it in one piece: in a file or a key-value store.

Reading the text returns exactly the state that it was made from, whatever fields a later landonce adds to it.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from landonce.errors import LedgerUnreadable
from landonce.ledger.tables import pipeline_row, position_rows, state_of
from landonce.protocol.ledger import LedgerState


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
