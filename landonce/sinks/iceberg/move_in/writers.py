"""The two kinds of writers that landonce can take over from: look at one, and later at what it wrote into a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Protocol

from pyiceberg.table import Table

from landonce.protocol.operate.decision import listed
from landonce.sinks.iceberg.move_in import connect, query
from landonce.sinks.iceberg.move_in.checkpoint import CheckpointFolder
from landonce.sinks.iceberg.move_in.control import Cluster
from landonce.sinks.iceberg.move_in.found import Found, History, Told, refused, same_topics
from landonce.sinks.iceberg.move_in.tables import histories, history_of, load, missing
from landonce.sinks.iceberg.sink import IcebergSink


class Writer(Protocol):
    """Somebody who wrote the pipeline's tables before."""

    def look(self) -> Found:
        """Where it stopped. `ImportRefused` if it did not, or if that cannot be told."""

    def told(self, name: str, table: Table) -> Told | None:
        """Its newest commit to a table, as that is now."""


@dataclass
class ConnectSink:
    """A connector with Iceberg's sink for Kafka Connect."""

    tables: IcebergSink
    cluster: Cluster
    topics: tuple[str, ...]
    connector: str
    group: str
    control: str | None = None

    def look(self) -> Found:
        sink = self.cluster.sink(self.connector, self.group, self._control, self.topics)
        found = histories(self.tables, self._says)
        positions = connect.stopped_at(sink, found, self.topics)
        return Found(
            writer=str(sink),
            told=tuple(each.told for each in found if each.told is not None),
            positions=tuple(sorted(positions.items())),
            notes=tuple(note for each in found for note in self._lost(sink, each)),
            seen=(tuple(sorted(sink.log.ends.items())), tuple(sorted(sink.offsets.items()))),
        )

    def told(self, name: str, table: Table) -> Told | None:
        return history_of(table, name, self.tables.told.branch, self._says).told

    @cached_property
    def _control(self) -> str:
        """What the newest snapshot of the group names, unless the operator did."""
        if self.control is not None:
            return self.control
        named = histories(self.tables, lambda summary: connect.control_topic_in(summary, self.group))
        told = [each.told for each in named if each.told is not None]
        if not told:
            raise refused(
                f"no snapshot of {self.tables} names the group {self.group}, as far as the history of the branch goes back: "
                f"nothing was committed by a connector {self.connector!r}.",
                "check the connector's name, --group, and `table` and `branch` in {file}; if the snapshots expired, let the "
                "connector commit at least one more record",
            )
        return max(told, key=lambda each: each.at).said

    def _says(self, summary: Mapping[str, str]) -> str | None:
        return connect.said_by(self._control, self.group, summary)

    def _lost(self, sink: connect.Sink, history: History) -> tuple[str, ...]:
        table = load(self.tables, history.table)
        files = connect.covered(sink, history)
        lost = missing(table, self.tables.told.branch, files) if table is not None else frozenset()
        said = (
            f"{history.table} lacks {len(lost)} file(s) that {sink} reported and then passed over: their rows are missing by "
            "its own fault, and landonce does not deliver them. Iceberg's procedure `add_files` brings in what is still there: "
            f"{listed(sorted(lost), 3)}."
        )
        return (said,) if lost else ()


@dataclass
class StreamingQuery:
    """A Spark Structured Streaming query that wrote to a table with `toTable`."""

    tables: IcebergSink
    topics: tuple[str, ...]
    folder: CheckpointFolder

    def look(self) -> Found:
        checkpoint = self.folder.read()
        found = histories(self.tables, partial(query.said_by, checkpoint.query))
        batch = query.last_batch(checkpoint, found)
        positions = query.positions_of(checkpoint, batch, self.folder.entry(batch))
        read = frozenset(each.topic for each in positions)
        same_topics(str(checkpoint), read, frozenset(self.topics))
        return Found(
            writer=str(checkpoint),
            told=tuple(each.told for each in found if each.told is not None),
            positions=tuple(sorted(positions.items())),
            notes=query.notes_of(checkpoint, batch),
            seen=(checkpoint,),
        )

    def told(self, name: str, table: Table) -> Told | None:
        says = partial(query.said_by, self.folder.read().query)
        return history_of(table, name, self.tables.told.branch, says).told
