"""What keeps the offsets: the protocol between `OffsetStore` and a place that has transactions.

A handler holds the fence. `load` puts a new one in the place of the old one, and waits for a transaction that has
already saved under the old one; `save` succeeds only under the fence that it was given. That is all that keeps a
zombie out, so a handler of your own must do both, and inside the transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from landonce.protocol.ranges import Partition


@dataclass(frozen=True)
class Stored:
    """Where one partition stands, and the fence that `load` has just put there. `offset` is the next one to read."""

    offset: int | None
    epoch: int
    owner: str
    topic_id: str = ""


@dataclass(frozen=True)
class Step:
    """One partition goes from `previous` (None: nothing was stored) to `offset`, under the fence of its `load`."""

    previous: int | None
    offset: int
    epoch: int
    owner: str
    topic_id: str


@runtime_checkable
class OffsetHandler(Protocol):
    """Keeps offsets of consumer groups."""

    def initialize(self, group: str) -> None:
        """Makes what is missing: a table, a topic. Called once, before the first `load`."""

    def load(
        self, group: str, partitions: Collection[Partition], held: Mapping[Partition, Stored] | None = None
    ) -> Mapping[Partition, Stored]:
        """Puts a new fence on each partition and says where it stands, in a transaction of its own.

        With `held`, a partition whose fence is not the held one any more is left alone, and left out of the answer.
        """

    def save(self, group: str, steps: Mapping[Partition, Step], transaction: Any) -> None:
        """Saves inside the user's transaction; `Fenced` or `OffsetOutOfStep` where fence or `previous` do not match."""

    def transaction(self) -> AbstractContextManager[Any]:
        """A new transaction, which is committed at the end of the block and rolled back by an exception."""

    def reset(self, group: str, offsets: Mapping[Partition, int | None]) -> None:
        """By hand: sets where partitions stand (None: forgets it), and fences whoever reads them now."""
