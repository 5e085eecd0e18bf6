"""A pipeline's ends, opened from its file: what every command begins with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from landonce.errors import ConfigError
from landonce.protocol.ledger import Ledger
from landonce.protocol.source import SourceView
from landonce.read.kafka.broker import Broker
from landonce.read.kafka.client import consumer_options
from landonce.sinks.contract import DeduplicatingSink, Sink
from landonce.sinks.pipeline_file import Pipeline
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.wrapped.sink import HANDED_OVER, WrappedSink

if TYPE_CHECKING:  # whoever writes to ClickHouse does not wait for PyIceberg
    from landonce.sinks.iceberg.sink import IcebergSink


@dataclass(frozen=True)
class Parts:
    """A pipeline's ends, opened from its file. Opening connects to nothing yet."""

    config: Pipeline
    broker: Broker
    ledger: Ledger
    sink: Sink

    @property
    def deduplicating(self) -> DeduplicatingSink:
        if not isinstance(self.sink, DeduplicatingSink):
            raise TypeError(f"{self.sink} does not deduplicate")
        return self.sink

    @property
    def iceberg(self) -> IcebergSink:
        from landonce.sinks.iceberg.sink import IcebergSink

        if not isinstance(self.sink, IcebergSink):
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
                "sink.wrapped.sink: is missing. The file leaves the sink to a program, and this command needs it.",
                command='run_pipeline(config, sink=…), or name the sink in {file}: `sink: {wrapped: {sink: "module:name"}}`',
            )
        return self.sink

    def source(self) -> SourceView:
        """The topics as they are now."""
        return self.broker.survey(self.config.source.kafka.topics)

    @property
    def consumer(self) -> dict[str, Any]:
        kafka = self.config.source.kafka
        return consumer_options(kafka.bootstrap_servers, kafka.options, self.config.pipeline)


def open_parts(config: Pipeline, sink: Sink | None = None) -> Parts:
    """The parts that every command needs. A program may hand over a sink itself, where the file leaves it to the program."""
    kafka = config.source.kafka
    opened = config.sink.to_sink(config.pipeline) if sink is None else config.sink.given(sink)
    return Parts(config, Broker(kafka.bootstrap_servers, kafka.options), opened.open_ledger(config), opened)
