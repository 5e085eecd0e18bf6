"""What an operator decides about dead letters: landing them in place, or dropping them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace as changed
from functools import partial
from pathlib import Path

from landonce.cli.command import FENCES, confirm, err, letters_of, operating, out
from landonce.config.secrets import redact
from landonce.dedup.replay import refuse_unaccepted
from landonce.dedup.replay import replay_letters as replay_unique
from landonce.engine import dead_letters
from landonce.engine.dead_letters import Place
from landonce.engine.letter_choice import Filters, fixed_lines, printable
from landonce.engine.observe import BatchReport, Silent
from landonce.engine.pipeline import refuse_replay, replay_letters
from landonce.engine.replay import Replay, ReplayAgain, list_dropped, replayed, unsettled
from landonce.errors import ConfigError, NothingToDo
from landonce.failpoints import reach
from landonce.protocol import operate
from landonce.protocol.ledger import LedgerState, Totals, taken
from landonce.protocol.letters import refuse_pending
from landonce.protocol.reasons import lines
from landonce.sinks.operations import UNCHANGED, Operations
from landonce.sinks.pipeline_file import load

_ELSEWHERE = "a run reads their records again, or they belong to another topic than the one that has the name now."
_FORGOTTEN = (
    "the store no longer has their keys from these records, so the events may have come again. Produce the values to the topic again: there "
    "they are compared with all others."
)


class _Landing(Silent):
    """Prints what a person should know while letters land, and counts those that do. Others may have moved the totals meanwhile."""

    def __init__(self) -> None:
        self.totals = Totals()

    def batch(self, report: BatchReport) -> None:
        self.totals = self.totals.plus(report.totals)

    def trouble(self, what: str) -> None:
        err.print(redact(what), style="yellow", markup=False)


def settle_left(file: Path, folder: Path) -> None:
    """Before letters are counted: those that landed in a replay that was killed after its RECORD go. The ledger is asked only where
    there may be such."""
    if not unsettled(folder):
        return
    with operating(file) as target:
        state = target.load()
        if state is not None:
            letters_of(target).settle_left(state)


def replay(file: Path, filters: Filters, with_: Path | None, *, again: bool, yes: bool) -> None:
    """Checks everything that can be checked, asks, and lands letters until none is left that was not tried."""
    if again and with_ is not None:
        raise ConfigError("--again lands the values that landed before: leave out --with.", safe=UNCHANGED)
    with operating(file) as target:
        refuse_replay(target.parts, again=again)
        state = _settled(target)
        refuse_pending(state.pending)
        config = target.parts.config
    folder = config.dead_letters.path
    # As the file says it: letters of accepted events have a folder of their own.
    unique = load(file) if config.dedup is not None else None
    unaccepted = partial(refuse_unaccepted, unique) if unique is not None else None
    work = (ReplayAgain if again else Replay)(folder, config.pipeline, filters)
    if with_ is not None:
        work = changed(work, fixed=_fixed(with_, work, unaccepted))
    count = sum(1 for _ in work.candidates())
    if not count and state.pending is None:
        if unaccepted is not None and with_ is None:
            unaccepted(filters)
        if with_ is None:
            raise operate.no_such_letter()
        why = f"all letters of {with_} were replayed before."
        raise NothingToDo(why, safe=UNCHANGED, command="landonce dead list {file}")
    values = f"with the values of {with_}" if with_ is not None else "as the present pipeline file decodes them"
    does = [f"{count:,} dead letters land in place, {values}; what cannot land stays a dead letter."]
    if again:
        does = [
            f"Of {count:,} dead letters that were replayed before, those without a row in the target land again, with the values that landed; "
            "what cannot land is a dead letter again."
        ]
    if state.pending is not None:
        does.insert(0, f"Batch {state.pending.batch} of letters, which is pending, is finished first.")
    confirm(does, (FENCES,), yes=yes)
    landing = _Landing()
    if unique is not None:
        driver = replay_unique(unique, work, observer=landing)
    else:
        driver = replay_letters(config, work, observer=landing)
    landed, filtered = landing.totals.landed, landing.totals.filtered
    still = sum(each.records for each in driver.reasons)
    out.print(f"{landed:,} landed, {filtered:,} filtered, {still:,} stay dead letters", markup=False)
    for line in lines(driver.reasons, still):
        out.print(printable(line), markup=False)
    _say_elsewhere(len(work.elsewhere), "tried")
    if work.forgotten:
        out.print(f"{len(work.forgotten):,} letters were not tried: {_FORGOTTEN}", style="yellow", markup=False)


def _say_elsewhere(letters: int, what: str) -> None:
    if letters:
        out.print(f"{letters:,} letters were not {what}: {_ELSEWHERE}", style="yellow", markup=False)


def _fixed(path: Path, work: Replay, unaccepted: Callable[[Filters], None] | None = None) -> dict[Place, bytes | None]:
    """The values by place. Every line must be of a letter that is chosen, or of one that landed before. `unaccepted`, with `dedup`: raises if
    letters are of records that were never accepted."""
    values: dict[Place, bytes | None] = {}
    numbers: dict[Place, int] = {}
    for each in fixed_lines(path):
        if each.place in values:
            raise _refused(path, each.line, each.place, f"is also in line {numbers[each.place]}")
        values[each.place], numbers[each.place] = each.value, each.line
    there = {
        place
        for entry in dead_letters.committed(work.folder, work.pipeline)
        if (place := dead_letters.place_of(entry)) in values and work.filters.takes(entry)
    }
    before = {
        place for entry in replayed(work.folder, work.pipeline) if (place := dead_letters.place_of(entry)) in values
    }
    for place in values:
        if place not in there and place not in before:
            if unaccepted is not None:
                unaccepted(Filters(place=place))
            raise _refused(path, numbers[place], place, "is no dead letter that this command chooses")
    return {place: values[place] for place in values if place in there}


def _refused(path: Path, line: int, place: Place, why: str) -> ConfigError:
    return ConfigError(
        f"--with: {path}, line {line}: {':'.join(map(str, place))} {why}.",
        safe=UNCHANGED,
        command="remove the line, or see `landonce dead list {file}`",
    )


def drop(file: Path, filters: Filters, *, yes: bool) -> None:
    """The list of what is dropped is durable before the ledger says so, and letters go after it."""
    with operating(file) as target:
        if target.parts.config.dedup is not None:
            raise NothingToDo(
                "with `dedup`, dead letters are not dropped: their records may come again, or land by `landonce dead replay`.",
                safe=UNCHANGED,
            )
        state = _settled(target)
        config, new = target.parts.config, taken(state, uuid.uuid4().hex)
        if not dead_letters.files(config.dead_letters.path, config.pipeline):
            raise operate.no_such_letter()
        listed = list_dropped(config.dead_letters.path, config.pipeline, filters, new)
        try:
            if listed.elsewhere and not listed.count:
                raise NothingToDo(
                    f"no letter may be dropped: {_ELSEWHERE}", safe=UNCHANGED, command="landonce run {file}"
                )
            decision = operate.drop_letters(state, listed.count, listed.path.stem, new.owner)
            confirm(decision.does, (*decision.costs, FENCES), yes=yes)
        except BaseException:
            listed.path.unlink(missing_ok=True)
            raise
        reach("drop.listed")
        letters = letters_of(target)
        letters.begin()
        target.change(state, decision)
        reach("drop.recorded")
        letters.settle_left(decision.new, owner=True)
        out.print(f"[green]done[/], and recorded in the journal: {listed.count:,} dropped.")
        _say_elsewhere(listed.elsewhere, "dropped")


def _settled(target: Operations) -> LedgerState:
    state = target.required()
    letters_of(target).settle_left(state)
    return state
