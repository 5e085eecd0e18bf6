"""What the writer before left behind, as far as it can be told. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone

from landonce.errors import ImportRefused
from landonce.protocol.ranges import Partition


@dataclass(frozen=True)
class Told:
    """What the newest snapshot of that writer says in one table."""

    table: str
    snapshot: int
    at: int
    """When it was committed, in milliseconds."""
    said: str

    def __str__(self) -> str:
        moment = datetime.fromtimestamp(self.at / 1000, timezone.utc).isoformat(sep=" ", timespec="seconds")
        return f"{self.table}: snapshot {self.snapshot} of {moment}"


@dataclass(frozen=True)
class History:
    """What one table's branch says of a writer."""

    table: str
    told: Told | None = None
    whole: bool = True
    """It goes back to the first snapshot, so that a writer whom nothing is told of never committed."""


@dataclass(frozen=True)
class Found:
    """Where a writer stopped. Two of them are equal only if nothing happened in between."""

    writer: str
    told: tuple[Told, ...]
    positions: tuple[tuple[Partition, int], ...]
    """The next offset of each partition that it ever delivered from."""
    notes: tuple[str, ...] = ()
    """What else an operator should know."""
    seen: tuple[object, ...] = ()
    """What would have changed if the writer had gone on."""


def refused(what: str, command: str) -> ImportRefused:
    return ImportRefused(what, safe="Nothing was changed.", command=command)


def same_topics(writer: str, read: frozenset[str], wanted: frozenset[str]) -> None:
    """Every topic goes on, and no other one begins here."""
    if read - wanted:
        raise refused(
            f"{writer} reads {_list(read - wanted)} too, which the pipeline file does not name: those records would land "
            "nowhere from now on.",
            "name all of its topics in {file}. Of a connector that does not read one any more: delete its group's offsets there",
        )
    if wanted - read:
        raise refused(
            f"{writer} does not read {_list(wanted - read)}, which the pipeline file names.",
            "take the topic out of {file}, import, then add it again: it begins as a new topic does",
        )


def _list(names: frozenset[str]) -> str:
    return ", ".join(map(repr, sorted(names)))
