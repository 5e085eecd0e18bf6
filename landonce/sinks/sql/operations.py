"""What an operator may decide about a pipeline to an SQL database."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace

from landonce.errors import NothingToDo
from landonce.protocol import operate
from landonce.protocol.marks import TableView
from landonce.sinks.operations import UNCHANGED, Choice, TransactionalOperations
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.sql.table import SqlTable


@dataclass
class SqlOperations(TransactionalOperations):
    """Also knows which table it is, where the database says so."""

    sink: SqlSink

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
