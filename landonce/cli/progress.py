"""The progress of a run: a few live lines on a terminal, or one JSON line per event in a log."""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Literal

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from landonce.config.secrets import redact
from landonce.engine.observe import AcceptReport, BatchReport
from landonce.protocol.blocks import Plan
from landonce.protocol.ledger import Totals
from landonce.protocol.reasons import by_code
from landonce.protocol.steps import Effect, Step

_QUIET = {Step.SURVEY, Step.IDLE}
_LONG = 2.0
"""Seconds after which a step shows its duration so far."""


class TerminalProgress:
    """Three or four lines, updated in place. They fit into 80 columns, and numbers keep their positions."""

    def __init__(self, console: Console, pipeline: str) -> None:
        self._console = console
        self._pipeline = pipeline
        self._totals = Totals()
        self._committed_at = ""
        self._lag: int | None = None
        self._step, self._since = "starting", time.monotonic()
        self._writing: _Writing | None = None
        self._written: _Writing | None = None
        """Written and not recorded yet."""
        self._finished: Callable[[], int] = lambda: 0
        self._accepted: AcceptedSoFar | None = None
        """With `dedup`."""
        self._pace = CatchUp()
        self._live = Live(console=console, refresh_per_second=4, get_renderable=self._render, transient=False)

    def __enter__(self) -> TerminalProgress:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def watch(self, finished: Callable[[], int]) -> None:
        """`finished` returns how many blocks of the current write are done."""
        self._finished = finished

    def step(self, effect: Effect) -> None:
        written = self._writing or self._written
        self._written = written if effect.step in (Step.COMMIT, Step.RECORD) else None
        self._writing = _Writing.of(effect) if effect.step is Step.WRITE else None
        self._step, self._since = _words(effect), time.monotonic()

    def batch(self, report: BatchReport) -> None:
        self._totals = self._totals.plus(report.totals)
        if self._accepted is None:
            self._recorded(report)
        self._committed_at = datetime.now().strftime("%H:%M:%S")

    def accepted(self, report: AcceptReport) -> None:
        self._accepted = (self._accepted or AcceptedSoFar()).plus(report)
        self._recorded(report.batch)

    def pushing(self, effect: Effect) -> None:
        """What people watch is how far accepting is. What waits to be pushed is seen by the numbers."""
        del effect
        self._accepted = self._accepted or AcceptedSoFar()

    def _recorded(self, report: BatchReport) -> None:
        """A batch of what is read from Kafka."""
        self._written = None
        self._lag = report.lag

    def trouble(self, what: str) -> None:
        self._console.print(redact(what), style="yellow", markup=False, highlight=False)

    def inferred(self, words: str) -> None:
        self._console.print(redact(words), markup=False, highlight=False)

    def note(self, what: str) -> None:
        """Not a problem: the effect of a signal."""
        self._console.print(redact(what), style="dim", markup=False, highlight=False)

    def lag(self, records: int) -> None:
        self._lag = records

    def _render(self) -> Group:
        now = time.monotonic()
        blocks = 0
        if self._writing is not None:
            try:
                blocks = self._finished()
            except Exception:  # only for display: if Spark fails, the write itself raises the error
                self._finished = lambda: 0
        flying = self._writing.records(blocks) if self._writing else 0
        flying += self._written.offsets if self._written else 0
        left = max(0, self._lag - flying) if self._lag is not None else None
        read = self._totals.read if self._accepted is None else self._accepted.totals.read
        self._pace.see(now, read + flying, left)
        step = self._writing.words(blocks) if self._writing else self._step
        lasting = f", {now - self._since:.0f} s" if now - self._since >= _LONG else ""
        head = Text(f"{self._pipeline}: {step}{lasting}", no_wrap=True, overflow="ellipsis")
        rate = self._pace.rate
        numbers = Table.grid(padding=(0, 1))
        for width in _WIDTHS:
            numbers.add_column(width=width[0], justify=width[1], no_wrap=True, style=width[2])
        dead = self._totals.dead_lettered
        if self._accepted is not None:
            dead += self._accepted.totals.dead_lettered
            numbers.add_row("new", f"{self._accepted.totals.landed:,}", "copies", f"{self._accepted.copies:,}")
        numbers.add_row("landed", f"{self._totals.landed:,}", "dead letters", f"{dead:,}")
        filtered = self._totals.filtered + (self._accepted.filtered if self._accepted is not None else 0)
        numbers.add_row("filtered", f"{filtered:,}", "last commit", self._committed_at or "-")
        numbers.add_row(
            "lag", f"{left:,}" if left is not None else "-", "records/s", f"{rate:,.0f}" if rate is not None else "-"
        )
        return Group(head, numbers, self._bar(left))

    def _bar(self, left: int | None) -> RenderableType:
        """While the run catches up: the share that is done, and the time left at the rate of the last seconds."""
        if not left or self._pace.done is None:
            return Text("up to date" if left == 0 and self._committed_at else "", style="dim")
        share, seconds = self._pace.done, self._pace.seconds_left
        line = Table.grid(padding=(0, 1))
        line.add_column(width=_BAR)
        line.add_column(width=5, justify="right")
        line.add_column(no_wrap=True)
        line.add_row(
            ProgressBar(total=1.0, completed=share, width=_BAR),
            f"{share:.0%}",
            f"about {_duration(seconds)} left" if seconds is not None else "",
        )
        return line


@dataclass(frozen=True)
class AcceptedSoFar:
    """What a run with `dedup` has accepted."""

    totals: Totals = field(default_factory=Totals)
    copies: int = 0

    def plus(self, report: AcceptReport) -> AcceptedSoFar:
        return AcceptedSoFar(self.totals.plus(report.batch.totals), self.copies + report.copies)

    @property
    def filtered(self) -> int:
        """What was left out for another reason: seen again, or too late."""
        return self.totals.filtered - self.copies


_WIDTHS: tuple[tuple[int, Literal["left", "right"], str], ...] = (
    (8, "left", "dim"),
    (16, "right", ""),
    (14, "left", "dim"),
    (12, "right", ""),
)
_BAR = 30


@dataclass(frozen=True)
class _Writing:
    """The current write."""

    batch: int
    blocks: int
    offsets: int

    @classmethod
    def of(cls, effect: Effect) -> _Writing | None:
        plan: Plan | None = getattr(effect, "plan", None)
        indexes: tuple[int, ...] = getattr(effect, "indexes", ())
        if plan is None or not indexes:
            return None
        return cls(plan.batch, len(indexes), sum(plan.blocks[each].span for each in indexes))

    def records(self, done: int) -> int:
        """An estimate: blocks have about the same size."""
        return self.offsets * min(done, self.blocks) // self.blocks

    def words(self, done: int) -> str:
        return f"writing batch {self.batch}, {min(done, self.blocks)} of {self.blocks} blocks"


class CatchUp:
    """The rate of a run, and the time until it has caught up, from the last seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, int | None]] = deque()
        self._from = 0
        self.rate: float | None = None
        """Records per second."""
        self.seconds_left: float | None = None
        """None if the topic grows as fast as it is read, or there are too few measurements."""
        self.done: float | None = None
        """The share of the backlog that is done."""

    def see(self, now: float, read: int, left: int | None) -> None:
        """Adds a measurement. `read`: records of this run so far. `left`: records that wait."""
        self._seen.append((now, read, left))
        while now - self._seen[0][0] > _WINDOW:
            self._seen.popleft()
        if not left:
            self._from = read
        began, before, _ = self._seen[0]
        self.rate = max(0, read - before) / (now - began) if now - began >= _SHORTEST else None
        waiting = next(((at, then) for at, _, then in self._seen if then is not None), (now, 0))
        shrunk, passed = waiting[1] - (left or 0), now - waiting[0]
        self.seconds_left = left * passed / shrunk if left and shrunk > 0 and passed >= _SHORTEST else None
        self.done = (read - self._from) / (read - self._from + left) if left else None


_WINDOW, _SHORTEST = 10.0, 1.0
"""Seconds."""


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


class LogProgress:
    """One JSON object per line, for machines."""

    def __init__(self, pipeline: str, logger: logging.Logger | None = None) -> None:
        self._pipeline = pipeline
        self._deduplicates = False
        self._log = logger or logging.getLogger("landonce")

    def __enter__(self) -> LogProgress:
        """Spark needs seconds to start."""
        self._say("starting")
        return self

    def __exit__(self, *_: object) -> None: ...

    def watch(self, finished: Callable[[], int]) -> None:
        """A log has a line per batch."""

    def step(self, effect: Effect) -> None:
        if effect.step not in _QUIET:
            self._say("step", logging.DEBUG, step=effect.step.value)

    def batch(self, report: BatchReport) -> None:
        commits: dict[str, Any] = {"commits": dict(report.commits)} if report.commits else {}
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
            **{"waiting" if self._deduplicates else "lag": report.lag},
            **commits,
            **_reasons(report),
        )

    def accepted(self, report: AcceptReport) -> None:
        """With `dedup`: what is read from Kafka. `batch` is what landed of it, and what still waits in the store."""
        self._deduplicates = True
        batch = report.batch
        self._say(
            "accepted",
            batch=batch.batch,
            kind=batch.kind,
            blocks=batch.blocks,
            read=batch.totals.read,
            accepted=batch.totals.landed,
            copies=report.copies,
            seen_again=report.seen_again,
            dead_lettered=batch.totals.dead_lettered,
            filtered=batch.totals.filtered - report.copies - report.seen_again,
            seconds=round(batch.seconds, 3),
            rows_per_second=round(batch.rows_per_second),
            lag=batch.lag,
            **_reasons(batch),
        )

    def pushing(self, effect: Effect) -> None:
        self._deduplicates = True
        if effect.step not in _QUIET:
            self._say("step", logging.DEBUG, step=f"push.{effect.step.value}")

    def trouble(self, what: str) -> None:
        self._say("trouble", logging.WARNING, what=redact(what))

    def inferred(self, words: str) -> None:
        self._say("inferred", columns=redact(words))

    def note(self, what: str) -> None:
        """Not a problem: the effect of a signal."""
        self._say("stopping", what=redact(what))

    def lag(self, records: int) -> None:
        """Every batch line has it."""

    def _say(self, event: str, level: int = logging.INFO, **facts: object) -> None:
        at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        self._log.log(level, json.dumps({"at": at, "event": event, "pipeline": self._pipeline, **facts}))


def _words(effect: Effect) -> str:
    words = {
        Step.WRITE: "writing",
        Step.ACQUIRE: "taking over the pipeline",
        Step.SURVEY: "asking Kafka for new records",
        Step.AWAIT: "waiting for a deadline to pass",
        Step.KILL: "ending old inserts",
        Step.REARM: "renewing the deadline of the pending plan",
        Step.LOOK: "checking the target",
        Step.IDLE: "waiting for records",
    }
    return words.get(effect.step) or str(effect.step.value)


def _reasons(report: BatchReport) -> dict[str, Any]:
    if not report.reasons:
        return {}
    codes = {code.value: records for code, records in by_code(report.reasons).items()}
    return {"codes": codes, "reasons": {each.cause: each.records for each in report.reasons}}
