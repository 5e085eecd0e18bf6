"""How long this consumer may still believe that its partitions are its own.

Two limits. The poll limit, `max.poll.interval.ms`, is counted from the end of the last poll, as librdkafka does. The
session limit cannot be seen from here: librdkafka sends heartbeats in the background and does not say when one was
answered. But a process that did not run cannot have sent any. A thread beats ten times per session; if its last beat
is older than `session.timeout.ms`, the process was stopped, or the machine slept. What stays unseen is a network
that lost the heartbeats of a running process: that is what the fence is for, and this clock only spares the work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from landonce.clock import now

Now = Callable[[], float]


class PollClock:
    """The two limits. `beat` is called by a thread, the rest by the thread that polls."""

    def __init__(self, poll_ms: int, session_ms: int, read: Now = now) -> None:
        self._poll = poll_ms / 1000
        self._session = session_ms / 1000
        self._now = read
        self._polled = self._beaten = read()
        self._longest = 0.0
        self._ended = threading.Event()

    def start(self) -> None:
        """Beats from now on, in a thread that does not keep the process alive."""
        threading.Thread(target=self._run, name="landonce-poll-clock", daemon=True).start()

    def stop(self) -> None:
        self._ended.set()

    def beat(self) -> None:
        moment = self._now()
        self._longest = max(self._longest, moment - self._beaten)
        self._beaten = moment

    def polled(self) -> None:
        """A poll has returned: what was lost before it is known by now, or shows at the fence."""
        self._polled = self._beaten = self._now()
        self._longest = 0.0

    def remaining_ms(self) -> int:
        """Milliseconds until the nearer limit; 0 or less when it has passed."""
        moment = self._now()
        silent = max(self._longest, moment - self._beaten)
        left = min(self._poll - (moment - self._polled), self._session - silent)
        return int(left * 1000)

    def _run(self) -> None:
        while not self._ended.wait(self._session / 10):
            self.beat()
