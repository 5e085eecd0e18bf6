"""From a pipeline's parts to its driver: what is the same for every kind of sink. Refuses to start where a guarantee would be
downgraded.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable

from pyspark.sql import SparkSession

from landonce.engine import transform
from landonce.engine.driver import Driver
from landonce.engine.observe import Observer
from landonce.engine.performer import Performer
from landonce.engine.spark.session import is_remote
from landonce.engine.workers import SparkWorkers
from landonce.errors import ConfigError, SourceUnavailable, TableUnfit
from landonce.protocol.packing import Pace
from landonce.protocol.source import SourceView
from landonce.read.schema.fields import Schema
from landonce.read.schema.sample import take_sample
from landonce.sinks.contract import Finding, Level
from landonce.sinks.declared import declared_schema, selected_from
from landonce.sinks.parts import Parts
from landonce.sinks.pipeline_file import Pipeline

_PAUSES = (0.2, 0.5, 1.0, 2.0, 4.0)


Columns = Callable[[Callable[[], SparkSession]], Schema]
"""The columns of a table that is to be made, given a session that is opened when it is asked for."""


def columns_to_make(
    parts: Parts, usable: Callable[[Schema], object], tidy: Callable[[Schema], Schema] = lambda sampled: sampled
) -> Columns:
    """The declared fields, or those of a sample; with `select`, what it makes of them, which only Spark can say.

    What is known before Spark starts must be `usable`, which raises otherwise: nobody waits for Spark to hear it. `tidy`: what
    becomes of a sample.
    """
    config = parts.config
    if config.transform.select:
        return lambda session: selected_columns(config, session)
    declared = declared_schema(config)
    if declared is not None:
        usable(declared)
        return lambda _: declared
    made = tidy(take_sample(_surveyed(parts), parts.consumer).columns(lambda sampled: usable(tidy(sampled))))
    return lambda _: made


def selected_columns(config: Pipeline, session: Callable[[], SparkSession]) -> Schema:
    """What `select` makes of the declared fields."""
    return transform.selected_schema(session(), selected_from(config), config.transform.select)


def _surveyed(parts: Parts) -> SourceView:
    """A topic that was made a moment ago has no leader yet."""
    for pause in _PAUSES:
        try:
            return parts.broker.survey(parts.config.source.kafka.topics)
        except SourceUnavailable:
            time.sleep(pause)
    return parts.broker.survey(parts.config.source.kafka.topics)


def driver_of(
    parts: Parts, performer: Performer, workers: SparkWorkers, observer: Observer, *, deadline: float = 0.0
) -> Driver:
    """The same for every kind of sink: only its performer differs. `deadline`: the least time that a plan is given."""
    return Driver(
        pipeline=parts.config.pipeline,
        topics=parts.config.source.kafka.topics,
        broker=parts.broker,
        ledger=parts.ledger,
        performer=performer,
        pace=Pace(parts.config.batch, deadline, parallelism=os.cpu_count() or 1),
        stall=parts.config.stall,
        observer=observer,
        start_workers=workers.start,
        finished=workers.finished,
    )


def refuse_unfit(findings: Iterable[Finding], safe: str = "Nothing was read or written.") -> None:
    """The table holds the guarantee, or nothing starts."""
    refused = [finding for finding in findings if finding.level is Level.REFUSED]
    if refused:
        raise TableUnfit(
            "\n".join(finding.what for finding in refused),
            safe=safe,
            command="\n  ".join(finding.change for finding in refused if finding.change),
        )


def dead_letters_reachable(config: Pipeline) -> None:
    """Workers and driver see the same folder, or nothing starts."""
    if is_remote(config.spark) and not config.dead_letters.shared:
        raise ConfigError(
            f"dead_letters.path: {config.dead_letters.path} is a folder of this machine, and the workers run on others.",
            command="name a folder that every machine shares, and say `shared: true`",
        )
