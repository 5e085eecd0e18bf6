"""How the command line speaks: errors in three parts, secrets blotted out."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from itertools import takewhile

from rich.console import Console

from landonce.config.secrets import RedactingFilter, redact
from landonce.errors import LandonceError

err = Console(stderr=True, highlight=False, soft_wrap=True)
out = Console(highlight=False, soft_wrap=True)


def way_on(command: str, file: str, running: str = "") -> str:
    """The command that goes on, with the user's own file in it; without the one that is being run, which said so just now."""
    own = f"landonce {running} {file}"
    told = redact(command.replace("{file}", file)).replace(f", then `{own}`", "")
    return "" if told == own else told


def _running(arguments: Sequence[str]) -> str:
    """The command that is being run. To run again is a way on, for whoever runs a pipeline."""
    words = " ".join(takewhile(str.isidentifier, (each.replace("-", "_") for each in arguments))).replace("_", "-")
    return "" if words == "run" else words


def say_error(error: LandonceError, arguments: Sequence[str]) -> None:
    """What happened, what is safe, and the command that goes on, with the user's own file in it."""
    file = next((each for each in arguments if each.endswith((".yaml", ".yml"))), "FILE")
    err.print(f"[bold red]{type(error).__name__}:[/] ", end="")
    err.print(redact(error.what), markup=False)
    if error.safe:
        err.print(redact(error.safe), markup=False)
    if told := way_on(error.command, file, _running(arguments)):
        err.print("[bold]Next step:[/] ", end="")
        err.print(told, markup=False)


def say_defect(trace: str) -> None:
    """What nobody foresaw: the whole trace for a report, without secrets."""
    err.print(redact(trace), markup=False)
    err.print(
        "This is a defect in landonce. Nothing is lost: whatever was pending is settled at the next start. "
        "Please report the lines above.",
        markup=False,
    )


def log_to_stderr(verbose: bool) -> None:
    """Log lines go to standard error as they are, so that they stay one JSON object each."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    handler.addFilter(RedactingFilter())
    logger = logging.getLogger("landonce")
    logger.handlers = [handler]
    logger.setLevel(logging.DEBUG if verbose else logging.INFO)
    logger.propagate = False
