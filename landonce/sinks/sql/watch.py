"""A limit for a database that stands still: its connections are cut from this side, and whoever waits for it gets an error.

A server that is frozen, or whose machine is, still acknowledges what it is sent, so no setting of TCP's helps, and no timeout of
its own. How long a statement may take nobody knows; whether the server still answers others can be asked. So it is asked
beside the statement, and after some questions without an answer the connection ends. What became of the transaction is then
read from the block's row, as after any other cut.
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
    """Seconds between two questions, questions without an answer, and seconds in all."""

    every: float = 10.0
    unanswered: int = 3
    longest: float = 1800.0


class Watch:
    """Watches the connections that this process opens from now on, until `end`."""

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
    """Descriptors of open sockets, each with the number that is its own as long as it is open."""
    found = {}
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):
            told = os.fstat(int(name))
            if stat.S_ISSOCK(told.st_mode):
                found[int(name)] = told.st_ino
    return found


def _shut(descriptor: int) -> None:
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as line:
        line.shutdown(socket.SHUT_RDWR)
