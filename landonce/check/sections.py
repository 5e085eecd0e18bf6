"""The sections of `check`, in the order in which a start would meet them.

A part that is away is one finding, and the sections that need it are left out: what can be said is always said.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyspark

from landonce.check.promise import Promise, promise
from landonce.check.retention import Retention
from landonce.errors import LandonceError, PlanChanged
from landonce.read.decode import JsonDecoder
from landonce.read.infer import infer
from landonce.read.source import SourceView, Start, available, bind
from landonce.record.ledger import LedgerState, bound
from landonce.run.assemble import Parts, declared_schema, make_recipe
from landonce.run.session import is_remote, need_java
from landonce.write.clickhouse import Creation, create_statement
from landonce.write.clickhouse.connection import connect
from landonce.write.recipe import Recipe
from landonce.write.sink import Finding, Level, Target, look_by_name
from landonce.write.target import ahead


@dataclass(frozen=True)
class Section:
    """Findings about one thing."""

    name: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Check:
    """All that was found, and what is promised if nothing was refused."""

    pipeline: str
    sections: tuple[Section, ...]
    promise: Promise

    @property
    def refused(self) -> bool:
        return any(finding.level is Level.REFUSED for each in self.sections for finding in each.findings)


@dataclass
class _Seen:
    """What earlier sections found out, for later ones."""

    view: SourceView | None = None
    state: LedgerState | None = None
    ledger: bool = False
    table: bool = False
    fit: bool = False
    recipe: Recipe | None = None


def check_pipeline(parts: Parts, *, spark: bool = False) -> Check:
    """Looks at everything. `spark`: starts a Spark session to examine the expressions too."""
    seen = _Seen()
    target = parts.sink.target()
    looks: tuple[tuple[str, Callable[[], Iterator[Finding]]], ...] = (
        ("pipeline file", lambda: _file(parts)),
        ("Kafka", lambda: _kafka(parts, seen)),
        ("ledger", lambda: _ledger(parts, seen)),
        ("table", lambda: _table(parts, target, seen)),
        ("records", lambda: _records(parts, target, seen)),
        ("position", lambda: _position(parts, target, seen)),
        ("Spark", lambda: _spark(parts, seen, start=spark)),
        ("dead letters", lambda: _dead_letters(parts)),
    )
    try:
        sections = tuple(Section(name, tuple(_gathered(look()))) for name, look in looks)
    finally:
        target.close()
    return Check(
        parts.config.pipeline,
        tuple(each for each in sections if each.findings),
        promise(parts.config, parts.sink.guarantee),
    )


def _gathered(findings: Iterator[Finding]) -> Iterator[Finding]:
    """An error ends its section, as a finding like the others."""
    try:
        yield from findings
    except LandonceError as error:
        yield Finding(Level.REFUSED, error.what, error.command)


def _file(parts: Parts) -> Iterator[Finding]:
    config = parts.config
    kafka = config.source.kafka
    yield Finding(Level.OK, f"{config.pipeline}: {', '.join(kafka.topics)} at {kafka.bootstrap_servers} → {parts.sink}")


def _kafka(parts: Parts, seen: _Seen) -> Iterator[Finding]:
    seen.view = parts.broker.survey(parts.config.source.kafka.topics)
    yield Finding(Level.OK, f"cluster {seen.view.cluster_id} answers")
    for topic, topic_id in seen.view.topic_ids:
        count = sum(1 for partition, _ in seen.view.extents if partition.topic == topic)
        yield Finding(Level.OK, f"topic {topic} ({topic_id}) has {count} partitions")


def _ledger(parts: Parts, seen: _Seen) -> Iterator[Finding]:
    path = parts.config.ledger.sqlite
    if path is not None and not path.exists():
        seen.ledger = True
        yield from _writable(path.parent, f"none yet: the first run makes {path}", f"mkdir -p {path.parent}")
        return
    seen.state = parts.ledger.load()
    seen.ledger = True
    state = seen.state
    if state is None:
        yield Finding(Level.OK, "answers, and has no entry for this pipeline yet")
        return
    yield Finding(Level.OK, f"epoch {state.epoch}, batch {state.batch}, {state.totals.read} records so far")
    if state.pending is not None:
        yield Finding(
            Level.WARNING,
            f"batch {state.pending.batch} is pending: a driver is at work, or ended before it was done",
            "nothing to change: the next start settles it first",
        )


def _table(parts: Parts, target: Target, seen: _Seen) -> Iterator[Finding]:
    seen.table = target.exists()
    if seen.table:
        findings = target.check()
        seen.fit = not any(each.level is Level.REFUSED for each in findings)
        yield from findings
    elif parts.config.sink.clickhouse.create:
        yield from _to_be_created(parts, seen)
    else:
        yield Finding(
            Level.REFUSED,
            f"ClickHouse has no table {parts.sink.table_name}, or the user may not see it",
            "create it, or say `create: true` in {file} and let landonce do it",
        )


def _to_be_created(parts: Parts, seen: _Seen) -> Iterator[Finding]:
    """What a start would create; nothing is."""
    if not connect(parts.sink.access).granted(f"CREATE TABLE ON {parts.sink.table_name.sql}"):
        user = parts.sink.access.address.user
        yield Finding(
            Level.REFUSED,
            f"user {user} may not create {parts.sink.table_name}",
            f"GRANT CREATE TABLE ON {parts.sink.table_name.sql} TO {user}, or create the table yourself",
        )
    told = parts.config.sink.clickhouse
    schema = declared_schema(parts.config)
    if schema is None and seen.view is not None:
        schema = infer(seen.view, parts.consumer)
    if schema is None:
        yield Finding(Level.WARNING, "the table is not there yet; it is created at the first start, from a sample")
        return
    creation = Creation(
        order_by=told.order_by or "", partition_by=told.partition_by or "", coordinates=told.coordinates
    )
    statement = create_statement(parts.sink.table_name, schema, creation)
    yield Finding(Level.OK, f"the table is not there yet; the first start creates it:\n{statement}")


def _records(parts: Parts, target: Target, seen: _Seen) -> Iterator[Finding]:
    if not seen.table:
        return
    seen.recipe = make_recipe(parts, target)
    try:
        JsonDecoder(seen.recipe.source, max_record_bytes=seen.recipe.max_record_bytes)
    except (TypeError, ValueError) as error:
        yield Finding(Level.REFUSED, str(error), "declare another type in `source.kafka.schema`")
        return
    fields = ", ".join(each.name + (" (required)" if each.required else "") for each in seen.recipe.source.fields)
    yield Finding(Level.OK, f"decoded to {fields}")
    pending = seen.state.pending if seen.state else None
    if pending is not None and pending.fingerprint != seen.recipe.fingerprint():
        raise PlanChanged(
            "the pending plan was made with another transform, schema or decoder than the pipeline file has now",
            command="put the old file back and run it once, or: landonce state accept-change {file}",
        )


def _position(parts: Parts, target: Target, seen: _Seen) -> Iterator[Finding]:
    if seen.view is None or not seen.ledger:
        return
    start = Start(parts.config.source.kafka.start)
    state = seen.state or LedgerState(parts.config.pipeline, lineage="check")
    binding = bind(state, seen.view, start)
    state = bound(state, binding.cluster_id, binding.topic_ids, binding.added)
    yield from _distances(state, seen.view)
    unread = {each.partition: each.first for each in available(state, seen.view)}
    retention = Retention(parts.config.source.kafka.bootstrap_servers, parts.config.source.kafka.options)
    for topic in parts.config.source.kafka.topics:
        mine = {partition: at for partition, at in unread.items() if partition.topic == topic}
        yield from retention.findings(topic, mine)
    if seen.fit and state.pending is None and parts.config.sink.clickhouse.coordinates:
        unbound = seen.state is None or seen.state.fresh
        yield from _target_ahead(target, state, seen.view, start, unbound=unbound)


def _distances(state: LedgerState, view: SourceView) -> Iterator[Finding]:
    """One line for all partitions: the sum of the lag, and the nearest distance to what is deleted."""
    extents = dict(view.extents)
    positions = [(each, at) for each, at in state.committed().items() if each in extents]
    if not positions:
        return
    lag = sum(max(0, extents[each].stable_end - at) for each, at in positions)
    nearest, at = min(positions, key=lambda each: each[1] - extents[each[0]].start)
    begun = "would begin" if state.version == 1 and state.batch == 0 else "is"
    yield Finding(
        Level.OK,
        f"the position {begun} at most {lag} records behind {len(positions)} partitions; nearest to retention is "
        f"{nearest} at offset {at}, {at - extents[nearest].start} past the first that is kept",
    )


def _target_ahead(
    target: Target, state: LedgerState, view: SourceView, start: Start, *, unbound: bool
) -> Iterator[Finding]:
    """What the first step of a start would see in the table."""
    floors = [(each, 0 if state.batch == 0 else at) for each, at in state.committed().items()]
    ranges = ahead(state, look_by_name(target, state, floors), view, start, unbound=unbound)
    if ranges:
        span = sum(each.span for each in ranges)
        yield Finding(
            Level.WARNING,
            f"the table holds rows of {len(ranges)} partitions that the ledger does not know of, within {span} offsets",
            "nothing to change: they are compared with Kafka at the next start and not written again",
        )


def _spark(parts: Parts, seen: _Seen, *, start: bool) -> Iterator[Finding]:
    config = parts.config
    need_java()
    where = config.spark.master or "local[*], unless spark-submit says otherwise"
    yield Finding(Level.OK, f"PySpark {pyspark.__version__} and Java are here; master {where}")
    if config.transform.empty:
        return
    if not start or seen.recipe is None:
        yield Finding(Level.OK, "select and where are examined at every start; `landonce check --spark` does it now")
        return
    yield from _examined(parts, seen.recipe)


def _examined(parts: Parts, recipe: Recipe) -> Iterator[Finding]:
    from landonce.run import transform
    from landonce.run.session import open_session

    session = open_session(parts.config.pipeline, parts.config.spark)
    try:
        transform.examine(session, recipe)
        yield Finding(Level.OK, "select and where are row-wise and deterministic, and fit the table")
    finally:
        session.stop()


def _dead_letters(parts: Parts) -> Iterator[Finding]:
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
        yield from _writable(path, f"go to {path}", f"make {path} writable")
    else:
        yield from _writable(_nearest(path), f"go to {path}, which is made when there is one", f"mkdir -p {path}")


def _nearest(path: Path) -> Path:
    """The nearest folder above that is there."""
    return next((each for each in path.parents if each.exists()), Path("/"))


def _writable(folder: Path, fine: str, change: str) -> Iterable[Finding]:
    if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK):
        return (Finding(Level.OK, fine),)
    what = "is not writable for this user" if folder.exists() else "is not there"
    return (Finding(Level.REFUSED, f"the folder {folder} {what}", change),)
