"""A pipeline's ends, opened from its file: what every command begins with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from landonce.protocol.ledger import Ledger
from landonce.protocol.source import SourceView
from landonce.read.decoding import Decoding, conversions_of, format_of
from landonce.read.kafka.broker import Broker, consumer_options
from landonce.read.kafka.records import KafkaRecords, RecordSource
from landonce.sinks.contract import Sink
from landonce.sinks.pipeline_file import Pipeline


@dataclass(frozen=True)
class Parts:
    """A pipeline's ends, opened from its file. Opening connects to nothing yet."""

    config: Pipeline
    broker: Broker
    ledger: Ledger
    sink: Sink
    stored: RecordSource | None = None
    """Where workers read, if not from Kafka."""

    def source(self) -> SourceView:
        """The topics as they are now."""
        return self.broker.survey(self.config.source.kafka.topics)

    @property
    def records(self) -> RecordSource:
        """Where workers read."""
        return self.stored or KafkaRecords(tuple(sorted(self.consumer.items())))

    @cached_property
    def decoding(self) -> Decoding:
        """How bytes become fields. Files of schemas are read once."""
        kafka = self.config.source.kafka
        formats = format_of(kafka.format), format_of(kafka.key_format)
        return Decoding(*formats, kafka.max_record_bytes, conversions_of(kafka.convert))

    @property
    def consumer(self) -> dict[str, Any]:
        kafka = self.config.source.kafka
        return consumer_options(kafka.bootstrap_servers, kafka.options, self.config.pipeline)


def open_parts(config: Pipeline, sink: Sink | None = None) -> Parts:
    """The parts that every command needs. A program may hand over a sink itself, where the file leaves it to the program."""
    kafka = config.source.kafka
    opened = config.sink.to_sink(config.pipeline) if sink is None else config.sink.given(sink)
    return Parts(config, Broker(kafka.bootstrap_servers, kafka.options), opened.open_ledger(config), opened)
