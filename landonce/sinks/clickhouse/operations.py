"""What an operator may decide about tables in ClickHouse; here: to go on where ClickHouse's sink for Kafka Connect stopped."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from landonce.errors import ConfigError, TargetAhead
from landonce.protocol.ledger import LedgerState
from landonce.protocol.marks import TableStatus
from landonce.protocol.operate.decision import Decision, nothing_known, refused
from landonce.protocol.ranges import Partition
from landonce.protocol.source import Extent, SourceView
from landonce.protocol.target import TargetView
from landonce.sinks.clickhouse.address import TableName, literal, parse_table
from landonce.sinks.clickhouse.connection import connect
from landonce.sinks.clickhouse.held import ClickHouseRows
from landonce.sinks.clickhouse.move_in import (
    BEFORE,
    ComparedBatch,
    LastBatch,
    WriterStops,
    batches,
    begin,
    inserts_into,
    no_proof,
    readable,
    refuse_members,
    stop_of,
    stops_of,
)
from landonce.sinks.clickhouse.sink import ClickHouseSink
from landonce.sinks.clickhouse.table import coordinate_faults
from landonce.sinks.deduplicating import table_names, there
from landonce.sinks.operations import UNCHANGED, Before, LookingOperations

_STATE_TABLE = "connect_state"
"""Its name, where the connector's option `zkDatabase` gives no other."""
_STATE_COLUMNS = {"key", "minOffset", "maxOffset", "state"}
_UNWATCHED = "The state table does not say whether the connector still runs: stop it first (`--group connect-NAME` makes this command look)."
_UNCERTAIN = (
    "The group's offsets may be behind the table. Where rows have coordinates, the first run compares them and writes only what is missing; "
    "otherwise the connector's last records may land twice."
)
_UNSEEN = "{0} has no coordinates: nobody can tell whether it holds rows of records from these offsets on."


@dataclass(frozen=True)
class ClickHouseImport:
    """Where another writer stopped, found and not yet recorded."""

    operations: ClickHouseOperations
    look: Callable[[], WriterStops]
    state: LedgerState
    found: WriterStops
    decision: Decision

    def adopt(self) -> None:
        if self.look() != self.found:
            raise refused(f"{self.found.writer} went on while this was decided.", "stop it, then import")
        ledger = self.operations.parts.ledger
        ledger.create(self.state)
        ledger.change(self.state, self.decision.new, self.decision.note())


@dataclass
class ClickHouseOperations(LookingOperations):
    """As of every target that can be looked into."""

    sink: ClickHouseSink

    def ahead(self, state: LedgerState, statuses: Iterable[TableStatus], partitions: Iterable[Partition]) -> TargetView:
        """Of a Collapsing table nobody can tell it, unless it is empty."""
        try:
            return super().ahead(state, statuses, partitions)
        except TargetAhead:
            if not self.sink.ordered:
                raise
            raise TargetAhead(
                f"{self.sink} holds rows of these topics. Its engine collapses rows, so nobody can tell what of a topic or of a plan has landed, "
                "and what is delivered again would count twice.",
                safe=UNCHANGED,
                command="give the pipeline another `pipeline` name and an empty table in {file}",
            ) from None

    def take_over(self, before: Before, owner: str) -> ClickHouseImport:
        by_state = before.by_state and before.only("by_state", "state_table", "group", "missing", "landed")
        if not by_state and (before.offsets_of is None or not before.only("offsets_of", "missing")):
            raise ConfigError(
                "name the previous writer with --from-clickhouse-connect [TABLE], beside it --group, --missing and --before; or with "
                "--from-group GROUP, beside it --missing.",
                safe=UNCHANGED,
            )
        if self.parts.config.outside_ledger.memory:
            raise ConfigError(
                "`ledger: {memory: true}` keeps no position when this command ends.",
                safe=UNCHANGED,
                command="name another ledger in {file}, then import",
            )
        state = self.load()
        nothing_known(state)
        state = state or LedgerState(self.parts.config.pipeline, lineage=uuid.uuid4().hex)
        view = self.parts.source()

        def look() -> WriterStops:
            return self._by_state(before, view) if by_state else self._by_group(before, view)

        found = look()
        return ClickHouseImport(self, look, state, found, begin(state, found, view, owner, before.missing))

    def _by_state(self, before: Before, view: SourceView) -> WriterStops:
        name = parse_table(before.state_table or _STATE_TABLE, self.sink.address.database)
        tables, extents = self._tables(), dict(view.extents)
        if before.group is not None:
            refuse_members(before.group, self.parts.broker.group(before.group, extents))
        self._refuse_inserts(tables)
        stops = [
            stop_of(
                each,
                self._compared(each, extents[each.partition], tables) if each.state == BEFORE else None,
                before.landed,
            )
            for each in batches(self._states(name), view)
        ]
        return WriterStops(
            f"ClickHouse's Kafka Connect sink, by its state table {name},",
            tuple(stops),
            (*(() if before.group is not None else (_UNWATCHED,)), *_unseen(tables)),
        )

    def _by_group(self, before: Before, view: SourceView) -> WriterStops:
        name = str(before.offsets_of)
        tables = self._tables()
        stops = stops_of(name, self.parts.broker.group(name, [each for each, _ in view.extents]))
        self._refuse_inserts(tables)
        return WriterStops(f"the consumer group {name!r}", stops, (_UNCERTAIN, *_unseen(tables)))

    def _states(self, name: TableName) -> list[tuple[str, int, int, str]]:
        connection = connect(self.sink.access)
        asked = {"database": name.database, "name": name.name}
        sql = "SELECT name FROM system.columns WHERE database = {database:String} AND table = {name:String}"
        if not set(connection.ask(sql, asked).column(0).to_pylist()) >= _STATE_COLUMNS:
            raise refused(
                f"{name} is not a state table of ClickHouse's Kafka Connect sink: there is none of this name, or it has other columns.",
                "name it: `--from-clickhouse-connect TABLE` (the connector's options `database` and `zkDatabase`). A connector without "
                "`exactlyOnce` has none: `--from-group connect-NAME`",
            )
        sql = f"SELECT key, toInt64(minOffset) AS low, toInt64(maxOffset) AS high, state FROM {name.sql}"  # noqa: S608
        rows = connection.ask(sql).to_pylist()
        return [(row["key"], row["low"], row["high"], row["state"]) for row in rows]

    def _tables(self) -> tuple[ClickHouseRows, ...]:
        """Each table, on each shard."""
        names = [self.sink.one(each) for each in table_names(self.sink) if there(self.sink, each)]
        if not names:
            raise refused(f"{self.sink} does not exist, so the connector wrote elsewhere.", "correct `table` in {file}")
        return tuple(ClickHouseRows(shard) for each in names for shard in each.shards or (each,))

    def _refuse_inserts(self, tables: tuple[ClickHouseRows, ...]) -> None:
        """Raises while an insert into one of the tables runs or waits: it lands after everybody has looked."""
        cluster = self.sink.config.cluster
        processes = f"clusterAllReplicas({literal(cluster)}, system.processes)" if cluster else "system.processes"
        inserts = f"SELECT query, current_database FROM {processes} WHERE query_kind = 'Insert'"  # noqa: S608
        waiting = "SELECT count() FROM system.asynchronous_inserts WHERE database = {database:String} AND table = {name:String}"
        for name, connection in ((each.table.name, connect(each.place.access)) for each in tables):
            running = any(inserts_into(name, *row.values()) for row in connection.ask(inserts).to_pylist())
            if running or connection.one(waiting, {"database": name.database, "name": name.name}):
                raise refused(
                    f"an insert into {name} is still running.", "stop its writer, wait for its end, then import"
                )

    def _compared(self, batch: LastBatch, extent: Extent, tables: tuple[ClickHouseRows, ...]) -> ComparedBatch:
        """Offset by offset: Kafka does not have a record at each."""
        left = readable(batch, extent)
        if why := self._no_proof(batch.partition, tables):
            return ComparedBatch(unknown=why)
        read = self.parts.records.read(left)
        records = np.concatenate([np.empty(0, np.int64), *(each.offsets.to_numpy() for each in read)])
        place = (batch.partition, batch.first, batch.last + 1)
        held = np.concatenate([each.counted(*place).offsets for each in tables])
        return ComparedBatch(len(records), int(np.isin(records, held).sum()))

    def _no_proof(self, partition: Partition, tables: tuple[ClickHouseRows, ...]) -> str:
        for each in tables:
            if coordinate_faults(each.table.columns):
                return f"{each.table.name} has no coordinates (`_topic`, `_partition`, `_offset`)"
            if each.replaces_rows or self.sink.key:
                return f"rows of {each.table.name} replace each other"
        topics = {}
        for each in tables:
            asked = f"SELECT DISTINCT toString(_topic) FROM {each.table.name.sql}"  # noqa: S608
            topics[str(each.place)] = connect(each.place.access).ask(asked).column(0).to_pylist()
        return no_proof(topics, partition.topic)


def _unseen(tables: tuple[ClickHouseRows, ...]) -> tuple[str, ...]:
    return tuple(_UNSEEN.format(each.table.name) for each in tables if coordinate_faults(each.table.columns))
