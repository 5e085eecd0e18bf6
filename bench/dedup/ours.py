"""landonce with `dedup` on a warm Spark session: accept and push, from a topic into a new table."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from string import Template

import psutil
from pyspark.sql import SparkSession

from bench.topic import SCHEMA
from landonce.dedup.comparing import AcceptRecipe
from landonce.dedup.run import AcceptObserver, Both, both_drivers
from landonce.engine.observe import BatchReport, Silent
from landonce.engine.pipeline import RunSession
from landonce.engine.waiting import Waiting
from landonce.sinks.parts import open_parts
from landonce.sinks.pipeline_file import Pipeline, parse

BATCH = 250_000
PIPELINE = Template("""\
pipeline: bench
source:
  kafka: {bootstrap_servers: "$bootstrap", topics: [$topic], schema: "$schema"}
sink:
  clickhouse: {url: "$url", table: $table, create: true}
ledger: {sqlite: $table.ledger}
batch: {interval: 0s, max_rows: $batch, block_rows: $block}
dead_letters: {path: dead}
dedup: {key: [id], store: {$store}}
""")


@dataclass
class Landed:
    """One run."""

    seconds: float
    batches: list[float] = field(default_factory=list)
    """Seconds of each batch that was accepted."""
    cpu_seconds: float = 0.0
    """Of driver, JVM and workers."""

    @property
    def stall(self) -> float:
        """The slowest batch against the median."""
        return max(self.batches) / median(self.batches)


def config_for(bootstrap: str, topic: str, url: str, table: str, store: str, folder: Path) -> Pipeline:
    text = PIPELINE.substitute(
        bootstrap=bootstrap,
        topic=topic,
        schema=SCHEMA,
        url=url,
        table=table,
        store=store,
        batch=BATCH,
        block=BATCH // 2,
    )
    return parse(text, folder / "bench.yaml")


@contextmanager
def opened_run(session: SparkSession, config: Pipeline) -> Iterator[Both]:
    """Both drivers, ready: store and table are there."""
    parts = open_parts(config)
    assert config.dedup is not None
    waiting = Waiting(config.stall, print, threading.Event())
    warm = RunSession(config, expressions=True, opened=session)
    with closing(parts.ledger), both_drivers(parts, config.dedup, warm, Silent(), waiting, once=True) as both:
        yield both


def recipe_of(both: Both) -> AcceptRecipe:
    return both.opened.recipe


def land(session: SparkSession, config: Pipeline, unique: int) -> Landed:
    """From the start of both drivers until every unique event is in the table."""
    with opened_run(session, config) as both:
        watch = Watch(Silent(), both.opened)
        both.accept.observer = watch
        cpu, began = _cpu_seconds(), time.monotonic()
        totals = both.run()
        landed = Landed(time.monotonic() - began, watch.seconds, _cpu_seconds() - cpu)
    if totals.landed != unique:
        raise RuntimeError(f"{totals.landed} events landed, and {unique} are unique")
    return landed


@dataclass
class Watch(AcceptObserver):
    """Notes how long each batch took."""

    seconds: list[float] = field(default_factory=list)

    def batch(self, report: BatchReport) -> None:
        self.seconds.append(report.seconds)


def _cpu_seconds() -> float:
    me = psutil.Process()
    times = [each.cpu_times() for each in (me, *me.children(recursive=True)) if each.is_running()]
    return sum(each.user + each.system for each in times)
