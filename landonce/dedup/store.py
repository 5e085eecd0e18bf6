"""The store: keys, new events and stored blocks of one scope in an SQL database. One code for all dialects.

Workers add bytes under random names (`put_run`, `put_chunk`, `put_block`); nobody sees them. `commit` is one transaction that lists them,
raises the versions of their shards, and writes the pipeline's mark. Rows are compared after they were read with a lock, because not every
database counts the rows that an update found.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Table, and_, delete, func, insert, inspect, make_url, select, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError

from landonce.config.secrets import redact
from landonce.dedup.runs import KEY_BYTES, Segment
from landonce.dedup.tables import (
    FORMAT,
    NEW,
    PIECE,
    SENT,
    WAITING,
    WAITING_SQL,
    batch_bytes,
    batch_table,
    chunk_bytes,
    chunk_table,
    metadata,
    pipeline_table,
    run_bytes,
    run_table,
    scope_table,
    sent_table,
    shard_table,
)
from landonce.errors import ConfigError, StoreDamaged, TableUnfit, TargetUnavailable
from landonce.failpoints import reach
from landonce.ledger.as_text import mark_from_text, mark_to_text
from landonce.ledger.database import Database, SqliteDatabase
from landonce.ledger.mysql import MySqlDatabase
from landonce.ledger.open import database_of
from landonce.ledger.ydb import YdbDatabase
from landonce.protocol.dedup import ORPHANED, Run, Terms, bucket_seconds, keeps_stored, may_commit, may_list
from landonce.protocol.ledger import Note
from landonce.protocol.marks import Mark
from landonce.protocol.ranges import Partition, Range

Answer = TypeVar("Answer")
Item = TypeVar("Item")
_PAUSES = (0.0, 0.2, 0.5, 1.0, 2.0)
"""Seconds before each attempt of what may fail by chance: a lock, a connection."""
_NOTES = 100
_AT_ONCE = 200
"""Rows that one statement removes: cleaning takes small steps beside a running pipeline."""
_TOGETHER = 16 * 2**20
"""Bytes that one transaction adds or removes, about: others wait for it meanwhile."""


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
    horizon: int
    """Milliseconds. The keys of events that were accepted before it are gone."""
    accepted: int = 0
    copies: int = 0
    seen_again: int = 0

    @property
    def terms(self) -> Terms:
        return Terms(self.lineage, self.rule, self.shards, self.horizon)


@dataclass(frozen=True)
class Shard:
    """The runs of one shard, and the version at which they were read."""

    version: int
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Chunk:
    """Records of a range of one partition, in offset order."""

    chunk: str
    topic: str
    partition: int
    first: int
    last: int
    records: int
    size: int
    segments: int
    schema_version: str
    accepted: int = 0
    accepted_at: int = 0
    dropped: bytes | None = None
    """A bit per record, set for copies. None: there are none."""


@dataclass(frozen=True)
class Acceptance:
    """What one commit adds: all of it counts from then on, or none of it."""

    seen: Mapping[int, int]
    """The version of each shard whose runs were searched."""
    runs: tuple[Run, ...] = ()
    merged: tuple[Run, ...] = ()
    """Runs whose keys are in one of `runs`."""
    chunks: tuple[Chunk, ...] = ()
    copies: int = 0
    seen_again: int = 0
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
    runs: tuple[Run, ...]
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
class StoredBlock:
    """A block as it is sent."""

    content: bytes
    status: str


@dataclass(frozen=True)
class ListedBlock:
    """What the list says of a stored block."""

    batch: int
    block: int
    ranges: str
    status: str
    records: int

    def holds(self, partition: Partition, offset: int) -> bool:
        return any(
            (topic, number) == (partition.topic, partition.number) and first <= offset < end
            for topic, number, first, end in json.loads(self.ranges)
        )


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


class Store:
    """One scope in one database."""

    def __init__(self, database: Database, scope: str) -> None:
        self.database = database
        self.scope = scope

    def close(self) -> None:
        self.database.close()

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
                    connection.execute(
                        insert(scope_table).values(
                            scope=self.scope,
                            format=FORMAT,
                            lineage=uuid.uuid4().hex,
                            rule=rule,
                            described=described,
                            shards=shards,
                            ttl_s=ttl,
                            bucket_s=bucket_seconds(ttl),
                            horizon=0,
                            accepted=0,
                            copies=0,
                            seen_again=0,
                        )
                    )
                    rows = [{"scope": self.scope, "shard": each, "version": 0} for each in range(shards)]
                    connection.execute(insert(shard_table), rows)

        self._patiently(attempt)
        self._make_view()
        made = self.look()
        if made is None:
            raise TargetUnavailable(
                f"the store {self.database.place} lost the scope {self.scope!r} that was just made."
            )
        return made

    def _make_view(self) -> None:
        """The view for people. A user who may not make views goes without it, and so does YDB."""
        if isinstance(self.database, YdbDatabase):
            return
        with suppress(DBAPIError), self.database.creating() as connection:
            if WAITING not in inspect(connection).get_view_names():
                connection.execute(text(WAITING_SQL))

    def look(self) -> Scope | None:
        """The scope as it is now. None if there is none."""

        def attempt() -> Scope | None:
            if not self.database.may_exist():
                return None
            with self.database.reading() as connection:
                return self._scope(connection) if inspect(connection).has_table(scope_table.name) else None

        return self._patiently(attempt)

    def _scope(self, connection: Connection, *, lock: bool = False) -> Scope | None:
        wanted = select(scope_table).where(scope_table.c.scope == self.scope)
        row: Any = connection.execute(self.database.locking(wanted) if lock else wanted).one_or_none()
        if row is None:
            return None
        if row.format != FORMAT:
            raise TableUnfit(
                f"the store {self.database.place} has format {row.format}, and this landonce knows {FORMAT}.",
                safe="Nothing was read or written.",
                command="use the landonce that wrote it",
            )
        return Scope(
            row.lineage,
            row.rule,
            row.described,
            row.shards,
            row.ttl_s,
            row.bucket_s,
            row.horizon,
            row.accepted,
            row.copies,
            row.seen_again,
        )

    def set_ttl(self, ttl: int) -> None:
        """Another window. Buckets keep the length that they were made with."""

        def attempt() -> None:
            with self.database.writing() as connection:
                connection.execute(update(scope_table).where(scope_table.c.scope == self.scope).values(ttl_s=ttl))

        self._patiently(attempt)

    def replace_shards(self, seen: Mapping[int, int], shards: int, runs: Sequence[Run]) -> bool:
        """Another number of shards, with these runs in place of all others. False: the shards, or their versions, are not those that were
        seen."""

        def attempt() -> bool:
            with self.database.writing() as connection:
                wanted = select(shard_table).where(shard_table.c.scope == self.scope).order_by(shard_table.c.shard)
                rows: Any = connection.execute(self.database.locking(wanted))
                if {row.shard: row.version for row in rows} != dict(seen):
                    return False
                for table in (run_table, shard_table):
                    connection.execute(delete(table).where(table.c.scope == self.scope))
                version = max(seen.values()) + 1
                made = [{"scope": self.scope, "shard": each, "version": version} for each in range(shards)]
                connection.execute(insert(shard_table), made)
                if runs:
                    connection.execute(insert(run_table), [self._run_row(each) for each in runs])
                connection.execute(update(scope_table).where(scope_table.c.scope == self.scope).values(shards=shards))
                reach("resharded.before")
            return True

        return self._patiently(attempt)

    # Pipelines.

    def mark(self, pipeline: str) -> Mark | None:
        """The pipeline's mark: its position in the topics, and who may move it."""

        def attempt() -> Mark | None:
            with self.database.reading() as connection:
                row: Any = connection.execute(select(pipeline_table).where(self._of(pipeline))).one_or_none()
                return mark_from_text(row.mark, row.commit_number) if row is not None else None

        return self._patiently(attempt)

    def pipelines(self) -> tuple[str, ...]:
        """Those that accept into this scope."""
        with self._reading() as connection:
            found = select(pipeline_table.c.pipeline).where(pipeline_table.c.scope == self.scope)
            return tuple(sorted(each[0] for each in connection.execute(found)))

    def journal(self, pipeline: str) -> tuple[Note, ...]:
        with self._reading() as connection:
            text = connection.scalar(select(pipeline_table.c.journal).where(self._of(pipeline)))
        return tuple(Note(*each) for each in json.loads(text or "[]"))

    def commit(
        self, pipeline: str, expected: int, mark: Mark, added: Acceptance | None = None, note: Note | None = None
    ) -> bool | None:
        """The mark, and what it accepts, in one transaction. False: the mark is not the expected one. None: compare again, for a shard
        has another version than the one that was searched, the scope has other terms, or the bytes are too old to be there for sure. In these cases, nothing was changed. Without an answer: `TargetUnavailable`."""

        def attempt() -> bool | None:
            with self.database.writing() as connection:
                locked = self.database.locking(select(pipeline_table).where(self._of(pipeline)))
                row: Any = connection.execute(locked).one_or_none()
                if (row.commit_number if row is not None else 0) != expected:
                    return False
                if added is not None:
                    if not self._unchanged(connection, added.seen, added.terms):
                        return None
                    if added.written_at is not None and not may_list(added.written_at, int(time.time())):
                        return None
                    self._add(connection, pipeline, added)
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
                    locked = self.database.locking(select(pipeline_table).where(self._of(pipeline)))
                    row: Any = connection.execute(locked).one_or_none()
                    if (row.commit_number if row is not None else 0) != expected:
                        return False
                    rows[pipeline] = row
                if not self._unchanged(connection, by.seen):
                    return False
                scope = self._scope(connection, lock=True)
                if scope is None or scope.rule != by.rule or scope.shards != len(by.seen):
                    return False
                self._raise_versions(connection, by.seen)
                connection.execute(delete(run_table).where(run_table.c.scope == self.scope))
                for run in by.runs:
                    connection.execute(insert(run_table).values(self._run_row(run)))
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
            connection.execute(delete(table).where(table.c.scope == self.scope, table.c.pipeline == pipeline))
        connection.execute(update(pipeline_table).where(self._of(pipeline)).values(removed=_removed_text(removed)))
        for chunk in chunks:
            connection.execute(insert(chunk_table).values(self._chunk_row(pipeline, chunk)))

    def _unchanged(self, connection: Connection, seen: Mapping[int, int], terms: Terms | None = None) -> bool:
        """Locks shards before the scope, as everybody does who changes both."""
        versions: dict[int, int] = {}
        if seen:
            wanted = select(shard_table).where(shard_table.c.scope == self.scope, shard_table.c.shard.in_(sorted(seen)))
            rows: Any = connection.execute(self.database.locking(wanted.order_by(shard_table.c.shard)))
            versions = {row.shard: row.version for row in rows}
        scope = self._scope(connection, lock=True) if terms is not None else None
        return may_commit(seen, versions, terms, scope.terms if scope is not None else None)

    def _add(self, connection: Connection, pipeline: str, added: Acceptance) -> None:
        self._raise_versions(connection, {each.shard for each in (*added.runs, *added.merged)})
        if added.merged:
            connection.execute(delete(run_table).where(run_table.c.run.in_([each.run for each in added.merged])))
        if added.runs:
            connection.execute(insert(run_table), [self._run_row(each) for each in added.runs])
        if added.chunks:
            connection.execute(insert(chunk_table), [self._chunk_row(pipeline, each) for each in added.chunks])
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
            new = {"scope": self.scope, "pipeline": pipeline, "removed": "[]"}
            connection.execute(insert(pipeline_table).values(**new, **values))
        else:
            connection.execute(update(pipeline_table).where(self._of(pipeline)).values(values))

    def _raise_versions(self, connection: Connection, shards: Collection[int]) -> None:
        version = shard_table.c.version
        connection.execute(
            update(shard_table)
            .where(shard_table.c.scope == self.scope, shard_table.c.shard.in_(sorted(shards)))
            .values(version=version + 1)
        )

    # Keys.

    def shards(self, wanted: Collection[int]) -> dict[int, Shard]:
        """The shards with their runs, as of one moment."""

        def attempt() -> dict[int, Shard]:
            with self.database.reading() as connection:
                of_scope = and_(shard_table.c.scope == self.scope, shard_table.c.shard.in_(sorted(wanted)))
                versions: Any = connection.execute(select(shard_table).where(of_scope)).all()
                found: Any = connection.execute(
                    select(run_table).where(run_table.c.scope == self.scope, run_table.c.shard.in_(sorted(wanted)))
                ).all()
            runs: dict[int, list[Run]] = {}
            for row in found:
                run = Run(row.run, row.shard, row.level, row.bucket, row.key_count, row.segments, row.digest)
                runs.setdefault(row.shard, []).append(run)
            return {row.shard: Shard(row.version, tuple(runs.get(row.shard, ()))) for row in versions}

        return self._patiently(attempt)

    def put_run(self, run: Run, segments: Sequence[Segment]) -> Run:
        """Writes the bytes of a run, under a name of its own. It counts once a commit lists it."""
        return self.put_runs([(run, segments)])[0]

    def put_runs(self, runs: Sequence[tuple[Run, Sequence[Segment]]]) -> list[Run]:
        """Like `put_run`, in few transactions."""

        def attempt() -> list[Run]:
            named = [(replace(run, run=uuid.uuid4().hex, segments=len(segments)), segments) for run, segments in runs]
            self._put(
                run_bytes,
                [
                    {"run": run.run, "segment": number, "ids": each.ids, "first_seen": each.first_seen}
                    for run, segments in named
                    for number, each in enumerate(segments)
                ],
            )
            return [run for run, _ in named]

        return self._patiently(attempt)

    def _put(self, content: Table, rows: Sequence[dict[str, Any]]) -> None:
        """Adds rows with bytes, several in one transaction: each transaction waits for the disk more than once."""
        now = int(time.time())
        for some in _groups(
            rows, lambda row: sum(len(each) for each in row.values() if isinstance(each, bytes)), _TOGETHER
        ):
            with self.database.writing() as connection:
                for row in some:
                    connection.execute(insert(content).values(**row, written_at=now))

    def run_segments(self, run: Run) -> list[Segment]:
        """The bytes of a run. A run that is not listed any more may be gone: then there are fewer segments than it has."""

        def attempt() -> list[Segment]:
            with self.database.reading() as connection:
                rows: Any = connection.execute(
                    select(run_bytes).where(run_bytes.c.run == run.run).order_by(run_bytes.c.segment)
                )
                return [Segment(row.ids, row.first_seen) for row in rows]

        return self._patiently(attempt)

    def forget_runs(self, runs: Iterable[Run]) -> None:
        """Removes the bytes of runs that are not listed any more, some at a time. Who still reads one lists the runs again."""
        for some in _groups(list(runs), lambda run: run.rows * KEY_BYTES, _TOGETHER):
            gone = run_bytes.c.run.in_([each.run for each in some])

            def attempt(gone: Any = gone) -> None:
                with self.database.writing() as connection:
                    connection.execute(delete(run_bytes).where(gone))

            self._patiently(attempt)

    def expire(self, shards: int, buckets: Collection[int], horizon: int) -> None:
        """Forgets the keys of these buckets and moves the horizon, in one transaction: what was searched before is not committed."""

        def attempt() -> None:
            with self.database.writing() as connection:
                self._raise_versions(
                    connection, range(shards)
                )  # locks them: a commit or a reshard ends before runs are searched
                connection.execute(
                    delete(run_table).where(run_table.c.scope == self.scope, run_table.c.bucket.in_(sorted(buckets)))
                )
                row = scope_table.c
                later = update(scope_table).where(row.scope == self.scope, row.horizon < horizon)
                connection.execute(later.values(horizon=horizon))

        self._patiently(attempt)

    # New events.

    def put_chunk(self, chunk: Chunk, content: bytes) -> Chunk:
        """Writes the bytes of a chunk, under a name of its own. It counts once a commit lists it."""
        return self.put_chunks([(chunk, content)])[0]

    def put_chunks(self, chunks: Sequence[tuple[Chunk, bytes]]) -> list[Chunk]:
        """Like `put_chunk`, in few transactions."""

        def attempt() -> list[Chunk]:
            named = [
                (replace(chunk, chunk=uuid.uuid4().hex, segments=len(pieces), size=len(content)), pieces)
                for chunk, content in chunks
                for pieces in [_pieces(content)]
            ]
            self._put(
                chunk_bytes,
                [
                    {"chunk": chunk.chunk, "segment": number, "events": each}
                    for chunk, pieces in named
                    for number, each in enumerate(pieces)
                ],
            )
            return [chunk for chunk, _ in named]

        return self._patiently(attempt)

    def chunks(self, pipeline: str, within: Range | None = None) -> list[Chunk]:
        """The chunks of a pipeline, in the order of partitions and offsets; those that may hold offsets of a range."""
        row = chunk_table.c
        wanted = select(chunk_table).where(row.scope == self.scope, row.pipeline == pipeline)
        if within is not None:
            wanted = wanted.where(
                row.topic == within.partition.topic,
                row.partition_number == within.partition.number,
                row.last_offset >= within.first,
                row.first_offset < within.end,
            )

        def attempt() -> list[Chunk]:
            with self.database.reading() as connection:
                return [_chunk(each) for each in connection.execute(wanted)]

        return sorted(self._patiently(attempt), key=lambda each: (each.topic, each.partition, each.first))

    def removed(self, pipeline: str) -> dict[Partition, int]:
        """Up to where chunks of each partition were removed."""

        def attempt() -> dict[Partition, int]:
            with self.database.reading() as connection:
                return _removed(connection.scalar(select(pipeline_table.c.removed).where(self._of(pipeline))))

        return self._patiently(attempt)

    def old_chunks(self, pipeline: str, before: int) -> list[Chunk]:
        """Some of the chunks that were accepted before this moment, the oldest first."""
        row = chunk_table.c
        wanted = select(chunk_table).where(row.scope == self.scope, row.pipeline == pipeline, row.accepted_at < before)

        def attempt() -> list[Chunk]:
            with self.database.reading() as connection:
                rows = connection.execute(wanted.order_by(row.accepted_at, row.first_offset).limit(_AT_ONCE))
                return [_chunk(each) for each in rows]

        return self._patiently(attempt)

    def chunk_content(self, chunk: Chunk) -> bytes:
        def attempt() -> list[bytes]:
            with self.database.reading() as connection:
                rows = connection.execute(
                    select(chunk_bytes.c.events)
                    .where(chunk_bytes.c.chunk == chunk.chunk)
                    .order_by(chunk_bytes.c.segment)
                )
                return [each[0] for each in rows]

        content = b"".join(self._patiently(attempt))
        if len(content) != chunk.size:
            raise StoreDamaged(
                f"the store {self.database.place} holds {len(content)} of {chunk.size} bytes of {chunk.topic}-{chunk.partition} "
                f"[{chunk.first}, {chunk.last}].",
                safe="Nothing was sent.",
                command="restore the store from a backup",
            )
        return content

    # Blocks as they are sent.

    def put_block(
        self, pipeline: str, batch: int, block: int, ranges: str, records: int, content: bytes
    ) -> StoredBlock:
        """Stores a block before it is sent. The first content that is stored for the ranges of a block stays: it is what all attempts
        send."""
        digest = hashlib.sha256(content).hexdigest()
        row = batch_table.c
        mine = and_(row.scope == self.scope, row.pipeline == pipeline, row.batch == batch, row.block == block)
        key = {"scope": self.scope, "pipeline": pipeline, "batch": batch, "block": block}
        pieces = _pieces(content)

        def attempt() -> bool:
            for some in _groups(list(enumerate(pieces)), lambda each: len(each[1]), _TOGETHER):
                with self.database.writing() as connection:
                    for number, each in some:
                        piece = {**key, "sha256": digest, "piece": number}
                        of_piece = and_(*(batch_bytes.c[name] == value for name, value in piece.items()))
                        if connection.execute(select(batch_bytes.c.piece).where(of_piece)).first() is None:
                            connection.execute(insert(batch_bytes).values(**piece, content=each))
            with self.database.writing() as connection:
                found: Any = connection.execute(self.database.locking(select(batch_table).where(mine))).one_or_none()
                if found is not None and keeps_stored(found.ranges, ranges):
                    return bool(found.sha256 == digest)
                if found is not None:
                    connection.execute(delete(batch_table).where(mine))
                connection.execute(
                    insert(batch_table).values(
                        **key,
                        ranges=ranges,
                        status=NEW,
                        records=records,
                        sha256=digest,
                        pieces=len(pieces),
                        created_at=int(time.time()),
                        sent_at=None,
                    )
                )
            return True

        if self._patiently(attempt):
            return StoredBlock(content, NEW)
        stored = self.block(pipeline, batch, block, ranges)
        if stored is None:
            raise TargetUnavailable(f"the store {self.database.place} lost block {block} of batch {batch}.")
        return stored

    def block(self, pipeline: str, batch: int, block: int, ranges: str) -> StoredBlock | None:
        """A block of these ranges as it was stored. None: it was not, so nothing of it was sent."""
        row = batch_table.c
        mine = and_(row.scope == self.scope, row.pipeline == pipeline, row.batch == batch, row.block == block)

        def attempt() -> tuple[Any, bytes] | None:
            with self.database.reading() as connection:
                found: Any = connection.execute(select(batch_table).where(mine)).one_or_none()
                if not keeps_stored(found.ranges if found is not None else None, ranges):
                    return None
                piece = batch_bytes.c
                wanted = select(piece.content).where(
                    piece.scope == self.scope,
                    piece.pipeline == pipeline,
                    piece.batch == batch,
                    piece.block == block,
                    piece.sha256 == found.sha256,
                )
                return found, b"".join(each[0] for each in connection.execute(wanted.order_by(piece.piece)))

        answer = self._patiently(attempt)
        if answer is None:
            return None
        found, content = answer
        if hashlib.sha256(content).hexdigest() != found.sha256:
            raise StoreDamaged(
                f"the store {self.database.place} holds other bytes of block {block} of batch {batch} than were stored.",
                safe="Nothing was sent.",
                command="restore the store from a backup",
            )
        return StoredBlock(content, found.status)

    def sent(self, pipeline: str, batch: int, up_to: Mapping[Partition, int] | None = None) -> None:
        """All blocks up to this batch are in the target, and all events below these offsets."""
        row = batch_table.c

        def attempt() -> None:
            with self.database.writing() as connection:
                connection.execute(
                    update(batch_table)
                    .where(row.scope == self.scope, row.pipeline == pipeline, row.batch <= batch, row.status == NEW)
                    .values(status=SENT, sent_at=int(time.time()))
                )
                if up_to:
                    mine = and_(sent_table.c.scope == self.scope, sent_table.c.pipeline == pipeline)
                    connection.execute(delete(sent_table).where(mine))
                    rows = [
                        {"topic": each.topic, "partition_number": each.number, "sent_up_to": end}
                        for each, end in sorted(up_to.items())
                    ]
                    connection.execute(
                        insert(sent_table), [{"scope": self.scope, "pipeline": pipeline, **each} for each in rows]
                    )

        self._patiently(attempt)

    # For people.

    def recent(self, since: int) -> Recent | None:
        """What was accepted since then, in seconds, by all pipelines, as far as its events are kept. None: nothing."""
        row = chunk_table.c
        wanted = select(func.sum(row.accepted), func.sum(row.size), func.min(row.accepted_at))

        def attempt() -> Recent | None:
            with self.database.reading() as connection:
                of_scope = wanted.where(row.scope == self.scope, row.accepted_at >= since)
                events, size, began = connection.execute(of_scope).one()
                return Recent(int(events), int(size), int(began)) if events else None

        return self._patiently(attempt)

    def sent_up_to(self, pipeline: str) -> dict[Partition, int]:
        """How far the pipeline has sent its events, as it said last."""

        def attempt() -> dict[Partition, int]:
            with self.database.reading() as connection:
                wanted = select(sent_table).where(sent_table.c.scope == self.scope, sent_table.c.pipeline == pipeline)
                rows: Any = connection.execute(wanted)
                return {Partition(row.topic, row.partition_number): row.sent_up_to for row in rows}

        return self._patiently(attempt)

    def blocks(self, pipeline: str) -> list[ListedBlock]:
        """The stored blocks of a pipeline, without their bytes."""

        def attempt() -> list[ListedBlock]:
            row = batch_table.c
            with self.database.reading() as connection:
                wanted = select(row.batch, row.block, row.ranges, row.status, row.records).where(
                    row.scope == self.scope, row.pipeline == pipeline
                )
                return [ListedBlock(*each) for each in connection.execute(wanted.order_by(row.batch, row.block))]

        return self._patiently(attempt)

    def table_bytes(self) -> dict[str, int]:
        """The bytes of keys, events and blocks, whatever scope they belong to."""
        columns = {
            run_bytes.name: func.length(run_bytes.c.ids) + func.length(run_bytes.c.first_seen),
            chunk_bytes.name: func.length(chunk_bytes.c.events),
            batch_bytes.name: func.length(batch_bytes.c.content),
        }

        def attempt() -> dict[str, int]:
            with self.database.reading() as connection:
                return {name: int(connection.scalar(select(func.sum(size))) or 0) for name, size in columns.items()}

        return self._patiently(attempt)

    # Cleaning, in small steps.

    def forget_sent(self, pipeline: str, before: int) -> int:
        """Removes some of the blocks that were sent before this moment, the oldest first. Gives how many: 0 if none is left."""
        row, piece = batch_table.c, batch_bytes.c
        mine = and_(row.scope == self.scope, row.pipeline == pipeline)
        old = select(row.batch, row.block).where(mine, row.status == SENT, row.sent_at < before)
        size = func.sum(func.length(piece.content))

        def attempt() -> int:
            with self.database.writing() as connection:
                found = connection.execute(old.order_by(row.batch, row.block).limit(_AT_ONCE)).all()
                if not found:
                    return 0
                of_these = and_(piece.scope == self.scope, piece.pipeline == pipeline)
                of_these = and_(of_these, piece.batch >= found[0].batch, piece.batch <= found[-1].batch)
                counted = select(piece.batch, piece.block, size).where(of_these).group_by(piece.batch, piece.block)
                sizes = {(batch, block): int(bytes_) for batch, block, bytes_ in connection.execute(counted)}
                some = next(_groups(found, lambda each: sizes.get((each.batch, each.block), 0), _TOGETHER))
                for batch, block in some:
                    for table in (batch_bytes, batch_table):
                        connection.execute(
                            delete(table).where(
                                table.c.scope == self.scope,
                                table.c.pipeline == pipeline,
                                table.c.batch == batch,
                                table.c.block == block,
                            )
                        )
                return len(some)

        return self._patiently(attempt)

    def forget_chunks(self, pipeline: str, chunks: Sequence[Chunk]) -> None:
        """Removes these chunks, some at a time, and keeps up to where chunks were removed."""
        for some in _groups(chunks, lambda chunk: chunk.size, _TOGETHER):
            self._forget_chunks(pipeline, some)

    def forget_unlisted(self, chunks: Iterable[Chunk]) -> None:
        """Removes the bytes of chunks that no commit lists, or will."""
        for some in _groups(list(chunks), lambda chunk: chunk.size, _TOGETHER):
            gone = chunk_bytes.c.chunk.in_([each.chunk for each in some])

            def attempt(gone: Any = gone) -> None:
                with self.database.writing() as connection:
                    connection.execute(delete(chunk_bytes).where(gone))

            self._patiently(attempt)

    def _forget_chunks(self, pipeline: str, chunks: Sequence[Chunk]) -> None:
        names = [each.chunk for each in chunks]

        def attempt() -> None:
            with self.database.writing() as connection:
                locked = self.database.locking(select(pipeline_table.c.removed).where(self._of(pipeline)))
                ends = _removed(connection.scalar(locked))
                for each in chunks:
                    partition = Partition(each.topic, each.partition)
                    ends[partition] = max(each.last + 1, ends.get(partition, 0))
                known = update(pipeline_table).where(self._of(pipeline))
                connection.execute(known.values(removed=_removed_text(ends)))
                connection.execute(delete(chunk_table).where(chunk_table.c.chunk.in_(names)))
                connection.execute(delete(chunk_bytes).where(chunk_bytes.c.chunk.in_(names)))

        self._patiently(attempt)

    def forget_orphans(self, now: int, since: int = 0) -> int:
        """Removes some of the bytes that no list names, for a day at least. Gives of how many runs and chunks: 0 if there are none.
        `since`: what was written before, in seconds, was looked at already."""
        runs, chunks = run_bytes.c, chunk_bytes.c
        return self._forget_orphans(
            run_bytes, run_table, "run", func.length(runs.ids) + func.length(runs.first_seen), now, since
        ) + self._forget_orphans(chunk_bytes, chunk_table, "chunk", func.length(chunks.events), now, since)

    def _forget_orphans(self, content: Table, listed: Table, name: str, size: Any, now: int, since: int) -> int:
        column, known, written = content.c[name], listed.c[name], content.c.written_at

        def attempt() -> int:
            with self.database.writing() as connection:
                old = select(column, size).where(
                    written >= since, written < now - ORPHANED, column.not_in(select(known))
                )
                found = connection.execute(old.limit(_AT_ONCE)).all()
                some = next(_groups(found, lambda each: int(each[1]), _TOGETHER), ())
                names = sorted({each[0] for each in some})
                if names:
                    connection.execute(delete(content).where(column.in_(names)))
                return len(names)

        return self._patiently(attempt)

    # Statements, and what goes wrong with them.

    def _of(self, pipeline: str) -> Any:
        return and_(pipeline_table.c.scope == self.scope, pipeline_table.c.pipeline == pipeline)

    def _run_row(self, run: Run) -> dict[str, Any]:
        return {
            "run": run.run,
            "scope": self.scope,
            "shard": run.shard,
            "level": run.level,
            "bucket": run.bucket,
            "key_count": run.rows,
            "segments": run.segments,
            "digest": run.digest,
        }

    def _chunk_row(self, pipeline: str, chunk: Chunk) -> dict[str, Any]:
        return {
            "chunk": chunk.chunk,
            "scope": self.scope,
            "pipeline": pipeline,
            "topic": chunk.topic,
            "partition_number": chunk.partition,
            "first_offset": chunk.first,
            "last_offset": chunk.last,
            "records": chunk.records,
            "accepted": chunk.accepted,
            "size": chunk.size,
            "segments": chunk.segments,
            "schema_version": chunk.schema_version,
            "accepted_at": chunk.accepted_at,
            "dropped": chunk.dropped,
        }

    def _reading(self) -> Any:
        return self.database.reading()

    def _patiently(self, attempt: Callable[[], Answer]) -> Answer:
        """Tries a few times. Every attempt may be made again: it adds under a new name, or changes nothing a second time."""
        for pause in _PAUSES[:-1]:
            time.sleep(pause)
            try:
                return self._once(attempt)
            except TargetUnavailable:
                continue
        time.sleep(_PAUSES[-1])
        return self._once(attempt)

    def _once(self, attempt: Callable[[], Answer]) -> Answer:
        try:
            return attempt()
        except DBAPIError as failure:
            said = f"the store {self.database.place}: {self.database.reason(failure)}."
            fault = None if isinstance(failure, IntegrityError) else self.database.fault(failure)
            raise fault or TargetUnavailable(redact(said)) from None


def _groups(items: Sequence[Item], size: Callable[[Item], int], most: int) -> Iterator[Sequence[Item]]:
    """Neighbours together, of at most this size, or one that is larger."""
    begin = total = 0
    for at, each in enumerate(items):
        total += size(each)
        if total > most and at > begin:
            yield items[begin:at]
            begin, total = at, size(each)
    if begin < len(items):
        yield items[begin:]


def _pieces(content: bytes) -> list[bytes]:
    return [content[at : at + PIECE] for at in range(0, len(content), PIECE)] or [b""]


def _removed_text(ends: Mapping[Partition, int]) -> str:
    return json.dumps([[each.topic, each.number, end] for each, end in sorted(ends.items())])


def _removed(text: str | None) -> dict[Partition, int]:
    return {Partition(topic, number): end for topic, number, end in json.loads(text or "[]")}


def _chunk(row: Any) -> Chunk:
    return Chunk(
        row.chunk,
        row.topic,
        row.partition_number,
        row.first_offset,
        row.last_offset,
        row.records,
        row.size,
        row.segments,
        row.schema_version,
        row.accepted,
        row.accepted_at,
        row.dropped,
    )
