"""The values of the model of wrapped sinks: what may go wrong, what there is, and the state of all. As in `transaction_values`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .transaction_values import Agent
from .values import Routed, quick

NOBODY = 0
WAIT = 1
"""Ticks from a claim within which its push may still take effect. It is begun in the tick of its claim, or not at all."""
UNSENT, SENT, ARRIVED, GONE = range(4)


@dataclass(frozen=True)
class Faults:
    """How often each thing may happen in one run."""

    crash: int = 0
    """A driver dies, and its workers with it; what they pushed stays under way."""
    abandon: int = 0
    """A driver dies, and its workers go on."""
    rerun: int = 0
    """Spark runs a task again: the first run goes on unheard."""
    lost: int = 0
    """A push arrives, and its answer does not."""
    vanish: int = 0
    """A push comes to nothing, and nobody hears so."""
    refused: int = 0
    """A push comes to nothing, and the sink knows: `NotPushed`."""
    unsure: int = 0
    """A change of the ledger is not answered: it was applied, or it was not."""
    late: int = 0
    """A push arrives again after everything: allowed where that is harmless only."""


KINDS = tuple(Faults.__dataclass_fields__)


@dataclass(frozen=True)
class Scenario(Routed):
    """What there is to read, how it is cut, what the sink declares, and what may go wrong."""

    harmless: bool = False
    """The target takes a block that it has for what it is."""
    probe: bool = True
    clock: int = 5
    waits: tuple[int, ...] = (WAIT,)
    """What the sink of each driver declares; the last one's holds for those that follow."""


@quick
class Row(NamedTuple):
    """A block's row: interned claim and receipt (-1 for none)."""

    batch: int
    number: int
    claim: int
    state: str
    nonce: int
    claimed_at: int
    receipt: int
    wait: int


@quick
class Worker(NamedTuple):
    """A worker with its block. `nonce`: its attempt; `sent`: where its push is; `wait`: what its sink declares."""

    heard: int
    job: int
    pushing: int
    nonce: int
    began: int
    sent: int
    wait: int


@quick
class Flight(NamedTuple):
    """A push that is under way."""

    nonce: int
    rows: int
    until: int


@quick
class Sky(NamedTuple):
    """All that is, between two steps."""

    level: int
    clock: int
    ledger: int
    rows: tuple[Row, ...]
    landed: int
    flights: tuple[Flight, ...]
    drivers: tuple[Agent, ...]
    workers: tuple[Worker, ...]
    letters: int
    left: tuple[int, ...]
    starts: int
    promised: tuple[int, ...]
    halted: str
    beyond: int = 0
    """The records of the last batches that were recorded beyond the limit, one after the other."""
