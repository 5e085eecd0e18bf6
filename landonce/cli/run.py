"""`landonce run`: the pipeline itself."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from landonce.cli.output import err, log_to_stderr, out
from landonce.config import load
from landonce.run.assemble import create_if_asked, make_driver, open_parts
from landonce.run.driver import Driver
from landonce.run.session import open_session
from landonce.run.show import LogProgress, TerminalProgress

File = Annotated[Path, typer.Argument(help="The pipeline file (YAML).", metavar="FILE")]


def run(
    file: File,
    once: Annotated[bool, typer.Option("--once", help="Land what is there now, then exit.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log every step of the protocol.")] = False,
) -> None:
    """Land records from Kafka in the target, exactly once, until stopped.

    SIGTERM or Ctrl-C finishes the batch in hand. Whatever a crash leaves pending is settled at the next start.
    Of two runs of the same pipeline the later one goes on, and the earlier one ends with exit code 4.
    """
    log_to_stderr(verbose)
    config = load(file)
    parts = open_parts(config)
    target = parts.sink.target()
    try:
        if create_if_asked(parts, target):
            err.print(f"created table {config.sink.clickhouse.table}")
        session = open_session(config.pipeline, config.spark)
        progress = TerminalProgress(err, config.pipeline) if sys.stderr.isatty() else LogProgress(config.pipeline)
        with progress:
            driver = make_driver(parts, target, session, progress, once=once)
            _stop_on_signals(driver)
            totals = driver.run()
        out.print(
            f"{config.pipeline}: {totals.read} read = {totals.landed} landed + {totals.dead_lettered} dead-lettered "
            f"+ {totals.filtered} filtered"
        )
        session.stop()
    finally:
        target.close()
        parts.ledger.close()


def _stop_on_signals(driver: Driver) -> None:
    def stop(_number: int, _frame: object) -> None:
        driver.stopping.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
