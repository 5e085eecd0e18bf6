"""`landonce state import`: go on where another writer of the table stopped."""

from __future__ import annotations

from pathlib import Path

import typer

from landonce.cli.command import out
from landonce.cli.state.decide import new_owner, operating
from landonce.sinks.operations import Before


def import_position(file: Path, before: Before, *, yes: bool) -> None:
    with operating(file) as target:
        found = target.take_over(before, new_owner())
        for line in found.decision.does:
            out.print(line, markup=False)
        for line in found.decision.costs:
            out.print(line, style="yellow", markup=False)
        if not yes:
            typer.confirm("Do it?", abort=True)
        found.adopt()
    out.print(f"[green]done[/], and recorded in the journal: epoch {found.decision.new.epoch}. Next:", end=" ")
    out.print(f"landonce run {file}", markup=False)
