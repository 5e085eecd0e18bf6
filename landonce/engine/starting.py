"""What a start waits for, before there is a driver: a target or a ledger that does not answer is asked again, up to `stall`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from landonce.errors import Stalled, Transient

T = TypeVar("T")
_LONGEST_PAUSE = 5.0
_SAFE = "Nothing was written; a pending plan is settled at the next start."


@dataclass(frozen=True)
class Waiting:
    """As patient as the driver is later."""

    stall: float
    """Seconds that one thing may be unreachable."""
    tell: Callable[[str], None]
    """Hears what is waited for."""
    stopping: threading.Event = field(default_factory=threading.Event)
    """Somebody asked to stop."""

    def until(self, act: Callable[[], T]) -> T:
        """Until it can be done. Whatever fails for good fails at once."""
        began, pause = time.monotonic(), 0.2
        while True:
            try:
                return act()
            except Transient as error:
                left = began + self.stall - time.monotonic()
                if left <= 0:
                    raise _given_up(error, self.stall) from None
                self.tell(f"waiting, for at most {left:.0f} s: {error.what}")
                if self.stopping.wait(min(pause, left)):
                    raise _stopped(error) from None
                pause = min(pause * 2, _LONGEST_PAUSE)


def _given_up(error: Transient, stall: float) -> Stalled:
    return Stalled(
        f"the start waited for {stall:.0f} s (`stall`). Last trouble: {error.what}",
        safe=_SAFE,
        command="fix the cause and start again: landonce run {file}",
    )


def _stopped(error: Transient) -> Stalled:
    return Stalled(f"stopped while something was unreachable: {error.what}", safe=_SAFE, command="landonce run {file}")
