"""What the command line prints: errors in three parts, without secrets."""

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


def next_step(command: str, file: str, running: str = "") -> str:
    """The command to continue with, with the user's own file in it. Empty if it is the command that is running."""
    own = f"landonce {running} {file}"
    text = redact(command.replace("{file}", file)).replace(f", then `{own}`", "")
    return "" if text == own else text


def _running(arguments: Sequence[str]) -> str:
    """The running command. Empty for `run`: to run again is a valid next step."""
    words = " ".join(takewhile(str.isidentifier, (each.replace("-", "_") for each in arguments))).replace("_", "-")
    return "" if words == "run" else words


def say_error(error: LandonceError, arguments: Sequence[str]) -> None:
    """Prints what happened, what is safe, and the command to continue with."""
    file = next((each for each in arguments if each.endswith((".yaml", ".yml"))), "FILE")
    err.print(f"[bold red]{type(error).__name__}:[/] ", end="")
    err.print(redact(error.what), markup=False)
    if error.safe:
        err.print(redact(error.safe), markup=False)
    if text := next_step(error.command, file, _running(arguments)):
        err.print("[bold]Next step:[/] ", end="")
        err.print(text, markup=False)


def say_defect(trace: str) -> None:
    """An unexpected error: prints the whole trace for a report, without secrets."""
    err.print(redact(trace), markup=False)
    err.print(
        "This is a defect in landonce. Nothing is lost: whatever was pending is settled at the next start. "
        "Please report the lines above.",
        markup=False,
    )


def log_to_stderr(verbose: bool) -> None:
    """Writes log lines to standard error unchanged, so that each stays one JSON object."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    handler.addFilter(RedactingFilter())
    logger = logging.getLogger("landonce")
    logger.handlers = [handler]
    logger.setLevel(logging.DEBUG if verbose else logging.INFO)
    logger.propagate = False
