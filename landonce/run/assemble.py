"""From a pipeline file to the parts that run it. Refuses to start where a guarantee would be downgraded."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from landonce.commit.publish import Letters
from landonce.config import model
from landonce.config.model import ClickHouse, Pipeline
from landonce.errors import ConfigError, SourceUnavailable, TableUnfit
from landonce.read.broker import Broker
from landonce.read.changes import Changes
from landonce.read.ddl import parse_schema
from landonce.read.infer import infer
from landonce.read.records import consumer_options
from landonce.read.schema import Field, Schema
from landonce.read.source import SourceView, Start
from landonce.record.in_target import TargetLedger
from landonce.record.ledger import Ledger
from landonce.record.open import postgres_ledger, sqlite_ledger
from landonce.record.plugged import plugged_ledger
from landonce.record.push_ledger import PushPlace
from landonce.run import transform
from landonce.run.driver import Driver
from landonce.run.hands import Hands
from landonce.run.inserting import Inserting
from landonce.run.observe import Observer
from landonce.run.pace import Pace
from landonce.run.protocol import Settings
from landonce.run.session import is_remote
from landonce.run.workers import SparkWorkers
from landonce.write.clickhouse import ClickHouseSink, read_authority
from landonce.write.recipe import Recipe
from landonce.write.sink import Finding, Level, Target
from landonce.write.sql import SqlSink
from landonce.write.sql.databases import open_database
from landonce.write.work import sow, work
from landonce.write.wrapped import WrappedSink
from landonce.write.wrapped.find import find_sink
from landonce.write.wrapped.sink import HANDED_OVER

if TYPE_CHECKING:  # whoever writes to ClickHouse does not wait for PyIceberg
    from landonce.write.iceberg.ledger import TableLedger
    from landonce.write.iceberg.sink import IcebergSink

_PAUSES = (0.2, 0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True)
class Parts:
    """A pipeline's ends, opened from its file. Opening connects to nothing yet."""

    config: Pipeline
    broker: Broker
    ledger: Ledger
    sink: ClickHouseSink | IcebergSink | SqlSink | WrappedSink

    @property
    def clickhouse(self) -> ClickHouseSink:
        if not isinstance(self.sink, ClickHouseSink):
            raise TypeError(f"{self.sink} is not ClickHouse")
        return self.sink

    @property
    def iceberg(self) -> IcebergSink:
        if isinstance(self.sink, ClickHouseSink | SqlSink | WrappedSink):
            raise TypeError(f"{self.sink} is not Iceberg")
        return self.sink

    @property
    def sql(self) -> SqlSink:
        if not isinstance(self.sink, SqlSink):
            raise TypeError(f"{self.sink} is not an SQL database")
        return self.sink

    @property
    def wrapped(self) -> WrappedSink:
        if not isinstance(self.sink, WrappedSink):
            raise TypeError(f"{self.sink} is not a wrapped sink")
        if self.sink is HANDED_OVER:
            raise ConfigError(
                "sink.wrapped.sink: is missing. A program hands the sink over, and this needs it.",
                command='run_pipeline(config, sink=…), or name the sink in {file}: `sink: {wrapped: {sink: "module:name"}}`',
            )
        return self.sink

    @property
    def consumer(self) -> dict[str, Any]:
        kafka = self.config.source.kafka
        return consumer_options(kafka.bootstrap_servers, kafka.options, self.config.pipeline)


def open_parts(config: Pipeline, sink: WrappedSink | None = None) -> Parts:
    """The parts that every command needs. A program may hand over a wrapped sink itself."""
    kafka = config.source.kafka
    broker = Broker(kafka.bootstrap_servers, kafka.options)
    if config.sink.wrapped is not None or sink is not None:
        ledger = PushPlace(config.outside_ledger.place, config.pipeline).open()
        return Parts(config, broker, ledger, _wrapped(config, sink))
    return _open_others(config, broker)


def _open_others(config: Pipeline, broker: Broker) -> Parts:
    sink = _sink(config)
    if isinstance(sink, SqlSink):
        return Parts(config, broker, TargetLedger(open_database(sink.address), config.pipeline), sink)
    if config.own_ledger and not isinstance(sink, ClickHouseSink):
        return Parts(config, broker, own_ledger(sink), sink)
    return Parts(config, broker, _ledger(config), sink)


def _wrapped(config: Pipeline, given: WrappedSink | None) -> WrappedSink:
    told = config.sink.wrapped
    if told is None:
        raise ConfigError("sink: a sink was handed over, so the pipeline says `sink: {wrapped: {}}` and no other.")
    if told.sink is None:
        return given if given is not None else HANDED_OVER
    if given is not None:
        raise ConfigError(f"sink.wrapped.sink: names {told.sink}, and another sink was handed over. One of them.")
    return find_sink(told.sink, told.options, told.folder)


def _sink(config: Pipeline) -> ClickHouseSink | IcebergSink | SqlSink:
    if config.sink.sql is not None:
        return SqlSink.of(config.sink.sql, config.pipeline)
    if config.sink.iceberg is not None:
        from landonce.write.iceberg.sink import IcebergSink

        return IcebergSink.of(config.sink.iceberg, config.pipeline)
    told = clickhouse_of(config)
    return ClickHouseSink(
        url=told.url.get_secret_value(),
        table=told.table,
        pipeline=config.pipeline,
        coordinates=told.coordinates,
        cluster=told.cluster,
        settings=told.settings,
        compression=told.compression,
        authority=read_authority(told.ca_cert),
    )


def clickhouse_of(config: Pipeline) -> ClickHouse:
    """The file's section on ClickHouse."""
    if config.sink.clickhouse is None:
        raise ConfigError("sink: name clickhouse, iceberg, sql or wrapped.")
    return config.sink.clickhouse


def own_ledger(sink: IcebergSink) -> TableLedger:
    """The one table as its own ledger."""
    from landonce.write.iceberg.ledger import TableLedger

    return TableLedger(sink.place(sink.static[0]), follow=sink.told.rollback == "follow")


def _ledger(config: Pipeline) -> Ledger:
    told = config.outside_ledger
    if told.sqlite is not None:
        return sqlite_ledger(told.sqlite, config.pipeline)
    if told.plugin is not None:
        return plugged_ledger(told.plugin.name, told.plugin.options, config.pipeline, told.plugin.folder)
    if told.postgres is None:
        raise ConfigError("ledger: name sqlite, postgres or plugin.")
    return postgres_ledger(told.postgres.get_secret_value(), config.pipeline)


def create_if_asked(parts: Parts, target: Target) -> bool:
    """Creates the table from the declared schema, or from a sample, if the file asks for it and there is none."""
    told = clickhouse_of(parts.config)
    if not told.create or target.exists():
        return False
    target.create(
        declared_schema(parts.config) or sampled_schema(parts), order_by=told.order_by, partition_by=told.partition_by
    )
    return True


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


def changes_of(told: model.Changes | None) -> Changes | None:
    """What a file says of records that change rows, as decoders take it."""
    return Changes(told.mode, told.field, told.insert, told.update, told.delete) if told is not None else None


def make_recipe(parts: Parts, target: Target) -> Recipe:
    """What a record is decoded to and what the table takes, and that the one can become the other."""
    config = parts.config
    table = target.schema()
    declared = declared_schema(config)
    if config.transform.select and declared is None:
        raise ConfigError(
            "transform.select: the table's columns say nothing about the records; declare `source.kafka.schema`."
        )
    source = declared if config.transform.select and declared else source_schema(declared, table)
    return Recipe(
        pipeline=config.pipeline,
        consumer=tuple(sorted(parts.consumer.items())),
        source=source,
        target=table,
        sink=parts.clickhouse,
        dead_letters=config.dead_letters.path,
        max_record_bytes=config.source.kafka.max_record_bytes,
        block_bytes=config.batch.block_bytes,
        select=config.transform.select,
        where=config.transform.where,
    )


def source_schema(declared: Schema | None, table: Schema) -> Schema:
    """Where nothing is selected, the table decides the types, and a declaration which fields there are and must be."""
    if declared is None:
        return table
    columns = table.by_name()
    unknown = [each.name for each in declared.fields if each.name not in columns]
    if unknown:
        raise ConfigError(f"source.kafka.schema: the table has no column {', '.join(map(repr, unknown))}.")
    missing = [name for name, each in columns.items() if each.required and name not in declared.by_name()]
    if missing:
        raise ConfigError(f"source.kafka.schema: lacks {', '.join(map(repr, missing))}, which the table requires.")
    return Schema(tuple(_declared_field(each, columns[each.name]) for each in declared.fields))


def _declared_field(declared: Field, column: Field) -> Field:
    scale = declared.scale if column.scale is not None else None
    return replace(column, required=declared.required or column.required, scale=scale)


def make_driver(parts: Parts, target: Target, session: SparkSession, observer: Observer, *, once: bool) -> Driver:
    """A driver that is ready to run: the table is fit, the expressions are sound, the dead letters have a place."""
    config = parts.config
    refuse_unfit(target.check())
    dead_letters_reachable(config)
    recipe = make_recipe(parts, target)
    if recipe.transforms:
        transform.examine(session, recipe)
    workers = SparkWorkers(session, work, sow)
    told = clickhouse_of(config)
    settings = Settings(
        table=told.table, fingerprint=recipe.fingerprint(), start=Start(config.source.kafka.start), once=once
    )
    hands = Inserting(settings, recipe, target, workers, Letters(recipe.dead_letters, config.pipeline))
    return driver_of(parts, hands, Pace(config.batch, told.deadline, workers.parallelism), observer)


def driver_of(parts: Parts, hands: Hands, pace: Pace, observer: Observer) -> Driver:
    """The same for every kind of sink: only its hands differ."""
    return Driver(
        pipeline=parts.config.pipeline,
        topics=parts.config.source.kafka.topics,
        broker=parts.broker,
        ledger=parts.ledger,
        hands=hands,
        pace=pace,
        stall=parts.config.stall,
        observer=observer,
    )


def refuse_unfit(findings: Iterable[Finding]) -> None:
    """The table holds the guarantee, or nothing starts."""
    refused = [finding for finding in findings if finding.level is Level.REFUSED]
    if refused:
        raise TableUnfit(
            "\n".join(finding.what for finding in refused),
            safe="Nothing was read or written.",
            command="\n  ".join(finding.change for finding in refused if finding.change),
        )


def dead_letters_reachable(config: Pipeline) -> None:
    """Workers and driver see the same folder, or nothing starts."""
    if is_remote(config.spark) and not config.dead_letters.shared:
        raise ConfigError(
            f"dead_letters.path: {config.dead_letters.path} is a folder of this machine, and the workers run on others.",
            command="name a folder that every machine shares, and say `shared: true`",
        )
