"""`landonce state accept-gap` and `rebase`: the source is not what it was."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

from landonce.cli.files import opened
from landonce.cli.state.decide import decide, load, new_owner
from landonce.errors import Halt, PlanPending, Transient
from landonce.ledger.in_target import TargetLedger
from landonce.ledger.push_ledger import PushLedger
from landonce.protocol import operate
from landonce.protocol.block_rows import Row, accounted, landed
from landonce.protocol.blocks import Plan
from landonce.protocol.ledger import LedgerState
from landonce.protocol.marks import Floors, Stand
from landonce.protocol.ranges import Range
from landonce.protocol.source import SourceView, Start
from landonce.protocol.target import TargetView
from landonce.sinks.contract import Guarantee, Target, look_by_name, wait_out
from landonce.sinks.parts import Parts
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.sql.table import SqlTable
from landonce.sinks.wrapped.sink import WrappedSink


def accept_gap(file: Path, *, yes: bool) -> None:
    with opened(file) as parts:
        ledger = load(parts, bound=False)
        view = parts.broker.survey(parts.config.source.kafka.topics)
        if parts.sink.guarantee is Guarantee.SNAPSHOT:
            known, stands = _stands_of(parts, ledger)
            decide(parts, file, ledger, operate.accept_gap(known, view, new_owner(), stands), yes=yes)
            return
        settled = accounted(_rows(parts, ledger))
        decision = operate.accept_gap(ledger, view, new_owner(), landed=settled)
        decide(parts, file, ledger, decision, yes=yes, also=landed_of(parts, ledger, decision.lost))


def _stands_of(parts: Parts, ledger: LedgerState) -> tuple[LedgerState, tuple[Stand, ...]]:
    from landonce.cli.state.lake import stands_of

    return stands_of(parts, ledger)


def _rows(parts: Parts, ledger: LedgerState) -> Sequence[Row]:
    """What is known of the pending plan's blocks, where each has a row of its own."""
    if ledger.pending is None:
        return ()
    if isinstance(parts.ledger, PushLedger):
        return parts.ledger.standing(ledger.pending.batch).rows
    return parts.ledger.blocks(ledger.pending.batch) if isinstance(parts.ledger, TargetLedger) else ()


def rebase(file: Path, *, to: str, drop_pending: bool, yes: bool) -> None:
    start = Start(to)
    with opened(file) as parts:
        ledger = load(parts, bound=False)
        view = parts.broker.survey(parts.config.source.kafka.topics)
        if parts.sink.guarantee is Guarantee.SNAPSHOT:
            known, stands = _stands_of(parts, ledger)
            ahead = TargetView(_ahead(known, stands))
            decision = operate.rebase(
                known, view, ahead, new_owner(), to=start, drop_pending=drop_pending, stands=stands
            )
            decide(parts, file, ledger, decision, yes=yes)
            return
        if isinstance(parts.sink, SqlSink):
            with closing(SqlTable(parts.sink)) as table:
                seen = _held(table, ledger, view)
            seen = operate.landed_too(seen, ledger.pending, landed(_rows(parts, ledger)))
            decision = operate.rebase(ledger, view, seen, new_owner(), to=start, drop_pending=drop_pending)
            decide(parts, file, ledger, decision, yes=yes)
            return
        if isinstance(parts.sink, WrappedSink):
            seen = operate.landed_too(TargetView(()), ledger.pending, landed(_rows(parts, ledger)))
            decision = operate.rebase(ledger, view, seen, new_owner(), to=start, drop_pending=drop_pending)
            decide(parts, file, ledger, decision, yes=yes)
            return
        target = parts.clickhouse.target()
        held = _held(target, ledger, view)
        decision = operate.rebase(ledger, view, held, new_owner(), to=start, drop_pending=drop_pending)

        def settle() -> None:
            if ledger.pending is not None:
                _wait_out(target, ledger.pending)
                _no_more_than(held, _held(target, ledger, view))

        decide(parts, file, ledger, decision, yes=yes, before=settle)


def _held(target: Target | SqlTable, ledger: LedgerState, view: SourceView) -> TargetView:
    """How far the target holds each partition, by the topics' own names."""
    if not target.exists():
        return TargetView(())
    known = {*ledger.committed(), *(partition for partition, _ in view.extents)}
    floors = [(each, 0) for each in known]
    return look_by_name(target, ledger, floors)


def _ahead(ledger: LedgerState, stands: Iterable[Stand]) -> Floors:
    """How far tables of a fan-out are that have more of the pending plan than the ledger knows."""
    committed = ledger.committed()
    return tuple(
        sorted((each, at) for stand in stands if not stand.behind for each, at in stand.floors if at > committed[each])
    )


def _no_more_than(held: TargetView, now: TargetView) -> None:
    """What was decided holds for the rows that were there."""
    if held != now:
        raise PlanPending(
            "rows of the pending plan came to the table while this was decided.",
            safe="Nothing was changed. No more of them can come.",
            command="landonce state rebase {file}, as before: it sees them now",
        )


def _wait_out(target: Target, plan: Plan) -> None:
    """No insert of a plan that is forgotten may begin or run on: nobody would ever look for its rows again."""
    wait_out(target, plan.deadline)
    target.kill()


def landed_of(parts: Parts, ledger: LedgerState, ranges: tuple[Range, ...]) -> str:
    """How much of these ranges the target holds; silent where it cannot be asked."""
    if isinstance(parts.sink, WrappedSink):
        return ""
    labelled = [Range(ledger.labelled(each.partition), each.first, each.end) for each in ranges]
    try:
        if isinstance(parts.sink, SqlSink):
            with closing(SqlTable(parts.sink)) as table:
                return f"The target holds {table.count(labelled)} rows of these offsets now." if table.exists() else ""
        return f"The target holds {parts.clickhouse.writer().count(labelled)} rows of these offsets now."
    except (Transient, Halt):
        return ""
