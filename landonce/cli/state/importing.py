"""`landonce state import`: go on where another writer of the table stopped."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path

import typer
from pyiceberg.table import Table

from landonce.cli.files import opened
from landonce.cli.output import out
from landonce.cli.state.decide import loaded, new_owner
from landonce.cli.state.lake import committing, tables_of
from landonce.errors import ConfigError
from landonce.protocol.ledger import LedgerState
from landonce.protocol.operate import Decision
from landonce.protocol.source import Start
from landonce.sinks.iceberg.commit import Attempt
from landonce.sinks.iceberg.ledger import Build, TableLedger
from landonce.sinks.iceberg.move_in.adopt import adopt, beside, nothing_known
from landonce.sinks.iceberg.move_in.checkpoint import CheckpointFolder
from landonce.sinks.iceberg.move_in.control import Cluster
from landonce.sinks.iceberg.move_in.found import Found, refused
from landonce.sinks.iceberg.move_in.writers import ConnectSink, StreamingQuery, Writer
from landonce.sinks.iceberg.restate import empty
from landonce.sinks.iceberg.sink import IcebergSink
from landonce.sinks.parts import Parts


def import_position(
    file: Path,
    *,
    connector: str | None,
    checkpoint: str | None,
    control_topic: str | None,
    group: str | None,
    nothing: bool,
    yes: bool,
) -> None:
    with opened(file) as parts:
        if not isinstance(parts.sink, IcebergSink):
            raise ConfigError("sink: only a pipeline to Iceberg can go on where another writer stopped.")
        if [connector is not None, checkpoint is not None, nothing].count(True) != 1:
            raise ConfigError(
                "name the writer before, by --from-connect NAME or by --from-checkpoint PATH, or say --from-nothing."
            )
        if connector is not None:
            writer: Writer | None = _connect(parts, connector, group or f"connect-{connector}", control_topic)
        else:
            writer = _query(parts, checkpoint) if checkpoint is not None else None
        state, found, decision = _prepare(parts, writer)
        _explain(decision)
        if not yes:
            typer.confirm("Do it?", abort=True)
        _adopt(parts, writer, state, found, decision)
    out.print(f"[green]done[/], and recorded in the journal: epoch {decision.new.epoch}. Next:", end=" ")
    out.print(f"landonce run {file}", markup=False)


def _connect(parts: Parts, connector: str, group: str, control: str | None) -> ConnectSink:
    kafka = parts.config.source.kafka
    cluster = Cluster(kafka.bootstrap_servers, kafka.options, parts.consumer)
    return ConnectSink(parts.iceberg, cluster, kafka.topics, connector, group, control)


def _query(parts: Parts, checkpoint: str) -> StreamingQuery:
    folder = CheckpointFolder(checkpoint, parts.iceberg.spec.properties)
    return StreamingQuery(parts.iceberg, parts.config.source.kafka.topics, folder)


def _prepare(parts: Parts, writer: Writer | None) -> tuple[LedgerState, Found | None, Decision]:
    state = loaded(parts.ledger, parts)
    marked = (each.name for each in tables_of(parts, state) if each.own is not None and each.own.last is not None)
    nothing_known(state, next(marked, ""))
    state = state or LedgerState(parts.config.pipeline, lineage=uuid.uuid4().hex)
    found = writer.look() if writer is not None else None
    kafka = parts.config.source.kafka
    view = parts.broker.survey(kafka.topics)
    if found is None:
        return state, None, beside(state, view, new_owner(), Start(kafka.start))
    return state, found, adopt(state, found, view, new_owner())


def _explain(decision: Decision) -> None:
    for line in decision.does:
        out.print(line, markup=False)
    for line in decision.costs:
        out.print(line, style="yellow", markup=False)


def _adopt(parts: Parts, writer: Writer | None, state: LedgerState, found: Found | None, decision: Decision) -> None:
    """Writes the position, unless the writer did anything since it was looked at."""
    with committing(parts) as place:
        if writer is not None and found is not None and writer.look() != found:
            raise _went_on(found)
        if isinstance(parts.ledger, TableLedger):
            mine = place(parts.iceberg.static[0])
            build = empty(mine)
            if writer is not None and found is not None:
                build = _only_if_stopped(build, mine.identifier, writer, found)
            parts.ledger.commit(state, decision.new, build, note=decision.note())
        else:
            parts.ledger.create(state)
            parts.ledger.change(state, decision.new, decision.note())


def _only_if_stopped(build: Build, name: str, writer: Writer, found: Found) -> Build:
    """Judged on the very metadata that each attempt is made against: a commit that comes late is not written over."""

    def judged(table: Table, told: Mapping[str, str], properties: Mapping[str, str]) -> Attempt:
        if (writer.told(name, table),) != found.told:
            raise _went_on(found)
        return build(table, told, properties)

    return judged


def _went_on(found: Found) -> Exception:
    return refused(f"{found.writer} went on while this was decided.", "stop it, then import")
