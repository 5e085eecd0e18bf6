"""What a store gives out when something goes wrong inside of a poll, with a consumer and a handler that a test directs.

The oracle is what a user does: collect records over several polls, drop those of a partition when `Fenced` says so, save the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicCollection, TopicPartition
from confluent_kafka.admin import TopicDescription

from landonce import errors
from landonce.consumer import claims as claiming
from landonce.consumer.claims import BrokerExtent, Claims
from landonce.consumer.offsets import OffsetStep, Stored
from landonce.consumer.options import settings
from landonce.consumer.store import OffsetStore, PollClock
from landonce.protocol.ranges import Partition

P, Q, OTHER = Partition("t", 0), Partition("t", 1), Partition("u", 0)
END = 40


class Offsets:
    """A handler in memory, which may be away."""

    def __init__(self) -> None:
        self.stored = {P: 10, Q: 0, OTHER: 0}
        self.away = False
        self._epochs = {P: 0, Q: 0, OTHER: 0}

    def initialize(self, group: str) -> None: ...

    def load(
        self, _: str, partitions: Collection[Partition], held: Mapping[Partition, Stored] | None = None
    ) -> dict[Partition, Stored]:
        if self.away:
            raise errors.LedgerUnavailable("away")
        found = {}
        for each in partitions:
            if held is None or held[each].epoch == self._epochs[each]:
                self._epochs[each] += 1
                found[each] = Stored(self.stored[each], self._epochs[each], "me", "id")
        return found

    def save(self, _: str, steps: Mapping[Partition, OffsetStep], transaction: dict[Partition, int]) -> None:
        for each, step in steps.items():
            assert (step.epoch, step.previous) == (self._epochs[each], self.stored[each])
            transaction[each] = step.offset

    @contextmanager
    def transaction(self) -> Iterator[dict[Partition, int]]:
        changed: dict[Partition, int] = {}
        yield changed
        self.stored.update(changed)


class Topics:
    id = "id"

    def ids(self, names: Collection[str], patience: float) -> dict[str, str]:
        return dict.fromkeys(names, self.id)

    def extents(self, partitions: Collection[Partition]) -> dict[Partition, BrokerExtent]:
        return {each: BrokerExtent("id", 0, 1000) for each in partitions}

    def committed(self, _: str, partitions: Collection[Partition]) -> dict[Partition, int]:
        return {}


class Client:
    """A consumer. Callbacks run at the end of a poll, when it has read; if one raises, what it has read is gone, as with the real one."""

    def __init__(self) -> None:
        self.at: dict[Partition, int] = {}
        self.callbacks: list[Callable[[], None]] = []
        self._paused: set[Partition] = set()

    def incremental_assign(self, assigned: list[TopicPartition]) -> None:
        self.at |= {Partition(each.topic, each.partition): max(each.offset, 0) or END for each in assigned}

    def pause(self, partitions: list[TopicPartition]) -> None:
        self._paused |= {Partition(each.topic, each.partition) for each in partitions}

    def resume(self, partitions: list[TopicPartition]) -> None:
        self._paused -= {Partition(each.topic, each.partition) for each in partitions}

    def seek(self, target: TopicPartition) -> None:
        self.at[Partition(target.topic, target.partition)] = target.offset

    def consumer_group_metadata(self) -> bytes:
        return b""

    def consume(self, count: int, _: float) -> list[Message]:
        found = []
        for each in self.at.keys() - self._paused:
            for offset in range(self.at[each], min(self.at[each] + count, END)):
                found.append(Message(topic=each.topic, partition=each.number, offset=offset, value=b""))
                self.at[each] = offset + 1
        callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            callback()
        return found


class User:
    """Collects records of P until there are enough, and saves them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(claiming, "_TRY_AGAIN", 0.01)
        self.offsets, self.client = Offsets(), Client()
        chosen = settings(
            {"group.id": "g", "partition.assignment.strategy": "cooperative-sticky"}, commit_to_kafka="off"
        )
        self.store = OffsetStore.__new__(OffsetStore)
        parts: dict[str, Any] = {"_consumer": self.client, "_handler": self.offsets, "_settings": chosen}
        self.topics = Topics()
        self.claims = Claims(self.client, self.offsets, self.topics, chosen)  # type: ignore[arg-type]
        for name, part in (parts | {"_claims": self.claims, "_clock": PollClock(300_000, 45_000)}).items():
            setattr(self.store, name, part)
        self.assigned(P)
        self.in_hand: list[int] = []

    def assigned(self, partition: Partition) -> None:
        self.claims.on_assign(self.client, [TopicPartition(partition.topic, partition.number)])  # type: ignore[arg-type]

    def poll(self) -> None:
        try:
            found = self.store.consume(5)
        except errors.Fenced:
            self.in_hand = []
        except errors.Transient:
            pass
        else:
            self.in_hand += [each.offset() or 0 for each in found if each.partition() == P.number]

    def saves(self, count: int) -> list[int]:
        until = time.monotonic() + 20
        while len(self.in_hand) < count:
            assert time.monotonic() < until
            self.poll()
        with self.store.transaction() as transaction:
            self.store.save_many({P: self.in_hand[-1] + 1}, transaction)
        return self.in_hand


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> User:
    return User(monkeypatch)


def test_what_was_read_when_a_callback_raised_is_not_skipped(user: User) -> None:
    def raising() -> None:
        raise KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN))

    user.client.callbacks = [raising]
    assert user.saves(10) == list(range(10, 20))
    assert user.offsets.stored[P] == 20


@pytest.mark.parametrize(
    "failure",
    [errors.SourceRefused("the brokers refuse to describe the topic"), KafkaException(KafkaError(KafkaError._STATE))],
)
def test_what_was_read_when_the_brokers_would_not_describe_the_topic_is_not_skipped(
    user: User, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    """The right to describe a topic may be taken away and given back while records are read."""

    def refuse(names: Collection[str], patience: float) -> dict[str, str]:
        raise failure

    with monkeypatch.context() as patched:
        patched.setattr(user.topics, "ids", refuse)
        with pytest.raises((errors.SourceRefused, errors.SourceUnavailable)):
            user.store.consume(5)
    assert user.saves(10) == list(range(10, 20))
    assert user.offsets.stored[P] == 20


def test_a_partition_that_cannot_be_claimed_brings_nothing_again_of_another(user: User) -> None:
    def failing() -> None:
        user.offsets.away = True
        user.assigned(Q)
        user.offsets.away = False

    user.poll()
    assert user.in_hand == [10, 11, 12, 13, 14]
    user.client.callbacks = [failing]
    assert user.saves(15) == list(range(10, 25))


def test_records_in_hand_are_dropped_where_their_partition_is_claimed_only_later(user: User) -> None:
    """It was taken away and given back, and others may have done a part of them."""

    def given_back() -> None:
        user.claims.on_revoke(user.client, [TopicPartition(P.topic, P.number)])  # type: ignore[arg-type]
        user.client.at.pop(P)
        user.offsets.away = True
        user.assigned(P)
        user.offsets.away = False

    user.poll()
    user.client.callbacks = [given_back]
    assert user.saves(15) == list(range(10, 25))


def test_records_in_hand_are_dropped_where_others_have_done_them(user: User) -> None:
    """All of them: the partition comes back where they end, and nothing of it would come again."""

    def given_back() -> None:
        user.claims.on_revoke(user.client, [TopicPartition(P.topic, P.number)])  # type: ignore[arg-type]
        user.client.at.pop(P)
        user.offsets.stored[P] = 15
        user.assigned(P)

    user.poll()
    user.client.callbacks = [given_back]
    assert user.saves(10) == list(range(15, 25))


def polls(user: User) -> None:
    for _ in range(20):
        user.store.consume(5)
        time.sleep(0.1)


def test_a_topic_made_anew_is_noticed_after_its_last_record_too(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its records came between two looks, and no other follows them."""
    monkeypatch.setattr(claiming, "_LOOK_AGAIN", 0.2)
    user.poll()
    user.topics.id = "another"
    user.client.at[P] = END
    user.claims.unseen = True
    with pytest.raises(errors.TopicRecreated):
        polls(user)
    assert P not in user.store.assignment()


class Admin:
    """Describes these topics, and no other."""

    def __init__(self, ids: dict[str, str]) -> None:
        self.ids = ids

    def describe_topics(self, asked: TopicCollection, request_timeout: float) -> dict[str, Future[TopicDescription]]:
        del request_timeout
        return {name: self._described(name) for name in asked.topic_names}

    def _described(self, name: str) -> Future[TopicDescription]:
        found = Future[TopicDescription]()
        if name in self.ids:
            found.set_result(SimpleNamespace(topic_id=self.ids[name]))  # type: ignore[arg-type]
        else:
            found.set_exception(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
        return found


def test_a_topic_that_is_missing_hides_no_other_that_was_recreated(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """And once there is one of its name again, that is noticed, too, though no record comes after."""
    monkeypatch.setattr(claiming, "_LOOK_AGAIN", 0.01)
    topics, admin = claiming.BrokerTopics({}), Admin({"u": "another"})
    monkeypatch.setattr(topics, "_admin", admin)
    monkeypatch.setattr(user.topics, "ids", topics.ids)
    user.assigned(OTHER)
    user.client.at[P] = END
    user.claims.unseen = True
    with pytest.raises(errors.TopicRecreated, match="topic 'u'"):
        polls(user)
    assert user.claims.held.keys() == {P}, "nothing is known of the topic that is missing"
    user.claims._waiting.clear()
    admin.ids = {"t": "another"}
    with pytest.raises(errors.TopicRecreated, match="topic 't'"):
        polls(user)
    with pytest.raises(errors.TopicMissing, match="'u'"):
        topics.extents([OTHER])
