"""The demo's story: start the servers, produce, run, kill three times, restart, prove."""

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

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from landonce.demo.produce import SCHEMA, make_topic, produce
from landonce.demo.proof import Proof, prove
from landonce.demo.watch import InFlight, Watch
from landonce.errors import DemoFailed
from landonce.local import LocalClickHouse, LocalKafka
from landonce.local.tree import kill_tree
from landonce.record.open import sqlite_ledger

TOPIC = "clicks"
_PARTITIONS = 8
_BATCHES = 8
_PATIENCE = 90.0
_PIPELINE = Template("""\
pipeline: demo
source:
  kafka: {bootstrap_servers: "$bootstrap", topics: [$topic], schema: "$schema"}
sink:
  clickhouse: {url: "$url", table: $topic, create: true, deadline: 5s}
ledger: {sqlite: demo.ledger}
batch: {interval: 0s, max_rows: $max_rows, block_rows: $block_rows}
dead_letters: {path: dead}
""")


@dataclass
class DriverProcess:
    """One `landonce run --once`, in a session of its own, and what its log said."""

    file: Path
    landed: Callable[[int], None]
    process: subprocess.Popen[str] = field(init=False)
    last: list[str] = field(default_factory=list)
    _thread: threading.Thread = field(init=False)

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "landonce", "run", str(self.file), "--once"],
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
                told = json.loads(line)
            except ValueError:
                continue
            if isinstance(told, dict) and told.get("event") == "batch":
                self.landed(int(told["landed"]))


@dataclass
class Demo:
    """One showing."""

    console: Console
    folder: Path
    records: int
    kills: int = 0

    def play(self) -> Proof:
        self._say(f"landonce demo: {self.records:,} records, 3 kills. Everything runs in {self.folder}")
        with self._servers() as (kafka, clickhouse):
            make_topic(kafka.bootstrap_servers, TOPIC, _PARTITIONS)
            with self._bar("producing") as advance:
                counts = produce(kafka.bootstrap_servers, TOPIC, _PARTITIONS, self.records, advance)
            file = self._pipeline(kafka, clickhouse)
            with self._bar("landing") as advance:
                self._run_and_kill(file, clickhouse, advance)
            return self._prove(clickhouse, counts)

    @contextmanager
    def _servers(self) -> Iterator[tuple[LocalKafka, LocalClickHouse]]:
        began = time.monotonic()
        with LocalKafka(self.folder / "kafka") as kafka, LocalClickHouse(self.folder / "clickhouse") as clickhouse:
            self._say(
                f"a real Kafka at {kafka.bootstrap_servers} and a real ClickHouse at port {clickhouse.http_port}, "
                f"up in {time.monotonic() - began:.0f} s"
            )
            yield kafka, clickhouse

    def _pipeline(self, kafka: LocalKafka, clickhouse: LocalClickHouse) -> Path:
        file = self.folder / "demo.yaml"
        max_rows = max(1, self.records // _BATCHES)
        file.write_text(
            _PIPELINE.substitute(
                bootstrap=kafka.bootstrap_servers,
                topic=TOPIC,
                schema=SCHEMA,
                url=clickhouse.url,
                max_rows=max_rows,
                block_rows=max(1, max_rows // 2),
            )
        )
        file.chmod(0o600)
        return file

    def _run_and_kill(self, file: Path, clickhouse: LocalClickHouse, advance: Callable[[int], None]) -> None:
        landed = 0

        def count(rows: int) -> None:
            nonlocal landed
            landed += rows
            advance(landed)

        watch = Watch(sqlite_ledger(self.folder / "demo.ledger", "demo"), clickhouse.url)
        batch = 0
        for _ in range(2):
            driver = DriverProcess(file, count)
            driver.start()
            batch = self._moment(watch, batch, driver).batch
            processes = driver.kill()
            self.kills += 1
            self._say(f"  killed the driver with -9 ({processes} processes), and start it again")
        driver = DriverProcess(file, count)
        driver.start()
        self._moment(watch, batch, driver)
        clickhouse.kill()
        self.kills += 1
        self._say("  killed the ClickHouse server with -9, and start it again")
        clickhouse.start()
        clickhouse.wait_ready(60)
        driver.finish(_PATIENCE * 2)

    def _moment(self, watch: Watch, after: int, driver: DriverProcess) -> InFlight:
        found = watch.wait(after_batch=after, timeout=_PATIENCE, alive=lambda: driver.process.poll() is None)
        if found is None:
            driver.kill()
            raise DemoFailed(
                "no block was seen in flight, so nothing could be killed:\n" + "\n".join(driver.last[-15:])
            )
        self._say(f"batch {found.batch} is pending, block {found.block} is in flight:")
        return found

    def _prove(self, clickhouse: LocalClickHouse, counts: list[int]) -> Proof:
        proof = prove(clickhouse.url, TOPIC, counts, self.kills)
        self.console.print(proof.table())
        return proof

    @contextmanager
    def _bar(self, what: str) -> Iterator[Callable[[int], None]]:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self.console) as progress:
            task = progress.add_task(what, total=self.records)
            yield lambda done: progress.update(task, completed=done)

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False)
