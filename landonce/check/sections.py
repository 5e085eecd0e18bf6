"""The sections of `check`, in the order in which a start would meet them.

A part that is away is one finding, and the sections that need it are left out: what can be said is always said.
"""

from __future__ import annotations

from contextlib import closing

from landonce.check import clickhouse, common, sql, wrapped
from landonce.check.found import Check, Look, Section, World, gathered
from landonce.sinks.contract import Guarantee
from landonce.sinks.parts import Parts
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.sql.table import SqlTable
from landonce.sinks.wrapped.sink import WrappedSink


def check_pipeline(parts: Parts, *, spark: bool = False) -> Check:
    """Looks at everything. `spark`: starts a Spark session to examine the expressions too."""
    world = World()
    if parts.sink.guarantee is Guarantee.SNAPSHOT:
        from landonce.check import iceberg

        sections = _sections(parts, world, iceberg.looks(parts, world), spark=spark)
    elif isinstance(parts.sink, SqlSink):
        with closing(SqlTable(parts.sink)) as table:
            sections = _sections(parts, world, sql.looks(parts, table, world), spark=spark)
    elif isinstance(parts.sink, WrappedSink):
        sections = _sections(parts, world, wrapped.looks(parts, world), spark=spark)
    else:
        with closing(parts.deduplicating.target()) as target:
            sections = _sections(parts, world, clickhouse.looks(parts, target, world), spark=spark)
    return Check(parts.config.pipeline, sections, parts.sink.promise(parts.config))


def _sections(parts: Parts, world: World, between: tuple[Look, ...], *, spark: bool) -> tuple[Section, ...]:
    return tuple(
        gathered(
            (
                ("pipeline file", lambda: common.file(parts)),
                ("Kafka", lambda: common.kafka(parts, world)),
                *between,
                ("Spark", lambda: common.spark(parts, world, start=spark)),
                ("dead letters", lambda: common.dead_letters(parts)),
            )
        )
    )
