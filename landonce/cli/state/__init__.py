"""`landonce state`: look at the ledger, and decide what only a person can decide.

Every decision is explained before it is made, is one compare-and-set that also fences a driver that still runs, and
leaves a line in the ledger's journal.
"""

from __future__ import annotations

import typer

from landonce.cli.state.importing import import_position
from landonce.cli.state.plans import accept_change, fill
from landonce.cli.state.settle import settle
from landonce.cli.state.show import show
from landonce.cli.state.source import accept_gap, rebase
from landonce.cli.state.tables import accept_position, forget_table

_LOOK, _SOURCE, _PLAN, _TABLE = "Look", "The source changed", "A plan is pending", "A table changed (Iceberg)"
_MOVE_IN = "Move in (Iceberg)"

state = typer.Typer(
    help="Look at a pipeline's ledger, and decide what only a person can decide.\n\n"
    "A run that halts names the command that goes on. Each of them says first what it does and what it costs, then asks.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
state.command(rich_help_panel=_LOOK)(show)
state.command("accept-gap", rich_help_panel=_SOURCE)(accept_gap)
state.command(rich_help_panel=_SOURCE)(rebase)
state.command(rich_help_panel=_PLAN)(fill)
state.command("accept-change", rich_help_panel=_PLAN)(accept_change)
state.command(rich_help_panel=_PLAN)(settle)
state.command("accept-position", rich_help_panel=_TABLE)(accept_position)
state.command("forget-table", rich_help_panel=_TABLE)(forget_table)
state.command("import", rich_help_panel=_MOVE_IN)(import_position)
