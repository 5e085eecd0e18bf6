"""A broken wrapped sink for every case: a reference with one promise less. Nothing but a test of the kit may open one."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from landonce.errors import NotPushed
from landonce.sinks.wrapped.block import PushedBlock
from landonce.sinks.wrapped.sink import WrappedSink, wrap
from landonce.testing import Row, WrappedSite
from landonce.testing.reference_sinks import Appending, FilePerBlock, values


class FilesSite(WrappedSite):
    """A folder of its own, read file by file."""

    def __init__(
        self, folder: Path, made: Callable[[Path], Any] = FilePerBlock, *, secret: str = "", **options: Any
    ) -> None:
        self.folder = folder / "blocks"
        self.folder.mkdir()
        self._made = made
        self._options = {"idempotent": True, "name": "files", **options}
        self.secret = secret

    def sink(self) -> WrappedSink:
        return wrap(self._made(self.folder), **self._options)

    def held(self) -> list[Row]:
        files = sorted(self.folder.glob("*.jsonl"))
        lines = [line for file in files for line in file.read_text().split("\n") if line.endswith("}")]
        return [Row(*json.loads(line).values()) for line in lines]

    @contextmanager
    def unreachable(self) -> Iterator[None]:
        elsewhere = self.folder.with_name("away")
        self.folder.rename(elsewhere)
        try:
            yield
        finally:
            elsewhere.rename(self.folder)


class TableSite(WrappedSite):
    """An SQLite file of its own, read by plain SQL."""

    def __init__(self, folder: Path, made: Callable[[Path], Any] = Appending, **options: Any) -> None:
        self.path = folder / "events.db"
        with closing(sqlite3.connect(self.path)) as connection:
            connection.execute(
                "CREATE TABLE events (_topic TEXT, _partition INTEGER, _offset INTEGER, id INTEGER, word TEXT)"
            )
        self._made = made
        self._options = {"idempotent": False, "settles_within": 2.0, "name": "table", **options}

    def sink(self) -> WrappedSink:
        return wrap(self._made(self.path), **self._options)

    def held(self) -> list[Row]:
        with closing(sqlite3.connect(self.path)) as connection:
            return [Row(*row) for row in connection.execute("SELECT * FROM events")]

    @contextmanager
    def unreachable(self) -> Iterator[None]:
        elsewhere = self.path.with_suffix(".away")
        self.path.rename(elsewhere)
        try:
            yield
        finally:
            elsewhere.rename(self.path)


@dataclass(frozen=True)
class Rooted(FilePerBlock):
    """Holds what cannot travel."""

    lock: Any = field(default_factory=threading.Lock)


class Dropping(FilePerBlock):
    def push(self, block: PushedBlock) -> None:
        super().push(replace(block, rows=block.rows.slice(0, block.rows.num_rows - block.rows.num_rows // 100)))


class Answering(FilePerBlock):
    """As a client that hands its response on."""

    def push(self, block: PushedBlock) -> Any:
        super().push(block)
        return 200


class Smoothing(FilePerBlock):
    """Nothing is the empty string."""

    def push(self, block: PushedBlock) -> None:
        super().push(replace(block, rows=block.rows.set_column(4, "word", block.rows.column("word").fill_null(""))))


class FilePerPartition(FilePerBlock):
    def push(self, block: PushedBlock) -> None:
        super().push(replace(block, key=f"{block.topic}.{block.partition}"))


class NamedByOffsets(FilePerBlock):
    def push(self, block: PushedBlock) -> None:
        super().push(replace(block, key=f"{block.first}-{block.end}"))


class ShortKeys(FilePerBlock):
    def push(self, block: PushedBlock) -> None:
        super().push(replace(block, key=block.key[:64]))


class Counting(Appending):
    """Expects as many rows as the range is long."""

    def probe(self, block: PushedBlock) -> bool:
        with closing(self.connected()) as connection:
            (count,) = connection.execute(
                "SELECT count(*) FROM events WHERE _topic = ? AND _partition = ?", (block.topic, block.partition)
            ).fetchone()
        return int(count) >= block.end - block.first


class Rewriting(Appending):
    """Reads all, and writes all with what is new, as a file that is replaced."""

    def push(self, block: PushedBlock) -> None:
        with closing(self.connected()) as connection:
            before = connection.execute("SELECT * FROM events").fetchall()
            time.sleep(0.5)
            with connection:
                connection.execute("DELETE FROM events")
                connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?)", [*before, *values(block)])


class FilePerAttempt(FilePerBlock):
    def push(self, block: PushedBlock) -> None:
        super().push(replace(block, key=f"{block.key}.{block.attempt}"))


class LastKey(Appending):
    """Knows the last block of a partition, and no earlier one."""

    def push(self, block: PushedBlock) -> None:
        with closing(self.connected()) as connection, connection:
            connection.execute("CREATE TABLE IF NOT EXISTS last (partition TEXT PRIMARY KEY, key TEXT)")
            place = f"{block.topic}.{block.partition}"
            known = connection.execute("SELECT key FROM last WHERE partition = ?", (place,)).fetchone()
            if known != (block.key,):
                connection.execute("INSERT OR REPLACE INTO last VALUES (?, ?)", (place, block.key))
                connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?)", values(block))


class LookingFirst(Appending):
    """Looks whether the block is there, and then adds it."""

    def push(self, block: PushedBlock) -> None:
        if not self.probe(block):
            time.sleep(0.5)
            super().push(block)


class Blind(Appending):
    def probe(self, block: PushedBlock) -> bool:
        del block
        return False


class Trusting(Appending):
    def probe(self, block: PushedBlock) -> bool:
        del block
        return True


class Forgetful(Appending):
    """Says yes, or nothing."""

    def probe(self, block: PushedBlock) -> Any:
        return True if super().probe(block) else None


class OffsetsAlone(Appending):
    def probe(self, block: PushedBlock) -> bool:
        return super().probe(replace(block, topic="t", partition=0))


class Completing(Appending):
    """Pushes what it does not find."""

    def probe(self, block: PushedBlock) -> bool:
        found = super().probe(block)
        if not found:
            super().push(block)
        return found


class Silencing(FilePerBlock):
    def push(self, block: PushedBlock) -> None:
        try:
            super().push(block)
        except NotPushed:
            return


class Spooling(Appending):
    """Keeps what it cannot push, says that nothing arrived, and pushes it with the next one."""

    def push(self, block: PushedBlock) -> None:
        spool = self.path.with_name("spool")
        try:
            super().push(block)
            if spool.exists():
                super().push(replace(block, rows=pa.ipc.open_stream(spool.read_bytes()).read_all()))
                spool.unlink()
        except sqlite3.OperationalError as error:
            spool.write_bytes(block.ipc())
            raise NotPushed(str(error)) from error


class Hasty(Appending):
    """No answer is no rows."""

    def probe(self, block: PushedBlock) -> bool:
        try:
            return super().probe(block)
        except sqlite3.OperationalError:
            return False


class Emptying(FilePerBlock):
    def open(self) -> None:
        for file in self.folder.iterdir():
            file.unlink()


# Broken in a crash, or if the target stops answering, and in nothing else.


class Noting(Appending):
    """Notes first that the block is there, and believes the note."""

    def push(self, block: PushedBlock) -> None:
        with closing(self.connected()) as connection, connection:
            connection.execute("CREATE TABLE IF NOT EXISTS noted (key TEXT)")
            connection.execute("INSERT INTO noted VALUES (?)", (block.key,))
        super().push(block)

    def probe(self, block: PushedBlock) -> bool:
        with closing(self.connected()) as connection, connection:
            connection.execute("CREATE TABLE IF NOT EXISTS noted (key TEXT)")
            return bool(connection.execute("SELECT 1 FROM noted WHERE key = ?", (block.key,)).fetchone())


class Chunked(Appending):
    """Sends five hundred rows at a time, and still takes one of them for all."""

    def push(self, block: PushedBlock) -> None:
        for first in range(0, block.rows.num_rows, 500):
            super().push(replace(block, rows=block.rows.slice(first, 500)))


class Confirming(Appending):
    """Looks once more after the commit, and where it cannot, says that nothing arrived."""

    def push(self, block: PushedBlock) -> None:
        super().push(block)
        try:
            self.probe(block)
        except sqlite3.OperationalError as error:
            raise NotPushed(str(error)) from error


def _files(made: Callable[[Path], Any], **options: Any) -> Callable[[Path], WrappedSite]:
    return lambda folder: FilesSite(folder, made, **options)


def _table(made: Callable[[Path], Any], **options: Any) -> Callable[[Path], WrappedSite]:
    return lambda folder: TableSite(folder, made, **options)


BROKEN_WRAPPED: dict[str, Callable[[Path], WrappedSite]] = {
    "a_wrapped_sink_travels_to_the_workers": _files(Rooted),
    "no_secret_is_shown": _files(FilePerBlock, name="files of s3cret-word", secret="s3cret-word"),
    "what_was_pushed_is_there": _files(Dropping),
    "a_push_gives_nothing_back": _files(Answering),
    "values_come_back_as_they_were": _files(Smoothing),
    "blocks_of_a_partition_are_kept_apart": _files(FilePerPartition),
    "partitions_and_topics_are_kept_apart": _files(NamedByOffsets),
    "long_names_are_distinct": _files(ShortKeys),
    "offsets_may_have_gaps": _table(Counting),
    "partitions_are_pushed_side_by_side": _table(Rewriting),
    "the_same_block_again_changes_nothing": _files(FilePerAttempt),
    "a_late_push_changes_nothing": _table(LastKey, idempotent=True),
    "two_pushes_of_one_block_at_once_are_one": _table(LookingFirst, idempotent=True),
    "a_probe_finds_what_is_there": _table(Blind),
    "a_probe_does_not_find_what_is_absent": _table(Trusting),
    "a_probe_tells_partitions_and_topics_apart": _table(OffsetsAlone),
    "a_probe_says_yes_or_no": _table(Forgetful),
    "a_probe_changes_nothing": _table(Completing),
    "a_silent_target_takes_nothing": _files(Silencing),
    "not_pushed_means_that_nothing_arrived": _table(Spooling),
    "a_silent_target_is_not_an_empty_one": _table(Hasty),
    "a_batch_is_pushed_and_recorded": _files(Emptying),
    "after_a_crash_at_any_line_a_block_lands_once": _table(Noting),
    "after_a_crash_between_its_portions_a_large_block_lands_once": _table(Chunked),
    "where_the_target_falls_silent_a_block_lands_once": _table(Confirming),
}
