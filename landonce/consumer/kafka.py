"""Offsets in a compacted Kafka topic, saved in the Kafka transaction that writes the results.

The fence is Kafka's own. Every source partition has a producer with its own `transactional.id`, and `load` calls
`init_transactions`. Kafka then ends the open transaction of an older producer with that id (a commit under way is
finished first) and refuses everything that producer sends afterwards. Then `load` reads the offsets topic to its end,
committed records only. So a zombie's results and offset are visible together before the new owner reads, or never.

Results and offset of one partition are one transaction. A block over several partitions has one transaction for each.
The guarantee needs no more, because a partition's offset covers only that partition's results.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType

from landonce.consumer.offsets import OffsetOrigin, OffsetStep, Stored, fenced, forgotten, place
from landonce.errors import ConfigError, LedgerUnavailable, SourceUnavailable
from landonce.protocol.ranges import Partition
from landonce.read.kafka.broker import known_offset

_PATIENCE = 90.0
"""Seconds. Longer than a transaction may stay open by default (60): a stopped consumer's blocks readers."""
_PAUSE = 0.2
_QUIET = {"log_level": 2}
_ORIGIN = frozenset(each.name for each in fields(OffsetOrigin))
"""What this landonce knows of an origin; a newer one may store more."""
_TOPIC = {"cleanup.policy": "compact", "segment.bytes": str(64 * 2**20)}
"""Kafka never compacts the last segment, and every assignment reads it: the default size is a gigabyte."""
_FENCED = (
    KafkaError._FENCED,
    KafkaError._FATAL,  # the answers to calls after the first `_FENCED`
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
)


class KafkaTransaction:
    """The open transactions of one block, one for each source partition that it touches."""

    def __init__(self, producers: Mapping[Partition, Producer], patience: float) -> None:
        self._producers = producers
        self._patience = patience
        self._open: dict[Partition, Producer] = {}
        self._saved: set[Partition] = set()

    def producer(self, source: Message | Partition) -> Producer:
        """The producer for the results of this record, or of this partition's records."""
        partition = source if isinstance(source, Partition) else place(source)
        if partition not in self._open:
            if partition not in self._producers:
                raise fenced(partition)
            self._open[partition] = self._producers[partition]
            self._open[partition].begin_transaction()
        return self._open[partition]

    def saving(self, partition: Partition) -> Producer:
        """The producer for the offset that goes with this partition's results."""
        self._saved.add(partition)
        return self.producer(partition)

    def commit(self) -> None:
        if without := self._open.keys() - self._saved:
            raise forgotten(without)
        for partition, producer in list(self._open.items()):
            producer.commit_transaction(self._patience)
            del self._open[partition]

    def abort(self) -> list[Partition]:
        """If the abort fails, Kafka aborts the transaction when the next owner comes, or by its timeout."""
        touched = sorted(self._open)
        for producer in self._open.values():
            with suppress(KafkaException):
                producer.abort_transaction(self._patience)
        self._open.clear()
        return touched


class KafkaOffsets:
    """One offsets topic of one partition, for any number of groups. An object serves one `OffsetStore`.

    `config` is for producers to the cluster of the results, which need not be the cluster of the source.
    """

    def __init__(
        self, config: Mapping[str, Any], *, topic: str = "landonce-offsets", patience: float = _PATIENCE
    ) -> None:
        self._config = {**_QUIET, **config}
        self._topic = topic
        self._patience = patience
        self._admin = AdminClient(self._config)
        self._group: str | None = None
        self._producers: dict[Partition, Producer] = {}
        self._owners: dict[Partition, str] = {}

    def initialize(self, group: str) -> None:
        if self._group is not None:
            raise ConfigError(
                "this KafkaOffsets already serves an OffsetStore.",
                safe="Nothing was changed.",
                command="make one KafkaOffsets for each OffsetStore",
            )
        self._group = group
        made = self._admin.create_topics([NewTopic(self._topic, 1, config=_TOPIC)])
        try:
            made[self._topic].result(timeout=self._patience)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise _unavailable(error) from error
        self._check_topic()

    @contextmanager
    def transaction(self) -> Iterator[KafkaTransaction]:
        """Turns Kafka's fencing errors into `Fenced`, also those of the user's own calls."""
        transaction = KafkaTransaction(self._producers, self._patience)
        try:
            yield transaction
            transaction.commit()
        except BaseException as failure:
            touched = transaction.abort()
            if isinstance(failure, KafkaException) and failure.args[0].code() in _FENCED:
                raise fenced(*touched) from failure
            raise

    def load(
        self, group: str, partitions: Collection[Partition], held: Mapping[Partition, Stored] | None = None
    ) -> dict[Partition, Stored]:
        if held is None:
            for partition in sorted(partitions):
                self._producers[partition] = self._new_producer(group, partition)
                self._owners[partition] = uuid.uuid4().hex
        wanted = [each for each in partitions if held is None or self._still_ours(each, held[each])]
        if not wanted:
            return {}
        found = self._read()
        return {each: _stored(found.get(_key(group, each)), self._owners[each]) for each in wanted}

    def save(self, group: str, steps: Mapping[Partition, OffsetStep], transaction: KafkaTransaction) -> None:
        for partition, step in steps.items():
            if self._owners.get(partition) != step.owner:
                raise fenced(partition)
            origin = asdict(step.origin)
            value = json.dumps(
                {"offset": step.offset, "epoch": step.epoch, "topic_id": step.topic_id, "origin": origin}
            )
            transaction.saving(partition).produce(self._topic, value, key=_key(group, partition), partition=0)

    def reset(self, group: str, offsets: Mapping[Partition, int | None]) -> None:
        for partition, offset in sorted(offsets.items()):
            producer = self._new_producer(group, partition)
            value = None if offset is None else json.dumps({"offset": offset, "epoch": 0, "topic_id": ""})
            try:
                producer.begin_transaction()
                producer.produce(self._topic, value, key=_key(group, partition), partition=0)
                producer.commit_transaction(self._patience)
            except KafkaException as error:
                raise _unavailable(error) from error

    # The topic and the producers.

    def _check_topic(self) -> None:
        """Retention by age would delete offsets; with two partitions the last record of a key is unknown.

        Waits until every broker knows a topic that was just created, and until it has a leader.
        """
        resource = ConfigResource(ResourceType.TOPIC, self._topic)
        deadline = time.monotonic() + self._patience
        while True:
            try:
                described = self._admin.describe_configs([resource])[resource].result(timeout=self._patience)
                listed = self._admin.list_topics(self._topic, timeout=self._patience).topics[self._topic]
                if listed.error is None:
                    policy, count = described["cleanup.policy"].value, len(listed.partitions)
                    break
                trouble = KafkaException(listed.error)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise _unavailable(error) from error
                trouble = error
            if time.monotonic() > deadline:
                raise _unavailable(trouble) from trouble
            time.sleep(_PAUSE)
        if policy != "compact" or count != 1:
            raise ConfigError(
                f"topic {self._topic!r} cannot keep offsets: it has {count} partitions and cleanup.policy={policy}.",
                safe="Nothing was changed.",
                command="name another topic; KafkaOffsets creates it, with one partition and cleanup.policy=compact",
            )

    def _new_producer(self, group: str, partition: Partition) -> Producer:
        """Fences every earlier producer of this group and partition, and returns when its transaction has ended.

        Topic names contain no slash, so two groups and partitions never share an id.
        """
        name = f"landonce-{group}/{partition.topic}/{partition.number}"
        producer = Producer({**self._config, "transactional.id": name})
        try:
            producer.init_transactions(self._patience)
        except KafkaException as error:
            raise _unavailable(error) from error
        return producer

    def _still_ours(self, partition: Partition, held: Stored) -> bool:
        """Sends an empty transaction: a producer learns that it is fenced only when it sends something."""
        if self._owners.get(partition) != held.owner:
            return False
        producer = self._producers[partition]
        try:
            producer.begin_transaction()
            producer.produce(self._topic, None, key=b"fence", partition=0)
            producer.flush(self._patience)
            producer.abort_transaction(self._patience)
        except KafkaException:
            return False
        return True

    def _read(self) -> dict[bytes, dict[str, Any]]:
        """The last committed value of every key, up to the end of the topic at the time of the call."""
        end = self._end()
        options = {**self._config, "group.id": f"landonce-{uuid.uuid4().hex}", "isolation.level": "read_committed"}
        options |= {"enable.auto.commit": False, "enable.partition.eof": True, "auto.offset.reset": "earliest"}
        consumer = Consumer(options)
        try:
            consumer.assign([TopicPartition(self._topic, 0, 0)])
            return self._read_to(end, consumer)
        finally:
            consumer.close()

    def _read_to(self, end: int, consumer: Consumer) -> dict[bytes, dict[str, Any]]:
        found: dict[bytes, dict[str, Any]] = {}
        deadline = time.monotonic() + self._patience
        reached = 0
        while reached < end:
            for message in consumer.consume(10_000, timeout=0.2):
                error, key, value = message.error(), message.key() or b"", message.value()
                if error is None:
                    found.pop(key, None)
                    if value is not None:
                        found[key] = json.loads(value)
                elif error.code() == KafkaError._PARTITION_EOF:
                    reached = message.offset() or 0
                elif not error.retriable():
                    raise _unavailable(KafkaException(error))
            if time.monotonic() > deadline:
                raise LedgerUnavailable(
                    f"topic {self._topic!r} could not be read to its end within {self._patience:g} s: a transaction of "
                    "another consumer is open.",
                    safe="Nothing was changed.",
                    command="poll again",
                )
        return found

    def _end(self) -> int:
        only = TopicPartition(self._topic, 0)
        offsets = self._admin.list_offsets(
            {only: OffsetSpec.latest()},
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            request_timeout=self._patience,
        )
        try:
            return known_offset(offsets[only].result(timeout=self._patience), Partition(self._topic, 0))
        except KafkaException as error:
            raise _unavailable(error) from error
        except SourceUnavailable as error:
            raise LedgerUnavailable(error.what, safe="Nothing was changed.", command="poll again") from None


def _key(group: str, partition: Partition) -> bytes:
    return json.dumps([group, partition.topic, partition.number]).encode()


def _stored(value: dict[str, Any] | None, owner: str) -> Stored:
    if value is None:
        return Stored(None, 1, owner)
    known = {name: each for name, each in value.get("origin", {}).items() if name in _ORIGIN}
    return Stored(value["offset"], value["epoch"] + 1, owner, value["topic_id"], OffsetOrigin(**known))


def _unavailable(error: KafkaException) -> LedgerUnavailable:
    return LedgerUnavailable(
        f"Kafka did not serve the offsets: {error.args[0].str()}.", safe="Nothing was changed.", command="poll again"
    )
