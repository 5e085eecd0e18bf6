"""The command line. One module per command; this one puts them together and turns errors into words and exit codes.

0  done            2  the pipeline file or the call is wrong     4  fenced: a newer driver has the pipeline
1  not exact       3  halted: a person decides, see the command  5  stalled: start again when the cause is mended
"""

from __future__ import annotations

import sys

import typer

from landonce.cli.output import say_error
from landonce.cli.run import run
from landonce.errors import LandonceError

app = typer.Typer(
    name="landonce",
    help="Kafka records land exactly once in ClickHouse.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command()(run)


def main() -> None:
    """What the `landonce` command does."""
    try:
        app()
    except LandonceError as error:
        say_error(error, sys.argv[1:])
        raise SystemExit(error.exit_code) from None
