"""What all commands share: the pipeline file, and what is printed: errors in three parts, never a secret."""

from __future__ import annotations

import json
import logging
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from landonce.config.secrets import RedactingFilter, redact
from landonce.errors import LandonceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from landonce.engine.publish import Letters
    from landonce.protocol.ledger import Totals
    from landonce.sinks.operations import Operations
    from landonce.sinks.parts import Parts


def _require_sound(file: Path) -> Path:
    """Loads the file before the command's own modules, which take seconds, so that a mistake in it is reported at once."""
    from landonce.sinks.pipeline_file import load

    load(file)
    return file


File = Annotated[
    Path,
    typer.Argument(help="The pipeline file (YAML).", metavar="FILE", show_default=False, callback=_require_sound),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output, for scripts.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
FENCES = "A driver of this pipeline that still runs ends with exit code 4."
"""What most changes cost."""


@contextmanager
def opened(file: Path) -> Iterator[Parts]:
    """Opens the pipeline's parts, and closes them at the end. Opening does not connect yet."""
    from landonce.sinks.parts import open_parts
    from landonce.sinks.pipeline_file import load

    parts = open_parts(load(file))
    try:
        yield parts
    finally:
        parts.ledger.close()


@contextmanager
def operating(file: Path) -> Iterator[Operations]:
    """What may be decided about the pipeline of this file."""
    with opened(file) as parts:
        yield operations_of(parts)


def operations_of(parts: Parts) -> Operations:
    config = parts.config

    def sessions(settings: Mapping[str, str]) -> AbstractContextManager[Callable[[], SparkSession]]:
        from landonce.engine.spark.session import open_session, session_if_needed

        return session_if_needed(lambda: open_session(config.pipeline, config.spark, extra=settings))

    if config.dedup is None:
        return parts.sink.operations(parts, sessions)
    from landonce.dedup.pipelines import pushing

    return parts.sink.operations(pushing(parts), sessions)


def accept_operations_of(parts: Parts) -> Operations:
    """With `dedup`: what may be decided about the pipeline that accepts. `operations_of` is about the one that pushes."""
    from landonce.dedup.pipelines import accepting

    return accepting(parts, operations_of(parts).sessions)


def letters_of(target: Operations) -> Letters:
    """The pipeline's dead letters, for a command that settles them."""
    from landonce.engine.letter_topic import LetterTopic
    from landonce.engine.publish import Letters

    config, ledger = target.parts.config, target.parts.ledger
    return Letters(config.dead_letters.path, config.pipeline, ledger.journal, ledger.load, LetterTopic.of(config))


def print_json(document: dict[str, Any]) -> None:
    """Prints to standard output without colours, line breaks of the terminal, or secrets."""
    out.print(redact(json.dumps(document, indent=2, ensure_ascii=False)), markup=False)


def confirm(does: Iterable[str], costs: Iterable[str], *, yes: bool) -> None:
    """Says what is done and what it costs, and asks."""
    for line in does:
        out.print(line, markup=False)
    for line in filter(None, costs):
        out.print(line, style="yellow", markup=False)
    if not yes:
        typer.confirm("Do it?", abort=True)


def done(file: Path, more: str = "") -> None:
    """Says that a change is made, and what comes next."""
    out.print(f"[green]done[/], and recorded in the journal{more}. Next:", end=" ")
    out.print(next_step("landonce run {file}", str(file)), markup=False)


err = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)
out = Console(highlight=False, soft_wrap=True, emoji=False)  # `:100:` in the place of a record is no emoji


def next_step(command: str, file: str, running: str = "") -> str:
    """The command to continue with, with the user's own file in it. Empty if it is the command that is running."""
    named = shlex.quote(file)
    own = f"landonce {running} {named}"
    text = redact(command.replace("{file}", named)).replace(f", then `{own}`", "")
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


def account(totals: Totals) -> str:
    """What became of all records, in one line."""
    return f"{totals.read} read = {totals.landed} landed + {totals.dead_lettered} dead-lettered + {totals.filtered} filtered"


def log_to_stderr(verbose: bool) -> None:
    """Writes log lines to standard error unchanged, so that each stays one JSON object."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    handler.addFilter(RedactingFilter())
    logger = logging.getLogger("landonce")
    logger.handlers = [handler]
    logger.setLevel(logging.DEBUG if verbose else logging.INFO)
    logger.propagate = False
