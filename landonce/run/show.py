"""Progress for people: one live line on a terminal, one structured line per event in a log."""

from __future__ import annotations

import json
import logging
import time
from datetime import datetime, timezone
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from landonce.config.secrets import redact
from landonce.record.ledger import Totals
from landonce.run.observe import BatchReport
from landonce.run.steps import AnyEffect, Step

_QUIET = {Step.SURVEY, Step.IDLE}
_LONG = 2.0
"""Seconds."""


class TerminalProgress:
    """A small table that is kept up to date in place."""

    def __init__(self, console: Console, pipeline: str) -> None:
        self._console = console
        self._pipeline = pipeline
        self._totals = Totals()
        self._last: BatchReport | None = None
        self._at = ""
        self._lag: int | None = None
        self._step, self._since = "starting", time.monotonic()
        self._live = Live(console=console, refresh_per_second=4, get_renderable=self._render, transient=False)

    def __enter__(self) -> TerminalProgress:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def step(self, effect: AnyEffect) -> None:
        self._step, self._since = _words(effect), time.monotonic()

    def batch(self, report: BatchReport) -> None:
        self._totals = self._totals.plus(report.totals)
        self._last = report
        self._lag = report.lag
        self._at = datetime.now().strftime("%H:%M:%S")

    def trouble(self, what: str) -> None:
        self._console.print(redact(what), style="yellow", markup=False, highlight=False)

    def note(self, what: str) -> None:
        """What was asked for, and goes as it should."""
        self._console.print(redact(what), style="dim", markup=False, highlight=False)

    def lag(self, records: int) -> None:
        self._lag = records

    def _render(self) -> Table:
        last = self._last
        table = Table(box=None, pad_edge=False, show_header=True, header_style="dim")
        for name in ("pipeline", "step", "landed", "dead letters", "filtered", "rows/s", "lag", "last commit"):
            table.add_column(name)
        table.add_row(
            self._pipeline,
            _lasting(self._step, time.monotonic() - self._since),
            f"{self._totals.landed:,}",
            f"{self._totals.dead_lettered:,}",
            f"{self._totals.filtered:,}",
            f"{last.rows_per_second:,.0f}" if last else "-",
            f"{self._lag:,}" if self._lag is not None else "-",
            f"batch {last.batch} at {self._at}" if last else "-",
        )
        return table


class LogProgress:
    """One JSON object per line, for machines."""

    def __init__(self, pipeline: str, logger: logging.Logger | None = None) -> None:
        self._pipeline = pipeline
        self._log = logger or logging.getLogger("landonce")

    def __enter__(self) -> LogProgress:
        """Spark takes its time to start."""
        self._say("starting")
        return self

    def __exit__(self, *_: object) -> None: ...

    def step(self, effect: AnyEffect) -> None:
        if effect.step not in _QUIET:
            self._say("step", logging.DEBUG, step=effect.step.value)

    def batch(self, report: BatchReport) -> None:
        why: dict[str, Any] = {"reasons": {each.cause: each.records for each in report.reasons}}
        self._say(
            "batch",
            batch=report.batch,
            kind=report.kind,
            blocks=report.blocks,
            read=report.totals.read,
            landed=report.totals.landed,
            dead_lettered=report.totals.dead_lettered,
            filtered=report.totals.filtered,
            seconds=round(report.seconds, 3),
            rows_per_second=round(report.rows_per_second),
            lag=report.lag,
            **(why if report.reasons else {}),
        )

    def trouble(self, what: str) -> None:
        self._say("trouble", logging.WARNING, what=redact(what))

    def note(self, what: str) -> None:
        """What was asked for, and goes as it should."""
        self._say("stopping", what=redact(what))

    def lag(self, records: int) -> None:
        """Every batch has it."""

    def _say(self, event: str, level: int = logging.INFO, **facts: object) -> None:
        at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        self._log.log(level, json.dumps({"at": at, "event": event, "pipeline": self._pipeline, **facts}))


def _lasting(step: str, seconds: float) -> str:
    """A step that takes its time says for how long already."""
    return f"{step}, {seconds:.0f} s" if seconds >= _LONG else step


def _words(effect: AnyEffect) -> str:
    if effect.step is Step.WRITE:
        return f"writing blocks: {len(getattr(effect, 'indexes', ()))}"
    words = {
        Step.ACQUIRE: "taking the pipeline",
        Step.SURVEY: "looking at Kafka",
        Step.AWAIT: "waiting out a deadline",
        Step.KILL: "ending old inserts",
        Step.REARM: "arming the pending plan",
        Step.LOOK: "looking at the target",
        Step.IDLE: "waiting for records",
    }
    return words.get(effect.step) or str(effect.step.value)
