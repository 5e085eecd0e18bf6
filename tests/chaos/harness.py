"""Real drivers that are killed for real: `landonce run` in a session of its own, up to a failpoint, then SIGKILL.

Every wait has a limit, and everything that was started is gone when a `Drivers` block is left, however it is left.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from string import Template
from typing import Any

from confluent_kafka import KafkaError, Message, Producer
from oracle import Produced
from plain_process import UNDISTURBED, PlainProcess

from landonce.local.server import dying_with_parent, kill_tree, members

SCHEMA = "id BIGINT NOT NULL, word STRING NOT NULL, amount DOUBLE"
PATIENCE = 240.0
"""Seconds that a start may take to get anywhere, on a busy machine."""
_WORDS = ("plain", "ping", "tab\there", "line\nbreak", "quote'\"\\", "grüße", "", "日本")
_BAD = ('{"id": 1, "word": ', '{"id": "one", "word": "x"}', '{"id": 2}', "[]", "no json")
_PIPELINE = Template("""\
pipeline: $table
source:
  kafka: {bootstrap_servers: "$bootstrap", topics: [$topic], schema: "$schema"}
$transform
sink:
  clickhouse: {url: "$url", table: $table, create: true, deadline: $deadline$sink}
ledger: {sqlite: ledger}
batch: {$batch}
dead_letters: {path: dead}
stall: 60s
spark: {master: "$master"}
""")


@dataclass(frozen=True)
class Home:
    """A pipeline's folder: its file, its dead letters, the logs of its drivers."""

    folder: Path

    @property
    def file(self) -> Path:
        return self.folder / "pipeline.yaml"

    @property
    def dead(self) -> Path:
        return self.folder / "dead"

    def save(self, text: str) -> None:
        """The pipeline file, which may hold secrets."""
        self.file.write_text(text)
        self.file.chmod(0o600)

    def landonce(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Any other command of landonce, in a forked process. Its two streams come back as one."""
        log = self.folder / f"command-{time.monotonic_ns()}.log"
        code = PlainProcess(arguments, os.environ | UNDISTURBED, log).wait(PATIENCE)
        printed = log.read_text()
        return subprocess.CompletedProcess(arguments, code, printed, printed)

    def state(self) -> dict[str, Any]:
        """What `landonce state show` says of the ledger."""
        done = self.landonce("state", "show", str(self.file), "--json")
        assert done.returncode == 0, done.stdout
        return dict(json.loads(done.stdout)["ledger"])


@dataclass(frozen=True)
class Site(Home):
    """One pipeline of a test that writes to ClickHouse."""

    bootstrap: str
    url: str
    topic: str
    table: str
    partition_by: str = ""
    batch: str = "interval: 0s, max_rows: 1000, block_rows: 8"
    master: str = "local[2]"
    deadline: str = "1s"
    """Shorter than a worker takes to start: a first insert may be late, and is then made again. Longer: never late."""

    def write(self, where: str = "") -> None:
        """Writes the pipeline file, or writes it again."""
        text = _PIPELINE.substitute(
            table=self.table,
            bootstrap=self.bootstrap,
            topic=self.topic,
            schema=SCHEMA,
            url=self.url,
            batch=self.batch,
            master=self.master,
            deadline=self.deadline,
            transform=f'transform: {{where: "{where}"}}' if where else "",
            sink=f', partition_by: "{self.partition_by}"' if self.partition_by else "",
        )
        self.save(text)


@dataclass
class DriverRun:
    """One start of the driver."""

    process: subprocess.Popen[bytes]
    log: Path
    reached: Path
    place: str

    def wait_reached(self, timeout: float = PATIENCE) -> None:
        """Returns when the process stands at its failpoint; fails when it ended or took too long."""
        deadline = time.monotonic() + timeout
        while not self.reached.exists():
            if self.process.poll() is not None:
                raise AssertionError(f"ended with {self.process.returncode} before {self.place}:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise AssertionError(f"did not reach {self.place} within {timeout:.0f} s:\n{self.tail()}")
            time.sleep(0.02)
        assert self.reached.read_text().split()[0] == self.place

    def kill(self) -> None:
        """SIGKILL for the driver, its JVM and its workers."""
        kill_tree(self.process.pid)
        self.process.wait(10)
        assert not members(self.process.pid), "something of the driver survived SIGKILL"

    def finish(self, timeout: float = PATIENCE) -> int:
        """Waits for the end and gives the exit code."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"did not end within {timeout:.0f} s:\n{self.tail()}") from None
        kill_tree(self.process.pid)
        return code

    def terminate(self, timeout: float = PATIENCE) -> int:
        """SIGTERM for the driver alone, as a service manager sends it, and the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.finish(timeout)

    def events(self) -> list[dict[str, Any]]:
        """The structured lines of the log so far. The last one may not be whole yet."""
        found = []
        for line in self.log.read_text(errors="replace").rpartition("\n")[0].splitlines():
            if line.startswith("{"):
                found.append(json.loads(line))
        return found

    def steps(self) -> list[str]:
        """The protocol steps that were begun, the quiet ones left out."""
        return [event["step"] for event in self.events() if event["event"] == "step"]

    def waited_for(self, deadline: int) -> None:
        """The driver came to wait for this moment (in milliseconds) before it was over, and went on when it was."""
        steps = [(event["step"], event["at"]) for event in self.events() if event["event"] == "step"]
        at = next(number for number, (step, _) in enumerate(steps) if step == "await")
        began, ended = (datetime.fromisoformat(steps[number][1]).timestamp() * 1000 for number in (at, at + 1))
        assert began < deadline, "the deadline was over before anybody had to wait for it"
        assert ended > deadline, f"{steps[at + 1]} began {deadline - ended:.0f} ms before the deadline"

    def replaying(self) -> bool:
        """Whether a plan that an earlier driver left was being settled: this one had not prepared its own yet."""
        steps = self.steps()
        return ("await" in steps or "write" in steps) and "prepare" not in steps

    def tail(self, lines: int = 25) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


@dataclass
class Drivers:
    """All drivers of one test."""

    site: Home
    command: tuple[str, ...] = ()
    """What to start instead of `landonce run`."""
    runs: list[DriverRun] = field(default_factory=list)

    def __enter__(self) -> Drivers:
        return self

    def __exit__(self, *_: object) -> None:
        for run in self.runs:
            kill_tree(run.process.pid)
            run.process.wait(10)

    def start(
        self, place: str = "", *, skip: int = 0, once: bool = True, go: Path | None = None, thread: str = ""
    ) -> DriverRun:
        """Starts `landonce run`, to stop at `place` if one is named: until `go` exists, or for ever. `thread`: only in threads of this name."""
        number = len(self.runs) + 1
        log, reached = (self.site.folder / f"run-{number:03d}.{kind}" for kind in ("log", "reached"))
        environment = {
            "PYTHONUNBUFFERED": "1",
            "LANDONCE_FAILPOINT": place,
            "LANDONCE_FAILPOINT_SKIP": str(skip),
            "LANDONCE_FAILPOINT_FILE": str(reached) if place else "",
            "LANDONCE_FAILPOINT_WAIT_FOR": str(go) if go else "",
            "LANDONCE_FAILPOINT_THREAD": thread,
        }
        arguments = ("run", str(self.site.file), "--verbose", *(("--once",) if once else ()))
        run = DriverRun(self.spawn(arguments, environment, log), log, reached, place)
        self.runs.append(run)
        return run

    def spawn(self, arguments: tuple[str, ...], environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
        """A process of its own."""
        command = self.command or (sys.executable, "-m", "landonce", *arguments)
        with log.open("wb") as out:
            return subprocess.Popen(
                dying_with_parent(command),
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=os.environ | environment,
            )

    def kill_at(self, place: str, *, skip: int = 0, once: bool = True, thread: str = "") -> DriverRun:
        """One start that ends by SIGKILL at this place."""
        run = self.start(place, skip=skip, once=once, thread=thread)
        run.wait_reached()
        run.kill()
        return run

    def drain(self, timeout: float = PATIENCE) -> DriverRun:
        """One start that nobody disturbs: it lands what is there and ends well."""
        run = self.start()
        code = run.finish(timeout)
        assert code == 0, run.tail()
        return run


@dataclass
class Feed:
    """A producer that remembers what the broker acknowledged, and where."""

    bootstrap: str
    topic: str
    partitions: int = 2
    produced: list[Produced] = field(default_factory=list)
    extra: str = ""
    """The name of one more field in every record."""
    kinds: int = 0
    """How many values it has; 0: a record's number."""
    _next: int = 0

    def more(self, count: int, *, bad_every: int = 0) -> None:
        """Records for every partition in turn; every so many is one that cannot land."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "acks": "all"})
        for _ in range(count):
            self.send(producer, bad=bool(bad_every) and self._next % bad_every == bad_every - 1)
        assert producer.flush(60) == 0, "the broker did not take all records"

    def send(self, producer: Producer, *, bad: bool = False, into: list[Produced] | None = None) -> None:
        """One record; it counts in `into`, or in this feed, once it is acknowledged."""
        number, self._next = self._next, self._next + 1
        value = _BAD[number % len(_BAD)] if bad else good(number, self.extra, self.kinds)
        ledger = self.produced if into is None else into

        def acknowledged(error: KafkaError | None, message: Message) -> None:
            assert error is None, error
            ledger.append(Produced(message.topic(), message.partition(), message.offset(), value, bad))

        key = f"k{number}"
        producer.produce(self.topic, value, key=key, partition=number % self.partitions, on_delivery=acknowledged)
        producer.poll(0)


def good(number: int, extra: str = "", kinds: int = 0) -> str:
    """A payload that lands; words and amounts that a careless writer would spoil."""
    amount = None if number % 5 == 4 else number / 8
    payload = {"id": number, "word": _WORDS[number % len(_WORDS)], "amount": amount}
    return json.dumps(payload | ({extra: number % kinds if kinds else number} if extra else {}), ensure_ascii=False)
