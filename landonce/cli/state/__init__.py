"""`landonce state`: look at the ledger, and decide what only a person can decide.

Every decision is explained before it is made. It is one compare-and-set, which also fences a driver that still runs, and it leaves a line
in the ledger's journal.

This module only declares the commands. Each loads what it needs when it runs.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from landonce.cli.command import File, Json

_LOOK, _SOURCE, _PLAN, _TABLE = "Look", "The source changed", "A plan is pending", "A table changed (Iceberg)"
_MOVE_IN = "Move in (Iceberg)"
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

state = typer.Typer(
    help="Look at a pipeline's ledger, and decide what only a person can decide.\n\n"
    "A run that halts names the command that goes on. Each of them says first what it does and what it costs, then asks.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


class To(str, Enum):
    """Where a rebased topic begins."""

    EARLIEST = "earliest"
    LATEST = "latest"


@state.command(rich_help_panel=_LOOK)
def show(file: File, as_json: Json = False) -> None:
    """Show a pipeline's position, lag, pending plan, tables, epoch and journal.

    Also where the ledger is: a file, a database, or the Iceberg table itself. For each table of a fan-out: the last batch
    that is in it, and whether it is in step, was rolled back, or is another table of the same name.

    Example: `landonce state show clicks.yaml`
    """
    from landonce.cli.state.show import show as work

    work(file, as_json=as_json)


@state.command("accept-gap", rich_help_panel=_SOURCE)
def accept_gap(file: File, yes: Yes = False) -> None:
    """Continue after records that Kafka deleted before they were read.

    Moves the position of each overrun partition to the first offset that Kafka still has. Of a pending plan, the ranges that are
    gone are given up and the rest is kept, with all dead letters. An Iceberg table that was rolled back further than Kafka reaches is filled
    from there too. The ledger's journal keeps what was given up.

    Example: `landonce state accept-gap clicks.yaml`
    """
    from landonce.cli.state.decide import accept_gap as work

    work(file, yes=yes)


@state.command(rich_help_panel=_SOURCE)
def rebase(
    file: File,
    to: Annotated[To, typer.Option(help="Where changed topics begin.")] = To.EARLIEST,
    drop_pending: Annotated[
        bool,
        typer.Option(
            "--drop-pending", help="Forget the part of a pending plan that cannot be read again, or all of it."
        ),
    ] = False,
    yes: Yes = False,
) -> None:
    """Bind a pipeline to a topic that was deleted and created again, or to another cluster.

    Offsets of the old topic mean nothing in the new one, so the changed topics begin at their earliest offset, and their
    rows get a `_topic` of their own, `topic@id`, beside which the old rows stay. Where only one partition lost its end, only
    that one does so. What did not change stays where it is, with its part of a pending plan.

    Where nothing changed, `--drop-pending` forgets the whole plan, and its records are planned again.

    Example: `landonce state rebase clicks.yaml --to latest`
    """
    from landonce.cli.state.decide import rebase as work

    work(file, to=to.value, drop_pending=drop_pending, yes=yes)


@state.command(rich_help_panel=_PLAN)
def fill(file: File, yes: Yes = False) -> None:
    """Write what is missing of a pending plan that is in the table in part (ClickHouse).

    A block lands whole or not at all, so landonce halts with PartialPresence when some rows of it are gone: somebody
    deleted them, or a TTL did. This command lets landonce write them again.

    Example: `landonce state fill clicks.yaml`
    """
    from landonce.cli.state.decide import fill as work

    work(file, yes=yes)


@state.command("accept-change", rich_help_panel=_PLAN)
def accept_change(file: File, yes: Yes = False) -> None:
    """Let the present pipeline file settle a plan that another version of it made.

    The safe way is to put the old file back, run it once, and then make the change. Use this command if you know that the
    change does not decide which records of the pending plan land, or where. One Iceberg table that is its own ledger never
    needs it: it never has a pending plan.

    Example: `landonce state accept-change clicks.yaml`
    """
    from landonce.cli.state.decide import accept_change as work

    work(file, yes=yes)


@state.command(rich_help_panel=_PLAN)
def settle(
    file: File,
    block: Annotated[str, typer.Option("--block", help="The block's key, as the error names it.", show_default=False)],
    landed: Annotated[bool, typer.Option("--landed", help="All of it is in the target.")] = False,
    absent: Annotated[bool, typer.Option("--absent", help="Nothing of it is in the target: push it again.")] = False,
    yes: Yes = False,
) -> None:
    """Say whether a block that was pushed, and never settled, is in the target (wrapped sinks).

    A pipeline whose sink is not idempotent and has no probe halts with OutcomeUnknown when nobody knows whether a block arrived.
    Look for the block's key or its coordinates in the target, and say what you found.

    Example: `landonce state settle clicks.yaml --block clicks-0-0-500-0123456789abcdef --absent`
    """
    from landonce.cli.state.decide import settle as work

    work(file, block=block, landed=landed, absent=absent, yes=yes)


@state.command("accept-position", rich_help_panel=_TABLE)
def accept_position(
    file: File,
    table: Annotated[
        str | None,
        typer.Argument(
            help="One table of a fan-out. Without it: each one that is in doubt.", metavar="TABLE", show_default=False
        ),
    ] = None,
    by_rows: Annotated[
        bool,
        typer.Option("--by-rows", help="The rows in the table say how far it is; what comes after is delivered again."),
    ] = False,
    yes: Yes = False,
) -> None:
    """Say how far an Iceberg table is whose history is gone.

    The table's snapshots hold the position, and the table's properties a copy of it. If all snapshots of the
    pipeline have expired, nobody can tell whether the table was rolled back before: then landonce halts with PositionUncertain.
    Without --by-rows this command says that it was not, and the copy counts. With --by-rows, the last row of each Kafka
    partition in the table counts, and all that comes after it is delivered again: right after a rollback, and never a
    duplicate.

    Example: `landonce state accept-position clicks.yaml --by-rows`
    """
    from landonce.cli.state.decide import accept_position as work

    work(file, table=table, by_rows=by_rows, yes=yes)


@state.command("forget-table", rich_help_panel=_TABLE)
def forget_table(
    file: File,
    table: Annotated[str, typer.Argument(help="The table, with its namespace.", metavar="TABLE", show_default=False)],
    replay: Annotated[
        bool, typer.Option("--replay", help="Fill the new table up with what the pipeline delivered before.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Let another table take the place of one that was dropped, in a fan-out or in an SQL database.

    A run halts with TableReplaced when a table is gone, or is another one by the same name. This command forgets the old
    one. The new one gets new records only; with `--replay` (Iceberg) everything is read again for it, and for no other table.
    A database that was restored from a dump has other tables by the same names, which hold what landed: forget the old one, and
    go on.

    Example: `landonce state forget-table clicks.yaml db.views --replay`
    """
    from landonce.cli.state.decide import forget_table as work

    work(file, table=table, replay=replay, yes=yes)


@state.command("import", rich_help_panel=_MOVE_IN)
def import_position(
    file: File,
    connector: Annotated[
        str | None,
        typer.Option(
            "--from-connect",
            metavar="NAME",
            help="The connector that wrote the table: Iceberg's sink for Kafka Connect.",
        ),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--from-checkpoint",
            metavar="PATH",
            help="The checkpoint of the Spark streaming query that wrote the table.",
        ),
    ] = None,
    control_topic: Annotated[
        str | None,
        typer.Option(
            "--control-topic", metavar="TOPIC", help="The connector's. Without it: the one that the table names."
        ),
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", metavar="GROUP", help="The connector's. Without it: connect-NAME.")
    ] = None,
    nothing: Annotated[
        bool,
        typer.Option("--from-nothing", help="The writer before carried other topics: begin again, beside it."),
    ] = False,
    yes: Yes = False,
) -> None:
    """Go on where another writer of the Iceberg table stopped, without gap or overlap.

    Stop it first: what it committed last, and which offsets that covers, is read from the table's snapshots and from Kafka
    or the checkpoint. This command says what it found, asks, and writes the position into the table (or the ledger), by an
    empty snapshot. Then `landonce run` delivers what comes after. Never start the other writer again.

    Refused, with nothing changed: the connector runs, or reported files that it did not commit yet (its consumer group is
    ahead of the table then; start it again, let it commit, stop it); the history that would tell is gone; the checkpoint is
    of another query; the topics are not those of the pipeline file; the pipeline has a position already.

    As a rule such a table has no coordinate columns. Add `_topic string`, `_kafka_partition int` and `_offset long` to the table, so
    that `landonce verify` can prove what landonce lands.

    Example: `landonce state import clicks.yaml --from-connect clicks-sink`

    Example: `landonce state import clicks.yaml --from-checkpoint s3://bucket/checkpoints/clicks`
    """
    from landonce.cli.state.decide import import_position as work
    from landonce.sinks.operations import Before

    work(file, Before(connector, checkpoint, nothing, control_topic, group), yes=yes)
