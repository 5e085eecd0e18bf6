"""A pipeline of its own that writes to Iceberg: its file, its topic, its tables, its drivers, and the judge."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any

import iceberg_oracle
import oracle
from harness import SCHEMA, Drivers, Feed, Home
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from scene import Play

from landonce.local import LocalKafka

FAN_OUT = ("everything", "plain", "signs")
"""One that takes every record, one that takes two words, one that takes what a pattern matches."""
_ROUTES = Template("""route_field: word
    tables:
      - {table: $namespace.everything}
      - {table: $namespace.plain, equals: [plain, ping]}
      - {table: $namespace.signs, match: "(?s)tab.*|quote.*|grüße"}""")
_PIPELINE = Template("""\
pipeline: chaos
source:
  kafka: {bootstrap_servers: "$bootstrap", topics: [$topic], schema: "$schema"}
sink:
  iceberg:
    $tables
    create: true
    rollback: follow
    evolve: $evolve
    $catalog
batch: {$batch}
dead_letters: {path: dead}
stall: 60s
spark: {master: "local[1]"}
""")


def routed(table: str, payload: Mapping[str, Any]) -> bool:
    """Whether a table of the fan-out shall hold a record."""
    word = str(payload["word"])
    if table.endswith(".plain"):
        return word in ("plain", "ping")
    return not table.endswith(".signs") or word.startswith(("tab", "quote")) or word == "grüße"


@dataclass
class Lake(Play):
    """A pipeline that writes to one Iceberg table, which is its own ledger, or to several."""

    tables: tuple[str, ...] = field(kw_only=True)
    catalog: Catalog = field(kw_only=True)
    """The server itself, whatever stands between it and the drivers."""

    def table(self, name: str = "") -> Table:
        """As it is now."""
        return self.catalog.load_table(name or self.tables[0])

    def landed(self) -> dict[str, list[oracle.Row]]:
        found = {}
        for name in self.tables:
            try:
                table = self.table(name)
            except NoSuchTableError:
                found[name] = []
                continue
            found[name] = iceberg_oracle.rows(table)
            assert iceberg_oracle.referenced_twice(table) == []
        return found

    def count(self) -> int:
        """Rows that are there, over all tables."""
        return sum(map(len, self.landed().values()))

    def complete(self) -> bool:
        return {name: len(rows) for name, rows in self.landed().items()} == {
            name: len(rows) for name, rows in self.due().items()
        }

    def landings(self, name: str = "") -> list[int]:
        """The ids of the snapshots by which landonce added rows, oldest first."""
        return [each.snapshot_id for each in iceberg_oracle.landings(self.table(name))]

    def traces(self) -> tuple[object, ...]:
        """Everything that a driver can change and that counts: tables, ledger, dead letters. Files that nobody names do not."""
        tables = [self.table(name).metadata_location for name in self.tables]
        kept = (self.site.folder / "landonce.ledger", *sorted(self.site.dead.glob("[!.]*.jsonl")))
        return (*tables, *((each.name, each.read_bytes()) for each in kept if each.exists()))

    def strangers(self, first: int, count: int = 1, name: str = "") -> None:
        """Another writer appends."""
        table = self.table(name)
        table.append(iceberg_oracle.strangers(table, first, count))

    def roll_back(self, snapshot: int, name: str = "") -> None:
        self.table(name).manage_snapshots().rollback_to_snapshot(snapshot).commit()

    def expire_all(self, name: str = "") -> None:
        """Every snapshot but the one that is current."""
        table = self.table(name)
        old = [each.snapshot_id for each in table.snapshots() if each != table.current_snapshot()]
        table.maintenance.expire_snapshots().by_ids(old).commit()


@contextmanager
def lake(
    folder: Path,
    kafka: LocalKafka,
    topic: str,
    *,
    fan_out: bool = False,
    namespace: str = "db",
    partitions: int = 2,
    batch: str = "interval: 0s, max_rows: 600, block_rows: 300",
    evolve: bool = False,
    drivers_catalog: Mapping[str, str] | None = None,
    catalog: Mapping[str, str] | None = None,
    drivers: type[Drivers] = Drivers,
) -> Iterator[Lake]:
    """Without a word on catalogs, the embedded one. Drivers may go to it by another way. `drivers`: with Spark, or plain ones."""
    home = Home(folder)
    properties = drivers_catalog or catalog
    tables = tuple(f"{namespace}.{name}" for name in (FAN_OUT if fan_out else ("events",)))
    text = _PIPELINE.substitute(
        bootstrap=kafka.bootstrap_servers,
        topic=topic,
        schema=SCHEMA,
        tables=_ROUTES.substitute(namespace=namespace) if fan_out else f"table: {tables[0]}",
        batch=batch,
        evolve=str(evolve).lower(),
        catalog=f"catalog: {json.dumps(dict(properties))}" if properties else "",
    )
    home.save(text)
    keeps: Callable[[str, dict[str, Any]], bool] = routed if fan_out else lambda _table, _payload: True
    with drivers(home) as started:
        yield Lake(
            home,
            started,
            Feed(kafka.bootstrap_servers, topic, partitions),
            keeps=keeps,
            tables=tables,
            catalog=load_catalog("landonce", **catalog) if catalog else iceberg_oracle.embedded(folder),
        )
