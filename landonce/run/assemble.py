"""From a pipeline's parts to its driver: what is the same for every kind of sink. Refuses to start where a guarantee would be
downgraded.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from landonce.config import sinks
from landonce.config.model import Pipeline
from landonce.errors import ConfigError, SourceUnavailable, TableUnfit
from landonce.read.changes import Changes
from landonce.read.ddl import parse_schema
from landonce.read.infer import infer
from landonce.read.schema import Schema
from landonce.read.source import SourceView
from landonce.run.driver import Driver
from landonce.run.hands import Hands
from landonce.run.observe import Observer
from landonce.run.pace import Pace
from landonce.run.parts import Parts
from landonce.run.session import is_remote
from landonce.run.workers import SparkWorkers
from landonce.write.sink import Finding, Level

_PAUSES = (0.2, 0.5, 1.0, 2.0, 4.0)


def sampled_schema(parts: Parts) -> Schema:
    """What some of the records look like."""
    if parts.config.transform.select:
        raise ConfigError("transform.select: declare `source.kafka.schema`, and create the table yourself.")
    return infer(_surveyed(parts), parts.consumer)


def _surveyed(parts: Parts) -> SourceView:
    """A topic that was made a moment ago has no leader yet."""
    for pause in _PAUSES:
        try:
            return parts.broker.survey(parts.config.source.kafka.topics)
        except SourceUnavailable:
            time.sleep(pause)
    return parts.broker.survey(parts.config.source.kafka.topics)


def declared_schema(config: Pipeline) -> Schema | None:
    declared = config.source.kafka.schema_
    return parse_schema(declared) if declared is not None else None


def changes_of(told: sinks.Changes | None) -> Changes | None:
    """What a file says of records that change rows, as decoders take it."""
    return Changes(told.mode, told.field, told.insert, told.update, told.delete) if told is not None else None


def driver_of(
    parts: Parts, hands: Hands, workers: SparkWorkers, observer: Observer, *, deadline: float = 0.0
) -> Driver:
    """The same for every kind of sink: only its hands differ. `deadline`: the least time that a plan is given."""
    return Driver(
        pipeline=parts.config.pipeline,
        topics=parts.config.source.kafka.topics,
        broker=parts.broker,
        ledger=parts.ledger,
        hands=hands,
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
