"""What a check gives back, and what its sections tell each other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from landonce.errors import LandonceError, SparkLost
from landonce.protocol.ledger import LedgerState
from landonce.protocol.source import SourceView
from landonce.read.schema.fields import Schema
from landonce.sinks.contract import Finding, Level
from landonce.sinks.promise import Promise
from landonce.sinks.worker import Recipe

if TYPE_CHECKING:
    from landonce.sinks.iceberg.sink import Seen

Look = tuple[str, Callable[[], Iterator[Finding]]]
"""A section's name, and what looks."""


@dataclass(frozen=True)
class Section:
    """Findings about one thing."""

    name: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Check:
    """All that was found, and what is promised if nothing was refused."""

    pipeline: str
    sections: tuple[Section, ...]
    promise: Promise

    @property
    def refused(self) -> bool:
        return any(finding.level is Level.REFUSED for each in self.sections for finding in each.findings)


@dataclass
class World:
    """What earlier sections found out, for later ones."""

    source: SourceView | None = None
    state: LedgerState | None = None
    ledger: bool = False
    """The ledger was asked; `state` is None if it has no entry."""
    recipe: Recipe | None = None
    table: bool = False
    """The one table of ClickHouse, or of an SQL database, is there."""
    fit: bool = False
    """And it can hold the guarantee."""
    catalog: bool = False
    """Iceberg's catalog is there and answers."""
    tables: dict[str, Seen] = field(default_factory=dict)
    """Iceberg's tables that the file names, as they are."""
    making: tuple[Callable[[Schema], str], ...] = ()
    """Of tables that are not there yet, and whose columns `select` makes: the statements that a start would run."""


def gathered(looks: Iterable[Look]) -> Iterator[Section]:
    """One section after another; one that has nothing to say is left out."""
    for name, look in looks:
        findings = tuple(_until_error(look()))
        if findings:
            yield Section(name, findings)


def _until_error(findings: Iterator[Finding]) -> Iterator[Finding]:
    """An error ends its section, as a finding like the others."""
    try:
        yield from findings
    except SparkLost:
        raise
    except LandonceError as error:
        yield Finding(Level.REFUSED, error.what, error.command)


def writable(folder: Path, fine: str, change: str) -> Iterable[Finding]:
    """Whether a file can be made in a folder."""
    if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK):
        return (Finding(Level.OK, fine),)
    what = "is not writable for this user" if folder.exists() else "is not there"
    return (Finding(Level.REFUSED, f"the folder {folder} {what}", change),)


def nearest(path: Path) -> Path:
    """The nearest folder above that is there."""
    return next((each for each in path.parents if each.exists()), Path("/"))
