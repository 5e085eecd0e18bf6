"""Sinks that are asked for nothing but to take a block: each attempt is claimed in the ledger before it is made (`landonce.wrap`)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Protocol

from landonce.ledger.claims import ClaimLedger, ClaimPlace
from landonce.protocol.block_rows import Claim
from landonce.sinks.run import OpenSink
from landonce.sinks.worker import Recipe, Task


class Pushes(Protocol):
    """What such a sink declares."""

    @property
    def name(self) -> str: ...
    @property
    def idempotent(self) -> bool: ...
    @property
    def can_probe(self) -> bool: ...
    @property
    def wait(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class PushTask(Task):
    """One block to be pushed."""

    key: str
    claim: Claim


@dataclass(frozen=True, kw_only=True)
class PushRecipe(Recipe[PushTask]):
    """Of a sink whose blocks are claimed."""

    ledger: ClaimPlace
    """Where workers claim blocks."""

    @property
    @abstractmethod
    def pushes(self) -> Pushes: ...


class OpenClaimed(OpenSink):
    """Such a sink, opened on the driver. The target is not asked anything: it may be anything."""

    recipe: PushRecipe
    ledger: ClaimLedger
