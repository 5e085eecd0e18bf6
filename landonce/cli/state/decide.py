"""What an operator decides about a pipeline: each command reads the state, says what it will do and cost, asks, and changes
the ledger. The sink says what can be decided about it (`Sink.operations`), or gives one sentence why not.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import groupby, zip_longest
from pathlib import Path

import typer

from landonce.cli.command import (
    FENCES,
    accept_operations_of,
    confirm,
    done,
    letters_of,
    opened,
    operating,
    operations_of,
    out,
)
from landonce.clock import milliseconds
from landonce.config.model import seconds
from landonce.engine import dead_letters, replay
from landonce.engine.letter_choice import parse_place
from landonce.errors import ConfigError, Halt, NothingToDo, SeekRefused, StartRefused, Transient
from landonce.protocol import operate
from landonce.protocol.block_rows import accounted
from landonce.protocol.blocks import Kind
from landonce.protocol.ledger import LedgerState, Totals
from landonce.protocol.letters import partition_of
from landonce.protocol.operate import Return
from landonce.protocol.ranges import Partition, Range, without
from landonce.protocol.source import SourceView, Start, StartAt, begin_since
from landonce.protocol.target import TargetView
from landonce.sinks.operations import UNCHANGED, Before, Choice, Operations


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


@dataclass(frozen=True)
class Goal:
    """Where the position is to be: one of these."""

    offsets: tuple[str, ...] = ()
    """`topic:partition:offset`."""
    timestamp: datetime | None = None
    edge: str = ""
    resume: bool = False
    stay: bool = False
    ago: float = 0.0
    """Seconds. As far back as that, and never forwards."""

    def __post_init__(self) -> None:
        given = (self.offsets, self.timestamp, self.edge, self.resume, self.stay, self.ago)
        if sum(bool(each) for each in given) != 1:
            raise ConfigError("name one place: --to-offset, --to-timestamp, --to, --resume or --stay.", safe=UNCHANGED)
        if self.timestamp is not None and self.timestamp.tzinfo is None:
            raise ConfigError(
                "--to-timestamp: has no time zone; write for example 2026-11-01T00:00:00Z.", safe=UNCHANGED
            )

    def of(self, target: Operations, state: LedgerState, view: SourceView) -> dict[Partition, int]:
        extents = {each: extent for each, extent in view.extents if each in state.committed()}
        if self.offsets:
            places = (parse_place(each, "--to-offset: ") for each in self.offsets)
            return {Partition(topic, number): offset for topic, number, offset in places}
        if self.edge:
            return {each: at.start if self.edge == "earliest" else at.stable_end for each, at in extents.items()}
        moment = milliseconds(self.timestamp) if self.timestamp is not None else int((time.time() - self.ago) * 1000)
        start, broker = StartAt(timestamp=moment), target.parts.broker
        since = broker.since(extents, moment)
        if self.timestamp is not None:
            try:
                return begin_since(replace(view, extents=tuple(extents.items())), start, since)
            except StartRefused:
                raise SeekRefused(
                    f"--to-timestamp: no record of these topics has this timestamp or a later one ({self.timestamp.isoformat()}).",
                    safe=UNCHANGED,
                    command="correct the time, or: landonce state seek {file} --to latest   (skips all that is there)",
                ) from None
        back = {each: min(since.get(each, at), at) for each, at in state.committed().items() if each in extents}
        return {each: max(at, extents[each].start) for each, at in back.items()}


def moment(text: str | None) -> datetime | None:
    """`2026-11-01T00:00:00Z`."""
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None
    except ValueError:
        raise ConfigError(
            f"--to-timestamp: {text!r} is not a time; write for example 2026-11-01T00:00:00Z.", safe=UNCHANGED
        ) from None


def length(text: str) -> float:
    """`1h`."""
    try:
        found = seconds(text)
    except ValueError as error:
        raise ConfigError(f"--by: {text!r} {error}.", safe=UNCHANGED) from None
    if found <= 0:
        raise ConfigError("--by: must be more than 0.", safe=UNCHANGED)
    return found


def seek(file: Path, goal: Goal, *, remove: bool, yes: bool) -> None:
    """Moves the position, after rows and dead letters above it are removed, if that is asked for."""
    with operating(file) as target:
        _suits(target, "seek")
        if goal.stay:
            _stay(target, file, yes=yes)
            return
        state, config = target.required(seeking=True), target.parts.config
        letters_of(target).settle_left(state)
        kept = operate.kept_ranges(target.parts.ledger.journal())
        if goal.resume:
            if state.pending is None or state.pending.kind is not Kind.SEEK:
                raise NothingToDo("no seek was interrupted.", safe=UNCHANGED, command="landonce run {file}")
            seeking = operate.resume(state, _new_owner(), kept)
        else:
            view = target.parts.source()
            to = goal.of(target, state, view)
            before = operate.skipped_ranges(target.parts.ledger.journal())
            if remove and (history := target.history()) is not None:
                back = operate.roll_back(state, view, to, history, _new_owner(), skipped=before)
                _roll_back(target, file, state, back, yes=yes)
                return
            seeking = operate.seek(
                state, view, to, _new_owner(), target.able(), remove=remove, before=before, kept=kept
            )
            forgotten = _counted(target, state, operate.counted_ranges(state, seeking.decision.new), state.totals)
            regained = _counted(target, state, seeking.regained, Totals(filtered=int(seeking.filtered)))
            seeking = operate.uncounted(seeking, forgotten.minus(regained))
        confirm(seeking.decision.does, (*seeking.decision.costs, FENCES), yes=yes)
        target.carry_out(state, seeking, partial(replay.remove, config.dead_letters.path, config.pipeline))
    done(file, f": epoch {seeking.decision.new.epoch}")


def _roll_back(target: Operations, file: Path, state: LedgerState, back: Return, *, yes: bool) -> None:
    """Letters of what is delivered again stay where they are: a run judges their records again."""
    config, new = target.parts.config, back.decision.new
    handled = replay.handled_since(config.dead_letters.path, config.pipeline, back.mark.state)
    found = ((partition_of(new, Partition(topic, number), offset), offset) for topic, number, offset in handled)
    operate.refuse_undone((partition, offset) for partition, offset in found if partition is not None)
    _decide(target, file, Choice(state, back.decision, change=partial(target.return_to, state, back)), yes=yes)


def _stay(target: Operations, file: Path, *, yes: bool) -> None:
    """Leaves rows removed. The letters of their records are listed before the ledger is changed, and removed after it."""
    config, letters = target.parts.config, letters_of(target)
    if (seen := target.load(target.observed)) is not None:
        letters.settle_left(seen)
    choice = target.stay(_new_owner())
    decision = choice.decision
    gone = [replace(each, partition=choice.state.labelled(each.partition)) for each in decision.lost]
    count = dead_letters.count_within(config.dead_letters.path, config.pipeline, gone)
    if not count:
        _decide(target, file, choice, yes=yes)
        return
    listed = replay.list_skipped(config.dead_letters.path, config.pipeline, gone, decision.new)
    said = f"{count:,} dead letters of these records are removed; {listed.stem} lists their places."
    choice = replace(choice, before=letters.begin, decision=replace(decision, does=(*decision.does, said)))
    try:
        _decide(target, file, choice, yes=yes)
    except typer.Abort:
        listed.unlink(missing_ok=True)
        raise
    letters.settle_left(decision.new, owner=True)


def _counted(target: Operations, state: LedgerState, ranges: tuple[Range, ...], had: Totals) -> Totals:
    """What the totals hold of these ranges, or held of them. Their records are read only where the target and the letters leave it open.
    `had`: as in `counted_in`."""
    config, skipped = target.parts.config, operate.skipped_ranges(target.parts.ledger.journal())
    pieces = [piece for each in ranges for piece in without(each, skipped)]
    if not pieces:
        return Totals()
    labelled = [replace(each, partition=state.labelled(each.partition)) for each in pieces]
    letters = dead_letters.count_within(config.dead_letters.path, config.pipeline, labelled)
    rows, most = target.records(state, labelled) or 0, sum(each.span for each in pieces)
    if rows + letters == most:
        return Totals(rows, letters)
    out.print(f"Reading at most {most} records, to count them ...")
    return operate.counted_in(had, _read(target, pieces), rows, letters)


def _read(target: Operations, ranges: Iterable[Range]) -> int:
    """How many records Kafka has there. One range of a partition is read at a time."""
    pieces = [list(some) for _, some in groupby(sorted(ranges), key=lambda each: each.partition)]
    together = (tuple(each for each in some if each is not None) for some in zip_longest(*pieces))
    return sum(len(found.offsets) for some in together for found in target.parts.records.read(some))


def import_position(file: Path, before: Before, *, yes: bool) -> None:
    with operating(file) as target:
        _suits(target, "import")
        found = target.take_over(before, _new_owner())
        confirm(found.decision.does, found.decision.costs, yes=yes)
        found.adopt()
    done(file, f": epoch {found.decision.new.epoch}")


def _suits(target: Operations, command: str) -> None:
    """Raises if the pipeline has `dedup`, and the command is not for that."""
    if target.parts.config.dedup is not None:
        from landonce.dedup.pipelines import refuse

        refuse(target.parts, command)


def _decide(target: Operations, file: Path, choice: Choice, *, yes: bool, also: str = "") -> None:
    """Explains, asks, and changes the ledger. If a driver changed it in the meantime, this raises `Fenced` and does nothing.
    Staged dead letters of a plan that is given up count from then on: the plan is never written again."""
    ledger, decision = choice.state, choice.decision
    letters = letters_of(target)
    letters.settle_left(ledger)
    given_up = ledger.pending is not None and decision.new.pending is None
    if given_up:
        decision = replace(decision, does=(*decision.does, letters.given_up(ledger)))
    confirm(decision.does, (*decision.costs, also, FENCES), yes=yes)
    if choice.before is not None:
        choice.before()
    if choice.change is not None:
        choice.change(decision)
    else:
        target.change(ledger, decision)
    if given_up:
        letters.publish_given_up(ledger, decision.new)
    done(file, f": epoch {decision.new.epoch}")


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
