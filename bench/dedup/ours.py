"""landonce with `dedup` on a warm Spark session: accept and push, from a topic into a new table."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from string import Template

from pyspark.sql import SparkSession

from bench.measure import cpu_seconds
from bench.topic import SCHEMA
from landonce.dedup.comparing import EVENTS, AcceptRecipe, JoinedShards, Staged
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
    merged: int = 0
    """Keys in runs that were merged. A key counts each time."""

    @property
    def stall(self) -> float:
        """The slowest batch against the median."""
        return max(self.batches) / median(self.batches)


def config_for(
    bootstrap: str, topic: str, url: str, table: str, store: str, folder: Path, batch: int = BATCH
) -> Pipeline:
    text = PIPELINE.substitute(
        bootstrap=bootstrap,
        topic=topic,
        schema=SCHEMA,
        url=url,
        table=table,
        store=store,
        batch=batch,
        block=batch // 2,
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


def land(session: SparkSession, config: Pipeline, unique: int, servers: set[int]) -> Landed:
    """From opening the pipeline, as `landonce run` does, until every unique event is in the table. `servers`: processes that are not
    landonce's."""
    cpu, began = cpu_seconds(servers), time.monotonic()
    with opened_run(session, config) as both:
        watch = Watch(Silent(), both.opened)
        both.accept.observer = watch
        merged = _watch_merges(both)
        totals = both.run()
        landed = Landed(time.monotonic() - began, watch.seconds, cpu_seconds(servers) - cpu, sum(merged))
    if totals.landed != unique:
        raise RuntimeError(f"{totals.landed} events landed, and {unique} are unique")
    return landed


def _watch_merges(both: Both) -> list[int]:
    """Gets the keys of each run that is merged from now on."""
    merged: list[int] = []
    clear = both.opened.clear

    def watched(files: Mapping[str, tuple[Staged, ...]]) -> None:
        joined = [each for each in files.get(EVENTS, ()) if isinstance(each, JoinedShards)]
        merged.extend(run.rows for each in joined for run in each.merged)
        clear(files)

    both.opened.clear = watched  # type: ignore[method-assign]
    return merged


@dataclass
class Watch(AcceptObserver):
    """Notes how long each batch took."""

    seconds: list[float] = field(default_factory=list)

    def batch(self, report: BatchReport) -> None:
        self.seconds.append(report.seconds)
