"""What an audit reads beside the target: the topic again, with a plain consumer, and the offsets of the dead letters that count.

The consumer reads `read_committed`, one partition at a time, and never commits offsets. It is deliberately not the reader of the run. A
deleted offset is an error here too: an audit must not skip anything.
"""

from __future__ import annotations

import time
import uuid
from array import array
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from landonce.dedup.rule import LATE
from landonce.engine.dead_letters import committed, reason_of, with_refusals
from landonce.errors import RetentionOverrun, SourceUnavailable
from landonce.protocol.ranges import Partition
from landonce.protocol.reasons import UNREADABLE, Code
from landonce.sinks.audit import CountedOffsets, Offsets

_headers = methodcaller("headers")
_AT_ONCE = 20_000
_SILENCE = 30.0
_WINDOW_RECORDS = 200_000
_WINDOW_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Window:
    """Every record with an offset in `[first, end)`, in order."""

    first: int
    end: int
    offsets: Offsets
    values: pa.BinaryArray
    messages: Sequence[Message] = ()
    keys: list[bytes | None] = field(default_factory=list)
    """The records' keys, if requested."""
    timestamps: Offsets = field(default_factory=lambda: np.empty(0, np.int64))
    """Milliseconds."""
    headers: Mapping[str, list[bytes | None]] = field(default_factory=dict)
    """The values of the headers that were requested, by their names."""

    @property
    def topic(self) -> str:
        """Of all of them; empty if there is no record."""
        return (self.messages[0].topic() or "") if self.messages else ""


class PlainReader:
    """One consumer for one audit."""

    def __init__(
        self, bootstrap_servers: str, options: Mapping[str, Any], *, keys: bool = False, headers: Collection[str] = ()
    ) -> None:
        self._keys, self._headers = keys, tuple(headers)
        self._consumer = Consumer(
            {
                "queued.max.messages.kbytes": 64 * 2**10,
                "fetch.wait.max.ms": 20,
                **options,
                "bootstrap.servers": bootstrap_servers,
                "group.id": f"landonce-verify-{uuid.uuid4().hex}",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
            }
        )

    def windows(self, partition: Partition, first: int, end: int) -> Iterator[Window]:
        """All records of `[first, end)` in adjacent windows, each of bounded records and bytes."""
        begins = first
        chunks: list[_Chunk] = []
        for chunk in self._chunks(partition, first, end) if first < end else ():
            chunks.append(chunk)
            records, size = sum(len(each.offsets) for each in chunks), sum(each.values.nbytes for each in chunks)
            if records >= _WINDOW_RECORDS or size >= _WINDOW_BYTES:
                stop = int(chunk.offsets[-1]) + 1
                yield _window(begins, stop, chunks)
                begins, chunks = stop, []
        if begins < end:
            yield _window(begins, end, chunks)

    def close(self) -> None:
        self._consumer.close()

    def _chunks(self, partition: Partition, first: int, end: int) -> Iterator[_Chunk]:
        """Messages, until an offset at or past the end, or the end of the partition, proves that all have come."""
        consumer = self._consumer
        consumer.assign([TopicPartition(partition.topic, partition.number, first)])
        heard, done = time.monotonic(), False
        try:
            while not done:
                came = consumer.consume(_AT_ONCE, timeout=0.5)
                if came:
                    heard = time.monotonic()
                elif time.monotonic() - heard > _SILENCE:
                    raise SourceUnavailable(f"Kafka sent nothing of {partition} for {_SILENCE:.0f} s.")
                records = [each for each in came if each.error() is None]
                if len(records) < len(came):
                    done = any(_is_end(each, partition, end) for each in came if each.error() is not None)
                offsets = np.fromiter([each.offset() for each in records], np.int64, len(records))
                wanted = int(np.searchsorted(offsets, end))
                done = done or (len(offsets) > 0 and int(offsets[-1]) >= end - 1)
                if wanted:
                    records = records[:wanted]
                    values = pa.array([each.value() for each in records], pa.binary())
                    keys = [each.key() for each in records] if self._keys else []
                    timestamps = np.fromiter([each.timestamp()[1] for each in records], np.int64, len(records))
                    headers = {name: [_header(each, name) for each in records] for name in self._headers}
                    yield _Chunk(offsets[:wanted], values, records, keys, timestamps, headers)
        except KafkaException as error:
            raise SourceUnavailable(f"Kafka: {error.args[0].str()}") from None
        finally:
            consumer.unassign()


@dataclass(frozen=True)
class _Chunk:
    offsets: Offsets
    values: pa.BinaryArray
    messages: list[Message]
    keys: list[bytes | None]
    timestamps: Offsets
    headers: Mapping[str, list[bytes | None]]


def _window(first: int, end: int, chunks: list[_Chunk]) -> Window:
    offsets = np.concatenate([np.empty(0, np.int64), *(each.offsets for each in chunks)])
    values = pa.concat_arrays([pa.array([], pa.binary()), *(each.values for each in chunks)])
    messages = list(chain.from_iterable(each.messages for each in chunks))
    keys = list(chain.from_iterable(each.keys for each in chunks))
    timestamps = np.concatenate([np.empty(0, np.int64), *(each.timestamps for each in chunks)])
    names = chunks[0].headers if chunks else ()
    headers = {name: list(chain.from_iterable(each.headers[name] for each in chunks)) for name in names}
    return Window(first, end, offsets, values, messages, keys, timestamps, headers)


def _header(message: Message, name: str) -> bytes | None:
    """The last header of this name. Kafka's client fails at a name that is not UTF-8. It must not be asked twice, and be called from C: a
    call in Python does not always notice that it fails."""
    try:
        found = _headers(message) or ()
    except SystemError as error:
        if not isinstance(error.__cause__, UnicodeDecodeError):
            raise
        message.set_headers([UNREADABLE])
        found = [UNREADABLE]
    if found == [UNREADABLE]:
        return UNREADABLE[1]
    pairs = found.items() if isinstance(found, dict) else found
    values = [value for key, value in pairs if key == name]
    last = values[-1] if values else None
    return last.encode() if isinstance(last, str) else last


def _is_end(message: Message, partition: Partition, end: int) -> bool:
    """Whether this message, which is not a record, says that no record is left before `end`."""
    error = message.error()
    assert error is not None
    if error.code() == KafkaError._PARTITION_EOF:
        return (message.offset() or 0) >= end
    if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
        raise RetentionOverrun(
            f"{partition}: records were deleted while they were being audited.",
            safe="An audit changes nothing.",
            command="landonce verify {file}   (again: it begins where the topic begins now)",
        )
    if error.fatal() or not error.retriable():
        raise SourceUnavailable(f"Kafka: {error.str()}")
    return False


_BY_OTHERS = (Code.UNKNOWN_SCHEMA, Code.NO_TABLE)
"""Letters for what is neither in the file nor in a table: a schema that the registry lacked, a table that did not exist."""


class LetterOffsets:
    """The offsets of dead letters, per partition: one pass over the files, eight bytes for each letter. Topics are labels. `judgement`: what
    the present file and tables judge by (`Recipe.judgement`); empty if that is not known.

    With `dedup`, there are two folders: the letters of records that could not be accepted, and those of events that could not land.
    """

    def __init__(self, folders: Sequence[Path], pipeline: str, labels: Collection[str], judgement: str = "") -> None:
        everything, refusals, otherwise = (_Offsets() for _ in range(3))
        for folder in folders:
            for letter, is_refused in with_refusals(folder, pipeline):
                if letter["topic"] not in labels:
                    continue
                everything.add(letter)
                if is_refused:
                    refusals.add(letter)
                elif judgement and (
                    letter.get("fingerprint") not in (None, "", judgement) or reason_of(letter).code in _BY_OTHERS
                ):
                    otherwise.add(letter)
        self._counted = {partition: CountedOffsets.of(offsets) for partition, offsets in everything.found().items()}
        self._refused, self._otherwise = refusals.found(), otherwise.found()

    def of(self, partition: Partition) -> CountedOffsets:
        return self._counted.get(partition, CountedOffsets.none())

    def refused(self, partition: Partition) -> Offsets:
        """The records that the target itself refused. Nothing else could predict that."""
        return self._refused.get(partition, np.empty(0, np.int64))

    def judged_otherwise(self, partition: Partition) -> Offsets:
        """The records that became letters by another file, by other columns, or for lack of a schema or a table: they may land by now."""
        return self._otherwise.get(partition, np.empty(0, np.int64))


def late_letters(folder: Path, pipeline: str, labels: Collection[str], before: int) -> dict[Partition, Offsets]:
    """The records that came too late to be accepted, and are as old as such a record is: with a timestamp before this one."""
    late = _Offsets()
    for each in committed(folder, pipeline):
        if each["topic"] in labels and each["reason"] == LATE and int(each["timestamp"] or 0) < before:
            late.add(each)
    return late.found()


class _Offsets:
    """Of letters, by partition."""

    def __init__(self) -> None:
        self._partitions: dict[Partition, array[int]] = defaultdict(lambda: array("q"))

    def add(self, letter: Mapping[str, Any]) -> None:
        self._partitions[Partition(letter["topic"], int(letter["partition"]))].append(int(letter["offset"]))

    def found(self) -> dict[Partition, Offsets]:
        return {partition: np.frombuffer(offsets, np.int64) for partition, offsets in self._partitions.items()}
