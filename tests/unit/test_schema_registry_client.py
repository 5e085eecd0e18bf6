"""What a registry may answer, one HTTP server with ready answers for all."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from landonce.errors import ConfigError, RegistryRefused
from landonce.read.schema import registry as client
from landonce.read.schema.registry import Registered, UnknownSchema, registry_at

UNKNOWN = 404, json.dumps({"error_code": 40403, "message": "Schema not found"}).encode()
INT = 200, json.dumps({"schema": '"int"'}).encode()


class Answers:
    """A registry. `coming`: what it answers next; when that is used up, `always`."""

    def __init__(self) -> None:
        self.coming: list[tuple[int, bytes]] = []
        self.always = UNKNOWN
        self.asked = 0
        answers = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answers.asked += 1
                status, data = answers.coming.pop(0) if answers.coming else answers.answer(self.path)
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                """Says nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, path: str) -> tuple[int, bytes]:
        return self.always


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Answers]:
    monkeypatch.setattr(client, "_UNKNOWN_PAUSES", (0.0, 0.0, 0.0))
    client._waits.clear()
    client._unknown.clear()
    made = Answers()
    yield made
    made.server.shutdown()
    made.server.server_close()
    client._waits.clear()


def test_an_id_that_a_replica_does_not_know_yet_is_asked_for_again(answers: Answers) -> None:
    answers.coming, answers.always = [UNKNOWN] * 3, INT
    assert registry_at(answers.url).schema(1) == Registered("AVRO", '"int"')
    assert answers.asked == 4


def test_an_id_that_stays_unknown_is_asked_for_a_few_times(answers: Answers) -> None:
    for _ in range(3):
        with pytest.raises(UnknownSchema):
            registry_at(answers.url).schema(1)
    assert answers.asked == 4


def test_the_pauses_are_a_second_or_two() -> None:
    assert 1 <= sum(client._UNKNOWN_PAUSES) <= 2


def test_many_unknown_ids_neither_stop_the_process_nor_fill_it(
    answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_MOST_UNKNOWN", 15)
    for number in range(30):
        with pytest.raises(UnknownSchema):
            registry_at(answers.url).schema(number)
    assert answers.asked == 30 + 3 * client._MOST_WAITS
    assert [path for _, path in client._unknown] == [f"/schemas/ids/{number}" for number in range(15, 30)]


@pytest.mark.parametrize(
    "answer",
    [
        b"[" * 100_000 + b"]" * 100_000,
        b'{"schema": "x", "references": 5}',
        b'{"schema": "x", "references": [{"name": "a", "subject": "s", "version": Infinity}]}',
        b'{"schema": "x", "references": [{"name": "a", "subject": "\\ud800", "version": 1}]}',
    ],
)
def test_an_answer_that_is_none_is_refused_in_words(answers: Answers, answer: bytes) -> None:
    answers.always = 200, answer
    with pytest.raises(RegistryRefused, match="answered with"):
        registry_at(answers.url).schema(1)


def test_references_that_never_end_are_refused(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    def next_one(path: str) -> tuple[int, bytes]:
        reference = {"name": str(answers.asked), "subject": "s", "version": answers.asked}
        return 200, json.dumps({"schema": "x", "references": [reference]}).encode()

    monkeypatch.setattr(answers, "answer", next_one)
    with pytest.raises(RegistryRefused, match="references without an end"):
        registry_at(answers.url).schema(1)


@pytest.mark.parametrize(
    ("rest", "problem"),
    [
        ("h/\u00e4", "percent-encoded"),
        ("h/a b", "percent-encoded"),
        ("a b/", "a host that cannot exist"),
        ("a..b/", "a host that cannot exist"),
    ],
)
def test_a_url_that_no_request_can_hold_is_refused_without_showing_it(rest: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        registry_at(f"http://ann:hunter2@{rest}")
    assert "hunter2" not in str(caught.value)


def test_hosts_and_paths_that_requests_can_hold() -> None:
    for url in ("http://h/%C3%A4/b", "https://[::1]:8081", "http://m\u00fcnchen.example/x", "http://a_b.c:1"):
        registry_at(url)
