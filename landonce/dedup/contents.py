"""The bytes of one scope in an SQL database: runs of keys, chunks of records, and blocks as they are sent. One code for all dialects.

Workers add runs and chunks under random names. Nothing here makes them count: a commit of `Store` does, which lists them. What is listed is
never removed here.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Column, ColumnElement, Connection, Table, and_, delete, func, insert, select, update
from sqlalchemy.exc import DBAPIError, IntegrityError

from landonce.config.secrets import redact
from landonce.dedup.runs import KEY_BYTES, Segment
from landonce.dedup.tables import (
    NEW,
    PIECE,
    SENT,
    batch_bytes,
    batch_table,
    chunk_bytes,
    chunk_table,
    copy_table,
    run_bytes,
    run_table,
    sent_table,
)
from landonce.errors import StoreDamaged, TargetUnavailable
from landonce.failpoints import reach
from landonce.ledger.database import Database
from landonce.protocol.dedup import ORPHANED, ListedRun, keeps_stored
from landonce.protocol.ranges import Partition

Answer = TypeVar("Answer")
Item = TypeVar("Item")
_PAUSES = (0.0, 0.2, 0.5, 1.0, 2.0)
"""Seconds before each attempt of what may fail by chance: a lock, a connection."""
AT_ONCE = 200
"""Rows that one statement removes: cleaning takes small steps beside a running pipeline."""
TOGETHER = 16 * 2**20
"""Bytes that one transaction adds or removes, about: others wait for it meanwhile."""

_SIZES = {
    run_bytes.name: func.length(run_bytes.c.ids) + func.length(run_bytes.c.first_seen),
    chunk_bytes.name: func.length(chunk_bytes.c.events),
    batch_bytes.name: func.length(batch_bytes.c.content),
    copy_table.name: func.length(copy_table.c.copies),
}
"""Of a row, in bytes."""


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


class Contents:
    """The bytes, and the lists of blocks."""

    def __init__(self, database: Database, scope: str) -> None:
        self.database = database
        self.scope = scope
        self._removed: Counter[str] = Counter()
        """Bytes that were removed from each table since its space was freed."""
        self._reclaiming: threading.Thread | None = None

    def close(self) -> None:
        self.database.close()

    def _key(self, pipeline: str, **values: Any) -> dict[str, Any]:
        """Values of columns: those that every row of a pipeline has, and these."""
        return {"scope": self.scope, "pipeline": pipeline, **values}

    def _mine(self, table: Table, pipeline: str, **values: Any) -> ColumnElement[bool]:
        """The rows of a pipeline that have these values."""
        return and_(*(table.c[name] == value for name, value in self._key(pipeline, **values).items()))

    # Keys.

    def put_run(self, run: ListedRun, segments: Sequence[Segment]) -> ListedRun:
        """Writes the bytes of a run, under a name of its own. It counts once a commit lists it."""
        return self.put_runs([(run, segments)])[0]

    def put_runs(self, runs: Sequence[tuple[ListedRun, Sequence[Segment]]]) -> list[ListedRun]:
        """Like `put_run`, in few transactions."""

        def attempt() -> list[ListedRun]:
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

    def run_segments(self, run: ListedRun) -> list[Segment]:
        """The bytes of a run. A run that is not listed any more may be gone: then there are fewer segments than it has."""
        wanted = select(run_bytes).where(run_bytes.c.run == run.run).order_by(run_bytes.c.segment)
        rows: Any = self._scan(lambda connection: connection.execute(wanted).all())
        return [Segment(row.ids, row.first_seen) for row in rows]

    def forget_runs(self, runs: Iterable[ListedRun]) -> None:
        """Removes the bytes of runs that are not listed any more, some at a time. Who still reads one lists the runs again."""
        self._forget(run_bytes.c.run, [(run.run, run.rows * KEY_BYTES) for run in runs])

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

    def chunk_content(self, chunk: Chunk) -> bytes:
        pieces = chunk_bytes.c
        wanted = select(pieces.events).where(pieces.chunk == chunk.chunk).order_by(pieces.segment)
        content = b"".join(self._read(lambda connection: connection.scalars(wanted).all()))
        if len(content) != chunk.size:
            raise StoreDamaged(
                f"the store {self.database.place} holds {len(content)} of {chunk.size} bytes of {chunk.topic}-{chunk.partition} "
                f"[{chunk.first}, {chunk.last}].",
                safe="Nothing was sent.",
                command="restore the store from a backup",
            )
        return content

    def forget_unlisted(self, chunks: Iterable[Chunk]) -> None:
        """Removes the bytes of chunks that no commit lists, or will."""
        self._forget(chunk_bytes.c.chunk, [(chunk.chunk, chunk.size) for chunk in chunks])

    # Blocks as they are sent.

    def put_block(
        self, pipeline: str, batch: int, block: int, ranges: str, records: int, content: bytes
    ) -> StoredBlock:
        """Stores a block before it is sent. The first content that is stored for the ranges of a block stays: it is what all attempts
        send."""
        digest, pieces = hashlib.sha256(content).hexdigest(), _pieces(content)
        mine = self._mine(batch_table, pipeline, batch=batch, block=block)
        key = self._key(pipeline, batch=batch, block=block)

        def attempt() -> bool:
            for some in groups(list(enumerate(pieces)), lambda each: len(each[1]), TOGETHER):
                with self.database.writing() as connection:
                    for number, each in some:
                        piece = {**key, "sha256": digest, "piece": number}
                        there = select(batch_bytes.c.piece).where(self._mine(batch_bytes, **piece))
                        if connection.execute(there).first() is None:
                            connection.execute(insert(batch_bytes).values(**piece, content=each))
            with self.database.writing() as connection:
                found: Any = connection.execute(self.database.locking(select(batch_table).where(mine))).one_or_none()
                if found is not None and keeps_stored(found.ranges, ranges):
                    return bool(found.sha256 == digest)
                if found is not None:
                    connection.execute(delete(batch_table).where(mine))
                row = {**key, "ranges": ranges, "status": NEW, "records": records, "sha256": digest, "sent_at": None}
                row |= {"pieces": len(pieces), "created_at": int(time.time())}
                connection.execute(insert(batch_table).values(row))
            return True

        if self._patiently(attempt):
            return StoredBlock(content, NEW)
        stored = self.block(pipeline, batch, block, ranges)
        if stored is None:
            raise TargetUnavailable(f"the store {self.database.place} lost block {block} of batch {batch}.")
        return stored

    def block(self, pipeline: str, batch: int, block: int, ranges: str) -> StoredBlock | None:
        """A block of these ranges as it was stored. None: it was not, so nothing of it was sent."""
        mine = self._mine(batch_table, pipeline, batch=batch, block=block)

        def attempt(connection: Connection) -> tuple[Any, bytes] | None:
            found: Any = connection.execute(select(batch_table).where(mine)).one_or_none()
            if not keeps_stored(found.ranges if found is not None else None, ranges):
                return None
            pieces = self._mine(batch_bytes, pipeline, batch=batch, block=block, sha256=found.sha256)
            wanted = select(batch_bytes.c.content).where(pieces).order_by(batch_bytes.c.piece)
            return found, b"".join(connection.scalars(wanted))

        answer = self._scan(attempt)
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
        new = self._mine(batch_table, pipeline, status=NEW)
        rows = [
            self._key(pipeline, topic=each.topic, partition_number=each.number, sent_up_to=end)
            for each, end in sorted((up_to or {}).items())
        ]

        def attempt(connection: Connection) -> None:
            changed = update(batch_table).where(new, batch_table.c.batch <= batch)
            connection.execute(changed.values(status=SENT, sent_at=int(time.time())))
            if rows:
                connection.execute(delete(sent_table).where(self._mine(sent_table, pipeline)))
                connection.execute(insert(sent_table), rows)

        self._write(attempt)

    def sent_up_to(self, pipeline: str) -> dict[Partition, int]:
        """How far the pipeline has sent its events, as it said last."""
        wanted = select(sent_table).where(self._mine(sent_table, pipeline))
        rows: Any = self._read(lambda connection: connection.execute(wanted).all())
        return {Partition(row.topic, row.partition_number): row.sent_up_to for row in rows}

    def blocks(self, pipeline: str) -> list[ListedBlock]:
        """The stored blocks of a pipeline, without their bytes."""
        row = batch_table.c
        listed = select(row.batch, row.block, row.ranges, row.status, row.records)
        wanted = listed.where(self._mine(batch_table, pipeline)).order_by(row.batch, row.block)
        return [ListedBlock(*each) for each in self._read(lambda connection: connection.execute(wanted).all())]

    def forget_sent(self, pipeline: str, before: int) -> int:
        """Removes some of the blocks that were sent before this moment, the oldest first. Gives how many: 0 if none is left."""
        row, piece = batch_table.c, batch_bytes.c
        sent = self._mine(batch_table, pipeline, status=SENT)
        old = select(row.batch, row.block).where(sent, row.sent_at < before)
        size = func.sum(func.length(piece.content))

        def attempt(connection: Connection) -> int:
            found = connection.execute(old.order_by(row.batch, row.block).limit(AT_ONCE)).all()
            if not found:
                return 0
            of_these = and_(self._mine(batch_bytes, pipeline), piece.batch.between(found[0].batch, found[-1].batch))
            counted = select(piece.batch, piece.block, size).where(of_these).group_by(piece.batch, piece.block)
            sizes = {(batch, block): int(bytes_) for batch, block, bytes_ in connection.execute(counted)}
            some = next(groups(found, lambda each: sizes.get((each.batch, each.block), 0), TOGETHER))
            self._removed[batch_bytes.name] += sum(sizes.get((each.batch, each.block), 0) for each in some)
            for batch, block in some:
                for table in (batch_bytes, batch_table):
                    connection.execute(delete(table).where(self._mine(table, pipeline, batch=batch, block=block)))
            return len(some)

        return self._remove(attempt)

    # All of them.

    def table_bytes(self) -> dict[str, int]:
        """The bytes of keys, events, blocks and copies, whatever scope they belong to."""
        wanted = {name: select(func.sum(size)) for name, size in _SIZES.items()}
        return self._read(lambda connection: {name: int(connection.scalar(each) or 0) for name, each in wanted.items()})

    def forget_orphans(self, now: int, since: int = 0) -> int:
        """Removes some of the bytes that no list names, for a day at least. Gives of how many runs and chunks: 0 if there are none.
        `since`: what was written before, in seconds, was looked at already."""

        def attempt(connection: Connection, content: Table, column: Column[str], listed: Column[str]) -> int:
            written = content.c.written_at
            old = written >= since, written < now - ORPHANED, column.not_in(select(listed))
            found = connection.execute(select(column, _SIZES[content.name]).where(*old).limit(AT_ONCE)).all()
            some = next(groups(found, lambda each: int(each[1]), TOGETHER), ())
            names = sorted({each[0] for each in some})
            if names:
                connection.execute(delete(content).where(column.in_(names)))
                self._removed[content.name] += sum(int(each[1]) for each in some)
            return len(names)

        both = ((run_bytes, run_bytes.c.run, run_table.c.run), (chunk_bytes, chunk_bytes.c.chunk, chunk_table.c.chunk))
        return sum(
            self._remove(partial(attempt, content=content, column=column, listed=listed))
            for content, column, listed in both
        )

    def reclaim(self) -> None:
        """Has the database use the space of removed bytes for new ones. If that fails, only its files grow."""
        for table, removed in list(self._removed.items()):
            if removed >= TOGETHER // 4:
                with suppress(DBAPIError):
                    if self.database.reclaim(table, removed):
                        self._removed[table] -= removed

    def reclaim_beside(self) -> None:
        """Like `reclaim`, which takes seconds for a large table, while the caller goes on."""
        if self._reclaiming is None or not self._reclaiming.is_alive():
            self._reclaiming = threading.Thread(target=self.reclaim, name="landonce reclaim", daemon=True)
            self._reclaiming.start()

    # Statements, and what goes wrong with them.

    def _forget(self, column: Column[str], names: Sequence[tuple[str, int]]) -> None:
        """Removes bytes by their names and sizes, some at a time."""

        def attempt(some: Sequence[str], connection: Connection) -> int:
            connection.execute(delete(column.table).where(column.in_(some)))
            return len(some)

        for some in groups(names, lambda each: each[1], TOGETHER):
            self._remove(partial(attempt, [name for name, _ in some]))
            self._removed[column.table.name] += sum(size for _, size in some)

    def _put(self, content: Table, rows: Sequence[dict[str, Any]]) -> None:
        """Adds rows with bytes, several in one transaction: each transaction waits for the disk more than once."""
        now = int(time.time())
        for some in groups(
            rows, lambda row: sum(len(each) for each in row.values() if isinstance(each, bytes)), TOGETHER
        ):
            with self.database.writing() as connection:
                for row in some:
                    connection.execute(insert(content).values(**row, written_at=now))

    def _read(self, ask: Callable[[Connection], Answer]) -> Answer:
        """In one transaction, patiently."""

        def attempt() -> Answer:
            with self.database.reading() as connection:
                return ask(connection)

        return self._patiently(attempt)

    def _scan(self, ask: Callable[[Connection], Answer]) -> Answer:
        """Like `_read`, for bytes: a run of 4 million keys has 144 MB, and takes as long as it takes."""

        def attempt() -> Answer:
            with self.database.scanning() as connection:
                return ask(connection)

        return self._patiently(attempt)

    def _write(self, change: Callable[[Connection], Answer]) -> Answer:
        """In one transaction, patiently."""

        def attempt() -> Answer:
            with self.database.writing() as connection:
                return change(connection)

        return self._patiently(attempt)

    def _remove(self, change: Callable[[Connection], int]) -> int:
        """Like `_write`, for what nobody needs any more. Gives what the change says: how much is gone."""

        def attempt(connection: Connection) -> int:
            gone = change(connection)
            if gone:
                reach("cleaned.before")
            return gone

        gone = self._write(attempt)
        if gone:
            reach("cleaned.after")
        return gone

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


def groups(items: Sequence[Item], size: Callable[[Item], int], most: int) -> Iterator[Sequence[Item]]:
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
