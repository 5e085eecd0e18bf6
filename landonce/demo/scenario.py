"""The demo's story: start the servers, produce, run, kill three times, restart, prove."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from string import Template

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from landonce.demo.driver import DriverProcess
from landonce.demo.produce import SCHEMA, make_topic, produce
from landonce.demo.proof import Proof
from landonce.demo.stage import TOPIC, InFlight, Stage
from landonce.errors import DemoFailed
from landonce.local import LocalKafka

_PARTITIONS = 8
_BATCHES = 8
_PATIENCE = 90.0
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
            file = self._pipeline(kafka)
            with self._bar("landing") as advance:
                self._run_and_kill(file, advance)
            proof = self.stage.prove(counts, self.kills)
            self.console.print(proof.table(self.stage.place))
            self.stage.epilogue(self.console)
            return proof

    def _pipeline(self, kafka: LocalKafka) -> Path:
        file = self.folder / "demo.yaml"
        max_rows = max(1, self.records // _BATCHES)
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
        file.chmod(0o600)
        return file

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
            batch = self._moment(batch, driver).batch
            other = self.stage.third_kill() if self.kills == 2 else ""
            if other:
                self.kills += 1
                self._say(f"  {other}")
                break
            processes = driver.kill()
            self.kills += 1
            self._say(f"  killed the driver with -9 ({processes} processes), and start it again")
        driver.finish(_PATIENCE * 5)

    def _moment(self, after: int, driver: DriverProcess) -> InFlight:
        found = self.stage.wait(after, _PATIENCE, lambda: driver.process.poll() is None)
        if found is None:
            driver.kill()
            raise DemoFailed("nothing was seen in flight, so nothing could be killed:\n" + "\n".join(driver.last[-15:]))
        self._say(f"batch {found.batch} is pending, {found.what}:")
        return found

    @contextmanager
    def _bar(self, what: str) -> Iterator[Callable[[int], None]]:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self.console) as progress:
            task = progress.add_task(what, total=self.records)
            yield lambda done: progress.update(task, completed=done)

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False)
