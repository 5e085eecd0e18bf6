"""The store of one scope: which runs of keys and which chunks of new events count, and how far each pipeline is.

`commit` is one transaction that lists bytes which workers wrote (`contents.py`), raises the versions of their shards, and writes the
pipeline's mark. Rows are compared after they were read with a lock, because not every database counts the rows that an update found.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Column, Connection, Table, delete, func, insert, inspect, make_url, select, text, update
from sqlalchemy.exc import DBAPIError

from landonce.dedup.contents import AT_ONCE, TOGETHER, Chunk, Contents, groups
from landonce.dedup.runs import Keys, decode
from landonce.dedup.tables import (
    FORMAT,
    WAITING,
    WAITING_SQL,
    batch_bytes,
    batch_table,
    chunk_bytes,
    chunk_table,
    copy_table,
    metadata,
    pipeline_table,
    run_table,
    scope_table,
    sent_table,
    shard_table,
)
from landonce.errors import ConfigError, Halt, RunGone, StoreDamaged, TableUnfit, TargetUnavailable
from landonce.failpoints import reach
from landonce.ledger.as_text import mark_from_text, mark_to_text
from landonce.ledger.database import Database, SqliteDatabase
from landonce.ledger.mysql import MySqlDatabase
from landonce.ledger.open import database_of
from landonce.ledger.ydb import YdbDatabase
from landonce.protocol.dedup import ListedRun, Terms, bucket_seconds, may_commit, may_list
from landonce.protocol.ledger import Note
from landonce.protocol.marks import Mark
from landonce.protocol.ranges import Partition, Range

if TYPE_CHECKING:
    from landonce.sinks.pipeline_file import Pipeline

_NOTES = 100


def _columns(table: Table, kind: type) -> list[Column[Any]]:
    """Those that have the names of a dataclass's fields, in their order."""
    return [table.c[each.name] for each in fields(kind)]


_RUN, _CHUNK = _columns(run_table, ListedRun), _columns(chunk_table, Chunk)


@dataclass(frozen=True)
class Scope:
    """What the store knows of a scope."""

    lineage: str
    """Random, made with the scope: another store is another scope."""
    rule: str
    """The fingerprint of the key rule."""
    described: str
    shards: int
    ttl: int
    bucket: int
    horizon: int = 0
    """Milliseconds. The keys of events that were accepted before it are gone."""
    accepted: int = 0
    copies: int = 0
    seen_again: int = 0

    @property
    def terms(self) -> Terms:
        return Terms(self.lineage, self.rule, self.shards, self.horizon)


_SCOPE = _columns(scope_table, Scope)


@dataclass(frozen=True)
class ShardRuns:
    """The runs of one shard, and the version at which they were read."""

    version: int
    runs: tuple[ListedRun, ...]


@dataclass(frozen=True)
class Acceptance:
    """What one commit adds: all of it counts from then on, or none of it."""

    seen: Mapping[int, int]
    """The version of each shard whose runs were searched."""
    runs: tuple[ListedRun, ...] = ()
    merged: tuple[ListedRun, ...] = ()
    """Runs whose keys are in one of `runs`."""
    chunks: tuple[Chunk, ...] = ()
    copies: int = 0
    seen_again: int = 0
    kept_copies: tuple[bytes, ...] = ()
    """Where copies and their originals are, if they are kept."""
    terms: Terms | None = None
    """What the batch was split and judged by. None: by nothing that can change."""
    written_at: int | None = None
    """When the first of these bytes was written, in seconds."""

    @property
    def accepted(self) -> int:
        return sum(each.accepted for each in self.chunks)


@dataclass(frozen=True)
class Replacement:
    """What an operator puts in the place of a scope's keys: all of it counts from then on, or none of it."""

    seen: Mapping[int, int]
    """The version of each shard."""
    rule: str
    """The fingerprint that the scope has."""
    runs: tuple[ListedRun, ...]
    """All of them."""
    marks: Mapping[str, tuple[int, Mark]]
    """By pipeline: the number of its last commit, and its new mark, which fences its driver."""
    note: Note
    new_rule: tuple[str, str] | None = None
    """Fingerprint and description, if they change."""
    chunks: Mapping[str, tuple[Chunk, ...]] = field(default_factory=dict)
    """By pipeline: all of its events, if they change. Its stored blocks are forgotten."""
    removed: Mapping[Partition, int] = field(default_factory=dict)
    """Up to where these pipelines have no events, and nobody may read any."""


@dataclass(frozen=True)
class Recent:
    """Events that were accepted lately."""

    events: int
    size: int
    """Bytes of their chunks, with the copies in them."""
    began: int
    """When the first of them was accepted, in seconds."""


@dataclass(frozen=True)
class StorePlace:
    """The address of a scope, for workers: picklable, and its repr hides the password."""

    where: str | Path = field(repr=False)
    scope: str

    @staticmethod
    def of(config: Pipeline) -> StorePlace:
        """Of a pipeline file."""
        scope = config.dedup.scope if config.dedup is not None else None
        return StorePlace(config.store_place, scope or config.pipeline)

    def open(self) -> Store:
        """Does not connect yet."""
        return Store(store_database(self.where), self.scope)


def store_database(where: str | Path) -> Database:
    """The database at this place: a path, or a URL of SQLite, PostgreSQL, MySQL, MariaDB or YDB."""
    if isinstance(where, str) and "://" in where:
        url = make_url(where)
        if url.get_backend_name() in ("mysql", "mariadb"):
            return MySqlDatabase(url)
        if url.get_backend_name() in ("ydb", "yql"):
            return YdbDatabase(url)
    return database_of(where)


class Store(Contents):
    """One scope in one database."""

    def require_shared(self, *, remote: bool) -> None:
        """Raises if workers cannot open the store. `remote`: they may run on other machines."""
        if remote and isinstance(self.database, SqliteDatabase):
            raise ConfigError(
                f"dedup.store: {self.database.place} is a file on this machine, and the workers run on other machines.",
                safe="Nothing was read or written.",
                command="name a PostgreSQL or MySQL database in `dedup.store`",
            )

    # The scope.

    def make(self, rule: str, described: str, shards: int, ttl: int) -> Scope:
        """Makes the tables and the scope, unless they are there."""

        def attempt() -> None:
            with self.database.creating() as connection:
                metadata.create_all(connection)
                if self._scope(connection) is None:
                    new = Scope(uuid.uuid4().hex, rule, described, shards, ttl, bucket_seconds(ttl))
                    connection.execute(insert(scope_table).values(scope=self.scope, format=FORMAT, **vars(new)))
                    self._add_shards(connection, range(shards), version=0)

        self._patiently(attempt)
        self._make_view()
        made = self.look()
        if made is None:
            raise TargetUnavailable(
                f"the store {self.database.place} lost the scope {self.scope!r} that was just made."
            )
        if len(self.shards(range(made.shards))) < made.shards:
            self._write(self._make_missing_shards)
        return made

    def _make_missing_shards(self, connection: Connection) -> None:
        """YDB makes tables outside of transactions: a crash may leave a scope with some of its shards. Locks shards before the scope."""
        mine = select(shard_table).where(shard_table.c.scope == self.scope).order_by(shard_table.c.shard)
        rows: Any = connection.execute(self.database.locking(mine)).all()
        scope = self._scope(connection, lock=True)
        if scope is not None:
            version = max((row.version for row in rows), default=0)
            self._add_shards(connection, sorted(set(range(scope.shards)) - {row.shard for row in rows}), version)

    def _add_shards(self, connection: Connection, numbers: Collection[int], version: int) -> None:
        if numbers:
            rows = [{"scope": self.scope, "shard": each, "version": version} for each in numbers]
            connection.execute(insert(shard_table), rows)

    def _make_view(self) -> None:
        """The view for people. YDB has none, and neither has a database whose user may not make one. What may pass by itself is not waited
        for: the next start makes the view."""
        if isinstance(self.database, YdbDatabase):
            return
        try:
            with self.database.creating() as connection:
                if WAITING not in inspect(connection).get_view_names():
                    connection.execute(text(WAITING_SQL))
        except DBAPIError as failure:
            fault = self.database.fault(failure)
            if isinstance(fault, Halt):
                raise fault from None

    def look(self) -> Scope | None:
        """The scope as it is now. None if there is none."""

        def attempt() -> Scope | None:
            if not self.database.may_exist():
                return None
            with self.database.reading() as connection:
                return self._scope(connection) if inspect(connection).has_table(scope_table.name) else None

        return self._patiently(attempt)

    def _scope(self, connection: Connection, *, lock: bool = False) -> Scope | None:
        wanted = select(scope_table.c.format, *_SCOPE).where(scope_table.c.scope == self.scope)
        row = connection.execute(self.database.locking(wanted) if lock else wanted).one_or_none()
        if row is None:
            return None
        if row[0] != FORMAT:
            raise TableUnfit(
                f"the store {self.database.place} has format {row[0]}, and this landonce knows {FORMAT}.",
                safe="Nothing was read or written.",
                command="use the landonce that wrote it",
            )
        return Scope(*row[1:])

    def set_ttl(self, ttl: int) -> None:
        """Another window. Buckets keep the length that they were made with."""
        changed = update(scope_table).where(scope_table.c.scope == self.scope).values(ttl=ttl)
        self._write(lambda connection: connection.execute(changed))

    def replace_shards(self, seen: Mapping[int, int], shards: int, runs: Sequence[ListedRun]) -> bool:
        """Another number of shards, with these runs in place of all others. False: the shards, or their versions, are not those that were
        seen. The change itself may be the reason: it is tried again if the answer to its COMMIT is lost."""

        def attempt() -> bool:
            with self.database.writing() as connection:
                wanted = select(shard_table).where(shard_table.c.scope == self.scope).order_by(shard_table.c.shard)
                rows: Any = connection.execute(self.database.locking(wanted))
                if {row.shard: row.version for row in rows} != dict(seen):
                    return False
                for table in (run_table, shard_table):
                    connection.execute(delete(table).where(table.c.scope == self.scope))
                self._add_shards(connection, range(shards), max(seen.values()) + 1)
                self._list_runs(connection, runs)
                connection.execute(update(scope_table).where(scope_table.c.scope == self.scope).values(shards=shards))
                reach("resharded.before")
            return True

        return self._patiently(attempt)

    # Pipelines.

    def _locked(self, connection: Connection, pipeline: str) -> Any:
        """The pipeline's row, once nobody else changes it; None if there is none."""
        wanted = select(pipeline_table).where(self._mine(pipeline_table, pipeline))
        return connection.execute(self.database.locking(wanted)).one_or_none()

    def mark(self, pipeline: str) -> Mark | None:
        """The pipeline's mark: its position in the topics, and who may move it."""
        wanted = select(pipeline_table).where(self._mine(pipeline_table, pipeline))
        row: Any = self._read(lambda connection: connection.execute(wanted).one_or_none())
        return mark_from_text(row.mark, row.commit_number) if row is not None else None

    def pipelines(self) -> tuple[str, ...]:
        """Those that accept into this scope."""
        wanted = select(pipeline_table.c.pipeline).where(pipeline_table.c.scope == self.scope)
        return tuple(sorted(self._read(lambda connection: connection.scalars(wanted).all())))

    def journal(self, pipeline: str) -> tuple[Note, ...]:
        wanted = select(pipeline_table.c.journal).where(self._mine(pipeline_table, pipeline))
        return tuple(
            Note(*each) for each in json.loads(self._read(lambda connection: connection.scalar(wanted)) or "[]")
        )

    def commit(
        self, pipeline: str, expected: int, mark: Mark, added: Acceptance | None = None, note: Note | None = None
    ) -> bool | None:
        """Moves the mark, and makes what was added count, in one transaction.

        False: the mark is not the expected one. None: compare again, because a shard has another version than the one that was searched, the
        scope has other terms, or the bytes are so old that somebody may have removed them. In both cases nothing was changed. Raises
        `TargetUnavailable` if the outcome is unknown.
        """

        def attempt() -> bool | None:
            with self.database.writing() as connection:
                row = self._locked(connection, pipeline)
                if (row.commit_number if row is not None else 0) != expected:
                    return False
                if added is not None:
                    if not self._unchanged(connection, added.seen, added.terms):
                        return None
                    if added.written_at is not None and not may_list(added.written_at, int(time.time())):
                        return None
                    self._add(connection, pipeline, expected + 1, added)
                self._set_mark(connection, pipeline, row, mark, note)
                reach("accepted.before")
            reach("accepted.after")
            return True

        return self._once(attempt)

    def replace(self, by: Replacement) -> bool:
        """Puts other keys in the place of all that the scope has. False: somebody changed it since it was looked at."""

        def attempt() -> bool:
            with self.database.writing() as connection:
                rows: dict[str, Any] = {}
                for pipeline, (expected, _) in sorted(by.marks.items()):
                    rows[pipeline] = row = self._locked(connection, pipeline)
                    if (row.commit_number if row is not None else 0) != expected:
                        return False
                if not self._unchanged(connection, by.seen):
                    return False
                scope = self._scope(connection, lock=True)
                if scope is None or scope.rule != by.rule or scope.shards != len(by.seen):
                    return False
                self._raise_versions(connection, by.seen)
                connection.execute(delete(run_table).where(run_table.c.scope == self.scope))
                self._list_runs(connection, by.runs)
                if by.new_rule is not None:
                    rule, described = by.new_rule
                    changed = update(scope_table).where(scope_table.c.scope == self.scope)
                    connection.execute(changed.values(rule=rule, described=described))
                for pipeline, (_, mark) in by.marks.items():
                    self._set_mark(connection, pipeline, rows[pipeline], mark, by.note)
                for pipeline, chunks in by.chunks.items():
                    self._replace_chunks(connection, pipeline, chunks, by.removed)
                reach("replaced.before")
            reach("replaced.after")
            return True

        return self._once(attempt)

    def _replace_chunks(
        self, connection: Connection, pipeline: str, chunks: tuple[Chunk, ...], removed: Mapping[Partition, int]
    ) -> None:
        for table in (chunk_table, batch_table, batch_bytes, sent_table):
            connection.execute(delete(table).where(self._mine(table, pipeline)))
        connection.execute(
            update(pipeline_table).where(self._mine(pipeline_table, pipeline)).values(removed=_removed_text(removed))
        )
        self._list_chunks(connection, pipeline, chunks)

    def _unchanged(self, connection: Connection, seen: Mapping[int, int], terms: Terms | None = None) -> bool:
        """Locks shards before the scope, as everybody does who changes both."""
        versions: dict[int, int] = {}
        if seen:
            wanted = select(shard_table).where(shard_table.c.scope == self.scope, shard_table.c.shard.in_(sorted(seen)))
            rows: Any = connection.execute(self.database.locking(wanted.order_by(shard_table.c.shard)))
            versions = {row.shard: row.version for row in rows}
        scope = self._scope(connection, lock=True) if terms is not None else None
        return may_commit(seen, versions, terms, scope.terms if scope is not None else None)

    def _add(self, connection: Connection, pipeline: str, number: int, added: Acceptance) -> None:
        self._raise_versions(connection, {each.shard for each in (*added.runs, *added.merged)})
        if added.merged:
            connection.execute(delete(run_table).where(run_table.c.run.in_([each.run for each in added.merged])))
        self._list_runs(connection, added.runs)
        self._list_chunks(connection, pipeline, added.chunks)
        if added.kept_copies:
            key = self._key(pipeline, commit_number=number, found_at=int(time.time()))
            rows = [{**key, "piece": piece, "copies": each} for piece, each in enumerate(added.kept_copies)]
            connection.execute(insert(copy_table), rows)
        counts = scope_table.c
        connection.execute(
            update(scope_table)
            .where(counts.scope == self.scope)
            .values(
                accepted=counts.accepted + added.accepted,
                copies=counts.copies + added.copies,
                seen_again=counts.seen_again + added.seen_again,
            )
        )

    def _list_runs(self, connection: Connection, runs: Sequence[ListedRun]) -> None:
        if runs:
            connection.execute(insert(run_table), [{"scope": self.scope, **vars(each)} for each in runs])

    def _list_chunks(self, connection: Connection, pipeline: str, chunks: Sequence[Chunk]) -> None:
        if chunks:
            connection.execute(insert(chunk_table), [self._key(pipeline, **vars(each)) for each in chunks])

    def _set_mark(self, connection: Connection, pipeline: str, row: Any, mark: Mark, note: Note | None) -> None:
        notes = json.loads(row.journal) if row is not None else []
        if note is not None:
            notes = [*notes, [note.at, note.action, note.detail]][-_NOTES:]
        values = {
            "commit_number": (row.commit_number if row is not None else 0) + 1,
            "mark": mark_to_text(mark),
            "journal": json.dumps(notes),
        }
        if row is None:
            connection.execute(insert(pipeline_table).values(**self._key(pipeline, removed="[]"), **values))
        else:
            connection.execute(update(pipeline_table).where(self._mine(pipeline_table, pipeline)).values(values))

    def _raise_versions(self, connection: Connection, shards: Collection[int]) -> None:
        version = shard_table.c.version
        connection.execute(
            update(shard_table)
            .where(shard_table.c.scope == self.scope, shard_table.c.shard.in_(sorted(shards)))
            .values(version=version + 1)
        )

    # Keys.

    def shards(self, wanted: Collection[int]) -> dict[int, ShardRuns]:
        """The shards with their runs, as of one moment."""

        def listed(connection: Connection) -> tuple[Any, Any]:
            versions, runs = (
                connection.execute(
                    select(*columns).where(table.c.scope == self.scope, table.c.shard.in_(sorted(wanted)))
                ).all()
                for table, columns in ((shard_table, (shard_table.c.shard, shard_table.c.version)), (run_table, _RUN))
            )
            return versions, runs

        versions, found = self._read(listed)
        runs: dict[int, list[ListedRun]] = {shard: [] for shard, _ in versions}
        for run in starmap(ListedRun, found):
            if run.shard in runs:
                runs[run.shard].append(run)
        return {shard: ShardRuns(version, tuple(runs[shard])) for shard, version in versions}

    def runs(self, scope: Scope) -> tuple[ListedRun, ...]:
        """All that count."""
        return tuple(run for each in self.shards(range(scope.shards)).values() for run in each.runs)

    def keys_of(self, run: ListedRun) -> Keys:
        """The keys of a listed run. Raises `RunGone` if it is not listed any more, and `StoreDamaged` if its bytes are wrong."""
        try:
            return decode(run, self.run_segments(run))
        except StoreDamaged:
            if self._lists(run_table.c.run, run.run):
                raise
        raise RunGone(f"The run {run.run} of shard {run.shard} is no longer in the store: list the runs again.")

    def events_of(self, chunk: Chunk) -> bytes:
        """The bytes of a listed chunk. Raises `RunGone` if it is not listed any more, and `StoreDamaged` if they are wrong."""
        try:
            return self.chunk_content(chunk)
        except StoreDamaged:
            if self._lists(chunk_table.c.chunk, chunk.chunk):
                raise
        raise RunGone(f"Events of {chunk.topic}-{chunk.partition} are no longer in the store: list the chunks again.")

    def _lists(self, column: Column[str], name: str) -> bool:
        wanted = select(column).where(column == name)
        return self._read(lambda connection: connection.execute(wanted).first()) is not None

    def expire(self, shards: int, buckets: Collection[int], horizon: int) -> None:
        """Forgets the keys of these buckets and moves the horizon, in one transaction: what was searched before is not committed."""

        gone = delete(run_table).where(run_table.c.scope == self.scope, run_table.c.bucket.in_(sorted(buckets)))
        row = scope_table.c
        later = update(scope_table).where(row.scope == self.scope, row.horizon < horizon).values(horizon=horizon)

        def attempt(connection: Connection) -> None:
            # Locks them: a commit or a reshard ends before runs are searched.
            self._raise_versions(connection, range(shards))
            connection.execute(gone)
            connection.execute(later)
            reach("expired.before")

        self._write(attempt)
        reach("expired.after")

    # New events.

    def chunks(self, pipeline: str, within: Range | None = None) -> list[Chunk]:
        """The chunks of a pipeline, in the order of partitions and offsets; those that may hold offsets of a range."""
        row = chunk_table.c
        wanted = select(*_CHUNK).where(self._mine(chunk_table, pipeline))
        if within is not None:
            wanted = wanted.where(
                row.topic == within.partition.topic,
                row.partition == within.partition.number,
                row.last >= within.first,
                row.first < within.end,
            )
        found = starmap(Chunk, self._read(lambda connection: connection.execute(wanted).all()))
        return sorted(found, key=lambda each: (each.topic, each.partition, each.first))

    def removed(self, pipeline: str) -> dict[Partition, int]:
        """Up to where chunks of each partition were removed."""
        wanted = select(pipeline_table.c.removed).where(self._mine(pipeline_table, pipeline))
        return _removed(self._read(lambda connection: connection.scalar(wanted)))

    def old_chunks(self, pipeline: str, before: int) -> list[Chunk]:
        """Some of the chunks that were accepted before this moment, the oldest first."""
        row = chunk_table.c
        old = select(*_CHUNK).where(self._mine(chunk_table, pipeline), row.accepted_at < before)
        wanted = old.order_by(row.accepted_at, row.first).limit(AT_ONCE)
        return list(starmap(Chunk, self._read(lambda connection: connection.execute(wanted).all())))

    def recent(self, since: int) -> Recent | None:
        """What was accepted since then, in seconds, by all pipelines, as far as its events are kept. None: nothing."""
        row = chunk_table.c
        of_all = select(func.sum(row.accepted), func.sum(row.size), func.min(row.accepted_at))
        wanted = of_all.where(row.scope == self.scope, row.accepted_at >= since)
        events, size, began = self._read(lambda connection: connection.execute(wanted).one())
        return Recent(int(events), int(size), int(began)) if events else None

    def forget_chunks(self, pipeline: str, chunks: Sequence[Chunk]) -> None:
        """Removes these chunks, some at a time, and keeps up to where chunks were removed."""
        mine = self._mine(pipeline_table, pipeline)

        def attempt(some: Sequence[Chunk], connection: Connection) -> int:
            ends = _removed(connection.scalar(self.database.locking(select(pipeline_table.c.removed).where(mine))))
            for each in some:
                partition = Partition(each.topic, each.partition)
                ends[partition] = max(each.last + 1, ends.get(partition, 0))
            connection.execute(update(pipeline_table).where(mine).values(removed=_removed_text(ends)))
            for table in (chunk_table, chunk_bytes):
                connection.execute(delete(table).where(table.c.chunk.in_([each.chunk for each in some])))
            return len(some)

        for some in groups(chunks, lambda chunk: chunk.size, TOGETHER):
            self._remove(partial(attempt, some))
            self._removed[chunk_bytes.name] += sum(each.size for each in some)

    # Blocks.

    def forget_given_up(self, pipeline: str, after: int, owner: str) -> None:
        """Removes the blocks of batches after this one: nothing of them was sent. If the pipeline has another owner by now, they are the
        other's, and stay."""

        def attempt(connection: Connection) -> None:
            row = self._locked(connection, pipeline)
            if row is None or mark_from_text(row.mark, row.commit_number).state.owner != owner:
                return
            for table in (batch_table, batch_bytes):
                connection.execute(delete(table).where(self._mine(table, pipeline), table.c.batch > after))

        self._write(attempt)

    # Copies.

    def copies(self, pipeline: str) -> Iterator[bytes]:
        """What is kept of the copies that a pipeline found, the oldest batch first."""
        row, mine = copy_table.c, self._mine(copy_table, pipeline)
        names = select(row.commit_number, row.piece).where(mine).order_by(row.commit_number, row.piece)
        for number, piece in self._read(lambda connection: connection.execute(names).all()):
            one = select(row.copies).where(mine, row.commit_number == number, row.piece == piece)
            content = self._read(partial(Connection.scalar, statement=one))
            if content is not None:  # it was forgotten meanwhile
                yield content

    def forget_copies(self, pipeline: str, before: int) -> int:
        """Forgets some of the copies that were found before this moment. Gives of how many batches: 0 if none is left."""
        row, mine = copy_table.c, self._mine(copy_table, pipeline)
        sizes = select(row.commit_number, func.sum(func.length(row.copies))).where(mine, row.found_at < before)
        oldest = sizes.group_by(row.commit_number).order_by(row.commit_number).limit(AT_ONCE)

        def attempt(connection: Connection) -> int:
            found = connection.execute(oldest).all()
            some = [each[0] for each in next(groups(found, lambda each: int(each[1]), TOGETHER), ())]
            if some:
                connection.execute(delete(copy_table).where(mine, row.commit_number.in_(some)))
            return len(some)

        return self._remove(attempt)


def _removed_text(ends: Mapping[Partition, int]) -> str:
    return json.dumps([[each.topic, each.number, end] for each, end in sorted(ends.items())])


def _removed(text: str | None) -> dict[Partition, int]:
    return {Partition(topic, number): end for topic, number, end in json.loads(text or "[]")}
