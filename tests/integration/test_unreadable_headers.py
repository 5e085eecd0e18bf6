"""A header whose name is not UTF-8: such a record lands, unless a column or a key is made of the headers. It never stops a pipeline."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer
from deliveries import letters
from plain_process import UNDISTURBED, PlainProcess
from unreadable_headers import send_unreadable

from landonce.local import LocalKafka

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

SAID = "the headers could not be read: the name of one is not UTF-8"
MANY = 100
"""So many that Python has specialized its calls of Kafka's client. Then a call that fails is not noticed, and the process crashes."""


class Pipeline:
    """From one topic into SQLite."""

    def __init__(self, kafka: LocalKafka, folder: Path, topic: str) -> None:
        self.servers, self.folder, self.topic = kafka.bootstrap_servers, folder, topic

    def send_unreadable(self, *values: bytes) -> None:
        send_unreadable(self.servers, self.topic, *values)

    def send(self, number: int) -> None:
        producer = Producer({"bootstrap.servers": self.servers})
        producer.produce(self.topic, b'{"id": %d}' % number, partition=0, headers=[("source", b"shop"), ("h", b"x")])
        assert producer.flush(30) == 0

    def write(self, *columns: str, **sections: Any) -> None:
        kafka = {"bootstrap_servers": self.servers, "topics": [self.topic], "schema": "id BIGINT NOT NULL"}
        document = {
            "pipeline": "odd",
            "source": {"kafka": {**kafka, "record_columns": [*columns]}},
            "sink": {"sql": {"url": "sqlite:///t.db", "table": "t", "create": True}},
            "dead_letters": {"path": "dead", "limit": "100%"},
        }
        (self.folder / "p.yaml").write_text(yaml.safe_dump({**document, **sections}))

    def does(self, *words: str) -> str:
        log = self.folder / "printed"
        process = PlainProcess([*words], {**os.environ, **UNDISTURBED}, log, folder=self.folder)
        try:
            assert process.wait(60) == 0, log.read_text()
        finally:
            process.kill()
        printed = log.read_text()
        log.unlink()
        return printed

    def ids(self) -> list[int]:
        with closing(sqlite3.connect(self.folder / "t.db")) as connection:
            return [each for (each,) in connection.execute("SELECT id FROM t ORDER BY id")]

    def letters(self) -> list[dict[str, Any]]:
        return sorted(letters(self.folder / "dead"), key=lambda each: each["offset"])


@pytest.fixture
def pipeline(kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path) -> Pipeline:
    return Pipeline(kafka, tmp_path, new_topic())


def test_it_lands_where_the_headers_do_not_matter_and_its_letter_says_that_they_could_not_be_read(
    pipeline: Pipeline,
) -> None:
    pipeline.write()
    pipeline.send(1)
    pipeline.send_unreadable(b'{"id": 2}', *[b"no json"] * MANY)
    pipeline.send(3)
    counted = f"{MANY + 3} read = 3 landed + {MANY} dead-lettered + 0 filtered"
    assert counted in pipeline.does("run", "p.yaml", "--once")
    assert pipeline.ids() == [1, 2, 3]
    for letter in pipeline.letters():
        assert letter["code"] == "malformed"
        assert letter["headers"] == [{"name": "landonce.unreadable", "value": SAID}]
    assert SAID in pipeline.does("dead", "show", "p.yaml")
    pipeline.does("verify", "p.yaml")


def test_where_a_column_holds_the_headers_it_is_a_dead_letter_after_a_replay_too(pipeline: Pipeline) -> None:
    pipeline.write("_headers")
    pipeline.send(1)
    pipeline.send_unreadable(*[b'{"id": 2}'] * MANY)
    pipeline.send(3)
    pipeline.does("run", "p.yaml", "--once")
    assert pipeline.ids() == [1, 3]
    assert len(pipeline.letters()) == MANY
    for letter in pipeline.letters():
        assert (letter["code"], letter["field"], letter["value"]) == ("not_utf8", "_headers", '{"id": 2}')
        assert letter["reason"] == "field '_headers' cannot be read: the name of a header is not valid UTF-8"
    pipeline.does("dead", "replay", "p.yaml", "--yes")
    assert pipeline.ids() == [1, 3]
    pipeline.does("verify", "p.yaml")


def test_where_a_header_is_part_of_the_key_of_events_it_is_a_dead_letter(pipeline: Pipeline) -> None:
    """Not null, which could be a value, and not a copy. `verify` reads both headers of each record by itself."""
    pipeline.write(dedup={"key": ["id", {"header": "source"}, {"header": "h"}], "on_null": "value"})
    pipeline.send(1)
    pipeline.send_unreadable(b"no json", *[b'{"id": 1}'] * MANY)
    pipeline.send(1)
    pipeline.does("run", "p.yaml", "--once")
    assert pipeline.ids() == [1]
    first, *others = pipeline.letters()
    assert first["code"] == "malformed"
    assert [(each["offset"], each["code"], each["reason"]) for each in others] == [
        (2 + at, "bad_key", "header 'source' cannot be read: the name of a header is not UTF-8") for at in range(MANY)
    ]
    pipeline.does("verify", "p.yaml")


def test_events_whose_key_is_of_fields_land_with_such_headers(pipeline: Pipeline) -> None:
    pipeline.write(dedup={"key": ["id"]})
    pipeline.send_unreadable(*[b'{"id": 1}', b'{"id": 2}'] * MANY)
    pipeline.does("run", "p.yaml", "--once")
    assert pipeline.ids() == [1, 2]
    pipeline.does("verify", "p.yaml")
