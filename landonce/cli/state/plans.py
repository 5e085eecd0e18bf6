"""`landonce state fill` and `accept-change`: what becomes of a pending plan."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from landonce.cli.state.decide import decide, new_owner, operating
from landonce.cli.state.source import landed_of
from landonce.errors import NothingToDo
from landonce.protocol import operate
from landonce.sinks.contract import Guarantee
from landonce.sinks.deduplicating import insert_recipe
from landonce.sinks.parts import Parts
from landonce.sinks.sql.driver import sql_recipe
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.sql.table import SqlTable
from landonce.sinks.wrapped.driver import wrapped_recipe
from landonce.sinks.wrapped.sink import WrappedSink


def fill(file: Path, *, yes: bool) -> None:
    with operating(file) as target:
        if target.no_fill:
            raise NothingToDo(target.no_fill, safe="Nothing was changed.", command=target.instead)
        state = target.required()
        decision = operate.fill(state, new_owner())
        ranges = tuple(each for block in state.pending.blocks for each in block.ranges) if state.pending else ()
        decide(target, file, state, decision, yes=yes, also=landed_of(target, state, ranges))


def accept_change(file: Path, *, yes: bool) -> None:
    with operating(file) as target:
        state = target.required()
        fingerprint = _fingerprint(target.parts) if state.pending else ""
        decision = operate.accept_change(state, fingerprint, new_owner(), fan_out=target.fan_out)
        decide(target, file, state, decision, yes=yes)


def _fingerprint(parts: Parts) -> str:
    if parts.sink.guarantee is Guarantee.SNAPSHOT:
        from landonce.sinks.iceberg.driver import file_recipe

        return file_recipe(parts).fingerprint()
    if isinstance(parts.sink, SqlSink):
        with closing(SqlTable(parts.sink)) as table:
            return sql_recipe(parts, table).fingerprint()
    if isinstance(parts.sink, WrappedSink):
        return wrapped_recipe(parts).fingerprint()
    return insert_recipe(parts, parts.deduplicating.target().schema()).fingerprint()
