"""The protocol between `OffsetStore` and a store with transactions that keeps the offsets.

A handler holds the fence. `load` replaces the old fence and waits for a transaction that has already saved under it;
`save` succeeds only under the fence that it was given. Only this keeps a zombie out, so a handler of your own must do
both, inside the transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from landonce.protocol.ranges import Partition


@dataclass(frozen=True)
class Stored:
    """One partition's position and the fence that `load` has just set. `offset` is the next one to read."""

    offset: int | None
    epoch: int
    owner: str
    topic_id: str = ""


@dataclass(frozen=True)
class Step:
    """Moves one partition from `previous` (None: nothing was stored) to `offset`, under the fence of its `load`."""

    previous: int | None
    offset: int
    epoch: int
    owner: str
    topic_id: str


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

    def save(self, group: str, steps: Mapping[Partition, Step], transaction: Any) -> None:
        """Saves inside the user's transaction; raises `Fenced` or `OffsetOutOfStep` if fence or `previous` differ."""

    def transaction(self) -> AbstractContextManager[Any]:
        """A new transaction. It commits at the end of the block and rolls back after an exception."""

    def reset(self, group: str, offsets: Mapping[Partition, int | None]) -> None:
        """By hand: sets the position of partitions (None: forgets it), and fences their current readers."""
