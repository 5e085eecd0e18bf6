"""A pipeline's ends, opened from its file: what every command begins with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from landonce.clock import milliseconds
from landonce.errors import ConfigError
from landonce.protocol.ledger import Ledger
from landonce.protocol.ranges import Partition
from landonce.protocol.source import SourceView, Start, StartAt
from landonce.read.decoding import Decoding, conversions_of, format_of
from landonce.read.kafka.broker import Broker, consumer_options
from landonce.read.kafka.mirror import Mirror
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

    def topics(self) -> tuple[str, ...]:
        """Their names: those of the file, or those that match now."""
        named = self.config.source.kafka.topics
        return named if isinstance(named, tuple) else tuple(topic for topic, _ in self.source().topic_ids)

    @property
    def start(self) -> Start | StartAt:
        """Where the pipeline begins if it has no position yet."""
        start = self.config.source.kafka.start
        if start.timestamp is not None:
            return StartAt(timestamp=milliseconds(start.timestamp))
        if start.offsets is not None:
            named = ((topic, number, at) for topic, each in start.offsets.items() for number, at in each.items())
            return StartAt(offsets=tuple((Partition(topic, number), at) for topic, number, at in sorted(named)))
        return StartAt(group=start.group) if start.group is not None else Start(start.edge)

    def begins(self, view: SourceView) -> SourceView:
        """The same look at the topics, with where a pipeline without a position begins in them. Raises if it cannot begin there."""
        start = self.start
        return view if isinstance(start, Start) else self.broker.begins(view, start)

    @property
    def mirror_group(self) -> str:
        """The consumer group that the position is copied to, for Kafka's own tools; empty: none."""
        named = self.config.source.kafka.mirror_group
        return named if isinstance(named, str) else self.config.pipeline if named else ""

    def mirror(self) -> Mirror | None:
        return Mirror(self.mirror_group, self.config.pipeline, self.consumer) if self.mirror_group else None

    @property
    def records(self) -> RecordSource:
        """Where workers read."""
        return self.stored or KafkaRecords(tuple(sorted(self.consumer.items())))

    @cached_property
    def decoding(self) -> Decoding:
        """How bytes become fields. Files of schemas are read once."""
        kafka = self.config.source.kafka
        formats = format_of(kafka.format), format_of(kafka.key_format)
        conversions = conversions_of(kafka.convert)
        return Decoding(*formats, kafka.max_record_bytes, conversions, notices=kafka.schema_ is None)

    @property
    def consumer(self) -> dict[str, Any]:
        kafka = self.config.source.kafka
        return consumer_options(kafka.bootstrap_servers, kafka.options, self.config.pipeline)


def open_parts(config: Pipeline, sink: Sink | None = None) -> Parts:
    """The parts that every command needs. A program may hand over a sink itself, where the file leaves it to the program."""
    kafka = config.source.kafka
    opened = config.sink.to_sink(config.pipeline) if sink is None else config.sink.given(sink)
    if config.batch.commit_timeout is not None and not opened.commits_batches:
        raise ConfigError(
            "batch.commit_timeout: is for sinks that make a batch visible in one commit, such as Iceberg. Each block of this sink lands by "
            "itself, as soon as it is written.",
            command="remove `commit_timeout` from {file}",
        )
    return Parts(config, Broker(kafka.bootstrap_servers, kafka.options), opened.open_ledger(config), opened)
