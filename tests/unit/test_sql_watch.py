"""A connection whose server hangs is cut, and no other connection of the process."""

from __future__ import annotations

import socket
import threading

from landonce.sinks.sql.postgres import Patience, Watch


def test_only_the_watched_connection_is_cut() -> None:
    """A watch that nobody ended must not cut what the process opened for other work since."""
    hangs = threading.Event()

    def alive() -> bool:
        hangs.wait(10)
        return False

    watch = Watch(alive, Patience(every=0.01, unanswered=1))
    watched, _end = socket.socketpair()
    watched.settimeout(10)
    watch.connected()
    later, other_end = socket.socketpair()
    later.settimeout(10)
    hangs.set()
    assert watched.recv(1) == b"", "the watched connection is cut"
    other_end.send(b"x")
    assert later.recv(1) == b"x"


def test_while_it_connects_whatever_is_opened_is_cut() -> None:
    hangs = threading.Event()

    def alive() -> bool:
        hangs.wait(10)
        return False

    watch = Watch(alive, Patience(every=0.01, unanswered=1))
    connecting, _end = socket.socketpair()
    hangs.set()
    connecting.settimeout(10)
    assert connecting.recv(1) == b""
    watch.end()
