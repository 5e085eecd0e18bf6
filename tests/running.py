"""Servers for as long as a test, a module or the session needs them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from landonce.local.server import LocalServer

Server = TypeVar("Server", bound=LocalServer)


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """Killed at the end, because nobody reads its folder again: MariaDB takes 20 seconds to stop in an orderly way."""
    server.start()
    try:
        server.wait_ready()
        yield server
    finally:
        server.kill()
