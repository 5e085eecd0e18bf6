"""The partitions of one consumer: claimed when Kafka assigns them, rewound when their records must be read again.

If a partition is assigned and cannot be claimed, it is paused, and later polls try again. Its offsets may be
unreachable for a moment, or another consumer may have taken the fence last, because it does not know yet that Kafka
removed it. The offset to start from comes from the stored offset and the brokers; records are never skipped silently.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from concurrent import futures
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from landonce.clock import now
from landonce.consumer.offsets import (
    Holding,
    OffsetHandler,
    OffsetStep,
    Stored,
    came_back,
    in_doubt,
    origin_of,
    unsettled,
)
from landonce.consumer.options import ConsumerSettings, Start
from landonce.errors import (
    Halt,
    PositionBeyondEnd,
    RetentionOverrun,
    SourceRefused,
    SourceUnavailable,
    TopicMissing,
    TopicRecreated,
)
from landonce.protocol.ranges import Partition
from landonce.read.kafka.broker import committed, known_offset

T = TypeVar("T")
_ANSWER_SECONDS = 10.0
_NOTHING = "Nothing was read or skipped."
_REFUSALS = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._AUTHENTICATION,
    KafkaError._FATAL,
    KafkaError.FENCED_INSTANCE_ID,
)


@dataclass(frozen=True)
class BrokerExtent:
    """One partition, as the brokers know it."""

    topic_id: str
    first: int
    end: int


def start_of(partition: Partition, stored: Stored, extent: BrokerExtent, committed: int | None, start: Start) -> int:
    """The offset to read from, or a named error that says why there is none."""
    offset = stored.offset if stored.offset is not None else committed
    if offset is None:
        return extent.first if start == "earliest" else extent.end
    by_hand = _by_hand(partition)
    if stored.offset is not None and stored.topic_id not in ("", extent.topic_id):
        raise recreated(partition, stored.topic_id, extent.topic_id)
    if offset < extent.first:
        raise RetentionOverrun(
            f"{partition}: the next offset to read is {offset}, and the topic now begins at {extent.first}.",
            safe=_NOTHING,
            command=by_hand,
        )
    if offset > extent.end:
        raise PositionBeyondEnd(
            f"{partition}: the next offset to read is {offset}, and the topic ends at {extent.end}.",
            safe=_NOTHING,
            command=by_hand,
        )
    return offset


def recreated(partition: Partition, stored: str, found: str, safe: str = _NOTHING) -> TopicRecreated:
    return TopicRecreated(
        f"topic {partition.topic!r} is not the one whose offsets are stored: it was deleted and created again, or "
        f"these brokers are another cluster (stored id {stored}, now {found}).",
        safe=safe,
        command=_by_hand(partition),
    )


def _by_hand(partition: Partition) -> str:
    return f"handler.reset(group, {{{partition!r}: OFFSET}}), with the offset to continue from"


def _missing(topic: str) -> TopicMissing:
    return TopicMissing(f"topic {topic!r} does not exist.", safe=_NOTHING, command="create the topic")


def named(error: KafkaError, topic: str = "") -> SourceUnavailable | Halt:
    """Kafka's error as an error of landonce."""
    if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return _missing(topic)
    if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
        return RetentionOverrun(
            f"topic {topic!r}: records were deleted before they were read ({error.str()}).",
            safe="Nothing was skipped.",
            command="handler.reset(group, {Partition(topic, number): OFFSET}), with the offset to continue from",
        )
    if error.code() in _REFUSALS or error.fatal():
        return SourceRefused(
            f"Kafka refused: {error.str()}.",
            safe="Nothing was skipped.",
            command="fix what Kafka names, then create a new OffsetStore",
        )
    return SourceUnavailable(f"Kafka: {error.str()}.")


class BrokerTopics:
    """Asks the brokers through an admin client, apart from the consumer and its group."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = {"log_level": 2, **config}
        self._admin = AdminClient(self._config)

    def extents(self, partitions: Collection[Partition]) -> dict[Partition, BrokerExtent]:
        topics = {each.topic for each in partitions}
        ids = self.ids(topics)
        if missing := sorted(topics - ids.keys()):
            raise _missing(missing[0])
        firsts, ends = self._offsets(partitions, OffsetSpec.earliest()), self._offsets(partitions, OffsetSpec.latest())
        return {each: BrokerExtent(ids[each.topic], firsts[each], ends[each]) for each in partitions}

    def ids(self, names: Collection[str], patience: float = _ANSWER_SECONDS) -> dict[str, str]:
        """Of those of the topics that exist."""
        if not names:
            return {}
        described = self._admin.describe_topics(TopicCollection(sorted(names)), request_timeout=patience)
        found = {}
        for name, future in described.items():
            with suppress(TopicMissing):
                found[name] = str(_answer(future, name).topic_id)
        return found

    def committed(self, group: str, partitions: Collection[Partition]) -> dict[Partition, int]:
        """The offsets that the group has committed to Kafka, if any."""
        try:
            return committed(group, partitions, self._config, timeout=_ANSWER_SECONDS)
        except KafkaException as error:
            raise named(error.args[0]) from None

    def _offsets(self, partitions: Collection[Partition], spec: OffsetSpec) -> dict[Partition, int]:
        specs = {TopicPartition(each.topic, each.number): spec for each in partitions}
        found = self._admin.list_offsets(specs, request_timeout=_ANSWER_SECONDS)
        return {
            (where := Partition(each.topic, each.partition)): known_offset(_answer(future, each.topic), where)
            for each, future in found.items()
        }


def _answer(future: Future[T], topic: str = "") -> T:
    try:
        return future.result(timeout=_ANSWER_SECONDS * 2)
    except KafkaException as error:
        raise named(error.args[0], topic) from None
    except (TimeoutError, futures.TimeoutError):
        raise SourceUnavailable("Kafka did not answer in time.") from None


_TRY_AGAIN = 1.0
_LOOK_AGAIN = 1.0
_NO_MORE = "Nothing more of it is read. What was read within the last second may be of the new topic."


class Claims:
    """Keeps the state of each partition. Only the consumer's thread may use it."""

    def __init__(
        self, consumer: Consumer, handler: OffsetHandler, topics: BrokerTopics, chosen: ConsumerSettings
    ) -> None:
        self._consumer = consumer
        self._handler = handler
        self._topics = topics
        self._settings = chosen
        self.held: dict[Partition, Holding] = {}
        self.back: set[Partition] = set()
        """Must go back to the stored offset before the next poll."""
        self.unread: set[Partition] = set()
        """Read by the client and not given out: must go back to the record that was given out last."""
        self.trouble: Exception | None = None
        """The error that a callback found; the poll that called it raises it."""
        self._left: set[Partition] = set()
        """Revoked while the user may have held records of them."""
        self._waiting: dict[Partition, float] = {}
        """Assigned by Kafka and not claimed; the next attempt comes at this time."""
        self.unseen = False
        """Records have come since the topic ids were last checked."""
        self._look_after = 0.0

    def open_ends(self) -> list[Partition]:
        """Saved in a transaction whose end was not reported to this store."""
        return [each for each, holding in self.held.items() if holding.unsettled and each not in self.back]

    def ahead(self) -> list[Partition]:
        """Partitions with records that were given out and are not known to be saved."""
        return [each for each, holding in self.held.items() if holding.ahead]

    def settle(self) -> None:
        """Before a poll: moves every partition to the offset to continue from."""
        if open_ends := self.open_ends():
            raise unsettled(open_ends)
        if self.back:
            self._go_back()
        for each in sorted(self.unread):
            if each in self.held:
                self._move(each, self.held[each].given)
            self.unread.discard(each)
        if due := [each for each, moment in self._waiting.items() if moment <= now()]:
            self._try_again(due)

    def on_assign(self, consumer: Consumer, assigned: list[TopicPartition]) -> None:
        """The consumer calls this, and `on_revoke`, inside a poll. It must assign even after an error."""
        partitions = [Partition(each.topic, each.partition) for each in assigned]
        starts: dict[Partition, int] = {}
        try:
            starts = self._claim(partitions) if partitions else {}
        except Exception as failure:
            self.trouble = failure
        for each in assigned:
            each.offset = starts.get(Partition(each.topic, each.partition), OFFSET_END)
        (consumer.incremental_assign if self._settings.incremental else consumer.assign)(assigned)
        self._put_aside((each for each in partitions if each not in starts), _TRY_AGAIN)
        self._notice(starts)

    def on_revoke(self, _: Consumer, revoked: list[TopicPartition]) -> None:
        """Also called for lost partitions."""
        for each in revoked:
            partition = Partition(each.topic, each.partition)
            self._leave(partition)
            self.back.discard(partition)
            self._waiting.pop(partition, None)

    def broken(self, partition: Partition, trouble: Exception) -> None:
        """The consumer no longer reads this partition. Claiming it again raises the error as long as it persists."""
        self.trouble = trouble
        if partition in self.held:
            self._let_go(partition, _TRY_AGAIN)

    def look(self) -> None:
        """Checks topic ids after records have come: librdkafka reads a recreated topic from the old offset.

        It checks at most once a second, so a recreated topic may go unnoticed that long. After brokers did not answer,
        it waits longer. While a topic is missing, it goes on checking: records of another of that name may be read already.
        """
        if not self.unseen or now() < self._look_after:
            return
        self._look_after = now() + 10 * _LOOK_AGAIN
        topics = {each.topic for each in self.held}
        try:
            ids = self._topics.ids(topics, patience=2 * _LOOK_AGAIN)
        except SourceUnavailable:
            return
        self.unseen, self._look_after = topics != ids.keys(), now() + _LOOK_AGAIN
        for each, holding in list(self.held.items()):
            found = ids.get(each.topic, holding.fence.topic_id)
            if holding.fence.topic_id != found:
                self.broken(each, recreated(each, holding.fence.topic_id, found, _NO_MORE))

    def _claim(self, partitions: list[Partition]) -> dict[Partition, int]:
        """Takes the fences first, and only then reads the ends of the topics."""
        group = self._settings.group
        stored = self._handler.load(group, partitions)
        extents = self._topics.extents(partitions)
        new = [each for each in partitions if stored[each].offset is None]
        committed = self._topics.committed(group, new) if new and self._settings.offset_not_found == "use_kafka" else {}
        starts = {
            each: start_of(each, stored[each], extents[each], committed.get(each), self._settings.start)
            for each in partitions
        }
        if new:
            # Store the start before anything is read: after a crash, `latest` must not mean a later offset.
            mine = origin_of(self._consumer.consumer_group_metadata())
            steps = {
                each: OffsetStep(
                    None, starts[each], stored[each].epoch, stored[each].owner, extents[each].topic_id, mine
                )
                for each in new
            }
            with self._handler.transaction() as transaction:
                self._handler.save(group, steps, transaction)
            stored = {**stored, **{each: replace(stored[each], origin=mine) for each in new}}
        for each in partitions:
            fence = replace(stored[each], offset=starts[each], topic_id=extents[each].topic_id)
            self.held[each] = Holding(fence, starts[each], starts[each], origin=fence.origin)
        return starts

    def _go_back(self) -> None:
        """Renews the fence only if it is still ours: a zombie must not take it from the new owner.

        Renewing waits for our own transaction whose end is unknown, or makes it fail.
        """
        fences = {each: self.held[each].fence for each in self.back}
        renewed = self._handler.load(self._settings.group, sorted(fences), fences)
        for each in fences:
            stored = renewed.get(each)
            if stored is None or stored.offset is None:
                self._let_go(each, self._settings.session_ms / 3000)
            else:
                fence = replace(stored, topic_id=self.held[each].fence.topic_id)
                self.held[each] = Holding(fence, stored.offset, stored.offset, origin=stored.origin)
                self._move(each, stored.offset)
            self.back.discard(each)

    def _try_again(self, due: list[Partition]) -> None:
        self._waiting |= dict.fromkeys(due, now() + _TRY_AGAIN)
        starts = self._claim(due)
        self._notice(starts)
        for each in due:
            if self._move(each, starts[each]):
                del self._waiting[each]
                self._consumer.resume([TopicPartition(each.topic, each.number)])

    def _move(self, partition: Partition, offset: int) -> bool:
        """Moves a held partition to `offset`. If that fails now, the partition is released and waits."""
        target = TopicPartition(partition.topic, partition.number, offset)
        try:
            self._consumer.seek(target)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._STATE:
                raise named(error.args[0], partition.topic) from error
        else:
            return True
        try:
            self._assign_again(target)
        except KafkaException:
            self._let_go(partition, _TRY_AGAIN)
            return False
        return True

    def _assign_again(self, target: TopicPartition) -> None:
        """librdkafka cannot seek in a partition that it stopped reading."""
        if self._settings.incremental:
            self._consumer.incremental_unassign([target])
            self._consumer.incremental_assign([target])
            return
        assigned = self._consumer.assignment()
        for each in assigned:
            holding = self.held.get(Partition(each.topic, each.partition))
            each.offset = OFFSET_END if holding is None else holding.given
        self._consumer.assign(assigned)

    def _let_go(self, partition: Partition, seconds: float) -> None:
        self._leave(partition)
        self._put_aside([partition], seconds)

    def _leave(self, partition: Partition) -> None:
        """Releases the partition. The user may hold records of it, unless they come again anyway."""
        holding = self.held.pop(partition, None)
        if holding is not None and holding.ahead and partition not in self.back:
            self._left.add(partition)

    def _notice(self, claimed: Collection[Partition]) -> None:
        """The user must drop held records. This comes before any other error, which will be found again."""
        if doubtful := in_doubt(self._left, self.held):
            self.trouble = came_back(doubtful)
        self._left -= set(claimed)

    def _put_aside(self, partitions: Iterable[Partition], seconds: float) -> None:
        """Pauses them. If another consumer has the fence, the pause lasts until it knows that Kafka removed it."""
        aside = dict.fromkeys(partitions, now() + seconds)
        if aside:
            self._waiting |= aside
            self._consumer.pause([TopicPartition(each.topic, each.number) for each in aside])
