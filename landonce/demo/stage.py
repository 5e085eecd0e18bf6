"""What the demo needs of a sink: its servers, the pipeline file, the moment to kill, and the proof.

The proof compares the rows of the table with what was produced. A stage imports the packages of its sink when it is used:
only some of them may be installed.
"""

from __future__ import annotations

import json
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from landonce.ledger.open import sqlite_ledger
from landonce.local import LocalClickHouse
from landonce.protocol.blocks import token
from landonce.protocol.ledger import Ledger

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client
    from pyiceberg.table import Table as IcebergTable

TOPIC = "clicks"


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
        read = sum(each.produced for each in self.partitions)
        return (
            f"{verdict}: {read} read, {self.landed} landed, {self.duplicated} duplicated, {self.missing} missing, "
            f"{self.kills} kills"
        )

    def table(self, place: str) -> Table:
        table = Table(title=f"what is in {place}")
        for name in ("partition", "in Kafka", "rows", "distinct", "duplicated", "missing"):
            table.add_column(name, justify="right")
        for each in self.partitions:
            numbers = (each.partition, each.produced, each.rows, each.distinct, each.duplicated, each.missing)
            table.add_row(*(f"{number:,}" for number in numbers))
        return table


def proof_of(found: Mapping[int, tuple[int, int]], total: int, produced: list[int], kills: int) -> Proof:
    """`found`: rows and distinct records per partition. `total`: all rows of the table, also those of no partition."""
    proofs = [
        PartitionProof(partition, count, *found.get(partition, (0, 0))) for partition, count in enumerate(produced)
    ]
    foreign = total - sum(rows for rows, _ in found.values())
    if foreign:
        proofs[0] = replace(proofs[0], rows=proofs[0].rows + foreign)
    return Proof(tuple(proofs), kills)


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


class OnClickHouse(Stage):
    """Kills while a plan is pending in the ledger and ClickHouse runs the insert of one of its blocks: the driver twice,
    and the server once."""

    place = "ClickHouse"

    @contextmanager
    def servers(self) -> Iterator[str]:
        with LocalClickHouse(self.folder / "clickhouse") as server:
            self._server = server
            self._client = self._connect()
            self._ledger = sqlite_ledger(self.folder / "demo.ledger", "demo")
            yield f"a real ClickHouse at port {server.http_port}"

    def sink(self) -> str:
        return (
            "sink:\n"
            f'  clickhouse: {{url: "{self._server.url}", table: {TOPIC}, create: true, deadline: 5s}}\n'
            "ledger: {sqlite: demo.ledger}"
        )

    def in_flight(self, after: int) -> InFlight | None:
        return blocks_in_flight(self._client, self._ledger, after)

    def third_kill(self) -> str:
        self._server.kill()
        self._server.start()
        self._server.wait_ready(60)
        return "killed the ClickHouse server with -9, and start it again"

    def prove(self, produced: list[int], kills: int) -> Proof:
        """Counts rows and distinct (partition, offset, id): finds a record that landed under another's offset."""
        client = self._connect()
        counted = client.query(
            "SELECT _partition, count(), uniqExact(_offset, id) FROM {table:Identifier} "
            "WHERE id % {partitions:UInt32} = _partition AND intDiv(id, {partitions:UInt32}) = _offset "
            "GROUP BY _partition",
            parameters={"table": TOPIC, "partitions": len(produced)},
        ).result_rows
        total = client.query("SELECT count() FROM {table:Identifier}", parameters={"table": TOPIC}).result_rows[0][0]
        found = {partition: (rows, distinct) for partition, rows, distinct in counted}
        return proof_of(found, int(total), produced, kills)

    def _connect(self) -> Client:
        import clickhouse_connect

        return clickhouse_connect.get_client(dsn=self._server.url, autogenerate_session_id=False)


def blocks_in_flight(client: Client, ledger: Ledger, after: int) -> InFlight | None:
    """A block of a pending plan above `after` that the server is writing right now."""
    from clickhouse_connect.driver.exceptions import ClickHouseError

    query = "SELECT query_id FROM system.processes WHERE startsWith(query_id, 'landonce:') AND NOT is_cancelled"
    try:
        running = [row[0] for row in client.query(query).result_rows]
    except (ClickHouseError, OSError):
        return None
    state = ledger.load() if running else None
    if state is None or state.pending is None or state.pending.batch <= after:
        return None
    for block in state.pending.blocks:
        short = token(state.identity, block)[:16]
        if any(short in query_id for query_id in running):
            return InFlight(state.pending.batch, f"block {block} is in flight")
    return None


class OnIceberg(Stage):
    """Kills the driver three times, while a batch has written files that the table does not contain yet."""

    place = "the Iceberg table"

    @contextmanager
    def servers(self) -> Iterator[str]:
        yield "an Iceberg catalog in a SQLite file, which needs no server"

    def sink(self) -> str:
        return f"sink:\n  iceberg: {{table: demo.{TOPIC}, create: true}}"

    def in_flight(self, after: int) -> InFlight | None:
        from landonce.sinks.snapshot import origin_of

        origins = (origin_of(path.name) for path in self.folder.glob(f"lake/demo/{TOPIC}/data/**/*.parquet"))
        batch = max((origin.batch for origin in origins if origin is not None), default=0)
        table = self._load()
        head = table.current_snapshot() if table is not None else None
        committed = int(head.summary["landonce.batch"] or 0) if head is not None and head.summary is not None else 0
        if batch <= max(after, committed):
            return None
        return InFlight(batch, "its files are written and not committed yet")

    def prove(self, produced: list[int], kills: int) -> Proof:
        """Read with PyIceberg: rows and distinct (partition, offset, id) per partition."""
        import numpy as np

        table = self._load()
        if table is None:
            return proof_of({}, 0, produced, kills)
        rows = table.scan(selected_fields=("id", "_kafka_partition", "_offset")).to_arrow()
        ids, numbers, offsets = (np.asarray(rows.column(each)) for each in ("id", "_kafka_partition", "_offset"))
        right = (ids % len(produced) == numbers) & (ids // len(produced) == offsets)
        found = {}
        for number in np.unique(numbers[right]):
            here = ids[right & (numbers == number)]
            found[int(number)] = (len(here), len(np.unique(here)))
        return proof_of(found, rows.num_rows, produced, kills)

    def epilogue(self, console: Console) -> None:
        """The snapshots: what each batch added, and the position after it."""
        shown = Table(title="its snapshots")
        for name in ("snapshot", "epoch", "batch", "added rows", "files", "offsets in all"):
            shown.add_column(name, justify="right", no_wrap=True)
        table = self._load()
        for each in table.snapshots() if table else ():
            summary = each.summary.additional_properties if each.summary is not None else {}
            position = sum(
                committed
                for partitions in json.loads(summary.get("landonce.position", "{}")).values()
                for _, committed in partitions.values()
            )
            shown.add_row(
                str(each.snapshot_id),
                summary.get("landonce.epoch", ""),
                summary.get("landonce.batch", ""),
                f"{int(summary.get('added-records', 0)):,}",
                summary.get("added-data-files", "0"),
                f"{position:,}",
            )
        console.print(shown)

    def _load(self) -> IcebergTable | None:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NoSuchTableError

        file = self.folder / "lake" / "catalog.db"
        if not file.exists():
            return None
        try:
            return load_catalog("landonce", type="sql", uri=f"sqlite:///{file}").load_table(f"demo.{TOPIC}")
        except NoSuchTableError:
            return None


class _OnSql(Stage):
    """Kills while a plan is pending and the transaction of one of its blocks is open."""

    @abstractmethod
    def _ask(self, query: str) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def _transacting(self) -> bool: ...

    def in_flight(self, after: int) -> InFlight | None:
        """First a plan with blocks that have not landed: a transaction that is open after this query is a block's."""
        blocks = "SELECT 1 FROM landonce_block WHERE state = 'BEFORE'"
        for (pending,) in self._ask(f"SELECT pending FROM landonce_pipeline WHERE EXISTS ({blocks})"):  # noqa: S608
            batch = int(json.loads(pending)["batch"])
            if batch > after and self._transacting():
                return InFlight(batch, "the transaction of a block is open")
        return None

    def prove(self, produced: list[int], kills: int) -> Proof:
        """Counts rows and distinct records: finds a record that landed under another's offset."""
        partitions = len(produced)
        counted = self._ask(
            f"SELECT _partition, count(*), count(DISTINCT id) FROM {TOPIC} "  # noqa: S608  constants
            f"WHERE id % {partitions} = _partition AND id / {partitions} = _offset GROUP BY _partition"
        )
        [(total,)] = self._ask(f"SELECT count(*) FROM {TOPIC}")  # noqa: S608
        found = {int(partition): (int(rows), int(distinct)) for partition, rows, distinct in counted}
        return proof_of(found, int(total), produced, kills)


class OnPostgres(_OnSql):
    """The driver is killed twice, and the server once."""

    place = "PostgreSQL"

    @contextmanager
    def servers(self) -> Iterator[str]:
        from landonce.local.postgres import LocalPostgres

        self.folder.chmod(0o711)  # PostgreSQL does not run as root: then the server's user needs access
        with LocalPostgres(self.folder / "postgres") as server:
            self._server = server
            yield f"a real PostgreSQL at port {server.port}"

    def sink(self) -> str:
        return f'sink:\n  sql: {{url: "{self._server.url}", table: {TOPIC}, create: true}}'

    def third_kill(self) -> str:
        self._server.kill()
        self._server.start()
        self._server.wait_ready(60)
        return "killed the PostgreSQL server with -9, and start it again"

    def _transacting(self) -> bool:
        sessions = self._ask(
            "SELECT 1 FROM pg_stat_activity WHERE application_name LIKE 'landonce %' AND xact_start IS NOT NULL "
            "AND (query LIKE 'COPY%' OR query LIKE 'UPDATE%')"
        )
        return bool(sessions)

    def in_flight(self, after: int) -> InFlight | None:
        import psycopg

        with suppress(psycopg.Error):
            return super().in_flight(after)
        return None

    def _ask(self, query: str) -> list[tuple[Any, ...]]:
        import psycopg

        with psycopg.connect(self._server.url.replace("+psycopg", ""), connect_timeout=5) as connection:
            return connection.execute(query.encode()).fetchall()


class OnSqlite(_OnSql):
    """No server: the driver is killed three times."""

    place = "SQLite"

    @contextmanager
    def servers(self) -> Iterator[str]:
        yield "an SQLite file, which needs no server"

    def sink(self) -> str:
        return f"sink:\n  sql: {{url: 'sqlite:///demo.db', table: {TOPIC}, create: true}}"

    def _transacting(self) -> bool:
        """SQLite keeps its rollback journal beside the file."""
        return (self.folder / "demo.db-journal").exists()

    def in_flight(self, after: int) -> InFlight | None:
        with suppress(sqlite3.Error):
            return super().in_flight(after)
        return None

    def _ask(self, query: str) -> list[tuple[Any, ...]]:
        file = (self.folder / "demo.db").as_uri()
        with closing(sqlite3.connect(f"{file}?mode=ro", uri=True, timeout=5)) as connection:
            return connection.execute(query).fetchall()


STAGES: dict[str, type[Stage]] = {
    "clickhouse": OnClickHouse,
    "iceberg": OnIceberg,
    "postgres": OnPostgres,
    "sqlite": OnSqlite,
}
