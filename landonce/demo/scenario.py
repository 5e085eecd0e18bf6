"""The demo: start the servers, produce small JSON records, run `landonce run` in its own process, kill three times,
restart, prove.

`Demo` lands records. `DedupDemo` lands events, from a producer that sends some of them again.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import ClassVar

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from landonce.demo.proof import Proof, prove_events, prove_records
from landonce.demo.stage import TOPIC, DemoSink, InFlight
from landonce.errors import DemoFailed
from landonce.local import LocalKafka
from landonce.local.server import dying_with_parent, kill_tree

SCHEMA = (
    "id BIGINT NOT NULL, user STRING NOT NULL, event STRING NOT NULL, at TIMESTAMP(3) NOT NULL, amount DOUBLE NOT NULL"
)
_EVENTS = (b"view", b"click", b"buy", b"leave")
_REPORT = 20_000


def produce(
    bootstrap_servers: str, topic: str, records: Iterable[tuple[int, int]], report: Callable[[int], None]
) -> int:
    """Produces the records with these numbers, each to its partition, where they keep their order. Gives their number.

    `report` gets how many records there are since the last report.
    """
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 1_000_000,
            "enable.idempotence": True,
            "log_level": 2,
        }
    )
    count = 0
    for number, partition in records:
        while True:
            try:
                producer.produce(topic, _record(number), partition=partition)
                break
            except BufferError:
                producer.poll(0.1)
        count += 1
        if count % _REPORT == 0:
            producer.poll(0)
            report(_REPORT)
    left = producer.flush(120)
    if left:
        raise RuntimeError(f"{left} records could not be produced")
    report(count % _REPORT)
    return count


def _record(number: int) -> bytes:
    return b'{"id":%d,"user":"user-%05d","event":"%s","at":"2026-11-01T12:%02d:%02d.%03dZ","amount":%d.%02d}' % (
        number,
        number * 7919 % 50_000,
        _EVENTS[number % 4],
        number // 60_000 % 60,
        number // 1000 % 60,
        number % 1000,
        number % 997,
        number % 100,
    )


@dataclass
class DriverProcess:
    """One `landonce run --once`, in its own session, and what its log reports."""

    file: Path
    landed: Callable[[int], None]
    process: subprocess.Popen[str] = field(init=False)
    last: deque[str] = field(default_factory=lambda: deque(maxlen=15))
    """The end of its log."""
    _thread: threading.Thread = field(init=False)

    def start(self) -> None:
        self.process = subprocess.Popen(
            dying_with_parent([sys.executable, "-m", "landonce", "run", str(self.file), "--once"]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def kill(self) -> int:
        """SIGKILL for the driver, its JVM and its workers."""
        count = kill_tree(self.process.pid)
        self.process.wait()
        self._thread.join(5)
        return count

    def finish(self, timeout: float) -> None:
        """Waits for the end of the run."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise DemoFailed("\n".join((f"the run did not end within {timeout:.0f} s:", *self.last))) from None
        self._thread.join(5)
        if code:
            raise DemoFailed("\n".join((f"the run ended with exit code {code}:", *self.last)))

    def _listen(self) -> None:
        for line in self.process.stderr or ():
            self.last.append(line.rstrip())
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict) and event.get("event") == "batch":
                self.landed(int(event["landed"]))


_PARTITIONS = 8
_BATCHES = 8
_KILLS = 3
_PATIENCE = 300.0
_PIPELINE = Template("""\
pipeline: demo
source:
  kafka: {bootstrap_servers: "$bootstrap", topics: [$topic], schema: "$schema"}
$sink
$dedup
batch: {interval: 0s, max_rows: $max_rows, block_rows: $block_rows}
dead_letters: {path: dead}
""")


@dataclass
class Demo:
    """One run of the demo: every record is sent once, before the first start."""

    console: Console
    folder: Path
    records: int
    stage: DemoSink
    kills: int = 0
    sent_are: ClassVar[str] = "records"
    deduplicates: ClassVar[bool] = False

    def play(self) -> Proof:
        self._say(f"landonce demo: {self.records:,} {self.sent_are}, {_KILLS} kills. Everything runs in {self.folder}")
        began = time.monotonic()
        with LocalKafka(self.folder / "kafka") as kafka, self.stage.servers() as described:
            server = kafka.bootstrap_servers
            self._say(f"a real Kafka at {server} and {described}, up in {time.monotonic() - began:.0f} s")
            admin = AdminClient({"bootstrap.servers": server, "log_level": 2})
            admin.create_topics([NewTopic(TOPIC, _PARTITIONS, 1)])[TOPIC].result(timeout=30)
            file = self._file(server)
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            with Progress(*columns, console=self.console) as progress:
                self._run_and_kill(file, server, progress)
            proof = self.prove()
            self.console.print(proof.table(self.stage.place))
            self.stage.epilogue(self.console)
            return proof

    def to_read(self) -> int:
        """The number of records that are sent in all."""
        return self.records

    def to_send(self) -> Iterator[tuple[int, int]]:
        """The records to send before the next start, each with its partition."""
        return iter(()) if self.kills else ((number, number % _PARTITIONS) for number in range(self.records))

    def moment(self, after: int) -> InFlight | None:
        """A batch above `after` that is to be killed now."""
        return self.stage.in_flight(after)

    def prove(self) -> Proof:
        produced = [len(range(partition, self.records, _PARTITIONS)) for partition in range(_PARTITIONS)]
        return prove_records(self.stage.rows(), produced, self.kills)

    def _file(self, bootstrap_servers: str) -> Path:
        file = self.folder / "demo.yaml"
        max_rows = max(1, self.records // _BATCHES)
        file.touch(mode=0o600)
        file.write_text(
            _PIPELINE.substitute(
                bootstrap=bootstrap_servers,
                topic=TOPIC,
                schema=SCHEMA,
                sink=self.stage.sink(),
                dedup=self.stage.dedup if self.deduplicates else "",
                max_rows=max_rows,
                block_rows=max(1, max_rows // 2),
            )
        )
        return file

    def _run_and_kill(self, file: Path, bootstrap_servers: str, progress: Progress) -> None:
        producing = progress.add_task("producing", total=self.to_read())

        def send() -> int:
            return produce(bootstrap_servers, TOPIC, self.to_send(), lambda count: progress.advance(producing, count))

        send()
        landing = progress.add_task("landing", total=self.records)

        def start() -> DriverProcess:
            driver = DriverProcess(file, lambda rows: progress.advance(landing, rows))
            driver.start()
            return driver

        batch, driver = 0, start()
        while self.kills < _KILLS:
            batch = self._wait(driver, batch)
            server = self.stage.third_kill() if self.kills == _KILLS - 1 else ""
            if server:
                self._say(f"  {server}")
                driver.finish(_PATIENCE * 2)
            else:
                self._say(f"  killed the driver with -9 ({driver.kill()} processes), and start it again")
            self.kills += 1
            if send() or not server:
                driver = start()
        driver.finish(_PATIENCE * 2)

    def _wait(self, driver: DriverProcess, after: int) -> int:
        """Until it is time to kill; gives the batch."""
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end and driver.process.poll() is None:
            if (found := self.moment(after)) is not None:
                half = ("push: " if self.kills else "accept: ") if self.deduplicates else ""
                self._say(f"{half}batch {found.batch} is pending, {found.what}:")
                return found.batch
            time.sleep(0.003)
        driver.kill()
        what = f"the driver ended, or wrote nothing within {_PATIENCE:.0f} s, so nothing could be killed:"
        raise DemoFailed("\n".join((what, *driver.last)))

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False)


_ROUNDS = _KILLS + 1
_COPIED = (2, 5, 8)
"""Of ten events, those after which a copy is sent."""


@dataclass
class DedupDemo(Demo):
    """The producer sends a quarter of the events before each start, and three copies for ten events. Kills the driver
    while it accepts, then while it pushes; then the server."""

    sent: list[array[int]] = field(default_factory=lambda: [array("q") for _ in range(_PARTITIONS)])
    """The events of each partition's records, in the order of their offsets."""
    copies: Counter[str] = field(default_factory=Counter)
    sent_are = "events, of which the producer sends some again"
    deduplicates = True
    _chance: random.Random = field(default_factory=lambda: random.Random(7))  # noqa: S311  which event is copied

    def to_read(self) -> int:
        return self.records + sum(len(range(each, self.records, 10)) for each in _COPIED)

    def to_send(self) -> Iterator[tuple[int, int]]:
        """The events of one round. Copies are sent at once, later, to another partition, and after a restart."""
        first, end = (self.records * each // _ROUNDS for each in (self.kills, self.kills + 1))
        for event in range(first, end):
            yield self._note(event, event % _PARTITIONS)
            if event % 10 in _COPIED:
                yield self._copy(first, event)

    def _copy(self, first: int, event: int) -> tuple[int, int]:
        """`first`: the first event of this round. Before it, there was a kill."""
        kinds = ("at once", "later", "in another partition", "after a restart")[: 4 if first else 3]
        kind = kinds[sum(self.copies.values()) % len(kinds)]
        self.copies[kind] += 1
        if kind == "later":
            event = self._chance.randrange(first, event + 1)
        elif kind == "after a restart":
            event = self._chance.randrange(first)
        elsewhere = self._chance.randrange(1, _PARTITIONS) if kind == "in another partition" else 0
        return self._note(event, (event + elsewhere) % _PARTITIONS)

    def _note(self, event: int, partition: int) -> tuple[int, int]:
        self.sent[partition].append(event)
        return event, partition

    def moment(self, after: int) -> InFlight | None:
        """The two halves number their batches by themselves."""
        return self.stage.in_flight(after if self.kills > 1 else 0) if self.kills else self.stage.accepting()

    def prove(self) -> Proof:
        copies = ", ".join(f"{count:,} {kind}" for kind, count in self.copies.items())
        self._say(f"the producer sent {self.copies.total():,} copies: {copies}")
        return prove_events(self.stage.rows(), self.sent, self.kills)
