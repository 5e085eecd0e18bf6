"""landonce on a warm Spark session, as it is, and with ledger, token, deadline and probe switched off."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from string import Template

import pyarrow as pa
from pyspark.sql import SparkSession

from bench.topic import SCHEMA, TOPIC
from landonce.engine.observe import Silent
from landonce.engine.pipeline import driver_of
from landonce.ledger.memory import MemoryLedger
from landonce.local import LocalClickHouse
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.settle import Reply
from landonce.protocol.target import TargetView
from landonce.read.schema.ddl import parse_schema
from landonce.sinks.clickhouse.connection import Form
from landonce.sinks.clickhouse.driver import ClickHouseTarget
from landonce.sinks.clickhouse.sink import ClickHouseSink
from landonce.sinks.clickhouse.worker import ClickHouseWriter
from landonce.sinks.parts import Parts, open_parts
from landonce.sinks.pipeline_file import Pipeline, parse

PIPELINE = Template("""\
pipeline: bench
source:
  kafka: {bootstrap_servers: "$bootstrap", topics: [$topic], schema: "$schema"}
sink:
  clickhouse: {url: "$url", table: $table, create: true}
ledger: {sqlite: $table.ledger}
batch: {interval: 0s, max_rows: 1000000, block_rows: 200000}
dead_letters: {path: dead}
""")


def pipeline_text(clickhouse: LocalClickHouse, bootstrap_servers: str, table: str) -> str:
    return PIPELINE.substitute(bootstrap=bootstrap_servers, topic=TOPIC, schema=SCHEMA, url=clickhouse.url, table=table)


def make_template(config: Pipeline) -> None:
    """The table that the pipeline file asks for."""
    parts = open_parts(config)
    with closing(parts.ledger), closing(clickhouse_of(parts).target()) as target:
        target.create(parse_schema(SCHEMA))


def land(session: SparkSession, config: Pipeline, records: int, *, exactly_once: bool) -> float:
    """Seconds for the whole topic, from opening the pipeline to the last record in the ledger. The table is there already."""
    began = time.monotonic()
    parts = open_parts(config)
    if not exactly_once:
        parts = replace(parts, ledger=MemoryLedger(config.pipeline), sink=plain(clickhouse_of(parts)))
    with closing(parts.ledger), driver_of(parts, lambda: session, Silent(), once=True) as driver:
        totals = driver.run()
        seconds = time.monotonic() - began
    if totals.landed != records:
        raise RuntimeError(f"{totals.landed} of {records} records landed")
    return seconds


def config_for(clickhouse: LocalClickHouse, bootstrap_servers: str, table: str, folder: Path) -> Pipeline:
    return parse(pipeline_text(clickhouse, bootstrap_servers, table), folder / "bench.yaml")


def clickhouse_of(parts: Parts) -> ClickHouseSink:
    assert isinstance(parts.sink, ClickHouseSink)
    return parts.sink


def plain(sink: ClickHouseSink) -> ClickHouseSink:
    """The same sink without anything that makes it exactly once."""
    return PlainSink(sink.config, sink.pipeline)


class PlainSink(ClickHouseSink):
    """For the benchmark only: a guess at what exactly-once costs needs something without it."""

    def target(self) -> ClickHouseTarget:
        return PlainTarget(self.access, self.table_name, self.pipeline)

    def writer(self) -> ClickHouseWriter:
        return PlainWriter(self.access, self.table_name, self.pipeline, compression=None)


class PlainTarget(ClickHouseTarget):
    def now(self) -> int:
        return int(time.time() * 1000)

    def kill(self) -> None: ...

    def look(self, floors: Iterable[tuple[Partition, int]]) -> TargetView:  # noqa: ARG002
        return TargetView(())

    def count(self, ranges: Iterable[Range]) -> int:  # noqa: ARG002
        return 0


class PlainWriter(ClickHouseWriter):
    def _post(self, parameters: dict[str, str], form: Form, query_id: str, rows: pa.Table) -> Reply:
        del parameters["insert_deduplication_token"]
        parameters.update(insert_deduplicate="0", deduplicate_insert="disable", deduplicate_insert_select="disable")
        statement, guarded, _ = form.statement.partition(" WHERE throwIf(")
        if not guarded:
            raise RuntimeError("the insert carries no deadline that could be left out")
        return super()._post(parameters, replace(form, statement=statement), query_id, rows)
