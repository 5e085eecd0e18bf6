"""What a ClickHouse table holds, window by window. Read-only, with its own SQL."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from landonce.protocol.ranges import Partition
from landonce.sinks.clickhouse.columns import Column
from landonce.sinks.clickhouse.connection import connect
from landonce.sinks.clickhouse.probe import bring_up_to_date
from landonce.sinks.clickhouse.sink import ClickHouseSink
from landonce.sinks.clickhouse.table import Table, describe
from landonce.verify.held.port import LAST, Held
from landonce.verify.judge import Counted

_HERE = "_topic = {label:String} AND _partition = {number:Int32} AND _offset >= {first:Int64}"
_BELOW = " AND _offset < {end:Int64}"


class ClickHouseRows(Held):
    """The coordinates in one table. `_topic` is the label of a topic."""

    def __init__(self, sink: ClickHouseSink) -> None:
        self._connection = connect(sink.access)
        self._table: Table = describe(self._connection, sink.table_name)
        self.name = sink.table
        bring_up_to_date(self._connection, self._table)
        self._from = f"FROM {self._table.name.sql}{' FINAL' if self.replaces_rows else ''}"

    @property
    def replaces_rows(self) -> bool:
        return self._table.resend_harmless

    @property
    def columns(self) -> tuple[Column, ...]:
        return self._table.columns

    def select(self, partition: Partition, first: int, end: int, columns: str) -> pa.Table:
        """`_offset` and these columns, of every row in order."""
        sql = f"SELECT {columns}, toInt64(_offset) AS _offset {self._from} WHERE {_HERE}{_BELOW} ORDER BY _offset"
        return self._connection.ask(sql, _parameters(partition, first, end))

    def notes(self) -> tuple[str, ...]:
        if not self.replaces_rows:
            return ()
        return (f"{self._table.name} replaces rows: one that a newer row replaced counts as missing.",)

    def counted(self, partition: Partition, first: int, end: int) -> Counted:
        return self._counted(partition, first, end, "")

    def repeated(self, partition: Partition, first: int, end: int) -> Counted:
        return self._counted(partition, first, end, "HAVING n > 1")

    def count(self, partition: Partition, first: int, end: int = LAST) -> int:
        sql = f"SELECT toInt64(count()) {self._from} WHERE {_HERE}{_BELOW}"
        return int(self._connection.one(sql, _parameters(partition, first, end)))

    def lowest(self, partition: Partition, first: int, end: int = LAST) -> int | None:
        sql = f"SELECT toInt64(minOrDefault(_offset)), toInt64(count()) {self._from} WHERE {_HERE}{_BELOW}"
        answer = self._connection.ask(sql, _parameters(partition, first, end))
        return int(answer.column(0)[0].as_py()) if answer.column(1)[0].as_py() else None

    def partitions(self, labels: Iterable[str]) -> tuple[tuple[str, int, int], ...]:
        sql = (
            f"SELECT toString(_topic) AS label, toInt64(_partition) AS number, toInt64(count()) AS n {self._from} "
            "WHERE _topic IN {labels:Array(String)} GROUP BY label, number ORDER BY label, number"
        )
        rows = self._connection.ask(sql, {"labels": sorted(labels)}).to_pylist()
        return tuple((row["label"], row["number"], row["n"]) for row in rows)

    def _counted(self, partition: Partition, first: int, end: int, having: str) -> Counted:
        sql = (
            f"SELECT toInt64(_offset) AS o, toInt64(count()) AS n {self._from} WHERE {_HERE}{_BELOW} "
            f"GROUP BY o {having} ORDER BY o"
        )
        answer = self._connection.ask(sql, _parameters(partition, first, end))
        return Counted(*(np.asarray(column.to_numpy(), np.int64) for column in answer.columns))


def _parameters(partition: Partition, first: int, end: int) -> dict[str, str]:
    return {"label": partition.topic, "number": str(partition.number), "first": str(first), "end": str(end)}
