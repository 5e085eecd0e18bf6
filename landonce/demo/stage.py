"""What the demo needs of a sink: its servers, the pipeline file, the moment to kill, and the proof."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from landonce.demo.proof import Proof

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
