"""Servers for as long as a test, a module or the session needs them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from landonce.local.server import LocalServer

_QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""No server of a test lives long enough for Java's second compiler: with it, Kafka takes twice the CPU time."""

Server = TypeVar("Server", bound=LocalServer)


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """Killed at the end, because nobody reads its folder again: MariaDB takes 20 seconds to stop in an orderly way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", _QUICK_JAVA)
        server.start()
    try:
        server.wait_ready()
        yield server
    finally:
        server.kill()
