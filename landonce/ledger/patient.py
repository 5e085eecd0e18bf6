"""What ledgers in a store that may be away have in common: they try again, and remember what is in doubt.

A subclass gives one attempt at each thing. It must never guess the outcome of an attempt: `_change` reads what is there.
"""

from __future__ import annotations

import random
import time
from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, TypeVar

from landonce.errors import Fenced, LedgerUnavailable
from landonce.protocol.ledger import Ledger, LedgerState, Note, check_change, check_order

Answer = TypeVar("Answer")

_LONGEST_PAUSE = 5.0
_CHANCE = random.SystemRandom()
_NOTHING_CHANGED = "Nothing was changed."
_IN_DOUBT = (
    "It is not known whether the last change was recorded. Nothing is lost and nothing is duplicated: a start reads "
    "the ledger again, and settles a pending plan before it makes a new one."
)


class PatientLedger(Ledger):
    """A request that fails is tried `attempts` times, with pauses that double from `backoff` seconds up to five."""

    failures: ClassVar[tuple[type[Exception], ...]]
    """How a request fails that may pass."""
    store: ClassVar[str] = "the database"
    """What a person is to bring back."""

    def __init__(self, pipeline: str, *, attempts: int = 8, backoff: float = 0.2) -> None:
        self.pipeline = pipeline
        self._attempts = max(1, attempts)
        self._backoff = backoff
        self._doubt: LedgerState | None = None
        """What an attempt without an answer may have written. It outlives the call, so the caller may call again."""

    @property
    @abstractmethod
    def place(self) -> str:
        """Where it is, without a secret."""

    def load(self) -> LedgerState | None:
        return self._patiently(self._read, safe=_NOTHING_CHANGED)

    def create(self, state: LedgerState) -> LedgerState:
        if state.pipeline != self.pipeline:
            raise ValueError(f"this ledger keeps {self.pipeline!r}, not {state.pipeline!r}")
        check_order(state)
        return self._patiently(lambda: self._create(state), safe=_NOTHING_CHANGED)

    def change(self, old: LedgerState, new: LedgerState, note: Note | None = None) -> LedgerState:
        check_change(self.pipeline, old, new)
        try:
            return self._patiently(lambda: self._change(old, new, note), safe=_IN_DOUBT)
        except Fenced:
            self._doubt = None
            raise

    def journal(self) -> tuple[Note, ...]:
        return self._patiently(self._read_journal, safe=_NOTHING_CHANGED)

    # One attempt each.

    @abstractmethod
    def _read(self) -> LedgerState | None: ...

    @abstractmethod
    def _create(self, state: LedgerState) -> LedgerState: ...

    @abstractmethod
    def _change(self, old: LedgerState, new: LedgerState, note: Note | None) -> LedgerState:
        """It notes in `_doubt` what it is about to write, and ends by `_certain`, or raises `Fenced`."""

    @abstractmethod
    def _read_journal(self) -> tuple[Note, ...]: ...

    def _certain(self, new: LedgerState) -> LedgerState:
        self._doubt = None
        return new

    # Retries.

    @abstractmethod
    def _reason(self, failure: Exception) -> str:
        """What failed, for people. Raises if trying again does not help."""

    def _patiently(self, attempt: Callable[[], Answer], *, safe: str) -> Answer:
        began = time.monotonic()
        reason = ""
        for number in range(self._attempts):
            if number:  # half of every pause is random, so that drivers do not retry all at once
                longest = min(_LONGEST_PAUSE, self._backoff * 2 ** (number - 1))
                time.sleep(_CHANCE.uniform(longest / 2, longest))
            try:
                return attempt()
            except self.failures as error:
                failure = error
            reason = self._reason(failure)
        raise LedgerUnavailable(
            f"the ledger {self.place} did not answer: {reason} ({self._attempts} attempts in "
            f"{time.monotonic() - began:.1f} s).",
            safe=safe,
            command=f"bring {self.store} back, then: landonce run {{file}}",
        )
