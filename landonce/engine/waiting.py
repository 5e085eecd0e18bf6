"""What is unreachable is tried again, up to `stall`: by a start, before there is a driver, and by the driver."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from landonce.errors import Stalled, Transient

T = TypeVar("T")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
_SAFE = "Nothing is lost and nothing is duplicated; a pending plan is settled at the next start."


@dataclass
class Waiting:
    """The patience of one run."""

    stall: float
    """Seconds that trouble may last."""
    tell: Callable[[str], None]
    """Hears what is waited for."""
    stopping: threading.Event = field(default_factory=threading.Event)
    """Somebody asked to stop."""
    committing: bool = False
    """Only a committed batch ends trouble (`progress`). Otherwise each thing that is waited for has the whole time."""
    since: float | None = None
    """When the trouble began that has not ended yet."""

    def until(self, act: Callable[[], T]) -> T:
        """Until it can be done. Whatever fails for good fails at once."""
        pause = _FIRST_PAUSE
        if not self.committing:
            self.progress()
        while True:
            try:
                return act()
            except Transient as error:
                left = self._left(error.what)
                self.tell(f"waiting, for at most {left:.0f} s: {error.what}")
                if self.stopping.wait(min(pause, left)):
                    what = f"stopped while something was unreachable: {error.what}"
                    raise Stalled(what, safe=_SAFE, command="landonce run {file}") from None
                pause = min(pause * 2, _LONGEST_PAUSE)

    def trouble(self, what: str) -> None:
        """Something went wrong, and work goes on."""
        self.tell(what)
        self._left(what)

    def progress(self) -> None:
        """Whatever the trouble was, it is over."""
        self.since = None

    def _left(self, what: str) -> float:
        """Seconds that trouble may last from now on. Raises where it lasts too long."""
        now = time.monotonic()
        self.since = self.since if self.since is not None else now
        left = self.since + self.stall - now
        if left < 0:
            done = "no batch was committed" if self.committing else "the start waited"
            raise Stalled(
                f"{done} for {self.stall:.0f} s (`stall`). Last problem: {what}",
                safe=_SAFE,
                command="fix the cause and start again: landonce run {file}",
            )
        return left
