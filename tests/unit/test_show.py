"""What a person sees of a run on a terminal."""

from __future__ import annotations

import io
import json
import logging
import time

import pytest
from rich.console import Console

from landonce.plan.blocks import Block, Plan
from landonce.plan.ranges import Partition, Range
from landonce.run import show
from landonce.run.inserts import Write
from landonce.run.show import LogProgress, TerminalProgress
from landonce.run.steps import Idle
from landonce.write.settle import Mode


def test_a_step_that_lasts_says_for_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first batch may take minutes, and nothing of it is recorded before its end."""
    now = [time.monotonic()]
    monkeypatch.setattr(show.time, "monotonic", lambda: now[0])
    screen = io.StringIO()
    blocks = tuple(Block((Range(Partition("t", 0), at, at + 10),), "events", number=at) for at in range(0, 30, 10))
    with TerminalProgress(Console(file=screen, width=160), "clicks") as progress:
        progress.step(Idle())
        progress.step(Write(Plan(1, blocks, "f", deadline=0), (0, 1, 2), Mode.FIRST))
        now[0] += 75
    shown = screen.getvalue()
    assert "writing blocks: 3, 75 s" in shown
    assert "waiting for records" not in shown


def test_a_short_step_says_only_its_name() -> None:
    screen = io.StringIO()
    with TerminalProgress(Console(file=screen, width=160), "clicks") as progress:
        progress.step(Idle())
    assert "waiting for records " in screen.getvalue()
    assert ", 0 s" not in screen.getvalue()


def test_a_stop_that_was_asked_for_is_no_trouble(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("test of landonce")
    with caplog.at_level(logging.INFO, log.name):
        LogProgress("clicks", log).note("stopping: what is in hand is finished first.")
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert json.loads(record.message)["event"] == "stopping"
