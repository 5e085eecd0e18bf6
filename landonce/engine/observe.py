"""What a run reports to its observer: the same facts for a terminal, a log and a test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from landonce.protocol.ledger import Totals
from landonce.protocol.ranges import Partition
from landonce.protocol.reasons import Reasons
from landonce.protocol.steps import Effect


@dataclass(frozen=True)
class BatchReport:
    """One batch that was recorded."""

    batch: int
    kind: str
    blocks: int
    totals: Totals
    seconds: float
    lag: int
    """At most this many records are stable and not committed yet."""
    reasons: Reasons = ()
    """Why records became dead letters."""
    commits: tuple[tuple[str, str], ...] = ()
    """The id of each table's commit, where the sink gives commits ids."""
    committed: Mapping[Partition, int] = field(default_factory=dict)
    """Where the next batch begins."""

    @property
    def rows_per_second(self) -> float:
        return self.totals.read / self.seconds if self.seconds else 0.0


class Observer(Protocol):
    """Gets a report of everything that happens. It decides nothing."""

    def step(self, effect: Effect) -> None:
        """A step begins."""

    def batch(self, report: BatchReport) -> None:
        """A batch is recorded."""

    def trouble(self, what: str) -> None:
        """Something went wrong that landonce deals with by itself."""

    def lag(self, records: int) -> None:
        """After every look at Kafka: at most this many records are stable and not committed yet."""


@runtime_checkable
class InferenceObserver(Protocol):
    """An `Observer` that also gets the columns that were inferred from the first records."""

    def inferred(self, words: str) -> None:
        """A table is to be created with these columns."""


@dataclass(frozen=True)
class AcceptReport:
    """With `dedup`: one batch that was accepted. A `BatchReport` of its own says what landed of it."""

    batch: BatchReport
    """`landed` are the events that were accepted, and `filtered` all records that were left out."""
    copies: int
    seen_again: int
    """Records that were accepted before: the topic was read again."""


@runtime_checkable
class DedupObserver(Protocol):
    """An `Observer` that gets separate reports of accepting and of pushing, with `dedup`.

    Then `step`, `lag` and `trouble` come from the driver that accepts. `batch` says what landed, and its `lag` is what was accepted and has
    not landed yet. Both drivers call, each from its own thread.
    """

    def accepted(self, report: AcceptReport) -> None:
        """A batch of events is accepted."""

    def pushing(self, effect: Effect) -> None:
        """A step of the driver that pushes begins."""


class Silent:
    """An observer that ignores everything."""

    def step(self, effect: Effect) -> None: ...

    def batch(self, report: BatchReport) -> None: ...

    def trouble(self, what: str) -> None: ...

    def lag(self, records: int) -> None: ...


_MOST = 100
"""Fields that a run names at most: an object with open keys may have any number."""


@dataclass
class Unplaced:
    """Fields that no column takes. A run names each of them once."""

    known: set[str] = field(default_factory=set)

    def news(self, found: Iterable[str]) -> str:
        """A message about the fields that are new; empty if there are none."""
        left = _MOST - len(self.known)
        new = sorted(set(found) - self.known)
        if not new or left <= 0:
            return ""
        self.known.update(new[:left])
        more = ", and others (no more are named in this run)" if len(new) > left else ""
        return (
            f"fields that no column takes: {', '.join(new[:left])}{more}. The records land without them. Add columns, or declare "
            "`source.kafka.schema`, which says which fields are to land."
        )
