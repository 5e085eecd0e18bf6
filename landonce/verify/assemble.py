"""Builds an audit from a pipeline file: what its tables hold, and what they should hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from landonce.engine.retention import Retention
from landonce.engine.spark.session import open_session, session_if_needed
from landonce.protocol.ledger import LedgerState
from landonce.protocol.source import SourceView
from landonce.sinks.audit import HeldKeys, HeldTables
from landonce.sinks.parts import Parts
from landonce.verify.audit import Auditor
from landonce.verify.compare import ValueAudit
from landonce.verify.expect import Decoded, Expectation, Transformed
from landonce.verify.table import KeyedAudit, RowsAudit, TableAudit
from landonce.verify.topic import Letters, PlainReader


@dataclass(frozen=True)
class _Audited:
    """The tables of a sink, each with the audit that suits it."""

    tables: HeldTables
    values: bool
    """Whether values are compared too."""

    def known(self) -> Iterable[str]:
        return self.tables.known()

    def open(self, table: str) -> TableAudit:
        held = self.tables.open(table)
        values = ValueAudit(held.values()) if self.values else None
        if isinstance(held, HeldKeys):
            return KeyedAudit(held, self.tables.identity, values)
        return RowsAudit(held, values)


@contextmanager
def opened_audit(parts: Parts, *, to_end: bool = False, values: bool = False) -> Iterator[Auditor]:
    """An audit that is ready to run. It closes what it opens."""
    with ExitStack() as stack:
        yield _auditor(parts, stack, to_end, values)


def _auditor(parts: Parts, stack: ExitStack, to_end: bool, values: bool) -> Auditor:
    config, kafka = parts.config, parts.config.source.kafka
    state = parts.ledger.load()
    view = parts.source()
    tables = parts.sink.held(parts, state)
    stack.callback(tables.close)
    expectation = _expectation(parts, tables, stack)
    reader = PlainReader(kafka.bootstrap_servers, kafka.options, keys=parts.sink.changes_rows)
    stack.callback(reader.close)
    return Auditor(
        pipeline=config.pipeline,
        state=state,
        view=view,
        survey=parts.source,
        reader=reader,
        expectation=expectation,
        targets=_Audited(tables, values),
        letters=Letters(config.dead_letters.path, config.pipeline, _labels(state, view)),
        to_end=to_end,
        compacted=_compacted(parts),
        from_start=kafka.start == "earliest",
    )


def _expectation(parts: Parts, tables: HeldTables, stack: ExitStack) -> Expectation:
    """Starts Spark only if there is an expression to evaluate."""
    if not tables.recipe.transforms:
        return Decoded(tables)
    config = parts.config
    session = stack.enter_context(session_if_needed(lambda: open_session(config.pipeline, config.spark)))
    return Transformed(tables, session())


def _labels(state: LedgerState | None, view: SourceView) -> frozenset[str]:
    return frozenset((state.labelled(each) if state is not None else each).topic for each, _ in view.extents)


def _compacted(parts: Parts) -> frozenset[str]:
    kafka = parts.config.source.kafka
    retention = Retention(kafka.bootstrap_servers, kafka.options)
    return frozenset(topic for topic in kafka.topics if retention.compacted(topic))
