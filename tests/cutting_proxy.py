"""A tiny TCP proxy that loses one COMMIT, at a chosen moment: the crash is a value in the test's input."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from enum import Enum

_COMMITS = (b"COMMIT\x00", b"\x03COMMIT")
"""As PostgreSQL is asked for it, and MySQL."""
END_OF_TRANSACTION = (b"\x00\x1a\x00\x01\x00\x00",)
"""As Kafka's client asks for it: request 26 in version 1, with one of the first ids."""
_COMMITTED = b"C\x00\x00\x00\x0bCOMMIT\x00"
"""What PostgreSQL says once a transaction holds."""


class Cut(Enum):
    ANSWER = "the server commits, and its answer is lost"
    REQUEST = "the COMMIT never reaches the server"
    ANSWERED = "the server commits and says so, and that is lost, however the client asks for it"
    LATE = "the client is cut off, and the COMMIT reaches the server half a second later"


class CuttingProxy:
    """Passes everything on, except that the next COMMIT after `arm` is cut."""

    def __init__(self, port: int, commits: tuple[bytes, ...] = _COMMITS) -> None:
        self._upstream, self._commits = port, commits
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._armed: Cut | None = None
        self._muted: set[socket.socket] = set()
        self.cuts = 0
        self.deaf = False
        """Accepts nobody: what is cut stays cut."""
        threading.Thread(target=self._accept, daemon=True).start()

    def arm(self, cut: Cut) -> None:
        self._armed = cut

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self.deaf:
                    client.close()
                    continue
                try:
                    server = socket.create_connection(("127.0.0.1", self._upstream))
                except OSError:  # it is down
                    client.close()
                    continue
                threading.Thread(target=self._answers, args=(server, client), daemon=True).start()
                threading.Thread(target=self._requests, args=(client, server), daemon=True).start()

    def _answers(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                if self._armed is Cut.ANSWERED and _COMMITTED in data:
                    self._armed = None
                    self.cuts += 1
                    _hang_up(server)
                    break
                if client not in self._muted:
                    client.sendall(data)
        _hang_up(client)

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                cut = self._armed
                if cut not in (None, Cut.ANSWERED) and any(each in data for each in self._commits):
                    self._armed = None
                    self.cuts += 1
                    self._cut(cut, client, server, data)
                    return
                server.sendall(data)
        _hang_up(server)

    def _cut(self, cut: Cut, client: socket.socket, server: socket.socket, data: bytes) -> None:
        self._muted.add(client)
        if cut is not Cut.ANSWER:
            _hang_up(client)
        if cut is Cut.LATE:
            time.sleep(0.5)
        if cut is not Cut.REQUEST:
            server.sendall(data)
            time.sleep(0.1)
        _hang_up(client)
        _hang_up(server)


def _hang_up(line: socket.socket) -> None:
    with suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)
