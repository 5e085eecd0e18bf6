"""`landonce state fill` and `accept-change`: what becomes of a pending plan."""

from __future__ import annotations

from contextlib import closing

from landonce.cli.files import File, opened
from landonce.cli.state.decide import Yes, decide, load, new_owner
from landonce.cli.state.source import landed_of
from landonce.errors import NothingToDo
from landonce.record import operate
from landonce.run.assemble_clickhouse import make_recipe
from landonce.run.assemble_iceberg import file_recipe
from landonce.run.assemble_sql import sql_recipe
from landonce.run.assemble_wrapped import wrapped_recipe
from landonce.run.parts import Parts
from landonce.write.iceberg.sink import IcebergSink
from landonce.write.sql import SqlSink
from landonce.write.sql.table import SqlTable
from landonce.write.wrapped import WrappedSink


def fill(file: File, yes: Yes = False) -> None:
    """Write what is missing of a pending plan that is in the table in part (ClickHouse).

    A block lands whole or not at all, so landonce halts with PartialPresence when some rows of it are gone: somebody
    deleted them, or a TTL did. This command says that they shall be written again.

    Example: `landonce state fill clicks.yaml`
    """
    with opened(file) as parts:
        if isinstance(parts.sink, IcebergSink):
            raise NothingToDo(
                "there is nothing to fill: a commit to an Iceberg table lands whole, with its position, or not at all.",
                safe="Nothing was changed.",
                command="roll the table back to a snapshot that holds the rows; `landonce run {file}` delivers the rest again",
            )
        if isinstance(parts.sink, SqlSink):
            raise NothingToDo(
                "there is nothing to fill: a block's rows are in the table if its row in the ledger says so, and else none is.",
                safe="Nothing was changed.",
                command="landonce run {file}",
            )
        if isinstance(parts.sink, WrappedSink):
            raise NothingToDo(
                "there is nothing to fill: a block is pushed whole, and its row in the ledger says what became of it.",
                safe="Nothing was changed.",
                command="landonce run {file}",
            )
        ledger = load(parts)
        decision = operate.fill(ledger, new_owner())
        ranges = tuple(each for block in ledger.pending.blocks for each in block.ranges) if ledger.pending else ()
        decide(parts, file, ledger, decision, yes=yes, also=landed_of(parts, ledger, ranges))


def accept_change(file: File, yes: Yes = False) -> None:
    """Let the present pipeline file settle a plan that another version of it made.

    The safe way is to put the old file back, run it once, and then make the change. Take this one if you know that the
    change does not decide which records of the pending plan land, or where. One Iceberg table that is its own ledger never
    needs it: no plan of it is ever pending.

    Example: `landonce state accept-change clicks.yaml`
    """
    with opened(file) as parts:
        ledger = load(parts)
        fan_out = isinstance(parts.sink, IcebergSink)
        fingerprint = _fingerprint(parts) if ledger.pending else ""
        decide(parts, file, ledger, operate.accept_change(ledger, fingerprint, new_owner(), fan_out=fan_out), yes=yes)


def _fingerprint(parts: Parts) -> str:
    if isinstance(parts.sink, IcebergSink):
        return file_recipe(parts).fingerprint()
    if isinstance(parts.sink, SqlSink):
        with closing(SqlTable(parts.sink)) as table:
            return sql_recipe(parts, table).fingerprint()
    if isinstance(parts.sink, WrappedSink):
        return wrapped_recipe(parts).fingerprint()
    return make_recipe(parts, parts.sink.target()).fingerprint()
