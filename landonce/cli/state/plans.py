"""`landonce state fill` and `accept-change`: what becomes of a pending plan."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from landonce.cli.files import opened
from landonce.cli.state.decide import decide, load, new_owner
from landonce.cli.state.source import landed_of
from landonce.engine.assemble_clickhouse import make_recipe
from landonce.engine.assemble_sql import sql_recipe
from landonce.engine.assemble_wrapped import wrapped_recipe
from landonce.errors import NothingToDo
from landonce.protocol import operate
from landonce.sinks.contract import Guarantee
from landonce.sinks.parts import Parts
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.sql.table import SqlTable
from landonce.sinks.wrapped.sink import WrappedSink


def fill(file: Path, *, yes: bool) -> None:
    with opened(file) as parts:
        if parts.sink.guarantee is Guarantee.SNAPSHOT:
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


def accept_change(file: Path, *, yes: bool) -> None:
    with opened(file) as parts:
        ledger = load(parts)
        fan_out = parts.sink.guarantee is Guarantee.SNAPSHOT
        fingerprint = _fingerprint(parts) if ledger.pending else ""
        decide(parts, file, ledger, operate.accept_change(ledger, fingerprint, new_owner(), fan_out=fan_out), yes=yes)


def _fingerprint(parts: Parts) -> str:
    if parts.sink.guarantee is Guarantee.SNAPSHOT:
        from landonce.engine.assemble_iceberg import file_recipe

        return file_recipe(parts).fingerprint()
    if isinstance(parts.sink, SqlSink):
        with closing(SqlTable(parts.sink)) as table:
            return sql_recipe(parts, table).fingerprint()
    if isinstance(parts.sink, WrappedSink):
        return wrapped_recipe(parts).fingerprint()
    return make_recipe(parts, parts.clickhouse.target().schema()).fingerprint()
