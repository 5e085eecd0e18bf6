"""Cuts the connections to a database server that hangs, so that a waiting worker gets an error.

The kernel of a frozen server still acknowledges packets, so TCP settings do not help, and neither do the server's own timeouts. Nobody knows how
long a statement may take, but whether the server answers a ping can be asked. So it is asked while the statement runs, and after some
pings without an answer the connection is cut. The block's row then says what became of the transaction, as after any other cut.
"""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass


@dataclass(frozen=True)
class Patience:
    """Seconds between two pings, how many may stay unanswered, and seconds in all."""

    every: float = 10.0
    unanswered: int = 3
    longest: float = 1800.0


class Watch:
    """Watches the connections that this process opens between now and `end`."""

    def __init__(self, alive: Callable[[], bool], patience: Patience) -> None:
        self._alive, self._patience = alive, patience
        self._before = set(_sockets().values())
        self._over = threading.Event()
        self._turn = threading.Lock()
        self.cut = False
        threading.Thread(target=self._watch, daemon=True, name="landonce-watch").start()

    def end(self) -> None:
        with self._turn:
            self._over.set()

    def _watch(self) -> None:
        asked = missed = 0
        while not self._over.wait(self._patience.every):
            asked += 1
            missed = 0 if self._alive() else missed + 1
            if missed >= self._patience.unanswered or asked * self._patience.every >= self._patience.longest:
                self._cut()
                return

    def _cut(self) -> None:
        with self._turn:
            if self._over.is_set():
                return
            self.cut = True
            for descriptor, number in _sockets().items():
                if number not in self._before:
                    _shut(descriptor)


def _sockets() -> dict[int, int]:
    """Descriptors of open sockets, with the inode of each: a descriptor may be used again, an inode may not while it is open."""
    found = {}
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                found[int(name)] = status.st_ino
    return found


def _shut(descriptor: int) -> None:
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as line:
        line.shutdown(socket.SHUT_RDWR)
