"""What every command that goes on where another writer stopped refuses, whatever the writer. Pure."""

from __future__ import annotations

from landonce.errors import ImportRefused
from landonce.protocol.ledger import LedgerState


def refused(what: str, command: str) -> ImportRefused:
    return ImportRefused(what, safe="Nothing was changed.", command=command)


def nothing_known(state: LedgerState | None, marked: str = "") -> None:
    """Raises if the pipeline has a position already. `marked`: a table that carries its mark."""
    if (state is None or state.fresh) and not marked:
        return
    where = f"the table {marked}" if marked else "its ledger"
    name = f"pipeline {state.pipeline!r}" if state is not None else "the pipeline"
    raise refused(
        f"{name} has a position already, in {where}.",
        "landonce run {file}   (it goes on from there), or give the pipeline another name in {file}",
    )
