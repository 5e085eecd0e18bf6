"""Sections that every pipeline has, whatever its sink."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyspark

from landonce.check.found import World, nearest, writable
from landonce.engine import transform
from landonce.engine.assemble import selected_columns
from landonce.engine.retention import Retention
from landonce.engine.spark.session import is_remote, need_java, open_session, session_if_needed
from landonce.errors import PlanChanged, SourceUnavailable
from landonce.protocol.ledger import LedgerState, bound
from landonce.protocol.source import SourceView, Start, available, bind
from landonce.read.formats.json.decode import JsonDecoder
from landonce.read.schema.fields import Schema
from landonce.read.schema.sample import take_sample
from landonce.sinks.contract import Finding, Level
from landonce.sinks.declared import declared_schema, selected_from
from landonce.sinks.deduplicating import InsertRecipe
from landonce.sinks.parts import Parts
from landonce.sinks.sql.recipe import SqlRecipe
from landonce.sinks.worker import Recipe


def file(parts: Parts) -> Iterator[Finding]:
    config = parts.config
    kafka = config.source.kafka
    yield Finding(Level.OK, f"{config.pipeline}: {', '.join(kafka.topics)} at {kafka.bootstrap_servers} → {parts.sink}")


def kafka(parts: Parts, world: World) -> Iterator[Finding]:
    try:
        world.source = parts.broker.survey(parts.config.source.kafka.topics)
    except SourceUnavailable as error:
        yield Finding(
            Level.REFUSED,
            error.what,
            "see that Kafka runs and that {file} has its address, and the options that its listener asks for (TLS, SASL)",
        )
        return
    yield Finding(Level.OK, f"cluster {world.source.cluster_id} answers")
    for topic, topic_id in world.source.topic_ids:
        count = sum(1 for partition, _ in world.source.extents if partition.topic == topic)
        yield Finding(Level.OK, f"topic {topic} ({topic_id}) has {count} partitions")


def outside_ledger(parts: Parts, world: World) -> Iterator[Finding]:
    """A ledger in a file or a database, or another package's."""
    plugin = parts.config.outside_ledger.plugin
    if plugin is not None:
        yield Finding(Level.OK, f"plug-in {plugin.name}, {type(parts.ledger).__module__}.{type(parts.ledger).__name__}")
    path = parts.config.outside_ledger.sqlite
    if path is not None and not path.exists():
        world.ledger = True
        yield from writable(path.parent, f"none yet: the first run makes {path}", f"mkdir -p {path.parent}")
        return
    yield from entries(parts, world)


def entries(parts: Parts, world: World, place: str = "") -> Iterator[Finding]:
    """What the ledger says of this pipeline."""
    world.state = parts.ledger.load()
    world.ledger = True
    if world.state is None:
        yield Finding(Level.OK, f"{place}answers, and has no entry for this pipeline yet")
        return
    yield entry(world.state)
    if world.state.pending is not None:
        yield Finding(
            Level.WARNING,
            f"batch {world.state.pending.batch} is pending: a driver is at work, or ended before it was done",
            "nothing to change: the next start settles it first",
        )


def entry(state: LedgerState) -> Finding:
    return Finding(Level.OK, f"epoch {state.epoch}, batch {state.batch}, {state.totals.read} records so far")


def table(
    world: World, findings: tuple[Finding, ...] | None, name: object, making: Iterator[Finding] | None
) -> Iterator[Finding]:
    """The one table of a pipeline: what was found in it, or, where there is none, what a start would make."""
    world.table = findings is not None
    if findings is not None:
        world.fit = not any(each.level is Level.REFUSED for each in findings)
        yield from findings
    else:
        yield from making or missing(name)


def missing(name: object) -> Iterator[Finding]:
    yield Finding(
        Level.REFUSED,
        f"there is no table {name}, or the user may not see it",
        "create it, or say `create: true` in {file} and let landonce do it",
    )


def to_be_created(parts: Parts, world: World, statement: Callable[[Schema], str]) -> Iterator[Finding]:
    """What a start would create, of the declared fields or of those of a sample; nothing is."""
    if parts.config.transform.select:
        selected_from(parts.config)
        world.making = (*world.making, statement)
        yield Finding(
            Level.OK,
            "the table is not there yet; the first start creates it, of the columns that `select` makes: "
            "`landonce check --spark` shows them",
        )
        return
    schema = declared_schema(parts.config)
    if schema is None and world.source is not None:
        schema = take_sample(world.source, parts.consumer).columns(statement)
    if schema is None:
        yield Finding(Level.WARNING, "the table is not there yet; it is created at the first start, from a sample")
    else:
        yield Finding(Level.OK, f"the table is not there yet; the first start creates it:\n{statement(schema)}")


def records(world: World, recipe: InsertRecipe | SqlRecipe) -> Iterator[Finding]:
    """What becomes of records, where there is one table."""
    world.recipe = recipe
    yield decoded(recipe.source, recipe.max_record_bytes)
    same_fingerprint(world)


def decoded(schema: Schema, max_record_bytes: int, into: str = "") -> Finding:
    """Whether records can become these fields at all."""
    try:
        JsonDecoder(schema, max_record_bytes=max_record_bytes)
    except (TypeError, ValueError) as error:
        return Finding(Level.REFUSED, str(error), "declare another type in `source.kafka.schema`")
    fields = ", ".join(each.name + (" (required)" if each.required else "") for each in schema.fields)
    return Finding(Level.OK, f"decoded to {fields}{into}")


def same_fingerprint(world: World) -> None:
    """A pending plan is settled by the file that made it."""
    pending = world.state.pending if world.state else None
    if pending is not None and world.recipe is not None and pending.fingerprint != world.recipe.fingerprint():
        raise PlanChanged(
            "the pending plan was made with another transform, schema or decoder: the pipeline file was changed since, or the table",
            command="put the old file or columns back and run it once, or: landonce state accept-change {file}",
        )


def as_bound(parts: Parts, state: LedgerState | None, view: SourceView) -> LedgerState:
    """The ledger's state as a start would bind it; raises what keeps it from doing so."""
    state = state or LedgerState(parts.config.pipeline, lineage="check")
    binding = bind(state, view, Start(parts.config.source.kafka.start))
    return bound(state, binding.cluster_id, binding.topic_ids, binding.added)


def distances(parts: Parts, state: LedgerState, view: SourceView) -> Iterator[Finding]:
    """How far the position is from the topics' ends, and from being overrun."""
    yield from _lag(state, view)
    kafka = parts.config.source.kafka
    unread = {each.partition: each.first for each in available(state, view)}
    retention = Retention(kafka.bootstrap_servers, kafka.options)
    for topic in kafka.topics:
        mine = {partition: at for partition, at in unread.items() if partition.topic == topic}
        yield from retention.findings(topic, mine)


def _lag(state: LedgerState, view: SourceView) -> Iterator[Finding]:
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
        f"the position {begun} at most {lag} records behind {len(positions)} partitions; nearest to retention is "
        f"{nearest_} at offset {at}, {at - extents[nearest_].start} past the first that is kept",
    )


def spark(parts: Parts, world: World, *, start: bool) -> Iterator[Finding]:
    config = parts.config
    need_java()
    where = config.spark.master or "local[*], unless spark-submit says otherwise"
    yield Finding(Level.OK, f"PySpark {pyspark.__version__} and Java are here; master {where}")
    if config.transform.empty:
        return
    if not start:
        yield Finding(Level.OK, "select and where are examined at every start; `landonce check --spark` does it now")
        return
    if world.making:
        yield from _to_be_selected(parts, world)
    elif world.recipe is None:
        yield Finding(
            Level.WARNING,
            "select and where were not examined: they are held against the table, and there is none yet that is fit",
            "landonce run {file} examines them before it makes the table",
        )
    else:
        yield from _examined(parts, world.recipe)


def _to_be_selected(parts: Parts, world: World) -> Iterator[Finding]:
    """A table that is yet to be made takes whatever `select` yields."""
    config = parts.config
    with session_if_needed(lambda: open_session(config.pipeline, config.spark)) as session:
        columns = selected_columns(config, session)
        told = transform.Expressions(selected_from(config), columns, config.transform.select, config.transform.where)
        transform.examine(session(), told)
        for statement in world.making:
            yield Finding(Level.OK, f"select and where are row-wise and deterministic, and make:\n{statement(columns)}")


def _examined(parts: Parts, recipe: Recipe) -> Iterator[Finding]:
    with session_if_needed(lambda: open_session(parts.config.pipeline, parts.config.spark)) as session:
        transform.examine(session(), recipe)
        yield Finding(Level.OK, "select and where are row-wise and deterministic, and fit the table")


def dead_letters(parts: Parts) -> Iterator[Finding]:
    config = parts.config
    path = config.dead_letters.path
    if is_remote(config.spark) and not config.dead_letters.shared:
        yield Finding(
            Level.REFUSED,
            f"{path} is a folder of this machine, and the workers run on others",
            "name a folder that every machine shares, and say `shared: true` under `dead_letters`",
        )
        return
    if path.is_dir():
        yield from writable(path, f"go to {path}", f"make {path} writable")
    else:
        yield from writable(nearest(path), f"go to {path}, which is made when there is one", f"mkdir -p {path}")
