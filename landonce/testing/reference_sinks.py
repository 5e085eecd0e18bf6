"""Small sinks that are sound: the kit's references, and sinks to learn from.

SqliteSink     deduplicating, one SQLite file:
    token      a row in the table `tokens`, written in the same transaction as the block's rows
    deadline   checked once the transaction holds the file's lock: an insert that waited too long writes nothing
    kill       takes the same lock, so every write before it has ended
    probe      looks for the coordinates of the rows, never for the token
FilePerBlock   wrapped and idempotent: a file named by the block's key, written aside and renamed
Appending      wrapped and not idempotent: rows are added to a table in one transaction; the probe looks for their coordinates
FolderSink     snapshot, one folder:
    data/*.parquet     rows that workers staged. They count once a version names them
    versions/00000007  the table at one version, as JSON: its id, all of its files, each pipeline's mark, and the copy of its last mark
    commit             writes the next version aside and links it to its name, which fails if that name is taken: of two commits on one
                       version, one takes effect
    rollback           a new version with the files and marks of an old one; copies and notes stay. So any version but the last may go
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from landonce.errors import NotPushed, TargetUnavailable
from landonce.ledger.as_text import mark_from_text, mark_to_text
from landonce.protocol.ledger import Note
from landonce.protocol.marks import Mark
from landonce.protocol.own_ledger import OwnView
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.settle import Presence, Reply
from landonce.protocol.target import TargetView
from landonce.read.schema.ddl import parse_schema
from landonce.read.schema.fields import Field, Schema, spelled
from landonce.sinks.contract import (
    COORDINATES,
    BlockWriter,
    DeduplicatingSink,
    Finding,
    Guarantee,
    Insert,
    Level,
    Probe,
    Target,
)
from landonce.sinks.snapshot import Origin, Seen, SnapshotSink, SnapshotTable
from landonce.sinks.wrapped.block import PushedBlock
from landonce.testing.cases_snapshots import SnapshotSite
from landonce.testing.sink_sites import SCHEMA, Row, SinkSite

_TYPES = {"INTEGER": pa.int64(), "REAL": pa.float64(), "TEXT": pa.string()}
_BUSY_SECONDS = 60


@contextmanager
def opened(path: Path, mode: str = "rw") -> Iterator[sqlite3.Connection]:
    """A connection without transactions of its own. A file that is not there is an error, and is not made."""
    address = f"file:{path}?mode={mode}"
    with closing(sqlite3.connect(address, uri=True, timeout=_BUSY_SECONDS, isolation_level=None)) as connection:
        yield connection


class SqliteTarget(Target):
    """The file as the driver sees it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def now(self) -> int:
        return time.time_ns() // 1_000_000

    def kill(self) -> None:
        with opened(self.path) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")

    def look(self, floors: Iterable[tuple[Partition, int]]) -> TargetView:
        with opened(self.path) as connection:
            found = [(each, connection.execute(_LAST, (each.topic, each.number, at)).fetchone()) for each, at in floors]
        return TargetView(tuple((each, last + 1) for each, (last,) in sorted(found) if last is not None))

    def count(self, ranges: Iterable[Range]) -> int:
        return ReferenceWriter(self.path).count(ranges)

    def no_removal(self) -> str:
        return ""

    def remove(self, ranges: Iterable[Range]) -> None:
        with opened(self.path) as connection:
            connection.execute("BEGIN IMMEDIATE")
            for each in ranges:
                connection.execute(_REMOVED, (each.partition.topic, each.partition.number, each.first, each.end))
            connection.execute("COMMIT")

    def exists(self) -> bool:
        return self.path.exists()

    def create(self, declared: Schema, *, order_by: str | None = None, partition_by: str | None = None) -> None:
        del order_by, partition_by
        names = {type_: name for name, type_ in _TYPES.items()}
        columns = "".join(f', "{each.name}" {names[each.type]}' for each in declared.fields)
        with opened(self.path, "rwc") as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("CREATE TABLE IF NOT EXISTS tokens (token TEXT PRIMARY KEY)")
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS events (_topic TEXT, _partition INTEGER, _offset INTEGER{columns})"
            )
            connection.execute("COMMIT")

    def schema(self) -> Schema:
        with opened(self.path) as connection:
            columns = connection.execute("SELECT name, type FROM pragma_table_info('events')").fetchall()
        return Schema(tuple(Field(name, _TYPES[type_]) for name, type_ in columns if name not in COORDINATES))

    def check(self) -> tuple[Finding, ...]:
        return (Finding(Level.OK, f"rows go to {self.path}"),)

    def close(self) -> None:
        """There is nothing open: every question has a connection of its own."""


class ReferenceWriter(BlockWriter):
    """The file as a worker sees it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    atomic = True
    resend_harmless = False

    def send(self, rows: pa.Table, insert: Insert) -> Reply:
        try:
            with opened(self.path) as connection:
                return self.transact(connection, rows, insert)
        except sqlite3.OperationalError as error:
            self.said = str(error)
            return Reply.REFUSED

    def transact(self, connection: sqlite3.Connection, rows: pa.Table, insert: Insert) -> Reply:
        """Token and rows together. Whatever ends it early leaves nothing."""
        connection.execute("BEGIN IMMEDIATE")
        if time.time_ns() // 1_000_000 > insert.deadline:
            return Reply.LATE
        if self.first(connection, insert.token):
            self.write(connection, rows)
        connection.execute("COMMIT")
        return Reply.ACKNOWLEDGED

    def first(self, connection: sqlite3.Connection, token: str) -> bool:
        """Whether the token was not there yet."""
        return connection.execute("INSERT OR IGNORE INTO tokens VALUES (?)", (token,)).rowcount == 1

    def write(self, connection: sqlite3.Connection, rows: pa.Table) -> None:
        names = ", ".join(f'"{name}"' for name in rows.column_names)
        marks = ", ".join("?" * rows.num_columns)
        columns = [column.to_pylist() for column in rows.columns]
        connection.executemany(f"INSERT INTO events ({names}) VALUES ({marks})", zip(*columns, strict=True))  # noqa: S608

    def count(self, ranges: Iterable[Range]) -> int:
        return sum(self.present(ranges).values())

    def probe(self, rows: pa.Table, ranges: Iterable[Range]) -> Probe:
        there = self.present(ranges)
        copies = [there[each] for each in coordinates(rows)]
        missing = copies.count(0)
        presence = Presence(
            expected=len(copies),
            missing=missing,
            torn=0 < missing < len(copies),
            duplicated=sum(each - 1 for each in copies if each > 1),
        )
        return Probe(presence, pa.array([each == 0 for each in copies], pa.bool_()))

    def present(self, ranges: Iterable[Range]) -> Counter[tuple[str, int, int]]:
        """How often each coordinate of these ranges is there. No answer never counts as no rows."""
        found: Counter[tuple[str, int, int]] = Counter()
        try:
            with opened(self.path) as connection:
                for each in ranges:
                    bounds = each.partition.topic, each.partition.number, each.first, each.end
                    found.update(connection.execute(_IN_RANGE, bounds).fetchall())
        except sqlite3.OperationalError as error:
            raise TargetUnavailable(f"{self.path}: {error}") from error
        return found


_IN_RANGE = """SELECT _topic, _partition, _offset FROM events
               WHERE _topic = ? AND _partition = ? AND _offset >= ? AND _offset < ?"""
_REMOVED = "DELETE FROM events WHERE _topic = ? AND _partition = ? AND _offset >= ? AND _offset < ?"
_LAST = "SELECT max(_offset) FROM events WHERE _topic = ? AND _partition = ? AND _offset >= ?"


def coordinates(rows: pa.Table) -> list[tuple[Any, ...]]:
    """Of each row, in order."""
    return list(zip(*(rows.column(name).to_pylist() for name in COORDINATES), strict=True))


@dataclass(frozen=True)
class SqliteSink(DeduplicatingSink):
    """Rows of one table in one file."""

    path: Path
    table: ClassVar[str] = "events"  # type: ignore[misc]
    guarantee: ClassVar[Guarantee] = Guarantee.DEDUPLICATING  # type: ignore[misc]
    opens_target: ClassVar[type[SqliteTarget]] = SqliteTarget
    opens_writer: ClassVar[type[ReferenceWriter]] = ReferenceWriter

    @property
    def identity(self) -> str:
        return str(self.path)

    def target(self) -> Target:
        return self.opens_target(self.path)

    def writer(self) -> BlockWriter:
        return self.opens_writer(self.path)


class SqliteSite(SinkSite):
    """A file of its own, read by plain SQL."""

    def __init__(self, folder: Path, sink: Callable[[Path], DeduplicatingSink] = SqliteSink, secret: str = "") -> None:
        self.path = folder / "events.db"
        self._sink = sink
        self.secret = secret

    def sink(self) -> DeduplicatingSink:
        return self._sink(self.path)

    def held(self) -> list[Row]:
        with opened(self.path) as connection:
            return [Row(*row) for row in connection.execute("SELECT * FROM events")]

    def remove(self, rows: Iterable[Row]) -> None:
        with opened(self.path) as connection:
            connection.executemany(
                "DELETE FROM events WHERE _topic = ? AND _partition = ? AND _offset = ?", [row[:3] for row in rows]
            )

    @contextmanager
    def unreachable(self) -> Iterator[None]:
        elsewhere = self.path.with_suffix(".away")
        shutil.move(self.path, elsewhere)
        try:
            yield
        finally:
            shutil.move(elsewhere, self.path)


@dataclass(frozen=True)
class FilePerBlock:
    """JSON lines, one file per block."""

    folder: Path

    def push(self, block: PushedBlock) -> None:
        aside = self.folder / f".{uuid.uuid4().hex}"
        try:
            with aside.open("xb") as file:
                file.write(block.json_lines())
                file.flush()
                os.fsync(file.fileno())
        except FileNotFoundError as error:
            raise NotPushed(f"the folder {self.folder} is not there") from error
        os.replace(aside, self.folder / f"{block.key}.jsonl")


@dataclass(frozen=True)
class Appending:
    """Rows in a table that takes every row as often as it is sent."""

    path: Path

    def push(self, block: PushedBlock) -> None:
        with closing(self.connected()) as connection, connection:
            connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?)", values(block))

    def probe(self, block: PushedBlock) -> bool:
        """Rows land all together, so one of them is as good as all."""
        with closing(self.connected()) as connection:
            found = connection.execute(
                "SELECT count(*) FROM events WHERE _topic = ? AND _partition = ? AND _offset >= ? AND _offset < ?",
                (block.topic, block.partition, block.first, block.end),
            )
            return bool(found.fetchone()[0])

    def connected(self) -> sqlite3.Connection:
        """A file that is not there is an error, and is not made."""
        return sqlite3.connect(f"file:{self.path}?mode=rw", uri=True, timeout=60)


def values(block: PushedBlock) -> list[tuple[object, ...]]:
    return list(zip(*block.rows.to_pydict().values(), strict=True))


Version = dict[str, Any]


class FolderTable(SnapshotTable[str, tuple[int, Version]]):
    """The folder as the driver sees it."""

    def __init__(self, folder: Path, pipeline: str) -> None:
        self.name = str(folder)
        self.folder = folder
        self.pipeline = pipeline

    def creation(self, columns: Schema) -> str:
        return ", ".join(f"{each.name} {spelled(each.type)}" for each in columns.fields)

    def create(self, columns: Schema) -> None:
        (self.folder / "data").mkdir(parents=True, exist_ok=True)
        (self.folder / "versions").mkdir(exist_ok=True)
        first = {
            "id": uuid.uuid4().hex,
            "columns": self.creation(columns),
            "files": [],
            "marks": {},
            "copies": {},
            "notes": {},
        }
        if not versions(self.folder):
            write_version(self.folder, 0, first)

    def schema(self) -> Schema:
        return parse_schema(self.newest()[1]["columns"])

    def check(self) -> tuple[Finding, ...]:
        return (Finding(Level.OK, f"rows go to {self.folder}"),)

    def look(self) -> Seen[tuple[int, Version]] | None:
        if not versions(self.folder):
            return None
        number, version = self.newest()
        mark, copy = (self.mark_in(version[name]) for name in ("marks", "copies"))
        return Seen(OwnView(version["id"], mark, copy), (number, version))

    def attempt(self, seen: Seen[tuple[int, Version]], mark: Mark, files: Sequence[str], note: Note | None) -> bool:
        number, version = seen.version
        entry = {self.pipeline: [number + 1, mark_to_text(mark)]}
        notes = [*version["notes"].get(self.pipeline, []), *([[note.at, note.action, note.detail]] if note else [])]
        after = {
            **version,
            "files": [*version["files"], *files],
            "marks": {**version["marks"], **entry},
            "copies": {**version["copies"], **entry},
            "notes": {**version["notes"], self.pipeline: notes},
        }
        return write_version(self.folder, number + 1, after)

    def holds(self, labels: tuple[str, ...]) -> bool:
        return any(row.topic in labels for row in read_rows(self.folder))

    def journal(self) -> tuple[Note, ...]:
        if not versions(self.folder):
            return ()
        return tuple(Note(*each) for each in self.newest()[1]["notes"].get(self.pipeline, []))

    def newest(self) -> tuple[int, Version]:
        return newest(self.folder)

    def mark_in(self, marks: Version) -> Mark | None:
        snapshot, text = marks.get(self.pipeline, (0, ""))
        return mark_from_text(text, snapshot) if text else None


@dataclass(frozen=True)
class FolderSink(SnapshotSink[str, tuple[int, Version]]):
    """Rows of one table in one folder."""

    folder: Path
    pipeline: str
    opens: ClassVar[type[FolderTable]] = FolderTable

    @property
    def table(self) -> str:  # type: ignore[override]
        return str(self.folder)

    @property
    def identity(self) -> str:
        return str(self.folder)

    def open_table(self) -> FolderTable:
        return self.opens(self.folder, self.pipeline)

    def stage(self, rows: pa.Table, origin: Origin) -> tuple[tuple[str, ...], int]:
        name = origin.file_name()
        try:
            topics = rows.column("_topic").cast(pa.string())  # may be a dictionary
            pq.write_table(rows.set_column(0, "_topic", topics), self.folder / "data" / name)
        except FileNotFoundError as error:
            raise TargetUnavailable(f"there is no folder {self.folder}") from error
        return (name,), rows.num_rows


def versions(folder: Path) -> list[Path]:
    return sorted((folder / "versions").glob("[0-9]*"))


def newest(folder: Path) -> tuple[int, Version]:
    """The table as it is now."""
    while True:
        found = versions(folder)
        if not found:
            raise TargetUnavailable(f"there is no table in {folder}")
        try:
            return int(found[-1].name), json.loads(found[-1].read_text())
        except FileNotFoundError:
            continue


def write_version(folder: Path, number: int, version: Version) -> bool:
    """Whether there was no version of this number yet. It is there whole, or not at all."""
    aside = folder / "versions" / f"aside-{uuid.uuid4().hex}"
    with aside.open("w") as file:
        json.dump(version, file)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(aside, folder / "versions" / f"{number:08}")
    except FileExistsError:
        return False
    finally:
        aside.unlink()
    return True


def read_rows(folder: Path) -> list[Row]:
    """What a reader sees."""
    tables = [pq.read_table(folder / "data" / name) for name in newest(folder)[1]["files"]]
    found = pa.concat_tables(tables).to_pydict() if tables else {}
    return [Row(*each) for each in zip(*found.values(), strict=True)]


class FolderSite(SnapshotSite):
    """A folder of its own."""

    def __init__(
        self, folder: Path, sink: Callable[[Path, str], SnapshotSink[Any, Any]] = FolderSink, secret: str = ""
    ) -> None:
        self.folder = folder / "events"
        self._sink = sink
        self.secret = secret

    def sink(self, pipeline: str) -> SnapshotSink[Any, Any]:
        return self._sink(self.folder, pipeline)

    def held(self) -> list[Row]:
        return read_rows(self.folder)

    def write_aside(self, table: pa.Table) -> None:
        name = f"other-{uuid.uuid4().hex}.parquet"
        pq.write_table(table, self.folder / "data" / name)
        number, version = newest(self.folder)
        write_version(self.folder, number + 1, {**version, "files": [*version["files"], name]})

    def roll_back(self, commits: int) -> None:
        number, version = newest(self.folder)
        old = json.loads((self.folder / "versions" / f"{number - commits:08}").read_text())
        kept = {name: version[name] for name in ("copies", "notes")}
        write_version(self.folder, number + 1, {**old, **kept})

    def expire(self) -> None:
        for each in versions(self.folder)[:-1]:
            each.unlink()

    def replace(self) -> None:
        self.folder.rename(self.folder.with_name(uuid.uuid4().hex))
        FolderTable(self.folder, "").create(SCHEMA)
