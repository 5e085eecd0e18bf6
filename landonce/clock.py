"""A clock that a sleeping machine does not stop."""

from __future__ import annotations

import time


def now() -> float:
    """Seconds that never go back, and go on while the machine sleeps where the system can tell."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)
