"""What the demo needs of a sink: its servers, the pipeline file, the moment to kill, and the rows of its table.

A stage imports the packages of its sink when it is used: only some of them may be installed.
"""

from __future__ import annotations

import json
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from landonce.demo.proof import LandedRows
from landonce.ledger.open import sqlite_ledger
from landonce.local import LocalClickHouse
from landonce.protocol.blocks import token
from landonce.protocol.ledger import Ledger

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client
    from pyiceberg.table import Table as IcebergTable

TOPIC = "clicks"


@dataclass(frozen=True)
class InFlight:
    """A batch that is not committed, and what is in flight."""

    batch: int
    what: str


class DemoSink(ABC):
    """One sink of the demo."""

    place: str
    """The title of the proof's table."""
    dedup = "dedup: {key: [id]}"
    """The part of the pipeline file for `--dedup`."""
    store: str
    """The SQLite file in which keys and new events are then kept."""

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

    def accepting(self) -> InFlight | None:
        """With `--dedup`: a batch whose events are in the store and do not count yet, after one that was accepted."""
        with suppress(sqlite3.Error):
            for (mark,) in self.ask_store(_ACCEPTING):
                if batch := int(json.loads(mark)["state"]["batch"]):
                    return InFlight(batch + 1, "its events are in the store and not accepted yet")
        return None

    def ask_store(self, query: str) -> list[tuple[Any, ...]]:
        return _ask_sqlite(self.folder / self.store, query)

    def third_kill(self) -> str:
        """Kills something other than the driver, and starts it again; empty if there is nothing else."""
        return ""

    @abstractmethod
    def rows(self) -> LandedRows:
        """What is in the table, read without landonce's own code."""

    def epilogue(self, console: Console) -> None:
        """What else to show at the end."""
        del console


_ACCEPTING = (
    "SELECT mark FROM landonce_dedup_pipeline WHERE EXISTS (SELECT 1 FROM landonce_new_events e "
    "WHERE NOT EXISTS (SELECT 1 FROM landonce_dedup_chunk c WHERE c.chunk = e.chunk))"
)


def _ask_sqlite(file: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=5)) as connection:
        return connection.execute(query).fetchall()


class OnClickHouse(DemoSink):
    """Kills while a plan is pending in the ledger and ClickHouse runs the insert of one of its blocks: the driver twice,
    and the server once."""

    place = "ClickHouse"
    store = "demo.ledger"

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

    def rows(self) -> LandedRows:
        query = "SELECT id, _partition, _offset FROM {table:Identifier}"
        found = self._connect().query(query, parameters={"table": TOPIC}, column_oriented=True)
        return LandedRows(*(np.asarray(each, np.int64) for each in found.result_columns))

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


class OnIceberg(DemoSink):
    """Kills the driver three times, while a batch has written files that the table does not contain yet."""

    place = "the Iceberg table"
    store = "landonce.dedup"

    @contextmanager
    def servers(self) -> Iterator[str]:
        for each in ("landonce.sinks.snapshot", "pyiceberg.catalog.sql", "pyiceberg.io.pyarrow"):
            import_module(each)  # now: later, a batch would pass meanwhile
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

    def rows(self) -> LandedRows:
        """Read with PyIceberg."""
        table = self._load()
        if table is None:
            return LandedRows.of(())
        names = ("id", "_kafka_partition", "_offset")
        found = table.scan(selected_fields=names).to_arrow()
        return LandedRows(*(np.asarray(found.column(each), np.int64) for each in names))

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


class _OnSql(DemoSink):
    """Kills while a plan is pending and the transaction of one of its blocks is open."""

    errors: type[Exception] = sqlite3.Error
    """Of a database that does not answer now."""

    @abstractmethod
    def _query(self, query: str) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def _transacting(self) -> bool:
        """Whether the transaction of a block is open."""

    def _ask(self, query: str) -> list[tuple[Any, ...]]:
        """Empty if the database does not answer: it may be about to start, or locked."""
        with suppress(self.errors):
            return self._query(query)
        return []

    def in_flight(self, after: int) -> InFlight | None:
        """First a plan with blocks that have not landed: a transaction that is open after this query is a block's."""
        blocks = "SELECT 1 FROM landonce_block WHERE state = 'BEFORE'"
        for (pending,) in self._ask(f"SELECT pending FROM landonce_pipeline WHERE EXISTS ({blocks})"):  # noqa: S608
            batch = int(json.loads(pending)["batch"])
            if batch > after and self._transacting():
                return InFlight(batch, "the transaction of a block is open")
        return None

    def rows(self) -> LandedRows:
        return LandedRows.of(self._query(f"SELECT id, _partition, _offset FROM {TOPIC}"))  # noqa: S608  a constant


class OnPostgres(_OnSql):
    """The driver is killed twice, and the server once."""

    place = "PostgreSQL"

    @contextmanager
    def servers(self) -> Iterator[str]:
        import psycopg

        from landonce.local.postgres import LocalPostgres

        self.errors = psycopg.Error
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
        """A transaction that has written rows to the table, or is about to."""
        locks = "SELECT 1 FROM pg_locks JOIN pg_class ON pg_class.oid = relation WHERE mode = 'RowExclusiveLock'"
        return bool(self._ask(f"{locks} AND granted AND relname = '{TOPIC}'"))

    def ask_store(self, query: str) -> list[tuple[Any, ...]]:
        return self._ask(query)

    def _query(self, query: str) -> list[tuple[Any, ...]]:
        import psycopg

        with psycopg.connect(self._server.url.replace("+psycopg", ""), connect_timeout=5) as connection:
            return connection.execute(query.encode()).fetchall()


class OnSqlite(_OnSql):
    """No server: the driver is killed three times."""

    place = "SQLite"
    dedup = "dedup: {key: [id], store: {sqlite: demo.store}}"  # apart from the table: its journal is of a block
    store = "demo.store"

    @contextmanager
    def servers(self) -> Iterator[str]:
        yield "an SQLite file, which needs no server"

    def sink(self) -> str:
        return f"sink:\n  sql: {{url: 'sqlite:///demo.db', table: {TOPIC}, create: true}}"

    def _transacting(self) -> bool:
        """SQLite keeps its rollback journal beside the file."""
        return (self.folder / "demo.db-journal").exists()

    def _query(self, query: str) -> list[tuple[Any, ...]]:
        return _ask_sqlite(self.folder / "demo.db", query)


_FILES = """\
import os
import uuid
from pathlib import Path

import landonce

FOLDER = Path(__file__).parent / "files"


def push(block: landonce.PushedBlock) -> None:
    aside = FOLDER / f".{uuid.uuid4().hex}"
    with aside.open("wb") as file:
        file.write(block.json_lines())
        file.flush()
        os.fsync(file.fileno())
    aside.replace(FOLDER / f"{block.key}.jsonl")


sink = landonce.wrap(push, idempotent=True)
"""


class OnWrapped(DemoSink):
    """A function that writes each block to a file. The driver is killed three times, each time while a file has no name yet."""

    place = "the files"
    store = "demo.ledger"

    @contextmanager
    def servers(self) -> Iterator[str]:
        (self.folder / "files").mkdir()
        (self.folder / "files.py").write_text(_FILES)
        self._ledger = sqlite_ledger(self.folder / "demo.ledger", "demo")
        self._left: set[Path] = set()
        yield "a function that writes files, which needs no server"

    def sink(self) -> str:
        return 'sink:\n  wrapped: {sink: "files:sink"}\nledger: {sqlite: demo.ledger}'

    def in_flight(self, after: int) -> InFlight | None:
        """A killed driver leaves files without a name: they are there before the next batch is pending."""
        state = self._ledger.load()
        unnamed = set((self.folder / "files").glob(".*"))
        if state is None or state.pending is None or state.pending.batch <= after:
            self._left |= unnamed
        elif unnamed - self._left:
            return InFlight(state.pending.batch, "the file of a block has no name yet")
        return None

    def rows(self) -> LandedRows:
        """Read as text, file by file."""
        texts = (path.read_text() for path in (self.folder / "files").glob("*.jsonl"))
        lines = (json.loads(line) for text in texts for line in text.splitlines())
        return LandedRows.of([(int(line["id"]), int(line["_partition"]), int(line["_offset"])) for line in lines])


STAGES: dict[str, type[DemoSink]] = {
    "clickhouse": OnClickHouse,
    "iceberg": OnIceberg,
    "postgres": OnPostgres,
    "sqlite": OnSqlite,
    "wrapped": OnWrapped,
}
