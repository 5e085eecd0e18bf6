"""What every client of Kafka uses: options, errors, offsets. It needs no Arrow, so that `landonce.consumer` does not either."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import ListOffsetsResultInfo

from landonce.errors import SourceRefused, SourceUnavailable
from landonce.protocol.ranges import Partition


def committed(
    group: str, partitions: Iterable[Partition], options: Mapping[str, Any], *, timeout: float
) -> dict[Partition, int]:
    """The offsets that the group has committed, if any. Raises `KafkaException`.

    Asks as a consumer that never joins: librdkafka's own request for a group's offsets ends the process while the
    group's coordinator moves.
    """
    asked = [TopicPartition(each.topic, each.number) for each in sorted(partitions)]
    consumer = Consumer({**options, "group.id": group, "enable.auto.commit": False}, logger=None)
    try:
        found = consumer.committed(asked, timeout=timeout)
    finally:
        consumer.close()
    for each in found:
        if each.error is not None:
            raise KafkaException(each.error)
    return {Partition(each.topic, each.partition): each.offset for each in found if each.offset >= 0}


def known_offset(answer: ListOffsetsResultInfo, where: Partition) -> int:
    """A broker that has just started may answer without an error and without an offset: librdkafka then returns a negative
    one."""
    if answer.offset < 0:
        raise SourceUnavailable(f"Kafka does not know yet where {where} begins and ends.")
    return int(answer.offset)


QUIET = {"log_level": 2}
"""librdkafka writes a line to stderr at every reconnection. What matters is returned as an error anyway."""


REFUSALS = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._AUTHENTICATION,
)


def consumer_options(bootstrap_servers: str, options: Mapping[str, Any], pipeline: str) -> dict[str, Any]:
    """The options of every reader of a pipeline. The user's options cannot change those that the guarantee depends on."""
    return {
        # A block ends somewhere in its partition, and records beyond its end are discarded: fetch little ahead, and
        # check for room again at once.
        "max.partition.fetch.bytes": 2 * 2**20,
        "queued.min.messages": 20_000,
        "queued.max.messages.kbytes": 8 * 2**10,
        "fetch.queue.backoff.ms": 2,
        "fetch.wait.max.ms": 20,
        **QUIET,
        **options,
        "bootstrap.servers": bootstrap_servers,
        "group.id": f"landonce-{pipeline}",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "isolation.level": "read_committed",
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
    }


def source_error(error: KafkaError, who: str) -> SourceUnavailable | SourceRefused:
    """Kafka's error as `SourceRefused` if it does not pass by itself, otherwise as `SourceUnavailable`."""
    if error.code() in REFUSALS:
        return SourceRefused(
            f"{who} refused: {error.str()}",
            safe="Nothing was skipped.",
            command="give the user of {file} the rights READ and DESCRIBE on the topics, or correct `source.kafka.options`",
        )
    return SourceUnavailable(f"{who}: {error.str()}")
