"""Sends blocks to an HTTP endpoint that accepts whatever it is sent: a block that is sent twice is there twice.

In a pipeline file: sink: {wrapped: {sink: "http_endpoint:sink", options: {url: "http://localhost:8099"}}}
The endpoint itself, for trying: python http_endpoint.py 8099 received.db
"""

import json
import sqlite3
import sys
import time
import urllib.error
import urllib.request
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import landonce

SECONDS = 5.0
"""The timeout of a request, in seconds. Soon after it, the request can no longer take effect."""


class Endpoint:
    """Not idempotent: each block is claimed in the ledger before it is sent, and probed if its answer is missing."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def push(self, block: landonce.PushedBlock) -> None:
        headers = {"Content-Type": "application/x-ndjson", "X-Deadline": str(block.deadline)}
        try:
            code = self._ask(urllib.request.Request(self._at(block), block.json_lines(), headers, method="POST"))
        except urllib.error.HTTPError as error:
            if error.code in (408, 429, 503):  # this endpoint refuses before it stores anything
                raise landonce.NotPushed(f"the endpoint answered {error.code}") from None
            raise
        except urllib.error.URLError as error:
            if isinstance(error.reason, ConnectionRefusedError):
                raise landonce.NotPushed("nobody listens there") from None
            raise
        _expect(201, code)

    def probe(self, block: landonce.PushedBlock) -> bool:
        try:
            code = self._ask(urllib.request.Request(self._at(block)))
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return False
            raise  # it cannot tell
        _expect(204, code)
        return True

    def _at(self, block: landonce.PushedBlock) -> str:
        return f"{self.url}/blocks/{block.key}"

    def _ask(self, request: urllib.request.Request) -> int:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(request, timeout=SECONDS) as answer:
            answer.read()
            return int(answer.status)


def _expect(wanted: int, code: int) -> None:
    """Any other code comes from something else: after a redirect, for example, no block was sent or probed."""
    if code != wanted:
        raise OSError(f"the endpoint answered {code}")


def sink(url: str) -> landonce.WrappedSink:
    return landonce.wrap(Endpoint(url), idempotent=False, settles_within=2 * SECONDS, name=f"endpoint {url}")


class Handler(BaseHTTPRequestHandler):
    """A tiny server with a database beside it. Rows and the block's key are one transaction."""

    database = "received.db"

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        body = self.rfile.read(length)
        if len(body) < length:
            return  # the sender died in the middle: part of a block must not count as all of it
        rows = [json.loads(line) for line in body.splitlines()]
        self._answer(201 if self._take(rows, int(self.headers["X-Deadline"])) else 408)

    def _take(self, rows: list[dict[str, object]], deadline: int) -> bool:
        """Refuses an attempt after its deadline, when the sender has given it up. Nothing waits after the check."""
        with closing(connected(self.database)) as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            if time.time() * 1000 > deadline:
                return False
            connection.execute("INSERT INTO blocks VALUES (?)", (self._key(),))
            connection.executemany(
                "INSERT INTO events VALUES (?, ?, ?, ?)",
                [(row["_topic"], row["_partition"], row["_offset"], json.dumps(row)) for row in rows],
            )
        return True

    def do_GET(self) -> None:
        with closing(connected(self.database)) as connection:
            found = connection.execute("SELECT 1 FROM blocks WHERE key = ?", (self._key(),)).fetchone()
        self._answer(204 if found else 404)

    def log_message(self, *_: object) -> None:
        pass

    def _key(self) -> str:
        return self.path.rpartition("/")[2]

    def _answer(self, code: int) -> None:
        self.send_response(code)
        if code != 204:
            self.send_header("Content-Length", "0")
        self.end_headers()


def connected(database: str) -> sqlite3.Connection:
    return sqlite3.connect(database, timeout=30)


def main() -> None:
    port, Handler.database = int(sys.argv[1]), sys.argv[2]
    with closing(connected(Handler.database)) as connection, connection:
        connection.execute("CREATE TABLE IF NOT EXISTS blocks (key TEXT)")
        connection.execute("CREATE TABLE IF NOT EXISTS events (topic TEXT, partition INT, offset INT, record TEXT)")
    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
