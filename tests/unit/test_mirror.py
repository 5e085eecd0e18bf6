"""The thread that copies positions to a consumer group: when it starts, ends and starts again."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from landonce.protocol.ranges import Partition
from landonce.read.kafka import mirror
from landonce.read.kafka.mirror import Mirror

PLACE = Partition("t", 0)


class Group:
    """What stands for Kafka: the offsets that were committed, and clients that close slowly, or that cannot be made."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.broken = self.away = 0
        self.may_close = threading.Event()

    def consumer(self, options: object, **more: object) -> Group:
        del options, more
        if self.broken:
            self.broken -= 1
            raise KafkaException(KafkaError(KafkaError._INVALID_ARG, "no such file"))
        return self

    def commit(self, offsets: list[TopicPartition], asynchronous: bool) -> None:
        del asynchronous
        if self.away:
            self.away -= 1
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer"))
        self.offsets += [each.offset for each in offsets]

    def close(self) -> None:
        assert self.may_close.wait(60)


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[Group]:
    made = Group()
    monkeypatch.setattr(mirror, "Consumer", made.consumer)
    monkeypatch.setattr(mirror, "committed_with", lambda *_, **__: {})
    yield made
    made.may_close.set()


def copied(group: Group, *positions: int) -> Any:
    """A mirror that copied these, one after the other, and was closed after each."""
    found = Mirror("g", "p", {})
    for each in positions:
        found.moved({PLACE: each})
        found.close(60)
    return found


def test_a_position_is_copied_while_the_thread_before_still_closes_its_client(group: Group) -> None:
    assert copied(group, 1, 2, 3).news() == ()
    assert group.offsets == [1, 2, 3]


def test_a_client_that_cannot_be_made_is_reported_once_and_made_again(group: Group) -> None:
    group.broken = 2
    (said,) = copied(group, 1, 2, 3).news()
    assert "was not copied to the consumer group 'g': no such file" in said
    assert group.offsets == [3]


def test_a_copy_that_failed_is_tried_again_though_no_later_position_comes(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "_AGAIN", 0.01)
    group.away = 3
    found = Mirror("g", "p", {})
    found.moved({PLACE: 7})
    until = time.monotonic() + 30
    while not group.offsets and time.monotonic() < until:
        time.sleep(0.01)
    assert group.offsets == [7]
    (said,) = found.news()
    assert "no answer" in said
    found.close(60)
    assert group.offsets == [7]


def test_a_run_that_ends_tries_a_copy_that_failed_once_more(group: Group) -> None:
    """And one that fails does not."""
    for seconds, copies in ((60, [7]), (0, [])):
        group.offsets, group.away = [], 1
        found = Mirror("g", "p", {})
        found.moved({PLACE: 7})
        while not found._failed:
            time.sleep(0.01)
        found.close(seconds)
        assert group.offsets == copies


def test_a_later_position_comes_instead_of_one_that_failed(group: Group) -> None:
    group.away = 1
    found = Mirror("g", "p", {})
    found.moved({PLACE: 7})
    while not found._failed:
        time.sleep(0.01)
    found.moved({PLACE: 8})
    found.close(60)
    assert group.offsets == [8]
