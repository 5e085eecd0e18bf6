"""The table as the driver sees it: its clock, its running inserts, what it holds, whether it is fit.

Nothing here writes a row. `kill` ends only inserts of this pipeline into this table, found by their query ids.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from landonce.errors import TargetAhead, TargetRefused, TargetUnavailable
from landonce.protocol.ranges import Partition, Range, generation_of
from landonce.protocol.target import TargetView
from landonce.read.schema.fields import Schema
from landonce.sinks.clickhouse.address import TableName, literal, query_prefix, quoted_user
from landonce.sinks.clickhouse.check import check, check_layout
from landonce.sinks.clickhouse.connection import Access, connect
from landonce.sinks.clickhouse.probe import bring_up_to_date, count, where
from landonce.sinks.clickhouse.table import PLAIN, Layout, create_statement, describe, schema_of
from landonce.sinks.contract import Finding, Level, Target

_FLOORS_PER_QUESTION = 500
_KILL_SECONDS = 120.0
_MUTATION_SECONDS = 3600.0
"""A statement that is sent again while its mutation still runs makes another mutation."""
_VIEW_SECONDS = 20.0
_POLL_SECONDS = 0.1


class ClickHouseTarget(Target):
    """One table. Opened on the driver."""

    def __init__(self, access: Access, table: TableName, pipeline: str, *, layout: Layout = PLAIN) -> None:
        self._connection = connect(access)
        self._name = table
        self._user = access.address.user
        self._prefix = query_prefix(pipeline, table)
        self._layout, self._cluster, self._key = layout, layout.cluster, layout.key

    def now(self) -> int:
        return int(self._connection.one("SELECT toUnixTimestamp64Milli(now64(3))"))

    def kill(self) -> None:
        """Ends this pipeline's running inserts, and waits until they are gone. One that is killed between the table and a view behind it leaves
        the view without its rows, so these get some time to end by themselves."""
        until = time.monotonic() + _KILL_SECONDS
        patient = time.monotonic() + _VIEW_SECONDS
        while self._running():
            if time.monotonic() < patient and self.exists() and describe(self._connection, self._name).views:
                time.sleep(_POLL_SECONDS)
                continue
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
        if self._key and self._layout.planned(self._name).sign_column:
            self._refuse_unknown(asked)
        elif self._key:
            self._refuse_later({partition.topic for partition, _ in asked})
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

    def _refuse_unknown(self, floors: Sequence[tuple[Partition, int]]) -> None:
        """Raises where a Collapsing table holds rows that the ledger does not know: merges have removed others, so that nobody can tell what has
        landed, and what lands twice is counted twice."""
        known = [
            f"(_topic = {literal(each.topic)} AND _partition = {each.number} AND _offset < {at})" for each, at in floors
        ]
        topics = sorted({each.topic.partition("@")[0] for each, _ in floors})
        of_topics = " OR ".join(
            f"_topic = {literal(each)} OR startsWith(_topic, {literal(each + '@')})" for each in topics
        )
        sql = f"SELECT count() FROM {self._name.sql} WHERE ({of_topics}) AND NOT ({' OR '.join(known)})"  # noqa: S608
        found = self._connection.one(sql) if known else 0
        if found:
            raise TargetAhead(
                f"the table {self._name} holds {found} rows of these topics that the ledger does not know of, or that are of a topic from before "
                "it was created again. Its engine collapses rows, so the two cannot be compared.",
                safe="Nothing was written. The ledger was probably lost or restored, or the topic was created again.",
                command="restore the ledger; or give the pipeline another `pipeline` name and an empty table in {file}",
            )

    def _refuse_later(self, labels: set[str]) -> None:
        """Raises where the table holds rows of a later label: they would win over every row of this one, whatever it says."""
        sql = f"SELECT DISTINCT toString(_topic) FROM {self._name.sql}"  # noqa: S608
        there = self._connection.ask(sql).column(0).to_pylist()
        for label in sorted(labels):
            topic = label.partition("@")[0]
            later = [
                each for each in there if each.startswith(f"{topic}@") and generation_of(each) > generation_of(label)
            ]
            if later and not labels & set(later):
                raise TargetAhead(
                    f"the table {self._name} holds rows with _topic = {later[-1]!r}: the topic {topic!r} was created again after the state "
                    f"that this ledger knows ({label!r}), and a row of the older label never replaces one of the newer.",
                    safe="Nothing was written. The ledger was probably lost or restored.",
                    command="restore the ledger; or give the pipeline another `pipeline` name and an empty table in {file}",
                )

    def count(self, ranges: Iterable[Range]) -> int:
        sign = self._layout.planned(self._name).sign_column if self._key else ""
        return count(self._connection, self._name, tuple(ranges), sign)

    def no_removal(self) -> str:
        if self._connection.granted(f"ALTER DELETE ON {self._name.sql}"):
            return ""
        return f"user {self._user} may not remove rows: GRANT ALTER DELETE ON {self._name.sql} TO {quoted_user(self._user)}."

    def remove(self, ranges: Iterable[Range]) -> None:
        """By a mutation, which rewrites the parts that hold such rows, and is waited for on every replica."""
        wanted = [
            f"(_topic = {literal(each.partition.topic)} AND _partition = {each.partition.number} "
            f"AND _offset >= {each.first} AND _offset < {each.end})"
            for each in ranges
        ]
        for start in range(0, len(wanted), _FLOORS_PER_QUESTION):
            some = " OR ".join(wanted[start : start + _FLOORS_PER_QUESTION])
            statement = f"ALTER TABLE {self._name.sql} DELETE WHERE {some} SETTINGS mutations_sync = 2"
            self._connection.do(statement, seconds=_MUTATION_SECONDS)

    def schema(self) -> Schema:
        return schema_of(describe(self._connection, self._name, self._key).record_columns)

    def check(self) -> tuple[Finding, ...]:
        found = check(self._connection, self._name, cluster=self._cluster, key=self._key)
        table = describe(self._connection, self._name, self._key)
        if not self._key or bool(table.sign_column) == bool(self._layout.planned(self._name).sign_column):
            return found
        what = f"the table's engine is {table.engine}, and `engine` of the file says {self._layout.full_engine}"
        return (*found, Finding(Level.REFUSED, what, "set `engine` in {file} to that of the table"))

    def exists(self) -> bool:
        """Whether there is such a table."""
        asked = {"database": self._name.database, "name": self._name.name}
        sql = "SELECT count() FROM system.tables WHERE database = {database:String} AND name = {name:String}"
        return bool(self._connection.one(sql, asked))

    def create(self, declared: Schema, *, order_by: str | None = None, partition_by: str | None = None) -> None:
        """Creates the table if there is none."""
        base = self._layout
        layout = replace(base, order_by=order_by or base.order_by, partition_by=partition_by or base.partition_by)
        self._connection.do(create_statement(self._name, declared, layout))

    def creatable(self) -> tuple[Finding, ...]:
        if self._connection.granted(f"CREATE TABLE ON {self._name.sql}"):
            return check_layout(self._connection, self._name, self._layout)
        what = f"user {self._user} may not create {self._name}"
        change = f"GRANT CREATE TABLE ON {self._name.sql} TO {quoted_user(self._user)}, or create the table yourself"
        return (Finding(Level.REFUSED, what, change),)

    def take_back(self) -> None:
        """Drops the table if it is empty, in one statement. If the user may not drop it, it stays."""
        with suppress(TargetRefused, TargetUnavailable):
            self._connection.do(f"DROP TABLE IF EMPTY {self._name.sql}{self._layout.on_cluster}")

    def close(self) -> None:
        """Nothing is open: every request has its own connection."""

    def _running(self) -> tuple[str, ...]:
        processes = (
            f"clusterAllReplicas({literal(self._cluster)}, system.processes)" if self._cluster else "system.processes"
        )
        sql = f"SELECT query_id FROM {processes} WHERE startsWith(query_id, {{prefix:String}})"  # noqa: S608
        return tuple(self._connection.ask(sql, {"prefix": self._prefix}).column(0).to_pylist())

    def _kill_once(self) -> None:
        try:
            self._connection.do(
                f"KILL QUERY{self._layout.on_cluster} WHERE startsWith(query_id, {literal(self._prefix)}) SYNC"
            )
        except TargetRefused:
            left = self._running()
            if left:
                raise TargetRefused(
                    f"{len(left)} inserts of another user still run, and this user may not kill them: {left[0]}.",
                    safe="Nothing more was written.",
                    command="GRANT KILL QUERY ON *.* to the user of {file}, then start again",
                ) from None
