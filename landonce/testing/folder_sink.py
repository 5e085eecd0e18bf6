"""A small snapshot sink that is sound: one folder. The kit's reference, and a sink to learn from.

    data/*.parquet        rows that workers staged. They count once a version names them
    versions/00000007     the table at one version, as JSON: its id, all of its files, each pipeline's mark, and the copy of its last mark

A commit writes the next version aside and links it to its name, which fails if that name is taken: of two commits on one version, one takes
effect. A rollback is a new version with the files and marks of an old one; copies and notes stay. So any version but the last may go.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from landonce.errors import TargetUnavailable
from landonce.ledger.as_text import mark_from_text, mark_to_text
from landonce.protocol.ledger import Note
from landonce.protocol.marks import Mark
from landonce.protocol.own_ledger import OwnView
from landonce.read.schema.ddl import parse_schema
from landonce.read.schema.fields import Schema, spelled
from landonce.sinks.contract import Finding, Level
from landonce.sinks.snapshot import Origin, Seen, SnapshotSink, SnapshotTable
from landonce.testing.sink_sites import SCHEMA, Row
from landonce.testing.snapshot_sites import SnapshotSite

Version = dict[str, Any]


class FolderTable(SnapshotTable):
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

    def look(self) -> Seen | None:
        if not versions(self.folder):
            return None
        number, version = self.newest()
        mark, copy = (self.mark_in(version[name]) for name in ("marks", "copies"))
        return Seen(OwnView(version["id"], mark, copy), (number, version))

    def attempt(self, seen: Seen, mark: Mark, files: Sequence[str], note: Note | None) -> bool:
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
class FolderSink(SnapshotSink):
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

    def stage(self, rows: pa.Table, origin: Origin) -> tuple[tuple[Any, ...], int]:
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

    def __init__(self, folder: Path, sink: Callable[[Path, str], SnapshotSink] = FolderSink, secret: str = "") -> None:
        self.folder = folder / "events"
        self._sink = sink
        self.secret = secret

    def sink(self, pipeline: str) -> SnapshotSink:
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
