"""What a snapshot sink keeps: rows and position are one commit, on the version that was looked at, whatever happens around it.

The cases drive the sink as landonce's own driver does, through `TableLedger`.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import pyarrow as pa

from landonce.errors import Fenced, PositionUncertain, RolledBack, TableReplaced, TargetUnavailable
from landonce.protocol.blocks import Block, Plan
from landonce.protocol.ledger import LedgerState, Note, Totals, bound, prepared, recorded, taken
from landonce.protocol.marks import Mark
from landonce.protocol.operate import skipped_ranges
from landonce.protocol.ranges import Partition, Range
from landonce.sinks.contract import Guarantee
from landonce.sinks.snapshot import Origin, Seen, SnapshotSink, SnapshotTable, TableLedger
from landonce.testing.case import SECRET, Suite, overrides, refused
from landonce.testing.crashing import SOME_MOMENTS, apart, crashed, in_threads, lines_of, moments, require_kills
from landonce.testing.sink_sites import (
    PIPELINE,
    SCHEMA,
    TOPIC,
    Row,
    as_rows,
    check_columns,
    check_not_refused,
    copied,
    held,
    in_order,
    odd_rows,
    rows,
)

BATCH_ROWS = 4
FIRST = Partition(TOPIC, 0)


class SnapshotSite(ABC):
    """A table of its own for one case, which does not exist yet, and what is declared of it.

    A method that the site does not implement (`write_aside`, `roll_back`, `expire`, `replace`) excuses the cases that need it, and pytest says so.
    """

    secret = ""
    """A part of the sink's description that must not appear in a log: a password."""
    moments = SOME_MOMENTS
    """At how many lines, at most, a crash is tried."""
    forks = True
    """The sink's libraries survive a fork. If they do not (threads of Rust or Java), each case runs in a process of its own."""

    @abstractmethod
    def sink(self, pipeline: str) -> SnapshotSink[Any, Any]:
        """The sink, as a pipeline of this name opens it. Always of the same table."""

    @abstractmethod
    def held(self) -> list[Row]:
        """All that a reader of the table sees, in any order, read without the sink."""

    def write_aside(self, table: pa.Table) -> None:
        """Another program adds rows, in a commit of its own."""
        raise NotImplementedError

    def roll_back(self, commits: int) -> None:
        """An operator sets the table back by so many commits."""
        raise NotImplementedError

    def expire(self) -> None:
        """The table's upkeep removes all of the history that it ever may. What the table holds stays."""
        raise NotImplementedError

    def replace(self) -> None:
        """Drops the table. Another one of the same name and columns is made."""
        raise NotImplementedError


OTHERS = overrides(SnapshotSite, "write_aside", "the site has no other writer")
ROLLS = overrides(SnapshotSite, "roll_back", "the site has no way to roll the table back")
EXPIRES = overrides(SnapshotSite, "expire", "the site has no way to let the history expire")
REPLACES = overrides(SnapshotSite, "replace", "the site has no way to replace the table")


def opened(site: SnapshotSite) -> SnapshotSink[Any, Any]:
    return site.sink(PIPELINE)


def made(site: SnapshotSite) -> SnapshotSink[Any, Any]:
    """The sink, with its table."""
    sink = opened(site)
    sink.open_table().create(SCHEMA)
    return sink


def ledger_of(sink: SnapshotSink[Any, Any], pipeline: str = PIPELINE) -> TableLedger:
    return TableLedger(sink.open_table(), pipeline)


def state_of(site: SnapshotSite, pipeline: str = PIPELINE) -> LedgerState | None:
    """What a driver that starts now finds."""
    return ledger_of(site.sink(pipeline), pipeline).load()


def taken_by(sink: SnapshotSink[Any, Any], owner: str, pipeline: str = PIPELINE) -> tuple[TableLedger, LedgerState]:
    """A driver starts: it takes the table, and binds the pipeline to a topic if nobody did before."""
    ledger = ledger_of(sink, pipeline)
    state = ledger.create(LedgerState(pipeline, f"lineage of {pipeline}"))
    state = ledger.change(state, taken(state, owner))
    if state.fresh:
        state = ledger.change(state, bound(state, "cluster", {TOPIC: "id"}, {FIRST: 0}))
    return ledger, state


def position(state: LedgerState | None) -> int:
    return state.committed().get(FIRST, 0) if state is not None else 0


def batch_of(state: LedgerState) -> pa.Table:
    """The rows of the next batch."""
    return rows(*range(position(state), position(state) + BATCH_ROWS))


def stage(sink: SnapshotSink[Any, Any], state: LedgerState, table: pa.Table, block: int = 0) -> tuple[Any, ...]:
    """As a worker does."""
    files, count = sink.stage(table, Origin(state.pipeline, state.epoch, state.batch + 1, block))
    assert count == table.num_rows, f"of {table.num_rows} rows {count} were staged"
    return files


def plan(ledger: TableLedger, state: LedgerState) -> tuple[LedgerState, LedgerState]:
    """The states before and after the next batch."""
    at = position(state)
    block = Block((Range(FIRST, at, at + BATCH_ROWS),), "events")
    before = ledger.change(state, prepared(state, Plan(state.batch + 1, (block,), "fingerprint", 0)))
    return before, recorded(before, Totals(landed=BATCH_ROWS))


def land(sink: SnapshotSink[Any, Any], ledger: TableLedger, state: LedgerState) -> LedgerState:
    """The next batch, from its files to its commit."""
    files = stage(sink, state, batch_of(state))
    before, after = plan(ledger, state)
    ledger.commit(before, after, files, tops=((FIRST, position(after) - 1),))
    return after


def begun(
    site: SnapshotSite, batches: int = 0, owner: str = "first"
) -> tuple[SnapshotSink[Any, Any], TableLedger, LedgerState]:
    """The table exists, and a driver has taken it and landed so many batches."""
    sink = made(site)
    ledger, state = taken_by(sink, owner)
    for _ in range(batches):
        state = land(sink, ledger, state)
    return sink, ledger, state


def below(offset: int) -> list[Row]:
    """What the table holds if the position is at this offset."""
    return as_rows(rows(*range(offset)))


SNAPSHOT_CASES: Suite[SnapshotSite] = Suite("snapshot sink")
case = SNAPSHOT_CASES.case
KILLING = "after_a_crash_at_any_line_rows_and_position_agree"
"""The case that touches the sink in other processes only."""


@case()
def the_guarantee_is_one_that_this_port_keeps(site: SnapshotSite) -> None:
    """A pipeline would start with a promise that nothing backs."""
    declared = opened(site).guarantee
    assert declared is Guarantee.SNAPSHOT, f"a sink with look and attempt cannot be {declared}"


@case()
def a_sink_travels_to_the_workers(site: SnapshotSite) -> None:
    """No Spark task could write. A sink is a description: what is open belongs to its table."""
    sink = made(site)
    copy = copied(sink)
    assert copy.identity == sink.identity == opened(site).identity, "a pending plan would belong to another table"
    ledger, state = taken_by(sink, "first")
    files = pickle.loads(pickle.dumps(stage(copy, state, batch_of(state))))  # noqa: S301
    ledger.commit(*plan(ledger, state), files)
    assert held(site) == below(4), "what a worker staged is not there after the commit"


@case(SECRET)
def no_secret_is_shown(site: SnapshotSite) -> None:
    """Passwords would appear in logs and in bug reports."""
    for shown in (repr(opened(site)), str(opened(site))):
        assert site.secret not in shown, "the sink shows its secret"


@case()
def a_table_is_made_once(site: SnapshotSite) -> None:
    """A second start would empty the table, or fail."""
    table = opened(site).open_table()
    assert table.look() is None, "there is a table before it was created"
    assert table.journal() == (), "there is a journal before there is a table"
    table.create(SCHEMA)
    assert table.look() is not None, "there is no table after it was created"
    begun(site, 1)
    table.create(SCHEMA)
    assert held(site) == below(4), "creating a table that exists changed it"
    assert position(state_of(site)) == 4, "creating a table that exists changed its position"


@case()
def the_schema_comes_back(site: SnapshotSite) -> None:
    """Records would be decoded to other columns than the table has."""
    check_columns(made(site).open_table().schema())


@case()
def a_fit_table_is_not_refused(site: SnapshotSite) -> None:
    """No pipeline could start, or a check would change the table."""
    table = made(site).open_table()
    check_not_refused(table.check())
    assert looked(table).view.last is None, "a check wrote something"


@case()
def values_come_back_as_they_were(site: SnapshotSite) -> None:
    """Rows would land once, and wrong."""
    sink, ledger, state = begun(site)
    ledger.commit(*plan(ledger, state), stage(sink, state, odd_rows()))
    assert held(site) == as_rows(odd_rows()), "a value was changed"


@case()
def all_blocks_of_a_batch_land_together(site: SnapshotSite) -> None:
    """The position covers all blocks of a batch: those that are left out are lost."""
    sink, ledger, state = begun(site)
    topic = rows(2).column("_topic").dictionary_encode()  # workers may hold the topic as a dictionary
    parts = [rows(0, 1), rows(2).set_column(0, "_topic", topic), rows(3)]
    files = tuple(file for number, part in enumerate(parts) for file in stage(sink, state, part, number))
    ledger.commit(*plan(ledger, state), files)
    assert held(site) == below(4), "some blocks of the batch are missing"


@case()
def a_mark_comes_back_whole(site: SnapshotSite) -> None:
    """The next driver would continue from another state than the last one left: dead letters, epochs and positions come from the mark."""
    sink, ledger, state = begun(site)
    before, after = plan(ledger, state)
    started, tops = ((FIRST, 0),), ((FIRST, 3),)
    ledger.commit(
        before,
        after,
        stage(sink, state, rows(0, 3)),
        started=started,
        letters=("a ü.jsonl",),
        letters_in="/x",
        tops=tops,
    )
    view = looked(opened(site).open_table()).view
    for name, mark in (("mark", view.mark), ("copy", view.copy)):
        assert mark is not None, f"the {name} of the last commit is not there"
        assert mark.state == after, f"the state in the {name} is not the one that was committed"
        known = (mark.started, mark.letters, mark.letters_in, mark.tops)
        assert known == (started, ("a ü.jsonl",), "/x", tops), f"a field of the {name} was changed"


@case()
def a_batch_without_rows_moves_the_position(site: SnapshotSite) -> None:
    """A batch of filtered records would be read again for ever."""
    _, ledger, state = begun(site, 1)
    ledger.commit(*plan(ledger, state))
    assert position(state_of(site)) == 8, "a batch without rows did not move the position"
    assert held(site) == below(4), "a batch without rows changed the table"


@case()
def what_is_staged_is_not_there(site: SnapshotSite) -> None:
    """Readers would see rows of tasks that failed, and see them again when the task is repeated."""
    sink, ledger, state = begun(site)
    stage(sink, state, batch_of(state))
    assert held(site) == [], "rows are visible before their commit"
    land(sink, ledger, state)
    assert held(site) == below(4), "files of a task that was repeated are in the table"


@case()
def files_of_a_dead_driver_never_appear(site: SnapshotSite) -> None:
    """What a driver staged before it died, the next one reads and stages again: both would be there."""
    sink, _, state = begun(site, 1, "dead")
    stage(sink, state, batch_of(state))
    ledger, state = taken_by(sink, "next")
    assert held(site) == below(4), "taking the table made files visible that nobody committed"
    land(sink, ledger, state)
    assert held(site) == below(8), "files of a dead driver are in the table, or rows are missing"


@case()
def an_attempt_on_an_older_version_is_refused(site: SnapshotSite) -> None:
    """The check of position and epoch would be made on one version, and the commit on another: delivered twice."""
    sink, ledger, state = begun(site, 1)
    table = sink.open_table()
    seen = looked(table)
    files = stage(sink, state, batch_of(state))
    after = land(sink, ledger, state)
    assert not table.attempt(seen, Mark(after), files, None), "an attempt on an older version of the table took effect"
    assert held(site) == below(8), "a refused attempt changed the rows"
    assert position(state_of(site)) == 8, "a refused attempt changed the position"


@case(OTHERS)
def an_attempt_is_never_moved_to_a_newer_version(site: SnapshotSite) -> None:
    """A library that tries again by itself commits on a version that nobody has checked: a driver that was replaced would be let through."""
    sink, ledger, state = begun(site)
    table = sink.open_table()
    seen = looked(table)
    site.write_aside(rows(100, partition=9))
    _, after = plan(ledger, state)
    taken = table.attempt(seen, Mark(after), stage(sink, state, batch_of(state)), None)
    assert not taken, "an attempt took effect on another version than the one that was looked at"
    assert held(site) == as_rows(rows(100, partition=9)), "a refused attempt added rows"


@case()
def of_attempts_at_once_one_takes_effect(site: SnapshotSite) -> None:
    """Two drivers that start together would both own the table, and both deliver."""
    sink, ledger, state = begun(site)
    _, after = plan(ledger, state)
    table = sink.open_table()
    seen, tries = [looked(table) for _ in range(4)], [stage(sink, state, batch_of(state), each) for each in range(4)]

    def attempt(name: str) -> bool:
        number = int(name[-1])
        return table.attempt(seen[number], Mark(after), tries[number], None)

    assert sum(in_threads(4, attempt)) == 1, "of four attempts on one version, not exactly one took effect"
    assert held(site) == below(4), "rows of a refused attempt are there, or those of the accepted one are not"


@case()
def a_driver_that_was_replaced_is_fenced(site: SnapshotSite) -> None:
    """A driver that was paused wakes up and delivers what the next one has delivered."""
    sink, old_ledger, old = begun(site, 1, "old")
    files = stage(sink, old, batch_of(old))
    new_ledger, new = taken_by(sink, "new")
    before, after = plan(old_ledger, old)
    refused(Fenced, lambda: old_ledger.commit(before, after, files), "a driver with an older epoch committed")
    assert held(site) == below(4), "a driver with an older epoch added rows"
    land(sink, new_ledger, new)
    refused(Fenced, lambda: old_ledger.check_owner(old), "a driver that was replaced did not notice it")
    assert held(site) == below(8), "rows are missing, or there twice"


@case(OTHERS)
def commits_of_others_disturb_nothing(site: SnapshotSite) -> None:
    """A table has other writers: each of their commits would stop the pipeline, hide its position, or be undone by it."""
    sink, ledger, state = begun(site, 1)
    site.write_aside(rows(100, partition=9))
    assert position(state_of(site)) == 4, "another writer's commit hides the position"
    state = land(sink, ledger, state)
    site.write_aside(rows(101, partition=9))
    ledger, state = taken_by(opened(site), "next")
    land(sink, ledger, state)
    others = as_rows(rows(100, 101, partition=9))
    assert held(site) == in_order([*below(12), *others]), "rows are missing, or there twice"


@case()
def pipelines_in_one_table_do_not_mix(site: SnapshotSite) -> None:
    """Two pipelines may write to one table: one would continue from the position of the other."""
    sink, ledger, state = begun(site, 1)
    _, other = taken_by(site.sink("contract-2"), "second", "contract-2")
    assert position(other) == 0, "a pipeline begins at the position of another one"
    land(sink, ledger, state)
    assert position(state_of(site)) == 8, "another pipeline's commit moved the position"
    assert position(state_of(site, "contract-2")) == 0, "another pipeline's commit moved the position"


@case()
def a_lost_answer_is_found_out(site: SnapshotSite) -> None:
    """A commit that took effect and was not answered would be made again: delivered twice."""
    sink, ledger, state = begun(site, 1)
    files = stage(sink, state, batch_of(state))
    before, after = plan(ledger, state)
    ledger.table = table = sink.open_table()
    kind, attempts = type(table), []

    def unanswered(table: Any, *arguments: Any, attempt: Any = kind.attempt) -> bool:
        """The answer to the first attempt is lost."""
        attempts.append(arguments)
        taken: bool = attempt(table, *arguments)
        if len(attempts) == 1:
            raise TargetUnavailable("the answer is lost")
        return taken

    with mock.patch.object(kind, "attempt", unanswered):
        refused(TargetUnavailable, lambda: ledger.commit(before, after, files), "a lost answer was not noticed")
        ledger.commit(before, after, files)
    assert len(attempts) == 1, "the commit was there, and was made again"
    assert held(site) == below(8), "rows are missing, or there twice"


@case(ROLLS)
def a_rollback_is_followed(site: SnapshotSite) -> None:
    """The rows that a rollback removes would be lost: the position must go back with them; versions and epochs must not."""
    sink, _, state = begun(site, 3)
    site.roll_back(2)
    assert held(site) == below(4), "the site's `roll_back` does something else"
    view = looked(opened(site).open_table()).view
    assert view.rolled_back, "the rollback is not noticed"
    assert not view.uncertain, "the history is there, and says how far the table is"
    ledger, now = taken_by(opened(site), "next")
    assert position(now) == 4, f"after the rollback the table holds 4 rows, and the position is {position(now)}"
    assert now.version > state.version, "a version number is used for a second time"
    assert now.epoch > state.epoch, "an epoch is used for a second time"
    for _ in range(2):
        now = land(sink, ledger, now)
    assert held(site) == below(12), "what the rollback removed was not delivered again, or twice"


@case(ROLLS)
def a_driver_at_work_notices_a_rollback(site: SnapshotSite) -> None:
    """The next batch would land above a gap that nothing ever fills."""
    sink, ledger, state = begun(site, 2)
    site.roll_back(1)
    files = stage(sink, state, batch_of(state))
    before, after = plan(ledger, state)
    refused(RolledBack, lambda: ledger.commit(before, after, files), "a batch was committed on top of a rollback")
    assert held(site) == below(4), "a batch was committed on top of a rollback"


@case(EXPIRES)
def the_position_survives_the_history(site: SnapshotSite) -> None:
    """Checkpoints and expiry clear the history away: the pipeline would begin again, and deliver everything twice."""
    sink, ledger, state = begun(site, 2)
    site.expire()
    assert held(site) == below(8), "the site's `expire` does something else"
    seen = state_of(site)
    assert seen == state, f"the state is not what was committed before the history expired: {seen}"
    state = land(sink, ledger, state)
    site.expire()
    ledger, state = taken_by(opened(site), "next")
    land(sink, ledger, state)
    assert held(site) == below(16), "rows are missing, or there twice"


@case(EXPIRES, ROLLS, OTHERS)
def a_rollback_is_not_forgotten_with_the_history(site: SnapshotSite) -> None:
    """The removed rows would be lost, once nothing in the history shows that they were removed."""
    sink, _, _ = begun(site, 2)
    site.roll_back(1)
    site.write_aside(rows(100, partition=9))
    site.expire()
    try:
        ledger, state = taken_by(opened(site), "next")
    except PositionUncertain:
        return
    assert position(state) == 4, f"the table holds 4 of the rows, and the position is {position(state)}"
    land(sink, ledger, state)
    assert held(site) == in_order([*below(8), *as_rows(rows(100, partition=9))]), "rows are missing, or there twice"


@case(REPLACES)
def another_table_of_the_same_name_is_noticed(site: SnapshotSite) -> None:
    """Rows of the last batches would go to a new table that lacks all that came before."""
    sink, ledger, state = begun(site, 1)
    files = stage(sink, state, batch_of(state))
    site.replace()
    before, after = plan(ledger, state)
    refused(TableReplaced, lambda: ledger.commit(before, after, files), "a batch went to another table")
    assert held(site) == [], "a batch went to another table"


@case()
def rows_without_a_mark_are_seen(site: SnapshotSite) -> None:
    """A pipeline that starts in a table with records of its topics must know of them, or it delivers them again."""
    table = made(site).open_table()
    assert not table.holds((TOPIC,)), "an empty table holds records"
    begun(site, 1)
    assert table.holds((TOPIC,)), "the table holds records of the topic, and says that it does not"
    assert table.holds(("another", TOPIC)), "the table holds records of one of the topics, and says that it does not"
    assert not table.holds(("another",)), "records of one topic pass for records of another"


@case()
def the_journal_is_kept(site: SnapshotSite) -> None:
    """What an operator decided, and when, would be forgotten."""
    sink, ledger, state = begun(site, 1)
    notes = tuple(Note(f"2026-11-01T00:00:0{each}Z", "accept-gap", f"detail {each} ✓") for each in range(2))
    for each in notes:
        state = ledger.change(state, replace(state, version=state.version + 1), each)
    land(sink, ledger, state)
    assert ledger_of(opened(site)).journal() == notes, "a note is missing, changed, or in another order"


@case()
def what_operators_skipped_outlives_later_notes(site: SnapshotSite) -> None:
    """An audit would call records missing that an operator skipped long ago."""
    _, ledger, state = begun(site, 1)
    skipped = Range(FIRST, 90, 95)
    for at in range(101):
        note = Note(f"2026-11-{at}", *(("fill", "") if at else ("seek", f"Skipped: {skipped}.")))
        state = ledger.change(state, replace(state, version=state.version + 1), note)
    assert skipped_ranges(ledger_of(opened(site)).journal()) == (skipped,), (
        "an old note is dropped without `kept_notes`"
    )


@case()
def after_a_crash_at_any_line_rows_and_position_agree(site: SnapshotSite) -> None:
    """The whole promise: after each crash, the table holds exactly the rows below its position, and the next driver continues from there."""
    apart(lambda: made(site) and None)
    sink = opened(site)
    own = {*lines_of(sink), *lines_of(sink.open_table())} - {"landonce.sinks"}
    lines = (*sorted(own), SnapshotTable.__module__)  # the sink's package, and the ledger that drives it

    def start_and_land() -> None:
        ledger, state = taken_by(opened(site), "driver")
        land(opened(site), ledger, state)

    def check(moment: object) -> int:
        at = position(state_of(site))
        assert held(site) == below(at), f"rows and position do not agree after a crash (line {moment})"
        return at

    apart(start_and_land)
    deaths = []
    for moment in moments(lines, start_and_land, site.moments):
        deaths.append(crashed(lines, start_and_land, moment))
        apart(partial(check, moment))
    require_kills(deaths)
    before = apart(lambda: check("none"))
    apart(start_and_land)
    assert apart(lambda: check("none")) == before + 4, "after the crashes no batch can land any more"


def looked(table: SnapshotTable) -> Seen:
    seen = table.look()
    assert seen is not None, "the table is not there any more"
    return seen
