"""How long this consumer may assume that its partitions are its own.

There are two limits. The poll limit, `max.poll.interval.ms`, counts from the end of the last poll, as in librdkafka.
The session limit is not visible: librdkafka sends heartbeats in the background and does not report their answers. But a
process that did not run cannot have sent any. A thread beats ten times per session; if its last beat is older than
`session.timeout.ms`, the process was stopped, or the machine slept. This clock does not notice a network that lost the
heartbeats of a running process. The fence covers that case; the clock only avoids useless work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from landonce.clock import now

Now = Callable[[], float]


class PollClock:
    """The two limits. A background thread calls `beat`; the polling thread calls the rest."""

    def __init__(self, poll_ms: int, session_ms: int, read: Now = now) -> None:
        self._poll = poll_ms / 1000
        self._session = session_ms / 1000
        self._now = read
        self._polled = self._beaten = read()
        self._longest = 0.0
        self._ended = threading.Event()

    def start(self) -> None:
        """Starts the beats, in a daemon thread."""
        threading.Thread(target=self._run, name="landonce-poll-clock", daemon=True).start()

    def stop(self) -> None:
        self._ended.set()

    def beat(self) -> None:
        moment = self._now()
        self._longest = max(self._longest, moment - self._beaten)
        self._beaten = moment

    def polled(self) -> None:
        """A poll has returned: partitions lost before it are known by now, or the fence finds them."""
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
