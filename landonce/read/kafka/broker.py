"""Asking the brokers: which cluster, which topics, how far. Reads only, and never joins a consumer group."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent import futures
from concurrent.futures import Future
from typing import Any, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from landonce.errors import ConfigError, SourceRefused, SourceUnavailable, TopicMissing
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.source import Extent, SourceView
from landonce.read.kafka.offsets import known_offset
from landonce.read.kafka.records import QUIET, REFUSALS, consumer_options, source_error
from landonce.read.kafka.sample_sizes import record_bytes

T = TypeVar("T")
_PATIENCE = 10.0
_LISTEN = 0.1
_UNREACHABLE = 3.0
"""Seconds without any broker after which it is said. A name may have several addresses, which are tried one after another."""


class Broker:
    """One Kafka cluster, as the driver sees it."""

    def __init__(self, bootstrap_servers: str, options: Mapping[str, Any], *, timeout: float = _PATIENCE) -> None:
        self._heard: KafkaError | None = None
        self._down: float | None = None
        try:
            told: dict[str, Any] = {**QUIET, **options, "bootstrap.servers": bootstrap_servers, "error_cb": self._hear}
            self._admin = AdminClient(told)
        except KafkaException as error:
            raise ConfigError(
                f"Kafka's client refuses its options: {error.args[0].str()}.",
                command="correct `source.kafka.options` in {file}",
            ) from None
        self._servers = bootstrap_servers
        self._options = options
        self._timeout = timeout

    def survey(self, topics: Iterable[str]) -> SourceView:
        """Ids, starts and last stable ends of these topics, all partitions."""
        self._forget_troubles()
        cluster = self._answer(self._admin.describe_cluster(request_timeout=self._timeout))
        described = self._describe(tuple(topics))
        partitions = [Partition(topic, each.id) for topic, info in described.items() for each in info.partitions]
        starts = self._offsets(partitions, OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED)
        ends = self._offsets(partitions, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)
        return SourceView(
            cluster_id=str(cluster.cluster_id),
            topic_ids=tuple(sorted((topic, str(info.topic_id)) for topic, info in described.items())),
            extents=tuple(sorted((each, Extent(starts[each], ends[each])) for each in partitions)),
        )

    def require(self, topics: Iterable[str]) -> None:
        """Raises `TopicMissing` where one of these topics is not there."""
        self._describe(tuple(topics))

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """The id of each of these topics. No two topics ever have the same one."""
        return {topic: str(info.topic_id) for topic, info in self._describe(tuple(topics)).items()}

    def record_bytes(self, ranges: tuple[Range, ...]) -> float | None:
        """How large the next records of these ranges are, if that is easily seen."""
        return record_bytes(ranges, consumer_options(self._servers, self._options, "peek"))

    def _describe(self, topics: tuple[str, ...]) -> dict[str, Any]:
        self._forget_troubles()
        asked = self._admin.describe_topics(TopicCollection(list(topics)), request_timeout=self._timeout)
        return {topic: self._answer(future, topic) for topic, future in asked.items()}

    def _offsets(
        self, partitions: list[Partition], spec: OffsetSpec, isolation: IsolationLevel
    ) -> dict[Partition, int]:
        asked = {TopicPartition(each.topic, each.number): spec for each in partitions}
        found = self._admin.list_offsets(asked, isolation_level=isolation, request_timeout=self._timeout)
        return {
            (where := Partition(each.topic, each.partition)): known_offset(self._answer(future), where)
            for each, future in found.items()
        }

    def _answer(self, future: Future[T], topic: str = "") -> T:
        """Waits for it, but not for the whole timeout where no broker can be reached: what is in the way is said soon."""
        until = time.monotonic() + self._timeout * 2
        while True:
            try:
                answer = future.result(timeout=_LISTEN)
                self._down = None
                return answer
            except KafkaException as error:
                self._admin.poll(0)
                timed_out = error.args[0].code() == KafkaError._TIMED_OUT
                raise (self._unanswered() if timed_out else self._named(error.args[0], topic)) from None
            except (TimeoutError, futures.TimeoutError):
                self._admin.poll(0)
                now = time.monotonic()
                if now > until or (self._down is not None and now - self._down > _UNREACHABLE):
                    raise self._unanswered() from None

    def _forget_troubles(self) -> None:
        """Those of connections that were lost since the last question. That no broker can be reached librdkafka says once, and maybe
        before the first question: it stays known until one answers."""
        while self._admin.poll(0):
            pass
        if self._down is None:
            self._heard = None
        else:
            self._down = time.monotonic()

    def _hear(self, error: KafkaError) -> None:
        """librdkafka tells what is wrong with a connection here, and nowhere else. It goes on trying meanwhile."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._down = self._down or time.monotonic()
        else:
            self._heard = error

    def _unanswered(self) -> SourceUnavailable | SourceRefused:
        if self._heard is None:
            return SourceUnavailable(f"Kafka at {self._servers} did not answer in time.")
        if self._down is None or self._heard.code() in REFUSALS:
            return source_error(self._heard, f"Kafka at {self._servers}")
        return SourceUnavailable(
            f"Kafka at {self._servers} cannot be reached: {self._heard.str().partition(' (after ')[0]}."
        )

    def _named(self, error: KafkaError, topic: str) -> Exception:
        if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART and topic:
            return TopicMissing(
                f"topic {topic!r} is not there at {self._servers}.",
                safe="Nothing was read or written.",
                command="create the topic, or correct `source.kafka.topics` in {file}",
            )
        return source_error(error, f"Kafka at {self._servers}")
