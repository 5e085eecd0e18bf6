"""The command line. One module per command; this one puts them together and turns errors into words and exit codes.

0  done            2  the pipeline file or the call is wrong     4  fenced: a newer driver has the pipeline
1  not exact       3  halted: a person decides, see the command  5  stalled: start again when the cause is mended
"""

from __future__ import annotations

import sys
import traceback
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from landonce.cli.check import check
from landonce.cli.demo import demo
from landonce.cli.local import down, up
from landonce.cli.maintain import maintain
from landonce.cli.output import out, say_defect, say_error
from landonce.cli.run import run
from landonce.cli.state import state
from landonce.cli.verify import verify
from landonce.errors import LandonceError

_TRY, _RUN, _LOOK = "See it work", "Run a pipeline", "Look and decide"

app = typer.Typer(
    name="landonce",
    help="Kafka records land exactly once in ClickHouse and Apache Iceberg.",
    epilog="Begin with `landonce demo` or `landonce up`. Exit codes: 0 done, 1 not exact or refused, "
    "2 the file or the call is wrong, 3 halted for a person, 4 taken over by a newer driver, 5 something was away.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(rich_help_panel=_TRY)(demo)
app.command(rich_help_panel=_TRY)(up)
app.command(rich_help_panel=_TRY)(down)
app.command(rich_help_panel=_RUN)(check)
app.command(rich_help_panel=_RUN)(run)
app.command(rich_help_panel=_RUN)(maintain)
app.command(rich_help_panel=_LOOK)(verify)
app.add_typer(state, name="state", rich_help_panel=_LOOK)


def _print_version(asked: bool) -> None:
    if asked:
        try:
            out.print(f"landonce {version('landonce')}")
        except PackageNotFoundError:
            out.print("landonce, not installed: run from a checkout")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Kafka records land exactly once in ClickHouse and Apache Iceberg."""


def main() -> None:
    """What the `landonce` command does."""
    try:
        app()
    except LandonceError as error:
        say_error(error, sys.argv[1:])
        raise SystemExit(error.exit_code) from None
    except Exception:
        say_defect(traceback.format_exc())
        raise SystemExit(1) from None
