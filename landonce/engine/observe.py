"""What a run tells those who watch it: the same facts for a terminal, a log and a test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from landonce.protocol.ledger import Totals
from landonce.protocol.receipt import Reasons
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

    @property
    def rows_per_second(self) -> float:
        return self.totals.read / self.seconds if self.seconds else 0.0


class Observer(Protocol):
    """Hears of everything; decides nothing."""

    def step(self, effect: Effect) -> None:
        """A step begins."""

    def batch(self, report: BatchReport) -> None:
        """A batch is recorded."""

    def trouble(self, what: str) -> None:
        """Something went wrong that landonce deals with by itself."""

    def lag(self, records: int) -> None:
        """After every look at Kafka: at most this many records are stable and not committed yet."""


class Silent:
    """Watches without a word."""

    def step(self, effect: Effect) -> None: ...

    def batch(self, report: BatchReport) -> None: ...

    def trouble(self, what: str) -> None: ...

    def lag(self, records: int) -> None: ...
