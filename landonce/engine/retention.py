"""How long Kafka keeps records, and how near the position is to being overrun. Asks the brokers, reads no record."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent import futures
from concurrent.futures import Future
from typing import Any, TypeVar

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

from landonce.errors import SourceUnavailable
from landonce.protocol.ranges import Partition
from landonce.read.kafka.broker import QUIET
from landonce.sinks.contract import Finding, Level

T = TypeVar("T")
_PATIENCE = 10.0
_NEAR = 0.8
"""Of the retention time: an unread record that is older is near its end."""


class Retention:
    """What the topics' own settings say."""

    def __init__(self, bootstrap_servers: str, options: Mapping[str, Any]) -> None:
        self._admin = AdminClient({**QUIET, **options, "bootstrap.servers": bootstrap_servers})

    def compacted(self, topic: str) -> bool:
        """Whether records may disappear because newer ones have the same key."""
        return "compact" in self._settings(topic).get("cleanup.policy", "")

    def letters(self, topic: str) -> Iterator[Finding]:
        """Whether a topic of dead letters, which have the timestamps of their records, deletes those of old records at once."""
        settings = self._settings(topic)
        appended = settings.get("message.timestamp.type") == "LogAppendTime"
        if appended or "delete" not in settings.get("cleanup.policy", "delete"):
            return
        keep = int(settings.get("retention.ms", "-1"))
        if keep >= 0:
            yield Finding(
                Level.WARNING,
                f"topic {topic} deletes records {keep / 3_600_000:.1f} h after their own timestamp, so letters of older records vanish at "
                "once; the files in `dead_letters.path` keep them",
                f"set retention.ms=-1 or message.timestamp.type=LogAppendTime for {topic}",
            )

    def findings(self, topic: str, unread: Mapping[Partition, int]) -> Iterator[Finding]:
        """`unread`: the next offset to read of each partition that has unread records."""
        try:
            settings = self._settings(topic)
            yield _kept(topic, settings)
            if "compact" in settings.get("cleanup.policy", ""):
                yield Finding(
                    Level.WARNING,
                    f"topic {topic} is compacted: a record that a newer one of the same key replaces before it is read "
                    "never lands",
                    "that is the topic's own promise, not a loss; raise min.compaction.lag.ms if every record counts",
                )
            yield from self._near(topic, settings, unread)
        except SourceUnavailable as error:
            yield Finding(
                Level.WARNING,
                f"topic {topic}: how long records are kept cannot be asked: {error.what}",
                "allow DescribeConfigs on the topic if you want this to be looked at",
            )

    def _settings(self, topic: str) -> dict[str, str]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        config = _answer(self._admin.describe_configs([resource], request_timeout=_PATIENCE)[resource])
        return {name: str(entry.value) for name, entry in config.items()}

    def _near(self, topic: str, settings: Mapping[str, str], unread: Mapping[Partition, int]) -> Iterator[Finding]:
        """An unread record below the first offset of the last 80 % of the retention time is near its end."""
        keep = int(settings.get("retention.ms", "-1"))
        if keep <= 0 or "delete" not in settings.get("cleanup.policy", "delete") or not unread:
            return
        since = OffsetSpec.for_timestamp(int(time.time() * 1000 - keep * _NEAR))
        asked = {TopicPartition(each.topic, each.number): since for each in unread}
        answers = self._admin.list_offsets(asked, request_timeout=_PATIENCE)
        for each, future in answers.items():
            young = int(_answer(future).offset)
            position = unread[Partition(each.topic, each.partition)]
            if young < 0 or young > position:
                yield Finding(
                    Level.WARNING,
                    f"{each.topic}[{each.partition}]: the next record to read, offset {position}, is older than "
                    f"{_NEAR:.0%} of the topic's retention and may be deleted soon",
                    f"run the pipeline now, or raise retention.ms of {topic}",
                )


def _kept(topic: str, settings: Mapping[str, str]) -> Finding:
    milliseconds, size = int(settings.get("retention.ms", "-1")), int(settings.get("retention.bytes", "-1"))
    if "delete" not in settings.get("cleanup.policy", "delete"):
        return Finding(Level.OK, f"topic {topic} deletes nothing by age or size")
    time_kept = "for ever" if milliseconds < 0 else f"for {milliseconds / 3_600_000:.1f} h"
    size_kept = "" if size < 0 else f", and no more than {size / 2**20:.0f} MiB per partition"
    return Finding(Level.OK, f"topic {topic} keeps records {time_kept}{size_kept}")


def _answer(future: Future[T]) -> T:
    try:
        return future.result(timeout=_PATIENCE * 2)
    except KafkaException as error:
        raise SourceUnavailable(error.args[0].str()) from None
    except (TimeoutError, futures.TimeoutError):
        raise SourceUnavailable("Kafka did not answer in time.") from None
