"""What every decision has in common: the ledger's entry, the explanation, the question, the change."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import typer

from landonce.cli.output import out
from landonce.engine.publish import Letters
from landonce.errors import NothingToDo
from landonce.protocol.ledger import Ledger, LedgerState
from landonce.protocol.operate import Decision
from landonce.sinks.contract import Guarantee
from landonce.sinks.parts import Parts


def decide(
    parts: Parts,
    file: Path,
    ledger: LedgerState,
    decision: Decision,
    *,
    yes: bool,
    also: str = "",
    before: Callable[[], None] | None = None,
    change: Callable[[], None] | None = None,
) -> None:
    """Explains, asks, swaps. A driver that changed the ledger in the meantime makes this `Fenced`, and nothing is done.
    Dead letters that are staged of a plan that is given up count from then on: nobody writes it again.

    `change`: what to do instead of swapping the state alone.
    """
    letters = Letters(parts.config.dead_letters.path, parts.config.pipeline)
    given_up = ledger.pending is not None and decision.new.pending is None
    if given_up:
        decision = replace(decision, does=(*decision.does, letters.given_up(ledger)))
    for line in decision.does:
        out.print(line, markup=False)
    for line in (*decision.costs, also, "A driver of this pipeline that still runs ends with exit code 4."):
        if line:
            out.print(line, style="yellow", markup=False)
    if not yes:
        typer.confirm("Do it?", abort=True)
    if before is not None:
        before()
    if change is not None:
        change()
    else:
        _change(parts, ledger, decision)
    if given_up:
        letters.publish_given_up(ledger)
    out.print(f"[green]done[/], and recorded in the journal: epoch {decision.new.epoch}. Next:", end=" ")
    out.print(f"landonce run {file}", markup=False)


def _change(parts: Parts, ledger: LedgerState, decision: Decision) -> None:
    """The ledger first, which fences; then the tables that are told where they stand."""
    if parts.sink.guarantee is not Guarantee.SNAPSHOT:
        parts.ledger.change(ledger, decision.new, decision.note())
        return
    from landonce.cli.state.lake import committing
    from landonce.sinks.iceberg.restate import restate

    with committing(parts) as place:
        parts.ledger.change(ledger, decision.new, decision.note())
        for each in decision.marks:
            restate(place(each.view.table), each.view, each.mark)


def load(parts: Parts, *, bound: bool = True) -> LedgerState:
    """The ledger's entry. `bound`: one that was never bound to a topic will not do."""
    found = loaded(parts.ledger, parts)
    if found is None or (bound and found.fresh):
        raise NothingToDo(
            f"pipeline {parts.config.pipeline!r} has no position yet: it never ran, or its ledger is somewhere else.",
            safe="Nothing was changed.",
            command="landonce run {file}, or correct `ledger` in it",
        )
    return found


def loaded(ledger: Ledger, parts: Parts) -> LedgerState | None:
    """As `Ledger.load`, without making a catalog that is not there."""
    if parts.config.own_ledger:
        from landonce.sinks.iceberg.survey import catalog_made

        return ledger.load() if catalog_made(parts.iceberg) else None
    return ledger.load()


def new_owner() -> str:
    return uuid.uuid4().hex
