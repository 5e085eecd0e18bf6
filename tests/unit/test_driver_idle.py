"""An idle driver waits for what is left of the interval, and no longer; once it is over, it looks a few times a second."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from landonce.config.model import Batch
from landonce.engine.driver import Driver
from landonce.engine.observe import Silent
from landonce.engine.pipeline import assembled
from landonce.errors import Stalled, TargetUnavailable
from landonce.protocol.ledger import LedgerState
from landonce.protocol.packing import Pace
from landonce.sinks.parts import open_parts
from landonce.sinks.pipeline_file import parse


class Waits:
    """Notes how long it is waited for, and does not wait."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def wait(self, seconds: float) -> bool:
        self.seconds.append(seconds)
        return False

    def is_set(self) -> bool:
        return False


@pytest.mark.parametrize(
    ("interval", "passed", "least", "most"),
    [
        (0.2, 0.12, 0.0, 0.08),
        (1.0, 0.9, 0.0, 0.1),
        (1.0, 0.1, 0.5, 0.5),
        (0.0, 5.0, 0.2, 0.2),
        (0.3, 5.0, 0.3, 0.3),
        (10.0, 50.0, 0.5, 0.5),
    ],
)
def test_it_waits_for_what_is_left(interval: float, passed: float, least: float, most: float) -> None:
    waits = Waits()
    there: Any = SimpleNamespace(load_while_idle=lambda: None)
    driver = Driver("p", ("t",), there, there, there, Pace(Batch(interval=interval), 2.0, 1), 60.0, Silent(), waits)  # type: ignore[arg-type]
    driver._due = time.monotonic() - passed + interval
    assert driver._idle()
    assert least <= waits.seconds[0] <= most


def test_what_it_does_while_idle_may_fail_only_up_to_stall() -> None:
    def fails(_: object) -> None:
        raise TargetUnavailable("the store is read-only")

    there: Any = SimpleNamespace(load_while_idle=lambda: None)
    driver = Driver("p", ("t",), there, there, there, Pace(Batch(), 2.0, 1), 0.0, Silent(), Waits())  # type: ignore[arg-type]
    driver._state, driver.while_idle = LedgerState("p", lineage="l"), fails
    with pytest.raises(Stalled, match="the store is read-only"):
        driver._waiting.until(driver._idle)


@pytest.mark.parametrize(
    ("sink", "interval"),
    [
        ("sql: {url: 'sqlite:///t.db', table: t}", 1.0),
        ("iceberg: {catalog: {uri: 'sqlite:///c.db', warehouse: w}, table: db.t}", 60.0),
        ("iceberg: {catalog: {uri: 'sqlite:///c.db', warehouse: w}, table: db.t}\nbatch: {interval: 5s}", 5.0),
    ],
)
def test_the_interval_of_a_file_without_one_suits_its_sink(tmp_path: Path, sink: str, interval: float) -> None:
    """A batch into Iceberg is a snapshot and small files: one a minute."""
    source = "kafka: {bootstrap_servers: '127.0.0.1:1', topics: [t], schema: n INT}"
    parts = open_parts(parse(f"pipeline: p\nsource: {{{source}}}\nsink:\n  {sink}\n", tmp_path / "p.yaml"))
    workers: Any = SimpleNamespace(start=None, finished=None)
    driver = assembled(parts, workers, workers, Silent())
    assert driver.pace.batch.interval == interval
