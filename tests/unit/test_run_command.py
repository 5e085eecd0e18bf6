"""`landonce run` as a person or a supervisor meets it: what it says of a stop, and what a terminal shows of a write in hand."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from landonce.cli.run import run
from landonce.engine import pipeline
from landonce.engine.driver import Driver
from landonce.engine.observe import Observer
from landonce.engine.pipeline import assembled
from landonce.protocol.blocks import Block, Plan
from landonce.protocol.ledger import Totals
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.settle import Mode
from landonce.protocol.steps import Write
from landonce.sinks.pipeline_file import Pipeline

BLOCKS = tuple(Block((Range(Partition("t", 0), at, at + 10),), "events", number=at) for at in range(0, 30, 10))
WRITE = Write(Plan(1, BLOCKS, "f", deadline=0), (0, 1, 2), Mode.FIRST)


@pytest.fixture(autouse=True)
def _own_handlers() -> Iterator[None]:
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    document = {
        "pipeline": "clicks",
        "source": {"kafka": {"bootstrap_servers": "127.0.0.1:1", "topics": ["clicks"]}},
        "sink": {"sql": {"url": "sqlite:///t.db", "table": "clicks"}},
    }
    (tmp_path / "clicks.yaml").write_text(yaml.safe_dump(document))
    return tmp_path / "clicks.yaml"


def running(monkeypatch: pytest.MonkeyPatch, then: Callable[[Observer, Driver], None]) -> None:
    """In place of a run: a driver is ready, and two of the three blocks that it writes are done."""

    def run_pipeline(config: Pipeline, *, observer: Observer, ready: Callable[[Driver], None], **_: object) -> Totals:
        sink = SimpleNamespace(deadline=0.0, interval=1.0)
        parts: Any = SimpleNamespace(
            config=config, broker=None, begins=None, mirror=lambda: None, ledger=None, sink=sink
        )
        hands: Any = None
        workers: Any = SimpleNamespace(start=lambda: 1, finished=lambda: 2)
        driver = assembled(parts, hands, workers, observer)
        ready(driver)
        then(observer, driver)
        return Totals(landed=1)

    monkeypatch.setattr(pipeline, "run_pipeline", run_pipeline)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_that_was_asked_for_is_not_logged_as_trouble(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    def stopped(_: Observer, driver: Driver) -> None:
        os.kill(os.getpid(), number)
        assert driver.stopping.wait(5)

    running(monkeypatch, stopped)
    run(file)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert "stopping" in [each["event"] for each in lines]
    assert "trouble" not in [each["event"] for each in lines]


def test_a_terminal_shows_how_many_blocks_of_a_write_are_done(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    running(monkeypatch, lambda observer, _: observer.step(WRITE))
    run(file)
    assert "clicks: writing batch 1, 2 of 3 blocks" in capsys.readouterr().err


BLOCKED = """
import sys, threading
from types import SimpleNamespace
from landonce.cli.command import log_to_stderr
from landonce.cli.progress import LogProgress
from landonce.cli.run import _Signals
log_to_stderr(False)
signals, driver = _Signals(LogProgress("clicks").note), SimpleNamespace(stopping=threading.Event())
signals.stop(driver)
print("writing", flush=True)
for _ in range(3000):
    sys.stderr.write("x" * 300 + "\\n")
print("stopping" if driver.stopping.is_set() else "running on", flush=True)
"""


def test_a_stop_is_heard_while_nobody_reads_the_log() -> None:
    """The signal comes in the middle of a write to a full pipe, to which its handler writes, too."""
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    process = subprocess.Popen(
        [sys.executable, "-c", BLOCKED], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=buffered
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "stopping\n"), err[-500:]
