"""The proof: what is in the table, counted by ClickHouse itself, against what was produced."""

from __future__ import annotations

from dataclasses import dataclass

import clickhouse_connect
from rich.table import Table


@dataclass(frozen=True)
class PartitionProof:
    """One partition: how many records it has, how many rows are in the table, how many of them are different ones."""

    partition: int
    produced: int
    rows: int
    distinct: int

    @property
    def duplicated(self) -> int:
        return self.rows - self.distinct

    @property
    def missing(self) -> int:
        return self.produced - self.distinct


@dataclass(frozen=True)
class Proof:
    """All partitions, and the number of kills that they went through."""

    partitions: tuple[PartitionProof, ...]
    kills: int

    @property
    def exact(self) -> bool:
        return not self.duplicated and not self.missing

    @property
    def read(self) -> int:
        return sum(each.produced for each in self.partitions)

    @property
    def landed(self) -> int:
        return sum(each.distinct for each in self.partitions)

    @property
    def duplicated(self) -> int:
        return sum(each.duplicated for each in self.partitions)

    @property
    def missing(self) -> int:
        return sum(each.missing for each in self.partitions)

    def sentence(self) -> str:
        verdict = "exactly once" if self.exact else "NOT exactly once"
        return (
            f"{verdict}: {self.read} read, {self.landed} landed, {self.duplicated} duplicated, {self.missing} missing, "
            f"{self.kills} kills"
        )

    def table(self) -> Table:
        table = Table(title="what is in ClickHouse")
        for name in ("partition", "in Kafka", "rows", "distinct", "duplicated", "missing"):
            table.add_column(name, justify="right")
        for each in self.partitions:
            table.add_row(
                *(
                    f"{n:,}"
                    for n in (each.partition, each.produced, each.rows, each.distinct, each.duplicated, each.missing)
                )
            )
        return table


def prove(clickhouse_url: str, table: str, produced: list[int], kills: int) -> Proof:
    """Counts rows and distinct (partition, offset, id): a record that landed under another's offset would show."""
    client = clickhouse_connect.get_client(dsn=clickhouse_url, autogenerate_session_id=False)
    counted = client.query(
        "SELECT _partition, count(), uniqExact(_offset, id) FROM {table:Identifier} "
        "WHERE id % {partitions:UInt32} = _partition AND intDiv(id, {partitions:UInt32}) = _offset GROUP BY _partition",
        parameters={"table": table, "partitions": len(produced)},
    ).result_rows
    total = client.query("SELECT count() FROM {table:Identifier}", parameters={"table": table}).result_rows[0][0]
    found = {partition: (rows, distinct) for partition, rows, distinct in counted}
    foreign = int(total) - sum(rows for rows, _ in found.values())
    proofs = [
        PartitionProof(partition, count, *found.get(partition, (0, 0))) for partition, count in enumerate(produced)
    ]
    if foreign:
        first = proofs[0]
        proofs[0] = PartitionProof(first.partition, first.produced, first.rows + foreign, first.distinct)
    return Proof(tuple(proofs), kills)
