"""`landonce state`: look at the ledger, and decide what only a person can decide.

Every decision is explained before it is made. It is one compare-and-set, which also fences a driver that still runs, and it leaves a line
in the ledger's journal.

This module only declares the commands. Each loads what it needs when it runs.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from landonce.cli.command import File, Json, Yes

_LOOK, _SOURCE, _PLAN, _TABLE = "Look", "The source changed", "A plan is pending", "A table changed (Iceberg)"
_MOVE_IN, _SEEK = "Move in (Iceberg, ClickHouse)", "Move the position"

state = typer.Typer(
    help="Show a pipeline's state, and decide what only a person can decide.\n\n"
    "A run that halts names the command to use. Each command shows what it will do and what that costs, then asks.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


class To(str, Enum):
    """An end of a topic."""

    EARLIEST = "earliest"
    LATEST = "latest"


class Landed(str, Enum):
    """What became of a batch."""

    LANDED = "landed"
    ABSENT = "absent"


@state.command(rich_help_panel=_LOOK)
def show(file: File, as_json: Json = False) -> None:
    """Show a pipeline's position, lag, pending plan, tables, epoch and journal.

    It also shows where the ledger is: a file, a database, or the Iceberg table itself. For each table of a fan-out it shows the last
    batch, and whether the table is up to date, was rolled back, or was replaced.

    Example: `landonce state show clicks.yaml`
    """
    from landonce.cli.state.show import show as work

    work(file, as_json=as_json)


@state.command("accept-gap", rich_help_panel=_SOURCE)
def accept_gap(file: File, yes: Yes = False) -> None:
    """Continue after records that Kafka deleted before they were read.

    Moves the position of each such partition to the first offset that Kafka still has. A pending plan loses the ranges that
    Kafka deleted and keeps the rest, with all dead letters. An Iceberg table that was rolled back further than Kafka reaches is
    filled from the first offset that is left. The ledger's journal records the gap.

    Example: `landonce state accept-gap clicks.yaml`
    """
    from landonce.cli.state.decide import accept_gap as work

    work(file, yes=yes)


@state.command(rich_help_panel=_SOURCE)
def rebase(
    file: File,
    to: Annotated[To, typer.Option(help="Where changed topics start.")] = To.EARLIEST,
    drop_pending: Annotated[
        bool,
        typer.Option(
            "--drop-pending", help="Forget the part of a pending plan that cannot be read again, or all of it."
        ),
    ] = False,
    yes: Yes = False,
) -> None:
    """Bind a pipeline to a topic that was deleted and created again, or to another cluster.

    Offsets of the old topic mean nothing in the new one. So a changed topic starts at its earliest offset, and its rows get a
    label of their own in `_topic`, `topic@id`; the old rows stay. If only one partition lost its end, only that partition starts
    again. Everything else keeps its position and its part of a pending plan.

    If nothing changed, `--drop-pending` forgets the whole plan, and its records are planned again.

    Example: `landonce state rebase clicks.yaml --to latest`
    """
    from landonce.cli.state.decide import rebase as work

    work(file, to=to.value, drop_pending=drop_pending, yes=yes)


@state.command(rich_help_panel=_SEEK)
def seek(
    file: File,
    to_offset: Annotated[
        list[str] | None,
        typer.Option("--to-offset", metavar="TOPIC:PARTITION:OFFSET", help="May be given several times."),
    ] = None,
    to_timestamp: Annotated[
        str | None,
        typer.Option("--to-timestamp", metavar="TIME", help="The first records of that time, with its zone."),
    ] = None,
    to: Annotated[To | None, typer.Option("--to", help="An end of the topics.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Finish a seek that was interrupted.")] = False,
    stay: Annotated[
        bool, typer.Option("--stay", help="Iceberg: do not deliver again what a rollback removed.")
    ] = False,
    remove_rows: Annotated[
        bool,
        typer.Option(
            "--remove-rows/--keep-rows", help="Remove rows and dead letters at and above the new position first."
        ),
    ] = False,
    yes: Yes = False,
) -> None:
    """Move the position: back, to deliver records again, or forwards, to skip some.

    Going back with `--remove-rows`, each record lands once, as the pipeline file makes it now. With `--keep-rows`, the next start
    compares what the target holds, and writes what is missing (ClickHouse). An Iceberg table returns to an earlier snapshot. Where
    nothing is exact, the command refuses.

    Going forwards skips records: the command says how many, and the journal records which.

    Example: `landonce state seek clicks.yaml --to-offset clicks:0:1000 --remove-rows`
    """
    from landonce.cli.state.decide import Goal, moment
    from landonce.cli.state.decide import seek as work

    goal = Goal(
        offsets=tuple(to_offset or ()),
        timestamp=moment(to_timestamp),
        edge=to.value if to is not None else "",
        resume=resume,
        stay=stay,
    )
    work(file, goal, remove=remove_rows, yes=yes)


@state.command(rich_help_panel=_SEEK)
def rewind(
    file: File,
    by: Annotated[str, typer.Option("--by", metavar="DURATION", help="How far back: 30m, 1h, 2d.", show_default=False)],
    remove_rows: Annotated[
        bool,
        typer.Option(
            "--remove-rows/--keep-rows", help="Remove rows and dead letters at and above the new position first."
        ),
    ] = False,
    yes: Yes = False,
) -> None:
    """Go back to the first records of the last hour, or of any other time: as `seek --to-timestamp`, and never forwards.

    Example: `landonce state rewind clicks.yaml --by 1h --remove-rows`
    """
    from landonce.cli.state.decide import Goal, length
    from landonce.cli.state.decide import seek as work

    work(file, Goal(ago=length(by)), remove=remove_rows, yes=yes)


@state.command(rich_help_panel=_PLAN)
def fill(file: File, yes: Yes = False) -> None:
    """Write the missing rows of a pending plan that is only partly in the table (ClickHouse).

    A block lands whole or not at all. So landonce halts with PartialPresence if some of its rows are missing: somebody deleted
    them, or a TTL did. This command lets landonce write them again.

    Example: `landonce state fill clicks.yaml`
    """
    from landonce.cli.state.decide import fill as work

    work(file, yes=yes)


@state.command("accept-change", rich_help_panel=_PLAN)
def accept_change(file: File, yes: Yes = False) -> None:
    """Settle a pending plan with the current pipeline file, although another version of the file made it.

    The safe way is to put the old file back, run it once, and then make the change. Use this command if you know that the
    change does not affect which records of the pending plan land, or where. A single Iceberg table that is its own ledger never
    has a pending plan.

    Example: `landonce state accept-change clicks.yaml`
    """
    from landonce.cli.state.decide import accept_change as work

    work(file, yes=yes)


@state.command(rich_help_panel=_PLAN)
def settle(
    file: File,
    block: Annotated[str, typer.Option("--block", help="The block's key, as in the error.", show_default=False)],
    landed: Annotated[bool, typer.Option("--landed", help="All of it is in the target.")] = False,
    absent: Annotated[bool, typer.Option("--absent", help="Nothing of it is in the target: push it again.")] = False,
    yes: Yes = False,
) -> None:
    """Report whether a block of unknown outcome is in the target (wrapped sinks).

    If a sink is neither idempotent nor has a probe, the pipeline halts with OutcomeUnknown when nobody knows whether a block
    arrived. Look for the block's key or its coordinates in the target, and report what you found.

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
            help="One table of a fan-out. Default: all tables whose position is uncertain.",
            metavar="TABLE",
            show_default=False,
        ),
    ] = None,
    by_rows: Annotated[
        bool,
        typer.Option(
            "--by-rows", help="Take the position from the rows in the table, and deliver again what comes after."
        ),
    ] = False,
    yes: Yes = False,
) -> None:
    """Set the position of an Iceberg table whose history is gone.

    The table's snapshots hold the position, and the table's properties hold a copy. If all snapshots of the pipeline have
    expired, landonce cannot tell whether the table was rolled back before, and halts with PositionUncertain. Without --by-rows,
    this command uses the copy: right if there was no rollback. With --by-rows, it uses the last row of each Kafka partition in
    the table, and everything after it is delivered again: right after a rollback, and never a duplicate.

    Example: `landonce state accept-position clicks.yaml --by-rows`
    """
    from landonce.cli.state.decide import accept_position as work

    work(file, table=table, by_rows=by_rows, yes=yes)


@state.command("forget-table", rich_help_panel=_TABLE)
def forget_table(
    file: File,
    table: Annotated[str, typer.Argument(help="The table, with its namespace.", metavar="TABLE", show_default=False)],
    replay: Annotated[
        bool, typer.Option("--replay", help="Also deliver the earlier records to the new table.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Accept that another table takes the place of one that was dropped (fan-out, SQL databases).

    A run halts with TableReplaced if a table is gone, or another table has its name. This command forgets the old table. The
    new one gets new records only; with `--replay` (Iceberg) it gets everything, and other tables get nothing twice. After a
    database was restored from a dump, its tables are other tables with the same names and rows: use this command, too.

    Example: `landonce state forget-table clicks.yaml db.views --replay`
    """
    from landonce.cli.state.decide import forget_table as work

    work(file, table=table, replay=replay, yes=yes)


@state.command("import", rich_help_panel=_MOVE_IN)
def import_position(
    file: File,
    table: Annotated[
        str | None,
        typer.Argument(
            help="With --from-clickhouse-connect: the connector's state table. Default: connect_state.",
            metavar="TABLE",
            show_default=False,
        ),
    ] = None,
    connector: Annotated[
        str | None,
        typer.Option(
            "--from-connect",
            metavar="NAME",
            help="Iceberg: the connector that wrote the table, Iceberg's sink for Kafka Connect.",
        ),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--from-checkpoint",
            metavar="PATH",
            help="Iceberg: the checkpoint of the Spark streaming query that wrote the table.",
        ),
    ] = None,
    control_topic: Annotated[
        str | None,
        typer.Option(
            "--control-topic",
            metavar="TOPIC",
            help="Iceberg: the connector's control topic. Default: the one that the table names.",
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            metavar="GROUP",
            help="The connector's consumer group, which must have no members. Default for Iceberg: connect-NAME.",
        ),
    ] = None,
    nothing: Annotated[
        bool,
        typer.Option("--from-nothing", help="Iceberg: the previous writer wrote other topics, start beside it."),
    ] = False,
    by_state: Annotated[
        bool,
        typer.Option(
            "--from-clickhouse-connect",
            help="ClickHouse: its own sink for Kafka Connect wrote the table, with `exactlyOnce`.",
        ),
    ] = False,
    offsets_of: Annotated[
        str | None,
        typer.Option(
            "--from-group",
            metavar="GROUP",
            help="ClickHouse: the consumer group whose offsets say where its writer stopped.",
        ),
    ] = None,
    missing: Annotated[
        To | None,
        typer.Option("--missing", help="ClickHouse: where partitions begin that the state or the group does not name."),
    ] = None,
    doubtful: Annotated[
        Landed | None,
        typer.Option(
            "--before", help="ClickHouse: what became of batches that were left BEFORE_PROCESSING, if nobody can tell."
        ),
    ] = None,
    yes: Yes = False,
) -> None:
    """Continue where another writer of the table stopped, without gap or overlap.

    Stop the other writer first. This command finds out which offsets the writer committed last: from an Iceberg table's snapshots, and
    from Kafka or the checkpoint; or from the state table of ClickHouse's connector. It shows what it found, asks, and writes the
    position to the table (in an empty snapshot) or to the ledger. Then `landonce run` delivers what comes after. Never start the other
    writer again.

    The command refuses, and changes nothing, if the pipeline already has a position, or if the writer's is not certain. Iceberg: the
    connector runs, or reported files that it has not committed (start it again, let it commit, stop it); the history is gone; the
    checkpoint belongs to another query; the topics are not those of the pipeline file. ClickHouse: an insert runs; a partition is
    missing; an offset lies outside of the topic; the last batch is in the table in part, or nobody can tell.

    Such a table usually has no coordinate columns. Add them (ClickHouse: `_topic`, `_partition`, `_offset`; Iceberg: `_topic`,
    `_kafka_partition`, `_offset`), so that `landonce verify` can check what landonce lands.

    Example: `landonce state import clicks.yaml --from-connect clicks-sink`

    Example: `landonce state import clicks.yaml --from-checkpoint s3://bucket/checkpoints/clicks`

    Example: `landonce state import clicks.yaml --from-clickhouse-connect --group connect-clicks`
    """
    from landonce.cli.state.decide import import_position as work
    from landonce.protocol.source import Start
    from landonce.sinks.operations import Before

    before = Before(
        connector,
        checkpoint,
        nothing,
        control_topic,
        group,
        by_state=by_state,
        state_table=table,
        offsets_of=offsets_of,
        missing=Start(missing.value) if missing is not None else None,
        landed=doubtful is Landed.LANDED if doubtful is not None else None,
    )
    work(file, before, yes=yes)
