"""Of what Kafka's client gives, exactly the wanted offsets count, each once: what comes again is dropped, disorder is an error."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message

from landonce.errors import RetentionOverrun, SourceRefused, SourceUnavailable
from landonce.protocol.ranges import Partition, Range
from landonce.read.kafka import records
from landonce.read.kafka.broker import consumer_options, source_error
from landonce.read.kafka.records import read

PLACE = Partition("t", 0)


class Client:
    """Kafka's client, as it might be: gives these hands of records, whatever it was asked for. A name is the end of the partition."""

    def __init__(self, *hands: list[int | str]) -> None:
        self.hands = list(hands)
        self.closed = False

    def consume(self, *_: Any, **__: Any) -> list[Message]:
        if not self.hands:
            pytest.fail("the reader waits for more, and nothing is coming")
        return [
            Message(topic="t", partition=0, offset=each, value=str(each).encode())
            if isinstance(each, int)
            else Message(topic="t", partition=0, offset=int(each), error=KafkaError(KafkaError._PARTITION_EOF))
            for each in self.hands.pop(0)
        ]

    def assign(self, _: Any) -> None: ...

    resume = unassign = pause = list_topics = lambda *_, **__: None

    def close(self) -> None:
        self.closed = True


def offsets(client: Client, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bytes]]:
    monkeypatch.setattr(records, "_consumer", lambda _: client)
    found = read((Range(PLACE, 3, 8),), {})
    return [pair for each in found for pair in zip(each.offsets.to_pylist(), each.values.to_pylist(), strict=True)]


@pytest.mark.parametrize(
    "hands",
    [
        ([3, 4, 5, 6, 7],),
        ([3, 4, 5], [6, 7, 8, 9]),
        ([0, 1, 2, 3, 4], [5, 6, 7]),
        ([3, 4, 5], [3, 4, 5], [6, 7]),
        ([3, 4, 5], [4, 5, 6, 7, 8]),
        ([1, 2], [2, 3, 4, 5, 6, 7]),
    ],
)
def test_what_comes_again_or_too_early_is_dropped(
    hands: tuple[list[int], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert offsets(Client(*hands), monkeypatch) == [(each, str(each).encode()) for each in range(3, 8)]


def test_offsets_that_are_missing_are_no_disorder(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [offset for offset, _ in offsets(Client([3, 6], [9]), monkeypatch)] == [3, 6]


@pytest.mark.parametrize("hand", [[3, 5, 4, 6, 7], [3, 4, 4, 5, 6, 7], [3, 4, 5, 3, 4, 5, 6, 7]])
def test_disorder_is_read_again_with_another_client(hand: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(hand)
    with pytest.raises(SourceUnavailable, match=r"t\[0\] out of order"):
        offsets(client, monkeypatch)
    assert client.closed


def test_a_topic_that_is_new_to_a_consumer_is_looked_up_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka takes up to a second to find the leaders of a topic that it is only assigned."""
    client, calls = Client([3, 4, 5, 6, 7], [3, 4, 5, 6, 7]), []
    monkeypatch.setattr(client, "list_topics", lambda topic, **_: calls.append(topic), raising=False)
    monkeypatch.setattr(client, "assign", lambda places: calls.append(places[0].offset))
    offsets(client, monkeypatch)
    offsets(client, monkeypatch)
    assert calls == ["t", 3, 3]


@pytest.mark.parametrize(
    ("hands", "found"),
    [
        (([3, 4, 5], ["8"]), [3, 4, 5]),
        (([3, 4, 5, "8"],), [3, 4, 5]),
        (([3, 4, 5], ["9"]), [3, 4, 5]),
        ((["8"],), []),
        (([3, 4], ["5"], [5, 6, 7]), [3, 4, 5, 6, 7]),
        ((["7"], [3, 7]), [3, 7]),
    ],
    ids=[
        "the end of the range",
        "in one hand",
        "past the range",
        "nothing is left",
        "before the range ends",
        "one before",
    ],
)
def test_the_end_of_the_partition_ends_a_range_that_is_read_up_to_it(
    hands: tuple[list[int | str], ...], found: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last offsets of a range may be missing. The end of the partition inside a range is none: more is on its way."""
    client = Client(*hands)
    assert [offset for offset, _ in offsets(client, monkeypatch)] == found
    assert client.hands == [], "the reader ended before it had read all"


@pytest.mark.parametrize("code", [KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE])
def test_records_that_are_gone_are_an_error_and_never_a_jump(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client([3, 4], [5, 6, 7])
    hand = client.consume
    gone = Message(topic="t", partition=0, offset=-1001, error=KafkaError(code))
    monkeypatch.setattr(client, "consume", lambda *_, **__: hand() if len(client.hands) == 2 else [gone, *hand()])
    with pytest.raises(RetentionOverrun, match=r"records of this range were deleted"):
        offsets(client, monkeypatch)


def test_nobody_can_loosen_what_the_guarantee_rests_on() -> None:
    options = {
        "isolation.level": "read_uncommitted",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": True,
        "enable.auto.offset.store": True,
        "enable.partition.eof": False,
        "fetch.wait.max.ms": 7,
    }
    assert (
        consumer_options("here:1", options, "p").items()
        >= {
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 7,
            "bootstrap.servers": "here:1",
        }.items()
    )


def test_no_two_threads_share_a_consumer() -> None:
    """They would read each other's records: of a later one, the first thread concludes that its range has ended."""
    options = {"bootstrap.servers": "127.0.0.1:1", "group.id": "none"}
    mine = records._consumer(options)
    assert records._consumer(options) is mine
    with ThreadPoolExecutor(1) as other:
        assert other.submit(records._consumer, options).result() is not mine
    records._forget(mine)
    assert mine not in records._KEPT.consumers.values()


def test_what_nobody_wants_any_more_is_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    client, ended = Client([3, 4], [5]), list[bool]()
    client.unassign = lambda: ended.append(True)  # type: ignore[method-assign]
    monkeypatch.setattr(records, "_consumer", lambda _: client)
    found = read((Range(PLACE, 3, 8),), {})
    next(found)
    found.close()  # type: ignore[attr-defined]
    assert ended == [True]


@pytest.mark.parametrize(
    ("code", "rights"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "READ and DESCRIBE on the topics"),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, "READ on consumer groups that begin with `landonce-`"),
    ],
)
def test_a_refusal_names_the_rights_that_are_missing(code: int, rights: str) -> None:
    error = source_error(KafkaError(code), "Kafka", {})
    assert isinstance(error, SourceRefused)
    assert rights in str(error)
