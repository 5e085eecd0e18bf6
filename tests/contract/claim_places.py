"""Where blocks are claimed: in tables of a database, and in the entry of any other ledger, here the example's folder and a plain database."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from landonce.ledger.block_ledgers import PushPlace
from landonce.ledger.claims import ClaimLedger, ClaimPlace
from landonce.ledger.entry_claims import EntryClaims
from landonce.ledger.open import sqlite_ledger

EXAMPLE = Path(__file__).parents[2] / "examples" / "landonce-jsonl"
PLACES = ("sqlite", "postgresql", "folder", "plain sqlite")


@dataclass(frozen=True)
class FolderPlace(ClaimPlace):
    """The example's ledger: a file for each pipeline."""

    folder: Path
    pipeline: str = "p"

    def open(self) -> EntryClaims:
        if str(EXAMPLE) not in sys.path:
            sys.path.append(str(EXAMPLE))
        from landonce_jsonl.ledger import FolderLedger

        return EntryClaims(FolderLedger(self.folder, self.pipeline), self)


@dataclass(frozen=True)
class PlainPlace(ClaimPlace):
    """landonce's own tables, as if they knew nothing of claims."""

    path: Path
    pipeline: str = "p"

    def open(self) -> EntryClaims:
        return EntryClaims(sqlite_ledger(self.path, self.pipeline), self)


def place_of(kind: str, folder: Path, new_database: Callable[[], str]) -> ClaimPlace:
    if kind == "postgresql":
        return PushPlace(new_database(), "p")
    return {
        "sqlite": PushPlace(folder / "ledger", "p"),
        "folder": FolderPlace(folder),
        "plain sqlite": PlainPlace(folder / "ledger"),
    }[kind]


def an_hour_passes(ledger: ClaimLedger, number: int | None = None) -> None:
    """No attempt can take effect any more. Only where none is under way."""
    place = ledger.address
    if isinstance(place, PushPlace):
        assert place.file is not None
        which = "" if number is None else f" WHERE number = {number}"
        with closing(sqlite3.connect(place.file)) as connection, connection:
            connection.execute("UPDATE landonce_push SET claimed_at = claimed_at - 3600000" + which)
    elif isinstance(place, FolderPlace):
        path = place.folder / f"{place.pipeline}.json"
        state, *notes = path.read_text().splitlines()
        fields = json.loads(state)
        fields["labels"] = json.dumps(_aged(json.loads(fields["labels"])))
        path.write_text("\n".join([json.dumps(fields), *notes]))
    else:
        assert isinstance(place, PlainPlace)
        with closing(sqlite3.connect(place.path)) as connection, connection:
            [(labels,)] = connection.execute("SELECT labels FROM landonce_pipeline").fetchall()
            connection.execute("UPDATE landonce_pipeline SET labels = ?", [json.dumps(_aged(json.loads(labels)))])


def _aged(labels: list[list[str]]) -> list[list[str]]:
    *others, (name, text) = labels
    claims: dict[str, Any] = json.loads(text)
    for row in claims["rows"]:
        row["age"] += 3_600_000
    return [*others, [name, json.dumps(claims)]]
