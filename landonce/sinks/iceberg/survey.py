"""The tables of a pipeline as they are now, for whoever only looks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pyiceberg.table import Table
from sqlalchemy.engine import make_url

from landonce.protocol.ledger import LedgerState
from landonce.protocol.marks import TableView
from landonce.protocol.own_ledger import OwnView
from landonce.sinks.iceberg.catalog import telling
from landonce.sinks.iceberg.look import look_at
from landonce.sinks.iceberg.sink import IcebergSink
from landonce.sinks.snapshot import table_view


@dataclass(frozen=True)
class Seen:
    """One table, and what it says of the pipeline; neither if it is not there."""

    name: str
    table: Table | None = None
    own: OwnView | None = None

    @property
    def view(self) -> TableView:
        return table_view(self.name, self.own) if self.own is not None else TableView(self.name)


def embedded_file(sink: IcebergSink) -> Path | None:
    """The file of a SQLite catalog, which the first run makes; None where the catalog is a server's."""
    uri = sink.spec.properties.get("uri", "")
    if sink.spec.kind != "sql" or not uri.startswith("sqlite"):
        return None
    database = make_url(uri).database
    return Path(database) if database and database != ":memory:" else None


def catalog_made(sink: IcebergSink) -> bool:
    """Whether there is a catalog to ask. Whoever only looks makes none."""
    path = embedded_file(sink)
    return path is None or path.exists()


def names_of(sink: IcebergSink, state: LedgerState | None) -> tuple[str, ...]:
    """The tables that the file names, those that the ledger knows, and those that could be of its template."""
    known = (table for table, _ in state.tables) if state is not None else ()
    with telling(sink.spec):
        return tuple(sorted({*sink.static, *known, *sink.dynamic()}))


def survey(sink: IcebergSink, names: Iterable[str]) -> tuple[Seen, ...]:
    """Looks at each of them."""
    return tuple(_seen(sink, name) for name in names)


def _seen(sink: IcebergSink, name: str) -> Seen:
    place = sink.place(name)
    if not place.exists():
        return Seen(name)
    table = place.load()
    return Seen(name, table, look_at(table, place.pipeline, place.branch))
