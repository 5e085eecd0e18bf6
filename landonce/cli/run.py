"""`landonce run`: the pipeline itself."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from landonce.cli.command import File, account, err, log_to_stderr, out
from landonce.config.secrets import redact
from landonce.sinks.pipeline_file import load

if TYPE_CHECKING:
    from landonce.engine.driver import Driver
    from landonce.protocol.reasons import Reasons


def run(
    file: File,
    once: Annotated[bool, typer.Option("--once", help="Land the records that exist now, then exit.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log every step of the protocol.")] = False,
) -> None:
    """Land records from Kafka in the target, exactly once, until stopped.

    SIGTERM or Ctrl-C ends it after the current batch. After a crash, the next start settles what is pending. If the same
    pipeline is started twice, the later run continues, and the earlier one ends with exit code 4.

    Example: `landonce run clicks.yaml --once`
    """
    from landonce.cli.progress import LogProgress, TerminalProgress
    from landonce.dedup.run import DedupTotals, run_pipeline
    from landonce.protocol.reasons import lines

    log_to_stderr(verbose)
    config = load(file)
    progress = TerminalProgress(err, config.pipeline) if sys.stderr.isatty() else LogProgress(config.pipeline)
    signals = _Signals(progress.note)

    def ready(driver: Driver) -> None:
        signals.stop(driver)
        progress.watch(driver.finished)

    with progress:
        totals = run_pipeline(config, once=once, observer=progress, ready=ready, stopping=signals.stopping)
    if isinstance(totals, DedupTotals):
        sentence, reasons = totals.sentence(), totals.reasons
    else:
        sentence, reasons = account(totals), signals.reasons
    out.print(f"{config.pipeline}: {sentence}")
    if totals.dead_lettered:
        by_reason = lines(reasons, totals.dead_lettered)
        for line in (f"dead letters are in {config.dead_letters.path}, by reason:", *by_reason):
            out.print(redact(line), markup=False)


class _Signals:
    """The first signal ends the run after the current batch; the second one ends the process at once, which is safe too."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self.stopping = threading.Event()
        self._driver: Driver | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._hear)

    def stop(self, driver: Driver) -> None:
        """From now on, a signal stops this driver."""
        self._driver = driver
        if self.stopping.is_set():
            driver.stopping.set()

    @property
    def reasons(self) -> Reasons:
        """Why records became dead letters, as the driver counted them."""
        return self._driver.reasons if self._driver is not None else ()

    def _hear(self, number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        self.stopping.set()
        if self._driver is not None:
            self._driver.stopping.set()
        # The signal may have come in the middle of a write to the same stream, or nobody reads it.
        with suppress(RuntimeError, OSError):
            self._note(
                "stopping after the current batch. The same signal again ends the run at once, which is safe too."
            )
