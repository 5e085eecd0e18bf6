"""A proxy between landonce and a REST catalog that has its own way with commits; everything else it passes on untouched."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

_LIMIT = 60.0
_OWN = frozenset({"connection", "transfer-encoding", "content-length"})
"""Headers that are of one connection, and not of the message."""


Answer = tuple[int, dict[str, str], bytes]
"""Status, headers, body."""


class Fate(Enum):
    """What the proxy does with a commit."""

    PASS = "delivered and answered"
    LOSE_ANSWER = "delivered; the line is cut instead of an answer"
    ERROR_AFTER = "delivered; the proxy itself answers 500"
    GATEWAY_AFTER = "delivered; the proxy itself answers 504"
    UNAVAILABLE = "not delivered; the proxy itself answers 503"
    CONFLICT = "not delivered; the proxy itself answers 409"
    CUT = "not delivered; the line is cut"
    HOLD = "kept, unanswered, until `deliver`"


_ANSWERS = {Fate.ERROR_AFTER: 500, Fate.GATEWAY_AFTER: 504, Fate.UNAVAILABLE: 503, Fate.CONFLICT: 409}
_DELIVERED = frozenset({Fate.PASS, Fate.LOSE_ANSWER, Fate.ERROR_AFTER, Fate.GATEWAY_AFTER})
_KINDS = {409: "CommitFailedException", 500: "CommitStateUnknownException"}


@dataclass
class Commit:
    """One request that would change a table."""

    path: str
    body: bytes = field(repr=False)
    headers: dict[str, str] = field(repr=False)
    fate: Fate = Fate.PASS
    status: int | None = None
    """What the catalog answered; None while it has not, or was never asked."""

    @property
    def lands(self) -> bool:
        """Whether it adds rows, and not only a mark."""
        updates = json.loads(self.body).get("updates", ())
        return any(each.get("snapshot", {}).get("summary", {}).get("added-records") for each in updates)


class Proxy(ThreadingHTTPServer):
    """Listens until closed. `choose` is called once per commit that adds rows, in the order in which they come."""

    daemon_threads = True

    def __init__(self, upstream: str, choose: Callable[[Commit], Fate] = lambda _: Fate.PASS) -> None:
        super().__init__(("127.0.0.1", 0), _Line)
        self.choose = choose
        self.commits: list[Commit] = []
        self._upstream = urlsplit(upstream).netloc
        self._lock = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def of(self, fate: Fate) -> list[Commit]:
        """The commits that met this fate."""
        return [each for each in self.commits if each.fate is fate]

    def decide(self, commit: Commit) -> None:
        with self._lock:
            commit.fate = self.choose(commit) if commit.lands else Fate.PASS
            self.commits.append(commit)

    def deliver(self, commit: Commit) -> Answer:
        """Sends a commit to the catalog, late perhaps, and waits for its answer."""
        answer = self.exchange("POST", commit.path, commit.headers, commit.body)
        commit.status = answer[0]
        return answer

    def exchange(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        """One request to the catalog itself."""
        line = http.client.HTTPConnection(self._upstream, timeout=_LIMIT)
        try:
            line.request(method, path, body or None, headers)
            answer = line.getresponse()
            return answer.status, _passed_on(answer.getheaders()), answer.read()
        finally:
            line.close()


class _Line(BaseHTTPRequestHandler):
    """One connection to the proxy."""

    protocol_version = "HTTP/1.1"
    server: Proxy

    def serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = _passed_on(self.headers.items())
        if self.command == "POST" and b'"requirements"' in body and b'"updates"' in body:
            self._meet(Commit(self.path, body, headers))
            return
        try:
            self._answer(self.server.exchange(self.command, self.path, headers, body))
        except OSError:
            self.close_connection = True

    def _meet(self, commit: Commit) -> None:
        self.server.decide(commit)
        answer = None
        if commit.fate in _DELIVERED:
            with suppress(OSError):
                answer = self.server.deliver(commit)
        if commit.fate is Fate.HOLD:
            self.connection.settimeout(_LIMIT)
            self.connection.recv(1)  # until the sender is gone
        if commit.fate in _ANSWERS:
            answer = _made_up(_ANSWERS[commit.fate])
        elif commit.fate is not Fate.PASS:
            answer = None
        self._answer(answer)

    def _answer(self, answer: Answer | None) -> None:
        """None: the line is cut instead."""
        if answer is None:
            self.close_connection = True
            return
        status, headers, body = answer
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


for _method in ("GET", "POST", "HEAD", "DELETE", "PUT"):
    setattr(_Line, f"do_{_method}", _Line.serve)


def _passed_on(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {name: value for name, value in headers if name.lower() not in _OWN}


def _made_up(status: int) -> Answer:
    body = {"error": {"message": "made up by a proxy", "type": _KINDS.get(status, "ServerError"), "code": status}}
    return status, {"content-type": "application/json"}, json.dumps(body).encode()
