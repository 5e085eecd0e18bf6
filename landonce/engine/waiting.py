"""Retries what is unreachable, for at most `stall` seconds: for a start, before there is a driver, and for the driver."""

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
    """How long one run retries."""

    stall: float
    """Seconds that a problem may last."""
    tell: Callable[[str], None]
    """Gets a message before each wait."""
    stopping: threading.Event = field(default_factory=threading.Event)
    """Set once somebody asks to stop."""
    committing: bool = False
    """Only a committed batch starts the time again (`progress`). If False, every call of `until` has the whole time."""
    since: float | None = None
    """When the first problem came that is not over yet."""

    def until(self, act: Callable[[], T]) -> T:
        """Calls `act` until it succeeds. Raises at once what waiting does not fix."""
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
        """Reports a problem that does not stop the work. Raises `Stalled` if problems have lasted too long."""
        self.tell(what)
        self._left(what)

    def progress(self) -> None:
        """All problems are over: the time starts again with the next one."""
        self.since = None

    def _left(self, what: str) -> float:
        """The seconds that are left. Raises `Stalled` if there are none."""
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
