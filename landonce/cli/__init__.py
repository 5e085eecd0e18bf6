"""The command line. This module collects the commands, and turns errors into messages and exit codes.

0  done            2  the pipeline file or the call is wrong     4  fenced: a newer driver has the pipeline
1  not exact       3  halted: a person decides, see the command  5  stalled: start again once the cause is fixed
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from landonce.cli.command import out, say_defect, say_error
from landonce.errors import LandonceError

_TRY, _RUN, _LOOK = "See it work", "Run a pipeline", "Look and decide"
_COMMANDS = {
    "demo": ("landonce.cli.local", _TRY),
    "up": ("landonce.cli.local", _TRY),
    "down": ("landonce.cli.local", _TRY),
    "check": ("landonce.cli.check", _RUN),
    "run": ("landonce.cli.run", _RUN),
    "maintain": ("landonce.cli.maintain", _RUN),
    "verify": ("landonce.cli.verify", _LOOK),
    "state": ("landonce.cli.state", _LOOK),
    "dead": ("landonce.cli.dead", _LOOK),
    "dedup": ("landonce.cli.dedup", _LOOK),
}


class _Loaded(Mapping[str, Any]):
    """The commands by name. Each module is loaded at first use, so that no command waits for the imports of another."""

    def __getitem__(self, name: str) -> Any:
        return _command(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_COMMANDS)

    def __len__(self) -> int:
        return len(_COMMANDS)


@cache
def _command(name: str) -> Any:
    """Click asks for it several times in each call."""
    module, panel = _COMMANDS[name]
    found = getattr(import_module(module), name)
    alone = typer.Typer(rich_markup_mode="markdown", add_completion=False)
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=name, rich_help_panel=panel)
        return typer.main.get_group(alone).commands[name]
    alone.command(name, rich_help_panel=panel)(found)
    return typer.main.get_command(alone)


class _Commands(TyperGroup):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = _Loaded()  # type: ignore[assignment]  # nothing adds to it


app = typer.Typer(
    name="landonce",
    cls=_Commands,
    help="Kafka records land exactly once in ClickHouse, Apache Iceberg, SQL databases and sinks of your own.",
    epilog="Begin with `landonce demo` or `landonce up`. Exit codes: 0 done, 1 not exact or refused, "
    "2 the file or the call is wrong, 3 a person must decide, 4 taken over by a newer driver, 5 something was unreachable.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
    """Kafka records land exactly once in ClickHouse, Apache Iceberg, SQL databases and any sink that you wrap."""


def main() -> None:
    """The entry point of the `landonce` command."""
    try:
        app()
    except LandonceError as error:
        say_error(error, sys.argv[1:])
        raise SystemExit(error.exit_code) from None
    except Exception:
        say_defect(traceback.format_exc())
        raise SystemExit(1) from None
