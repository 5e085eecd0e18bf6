"""What an operator may decide about a pipeline to an SQL database."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from landonce.errors import NothingToDo
from landonce.ledger.block_ledgers import TargetLedger
from landonce.protocol import operate
from landonce.protocol.block_rows import Row, landed
from landonce.protocol.ledger import LedgerState
from landonce.protocol.marks import TableStatus, TableView
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.target import TargetView
from landonce.sinks.contract import look_by_name
from landonce.sinks.operations import UNCHANGED, Choice, Operations
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.sql.table import SqlTable


@dataclass
class SqlOperations(Operations):
    """Rows and ledger are in one database: the blocks' rows say which of them landed."""

    sink: SqlSink
    no_fill = (
        "there is nothing to fill: a block's rows are in the table if its row in the ledger says so, and else none is."
    )

    def kept(self) -> dict[str, Any]:
        return {"target": str(self.sink)}

    def rows(self, state: LedgerState) -> Sequence[Row]:
        ledger = self.parts.ledger
        return ledger.blocks(state.pending.batch) if state.pending and isinstance(ledger, TargetLedger) else ()

    def ahead(self, state: LedgerState, stands: Iterable[TableStatus], partitions: Iterable[Partition]) -> TargetView:
        del stands
        floors = [(each, 0) for each in partitions]
        with closing(SqlTable(self.sink)) as table:
            seen = look_by_name(table, state, floors) if table.exists() else TargetView(())
        return operate.landed_too(seen, state.pending, landed(self.rows(state)))

    def count(self, ranges: Sequence[Range]) -> int | None:
        with closing(SqlTable(self.sink)) as table:
            return table.count(ranges) if table.exists() else None

    def forget_table(self, table: str, owner: str, *, replay: bool) -> Choice:
        """The next plan is bound to the table that is there then."""
        if replay:
            raise NothingToDo(
                "a table of an SQL database is not filled up again by the pipeline that it belongs to.",
                safe=UNCHANGED,
                command="give the pipeline another `pipeline` name and an empty table in {file}, then: landonce run {file}",
            )
        known = self.required()
        with closing(SqlTable(replace(self.sink, table=table))) as there:
            view = TableView(table, there.identity())
        return Choice(known, operate.forget_table(known, view, owner))
