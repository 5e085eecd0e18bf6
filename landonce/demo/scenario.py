"""The demo: start the servers, produce small JSON records, run `landonce run` in its own process, kill three times,
restart, prove."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from landonce.demo.stage import TOPIC, Proof, Stage
from landonce.errors import DemoFailed
from landonce.local import LocalKafka
from landonce.local.server import dying_with_parent, kill_tree

SCHEMA = (
    "id BIGINT NOT NULL, user STRING NOT NULL, event STRING NOT NULL, at TIMESTAMP(3) NOT NULL, amount DOUBLE NOT NULL"
)
_EVENTS = (b"view", b"click", b"buy", b"leave")
_REPORT = 20_000


def make_topic(bootstrap_servers: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for future in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        future.result(timeout=30)


def produce(
    bootstrap_servers: str, topic: str, partitions: int, records: int, report: Callable[[int], None]
) -> list[int]:
    """Produces the records, spread over the partitions, and returns how many each partition got."""
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
    counts = [0] * partitions
    for number in range(records):
        partition = number % partitions
        while True:
            try:
                producer.produce(topic, _record(number), partition=partition)
                break
            except BufferError:
                producer.poll(0.1)
        counts[partition] += 1
        if number % _REPORT == 0:
            producer.poll(0)
            report(number)
    left = producer.flush(120)
    if left:
        raise RuntimeError(f"{left} records could not be produced")
    report(records)
    return counts


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
    last: list[str] = field(default_factory=list)
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
            raise DemoFailed(f"the run did not end within {timeout:.0f} s:\n" + "\n".join(self.last[-15:])) from None
        self._thread.join(5)
        if code:
            raise DemoFailed(f"the run ended with exit code {code}:\n" + "\n".join(self.last[-15:]))

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
_PATIENCE = 300.0
_PIPELINE = Template("""\
pipeline: demo
source:
  kafka: {bootstrap_servers: "$bootstrap", topics: [$topic], schema: "$schema"}
$sink
batch: {interval: 0s, max_rows: $max_rows, block_rows: $block_rows}
dead_letters: {path: dead}
""")


@dataclass
class Demo:
    """One run of the demo."""

    console: Console
    folder: Path
    records: int
    stage: Stage
    kills: int = 0

    def play(self) -> Proof:
        self._say(f"landonce demo: {self.records:,} records, 3 kills. Everything runs in {self.folder}")
        began = time.monotonic()
        with LocalKafka(self.folder / "kafka") as kafka, self.stage.servers() as described:
            self._say(
                f"a real Kafka at {kafka.bootstrap_servers} and {described}, up in {time.monotonic() - began:.0f} s"
            )
            make_topic(kafka.bootstrap_servers, TOPIC, _PARTITIONS)
            with self._bar("producing") as advance:
                counts = produce(kafka.bootstrap_servers, TOPIC, _PARTITIONS, self.records, advance)
            file = self.folder / "demo.yaml"
            max_rows = max(1, self.records // _BATCHES)
            file.touch(mode=0o600)
            file.write_text(
                _PIPELINE.substitute(
                    bootstrap=kafka.bootstrap_servers,
                    topic=TOPIC,
                    schema=SCHEMA,
                    sink=self.stage.sink(),
                    max_rows=max_rows,
                    block_rows=max(1, max_rows // 2),
                )
            )
            with self._bar("landing") as advance:
                self._run_and_kill(file, advance)
            proof = self.stage.prove(counts, self.kills)
            self.console.print(proof.table(self.stage.place))
            self.stage.epilogue(self.console)
            return proof

    def _run_and_kill(self, file: Path, advance: Callable[[int], None]) -> None:
        landed = 0

        def count(rows: int) -> None:
            nonlocal landed
            landed += rows
            advance(landed)

        batch = 0
        while True:
            driver = DriverProcess(file, count)
            driver.start()
            if self.kills == 3:
                break
            found = self.stage.wait(batch, _PATIENCE, lambda: driver.process.poll() is None)  # noqa: B023
            if found is None:
                driver.kill()
                last = "\n".join(driver.last[-15:])
                raise DemoFailed(
                    f"the driver ended, or wrote nothing within {_PATIENCE:.0f} s, so nothing could be killed:\n{last}"
                )
            batch = found.batch
            self._say(f"batch {batch} is pending, {found.what}:")
            other = self.stage.third_kill() if self.kills == 2 else ""
            if other:
                self.kills += 1
                self._say(f"  {other}")
                break
            processes = driver.kill()
            self.kills += 1
            self._say(f"  killed the driver with -9 ({processes} processes), and start it again")
        driver.finish(_PATIENCE * 2)

    @contextmanager
    def _bar(self, what: str) -> Iterator[Callable[[int], None]]:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self.console) as progress:
            task = progress.add_task(what, total=self.records)
            yield lambda done: progress.update(task, completed=done)

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False)
