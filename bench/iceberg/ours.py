"""landonce on a warm Spark session."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import SparkSession

from bench.iceberg.tables import Lake
from bench.topic import SCHEMA, TOPIC, make_topic_by_kind
from landonce.engine.observe import BatchReport, Silent
from landonce.engine.pipeline import driver_of
from landonce.protocol.steps import Step
from landonce.sinks.parts import open_parts
from landonce.sinks.pipeline_file import Pipeline, parse


@dataclass
class Timed(Silent):
    """How long commits took, and how fast batches were."""

    commits: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    _commit_began: float | None = None

    def step(self, effect: Any) -> None:
        now = time.monotonic()
        if self._commit_began is not None:
            self.commits.append(now - self._commit_began)
        self._commit_began = now if effect.step is Step.COMMIT else None

    def batch(self, report: BatchReport) -> None:
        self.rates.append(report.rows_per_second)


def land(
    session: SparkSession, lake: Lake, bootstrap_servers: str, table: str, records: int, rows: int, folder: Path
) -> float:
    """Seconds for the whole topic, from opening the pipeline to the last commit. The table is there already."""
    config = _config(lake, bootstrap_servers, TOPIC, f"table: {table}", table, folder, rows=rows)
    took = _run(session, config, Timed())
    if lake.rows(table) != records:
        raise RuntimeError(f"{lake.rows(table)} of {records} records landed")
    return took


def batch_rates(session: SparkSession, lake: Lake, bootstrap_servers: str, table: str, folder: Path) -> list[float]:
    """Rows per second of every full batch of one run over the whole topic."""
    lake.make(table)
    timed = Timed()
    _run(session, _config(lake, bootstrap_servers, TOPIC, f"table: {table}", table, folder), timed)
    return timed.rates[1:-1] or timed.rates


def commit_ms(session: SparkSession, lake: Lake, bootstrap_servers: str, tables: int, folder: Path) -> float:
    """The median commit of a batch that goes to so many tables."""
    topic = make_topic_by_kind(bootstrap_servers, tables)
    timed = Timed()
    sink = f'table: "bench.fan{tables}_{{kind}}", create: true'
    schema = "id BIGINT, kind STRING"
    _run(session, _config(lake, bootstrap_servers, topic, sink, f"fan{tables}", folder, schema, 20_000), timed)
    return median(timed.commits) * 1000


def _run(session: SparkSession, config: Pipeline, timed: Timed) -> float:
    began = time.monotonic()
    parts = open_parts(config)
    with closing(parts.ledger), driver_of(parts, lambda: session, timed, once=True) as driver:
        driver.run()
        return time.monotonic() - began


def _config(
    lake: Lake,
    bootstrap_servers: str,
    topic: str,
    sink: str,
    name: str,
    folder: Path,
    schema: str = SCHEMA,
    rows: int = 1_000_000,
) -> Pipeline:
    text = f"""\
pipeline: {name.replace(".", "_")}
source:
  kafka: {{bootstrap_servers: "{bootstrap_servers}", topics: [{topic}], schema: "{schema.replace(" NOT NULL", "")}"}}
sink:
  iceberg: {{catalog: {{type: rest, uri: "{lake.rest.uri}"}}, {sink}}}
batch: {{interval: 0s, max_rows: {rows}, block_rows: 200000}}
"""
    return parse(text, folder / "bench.yaml")
