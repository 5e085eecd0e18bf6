"""What all commands with a pipeline file share: the argument, and the parts opened from it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from landonce.cli.output import out
from landonce.config.secrets import redact
from landonce.sinks.pipeline_file import load

if TYPE_CHECKING:
    from landonce.sinks.parts import Parts


def _require_sound(file: Path) -> Path:
    """Loads the file before the command's own modules, which take seconds, so that a mistake in it is reported at once."""
    load(file)
    return file


File = Annotated[
    Path,
    typer.Argument(help="The pipeline file (YAML).", metavar="FILE", show_default=False, callback=_require_sound),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output, for scripts.")]


@contextmanager
def opened(file: Path) -> Iterator[Parts]:
    """Opens the pipeline's parts, and closes them at the end. Opening does not connect yet."""
    from landonce.sinks.parts import open_parts

    parts = open_parts(load(file))
    try:
        yield parts
    finally:
        parts.ledger.close()


def print_json(document: dict[str, Any]) -> None:
    """Prints to standard output without colours, line breaks of the terminal, or secrets."""
    out.print(redact(json.dumps(document, indent=2, ensure_ascii=False)), markup=False)
