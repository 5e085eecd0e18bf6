"""A pipeline of its own with `dedup`, and its judge: every event that was produced stands once, whatever was sent how often.

The judge knows an event by its field `id`, and a record by its coordinates. It uses none of landonce's code: it reads the target as the scene
of its sink does, and the store with plain SQL.
"""

from __future__ import annotations

import json
import random
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import oracle
import yaml
from chain import Kill
from confluent_kafka import KafkaError, Message, Producer
from harness import DriverRun, Drivers, Feed, good
from oracle import Produced
from scene import Play, freeze, wait_for

from landonce.sinks.pipeline_file import load

ACCEPT, PUSH = "MainThread", "landonce push"
"""The threads of the two drivers, and of their workers."""
_BAD = ('{"id": 1, "word": ', '{"id": "one", "word": "x"}', '{"id": 2}', "[]", "no json")


@dataclass
class Events(Feed):
    """A producer that sends about three of ten events again: at once, much later, and to any partition."""

    copies: float = 0.3
    differ: bool = False
    """Copies have another `word`."""
    since: int = 0
    """How many of the records that were sent are old: their events are not sent again."""
    _chance: random.Random = field(default_factory=lambda: random.Random(7))

    def send(self, producer: Producer, *, bad: bool = False, into: list[Produced] | None = None) -> None:
        number, self._next = self._next, self._next + 1
        value, partition = good(number), self._chance.randrange(self.partitions)
        sent = self.recent()
        if bad:
            value = _BAD[number // 5 % len(_BAD)]
        elif sent and self._chance.random() < self.copies:
            adjacent = self._chance.random() < 0.3
            first = sent[-1] if adjacent else self._chance.choice(sent)
            value = self.copied(first, number)
            partition = first.partition if adjacent else partition
        self.put(producer, value, partition, bad)
        producer.flush(60)

    def recent(self) -> list[Produced]:
        """The records of events that are not old."""
        old = {each.payload["id"] for each in self.produced[: self.since] if not each.bad}
        return [each for each in self.produced[self.since :] if not each.bad and each.payload["id"] not in old]

    def copied(self, first: Produced, number: int) -> str:
        fields = first.payload | ({"word": f"copy {number}"} if self.differ else {})
        return json.dumps(fields, ensure_ascii=False)

    def put(self, producer: Producer, value: str, partition: int, bad: bool = False, **more: Any) -> None:
        def acknowledged(error: KafkaError | None, message: Message) -> None:
            assert error is None, error
            self.produced.append(Produced(message.topic(), message.partition(), message.offset(), value, bad))

        producer.produce(self.topic, value, partition=partition, on_delivery=acknowledged, **more)
        producer.poll(0)

    def again(self, records: list[Produced] | None = None, **more: Any) -> None:
        """The same once more, each to the partition after its own."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "acks": "all"})
        for number, each in enumerate(list(self.produced) if records is None else records):
            if not each.bad:
                self.put(
                    producer, self.copied(each, 100_000 + number), (each.partition + 1) % self.partitions, False, **more
                )
        assert producer.flush(60) == 0

    def events(self, numbers: Iterable[int], **more: Any) -> None:
        """These events, once each."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "acks": "all"})
        for number in numbers:
            self.put(producer, good(number), number % self.partitions, **more)
        assert producer.flush(60) == 0

    @property
    def ids(self) -> set[int]:
        return {each.payload["id"] for each in self.produced if not each.bad}


BATCH = "interval: 0s, max_rows: 40, block_rows: 8"


def in_accept(*places: str, **more: int) -> list[Kill]:
    return [Kill(place, thread=ACCEPT, **more) for place in places]


def in_push(*places: str, **more: int) -> list[Kill]:
    return [Kill(place, thread=PUSH, **more) for place in places]


def around(*steps: str) -> list[str]:
    return [f"{step}.{side}" for step in steps for side in ("before", "after")]


CLEANING = [
    *in_accept("expired.before", "expired.after"),
    # The first, the second and the third of what a start removes.
    Kill("cleaned.before", thread=ACCEPT),
    Kill("cleaned.after", skip=1, thread=ACCEPT),
    Kill("cleaned.before", skip=2, thread=ACCEPT),
    # Stored blocks.
    *in_push("cleaned.before", "cleaned.after"),
]
"""Where keys expire, and where what nobody needs any more is removed."""


@dataclass
class Unique:
    """A play with `dedup`, judged by events."""

    play: Play
    feed: Events
    ask_store: Callable[[str], list[tuple[Any, ...]]]

    @property
    def drivers(self) -> Drivers:
        return self.play.drivers

    def rows(self) -> list[oracle.Row]:
        """Of all tables."""
        return [row for rows in self.play.landed().values() for row in rows]

    def letters(self) -> list[oracle.Letter]:
        dead = self.play.site.dead
        return [*oracle.letters(dead), *oracle.letters(dead / "pushed")]

    def unspoiled(self, when: str = "") -> None:
        """No event stands twice, and every row is a record that was produced."""
        rows, letters = self.rows(), self.letters()
        twice = [id_ for id_, count in Counter(row[3] for row in rows).items() if count > 1]
        assert twice == [], f"{when}: {twice}"
        assert not oracle.compare(oracle.expected_rows(self.feed.produced), rows).surplus, when
        assert oracle.twice(letters) == [], when
        assert not oracle.compare(oracle.expected_letters(self.feed.produced), letters).surplus, when

    def complete(self) -> bool:
        return {row[3] for row in self.rows()} == self.feed.ids

    def exact(self) -> None:
        """Every event stands once, every record that is none is a dead letter, and the store counts as the judge does."""
        self.unspoiled("at the end")
        found = {row[3] for row in self.rows()}
        assert found == self.feed.ids, f"{len(self.feed.ids - found)} missing: {sorted(self.feed.ids - found)[:5]}"
        letters = oracle.compare(oracle.expected_letters(self.feed.produced), self.letters())
        assert letters.exact, letters
        events = sum(not each.bad for each in self.feed.produced)
        assert self.counts() == (len(self.feed.ids), events - len(self.feed.ids))

    def counts(self) -> tuple[int, int]:
        """Accepted events, and copies; nothing is seen again, for no topic is read twice."""
        [(accepted, copies, again)] = self.ask_store("SELECT accepted, copies, seen_again FROM landonce_dedup_scope")
        assert again == 0
        return accepted, copies

    def suffer(self, kills: list[Kill]) -> None:
        """One start per kill: it recovers from the kill before. There are always new records, and copies of earlier ones."""
        for kill in kills:
            self.feed.more(12, bad_every=5)
            self.killed(kill)

    def killed(self, kill: Kill) -> DriverRun:
        run = self.drivers.kill_at(kill.place, skip=kill.skip, once=kill.once, thread=kill.thread)
        self.unspoiled(f"after {kill}")
        return run

    def pause_at(self, place: str, *, thread: str, skip: int = 0) -> DriverRun:
        """A process of both drivers that is stopped whole when one of them is at this place and the other one has nothing to do."""
        go = self.play.site.folder / f"go-{len(self.drivers.runs)}"
        run = self.drivers.start(place, skip=skip, go=go, thread=thread)
        run.wait_reached()
        steps: list[int] = []

        def quiet() -> bool:
            steps.append(len(run.steps()))
            return steps[-4:] == steps[-1:] * 4

        wait_for(quiet, "the other driver has nothing to do", run, every=0.25)
        freeze(run)
        go.touch()
        return run

    def settled(self, *, audited: bool = True) -> None:
        """One quiet run, and every event is there once. A second run lands nothing, a producer that repeats all that it sent adds nothing,
        `landonce verify` agrees, and who reads the topics again from the beginning lands nothing."""
        self.drivers.drain()
        self.exact()
        before = sorted(self.rows(), key=repr)
        assert ": 0 read = " in self.drivers.drain().tail(), "the second run read something"
        self.feed.again()
        self.drivers.drain()
        assert sorted(self.rows(), key=repr) == before
        self.exact()
        if audited:
            verified = self.play.site.landonce("verify", str(self.play.site.file), "--values")
            assert verified.returncode == 0, verified.stdout
        self.read_again()

    def read_again(self) -> None:
        """Another pipeline of the scope reads the topics from their beginnings, for a table of its own."""
        site = self.play.site
        first, document = load(site.file), yaml.safe_load(site.file.read_text())
        place = str(first.store_place).removeprefix("sqlite:///")
        kind = {"postgresql": "postgres", "mysql": "mysql", "mariadb": "mysql"}.get(
            re.split("[+:]", place)[0], "sqlite"
        )
        document |= {
            "pipeline": "again",
            "sink": {"sql": {"url": f"sqlite:///{site.folder}/again.db", "table": "again", "create": True}},
            "dead_letters": {"path": "dead-again", "limit": "100%"},
            "dedup": {"scope": first.pipeline, **document["dedup"], "store": {kind: place}},
        }
        document.pop("ledger", None)
        file = site.folder / "again.yaml"
        file.write_text(yaml.safe_dump(document))
        file.chmod(0o600)
        run = site.landonce("run", str(file), "--once")
        records = len(self.feed.produced)
        assert run.returncode == 0, run.stdout
        assert f"again: {records} read = 0 new + " in run.stdout, run.stdout
        with closing(sqlite3.connect(site.folder / "again.db")) as connection:
            assert connection.execute("SELECT count(*) FROM again").fetchone() == (0,)


def sqlite_store(path: Path) -> Callable[[str], list[tuple[Any, ...]]]:
    def ask(query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(path, timeout=60)) as connection:
            return connection.execute(query).fetchall()

    return ask


@contextmanager
def unique(
    play: Any,
    ask_store: Callable[[str], list[tuple[Any, ...]]],
    dedup: str = "key: [id]",
    *,
    differ: bool = False,
    seed: int = 7,
) -> Iterator[Unique]:
    """This play, with `dedup` in its file and a producer that repeats itself."""
    with play as opened:
        opened.site.save(opened.site.file.read_text() + f"dedup: {{{dedup}}}\n")
        feed = opened.feed
        opened.feed = Events(feed.bootstrap, feed.topic, feed.partitions, differ=differ, _chance=random.Random(seed))
        yield Unique(opened, opened.feed, ask_store)
