"""What every handler of a plain consumer's offsets keeps, and where its cases run. Neither Kafka nor a consumer is needed: the cases call the
handler as `OffsetStore` does."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from landonce.consumer.offsets import OffsetHandler, OffsetOrigin, OffsetStep, Stored
from landonce.errors import Fenced, LedgerUnavailable, OffsetOutOfStep
from landonce.protocol.ranges import Partition
from landonce.testing.case import Suite, refused

GROUP = "orders"
ORIGIN = OffsetOrigin("m", 3, "text ✓")
P, Q = Partition("clicks", 0), Partition("clicks", 1)
_PATIENCE = 90.0
_HEAD_START = 0.3


class OffsetSite(ABC):
    """An empty place for offsets and results."""

    secret = ""

    @abstractmethod
    def open(self) -> OffsetHandler:
        """The handler, as another process would make it; nothing was called on it."""

    @abstractmethod
    def write(self, transaction: Any, text: str) -> None:
        """A result, in a transaction of the handler."""

    @abstractmethod
    def results(self) -> list[str]:
        """All results that are committed, read apart from the handler."""


OFFSET_CASES: Suite[OffsetSite] = Suite("offsets")
case = OFFSET_CASES.case


def ready(site: OffsetSite) -> OffsetHandler:
    handler = site.open()
    handler.initialize(GROUP)
    return handler


def step(stored: Stored, offset: int, *, previous: int | None = None) -> OffsetStep:
    """The save to `offset`, under this fence."""
    return OffsetStep(previous, offset, stored.epoch, stored.owner, "topic-id", ORIGIN)


def saved(handler: OffsetHandler, partition: Partition, offset: int, group: str = GROUP) -> Stored:
    """Takes a partition and saves an offset of it, where there is none yet."""
    stored = handler.load(group, [partition])[partition]
    with handler.transaction() as transaction:
        handler.save(group, {partition: step(stored, offset)}, transaction)
    return stored


def offset_of(site: OffsetSite, partition: Partition = P, group: str = GROUP) -> int | None:
    """As the next owner finds it."""
    return ready(site).load(group, [partition])[partition].offset


def _saves(
    handler: OffsetHandler, steps: dict[Partition, OffsetStep], write: Callable[[Any], None] = lambda _: None
) -> Callable[[], None]:
    def act() -> None:
        with handler.transaction() as transaction:
            write(transaction)
            handler.save(GROUP, steps, transaction)

    return act


@case()
def a_second_consumer_begins_too(site: OffsetSite) -> None:
    """The second process of a group would not start."""
    for _ in range(2):
        try:
            ready(site)
        except Exception as error:
            raise AssertionError(f"initialize fails where somebody else has called it: {error}") from error


@case()
def a_new_partition_has_no_offset(site: OffsetSite) -> None:
    """A partition would begin at an offset that nobody chose, and skip what is before it."""
    found = ready(site).load(GROUP, [P, Q])
    assert set(found) == {P, Q}, "load does not return every partition that it was asked for"
    assert [each.offset for each in found.values()] == [None, None], "a new partition has an offset"


@case()
def an_offset_comes_back(site: OffsetSite) -> None:
    """After a restart records would come again, or be skipped; with another topic id, of a topic that was created again."""
    saved(ready(site), P, 2**40)
    found = ready(site).load(GROUP, [P])[P]
    assert (found.offset, found.topic_id) == (2**40, "topic-id"), "offset or topic id did not come back as saved"


@case()
def who_saved_comes_back(site: OffsetSite) -> None:
    """A program that keeps its own place in the metadata text would lose it."""
    saved(ready(site), P, 5)
    found = ready(site).load(GROUP, [P])[P].origin
    assert found == ORIGIN, "member, generation and metadata did not come back as saved"


@case()
def results_and_offset_are_one_transaction(site: OffsetSite) -> None:
    """After a crash results would be there without their offset, and come twice, or the offset without its results."""
    handler = ready(site)
    fence = handler.load(GROUP, [P])[P]
    with suppress(ZeroDivisionError), handler.transaction() as transaction:
        site.write(transaction, "lost")
        handler.save(GROUP, {P: step(fence, 1)}, transaction)
        raise ZeroDivisionError
    assert site.results() == [], "the results of a transaction that failed are there"
    fence = handler.load(GROUP, [P])[P]
    assert fence.offset is None, "the offset of a transaction that failed is there"
    with handler.transaction() as transaction:
        site.write(transaction, "kept")
        handler.save(GROUP, {P: step(fence, 2)}, transaction)
    assert site.results() == ["kept"], "the results of a transaction are not there after its end"
    assert offset_of(site) == 2, "the offset of a transaction is not there after its end"


@case()
def a_successor_fences(site: OffsetSite) -> None:
    """A consumer that slept would wake up and write its results a second time."""
    zombie, successor = ready(site), ready(site)
    mine = zombie.load(GROUP, [P])[P]
    successor.load(GROUP, [P])
    refused(Fenced, _saves(zombie, {P: step(mine, 1)}, lambda open_: site.write(open_, "twice")), "a zombie saved")
    assert site.results() == [], "a zombie's results are there"
    assert offset_of(site) is None, "a zombie's offset is there"


@case()
def every_load_has_a_fence_of_its_own(site: OffsetSite) -> None:
    """After a restored backup an old consumer would hold the fence of a new one."""
    handler, fences = ready(site), set()
    for _ in range(3):
        found = handler.load(GROUP, [P])[P]
        fences.add(found.owner)
    assert len(fences) == 3, "two loads gave the same owner"


@case()
def a_save_follows_the_stored_offset(site: OffsetSite) -> None:
    """A transaction that was reported as committed, and was not, would be jumped over."""
    handler = ready(site)
    fence = saved(handler, P, 5)
    for previous in (None, 4, 6):
        refused(OffsetOutOfStep, _saves(handler, {P: step(fence, 9, previous=previous)}), f"5 was taken for {previous}")
    _saves(handler, {P: step(fence, 9, previous=5)})()
    assert offset_of(site) == 9, "an offset that follows the stored one was not saved"


@case()
def two_saves_of_one_transaction_follow_each_other(site: OffsetSite) -> None:
    """A loop that saves after every record, and commits at the end, would be refused."""
    handler = ready(site)
    fence = handler.load(GROUP, [P])[P]
    with handler.transaction() as transaction:
        for previous, offset in ((None, 1), (1, 2), (2, 3)):
            handler.save(GROUP, {P: step(fence, offset, previous=previous)}, transaction)
    assert offset_of(site) == 3, "the last save of a transaction did not stay"


@case()
def of_several_partitions_all_are_saved_or_none(site: OffsetSite) -> None:
    """One partition's results would be there without its offset."""
    zombie, successor = ready(site), ready(site)
    mine = zombie.load(GROUP, [P, Q])
    successor.load(GROUP, [Q])
    refused(Fenced, _saves(zombie, {P: step(mine[P], 1), Q: step(mine[Q], 1)}), "a zombie saved beside its own")
    assert offset_of(site) is None, "a partition was saved in a transaction that was refused"


@case()
def only_a_fence_that_is_still_held_is_renewed(site: OffsetSite) -> None:
    """After a rollback a zombie would take its partition back from its successor."""
    first, second = ready(site), ready(site)
    mine = first.load(GROUP, [P, Q])
    theirs = second.load(GROUP, [Q])[Q]
    renewed = first.load(GROUP, [P, Q], mine)
    assert set(renewed) == {P}, "a partition of another owner was renewed, or the own one was not"
    assert renewed[P].owner != mine[P].owner or renewed[P].epoch != mine[P].epoch, "a renewed fence is the old one"
    _saves(second, {Q: step(theirs, 1)})()
    _saves(first, {P: step(renewed[P], 1)})()
    refused(Fenced, _saves(first, {P: step(mine[P], 2, previous=1)}), "the fence before a renewal still saves")


@case()
def load_sees_what_an_open_transaction_leaves(site: OffsetSite) -> None:
    """A successor would read the offset from before a transaction that commits later, and its records would land twice."""
    zombie, successor = ready(site), ready(site)
    mine = zombie.load(GROUP, [P])[P]
    found: list[Stored] = []

    def take() -> None:
        while not found:
            with suppress(LedgerUnavailable):
                found.append(successor.load(GROUP, [P])[P])

    taking = threading.Thread(target=take, daemon=True)
    with suppress(Exception), zombie.transaction() as transaction:
        site.write(transaction, "late")
        zombie.save(GROUP, {P: step(mine, 7)}, transaction)
        taking.start()
        taking.join(_HEAD_START)
    taking.join(_PATIENCE)
    assert found, "load never came to an end"
    landed = site.results() == ["late"]
    assert (found[0].offset == 7) is landed, (
        f"load says {found[0].offset}, and the transaction has {'' if landed else 'not '}committed"
    )


@case()
def names_that_read_alike_are_apart(site: OffsetSite) -> None:
    """One subscription would skip what another one has read."""
    handler = ready(site)
    places = [
        (GROUP, P),
        (GROUP, Q),
        (GROUP, Partition("Clicks", 0)),
        (GROUP, Partition("clicks-1", 0)),
        (f"{GROUP}-clicks", Partition("1", 0)),
        (GROUP.upper(), P),
    ]
    for number, (group, partition) in enumerate(places):
        saved(handler, partition, 100 + number, group)
    found = [offset_of(site, partition, group) for group, partition in places]
    assert found == [100 + number for number in range(len(places))], "two subscriptions share an offset"


@case()
def an_offset_that_is_put_by_hand_counts(site: OffsetSite) -> None:
    """Whoever sets an offset after a loss would find the consumer where it was, or its old reader moving it again."""
    handler = ready(site)
    reading = saved(handler, P, 5)
    ready(site).reset(GROUP, {P: 2, Q: 8})
    refused(Fenced, _saves(handler, {P: step(reading, 3, previous=2)}), "the reader from before saved over it")
    found = ready(site).load(GROUP, [P, Q])
    assert {each: stored.offset for each, stored in found.items()} == {P: 2, Q: 8}, (
        "the offset put by hand is not there"
    )
    assert found[P].topic_id == "", "an offset that was put by hand is bound to the old topic"
    assert found[P].origin == OffsetOrigin(), "an offset that was put by hand says that a consumer saved it"


@case()
def a_partition_can_be_forgotten(site: OffsetSite) -> None:
    """A partition would never begin again."""
    saved(ready(site), P, 5)
    ready(site).reset(GROUP, {P: None})
    assert offset_of(site) is None, "the partition still has an offset"
