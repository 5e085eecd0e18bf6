"""What the demo needs of a sink: its servers, the pipeline file, the moment to kill, and the proof.

The proof compares the rows of the table with what was produced.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
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


TOPIC = "clicks"


@dataclass(frozen=True)
class InFlight:
    """A batch that is not committed, and what is in flight."""

    batch: int
    what: str


class Stage(ABC):
    """One sink of the demo."""

    place: str
    """The title of the proof's table."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    @contextmanager
    def servers(self) -> Iterator[str]:
        """Starts what the sink needs, and describes it."""

    @abstractmethod
    def sink(self) -> str:
        """The part of the pipeline file that names the sink and the ledger."""

    @abstractmethod
    def in_flight(self, after: int) -> InFlight | None:
        """A batch above `after` that is in flight now."""

    def third_kill(self) -> str:
        """Kills something other than the driver, and starts it again; empty if there is nothing else."""
        return ""

    @abstractmethod
    def prove(self, produced: list[int], kills: int) -> Proof:
        """Counts what is in the table, without landonce's own code."""

    def epilogue(self, console: Console) -> None:
        """What else to show at the end."""
        del console

    def wait(self, after: int, timeout: float, alive: Callable[[], bool]) -> InFlight | None:
        """Waits until a batch is in flight; None if the time is over or the driver ended."""
        end = time.monotonic() + timeout
        while time.monotonic() < end and alive():
            found = self.in_flight(after)
            if found is not None:
                return found
            time.sleep(0.003)
        return None
