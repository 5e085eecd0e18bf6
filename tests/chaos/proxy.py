"""A proxy between landonce and ClickHouse that has its own way with inserts; everything else it passes on untouched.

What becomes of an insert is a value that the test chooses per insert. Every insert that came, and every answer that the
server gave, is kept, so that a test can say what the server really received, and when.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import parse_qs, urlsplit

_LIMIT = 60.0
_BAD_GATEWAY = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Fate(Enum):
    """What the proxy does with an insert."""

    PASS = "delivered and answered"
    LOSE_ANSWER = "delivered; the line is cut instead of an answer"
    CUT_THEN_DELIVER = "the line is cut at once, and the request delivered a moment later"
    HOLD = "kept, unanswered, until `deliver`"
    BAD_GATEWAY = "not delivered; the proxy itself answers 502"
    BAD_GATEWAY_AFTER = "delivered; the proxy itself answers 502"


@dataclass
class Insert:
    """One insert that came to the proxy."""

    token: str
    query_id: str
    deadline: int
    """Milliseconds, as the statement says."""
    request: bytes = field(repr=False)
    fate: Fate = Fate.PASS
    status: int | None = None
    """What the server answered; None while it has not, or was never asked."""
    answer: str = field(default="", repr=False)
    answered_at: float = 0.0


Chooses = Callable[[Insert], Fate]


class Proxy:
    """Listens until closed. `choose` is called once per insert, in the order in which they come."""

    def __init__(self, upstream_port: int, choose: Chooses = lambda _: Fate.PASS, *, delay: float = 0.5) -> None:
        self.choose = choose
        self.inserts: list[Insert] = []
        self._upstream = upstream_port
        self._delay = delay
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def url(self, direct: str) -> str:
        """The same address, by way of this proxy."""
        return direct.replace(f":{self._upstream}/", f":{self.port}/")

    def of(self, fate: Fate) -> list[Insert]:
        """The inserts that met this fate."""
        return [each for each in self.inserts if each.fate is fate]

    def deliver(self, insert: Insert) -> None:
        """Sends an insert to the server, late perhaps, and waits for its answer."""
        answer = self._exchange(insert.request)
        head, _, body = answer.partition(b"\r\n\r\n")
        insert.answer = body.decode(errors="replace")
        insert.answered_at = time.time()
        insert.status = int(head.split(b" ", 2)[1]) if head else None

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client:
            received = _until(client, b"\r\n\r\n")
            if not _is_insert(received):
                self._relay(client, received)
                return
            insert = _insert(received + _exactly(client, received))
            with self._lock:
                insert.fate = self.choose(insert)
                self.inserts.append(insert)
            self._meet(insert, client)

    def _meet(self, insert: Insert, client: socket.socket) -> None:
        if insert.fate is Fate.HOLD:
            client.settimeout(_LIMIT)
            client.recv(1)  # until the sender is gone
        elif insert.fate is Fate.BAD_GATEWAY:
            client.sendall(_BAD_GATEWAY)
        elif insert.fate is Fate.CUT_THEN_DELIVER:
            client.close()
            time.sleep(self._delay)
            self.deliver(insert)
        elif insert.fate is Fate.LOSE_ANSWER:
            self.deliver(insert)
        elif insert.fate is Fate.BAD_GATEWAY_AFTER:
            self.deliver(insert)
            client.sendall(_BAD_GATEWAY)
        else:
            self._pass(insert, client)

    def _pass(self, insert: Insert, client: socket.socket) -> None:
        answer = self._exchange(insert.request)
        insert.status = int(answer.split(b" ", 2)[1]) if answer else None
        insert.answer = answer.partition(b"\r\n\r\n")[2].decode(errors="replace")
        insert.answered_at = time.time()
        client.sendall(answer)

    def _exchange(self, request: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self._upstream), timeout=_LIMIT) as server:
            server.sendall(request)
            answer = b""
            with suppress(ConnectionResetError):
                while data := server.recv(65536):
                    answer += data
            return answer

    def _relay(self, client: socket.socket, received: bytes) -> None:
        with socket.create_connection(("127.0.0.1", self._upstream)) as server:
            server.sendall(received)
            back = threading.Thread(target=_pump, args=(server, client), daemon=True)
            back.start()
            _pump(client, server)
            back.join(_LIMIT)


def _is_insert(received: bytes) -> bool:
    line = received.split(b"\r\n", 1)[0]
    return line.startswith(b"POST ") and b"insert_deduplication_token=" in line


def _insert(request: bytes) -> Insert:
    """Its names are in the URL, its statement is in the body."""
    line = request.split(b"\r\n", 1)[0].decode(errors="replace")
    query = parse_qs(urlsplit(line.split(" ")[1]).query)
    deadline = re.search(rb"now64\(3\)\) > (\d+)", request)
    assert deadline is not None, request[:10_000]
    return Insert(query["insert_deduplication_token"][0], query["query_id"][0], int(deadline[1]), request)


def _until(line: socket.socket, end: bytes) -> bytes:
    received = b""
    while end not in received and (data := line.recv(65536)):
        received += data
    return received


def _exactly(line: socket.socket, received: bytes) -> bytes:
    """The rest of a body, as long as its head said."""
    head, _, body = received.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    assert length is not None
    left, rest = int(length[1]) - len(body), b""
    while len(rest) < left:
        data = line.recv(65536)
        if not data:
            raise ConnectionError("the sender left in the middle of a request")
        rest += data
    return rest


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    for each in (source, sink):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
