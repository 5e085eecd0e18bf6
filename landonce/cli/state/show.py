"""`landonce state show`: a pipeline's position, plan, tables and journal, as text or as JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from landonce.cli.command import accept_operations_of, account, opened, operations_of, out, print_json
from landonce.config.secrets import redact
from landonce.engine import dead_letters
from landonce.errors import LandonceError
from landonce.protocol.blocks import Kind, Plan
from landonce.protocol.ledger import LedgerState, Note
from landonce.protocol.marks import MarkReport, TableState, report_on
from landonce.protocol.reasons import Reasons, lines
from landonce.protocol.seek_marker import interrupted
from landonce.protocol.source import SourceView
from landonce.sinks.operations import LedgerAddress, Operations

T = TypeVar("T")
_LISTED = 5
_SHOWN_TABLES = 50
_COUNTED = 100_000
"""Dead letters that are read for their reasons; the newest, if there are more."""


def show(file: Path, *, as_json: bool) -> None:
    with opened(file) as parts:
        seen = _look(operations_of(parts))
        accepting = _look(accept_operations_of(parts)) if parts.config.dedup is not None else None
    if as_json:
        document = _document(seen)
        print_json(document if accepting is None else {**document, "accept": _document(accepting)})
        return
    if accepting is not None:
        out.print("[bold]accept[/]: Kafka → store of `dedup`")
        _show(accepting)
        out.print("\n[bold]push[/]: store of `dedup` → target")
    _show(seen)


@dataclass(frozen=True)
class _Seen:
    """All that is shown."""

    pipeline: str
    kept: LedgerAddress
    ledger: LedgerState | None
    journal: tuple[Note, ...]
    source: SourceView | None
    no_source: str
    tables: tuple[MarkReport, ...]
    no_tables: str
    noticed: str
    claimed: tuple[str, ...] = ()
    """Keys of blocks that were pushed and are not settled."""
    letters: Path | None = None
    """Where dead letters are, if there are any."""
    reasons: Reasons = ()
    """Why, of those that are there."""
    no_letters: str = ""


def _look(target: Operations) -> _Seen:
    parts, ledger = target.parts, target.observed
    state, folder, name = target.load(ledger), parts.config.dead_letters.path, parts.config.pipeline
    journal = ledger.journal() if state is not None else ()
    source, no_source = _asked(parts.source)
    tables, no_tables = _asked(lambda: tuple(report_on(state, each) for each in target.tables(state)) if state else ())
    reasons, no_letters = _asked(lambda: dead_letters.reasons(folder, name, _COUNTED) if folder.is_dir() else ())
    return _Seen(
        pipeline=name,
        kept=target.kept(),
        ledger=state,
        journal=journal,
        source=source,
        no_source=no_source,
        tables=tables or (),
        no_tables=no_tables,
        noticed=target.noticed(ledger),
        claimed=target.claimed(state) if state is not None else (),
        letters=folder if reasons else None,
        reasons=reasons or (),
        no_letters=no_letters,
    )


def _asked(ask: Callable[[], T]) -> tuple[T | None, str]:
    """The answer; or none, and why."""
    try:
        return ask(), ""
    except LandonceError as error:
        return None, error.what


def _show(seen: _Seen) -> None:
    ledger = seen.ledger
    if ledger is None:
        out.print(f"pipeline {seen.pipeline}: no ledger yet. The first `landonce run` creates it.", markup=False)
        return
    out.print(
        f"pipeline {seen.pipeline}: epoch {ledger.epoch}, version {ledger.version}, batch {ledger.batch}", markup=False
    )
    out.print(account(ledger.totals))
    if seen.letters is not None:
        there = sum(each.records for each in seen.reasons)
        out.print(redact(f"{there:,} dead letters in {seen.letters}, by reason:"), markup=False)
        for line in lines(seen.reasons, there):
            out.print(redact(line), markup=False)
    out.print(f"ledger: {seen.kept.words}", markup=False)
    out.print(f"bound to Kafka cluster {ledger.cluster_id or '-'}", markup=False)
    troubles = (
        seen.noticed,
        seen.no_source and f"the source was not asked: {seen.no_source}",
        seen.no_tables and f"the tables were not asked: {seen.no_tables}",
        seen.no_letters and f"the dead letters were not counted: {seen.no_letters}",
    )
    for trouble in filter(None, troubles):
        out.print(trouble, style="yellow", markup=False)
    for line in (*_position_lines(ledger, seen.source), *_pending_lines(ledger.pending), *_table_lines(seen.tables)):
        out.print(line, markup=False)
    for key in seen.claimed:
        out.print(
            f"  block {key} was claimed, and it is not known whether it landed: the next run finds out, or names the "
            "`landonce state settle` command to use",
            style="yellow",
            markup=False,
        )
    for of, label in ledger.labels:
        out.print(f"{of} was rebased: its rows have _topic = {label!r}", markup=False)
    for note in seen.journal:
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
    if plan.kind is Kind.SEEK:
        return [interrupted(plan).what]
    blocks = [f"  block {index}, generation {block.generation}: {block}" for index, block in enumerate(plan.blocks)]
    more = [f"  and {len(blocks) - _LISTED} more blocks"] if len(blocks) > _LISTED else []
    return [
        f"batch {plan.batch} is pending ({plan.kind.value}): {len(plan.blocks)} blocks, at most "
        f"{sum(block.span for block in plan.blocks)} records; the next start settles it first",
        *blocks[:_LISTED],
        *more,
    ]


def _table_lines(tables: tuple[MarkReport, ...]) -> list[str]:
    """Those first that are not simply in step."""
    calm = (TableState.IN_STEP, TableState.UNTOUCHED)
    ordered = sorted(tables, key=lambda each: each.status in calm)
    lines = []
    for each in ordered[:_SHOWN_TABLES]:
        mark = each.view.mark
        commit = f", commit {mark.commit}" if mark is not None and mark.commit else ""
        lines.append(f"  table {each.view.table}: {each.status.value}: {each.words}{commit}")
        if each.command:
            lines.append(f"    → {each.command}")
    more = [f"  and {len(tables) - _SHOWN_TABLES} more tables"] if len(tables) > _SHOWN_TABLES else []
    return lines + more


def _document(seen: _Seen) -> dict[str, Any]:
    ledger = seen.ledger
    document: dict[str, Any] = {
        "pipeline": seen.pipeline,
        "kept_in": dict(seen.kept.document),
        "ledger": None,
        "journal": [],
    }
    if ledger is None:
        return document
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
        "positions": _positions_document(ledger, seen.source),
        "pending": _pending_document(ledger.pending),
    }
    document["kafka"] = seen.no_source or "ok"
    document["noticed"] = seen.noticed
    document["claimed"] = list(seen.claimed)
    document["dead_letters"] = [
        {"code": each.code.value, "cause": each.cause, "records": each.records, "example": each.example}
        for each in seen.reasons
    ]
    document["tables"] = [_table_document(each) for each in seen.tables]
    document["tables_asked"] = seen.no_tables or "ok"
    document["journal"] = [{"at": note.at, "action": note.action, "detail": note.detail} for note in seen.journal]
    return document


def _positions_document(ledger: LedgerState, view: SourceView | None) -> list[dict[str, Any]]:
    extents = dict(view.extents) if view else {}
    return [
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
    ]


def _table_document(each: MarkReport) -> dict[str, Any]:
    mark = each.view.mark
    return {
        "table": each.view.table,
        "uuid": each.view.uuid or None,
        "status": each.status.value,
        "words": each.words,
        "command": each.command,
        "batch": mark.batch if mark else None,
        "snapshot": mark.snapshot if mark else None,
        "commit": mark.commit or None if mark else None,
        "lacks": [[one.partition.topic, one.partition.number, one.first, one.end] for one in each.lacks],
    }


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
