"""Offsets: the protocol between `OffsetStore` and a handler, the state of a held partition, and the errors of both.

A handler is a store with transactions that keeps the offsets, and it holds the fence. `load` replaces the old fence and
waits for a transaction that has already saved under it; `save` succeeds only under the fence that it was given. Only
this keeps a zombie out, so a handler of your own must do both, inside the transaction.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Protocol, runtime_checkable

from confluent_kafka import Message

from landonce.errors import Fenced, OffsetOutOfStep, OffsetsNotSaved, TransactionUnsettled
from landonce.protocol.ranges import Partition

_MAGIC = b"CGMDv2:"
_ROLL_BACK = "Nothing of this transaction may be committed: roll it back."


@dataclass(frozen=True)
class OffsetOrigin:
    """Who saved an offset. For people and for programs that read it back: the store decides nothing by it."""

    member: str = ""
    """The consumer's id in its group."""
    generation: int | None = None
    """Of the group, as that consumer knew it; with `group.protocol=consumer`, the member's epoch."""
    metadata: str = ""
    """The text that was given to `save`."""


NOBODY = OffsetOrigin()


@dataclass(frozen=True)
class Stored:
    """One partition's position and the fence that `load` has just set. `offset` is the next one to read."""

    offset: int | None
    epoch: int
    owner: str
    topic_id: str = ""
    origin: OffsetOrigin = NOBODY
    """What the `OffsetStep` of the offset said. `reset` leaves none."""


@dataclass(frozen=True)
class OffsetStep:
    """Moves one partition from `previous` (None: nothing was stored) to `offset`, under the fence of its `load`."""

    previous: int | None
    offset: int
    epoch: int
    owner: str
    topic_id: str
    origin: OffsetOrigin = NOBODY


@runtime_checkable
class OffsetHandler(Protocol):
    """Keeps offsets of consumer groups."""

    def initialize(self, group: str) -> None:
        """Creates what is missing: a table, a topic. Called once, before the first `load`."""

    def load(
        self, group: str, partitions: Collection[Partition], held: Mapping[Partition, Stored] | None = None
    ) -> Mapping[Partition, Stored]:
        """Sets a new fence on each partition and returns its position, in a transaction of its own.

        With `held`, partitions whose fence is no longer the held one are not changed and not returned.
        """

    def save(self, group: str, steps: Mapping[Partition, OffsetStep], transaction: Any) -> None:
        """Saves inside the user's transaction; raises `Fenced` or `OffsetOutOfStep` if fence or `previous` differ."""

    def transaction(self) -> AbstractContextManager[Any]:
        """A new transaction. It commits at the end of the block and rolls back after an exception."""

    def reset(self, group: str, offsets: Mapping[Partition, int | None]) -> None:
        """By hand: sets the position of partitions (None: forgets it), and fences their current readers."""


@dataclass(frozen=True)
class Holding:
    """One partition that a store holds. Every offset here is the next one: to read after a restart, or to give out."""

    fence: Stored
    saved: int
    """Committed, as far as this store knows."""
    given: int
    """Given out by `poll` and `consume`."""
    pending: int | None = None
    """Saved in a transaction that has not ended yet."""
    origin: OffsetOrigin = NOBODY
    """Of `saved`."""
    pending_origin: OffsetOrigin = NOBODY

    @property
    def unsettled(self) -> bool:
        return self.pending is not None

    @property
    def ahead(self) -> bool:
        """Whether records were given out that are not known to be saved."""
        return self.given > self.saved

    def step(self, partition: Partition, offset: int, origin: OffsetOrigin = NOBODY) -> OffsetStep:
        """The save to `offset`, or the error that says why it is not allowed."""
        before = self.saved if self.pending is None else self.pending
        if offset <= before:
            raise _refused(f"{partition}: offset {offset} was to be saved after {before}; offsets must increase.")
        if offset > self.given:
            raise _refused(
                f"{partition}: offset {offset} was to be saved, and the store has only given out records below "
                f"{self.given}. Save only records that come from the store's own `poll` and `consume`."
            )
        return OffsetStep(before, offset, self.fence.epoch, self.fence.owner, self.fence.topic_id, origin)

    def save(self, offset: int, origin: OffsetOrigin = NOBODY) -> Holding:
        return replace(self, pending=offset, pending_origin=origin)

    def commit(self) -> Holding:
        return (
            self
            if self.pending is None
            else replace(self, saved=self.pending, pending=None, origin=self.pending_origin)
        )

    def give(self, messages: list[Message]) -> tuple[Holding, list[Message]]:
        """Gives out messages that were not given out yet. They come in offset order."""
        if (messages[0].offset() or 0) < self.given:
            messages = [each for each in messages if (each.offset() or 0) >= self.given]
        if not messages:
            return self, []
        return replace(self, given=(messages[-1].offset() or 0) + 1), messages


def origin_of(group_metadata: bytes | None, metadata: str = "") -> OffsetOrigin:
    """Member and generation from what librdkafka says of a consumer in its group:

    CGMDv2: | generation, 4 bytes in the machine's order | group | 0 | member | 0 | …

    Another version may say it in another way: then neither is known.
    """
    magic, rest = (group_metadata or b"")[: len(_MAGIC)], (group_metadata or b"")[len(_MAGIC) :]
    names = rest[4:].split(b"\0")
    if magic != _MAGIC or len(names) < 3:
        return OffsetOrigin(metadata=metadata)
    return OffsetOrigin(
        names[1].decode(errors="replace"), int.from_bytes(rest[:4], sys.byteorder, signed=True), metadata
    )


def place(message: Message) -> Partition:
    return Partition(*_key(message))


def runs(messages: Sequence[Message]) -> Iterator[tuple[Partition, list[Message]]]:
    """Groups messages by partition. They come in long runs of one partition, so this compares runs, not messages."""
    one_topic = len(set(map(Message.topic, messages))) == 1
    for _, run in groupby(messages, key=Message.partition if one_topic else _key):
        mine = list(run)
        yield place(mine[0]), mine


def next_offsets(messages: Sequence[Message]) -> dict[Partition, int]:
    """What to save once all of these messages are handled."""
    if any(map(Message.error, messages)):
        raise ValueError("some of these messages are events of the client, not records")
    found: dict[Partition, int] = {}
    for partition, mine in runs(messages):
        last = max(each for each in map(Message.offset, mine) if each is not None)
        found[partition] = max(found.get(partition, 0), last + 1)
    return found


def _key(message: Message) -> tuple[str, int]:
    return message.topic() or "", message.partition() or 0


def _names(partitions: Iterable[Partition]) -> str:
    return ", ".join(map(str, sorted(partitions)))


def not_held(partitions: Iterable[Partition]) -> Fenced:
    return Fenced(
        f"{_names(partitions)}: not assigned to this consumer, or no longer.",
        safe=_ROLL_BACK,
        command="drop the records of these partitions that you hold, and continue to poll",
    )


def came_back(partitions: Iterable[Partition]) -> Fenced:
    return Fenced(
        f"{_names(partitions)}: taken away and assigned again while you held unsaved records. Another consumer may "
        "have handled some of them; the others come again.",
        safe="Nothing was lost. An open transaction must roll back.",
        command="drop the records of these partitions that you hold, and continue to poll",
    )


def unsettled(partitions: Iterable[Partition]) -> TransactionUnsettled:
    return TransactionUnsettled(
        f"{_names(partitions)}: offsets were saved, and the store does not know how the transaction ended.",
        safe="Nothing was lost.",
        command="end the transaction, then store.committed() or store.rewind(), then poll; store.transaction() does "
        "all of it",
    )


def forgotten(partitions: Iterable[Partition]) -> OffsetsNotSaved:
    return OffsetsNotSaved(
        f"{_names(partitions)}: records were given out, but no offset was saved in the transaction. After a crash its "
        "results would come a second time.",
        safe="It was rolled back. Nothing was lost: the records come again.",
        command="call store.save_many(messages, transaction) in the block; work that does not come from records "
        "belongs in a transaction of your own",
    )


def committed_without(partitions: Iterable[Partition]) -> OffsetsNotSaved:
    return OffsetsNotSaved(
        f"{_names(partitions)}: store.committed() was called, but no offset had been saved. After a crash the results "
        "of the transaction come a second time.",
        safe="Nothing was lost.",
        command="store.save_many(messages, transaction) before the transaction commits",
    )


def in_doubt(left: Set[Partition], held: Mapping[Partition, Holding]) -> set[Partition]:
    """Partitions that came back while the user may hold older records: they come again, or others have handled them."""
    return left & held.keys()


def _refused(what: str) -> OffsetOutOfStep:
    return OffsetOutOfStep(what, safe=_ROLL_BACK, command="store.rewind()")


def fenced(*partitions: Partition) -> Fenced:
    return Fenced(
        f"{', '.join(map(str, partitions))}: belongs to another consumer now.",
        safe=_ROLL_BACK,
        command="drop the records of it that you hold, and continue to poll",
    )


def out_of_step(partition: Partition, found: int | None, step: OffsetStep) -> OffsetOutOfStep:
    return OffsetOutOfStep(
        f"{partition}: offset {step.offset} should follow {step.previous}, but the stored offset is {found}: a "
        "transaction was reported as committed and was not, or somebody else changed the offset.",
        safe=_ROLL_BACK,
        command="call store.rewind(), and continue to poll",
    )
