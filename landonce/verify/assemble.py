"""Builds an audit from a pipeline file: the tables, what they hold, and what they should hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from landonce.engine.retention import Retention
from landonce.engine.spark.session import open_session, session_if_needed
from landonce.errors import TableUnfit
from landonce.protocol.ledger import LedgerState
from landonce.protocol.source import SourceView
from landonce.sinks.clickhouse.sink import ClickHouseSink
from landonce.sinks.contract import Guarantee
from landonce.sinks.deduplicating import insert_recipe
from landonce.sinks.parts import Parts
from landonce.sinks.sql.driver import sql_recipe
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.sql.table import SqlTable
from landonce.sinks.sql.worker import SqlRecipe
from landonce.verify.audit import Auditor, Targets
from landonce.verify.compare import ValueAudit
from landonce.verify.expect import Decoded, Decoder, Expectation, OneTable, PlainDecoder, Transformed
from landonce.verify.held.clickhouse import ClickHouseRows
from landonce.verify.held.clickhouse_values import ClickHouseValues
from landonce.verify.held.sql import SqlKeys, SqlRows
from landonce.verify.held.sql_values import SqlValues
from landonce.verify.keyed import KeyedAudit
from landonce.verify.letters import Letters
from landonce.verify.sorting import Changing
from landonce.verify.table import RowsAudit, TableAudit
from landonce.verify.topic import PlainReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class _ClickHouse:
    """The one table of a pipeline that lands in ClickHouse."""

    sink: ClickHouseSink
    values: bool = False

    def known(self) -> tuple[str, ...]:
        return (self.sink.table,)

    def open(self, table: str) -> TableAudit:
        del table
        rows = ClickHouseRows(self.sink)
        return RowsAudit(rows, ValueAudit(ClickHouseValues(rows)) if self.values else None)


@dataclass(frozen=True)
class _Sql:
    """The one table of a pipeline that lands in an SQL database."""

    table: SqlTable
    recipe: SqlRecipe
    values: bool = False

    def known(self) -> tuple[str, ...]:
        return (self.table.sink.table,)

    def open(self, table: str) -> TableAudit:
        del table
        key, recipe = self.table.sink.key, self.recipe
        written = recipe.target if recipe.transforms else recipe.source
        values = ValueAudit(SqlValues(self.table, written)) if self.values else None
        if key:
            return KeyedAudit(SqlKeys(self.table, recipe.source), key, values)
        return RowsAudit(SqlRows(self.table), values)


@contextmanager
def opened_audit(parts: Parts, *, to_end: bool = False, values: bool = False) -> Iterator[Auditor]:
    """An audit that is ready to run. It closes what it opens."""
    with ExitStack() as stack:
        yield _auditor(parts, stack, to_end, values)


def _auditor(parts: Parts, stack: ExitStack, to_end: bool, values: bool) -> Auditor:
    config, kafka = parts.config, parts.config.source.kafka
    state = parts.ledger.load()
    view = parts.broker.survey(kafka.topics)
    targets, expectation = _ends(parts, state, stack, values)
    reader = PlainReader(kafka.bootstrap_servers, kafka.options, keys=parts.sink.changes_rows)
    stack.callback(reader.close)
    return Auditor(
        pipeline=config.pipeline,
        state=state,
        view=view,
        survey=lambda: parts.broker.survey(kafka.topics),
        reader=reader,
        expectation=expectation,
        targets=targets,
        letters=Letters(config.dead_letters.path, config.pipeline, _labels(state, view)),
        to_end=to_end,
        compacted=_compacted(parts),
        from_start=kafka.start == "earliest",
    )


def _ends(parts: Parts, state: LedgerState | None, stack: ExitStack, values: bool) -> tuple[Targets, Expectation]:
    """What the tables hold, and what they should hold."""
    if parts.sink.unreadable:
        raise TableUnfit(
            parts.sink.unreadable,
            safe="An audit changes nothing.",
            command="compare the coordinates in the target with the topic yourself: every row has _topic, _partition and _offset",
        )
    if isinstance(parts.sink, SqlSink):
        return _sql(parts, parts.sink, stack, values)
    if parts.sink.guarantee is not Guarantee.SNAPSHOT:
        return _clickhouse(parts, stack, values)
    return _iceberg(parts, state, stack, values)


def _iceberg(parts: Parts, state: LedgerState | None, stack: ExitStack, values: bool) -> tuple[Targets, Expectation]:
    from landonce.verify.assemble_iceberg import IcebergTables

    tables = IcebergTables(parts, state, values)
    if not parts.config.transform.empty:
        recipe = tables.recipe
        return tables, Transformed(recipe, tables.sorting, tables.schema_of, _session(parts, stack))
    return tables, Decoded(tables.sorting, tables.decoder_of)


def _clickhouse(parts: Parts, stack: ExitStack, values: bool) -> tuple[Targets, Expectation]:
    sink = parts.deduplicating
    if not isinstance(sink, ClickHouseSink):
        raise TypeError(f"{sink} has no rows to read")
    target = sink.target()
    stack.callback(target.close)
    recipe = insert_recipe(parts, target.schema())
    sorting, targets = OneTable(sink.table), _ClickHouse(sink, values)
    if recipe.transforms:
        return targets, Transformed(recipe, sorting, lambda _: recipe.target, _session(parts, stack))
    decoder = PlainDecoder(recipe.source, recipe.max_record_bytes)
    return targets, Decoded(sorting, lambda _: decoder)


def _sql(parts: Parts, sink: SqlSink, stack: ExitStack, values: bool) -> tuple[Targets, Expectation]:
    table = SqlTable(sink)
    stack.callback(table.close)
    recipe = sql_recipe(parts, table)
    sorting, targets = OneTable(sink.table), _Sql(table, recipe, values)
    if recipe.transforms:
        return targets, Transformed(recipe, sorting, lambda _: recipe.target, _session(parts, stack))
    decoder: Decoder = PlainDecoder(recipe.source, recipe.max_record_bytes)
    if recipe.changes is not None:
        decoder = Changing(recipe.source, sink.key, recipe.changes, recipe.max_record_bytes)
    return targets, Decoded(sorting, lambda _: decoder)


def _labels(state: LedgerState | None, view: SourceView) -> frozenset[str]:
    return frozenset((state.labelled(each) if state is not None else each).topic for each, _ in view.extents)


def _compacted(parts: Parts) -> frozenset[str]:
    kafka = parts.config.source.kafka
    retention = Retention(kafka.bootstrap_servers, kafka.options)
    return frozenset(topic for topic in kafka.topics if retention.compacted(topic))


def _session(parts: Parts, stack: ExitStack) -> SparkSession:
    """Starts Spark only if there is an expression to evaluate."""
    config = parts.config
    return stack.enter_context(session_if_needed(lambda: open_session(config.pipeline, config.spark)))()
