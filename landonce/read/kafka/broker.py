"""Asks the brokers: the cluster, the ids and ends of topics, the size of the next records. Never joins a consumer group.

Also the options and errors of every client of Kafka, and why a handshake of TLS fails: librdkafka says that it does, and where, but not
why. It needs no Arrow, so that `landonce.consumer` does not either.
"""

from __future__ import annotations

import os
import re
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent import futures
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from os.path import exists
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, ListOffsetsResultInfo, OffsetSpec

from landonce.config.model import TopicMatch, files_in
from landonce.errors import (
    CertificateRefused,
    ConfigError,
    Halt,
    SourceRefused,
    SourceUnavailable,
    TopicMissing,
    TopicRecreated,
)
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.source import Extent, GroupOffsets, SourceView, StartAt, begin_after, begin_at, begin_since
from landonce.tls import TlsKeys, examine, load_certificate, refusal

_PARTITIONS, _RECORDS, _BYTES = 8, 200, 8 * 2**20
"""How much `record_bytes` reads at most."""


def committed(
    group: str, partitions: Iterable[Partition], options: Mapping[str, Any], *, timeout: float
) -> dict[Partition, int]:
    """The offsets that the group has committed, if any. Raises `KafkaException`."""
    return {each: at for each, (at, _) in committed_with(group, partitions, options, timeout=timeout).items()}


def committed_with(
    group: str, partitions: Iterable[Partition], options: Mapping[str, Any], *, timeout: float
) -> dict[Partition, tuple[int, str]]:
    """As `committed`, with the metadata beside each offset.

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
    return {
        Partition(each.topic, each.partition): (each.offset, each.metadata or "") for each in found if each.offset >= 0
    }


def known_offset(answer: ListOffsetsResultInfo, where: Partition) -> int:
    """A broker that has just started may answer without an error and without an offset: librdkafka then returns a negative
    one."""
    if answer.offset < 0:
        raise SourceUnavailable(f"Kafka does not know yet where {where} begins and ends.")
    return int(answer.offset)


QUIET = {"log_level": 2}
"""librdkafka writes a line to stderr at every reconnection. What matters is returned as an error anyway."""
LOGIN = (
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._AUTHENTICATION,
)
REFUSALS = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    *LOGIN,
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


_OAUTH = "OAUTHBEARER token"
_OAUTH_REFUSED = re.compile(r"invalid_|unauthorized_|access_denied")
"""Errors of OAuth that an endpoint of tokens answers with, but for those of a server that is busy or broken."""


def _refuses_login(error: KafkaError) -> bool:
    """Whether another attempt would fail, too. An endpoint of tokens may only be unreachable."""
    said = error.str()
    return error.code() in LOGIN and (_OAUTH not in said or _OAUTH_REFUSED.search(said) is not None)


def source_error(error: KafkaError, who: str, options: Mapping[str, Any]) -> SourceUnavailable | Halt:
    """Kafka's error as `SourceRefused` or `CertificateRefused` if it does not pass by itself, otherwise as `SourceUnavailable`. `options`:
    the client's."""
    refused = certificate_refusal(error, who, options)
    if refused is not None:
        return refused
    if _refuses_login(error):
        return SourceRefused(
            f"{who} refused the login: {error.str().partition(' (after ')[0]}.",
            safe="Nothing was skipped.",
            command="correct the mechanism, the user or the password (`sasl.…`) in the options of Kafka in {file}",
        )
    if error.code() in REFUSALS and error.code() not in LOGIN:
        rights = "READ and DESCRIBE on the topics"
        if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            rights = "READ on consumer groups that begin with `landonce-`, and on those that it names"
        return SourceRefused(
            f"{who} refused: {error.str()}",
            safe="Nothing was skipped.",
            command=f"give the user of {{file}} the rights {rights}, or correct `source.kafka.options`",
        )
    return SourceUnavailable(f"{who}: {error.str()}")


T = TypeVar("T")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_PATIENCE = 10.0
_LISTEN = 0.1
_UNREACHABLE = 3.0
"""Seconds without any broker until an error says so. A name may have several addresses, which are tried in turn."""


class Broker:
    """One Kafka cluster, as the driver sees it."""

    def __init__(self, bootstrap_servers: str, options: Mapping[str, Any], *, timeout: float = _PATIENCE) -> None:
        self._heard: KafkaError | None = None
        self._down: float | None = None
        try:
            config: dict[str, Any] = {**QUIET, **options, "bootstrap.servers": bootstrap_servers}
            config["error_cb"] = self._hear
            self._admin = AdminClient(config)
        except KafkaException as error:
            gone = [f"{name}: there is no file {path}" for name, path in files_in(options).items() if not exists(path)]
            raise ConfigError(
                f"Kafka's client refuses its options: {gone[0] if gone else error.args[0].str()}.",
                command="correct `source.kafka.options` in {file}",
            ) from None
        self._servers = bootstrap_servers
        self._options = options
        self._timeout = timeout

    def survey(self, topics: Iterable[str] | TopicMatch) -> SourceView:
        """Ids, starts and last stable ends of these topics, all partitions."""
        self._forget_troubles()
        cluster = self._answer(self._admin.describe_cluster(request_timeout=self._timeout))
        described = self._describe(self._chosen(topics))
        partitions = [Partition(topic, each.id) for topic, info in described.items() for each in info.partitions]
        starts = self._offsets(partitions, OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED)
        ends = self._offsets(partitions, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)
        return SourceView(
            cluster_id=str(cluster.cluster_id),
            topic_ids=tuple(sorted((topic, str(info.topic_id)) for topic, info in described.items())),
            extents=tuple(sorted((each, Extent(starts[each], ends[each])) for each in partitions)),
        )

    def ends(self, topics: Iterable[str]) -> dict[Partition, int]:
        """Up to where these topics are written, open transactions included."""
        described = self._describe(tuple(topics))
        partitions = [Partition(topic, each.id) for topic, info in described.items() for each in info.partitions]
        return self._offsets(partitions, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)

    def transaction_log(self) -> tuple[int, int]:
        """How many brokers there are, and how many the log of transactions needs: none more, once it exists."""
        self._forget_troubles()
        nodes = self._answer(self._admin.describe_cluster(request_timeout=self._timeout)).nodes
        try:
            if "__transaction_state" in self._admin.list_topics(timeout=self._timeout).topics:
                return len(nodes), 0
        except KafkaException as error:
            raise self._named(error.args[0], "") from None
        broker = ConfigResource(ConfigResource.Type.BROKER, str(nodes[0].id))
        (asked,) = self._admin.describe_configs([broker], request_timeout=self._timeout).values()
        return len(nodes), int(self._answer(asked)["transaction.state.log.replication.factor"].value)

    def require(self, topics: Iterable[str] | TopicMatch) -> None:
        """Raises `TopicMissing` if one of these topics does not exist, or none matches."""
        self._describe(self._chosen(topics))

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """The id of each of these topics. No two topics ever have the same one."""
        return {topic: str(info.topic_id) for topic, info in self._describe(tuple(topics)).items()}

    def record_bytes(self, ranges: tuple[Range, ...], *, seconds: float = 1.0) -> float | None:
        """The mean size of the first records of some of these ranges; None if none came in time.

        It only helps to choose the size of the first batch, so every error here means None: reading the batch itself
        reports it.
        """
        longest = sorted(ranges, key=lambda each: each.span, reverse=True)[:_PARTITIONS]
        count = size = 0
        ended: set[tuple[str | None, int | None]] = set()
        try:
            places = [TopicPartition(each.partition.topic, each.partition.number, each.first) for each in longest]
            with self._peeking(places) as consumer:
                until = time.monotonic() + seconds
                while count < _RECORDS and size < _BYTES and len(ended) < len(longest) and time.monotonic() < until:
                    for message in consumer.consume(50, timeout=0.05):
                        error = message.error()
                        if error is None:
                            count, size = count + 1, size + len(message.value() or b"")
                        elif error.code() == KafkaError._PARTITION_EOF:
                            ended.add((message.topic(), message.partition()))
        except KafkaException:
            return None
        return size / count if count else None

    def begins(self, view: SourceView, start: StartAt) -> SourceView:
        """The same view, with where a pipeline without a position begins. Raises `StartRefused` if it cannot begin there."""
        if start.timestamp is not None:
            found = begin_since(view, start, self.since([each for each, _ in view.extents], start.timestamp))
        elif start.group:
            found = begin_after(view, start, self.group(start.group, [each for each, _ in view.extents]))
        else:
            found = begin_at(view, start)
        return replace(view, begins=tuple(sorted(found.items())))

    def group(self, name: str, partitions: Iterable[Partition]) -> GroupOffsets:
        """A consumer group as it is: how many members, and what it has committed of these partitions. One that does not exist has
        neither."""
        self._forget_troubles()
        (described,) = self._admin.describe_consumer_groups([name], request_timeout=self._timeout).values()
        members = len(self._answer(described).members)
        options = consumer_options(self._servers, self._options, "peek")
        try:
            found = committed_with(name, partitions, options, timeout=self._timeout)
        except KafkaException as error:
            raise source_error(error.args[0], f"the consumer group {name}", options) from None
        offsets = {partition: at for partition, (at, _) in found.items()}
        return GroupOffsets(members, offsets, {each: text for each, (_, text) in found.items() if text})

    def first_times(self, positions: Mapping[Partition, int], *, seconds: float = 3.0) -> dict[Partition, int]:
        """The timestamps (milliseconds) of the records at these offsets, or of the next ones, as far as they come in time: for people."""
        found: dict[Partition, int] = {}
        with suppress(KafkaException):
            places = [TopicPartition(each.topic, each.number, at) for each, at in positions.items()]
            with self._peeking(places) as consumer:
                until = time.monotonic() + seconds
                while found.keys() != positions.keys() and time.monotonic() < until:
                    for message in consumer.consume(50, timeout=0.05):
                        where = Partition(str(message.topic()), int(message.partition() or 0))
                        if message.error() is None:
                            found.setdefault(where, message.timestamp()[1])
        return found

    @contextmanager
    def _peeking(self, places: list[TopicPartition]) -> Iterator[Consumer]:
        """A consumer that reads on from these offsets, and fetches little ahead."""
        options = consumer_options(self._servers, self._options, "peek")
        consumer = Consumer({**options, "queued.max.messages.kbytes": 1024}, logger=None)
        try:
            consumer.assign(places)
            yield consumer
        finally:
            consumer.close()

    def since(self, partitions: Iterable[Partition], moment: int) -> dict[Partition, int]:
        """The first offset of each partition with a timestamp of this moment (milliseconds) or later, where there is one."""
        spec = OffsetSpec.for_timestamp(moment)
        asked = {TopicPartition(each.topic, each.number): spec for each in partitions}
        found = self._admin.list_offsets(asked, request_timeout=self._timeout)
        offsets = {Partition(each.topic, each.partition): self._answer(future).offset for each, future in found.items()}
        return {each: int(offset) for each, offset in offsets.items() if offset >= 0}

    def _chosen(self, topics: Iterable[str] | TopicMatch) -> tuple[str, ...]:
        """The topics by name. Brokers list only those that the user may describe."""
        if not isinstance(topics, TopicMatch):
            return tuple(topics)
        self._forget_troubles()
        # Unlike `list_topics`, this notices at once that no broker can be reached.
        self._answer(self._admin.describe_cluster(request_timeout=self._timeout))
        try:
            listed = self._admin.list_topics(timeout=self._timeout).topics
        except KafkaException as error:
            raise self._named(error.args[0], "") from None
        found = tuple(sorted(filter(topics.takes, listed)))
        if not found:
            raise TopicMissing(
                f"no topic at {self._servers} matches {topics.match!r}, or the user may not describe it.",
                safe="Nothing was read or written.",
                command="create a topic, or correct `source.kafka.topics` in {file}",
            )
        return found

    def _describe(self, topics: tuple[str, ...]) -> dict[str, Any]:
        for each in topics:  # brokers call such a name an error that may pass, and librdkafka raises for an empty one
            if not _TOPIC.fullmatch(each) or each in (".", ".."):
                raise TopicMissing(
                    f"{each!r} cannot be the name of a topic: Kafka allows 1 to 249 letters, digits, dots, `_` and `-`.",
                    safe="Nothing was read or written.",
                    command="correct `source.kafka.topics` in {file}",
                )
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
        """Waits for the result. If no broker can be reached, it raises the reason before the timeout is over."""
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
                if now > until or (self._down is not None and now - self._down > self._patience):
                    raise self._unanswered() from None

    @property
    def _patience(self) -> float:
        """How long no broker may answer until an error says so. A login, or a handshake of TLS, that failed fails again."""
        heard = self._heard
        lasts = heard is not None and (heard.code() == KafkaError._SSL or _refuses_login(heard))
        return _LISTEN if lasts else _UNREACHABLE

    def _forget_troubles(self) -> None:
        """Forgets errors of connections that were lost since the last request. librdkafka reports only once, perhaps
        before the first request, that no broker can be reached: this is kept until a broker answers."""
        while self._admin.poll(0):
            pass
        if self._down is None:
            self._heard = None
        else:
            self._down = time.monotonic()

    def _hear(self, error: KafkaError) -> None:
        """librdkafka reports errors of connections only here. Meanwhile it continues to try."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._down = self._down or time.monotonic()
        else:
            self._heard = error
            if error.code() in LOGIN and _OAUTH in error.str():  # no broker is asked without one
                self._down = self._down or time.monotonic()

    def _unanswered(self) -> SourceUnavailable | Halt:
        if self._heard is None:
            return SourceUnavailable(f"Kafka at {self._servers} did not answer in time.")
        error = source_error(self._heard, f"Kafka at {self._servers}", self._options)
        if self._down is None or isinstance(error, Halt):
            return error
        return SourceUnavailable(
            f"Kafka at {self._servers} cannot be reached: {self._heard.str().partition(' (after ')[0]}."
        )

    def _named(self, error: KafkaError, topic: str) -> Exception:
        if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART and topic:
            return TopicMissing(
                f"topic {topic!r} does not exist at {self._servers}.",
                safe="Nothing was read or written.",
                command="create the topic, or correct `source.kafka.topics` in {file}",
            )
        return source_error(error, f"Kafka at {self._servers}", self._options)


def refuse_vanished(topics: Iterable[str] | TopicMatch, known: Iterable[str], view: SourceView) -> None:
    """Raises `TopicMissing` if a topic that matches was read before, and is gone. One that is named is missed by the survey."""
    seen = dict(view.topic_ids)
    for topic in known:
        if isinstance(topics, TopicMatch) and topics.takes(topic) and topic not in seen:
            raise TopicMissing(
                f"topic {topic!r}, which matches {topics.match!r} and was read before, does not exist any more.",
                safe="Nothing was read or written.",
                command="create the topic again, or change `source.kafka.topics` in {file} so that it does not match",
            )


_NONE = ("", "AAAAAAAAAAAAAAAAAAAAAA")
"""The id of a topic that has none: empty, or all bits zero."""
_brokers: dict[tuple[object, ...], Broker] = {}
"""By process and options, kept for the next block. A forked process cannot use the client of its parent."""


def require_same(topics: Mapping[str, str], options: Mapping[str, Any]) -> None:
    """Raises `TopicRecreated` unless the brokers know these topics by these ids.

    A topic may be deleted and created again after the driver asked for it; then the same offsets are other records. A
    topic's id is never used again, in any cluster. So if the brokers, asked after the last record was read, report the
    ids of the plan, all records came from these topics. Rows are written only after that. Two cases remain: brokers that
    give topics no ids, and a broker that learns of the new topic later than the one that was read from.
    """
    known = {topic: topic_id for topic, topic_id in topics.items() if topic_id not in _NONE}
    if not known:
        return
    key = (os.getpid(), *sorted((name, str(value)) for name, value in options.items()))
    try:
        if key not in _brokers:
            _brokers[key] = Broker(str(options["bootstrap.servers"]), options)
        found = _brokers[key].topic_ids(known)
    except TopicMissing as error:
        raise SourceUnavailable(error.what) from None
    for topic, topic_id in known.items():
        if found[topic] not in (topic_id, *_NONE):
            raise TopicRecreated(
                f"topic {topic!r} was deleted and created again while a batch of it was read: the ledger knows id {topic_id}, "
                f"the broker has {found[topic]}.",
                safe="The records that were read are discarded, and no row of them was written. The position did not move.",
                command="landonce state rebase {file} --drop-pending",
            )


_WHERE = re.compile(r"ssl://\[?([^\s/]+?)\]?:(\d+)/")
_OF_CERTIFICATES = ("certificate verify failed", "could not be verified", "alert")
"""What librdkafka says of the server's certificate, or of the client's."""
_FALSE = ("false", "f", "0")
"""As librdkafka reads them."""
_KEYS = TlsKeys(
    "`ssl.ca.location` in the options of Kafka",
    "`ssl.certificate.location` and `ssl.key.location` in the options of Kafka",
)


def certificate_refusal(error: KafkaError, who: str, options: Mapping[str, Any]) -> CertificateRefused | None:
    """The error if a broker's certificate is not trusted, or the broker does not accept the client's; None for other errors, and if the broker
    that failed has other certificates by now."""
    said = error.str()
    where = _WHERE.search(said)
    if where is None or not any(each in said for each in _OF_CERTIFICATES):
        return None
    host, port = where[1], int(where[2])
    try:
        found = examine(host, port, _context(options))
    except (OSError, ValueError):
        return None
    if found is None or ("ssl.keystore.location" in options and not isinstance(found, ssl.SSLCertVerificationError)):
        return None  # Python opens no key store, so the broker was not shown the certificate that is in it
    return refusal(found, f"{who}, broker {host}:{port}", host, _KEYS)


def _context(options: Mapping[str, Any]) -> ssl.SSLContext:
    """As librdkafka's options have it."""
    named = {name: str(value) for name, value in options.items()}
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname = named.get("ssl.endpoint.identification.algorithm", "https") != "none"
    if named.get("enable.ssl.certificate.verification", "true").lower() in _FALSE:
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    if "ssl.ca.pem" in named:
        tls.load_verify_locations(cadata=named["ssl.ca.pem"])
    elif named.get("ssl.ca.location", "probe") != "probe":
        tls.load_verify_locations(named["ssl.ca.location"])
    else:
        tls.load_default_certs()
    files = {each: named.get(f"ssl.{each}.location") for each in ("certificate", "key")}
    texts = (named.get(f"ssl.{each}.pem") or (Path(file).read_text() if file else "") for each, file in files.items())
    certificate, key = texts
    if certificate and key:
        load_certificate(tls, f"{certificate}\n{key}", named.get("ssl.key.password", ""))
    return tls
