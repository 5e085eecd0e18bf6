"""A JVM that is killed is one error with a name, and no traceback of PySpark's own threads beside it."""

from __future__ import annotations

import socket
import struct
import threading

import pytest
from pyspark import accumulators

from landonce.engine.spark.session import need_java, quiet_at_its_end


@pytest.mark.parametrize(
    ("sent", "passed"),
    [(b"token" + struct.pack("!i", 0), ""), (b"other", "The value of the provided token")],
    ids=["a JVM that ends", "anything else"],
)
def test_the_server_for_accumulators_tells_only_what_is_not_the_end_of_the_jvm(
    sent: bytes, passed: str, capfd: pytest.CaptureFixture[str]
) -> None:
    server = accumulators._start_update_server("token")
    quiet_at_its_end(server)
    ended = threading.Event()
    shut = server.shutdown_request

    def shutdown_request(request: socket.socket) -> None:  # type: ignore[override]
        shut(request)
        ended.set()

    server.shutdown_request = shutdown_request  # type: ignore[method-assign,assignment]
    try:
        with socket.create_connection(server.server_address[:2]) as jvm:  # type: ignore[arg-type]
            jvm.sendall(sent)
        assert ended.wait(20)
    finally:
        server.shutdown()
    said = capfd.readouterr().err
    assert passed in said
    assert bool(passed) is bool(said)


def test_java_is_known_though_it_repeats_options_with_quotes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", '-Dname="a b"')
    need_java()
