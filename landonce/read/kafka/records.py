"""Reads exactly the ranges of a block: librdkafka, `read_committed`, straight into Arrow.

A range is complete once its last offset, a later one, or the end of the partition at or past its end was seen: offsets
may be missing, also at the end, so their number proves nothing. Each thread keeps a consumer for the next block that
it reads. Nothing is ever committed to Kafka, and a deleted offset is an error, never skipped.
"""

from __future__ import annotations

import gc
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, zip_longest
from operator import methodcaller
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from landonce.errors import CertificateRefused, RetentionOverrun, SourceRefused, SourceUnavailable
from landonce.protocol.ranges import Partition, Range, without
from landonce.protocol.reasons import UNREADABLE
from landonce.read.kafka.broker import require_same, source_error

if TYPE_CHECKING:
    from landonce.read.block import ReadBlock

_AT_ONCE = 20_000
_WAIT = 0.1
"""Seconds to wait for `_AT_ONCE` records. Offsets may be missing, and then so many never come."""
_SILENCE = 30.0
_LEADERS_KNOWN_FOR = 60.0
"""Seconds until a topic's leaders are requested again before it is read: librdkafka forgets those it does not use."""
_headers = methodcaller("headers")
"""As C calls it, which notices that the client fails. A call in Python is specialized after a few calls, and does not notice it any more."""
_GONE = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)


class _Kept(threading.local):
    """Consumers of this thread. Two threads with one consumer would read each other's records, and take a later one for the end of a range."""

    def __init__(self) -> None:
        self.consumers: dict[tuple[tuple[str, str], ...], Consumer] = {}
        self.introduced: dict[Consumer, dict[str, float]] = {}
        """When each consumer last learned the leaders of a topic."""


_KEPT = _Kept()


class KafkaMessage(Protocol):
    """What Arrow does not hold of a record. `confluent_kafka.Message` is one."""

    def offset(self) -> int | None: ...
    def timestamp(self) -> tuple[int, int]: ...
    def key(self) -> Any: ...
    def value(self) -> Any: ...
    def headers(self) -> Any: ...


def read_headers(record: KafkaMessage) -> Any:
    """What `record.headers()` gives. Kafka's client fails at a name that is not UTF-8, and the process crashes if it is asked again: such a
    record says `UNREADABLE` from now on."""
    try:
        return _headers(record)
    except SystemError as error:
        if not isinstance(error.__cause__, UnicodeDecodeError):
            raise
    if isinstance(record, Message):
        record.set_headers([UNREADABLE])
    return [UNREADABLE]


def header_pairs(headers: Any) -> list[tuple[str, bytes | None]]:
    """What `read_headers` gives, as pairs in their order. A name may repeat."""
    listed = headers.items() if isinstance(headers, dict) else headers or ()
    return [(name, value.encode() if isinstance(value, str) else value) for name, value in listed]


def last_headers(records: Iterable[KafkaMessage], name: str) -> pa.BinaryArray:
    """Each record's last header of this name, as Kafka's clients take it. Null: it has none. `UNREADABLE`: it may have one."""
    found = [header_pairs(read_headers(each)) for each in records]
    return pa.array([UNREADABLE[1] if each == [UNREADABLE] else dict(each).get(name) for each in found], pa.binary())


@dataclass(frozen=True)
class Records:
    """Some records of one partition, in offset order. `messages` are kept for what Arrow does not hold: key, headers."""

    partition: Partition
    offsets: pa.Int64Array
    values: pa.BinaryArray
    messages: Sequence[KafkaMessage]


class BlockId(NamedTuple):
    """Which block of a pipeline it is."""

    pipeline: str
    batch: int
    number: int
    ranges: tuple[Range, ...]


class RecordSource(ABC):
    """Where workers read the records of blocks. Picklable; its repr hides secrets."""

    @abstractmethod
    def read(self, ranges: tuple[Range, ...]) -> Iterator[Records]:
        """Every record of these ranges, once. Each partition in offset order, partitions in any order."""

    @abstractmethod
    def require_same(self, topics: Mapping[str, str]) -> None:
        """Raises unless what was read came from the topics with these ids."""

    def rows(self, ranges: tuple[Range, ...], labels: Mapping[str, str]) -> pa.Table | None:
        """The rows of these ranges with their coordinates, where rows are kept and not records. None: there are records."""
        del ranges, labels
        return None

    freezes: bool = False
    """Blocks are stored before they are sent, and every attempt sends what is stored."""

    def frozen(self, block: BlockId) -> ReadBlock | None:
        """The block as it was stored, if it was."""
        del block
        return None

    def freeze(self, block: BlockId, content: ReadBlock) -> ReadBlock:
        """The block as it is sent. Stores it where blocks are stored."""
        del block
        return content


@dataclass(frozen=True)
class KafkaRecords(RecordSource):
    """The brokers, by the options of a consumer."""

    consumer: tuple[tuple[str, object], ...] = field(repr=False)

    def read(self, ranges: tuple[Range, ...]) -> Iterator[Records]:
        return read(ranges, dict(self.consumer))

    def require_same(self, topics: Mapping[str, str]) -> None:
        require_same(topics, dict(self.consumer))


@dataclass(frozen=True)
class WithoutRanges(RecordSource):
    """The same records, but for those that an operator skipped. What was skipped is not read: Kafka may have deleted it."""

    source: RecordSource
    gone: tuple[Range, ...]

    def read(self, ranges: tuple[Range, ...]) -> Iterator[Records]:
        for pieces in zip_longest(*(without(each, self.gone) for each in ranges)):
            yield from self.source.read(tuple(each for each in pieces if each is not None))

    def require_same(self, topics: Mapping[str, str]) -> None:
        self.source.require_same(topics)

    def rows(self, ranges: tuple[Range, ...], labels: Mapping[str, str]) -> pa.Table | None:
        return self.source.rows(tuple(piece for each in ranges for piece in without(each, self.gone)), labels)

    def frozen(self, block: BlockId) -> ReadBlock | None:
        return self.source.frozen(block)

    def freeze(self, block: BlockId, content: ReadBlock) -> ReadBlock:
        return self.source.freeze(block, content)


class NoRecords(RecordSource):
    """Rows come from a user's query, and workers read nothing."""

    def read(self, ranges: tuple[Range, ...]) -> Iterator[Records]:
        raise TypeError(f"the rows of {ranges} come from a query")

    def require_same(self, topics: Mapping[str, str]) -> None:
        del topics


def read(ranges: tuple[Range, ...], options: Mapping[str, Any]) -> Iterator[Records]:
    """Every record of these ranges, once. Each partition in offset order, partitions in any order."""
    consumer = _consumer(options)
    waiting = {each.partition: each for each in ranges}
    one_topic = len({each.partition.topic for each in ranges}) == 1
    places = [TopicPartition(each.partition.topic, each.partition.number, each.first) for each in ranges]
    try:
        _introduce(consumer, {each.partition.topic for each in ranges})
        consumer.assign(places)
        consumer.resume(places)  # librdkafka remembers a pause across assignments
        heard = time.monotonic()
        while waiting:
            left = sum(each.span for each in waiting.values())  # librdkafka waits for as many as it is asked for
            messages = _consume(consumer, min(_AT_ONCE, left))
            if messages:
                heard = time.monotonic()
                yield from _sort_out(consumer, messages, waiting, one_topic)
            elif time.monotonic() - heard > _SILENCE:
                raise SourceUnavailable(f"Kafka sent nothing for {_SILENCE:.0f} s; {len(waiting)} ranges are unread.")
    except KafkaException as error:
        _forget(consumer)
        raise source_error(error.args[0], "Kafka", options) from None
    except (SourceUnavailable, SourceRefused, CertificateRefused):
        _forget(consumer)
        raise
    finally:
        if consumer in _KEPT.introduced:  # a caller who wants no more may have closed the generator
            consumer.unassign()


def _consume(consumer: Consumer, count: int) -> list[Message]:
    """Without garbage collection: so many new objects set it off dozens of times, which took a third of the time of reading."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return consumer.consume(count, timeout=_WAIT)
    finally:
        if collects:
            gc.enable()


def _consumer(options: Mapping[str, Any]) -> Consumer:
    key = tuple(sorted((name, str(value)) for name, value in options.items()))
    kept = _KEPT.consumers
    if key not in kept:
        kept[key] = Consumer(dict(options), logger=None)
    return kept[key]


def _introduce(consumer: Consumer, topics: set[str]) -> None:
    """Requests the leaders of topics that are new to this consumer. Without this, an assigned consumer requests them at
    the next tick of a timer, once a second."""
    known, now = _KEPT.introduced.setdefault(consumer, {}), time.monotonic()
    for topic in topics:
        if now - known.get(topic, -_LEADERS_KNOWN_FOR) >= _LEADERS_KNOWN_FOR:
            consumer.list_topics(topic, timeout=_SILENCE)
            known[topic] = now


def _forget(consumer: Consumer) -> None:
    """A consumer that failed may never work again; the next block gets a new one."""
    for key in [key for key, each in _KEPT.consumers.items() if each is consumer]:
        del _KEPT.consumers[key]
    _KEPT.introduced.pop(consumer, None)
    consumer.close()


def _sort_out(
    consumer: Consumer, messages: list[Message], waiting: dict[Partition, Range], one_topic: bool
) -> Iterator[Records]:
    """Splits the messages by partition, leaves out those outside the ranges, and removes finished ranges from `waiting`."""
    ended: set[Partition] = set()
    if any(map(Message.error, messages)):
        ended = _reached(messages, waiting)
        messages = [message for message in messages if message.error() is None]
    for partition, mine in _by_partition(messages, waiting, one_topic).items():
        wanted = waiting[partition]
        offsets = np.fromiter(map(Message.offset, mine), dtype=np.int64, count=len(mine))
        if not (offsets[1:] > offsets[:-1]).all():
            raise SourceUnavailable(f"Kafka's client returned records of {partition} out of order.")
        if offsets[0] < wanted.first:  # delivered again: clients did that after a pause
            known = int(np.searchsorted(offsets, wanted.first))
            mine, offsets = mine[known:], offsets[known:]
            if not mine:
                continue
        if offsets[-1] >= wanted.end - 1:
            ended.add(partition)
            keep = int(np.searchsorted(offsets, wanted.end))
            mine, offsets = mine[:keep], offsets[:keep]
        else:
            waiting[partition] = replace(wanted, first=int(offsets[-1]) + 1)
        if mine:
            values = pa.array(list(map(Message.value, mine)), type=pa.binary())
            yield Records(partition, pa.array(offsets), values, mine)
    for partition in ended & waiting.keys():
        del waiting[partition]
        if waiting:
            consumer.pause([TopicPartition(partition.topic, partition.number)])


def _by_partition(
    messages: list[Message], waiting: Mapping[Partition, Range], one_topic: bool
) -> dict[Partition, list[Message]]:
    """Messages come in long runs of one partition, so this compares runs, not messages."""
    split: dict[Partition, list[Message]] = {}
    for _, run in groupby(messages, key=Message.partition if one_topic else _place):
        mine = list(run)
        split.setdefault(Partition(*_place(mine[0])), []).extend(mine)
    return {partition: mine for partition, mine in split.items() if partition in waiting}


def _place(message: Message) -> tuple[str, int]:
    return message.topic() or "", message.partition() or 0


def _reached(messages: list[Message], waiting: Mapping[Partition, Range]) -> set[Partition]:
    """The partitions whose end, at or past the end of their range, is reached. Raises if a message is an error."""
    reached = set()
    for message in messages:
        error = message.error()
        if error is None:
            continue
        partition = Partition(*_place(message))
        wanted = waiting.get(partition)
        if error.code() == KafkaError._PARTITION_EOF:
            if wanted is not None and (message.offset() or 0) >= wanted.end:
                reached.add(partition)
        elif error.code() in _GONE and wanted is not None:
            raise RetentionOverrun(
                f"{wanted}: records of this range were deleted before landonce read them.",
                safe="Nothing was skipped.",
                command="landonce state accept-gap {file}",
            )
        elif error.fatal() or not error.retriable():
            raise KafkaException(error)
    return reached
