"""A ledger in a KeeperMap table of the target's own cluster: ClickHouse users need no other database.

    landonce_ledger     name                    entry
    ──────────────────  ──────────────────────  ────────────────────────────────────────────────────────────
    one row             the pipeline's name     its state, the latest notes, and the names of the rows with older ones
    rows of old notes   name/notes/random       notes, oldest first; written once, and never changed

A row is a node of Keeper (or ZooKeeper), and every change of it has the next version. A change is one UPDATE of the pipeline's row where the
version is the one that was read, in strict mode:

    the answer to a change           what follows
    ───────────────────────────────  ──────────────────────────────────────────────────────────────────────────────
    any answer                       read back: an UPDATE whose condition fails changes nothing, and says nothing
    read back: the new state         done
    read back: a state after it      done, and another driver has changed it since: an entry names its last changes
    read back: the old state         not applied: sent again, after a pause
    read back: another               read once more, after a write; still another: another driver's change, `Fenced`
    no answer, or Keeper is gone     in doubt: read again, after a pause. No attempts left: `LedgerUnavailable`
    the server has no such table     the same, after the table is made

Sending again is harmless: the first attempt may still run, and of two UPDATEs with one version only one is applied. Reads of Keeper may be
late, but never after a write of the same session: so what is read back is what decides, and never what was read before. Behind a URL with
several servers, each has a session and a table of its own, at the same path: one that lacks the table proves nothing about the row.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import uuid
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from landonce.errors import ConfigError, Halt, LedgerUnreadable
from landonce.ledger.as_text import state_from_text, state_to_text
from landonce.ledger.patient import PatientLedger
from landonce.protocol.ledger import LedgerState, Note, fenced, key
from landonce.sinks.clickhouse.address import TableName, literal
from landonce.sinks.clickhouse.connection import Access, NoAnswer, NotSent, post
from landonce.sinks.clickhouse.replies import Answer, refuse_permanent

_NO_TABLE, _KEEPER, _BAD_ARGUMENTS = 60, 999, 36
_SECONDS = 30.0
"""Of one request."""
_BOUNDED = {
    "keeper_map_strict_mode": "1",
    "insert_keeper_max_retries": "2",
    "keeper_max_retries": "2",
    "keeper_retry_max_backoff_ms": "500",
    "insert_keeper_retry_max_backoff_ms": "500",
    "max_query_size": "4000000",
    "async_insert": "0",
    "wait_end_of_query": "1",
}
"""With Keeper down, ClickHouse would try for minutes. The ledger tries again by itself, and says so."""
_LONG = 100_000
"""Bytes. A longer entry is compressed."""
_MOST = 900_000
"""Bytes. A node of Keeper holds 1 MB."""
_MANY_NOTES = 50
_RECENT = 32
"""How many of its last changes an entry names: more than there are drivers that compete for one pipeline."""
_SYNC = "/sync"
"""An empty row. A session that has written it, or was refused because it exists, reads everything that was written before."""
_DEFINITION = re.compile(r"KeeperMap\('((?:[^'\\]|\\.)*)'")
_NOTHING_CHANGED = "Nothing was changed."


class _MayPass(Exception):
    """The server or its Keeper did not do what it was asked, or nobody knows whether it did."""


class _NoTable(_MayPass):
    """The server that answered has no such table. Another one may have it."""


@dataclass(frozen=True)
class Entry:
    """What the pipeline's row holds."""

    state: LedgerState
    notes: tuple[Note, ...] = ()
    older: tuple[str, ...] = ()
    """The names of the rows that hold older notes."""
    recent: tuple[str, ...] = ()
    """The last changes."""

    def to_text(self) -> str:
        notes = [[each.at, each.action, each.detail] for each in self.notes]
        lists = {"notes": notes, "older": list(self.older), "recent": list(self.recent)}
        return _packed({"state": state_to_text(self.state), **lists})

    @staticmethod
    def from_text(text: str) -> Entry:
        try:
            fields = _unpacked(text)
            older, recent = tuple(fields["older"]), tuple(fields["recent"])
            return Entry(state_from_text(fields["state"]), _notes(fields["notes"]), older, recent)
        except (ValueError, KeyError, TypeError, zlib.error) as failure:
            raise LedgerUnreadable(
                f"the ledger's entry cannot be read ({type(failure).__name__}): it is damaged, or was edited by hand.",
                safe="Nothing was changed.",
                command="restore the ledger from a backup, then: landonce run {file}",
            ) from failure


class KeeperMapLedger(PatientLedger):
    """Keeps one pipeline's state in a KeeperMap table."""

    failures = (_MayPass,)
    store = "ClickHouse and its Keeper"

    def __init__(
        self, access: Access, table: TableName, path: str, pipeline: str, *, attempts: int = 8, backoff: float = 0.2
    ) -> None:
        super().__init__(pipeline, attempts=attempts, backoff=backoff)
        self._access = replace(access, extra=())
        self._table = table
        self._path = path
        self._checked = False

    @property
    def place(self) -> str:
        return f"{self._table} at {self._access.address}"

    def close(self) -> None:
        """Every request has a connection of its own."""

    # One attempt each.

    def _read(self) -> LedgerState | None:
        try:
            return self._state(self._row())
        except _NoTable:
            return None

    def _change(self, old: LedgerState, new: LedgerState, note: Note | None) -> LedgerState:
        try:
            return self._changed(old, new, note)
        except _NoTable:
            self._make_table()
            raise

    def _changed(self, old: LedgerState, new: LedgerState, note: Note | None) -> LedgerState:
        found = self._row()
        if not self._holds(found, old):
            found = self._row_now()
        if self._doubt == new and _made(found, new):
            return self._certain(new)
        if found is None or not self._holds(found, old):
            raise fenced(old, self._state(found))
        entry, version = found
        self._doubt = new
        made = replace(entry, state=new, recent=(*entry.recent, _mark(new))[-_RECENT:])
        self._update(self._with(made, note), version)
        after = self._row()
        if not (_made(after, new) or self._holds(after, old)):
            after = self._row_now()
        if _made(after, new):
            return self._certain(new)
        if self._holds(after, old):
            raise _MayPass("the change was not applied")
        raise fenced(old, self._state(after))

    def _with(self, entry: Entry, note: Note | None) -> Entry:
        """The entry with one more note. Too many notes are moved to a row of their own first. That insert must succeed, because the row is
        not read back. If the change fails, no entry names the row, and the next attempt writes another."""
        if note is None:
            return entry
        if len(entry.notes) >= _MANY_NOTES:
            name = f"{self.pipeline}/notes/{uuid.uuid4().hex}"
            self._insert(name, _packed([[each.at, each.action, each.detail] for each in entry.notes]), read_back=False)
            entry = replace(entry, notes=(), older=(*entry.older, name))
        return replace(entry, notes=(*entry.notes, note))

    def _create(self, state: LedgerState) -> LedgerState:
        self._make_table()
        if (seen := self._read()) is not None:
            return seen
        self._insert(self.pipeline, Entry(state).to_text())
        made = self._read()
        if made is None:
            raise _MayPass("the entry was not made")
        return made

    def _make_table(self) -> None:
        """On the server that answers. If rows exist at the path already, the table has them."""
        self._checked = False
        self._do(
            f"CREATE TABLE IF NOT EXISTS {self._table.sql} (name String, entry String) "
            f"ENGINE = KeeperMap({literal(self._path)}) PRIMARY KEY name",
            read_back=False,
        )

    def _read_journal(self) -> tuple[Note, ...]:
        try:
            found = self._row()
        except _NoTable:
            return ()
        if found is None:
            return ()
        entry, _ = found
        older = [note for name in entry.older for note in _notes(_unpacked(self._text(name)))]
        return (*older, *entry.notes)

    def _text(self, name: str) -> str:
        rows = self._ask(f"SELECT entry FROM {self._table.sql} WHERE name = {literal(name)}")  # noqa: S608
        if not rows:
            raise LedgerUnreadable(
                f"the ledger's row {name!r}, which holds old notes, is gone: somebody removed it.",
                safe="Nothing was changed. Positions and plans are not in it.",
                command="restore the table from a backup",
            )
        return str(rows[0]["entry"])

    def _check_table(self) -> None:
        """Once, before anything is read of it. CREATE TABLE IF NOT EXISTS takes any table of this name, and one with another path has the rows of
        another ledger: a pipeline would have two positions."""
        if self._checked:
            return
        named = f"database = {literal(self._table.database)} AND name = {literal(self._table.name)}"
        rows = self._ask(f"SELECT engine, engine_full FROM system.tables WHERE {named}")  # noqa: S608
        for engine, definition in ((row["engine"], row["engine_full"]) for row in rows):
            found = _DEFINITION.match(definition) if engine == "KeeperMap" else None
            path = re.sub(r"\\(.)", r"\1", found[1]) if found is not None else None
            if path is not None and path.rstrip("/") == self._path.rstrip("/"):
                continue
            there = f"has the engine {engine}" if path is None else f"is at the path {path!r} of Keeper"
            right = "" if path is None else f"the path {path!r}, or "
            raise ConfigError(
                f"ledger.keeper_map: the table {self.place} {there}, and the path that is named is {self._path!r}.",
                safe=_NOTHING_CHANGED,
                command=f"name {right}another `table` under `ledger` in {{file}}",
            )
        self._checked = bool(rows)

    def _row(self) -> tuple[Entry, int] | None:
        """The pipeline's row and its version."""
        self._check_table()
        sql = f"SELECT entry, _version AS version FROM {self._table.sql} WHERE name = {literal(self.pipeline)}"  # noqa: S608
        rows = self._ask(sql)
        return (Entry.from_text(rows[0]["entry"]), int(rows[0]["version"])) if rows else None

    def _row_now(self) -> tuple[Entry, int] | None:
        """The same, after a write: the server that answers may be late."""
        answer = self._request(
            f"INSERT INTO {self._table.sql} (name, entry) VALUES ({literal(_SYNC)}, '')",  # noqa: S608
            {},
        )
        if answer.code == _NO_TABLE:
            raise _NoTable(answer.said)
        return self._row()

    @staticmethod
    def _holds(found: tuple[Entry, int] | None, state: LedgerState) -> bool:
        return found is not None and key(found[0].state) == key(state)

    @staticmethod
    def _state(found: tuple[Entry, int] | None) -> LedgerState | None:
        return found[0].state if found is not None else None

    def _insert(self, name: str, text: str, *, read_back: bool = True) -> None:
        """One that is there stays as it is: strict mode refuses."""
        sql = f"INSERT INTO {self._table.sql} (name, entry) VALUES ({literal(name)}, {literal(_fitting(text))})"  # noqa: S608
        self._do(sql, read_back=read_back)

    def _update(self, entry: Entry, version: int) -> None:
        where = f"name = {literal(self.pipeline)} AND _version = {version}"
        self._do(f"ALTER TABLE {self._table.sql} UPDATE entry = {literal(_fitting(entry.to_text()))} WHERE {where}")

    # Requests.

    def _ask(self, sql: str) -> list[dict[str, Any]]:
        answer = self._request(sql, {"default_format": "ArrowStream"})
        self._refuse(answer)
        if answer.code is not None or answer.status != 200:
            raise _MayPass(answer.said)
        try:
            with pa.ipc.open_stream(answer.data) as reader:
                return list(reader.read_all().to_pylist())
        except pa.ArrowInvalid:
            raise _MayPass("an answer that is not whole") from None

    def _do(self, sql: str, *, read_back: bool = True) -> None:
        """Keeper's own errors are no reason to give up where the caller reads back: what it finds decides."""
        answer = self._request(sql, {})
        if answer.code == _KEEPER and read_back:
            return
        self._refuse(answer)
        if answer.code is not None or answer.status != 200:
            raise _MayPass(answer.said)

    def _request(self, sql: str, more: Mapping[str, str]) -> Answer:
        parameters = {**_BOUNDED, **more, "database": self._access.address.database}
        try:
            return post(self._access, parameters, sql.encode(), min(self._access.timeout, _SECONDS))
        except (NotSent, NoAnswer) as error:
            raise _MayPass(str(error)) from None

    def _refuse(self, answer: Answer) -> None:
        if answer.code == _BAD_ARGUMENTS and "keeper_map_path_prefix" in answer.text:
            raise ConfigError(
                f"ledger.keeper_map: {self._access.address} has no KeeperMap tables: its configuration has no keeper_map_path_prefix.",
                safe=_NOTHING_CHANGED,
                command="add <keeper_map_path_prefix>/keeper_map</keeper_map_path_prefix> to the configuration of every server, or name "
                "`sqlite` or `postgres` under `ledger` in {file}",
            )
        if answer.code == _NO_TABLE:
            raise _NoTable(answer.said)
        refuse_permanent(answer, str(self._access.address))

    def _reason(self, failure: Exception) -> str:
        return str(failure)


def _mark(state: LedgerState) -> str:
    """Names the change that made this state. Owners are random, and each counts its versions."""
    return hashlib.sha256(repr(key(state)).encode()).hexdigest()[:12]


def _made(found: tuple[Entry, int] | None, state: LedgerState) -> bool:
    return found is not None and _mark(state) in found[0].recent


def _packed(content: object) -> str:
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    return text if len(text) < _LONG else base64.b64encode(zlib.compress(text.encode())).decode()


def _unpacked(text: str) -> Any:
    return json.loads(text if text[:1] in "[{" else zlib.decompress(base64.b64decode(text)))


def _fitting(text: str) -> str:
    if len(text.encode()) > _MOST:
        raise Halt(
            f"the ledger's entry has {len(text.encode()):,} bytes, and KeeperMap holds at most {_MOST:,}.",
            safe=_NOTHING_CHANGED,
            command="name `postgres` under `ledger` in {file}, or read fewer topics in one pipeline",
        )
    return text


def _notes(listed: list[list[str]]) -> tuple[Note, ...]:
    return tuple(Note(at, action, detail) for at, action, detail in listed)
