"""Everything that can be said of a pipeline before it starts. Reads only: creates no table, no file, no topic.

Here are the sections that every pipeline has, in the order in which a start would meet them: its file, Kafka, Spark, the
dead letters. Those of a sink are in its folder (`Sink.checks`), and what sinks share is in `landonce.sinks.checking`. A
part that is unreachable is one finding, and the sections that need it are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyspark

from landonce.config.model import topics_text
from landonce.engine import transform
from landonce.engine.letter_topic import LetterTopic
from landonce.engine.pipeline import selected_columns
from landonce.engine.retention import Retention
from landonce.engine.spark.session import is_remote, need_java, open_session, session_if_needed
from landonce.errors import LandonceError, SourceUnavailable, SparkLost
from landonce.protocol.ranges import Partition
from landonce.protocol.source import SourceView
from landonce.read.kafka.mirror import foreign
from landonce.sinks.checking import CheckRun, Findings, Sections, nearest, writable
from landonce.sinks.contract import Finding, Level
from landonce.sinks.declared import selected_from
from landonce.sinks.parts import Parts
from landonce.sinks.promise import Promise, of_events
from landonce.sinks.run import SourceAndTarget


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


def check_pipeline(parts: Parts, *, spark: bool = False) -> Check:
    """Checks everything. `spark`: starts a Spark session to check the expressions too."""
    run = CheckRun(parts, is_remote(parts.config.spark), lambda unread: _retention(run, unread))

    def sections() -> Sections:
        yield "pipeline file", _file(parts)
        yield "Kafka", _kafka(run)
        yield from _sink_sections(run)
        yield "Spark", _spark(run, start=spark)
        yield "dead letters", _dead_letters(run)

    listed = (Section(name, tuple(_until_error(findings))) for name, findings in sections())
    found, config = tuple(each for each in listed if each.findings), parts.config
    return Check(config.pipeline, found, of_events(config, parts.sink.promise(config)))


def _sink_sections(run: CheckRun) -> Sections:
    """Of the sink, and of the store before it, with `dedup`."""
    dedup = run.parts.config.dedup
    if dedup is None:
        return run.parts.sink.checks(run)
    from landonce.dedup.check import sections

    return sections(run, dedup)


def _until_error(findings: Findings) -> Findings:
    """An error ends its section, as a finding like the others."""
    try:
        yield from findings
    except SparkLost:
        raise
    except LandonceError as error:
        yield Finding(Level.REFUSED, error.what, error.command)


def _file(parts: Parts) -> Findings:
    config = parts.config
    kafka = config.source.kafka
    yield Finding(
        Level.OK, f"{config.pipeline}: {topics_text(kafka.topics)} at {kafka.bootstrap_servers} → {parts.sink}"
    )
    _ = parts.decoding  # reads the files of schemas, which may be missing or wrong
    sink, interval = parts.sink, config.batch.every(parts.sink.interval).interval
    if interval < sink.short_interval:
        yield Finding(
            Level.WARNING,
            f"batch.interval is {interval:g} s: {sink.short_interval_costs}",
            f"set `batch.interval` to {sink.short_interval:g}s or more, or leave it out: then it is {sink.interval:g} s; "
            "`--once` does not wait for it",
        )


def _kafka(run: CheckRun) -> Findings:
    try:
        run.source = run.parts.source()
    except SourceUnavailable as error:
        yield Finding(
            Level.REFUSED,
            error.what,
            "make sure that Kafka runs, and that {file} has its address and the options of its listener (TLS, SASL)",
        )
        return
    yield Finding(Level.OK, f"cluster {run.source.cluster_id} answers")
    for topic, topic_id in run.source.topic_ids:
        count = sum(1 for partition, _ in run.source.extents if partition.topic == topic)
        yield Finding(Level.OK, f"topic {topic} ({topic_id}) has {count} partitions")
    yield from _mirror(run, run.source)


def _mirror(run: CheckRun, source: SourceView) -> Findings:
    """The consumer group that shows the position to Kafka's own tools. What is wrong with it stops no pipeline."""
    group = run.parts.mirror_group
    if not group:
        return
    change = "name another group in `source.kafka.mirror_group`, or turn it off: false"
    try:
        seen = run.parts.broker.group(group, [each for each, _ in source.extents])
    except LandonceError as error:
        rights = f"give the user READ on the group {group}, or set `source.kafka.mirror_group: false`"
        yield Finding(
            Level.WARNING, f"the position will not be copied to the consumer group {group}: {error.what}", rights
        )
        return
    others = foreign({each: seen.metadata.get(each, "") for each in seen.committed})
    if seen.members:
        yield Finding(
            Level.WARNING, f"the consumer group {group} has {seen.members} active members: it is left alone", change
        )
    elif others:
        what = f"the consumer group {group} has offsets of {others[0]} that landonce did not commit: it is left alone"
        yield Finding(Level.WARNING, what, f"{change}; or delete the group if nobody needs it")
    else:
        yield Finding(Level.OK, f"the consumer group {group} shows the position to Kafka's own tools; it is never read")


def _retention(run: CheckRun, unread: Mapping[Partition, int]) -> Findings:
    """How long each topic keeps records, and which unread ones are near their end."""
    kafka = run.parts.config.source.kafka
    retention = Retention(kafka.bootstrap_servers, kafka.options)
    for topic in run.topics:
        yield from retention.findings(topic, {each: at for each, at in unread.items() if each.topic == topic})


def _spark(run: CheckRun, *, start: bool) -> Findings:
    config = run.parts.config
    need_java()
    where = config.spark.master or "local[*], unless spark-submit says otherwise"
    yield Finding(Level.OK, f"PySpark {pyspark.__version__} and Java are here; master {where}")
    if config.transform.empty:
        return
    if not start:
        yield Finding(Level.OK, "select and where are checked at every start; `landonce check --spark` does it now")
    elif run.statements:
        yield from _to_be_selected(run)
    elif run.recipe is None:
        yield Finding(
            Level.WARNING,
            "select and where were not checked: they are compared with the table, and there is no usable table yet",
            "landonce run {file} checks them before it creates the table",
        )
    else:
        with session_if_needed(lambda: open_session(config.pipeline, config.spark)) as session:
            transform.examine(session(), run.recipe)
            yield Finding(Level.OK, "select and where are row-wise and deterministic, and fit the table")


def _to_be_selected(run: CheckRun) -> Findings:
    """A table that does not exist yet gets the columns that `select` makes."""
    config = run.parts.config
    with session_if_needed(lambda: open_session(config.pipeline, config.spark)) as session:
        columns = selected_columns(config, session)
        select, where = config.transform.select, config.transform.where
        transform.examine(session(), SourceAndTarget(selected_from(config), columns, select, where))
        for statement in run.statements:
            yield Finding(Level.OK, f"select and where are row-wise and deterministic, and make:\n{statement(columns)}")


def _dead_letters(run: CheckRun) -> Findings:
    letters = run.parts.config.dead_letters
    path = letters.path
    if run.remote and not letters.shared:
        yield Finding(
            Level.REFUSED,
            f"{path} is a folder of this machine, and the workers run on others",
            "use a folder that all machines share, and set `shared: true` under `dead_letters`",
        )
    elif path.is_dir():
        yield from writable(path, f"go to {path}", f"make {path} writable")
    else:
        yield from writable(nearest(path), f"go to {path}, which is created with the first one", f"mkdir -p {path}")
    topic = LetterTopic.of(run.parts.config)
    if topic is not None:
        count = len(topic.require().extents)
        yield Finding(Level.OK, f"are sent to the topic {topic.topic} too, which has {count} partitions")
        yield from topic.findings()
