"""One change that an operator may make, before it is made; those of a plan that is pending; and what every import refuses. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from landonce.errors import ConfigError, ImportRefused, NothingToDo
from landonce.protocol import marks
from landonce.protocol.block_rows import BlockState, PushRow
from landonce.protocol.blocks import Block, Kind, Plan
from landonce.protocol.ledger import LedgerState, Note, Totals, taken
from landonce.protocol.letters import keep_letters, refuse_pending
from landonce.protocol.ranges import Range

_LISTED = 5


@dataclass(frozen=True)
class Restated:
    """A table of a fan-out gets a mark by an operator: an empty snapshot with this mark, on the table as it was seen."""

    view: marks.TableView
    mark: marks.Mark


@dataclass(frozen=True)
class Decision:
    """What changes, what that does, and what it costs."""

    action: str
    new: LedgerState
    does: tuple[str, ...]
    """What the command will do, line by line."""
    costs: tuple[str, ...]
    """What that means, in numbers where there are any."""
    lost: tuple[Range, ...] = ()
    """Offsets that will never be delivered, unless they are in the target already."""
    marks: tuple[Restated, ...] = ()
    """Written once the ledger is changed. An operator who is stopped in between decides again, with the same result."""

    def note(self) -> Note:
        at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        return Note(at, self.action, " ".join((*self.does, *self.costs)))


def listed(things: Iterable[object], most: int = _LISTED) -> str:
    """Some of them, and how many more there are."""
    named = [str(each) for each in things]
    more = f" and {len(named) - most} more" if len(named) > most else ""
    return ", ".join(named[:most]) + more


def fill(state: LedgerState, owner: str) -> Decision:
    """The pending plan's missing rows are written, even where a block is there in part."""
    plan = state.pending
    if plan is None:
        raise NothingToDo("no plan is pending, so there is nothing to fill.", safe="Nothing was changed.")
    if plan.kind is Kind.FILL:
        raise NothingToDo(
            f"batch {plan.batch} is already marked to be filled.",
            safe="Nothing was changed.",
            command="landonce run {file}",
        )
    keep_letters(plan)
    new = replace(taken(state, owner), pending=replace(plan, kind=Kind.FILL))
    does = (f"At the next start, rows of batch {plan.batch} that the target lacks are written, and no others.",)
    costs = (
        _extent(plan),
        "Rows of these ranges that somebody deleted on purpose, or that a TTL removed, come back.",
    )
    return Decision("fill", new, does, costs)


def accept_change(state: LedgerState, fingerprint: str, owner: str, *, fan_out: bool = False) -> Decision:
    """The pending plan is settled by the present pipeline file instead of the one that made it."""
    plan = state.pending
    if plan is None:
        raise NothingToDo(
            "no plan is pending, so a changed pipeline file applies from the next batch on.",
            safe="Nothing was changed.",
            command="landonce run {file}",
        )
    if plan.fingerprint == fingerprint:
        raise NothingToDo(
            f"batch {plan.batch}, which is pending, was made with this pipeline file.",
            safe="Nothing was changed.",
            command="landonce run {file}",
        )
    new = replace(taken(state, owner), pending=replace(plan, fingerprint=fingerprint))
    does = (f"Batch {plan.batch}, which is pending, is settled by the present transform, schema and decoder.",)
    return Decision("accept-change", new, does, (_extent(plan), *(_BY_TABLES if fan_out else _BY_ROWS)))


def no_such_letter() -> NothingToDo:
    """None of the pipeline's dead letters is what was asked for."""
    return NothingToDo(
        "there is no such dead letter.", safe="Nothing was changed.", command="landonce dead list {file}"
    )


def drop_letters(state: LedgerState, letters: int, listed_in: str, owner: str) -> Decision:
    """Dead letters are given up: their records count as filtered, by an operator. `listed_in`: the file that names them."""
    refuse_pending(state.pending)
    keep_letters(state.pending)
    if not letters:
        raise no_such_letter()
    moved = min(letters, state.totals.dead_lettered)
    totals = state.totals.plus(Totals(dead_lettered=-moved, filtered=moved))
    does = (
        f"{letters:,} dead letters are removed from their files, and count as filtered: dropped by an operator.",
        f"{listed_in} lists their places.",
    )
    costs = ("Their keys, values and headers are gone for good, unless Kafka still holds the records.",)
    return Decision("drop dead letters", replace(taken(state, owner), totals=totals), does, costs)


_BY_ROWS = (
    "Rows that are in the target stay as the old file made them; missing rows are written as the new file makes them. "
    "Each record still lands at most once.",
    "If the two files do not land the same records, `landonce verify` shows the difference, and a block that is "
    "present in part halts with PartialPresence.",
)
_BY_TABLES = (
    "Tables that already hold the batch keep it as the old file made it; the others get it as the new file makes it. "
    "In each table a record still lands at most once.",
    "If the new file sends a record to other tables than the old one did, it may be in both, or in none: `landonce "
    "verify` shows the difference.",
)


def _extent(plan: Plan) -> str:
    ranges = [each for block in plan.blocks for each in block.ranges]
    return f"Ranges: {listed(ranges)}; at most {sum(each.span for each in ranges)} records."


def settle(
    state: LedgerState, blocks: Mapping[str, Block], rows: tuple[PushRow, ...], key: str, owner: str, *, landed: bool
) -> tuple[Decision, PushRow]:
    """The block with this key arrived, or it did not. `blocks` are those of the pending plan, by their keys."""
    claimed = {row.number: row for row in rows if row.mark is BlockState.CLAIMED}
    open_ = [name for name, block in blocks.items() if block.number in claimed]
    if not open_:
        raise NothingToDo(
            "there is nothing to settle: the outcome of every pushed block is known.",
            safe="Nothing was changed.",
            command="landonce run {file}",
        )
    if key not in open_:
        raise ConfigError(
            f"--block: {key!r} is not a block whose outcome is unknown; these are: {listed(open_)}.",
            safe="Nothing was changed.",
        )
    block, batch = blocks[key], state.pending.batch if state.pending is not None else 0
    if landed:
        does = f"Block {key} ({block}) of batch {batch} counts as landed, and is never pushed again."
        cost = "If it did not arrive, its records never reach the target."
    else:
        does = f"Block {key} ({block}) of batch {batch} counts as absent, and is pushed again at the next start."
        cost = "If it did arrive, its records are in the target twice."
    return Decision("settle", taken(state, owner), (does,), (cost,)), claimed[block.number]


# Going on where another writer stopped.


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
