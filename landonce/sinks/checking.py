"""What `landonce check` asks of a sink, and the answers that sinks share. Reads only: makes no table, no file, no topic.

A sink yields its sections in the order in which a start would meet them (`Sink.checks`). `CheckRun` carries what earlier sections
found out to later ones. An error ends its section, and is a finding like the others: what can be said is always said.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from landonce.errors import PlanChanged, TargetAhead
from landonce.protocol.blocks import Kind
from landonce.protocol.ledger import LedgerState, bound
from landonce.protocol.ranges import Partition
from landonce.protocol.seek_marker import interrupted
from landonce.protocol.source import SourceView, available, bind
from landonce.protocol.target import ahead, below_start, refuse_below_start
from landonce.read.changes import Changes
from landonce.read.decoding import Decoding, decoder_of
from landonce.read.kafka.broker import refuse_vanished
from landonce.read.schema.fields import Schema
from landonce.sinks.contract import CreatedTable, DeduplicatingSink, Finding, Level, Looking, Sink, Target, look_by_name
from landonce.sinks.declared import declared_schema, sampled_schema, selected_from
from landonce.sinks.deduplicating import Tables, TablesRecipe, recipe_of, several
from landonce.sinks.run import CORRECT_CONVERT, plan_fingerprint, run_of
from landonce.sinks.section import LedgerPlace
from landonce.sinks.snapshot import FileT, SnapshotSink, SnapshotTable, TableLedger, VersionT
from landonce.sinks.transactional import TransactionalSink
from landonce.sinks.worker import AnyRecipe

if TYPE_CHECKING:
    from landonce.sinks.parts import Parts

Findings = Iterator[Finding]
Sections = Iterator[tuple[str, Findings]]
"""Sections by name. The findings of one are read before the next section is asked for."""
Statement = Callable[[Schema], str]
"""The statement that makes a table of these columns, for people. Raises for columns that the table cannot have."""


_MOST_LINES = 20
"""Partitions that `check` lists one by one."""


@dataclass
class CheckRun:
    """One check of a pipeline: what it asks, and what its sections found out."""

    parts: Parts
    remote: bool
    """Workers may run on other machines."""
    retention: Callable[[Mapping[Partition, int]], Findings]
    """How long Kafka keeps records, given the next offset to read of each partition that has unread ones."""
    source: SourceView | None = None
    kept_by: str = "Kafka"
    """Who keeps the records that are read: `source` is about that."""
    state: LedgerState | None = None
    ledger: bool = False
    """The ledger was asked; `state` is None if it has no entry."""
    table: bool = False
    """The one table is there."""
    fit: bool = False
    """And it can hold the guarantee."""
    recipe: AnyRecipe | None = None
    """What becomes of records, where the tables are there and fit."""
    statements: tuple[Statement, ...] = ()
    """Of tables that are not there yet, and whose columns `select` makes: what a start would run."""

    @property
    def topics(self) -> tuple[str, ...]:
        """By name, as far as the brokers say which match."""
        named = self.parts.config.source.kafka.topics
        seen = self.source.topic_ids if self.source is not None else ()
        return named if isinstance(named, tuple) else tuple(topic for topic, _ in seen)


def ledger_and_position(run: CheckRun) -> Sections:
    """What can be said of any sink."""
    outside = run.parts.config.ledger_place is LedgerPlace.OUTSIDE
    yield "ledger", outside_ledger(run) if outside else entries(run)
    yield "position", position(run)


def of_deduplicating(run: CheckRun, sink: DeduplicatingSink) -> Sections:
    """A target that deduplicates: the ledger, the table, what becomes of records, and the position."""
    if several(sink):
        yield from _of_tables(run, sink)
        return
    with closing(sink.target()) as target:
        yield "ledger", outside_ledger(run)
        yield "table", _target_table(run, sink, target)
        if run.table:
            yield "records", _target_records(run, sink)
        yield "position", _target_position(run, target)


def _of_tables(run: CheckRun, sink: DeduplicatingSink) -> Sections:
    """The same for several tables, or tables that evolve."""
    all_there = all_fit = True
    with closing(Tables(sink)) as tables:
        yield "ledger", outside_ledger(run)
        for name in sink.routing.static:
            yield f"table {name}", _target_table(run, sink.one(name), tables.one(name))
            all_there, all_fit = all_there and run.table, all_fit and run.fit
        if sink.routing.template is not None:
            yield "tables", _named_by_records(sink, tables)
        run.table, run.fit = all_there, all_there and all_fit
        if run.fit:
            yield "records", _tables_records(run, sink)
        yield "position", _target_position(run, tables)


def _named_by_records(sink: DeduplicatingSink, tables: Tables) -> Findings:
    found = sink.existing()
    made = "are made when they come" if sink.create else "are dead letters"
    yield Finding(Level.OK, f"{len(found)} tables are there that records may name; records for others {made}")
    for name in found:
        for each in tables.one(name).check():
            if each.level is Level.REFUSED:
                yield Finding(Level.WARNING, f"{name}: {each.what}: records for it would be dead letters", each.change)


def _tables_records(run: CheckRun, sink: DeduplicatingSink) -> Findings:
    recipe = recipe_of(run_of(run.parts), sink)
    run.recipe = recipe
    for each in recipe.tables if isinstance(recipe, TablesRecipe) else ():
        yield decoded(each.source, recipe.decoding, f" for {each.name}")
    same_fingerprint(run, recipe)


def _target_table(run: CheckRun, sink: DeduplicatingSink, target: Target) -> Findings:
    findings = target.check() if target.exists() else None
    created = chain(target.creatable(), to_be_created(run, sink.creation)) if sink.create else None
    yield from table(run, findings, sink.identity, created)


def _target_records(run: CheckRun, sink: DeduplicatingSink) -> Findings:
    recipe = recipe_of(run_of(run.parts), sink)
    yield from records(run, recipe, recipe.source)


def _target_position(run: CheckRun, target: Target) -> Findings:
    state = bound_state(run, run.state)
    if state is None or run.source is None:
        return
    yield from distances(run, state)
    if not run.fit or state.pending is not None:
        return
    unbound = run.state is None or run.state.fresh
    seen = look_by_name(target, state, floors(state))
    ranges = ahead(state, seen, run.source, run.parts.start, unbound=unbound)
    if unbound and (below := below_start(state, seen, run.parts.start)):
        labelled = [replace(each, partition=state.labelled(each.partition)) for each in below]
        refuse_below_start(target.count(labelled), run.parts.start)
    if ranges:
        span = sum(each.span for each in ranges)
        yield Finding(
            Level.WARNING,
            f"the table holds rows of {len(ranges)} partitions that the ledger does not know of, within {span} offsets",
            "nothing to change: they are compared with Kafka at the next start and not written again",
        )


def of_transactional(run: CheckRun, sink: TransactionalSink) -> Sections:
    """A table in a database that holds the ledger, too."""
    with closing(sink.open_table()) as opened:
        yield "ledger", entries(run)
        yield "table", _one_table(run, sink, sink.table, opened.exists, opened)
        if run.fit:
            yield "records", _transactional_records(run, sink)
        yield "position", unknown_rows(run, opened)


def of_snapshot(run: CheckRun, sink: SnapshotSink[FileT, VersionT]) -> Sections:
    """A table that commits atomically, and may be its own ledger."""
    opened = sink.open_table()
    yield "ledger", _snapshot_ledger(run)
    yield "table", _one_table(run, sink, sink.table, lambda: opened.view() is not None, opened)
    if run.fit:
        yield "records", _snapshot_records(run, sink)
    yield "position", _snapshot_position(run, sink, opened)


def _one_table(run: CheckRun, sink: Sink, name: str, there: Callable[[], bool], opened: CreatedTable) -> Findings:
    created = to_be_created(run, opened.creation) if sink.create else None
    findings = (Finding(Level.OK, f"{name} is there"), *opened.check()) if there() else None
    yield from table(run, findings, name, created)


def _transactional_records(run: CheckRun, sink: TransactionalSink) -> Findings:
    with closing(sink.open(run_of(run.parts, remote=run.remote))) as opened:
        recipe = opened.examined()
    yield from records(run, recipe, recipe.source)


def _snapshot_ledger(run: CheckRun) -> Findings:
    outside = run.parts.config.ledger_place is LedgerPlace.OUTSIDE
    yield from outside_ledger(run) if outside else entries(run, "the table itself ")
    ledger = run.parts.ledger
    if isinstance(ledger, TableLedger) and ledger.noticed:
        yield Finding(Level.WARNING, ledger.noticed, "nothing to change: the next start does so")


def _snapshot_records(run: CheckRun, sink: SnapshotSink[FileT, VersionT]) -> Findings:
    opened = sink.open(run_of(run.parts))
    opened.refresh()
    yield from records(run, opened.recipe, opened.recipe.source)


def _snapshot_position(
    run: CheckRun, sink: SnapshotSink[FileT, VersionT], opened: SnapshotTable[FileT, VersionT]
) -> Findings:
    yield from position(run)
    new = run.state is None or run.state.fresh
    if run.ledger and new and run.table and opened.holds(run.topics):
        raise TargetAhead(
            f"the table {sink.table} holds records of these topics, but no position of this pipeline",
            command="take a new table, or the name of the pipeline that wrote them",
        )


def unknown_rows(run: CheckRun, opened: Looking) -> Findings:
    """Where a start would go on, and rows of the table that a ledger in the same database does not know of: a start refuses them."""
    state = bound_state(run, run.state)
    if state is None:
        return
    yield from distances(run, state)
    if not run.fit or state.pending is not None:
        return
    for partition, end in look_by_name(opened, state, floors(state)).ends:
        yield Finding(
            Level.REFUSED,
            f"{partition}: the table holds offsets up to {end - 1}, and the ledger of this pipeline knows nothing of them",
            "give the pipeline the name that it had when they landed, restore the tables landonce_* from the same "
            "backup as the table, or use an empty table",
        )


def outside_ledger(run: CheckRun) -> Findings:
    """A ledger in a file or a database, or another package's."""
    named, ledger = run.parts.config.outside_ledger, run.parts.ledger
    if named.plugin is not None:
        yield Finding(Level.OK, f"plug-in {named.plugin.name}, {type(ledger).__module__}.{type(ledger).__name__}")
    if named.memory:
        yield Finding(
            Level.WARNING,
            "is in memory: the position is lost when the process ends, and the next start compares the whole target with the topic",
            "name `sqlite`, `postgres` or `keeper_map` under `ledger` for a pipeline that is to last",
        )
    path = named.sqlite
    if path is not None and not path.exists():
        run.ledger = True
        yield from writable(path.parent, f"none yet: the first run creates {path}", f"mkdir -p {path.parent}")
        return
    yield from entries(run)


def entries(run: CheckRun, place: str = "") -> Findings:
    """What the ledger says of this pipeline."""
    run.state = run.parts.ledger.load()
    run.ledger = True
    if run.state is None:
        yield Finding(Level.OK, f"{place}answers, and has no entry for this pipeline yet")
        return
    yield Finding(Level.OK, entry(run.state))
    if run.state.pending is not None and run.state.pending.kind is Kind.SEEK:
        raise interrupted(run.state.pending)
    if run.state.pending is not None:
        yield Finding(
            Level.WARNING,
            f"batch {run.state.pending.batch} is pending: a driver is at work, or ended before it was done",
            "nothing to change: the next start settles it first",
        )


def entry(state: LedgerState) -> str:
    return f"epoch {state.epoch}, batch {state.batch}, {state.totals.read} records so far"


def table(run: CheckRun, findings: tuple[Finding, ...] | None, name: object, created: Findings | None) -> Findings:
    """The one table of a pipeline: what was found in it, or, where there is none, what a start would make."""
    run.table = findings is not None
    if findings is not None:
        run.fit = not any(each.level is Level.REFUSED for each in findings)
        yield from findings
    else:
        yield from created or missing(name)


def missing(name: object) -> Findings:
    yield Finding(
        Level.REFUSED,
        f"there is no table {name}, or the user may not see it",
        "create it, or set `create: true` in {file}",
    )


def to_be_created(
    run: CheckRun, statement: Statement, tidy: Callable[[Schema], Schema] = lambda inferred: inferred
) -> Findings:
    """What a start would create, of the declared fields or of those of a sample, as `tidy` leaves them. Nothing is created."""
    config = run.parts.config
    if config.transform.select:
        selected_from(config)
        run.statements = (*run.statements, statement)
        yield Finding(
            Level.OK,
            "the table does not exist yet; the first start creates it with the columns of `select`: `landonce check "
            "--spark` shows them",
        )
        return
    schema = declared_schema(config)
    if schema is None and run.source is not None:
        inferred = sampled_schema(run.parts, run.source, statement, tidy)
        schema = inferred.schema
        if inferred.words:
            yield Finding(Level.OK, f"the table does not exist yet; {inferred.words}")
    if schema is None:
        yield Finding(
            Level.WARNING, ("the table does not exist yet; the first start creates it from a sample of the records")
        )
    else:
        yield Finding(Level.OK, f"the table does not exist yet; the first start creates it:\n{statement(schema)}")


def records(
    run: CheckRun, recipe: AnyRecipe, source: Schema, identity: tuple[str, ...] = (), changes: Changes | None = None
) -> Findings:
    """What becomes of records, where there is one table. `identity` and `changes`: if they change its rows."""
    run.recipe = recipe
    yield decoded(source, recipe.decoding, "", identity, changes)
    same_fingerprint(run, recipe)


def decoded(
    schema: Schema,
    decoding: Decoding,
    into: str = "",
    identity: tuple[str, ...] = (),
    changes: Changes | None = None,
) -> Finding:
    """Whether records can become these fields at all."""
    try:
        decoder_of(schema, decoding, identity, changes)
    except (TypeError, ValueError) as error:
        return Finding(Level.REFUSED, str(error), "declare another type in `source.kafka.schema`")
    mistakes = [] if into else [*decoding.convert.mistakes(schema)]
    if mistakes:
        return Finding(Level.REFUSED, f"source.kafka.convert: {'; '.join(mistakes)}", CORRECT_CONVERT)
    fields = ", ".join(each.name + (" (required)" if each.required else "") for each in schema.fields)
    return Finding(Level.OK, f"decoded to {fields}{into}")


def same_fingerprint(run: CheckRun, recipe: AnyRecipe) -> None:
    """A pending plan is settled by the file that made it."""
    pending = run.state.pending if run.state else None
    if (
        pending is not None
        and pending.kind is not Kind.SEEK
        and pending.fingerprint != plan_fingerprint(run.parts.sink, recipe)
    ):
        raise PlanChanged(
            "the pending plan was made with another shard map, transform, schema or decoder: the pipeline file or the table's "
            "columns were changed since",
            command="put the old file or columns back and run it once, or: landonce state accept-change {file}",
        )


def position(run: CheckRun) -> Findings:
    """Where a start would go on, for a target that is not asked."""
    state = bound_state(run, run.state)
    if state is not None:
        yield from distances(run, state)


def bound_state(run: CheckRun, state: LedgerState | None) -> LedgerState | None:
    """The ledger's state as a start would bind it; raises what keeps it from doing so. None where Kafka or the ledger did not answer."""
    if run.source is None or not run.ledger:
        return None
    config = run.parts.config
    state = state or LedgerState(config.pipeline, lineage="check")
    refuse_vanished(config.source.kafka.topics, dict(state.topic_ids), run.source)
    source = run.parts.begins(run.source) if state.fresh else run.source
    binding = bind(state, source, run.parts.start)
    return bound(state, binding.cluster_id, binding.topic_ids, binding.added)


def floors(state: LedgerState) -> list[tuple[Partition, int]]:
    """From where a target is asked for rows that the ledger does not know of."""
    return [(each, 0 if state.batch == 0 else at) for each, at in state.committed().items()]


def distances(run: CheckRun, state: LedgerState) -> Findings:
    """How far the position is from the topics' ends, and from being overrun."""
    if run.source is None:
        return
    if state.version == 1 and state.batch == 0 and run.parts.stored is None:
        yield from _beginnings(run, state, run.source)
    yield from _lag(state, run.source, run.kept_by)
    yield from run.retention({each.partition: each.first for each in available(state, run.source)})


def _beginnings(run: CheckRun, state: LedgerState, view: SourceView) -> Findings:
    """Where each partition begins, in records and times. `start` says nothing more once there is a position."""
    extents, positions = dict(view.extents), state.committed()
    waiting = {each: at for each, at in positions.items() if at < extents[each].stable_end}
    times = run.parts.broker.first_times(dict(sorted(waiting.items())[:_MOST_LINES]))
    for partition, at in sorted(positions.items())[:_MOST_LINES]:
        extent = extents[partition]
        at_first = datetime.fromtimestamp(times[partition] / 1000, timezone.utc) if partition in times else None
        first = f"; its first record is of {at_first:%Y-%m-%dT%H:%M:%SZ}" if at_first is not None else ""
        yield Finding(
            Level.OK,
            f"{partition} would begin at offset {at} of [{extent.start}, {extent.stable_end}): at most "
            f"{extent.stable_end - at} records to deliver, {at - extent.start} before that are left out{first}",
        )
    if len(positions) > _MOST_LINES:
        yield Finding(Level.OK, f"{len(positions) - _MOST_LINES} more partitions begin by the same rule")


def _lag(state: LedgerState, view: SourceView, kept_by: str) -> Findings:
    """One line for all partitions: the sum of the lag, and the nearest distance to what is deleted."""
    extents = dict(view.extents)
    positions = [(each, at) for each, at in state.committed().items() if each in extents]
    if not positions:
        return
    lag = sum(max(0, extents[each].stable_end - at) for each, at in positions)
    nearest_, at = min(positions, key=lambda each: each[1] - extents[each[0]].start)
    begun = "would begin" if state.version == 1 and state.batch == 0 else "is"
    yield Finding(
        Level.OK,
        f"the position {begun} at most {lag} records behind the end of {len(positions)} partitions; closest to "
        f"retention: {nearest_} at offset {at}, {at - extents[nearest_].start} after the first offset that {kept_by} keeps",
    )


def writable(folder: Path, fine: str, change: str) -> Iterable[Finding]:
    """Whether a file can be made in a folder."""
    if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK):
        return (Finding(Level.OK, fine),)
    what = "is not writable for this user" if folder.exists() else "is not there"
    return (Finding(Level.REFUSED, f"the folder {folder} {what}", change),)


def nearest(path: Path) -> Path:
    """The nearest folder above that is there."""
    return next((each for each in path.parents if each.exists()), Path("/"))
