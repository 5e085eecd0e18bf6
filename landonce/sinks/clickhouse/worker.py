"""The table as a worker sees it: one block is one insert, and one insert is one part per table partition.

The insert carries a token (a second copy is dropped), a deadline (ClickHouse refuses it when late) and a query id (so that it can be found and
killed). ClickHouse checks the deadline when the statement begins: after all rows have arrived, and after the statement is visible in
`system.processes`. So an insert that began in time can be killed, and one that is not visible yet will be refused. `protocol.settle`
decides what an answer means for the block, nothing here.

The insert also compares the table's columns with those that the rows were fitted to, and fails if one was altered: ClickHouse would convert
the values, and 300 is 44 in an Int8. The comparison is a set (`IN`), which is built when the statement runs, after ClickHouse has
fixed the columns that it writes; a scalar would be computed before. A later ALTER changes a table that holds the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from landonce.errors import TargetRefused, ViewRefused
from landonce.protocol.ranges import Range
from landonce.protocol.settle import Reply
from landonce.sinks.clickhouse.address import TableName, literal, query_prefix, quoted
from landonce.sinks.clickhouse.connection import Access, Form, NoAnswer, NotSent, connect, post
from landonce.sinks.clickhouse.keyed import as_rows, with_deletions
from landonce.sinks.clickhouse.probe import bring_up_to_date, count, probe
from landonce.sinks.clickhouse.replies import ALTERED, LATE, Answer, judge
from landonce.sinks.clickhouse.settings import INSERT
from landonce.sinks.clickhouse.table import Column, Table, describe, fitted, sent_rows, shape_now, tables_of
from landonce.sinks.contract import BlockWriter, Insert, Probe

_TOKEN_IN_QUERY_ID = 16
_LONGEST_PLAN = 3_600_000
"""Milliseconds. A server that started earlier than this before a deadline did so before the plan was made."""


class ClickHouseWriter(BlockWriter):
    """Writes blocks into one table. Opened on a worker, for one task."""

    def __init__(
        self, access: Access, table: TableName, pipeline: str, *, compression: str | None, key: tuple[str, ...] = ()
    ) -> None:
        self._access = access
        self._prefix = query_prefix(pipeline, table)
        self._compression = compression
        self.connection = connect(access)
        self.table = describe(self.connection, table, key)

    @property
    def resend_harmless(self) -> bool:
        """Whether the table's engine makes one row of two copies, so that rows that a probe misses may be sent again."""
        return self.table.resend_harmless

    @property
    def atomic(self) -> bool:
        """False for a table with partitions: a block is one part in each, and may land in only some of them."""
        return not self.table.partition_key

    def send(self, rows: pa.Table, insert: Insert) -> Reply:
        """Sends one insert over its own connection, and never again."""
        if rows.num_rows == 0:
            return Reply.ACKNOWLEDGED
        rows = as_rows(rows, self.table) if self.table.key else rows
        if rows.num_rows == 0:  # its changes cancel each other out
            return Reply.ACKNOWLEDGED
        columns = with_deletions(insert_columns(self.table, rows.column_names), self.table.key)
        query_id = f"{self._prefix}{insert.token[:_TOKEN_IN_QUERY_ID]}:{insert.attempt}"
        parameters = {
            **self.connection.settings_of(INSERT),
            "database": self.table.name.database,
            "query_id": query_id,
            "insert_deduplication_token": insert.token,
            "wait_end_of_query": "1",
        }
        statement = insert_statement(self.table, columns, insert.deadline)
        form = Form(statement, tables_of(fitted(rows, columns, self.table.name), columns, self._compression))
        return self._post(parameters, form, query_id, rows)

    def suspects(self, deadline: int) -> bool:
        """A plain MergeTree records a token before it renames the part into place. If the server is killed in between, it passes a resend on to
        the views and not to the table, and the next generation would count twice in them. A replicated table records both at once."""
        if self.table.replicated or not self.table.views:
            return False
        started = self.connection.one("SELECT toUnixTimestamp64Milli(now64(3)) - 1000 * toInt64(uptime())")
        return bool(started > deadline - _LONGEST_PLAN)

    def why_gone(self) -> str:
        """A TTL removes rows that are already expired as soon as they land."""
        table = self.table
        if not table.ttl:
            return ""
        return (
            f"The table has a TTL ({table.ttl}), which removes rows that it has expired as soon as they come. "
            f"`SYSTEM STOP TTL MERGES {table.name.sql}` before the next start lets them land, and START after it lets them expire; "
            "or give the table a longer TTL."
        )

    def count(self, ranges: Iterable[Range]) -> int:
        """How many rows the table holds in these ranges."""
        bring_up_to_date(self.connection, self.table)
        return count(self.connection, self.table.name, tuple(ranges), self.table.sign_column)

    def probe(self, rows: pa.Table, ranges: Iterable[Range]) -> Probe:
        """Which of these rows the table holds."""
        return probe(self.connection, self.table, rows, tuple(ranges))

    def _post(self, parameters: dict[str, str], form: Form, query_id: str, rows: pa.Table) -> Reply:
        try:
            answer = post(self._access, parameters, form)
        except NotSent as error:
            self.said = f"no connection: {error}"
            return Reply.REFUSED
        except NoAnswer as error:
            self.said = f"no answer: {error}"
            return Reply.LOST
        self.said = answer.said
        if answer.view:
            raise _view_refused(self.table.name, answer, rows)
        if answer.threw(ALTERED):
            self.table = describe(self.connection, self.table.name, self.table.key)
        return judge(answer, query_id, str(self.table.name))


def _view_refused(table: TableName, answer: Answer, rows: pa.Table) -> ViewRefused:
    spans = rows.group_by(["_topic", "_partition"]).aggregate([("_offset", "min"), ("_offset", "max")]).to_pylist()
    where = " OR ".join(
        f"(_topic = {literal(each['_topic'])} AND _partition = {each['_partition']} "
        f"AND _offset BETWEEN {each['_offset_min']} AND {each['_offset_max']})"
        for each in spans
    )
    return ViewRefused(
        f"the materialized view {answer.view} behind {table} failed: {answer.said}",
        safe="The table itself has these rows, or gets them once at the next start. The view lacks them, and landonce cannot add them.",
        command="correct the view or drop it, `landonce run {file}`, then insert into the view's table what its "
        f"query returns WHERE {where}. A view that need not hold every row: `materialized_views_ignore_errors: "
        "1` under `sink.clickhouse.settings`",
    )


def insert_columns(table: Table, given: Iterable[str]) -> tuple[Column, ...]:
    """The columns of an insert, in the table's order. Raises if the rows have another column, or lack one."""
    names_given = set(given)
    there = {each.name: each for each in table.columns if not each.computed}
    unknown = sorted(names_given - there.keys())
    absent = sorted(
        name for name, each in there.items() if name not in names_given and not each.default_kind and not each.optional
    )
    if unknown or absent:
        wrong = [f"has no column {name}" for name in unknown] + [f"needs column {name}" for name in absent]
        raise TargetRefused(
            f"{table.name} {', '.join(wrong)}.",
            safe="Nothing was sent.",
            command="landonce check {file}",
        )
    return tuple(each for name, each in there.items() if name in names_given)


def insert_statement(table: Table, columns: Sequence[Column], deadline: int) -> str:
    """The insert. It fails if it begins after its deadline (milliseconds on the server's clock), or if the table's columns were altered
    since they were read."""
    targets = {name: sql for each in columns for name, sql in each.targets.items()}
    late = f"throwIf(toUnixTimestamp64Milli(now64(3)) > {int(deadline)}, {literal(LATE)})"
    altered = f"throwIf({literal(table.shape)} NOT IN ({shape_now(table.name)}), {literal(ALTERED)})"
    rows = f"{', '.join(targets.values())} FROM {sent_rows(table, columns)}"
    sent = f"SELECT {rows} WHERE {late} = 0 AND {altered} = 0"
    return f"INSERT INTO {table.name.sql} ({', '.join(map(quoted, targets))}) {sent}"
