"""What an operator decides about a pipeline: each command reads the state, says what it will do and cost, asks, and changes
the ledger. The sink says what can be decided about it (`Sink.operations`), or gives one sentence why not.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from landonce.cli.command import accept_operations_of, opened, operating, operations_of, out
from landonce.engine.publish import Letters
from landonce.errors import ConfigError, Halt, NothingToDo, Transient
from landonce.protocol import operate
from landonce.protocol.block_rows import accounted
from landonce.protocol.ledger import LedgerState
from landonce.protocol.operate import Decision
from landonce.protocol.ranges import Range
from landonce.protocol.source import Start
from landonce.protocol.target import TargetView
from landonce.sinks.operations import UNCHANGED, Before, Choice, Operations

if TYPE_CHECKING:
    pass


def accept_gap(file: Path, *, yes: bool) -> None:
    with opened(file) as parts:
        target = operations_of(parts)
        if parts.config.dedup is not None:
            with suppress(NothingToDo):
                accepting = accept_operations_of(parts)
                _accept_gap(accepting, _gap(accepting), file, yes=yes)
                return
        _accept_gap(target, _gap(target), file, yes=yes)


def _gap(target: Operations) -> Choice:
    state, view = target.required(bound=False), target.parts.source()
    known, statuses = target.statuses(state)
    return Choice(state, operate.accept_gap(known, view, _new_owner(), statuses, accounted(target.rows(state))))


def _accept_gap(target: Operations, choice: Choice, file: Path, *, yes: bool) -> None:
    _decide(target, file, choice, yes=yes, also=_landed(target, choice.state, choice.decision.lost))


def rebase(file: Path, *, to: str, drop_pending: bool, yes: bool) -> None:
    with operating(file) as target:
        _suits(target, "rebase")
        state, view = target.required(bound=False), target.parts.source()
        known, statuses = target.statuses(state)
        partitions = {*known.committed(), *(partition for partition, _ in view.extents)}

        def ask() -> TargetView:
            return target.ahead(known, statuses, partitions)

        def give_up() -> None:
            if state.pending is not None:
                target.give_up(state.pending, held, ask)

        held = ask()
        decision = operate.rebase(
            known, view, held, _new_owner(), to=Start(to), drop_pending=drop_pending, statuses=statuses
        )
        _decide(target, file, Choice(state, decision, before=give_up), yes=yes)


def fill(file: Path, *, yes: bool) -> None:
    with operating(file) as target:
        if target.no_fill:
            raise NothingToDo(target.no_fill, safe=UNCHANGED, command=target.instead)
        state = target.required()
        decision = operate.fill(state, _new_owner())
        ranges = tuple(each for block in state.pending.blocks for each in block.ranges) if state.pending else ()
        _decide(target, file, Choice(state, decision), yes=yes, also=_landed(target, state, ranges))


def accept_change(file: Path, *, yes: bool) -> None:
    with operating(file) as target:
        _suits(target, "accept-change")
        state = target.required()
        fingerprint = target.fingerprint() if state.pending else ""
        decision = operate.accept_change(state, fingerprint, _new_owner(), fan_out=target.fan_out)
        _decide(target, file, Choice(state, decision), yes=yes)


def settle(file: Path, *, block: str, landed: bool, absent: bool, yes: bool) -> None:
    if landed == absent:
        raise ConfigError("use one of --landed and --absent.", safe=UNCHANGED)
    with operating(file) as target:
        _decide(target, file, target.settle(block, _new_owner(), landed=landed), yes=yes)


def accept_position(file: Path, *, table: str | None, by_rows: bool, yes: bool) -> None:
    with operating(file) as target:
        _decide(target, file, target.accept_position(table, _new_owner(), by_rows=by_rows), yes=yes)


def forget_table(file: Path, *, table: str, replay: bool, yes: bool) -> None:
    with operating(file) as target:
        _decide(target, file, target.forget_table(table, _new_owner(), replay=replay), yes=yes)


def import_position(file: Path, before: Before, *, yes: bool) -> None:
    with operating(file) as target:
        _suits(target, "import")
        found = target.take_over(before, _new_owner())
        _confirm(found.decision, yes=yes)
        found.adopt()
    _done(found.decision, file)


def _suits(target: Operations, command: str) -> None:
    """Raises if the pipeline has `dedup`, and the command is not for that."""
    if target.parts.config.dedup is not None:
        from landonce.dedup.operate import refuse

        refuse(target.parts, command)


def _decide(target: Operations, file: Path, choice: Choice, *, yes: bool, also: str = "") -> None:
    """Explains, asks, and changes the ledger. If a driver changed it in the meantime, this raises `Fenced` and does nothing.
    Staged dead letters of a plan that is given up count from then on: the plan is never written again."""
    config, ledger, decision = target.parts.config, choice.state, choice.decision
    letters = Letters(config.dead_letters.path, config.pipeline)
    given_up = ledger.pending is not None and decision.new.pending is None
    if given_up:
        decision = replace(decision, does=(*decision.does, letters.given_up(ledger)))
    _confirm(decision, also, "A driver of this pipeline that still runs ends with exit code 4.", yes=yes)
    if choice.before is not None:
        choice.before()
    if choice.change is not None:
        choice.change()
    else:
        target.change(ledger, decision)
    if given_up:
        letters.publish_given_up(ledger)
    _done(decision, file)


def _confirm(decision: Decision, *also: str, yes: bool) -> None:
    """Says what is done and what it costs, and asks."""
    for line in decision.does:
        out.print(line, markup=False)
    for line in filter(None, (*decision.costs, *also)):
        out.print(line, style="yellow", markup=False)
    if not yes:
        typer.confirm("Do it?", abort=True)


def _done(decision: Decision, file: Path) -> None:
    out.print(f"[green]done[/], and recorded in the journal: epoch {decision.new.epoch}. Next:", end=" ")
    out.print(f"landonce run {file}", markup=False)


def _landed(target: Operations, state: LedgerState, ranges: tuple[Range, ...]) -> str:
    """How much of these ranges the target holds; empty if it cannot be asked."""
    labelled = [Range(state.labelled(each.partition), each.first, each.end) for each in ranges]
    try:
        rows = target.count(labelled)
    except (Transient, Halt):
        return ""
    return f"The target holds {rows} rows of these offsets now." if rows is not None else ""


def _new_owner() -> str:
    return uuid.uuid4().hex
