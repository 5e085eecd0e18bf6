"""A Kafka consumer whose offsets live beside its results.

assigned    `load` takes the partition's fence, waits for an older owner's open transaction, and returns the start
polled      records are given out, in order, from there
saved       offset and fence are compared and set in the user's transaction
ended       committed: the store tells Kafka, for lag dashboards only. Rolled back, or unknown: before the next poll
            the store renews the fence, which waits for what may still run, and the partitions go back to the
            stored offset
revoked     the store refuses a save for the partition without asking the handler; the fence decides about a save
            in an open transaction
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from landonce.clock import now
from landonce.consumer.claims import BrokerTopics, Claims, named
from landonce.consumer.offsets import (
    Holding,
    OffsetHandler,
    OffsetOrigin,
    committed_without,
    forgotten,
    next_offsets,
    not_held,
    origin_of,
    place,
    runs,
    unsettled,
)
from landonce.consumer.options import (
    ConsumerSettings,
    check_foreign,
    check_metadata,
    check_topics,
    client_config,
    consumer_config,
    settings,
    unsubscribed,
)
from landonce.errors import OffsetStoreExpired
from landonce.protocol.ranges import Partition

_LOG = logging.getLogger("landonce.consumer")
_PASSING = (KafkaError._MAX_POLL_EXCEEDED, KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT)


class OffsetStore:
    """Created by `connect` or `subscribe`. For use by one thread, as a consumer's loop is."""

    def __init__(
        self, consumer: Consumer, handler: OffsetHandler, config: Mapping[str, Any], chosen: ConsumerSettings
    ) -> None:
        self._consumer = consumer
        self._handler = handler
        self._settings = chosen
        self._clock = PollClock(chosen.poll_ms, chosen.session_ms)
        self._claims = Claims(consumer, handler, BrokerTopics(client_config(config)), chosen)

    @classmethod
    def connect(
        cls,
        config: Mapping[str, Any],
        topics: Sequence[str],
        handler: OffsetHandler,
        *,
        offset_not_found: str = "use_kafka",
        commit_to_kafka: str = "async",
        timeout_check: bool = True,
    ) -> OffsetStore:
        """Creates the consumer from its configuration, and subscribes it. A topic that begins with `^` is a regular expression: all topics
        that match, also those that appear later.

        `auto.offset.reset` is the start of a partition without any offset: `earliest` by default, or `latest`. A
        partition with an offset never skips records.
        """
        check_topics(topics)
        chosen = settings(
            config, offset_not_found=offset_not_found, commit_to_kafka=commit_to_kafka, timeout_check=timeout_check
        )
        store = cls(Consumer(consumer_config(config)), handler, config, chosen)
        try:
            return store._start(topics)
        except BaseException:
            store._consumer.close()
            raise

    @classmethod
    def subscribe(
        cls,
        consumer: Consumer,
        topics: Sequence[str],
        handler: OffsetHandler,
        *,
        config: Mapping[str, Any],
        offset_not_found: str = "use_kafka",
        commit_to_kafka: str = "async",
        timeout_check: bool = True,
    ) -> OffsetStore:
        """For an existing consumer. `config` must be the configuration that it was created with."""
        check_foreign(config)
        check_topics(topics)
        chosen = settings(
            config, offset_not_found=offset_not_found, commit_to_kafka=commit_to_kafka, timeout_check=timeout_check
        )
        return cls(consumer, handler, config, chosen)._start(topics)

    def _start(self, topics: Sequence[str]) -> OffsetStore:
        self._handler.initialize(self._settings.group)
        claims = self._claims
        try:
            self._consumer.subscribe(
                list(topics), on_assign=claims.on_assign, on_revoke=claims.on_revoke, on_lost=claims.on_revoke
            )
        except KafkaException as error:
            raise unsubscribed(topics, error.args[0].str()) from None
        self._clock.start()
        return self

    def __enter__(self) -> OffsetStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leaves the group."""
        self._clock.stop()
        self._consumer.close()

    # Reading.

    def poll(self, timeout: float = 1.0) -> Message | None:
        """Like the consumer's own. Errors are raised by name; only the end of a partition comes as a message."""
        given = self._fetch(lambda: [self._consumer.poll(timeout)])
        return given[0] if given else None

    def consume(self, count: int = 500, timeout: float = 1.0) -> list[Message]:
        """Like the consumer's own, with the same treatment of errors."""
        return self._fetch(lambda: self._consumer.consume(count, timeout))

    def assignment(self) -> dict[Partition, int]:
        """The held partitions, each with the next offset after the saved ones."""
        return {each: holding.saved for each, holding in self._claims.held.items()}

    def origins(self) -> dict[Partition, OffsetOrigin]:
        """The held partitions, each with who saved its offset last, and the text that was given then."""
        return {each: holding.origin for each, holding in self._claims.held.items()}

    def remaining_ms(self) -> int:
        """Milliseconds before Kafka may give the partitions to another consumer; `OffsetStoreExpired` after that."""
        left = self._clock.remaining_ms()
        if left <= 0:
            raise OffsetStoreExpired(
                f"the last poll was too long ago, or this process did not run: {-left} ms past the limit "
                f"(max.poll.interval.ms={self._settings.poll_ms}, session.timeout.ms={self._settings.session_ms}).",
                safe="Nothing of an open transaction may be committed: roll it back.",
                command="drop the records that you hold, and continue to poll",
            )
        return left

    def _fetch(self, ask: Callable[[], Sequence[Message | None]]) -> list[Message]:
        claims = self._claims
        claims.settle()
        try:
            try:
                found = [each for each in ask() if each is not None]
            finally:
                self._clock.polled()
            claims.unseen |= bool(found)
            claims.look()
        except BaseException as error:
            # What the client has read is not given out: a callback, perhaps one of the user's, or the look at the topics may have raised.
            claims.unread |= claims.held.keys()
            if isinstance(error, KafkaException):
                raise named(error.args[0]) from error
            raise
        before = dict(claims.held)
        if any(map(Message.error, found)):
            given = [each for each in found if (self._passes(each) if each.error() else self._give([each]))]
        else:
            given = self._give(found)
        if claims.trouble is None:
            return given
        # The records of this poll are not given out, so they must come again. The user still holds earlier ones.
        again = {place(each) for each in found if each.error() is None} & claims.held.keys()
        claims.held.update({each: before[each] for each in again})
        claims.unread |= again
        trouble, claims.trouble = claims.trouble, None
        raise trouble

    def _give(self, messages: list[Message]) -> list[Message]:
        """The messages of held partitions, from their positions on."""
        given: list[Message] = []
        for partition, run in runs(messages):
            holding = self._claims.held.get(partition)
            if holding is not None:
                self._claims.held[partition], kept = holding.give(run)
                given += kept
        return given

    def _passes(self, event: Message) -> bool:
        """True for the end of a partition, which the user sees. Lasting errors are noted; others pass."""
        error, partition = event.error(), place(event)
        assert error is not None
        if error.code() == KafkaError._PARTITION_EOF:
            return True
        if error.code() not in _PASSING and not error.retriable():
            self._claims.broken(partition, named(error, partition.topic))
        return False

    # Saving.

    def save(self, message: Message, transaction: Any, *, metadata: str = "") -> None:
        """Saves that the message's partition is done up to this message, if the transaction commits. `metadata`: a text that is stored
        beside the offset, sent to Kafka with it, and given back by `origins`."""
        self.save_many([message], transaction, metadata=metadata)

    def save_many(
        self, done: Sequence[Message] | Mapping[Partition, int], transaction: Any, *, metadata: str = ""
    ) -> None:
        """The same for many: messages, or the next offset of each partition."""
        check_metadata(metadata)
        offsets = dict(done) if isinstance(done, Mapping) else next_offsets(list(done))
        held = self._claims.held
        if missing := offsets.keys() - (held.keys() - self._claims.back):
            raise not_held(missing)
        if self._settings.timeout_check:
            self.remaining_ms()
        origin = origin_of(self._consumer.consumer_group_metadata(), metadata)
        steps = {each: held[each].step(each, offset, origin) for each, offset in offsets.items()}
        self._handler.save(self._settings.group, steps, transaction)
        held.update({each: held[each].save(offset, origin) for each, offset in offsets.items()})

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """A transaction of the handler: commits at the end and tells Kafka; an exception rolls back and rewinds.

        If records were given out and none is saved in it, it does not commit: its results would come twice.
        """
        if open_ends := self._claims.open_ends():
            raise unsettled(open_ends)
        try:
            with self._handler.transaction() as transaction:
                yield transaction
                if not self._claims.open_ends() and (ahead := self._claims.ahead()):
                    raise forgotten(ahead)
        except BaseException:
            self.rewind()
            raise
        self.committed()

    def committed(self) -> None:
        """Call this after you committed a transaction of your own, and only then."""
        held = self._claims.held
        moved = [each for each, holding in held.items() if holding.unsettled]
        if not moved and (ahead := self._claims.ahead()):
            raise committed_without(ahead)
        held.update({each: held[each].commit() for each in moved})
        if moved and self._settings.commit_to_kafka != "off":
            self._tell_kafka([_committed(each, held[each]) for each in moved])

    def rewind(self) -> None:
        """Call this after a transaction of your own was rolled back, or if its end is unknown.

        Before the next poll the store loads the stored offset and reads from there: records that were given out and
        not saved come again.
        """
        held = self._claims.held.items()
        self._claims.back |= {each for each, holding in held if holding.unsettled or holding.ahead}

    def _tell_kafka(self, offsets: list[TopicPartition]) -> None:
        """For dashboards only: nothing is read from there while the handler has an offset. A failure is only logged."""
        try:
            if self._settings.commit_to_kafka == "async":
                self._consumer.commit(offsets=offsets, asynchronous=True)
            else:
                self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            _LOG.warning("Kafka did not accept the offsets; they are safe in their own store: %s", error.args[0].str())


def _committed(partition: Partition, holding: Holding) -> TopicPartition:
    return TopicPartition(partition.topic, partition.number, holding.saved, holding.origin.metadata)


Now = Callable[[], float]


class PollClock:
    """How long this consumer may assume that its partitions are its own.

    There are two limits. The poll limit, `max.poll.interval.ms`, counts from the end of the last poll, as in
    librdkafka. The session limit is not visible: librdkafka sends heartbeats in the background and does not report
    their answers. But a process that did not run cannot have sent any. A thread calls `beat` ten times per session; if
    the last beat is older than `session.timeout.ms`, the process was stopped, or the machine slept. This clock does not
    notice a network that lost the heartbeats of a running process. The fence covers that case; the clock only avoids
    useless work.
    """

    def __init__(self, poll_ms: int, session_ms: int, read: Now = now) -> None:
        self._poll = poll_ms / 1000
        self._session = session_ms / 1000
        self._now = read
        self._polled = self._beaten = read()
        self._longest = 0.0
        self._ended = threading.Event()

    def start(self) -> None:
        """Starts the beats, in a daemon thread."""
        threading.Thread(target=self._run, name="landonce-poll-clock", daemon=True).start()

    def stop(self) -> None:
        self._ended.set()

    def beat(self) -> None:
        moment = self._now()
        self._longest = max(self._longest, moment - self._beaten)
        self._beaten = moment

    def polled(self) -> None:
        """A poll has returned: partitions lost before it are known by now, or the fence finds them."""
        self._polled = self._beaten = self._now()
        self._longest = 0.0

    def remaining_ms(self) -> int:
        """Milliseconds until the nearer limit; 0 or less when it has passed."""
        moment = self._now()
        silent = max(self._longest, moment - self._beaten)
        left = min(self._poll - (moment - self._polled), self._session - silent)
        return int(left * 1000)

    def _run(self) -> None:
        while not self._ended.wait(self._session / 10):
            self.beat()
