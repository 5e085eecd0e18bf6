"""A clock that a sleeping machine does not stop."""

from __future__ import annotations

import time


def now() -> float:
    """Seconds that never go back. They include the time that the machine slept, if the system reports it."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)
