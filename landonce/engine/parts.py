"""A pipeline's ends, opened from its file: what every command begins with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from landonce.engine.config.model import Pipeline
from landonce.errors import ConfigError
from landonce.ledger.in_target import TargetLedger
from landonce.ledger.open import postgres_ledger, sqlite_ledger
from landonce.ledger.plugged import plugged_ledger
from landonce.ledger.push_ledger import PushPlace
from landonce.protocol.ledger import Ledger
from landonce.read.kafka.broker import Broker
from landonce.read.kafka.records import consumer_options
from landonce.sinks.clickhouse import ClickHouseSink, read_authority
from landonce.sinks.config import ClickHouse
from landonce.sinks.sql import SqlSink
from landonce.sinks.sql.databases import open_database
from landonce.sinks.wrapped import WrappedSink
from landonce.sinks.wrapped.find import find_sink
from landonce.sinks.wrapped.sink import HANDED_OVER

if TYPE_CHECKING:  # whoever writes to ClickHouse does not wait for PyIceberg
    from landonce.sinks.iceberg.ledger import TableLedger
    from landonce.sinks.iceberg.sink import IcebergSink


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
    def table_ledger(self) -> TableLedger | None:
        """The one table as its own ledger, where it is."""
        if not self.config.own_ledger:
            return None
        from landonce.sinks.iceberg.ledger import TableLedger

        return self.ledger if isinstance(self.ledger, TableLedger) else None

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
        from landonce.sinks.iceberg.sink import IcebergSink

        return IcebergSink.of(config.sink.iceberg, config.pipeline)
    told = clickhouse_of(config)
    return ClickHouseSink(
        url=told.url.get_secret_value(),
        table=told.table,
        pipeline=config.pipeline,
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
    from landonce.sinks.iceberg.ledger import TableLedger

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
