"""What every decision has in common: the ledger's entry, the explanation, the question, the change."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from landonce.cli.command import opened, out
from landonce.engine.publish import Letters
from landonce.protocol.ledger import LedgerState
from landonce.protocol.operate import Decision
from landonce.sinks.operations import Choice, Operations

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from landonce.sinks.parts import Parts


@contextmanager
def operating(file: Path) -> Iterator[Operations]:
    """What may be decided about the pipeline of this file."""
    with opened(file) as parts:
        yield operations_of(parts)


def operations_of(parts: Parts) -> Operations:
    config = parts.config

    def sessions(settings: Mapping[str, str]) -> AbstractContextManager[Callable[[], SparkSession]]:
        from landonce.engine.spark.session import open_session, session_if_needed

        return session_if_needed(lambda: open_session(config.pipeline, config.spark, extra=settings))

    return parts.sink.operations(parts, sessions)


def choose(target: Operations, file: Path, choice: Choice, *, yes: bool) -> None:
    decide(target, file, choice.state, choice.decision, yes=yes, change=choice.change)


def decide(
    target: Operations,
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
    config = target.parts.config
    letters = Letters(config.dead_letters.path, config.pipeline)
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
        target.change(ledger, decision)
    if given_up:
        letters.publish_given_up(ledger)
    out.print(f"[green]done[/], and recorded in the journal: epoch {decision.new.epoch}. Next:", end=" ")
    out.print(f"landonce run {file}", markup=False)


def new_owner() -> str:
    return uuid.uuid4().hex
