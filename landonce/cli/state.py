"""`landonce state`: look at the ledger, and decide what only a person can decide.

Every decision is explained before it is made, is one compare-and-set that also fences a driver that still runs, and
leaves a line in the ledger's journal.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from landonce.cli.files import File, Json, opened, print_json
from landonce.cli.output import out
from landonce.errors import Halt, LandonceError, NothingToDo, Transient
from landonce.plan.blocks import Plan
from landonce.plan.ranges import Range
from landonce.read.source import SourceView, Start
from landonce.record import operate
from landonce.record.ledger import LedgerState, Note
from landonce.record.operate import Decision
from landonce.run.assemble import Parts, make_recipe
from landonce.write.sink import Target, look_by_name, wait_out
from landonce.write.target import TargetView

_LISTED = 5

state = typer.Typer(
    help="Look at a pipeline's ledger, and decide what only a person can decide.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


class To(str, Enum):
    """Where a rebased topic begins."""

    EARLIEST = "earliest"
    LATEST = "latest"


@state.command()
def show(file: File, as_json: Json = False) -> None:
    """Say where a pipeline stands: position, lag, pending plan, epoch, journal.

    Example: `landonce state show clicks.yaml`
    """
    with opened(file) as parts:
        ledger = parts.ledger.load()
        journal = parts.ledger.journal()
        view, trouble = _survey(parts)
    if as_json:
        print_json(_document(parts, ledger, journal, view, trouble))
    else:
        _show(parts, ledger, journal, view, trouble)


@state.command("accept-gap")
def accept_gap(file: File, yes: Yes = False) -> None:
    """Go on behind records that Kafka deleted before they were read.

    Moves the position of each overrun partition to where its topic begins now. Of a pending plan, the ranges that are
    gone are given up and the rest is kept. What is given up is recorded for ever.

    Example: `landonce state accept-gap clicks.yaml`
    """
    with opened(file) as parts:
        ledger = _load(parts, bound=False)
        view = parts.broker.survey(parts.config.source.kafka.topics)
        decision = operate.accept_gap(ledger, view, _owner())
        _decide(parts, file, ledger, decision, yes=yes, also=_landed_of(parts, ledger, decision.lost))


@state.command()
def rebase(
    file: File,
    to: Annotated[To, typer.Option(help="Where topics begin that are other ones now.")] = To.EARLIEST,
    drop_pending: Annotated[
        bool, typer.Option("--drop-pending", help="Forget a pending plan. Rows of it that landed stay.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Bind a pipeline to a topic that was made anew, or to another cluster.

    Offsets of the old topic mean nothing in the new one, so the changed topics begin at their earliest offset, and their
    rows get a `_topic` of their own, `topic@id`, beside which the old rows stay. Topics that did not change stay
    where they are.

    Example: `landonce state rebase clicks.yaml --to latest`
    """
    with opened(file) as parts:
        ledger = _load(parts, bound=False)
        view = parts.broker.survey(parts.config.source.kafka.topics)
        target = parts.sink.target()
        decision = operate.rebase(
            ledger, view, _held(target, ledger, view), _owner(), to=Start(to.value), drop_pending=drop_pending
        )

        def settle() -> None:
            if ledger.pending is not None:
                _wait_out(target, ledger.pending)

        _decide(parts, file, ledger, decision, yes=yes, before=settle)


@state.command()
def fill(file: File, yes: Yes = False) -> None:
    """Write what is missing of a pending plan that is in the table in part.

    A block lands whole or not at all, so landonce halts with PartialPresence when some rows of it are gone: somebody
    deleted them, or a TTL did. This command says that they shall be written again.

    Example: `landonce state fill clicks.yaml`
    """
    with opened(file) as parts:
        ledger = _load(parts)
        decision = operate.fill(ledger, _owner())
        ranges = tuple(each for block in ledger.pending.blocks for each in block.ranges) if ledger.pending else ()
        _decide(parts, file, ledger, decision, yes=yes, also=_landed_of(parts, ledger, ranges))


@state.command("accept-change")
def accept_change(file: File, yes: Yes = False) -> None:
    """Let the present pipeline file settle a plan that another version of it made.

    The safe way is to put the old file back, run it once, and then make the change. Take this one if you know that the
    change does not decide which records of the pending plan land.

    Example: `landonce state accept-change clicks.yaml`
    """
    with opened(file) as parts:
        ledger = _load(parts)
        fingerprint = make_recipe(parts, parts.sink.target()).fingerprint() if ledger.pending else ""
        _decide(parts, file, ledger, operate.accept_change(ledger, fingerprint, _owner()), yes=yes)


def _decide(
    parts: Parts,
    file: Path,
    ledger: LedgerState,
    decision: Decision,
    *,
    yes: bool,
    also: str = "",
    before: Callable[[], None] | None = None,
) -> None:
    """Explains, asks, swaps. A driver that changed the ledger in the meantime makes this `Fenced`, and nothing is done."""
    for line in decision.does:
        out.print(line, markup=False)
    for line in (*decision.costs, also, "A driver of this pipeline that still runs ends with exit code 4."):
        if line:
            out.print(line, style="yellow", markup=False)
    if not yes:
        typer.confirm("Do it?", abort=True)
    if before is not None:
        before()
    parts.ledger.change(ledger, decision.new, decision.note())
    out.print(f"[green]done[/], and recorded in the journal: epoch {decision.new.epoch}. Next:", end=" ")
    out.print(f"landonce run {file}", markup=False)


def _load(parts: Parts, *, bound: bool = True) -> LedgerState:
    """The ledger's entry. `bound`: one that was never bound to a topic will not do."""
    found = parts.ledger.load()
    if found is None or (bound and found.fresh):
        raise NothingToDo(
            f"pipeline {parts.config.pipeline!r} has no position yet: it never ran, or its ledger is somewhere else.",
            safe="Nothing was changed.",
            command="landonce run {file}, or correct `ledger` in it",
        )
    return found


def _owner() -> str:
    return uuid.uuid4().hex


def _held(target: Target, ledger: LedgerState, view: SourceView) -> TargetView:
    """How far the target holds each partition, by the topics' own names."""
    if not target.exists():
        return TargetView(())
    known = {*ledger.committed(), *(partition for partition, _ in view.extents)}
    return look_by_name(target, ledger, [(each, 0) for each in known])


def _wait_out(target: Target, plan: Plan) -> None:
    """No insert of a plan that is forgotten may begin or run on: nobody would ever look for its rows again."""
    wait_out(target, plan.deadline)
    target.kill()


def _landed_of(parts: Parts, ledger: LedgerState, ranges: tuple[Range, ...]) -> str:
    """How much of these ranges the target holds; silent where it cannot be asked."""
    labelled = [Range(ledger.labelled(each.partition), each.first, each.end) for each in ranges]
    try:
        return f"The target holds {parts.sink.writer().count(labelled)} rows of these offsets now."
    except (Transient, Halt):
        return ""


def _survey(parts: Parts) -> tuple[SourceView | None, str]:
    try:
        return parts.broker.survey(parts.config.source.kafka.topics), ""
    except LandonceError as error:
        return None, error.what


def _show(
    parts: Parts, ledger: LedgerState | None, journal: tuple[Note, ...], view: SourceView | None, trouble: str
) -> None:
    name = parts.config.pipeline
    if ledger is None:
        out.print(f"pipeline {name}: no ledger yet. The first `landonce run` makes it.", markup=False)
        return
    totals = ledger.totals
    out.print(f"pipeline {name}: epoch {ledger.epoch}, version {ledger.version}, batch {ledger.batch}", markup=False)
    out.print(
        f"{totals.read} read = {totals.landed} landed + {totals.dead_lettered} dead-lettered + {totals.filtered} filtered"
    )
    out.print(f"bound to Kafka cluster {ledger.cluster_id or '-'}", markup=False)
    if trouble:
        out.print(f"Kafka was not asked: {trouble}", style="yellow", markup=False)
    for line in _position_lines(ledger, view):
        out.print(line, markup=False)
    for line in _pending_lines(ledger.pending):
        out.print(line, markup=False)
    for topic, label in ledger.labels:
        out.print(f"topic {topic} was rebased: its rows have _topic = {label!r}", markup=False)
    for note in journal:
        out.print(f"{note.at}  {note.action}: {note.detail}", style="dim", markup=False)


def _position_lines(ledger: LedgerState, view: SourceView | None) -> list[str]:
    extents = dict(view.extents) if view else {}
    lines = []
    for partition, position in ledger.positions:
        extent = extents.get(partition)
        line = f"  {partition}: next offset {position.committed}, since {position.first}"
        if extent is not None:
            line += f", lag {max(0, extent.stable_end - position.committed)}"
            kept = position.committed - extent.start
            line += f", retention is {kept} offsets behind" if kept >= 0 else f", OVERRUN by {-kept} offsets"
        lines.append(line)
    return lines


def _pending_lines(plan: Plan | None) -> list[str]:
    if plan is None:
        return ["no plan is pending: everything below the positions has landed"]
    blocks = [f"  block {index}, generation {block.generation}: {block}" for index, block in enumerate(plan.blocks)]
    more = [f"  and {len(blocks) - _LISTED} more blocks"] if len(blocks) > _LISTED else []
    return [
        f"batch {plan.batch} is pending ({plan.kind.value}): {len(plan.blocks)} blocks, at most "
        f"{sum(block.span for block in plan.blocks)} records; the next start settles it first",
        *blocks[:_LISTED],
        *more,
    ]


def _document(
    parts: Parts, ledger: LedgerState | None, journal: tuple[Note, ...], view: SourceView | None, trouble: str
) -> dict[str, Any]:
    document: dict[str, Any] = {"pipeline": parts.config.pipeline, "ledger": None, "journal": []}
    if ledger is None:
        return document
    extents = dict(view.extents) if view else {}
    document["ledger"] = {
        "epoch": ledger.epoch,
        "version": ledger.version,
        "batch": ledger.batch,
        "cluster_id": ledger.cluster_id,
        "topic_ids": dict(ledger.topic_ids),
        "labels": dict(ledger.labels),
        "totals": {
            "read": ledger.totals.read,
            "landed": ledger.totals.landed,
            "dead_lettered": ledger.totals.dead_lettered,
            "filtered": ledger.totals.filtered,
        },
        "positions": [
            {
                "topic": partition.topic,
                "partition": partition.number,
                "first": position.first,
                "committed": position.committed,
                "log_start": extents[partition].start if partition in extents else None,
                "stable_end": extents[partition].stable_end if partition in extents else None,
                "lag": max(0, extents[partition].stable_end - position.committed) if partition in extents else None,
            }
            for partition, position in ledger.positions
        ],
        "pending": _pending_document(ledger.pending),
    }
    document["kafka"] = trouble or "ok"
    document["journal"] = [{"at": note.at, "action": note.action, "detail": note.detail} for note in journal]
    return document


def _pending_document(plan: Plan | None) -> dict[str, Any] | None:
    if plan is None:
        return None
    return {
        "batch": plan.batch,
        "kind": plan.kind.value,
        "deadline": plan.deadline,
        "blocks": [
            {
                "generation": block.generation,
                "ranges": [
                    [each.partition.topic, each.partition.number, each.first, each.end] for each in block.ranges
                ],
            }
            for block in plan.blocks
        ],
    }
