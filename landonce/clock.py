"""A clock that a sleeping machine does not stop, and moments as Kafka counts them."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def now() -> float:
    """Seconds that never go back. They include the time that the machine slept, if the system reports it."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def milliseconds(moment: datetime) -> int:
    """Since the epoch, exactly, without what is finer. `moment` has a time zone."""
    return (moment - _EPOCH) // timedelta(milliseconds=1)
