"""landonce on a warm Spark session, as it is, and with ledger, token, deadline and probe switched off."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from string import Template

from pyspark.sql import SparkSession

from bench.topic import SCHEMA, TOPIC
from landonce.config.load import parse
from landonce.config.model import Pipeline
from landonce.local import LocalClickHouse
from landonce.plan.ranges import Partition
from landonce.record.memory import MemoryLedger
from landonce.run.assemble_clickhouse import create_if_asked, make_driver
from landonce.run.observe import Silent
from landonce.run.parts import open_parts
from landonce.write.clickhouse import ClickHouseSink
from landonce.write.clickhouse.target import ClickHouseTarget
from landonce.write.clickhouse.wire import Rows
from landonce.write.clickhouse.writer import ClickHouseWriter
from landonce.write.settle import Reply
from landonce.write.target import TargetView

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


def land(session: SparkSession, config: Pipeline, records: int, *, exactly_once: bool) -> float:
    """Seconds for the whole topic, from taking the pipeline to the last record in the ledger."""
    parts = open_parts(config)
    if not exactly_once:
        parts = replace(parts, ledger=MemoryLedger(config.pipeline), sink=plain(parts.clickhouse))
    target = parts.clickhouse.target()
    create_if_asked(parts, target)
    driver = make_driver(parts, target, lambda: session, Silent(), once=True)
    began = time.monotonic()
    totals = driver.run()
    seconds = time.monotonic() - began
    if totals.landed != records:
        raise RuntimeError(f"{totals.landed} of {records} records landed")
    target.close()
    parts.ledger.close()
    return seconds


def config_for(clickhouse: LocalClickHouse, bootstrap_servers: str, table: str, folder: Path) -> Pipeline:
    return parse(pipeline_text(clickhouse, bootstrap_servers, table), folder / "bench.yaml")


def plain(sink: ClickHouseSink) -> ClickHouseSink:
    """The same sink without anything that makes it exactly once."""
    return PlainSink(url=sink.url, table=sink.table, pipeline=sink.pipeline)


class PlainSink(ClickHouseSink):
    """For the benchmark only: a guess at what exactly-once costs needs something without it."""

    def target(self) -> ClickHouseTarget:
        return PlainTarget(self.access, self.table_name, self.pipeline, coordinates=True, cluster="")

    def writer(self) -> ClickHouseWriter:
        return PlainWriter(self.access, self.table_name, self.pipeline, coordinates=True, compression=None)


class PlainTarget(ClickHouseTarget):
    def now(self) -> int:
        return int(time.time() * 1000)

    def kill(self) -> None: ...

    def look(self, floors: Iterable[tuple[Partition, int]]) -> TargetView:  # noqa: ARG002
        return TargetView(())


class PlainWriter(ClickHouseWriter):
    def _post(self, parameters: dict[str, str], sent: Rows, query_id: str) -> Reply:
        del parameters["insert_deduplication_token"]
        parameters["query"] = re.sub(r" WHERE throwIf\(.*\) = 0", "", parameters["query"])
        parameters.update(insert_deduplicate="0", deduplicate_insert="disable", deduplicate_insert_select="disable")
        return super()._post(parameters, sent, query_id)
