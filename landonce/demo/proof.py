"""The proof: compares what is in the table with what was produced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rich.table import Table


@dataclass(frozen=True)
class PartitionProof:
    """One partition: the number of records, of rows in the table, and of distinct rows."""

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
    """All partitions, and the number of kills."""

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

    def table(self, place: str) -> Table:
        table = Table(title=f"what is in {place}")
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


def proof_of(found: Mapping[int, tuple[int, int]], total: int, produced: list[int], kills: int) -> Proof:
    """Rows and distinct records per partition, and the total number of rows, also of no partition."""
    proofs = [
        PartitionProof(partition, count, *found.get(partition, (0, 0))) for partition, count in enumerate(produced)
    ]
    foreign = total - sum(rows for rows, _ in found.values())
    if foreign:
        proofs[0] = replace(proofs[0], rows=proofs[0].rows + foreign)
    return Proof(tuple(proofs), kills)
