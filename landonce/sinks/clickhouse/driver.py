"""The table as the driver sees it: its clock, its running inserts, what it holds, whether it is fit.

Nothing here writes a row. `kill` ends only inserts of this pipeline into this table, found by their query ids.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress

from landonce.errors import TargetRefused, TargetUnavailable
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.target import TargetView
from landonce.read.schema.fields import Schema
from landonce.sinks.clickhouse.address import TableName, literal, query_prefix, quoted
from landonce.sinks.clickhouse.check import check
from landonce.sinks.clickhouse.connection import Access, connect
from landonce.sinks.clickhouse.probe import bring_up_to_date, count, where
from landonce.sinks.clickhouse.table import create_statement, describe, schema_of
from landonce.sinks.contract import Finding, Level, Target

_FLOORS_PER_QUESTION = 500
_KILL_SECONDS = 120.0
_POLL_SECONDS = 0.1


class ClickHouseTarget(Target):
    """One table. Opened on the driver."""

    def __init__(self, access: Access, table: TableName, pipeline: str, *, cluster: str) -> None:
        self._connection = connect(access)
        self._name = table
        self._user = access.address.user
        self._prefix = query_prefix(pipeline, table)
        self._cluster = cluster

    def now(self) -> int:
        return int(self._connection.one("SELECT toUnixTimestamp64Milli(now64(3))"))

    def kill(self) -> None:
        """Ends this pipeline's running inserts, and waits until they are gone."""
        until = time.monotonic() + _KILL_SECONDS
        while self._running():
            self._kill_once()
            left = self._running()
            if left and time.monotonic() > until:
                raise TargetUnavailable(
                    f"{len(left)} killed inserts still run after {_KILL_SECONDS:.0f} seconds: {left[0]}.",
                    safe="Nothing more was written.",
                    command="landonce run {file}",
                )
            time.sleep(_POLL_SECONDS)

    def look(self, floors: Iterable[tuple[Partition, int]]) -> TargetView:
        bring_up_to_date(self._connection, describe(self._connection, self._name))
        asked, ends = sorted(floors), []
        for start in range(0, len(asked), _FLOORS_PER_QUESTION):
            some = asked[start : start + _FLOORS_PER_QUESTION]
            wanted, parameters = where((partition, floor, None) for partition, floor in some)
            sql = (
                "SELECT toString(_topic) AS topic, toInt64(_partition) AS number, max(_offset) + 1 AS end "  # noqa: S608
                f"FROM {self._name.sql} WHERE {wanted} GROUP BY topic, number ORDER BY topic, number"
            )
            rows = self._connection.ask(sql, parameters).to_pylist()
            ends += [(Partition(row["topic"], row["number"]), row["end"]) for row in rows]
        return TargetView(tuple(ends))

    def count(self, ranges: Iterable[Range]) -> int:
        return count(self._connection, self._name, tuple(ranges))

    def schema(self) -> Schema:
        return schema_of(describe(self._connection, self._name).columns)

    def check(self) -> tuple[Finding, ...]:
        return check(self._connection, self._name, cluster=self._cluster)

    def exists(self) -> bool:
        """Whether there is such a table."""
        asked = {"database": self._name.database, "name": self._name.name}
        sql = "SELECT count() FROM system.tables WHERE database = {database:String} AND name = {name:String}"
        return bool(self._connection.one(sql, asked))

    def create(self, declared: Schema, *, order_by: str | None = None, partition_by: str | None = None) -> None:
        """Creates the table if there is none. Nothing else here changes a schema."""
        self._connection.do(create_statement(self._name, declared, order_by, partition_by))

    def creatable(self) -> tuple[Finding, ...]:
        if self._connection.granted(f"CREATE TABLE ON {self._name.sql}"):
            return ()
        what = f"user {self._user} may not create {self._name}"
        change = f"GRANT CREATE TABLE ON {self._name.sql} TO {self._user}, or create the table yourself"
        return (Finding(Level.REFUSED, what, change),)

    def take_back(self) -> None:
        """Drops the table if it is empty, in one statement. If the user may not drop it, it stays."""
        with suppress(TargetRefused, TargetUnavailable):
            self._connection.do(f"DROP TABLE IF EMPTY {self._name.sql}")

    def close(self) -> None:
        """Nothing is open: every request has its own connection."""

    def _running(self) -> tuple[str, ...]:
        processes = (
            f"clusterAllReplicas({literal(self._cluster)}, system.processes)" if self._cluster else "system.processes"
        )
        sql = f"SELECT query_id FROM {processes} WHERE startsWith(query_id, {{prefix:String}})"  # noqa: S608
        return tuple(self._connection.ask(sql, {"prefix": self._prefix}).column(0).to_pylist())

    def _kill_once(self) -> None:
        everywhere = f"ON CLUSTER {quoted(self._cluster)} " if self._cluster else ""
        try:
            self._connection.do(f"KILL QUERY {everywhere}WHERE startsWith(query_id, {literal(self._prefix)}) SYNC")
        except TargetRefused:
            left = self._running()
            if left:
                raise TargetRefused(
                    f"{len(left)} inserts of another user still run, and this user may not kill them: {left[0]}.",
                    safe="Nothing more was written.",
                    command="GRANT KILL QUERY ON *.* to the user of {file}, then start again",
                ) from None
