"""Rows that are changed by their key, while the driver is killed everywhere: the table is what the last changes say.

The judge is a dictionary: each key with the last change that the broker acknowledged for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from chain import Kill
from confluent_kafka import KafkaError, Message, Producer
from harness import Drivers
from sql_scene import Base, base, postgres_judge, sqlite_judge

from landonce.local import LocalKafka

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(1500)]

BATCH = "interval: 0s, max_rows: 40, block_rows: 10"
KEYED = "mode: upsert, key: id"
QUICK = [
    Kill("prepare.after"),
    Kill("flip.after", replay=True),
    Kill("rows.after", replay=True),
    Kill("landed.after", replay=True),
    Kill("record.before"),
]
REST = [
    Kill("acquire.after"),
    Kill("prepare.before", replay=False),
    Kill("read.after"),
    Kill("stage.after", replay=True),
    Kill("rows.after", skip=1, replay=True),
    Kill("landed.after", skip=1),
    Kill("write.after", replay=True),
    Kill("commit.after"),
    Kill("record.after"),
]
_KEYS = 12


@dataclass
class Changing:
    """A producer of changes: a few keys, changed again and again, each in a partition of its own, and tombstones."""

    play: Base
    due: dict[int, str] = field(default_factory=dict)
    sent: set[tuple[int, str | None]] = field(default_factory=set)
    produced: int = 0

    def more(self, count: int) -> None:
        feed = self.play.feed
        producer = Producer({"bootstrap.servers": feed.bootstrap, "acks": "all"})
        for number in range(self.produced, self.produced + count):
            key = number * 7 % _KEYS
            word = None if number % 5 == 3 else f"word {number}"
            value = None if word is None else json.dumps({"id": key, "word": word, "amount": number / 4})

            def acknowledged(error: KafkaError | None, _: Message, key: int = key, word: str | None = word) -> None:
                assert error is None, error
                self.sent.add((key, word))
                if word is None:
                    self.due.pop(key, None)
                else:
                    self.due[key] = word

            producer.produce(
                feed.topic,
                value,
                key=json.dumps({"id": key}),
                partition=key % feed.partitions,
                on_delivery=acknowledged,
            )
            assert producer.flush(60) == 0, "one after the other, so that the last one acknowledged is the last one"
        self.produced += count

    def rows(self) -> list[tuple[int, str]]:
        return self.play.judge.ask("SELECT id, word FROM events") if self.play.judge.there() else []

    def unspoiled(self, when: str) -> None:
        rows = self.rows()
        assert len(dict(rows)) == len(rows), f"a key twice {when}"
        assert set(rows) <= self.sent, f"rows that nobody sent {when}"

    def settled(self) -> None:
        self.play.drivers.drain()
        assert dict(self.rows()) == self.due
        assert self.play.blocks() == []
        state = self.play.site.state()
        assert (state["pending"], state["totals"]["read"]) == (None, self.produced)
        verified = self.play.site.landonce("verify", str(self.play.site.file))
        assert verified.returncode == 0, verified.stdout + verified.stderr


def suffer(play: Base, kills: list[Kill]) -> Changing:
    """Each start recovers from the kill before it, and the same keys are changed again before each."""
    changing = Changing(play)
    drivers: Drivers = play.drivers
    for kill in kills:
        changing.more(10)
        run = drivers.kill_at(kill.place, skip=kill.skip, once=kill.once)
        if kill.replay is not None:
            assert run.replaying() == kill.replay, f"{kill}: {run.steps()}"
        changing.unspoiled(f"after {kill}")
    changing.settled()
    return changing


@pytest.fixture
def in_postgres(
    tmp_path: Path,
    kafka: LocalKafka,
    new_topic: Callable[..., str],
    new_database: Callable[[], str],
    drivers: type[Drivers],
) -> Iterator[Base]:
    url, topic = new_database(), new_topic(2)
    with base(tmp_path, kafka, topic, url, postgres_judge(url), batch=BATCH, sink=KEYED, drivers=drivers) as made:
        yield made


@pytest.fixture
def in_sqlite(
    tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str], drivers: type[Drivers]
) -> Iterator[Base]:
    judge, url = sqlite_judge(tmp_path / "target.db"), "sqlite:///target.db"
    with base(tmp_path, kafka, new_topic(2), url, judge, batch=BATCH, sink=KEYED, drivers=drivers) as made:
        yield made


def test_changes_survive_kills_in_postgres(in_postgres: Base) -> None:
    changing = suffer(in_postgres, QUICK)
    assert 0 < len(changing.due) < _KEYS, "some of them were deleted"


@pytest.mark.long
@pytest.mark.parametrize("where", ["in_postgres", "in_sqlite"])
@pytest.mark.usefixtures("drivers")
def test_changes_survive_kills_everywhere(where: str, request: pytest.FixtureRequest) -> None:
    suffer(request.getfixturevalue(where), [*QUICK, *REST])
