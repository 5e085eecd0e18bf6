"""Where a Spark Structured Streaming query stopped.

Spark writes where a batch ends to `offsets/N` of the checkpoint, then commits the rows, with the query's id and N in the
snapshot, then writes `commits/N`. So the table itself says which batch is the last one in it, and the offset log says where
that batch ended. A batch that is planned and not in the table does not count; one in the table counts even if `commits/N`
is missing.

`CheckpointFolder` reads the checkpoint; everything that is decided from it is pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from pyarrow import fs
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

from landonce.config.secrets import redact
from landonce.protocol.operate.decision import refused
from landonce.protocol.ranges import Partition
from landonce.sinks.iceberg.marks import STREAMING_QUERY
from landonce.sinks.iceberg.move_in.adopt import History, LastCommit, WriterCommits, histories, history_of, same_topics
from landonce.sinks.iceberg.sink import IcebergSink

EPOCH = "spark.sql.streaming.epochId"
_LOG_VERSION = "v1"
_START_NEW = "let a pipeline with a new table deliver everything: the position of this query cannot be taken over"


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint folder holds."""

    location: str
    query: str
    planned: tuple[int, ...]
    """The batches of the offset log."""
    done: tuple[int, ...]
    """The batches of the commit log."""
    stateful: bool = False
    """The query keeps state: aggregations, joins, deduplication."""

    def __str__(self) -> str:
        return f"the query {self.query}"


def said_by(query: str, summary: Mapping[str, str]) -> str | None:
    """The batch that a snapshot holds, if the query made it."""
    return summary.get(EPOCH) if summary.get(STREAMING_QUERY) == query else None


def last_batch(checkpoint: Checkpoint, histories: Sequence[History]) -> int:
    """The last batch that is in the table, and whose end the checkpoint knows."""
    if len(histories) != 1:
        raise refused(
            f"a streaming query writes one table, and the pipeline file names {len(histories)} that are there.",
            "import the query into a pipeline with that one table",
        )
    history = histories[0]
    if checkpoint.stateful:
        raise refused(
            f"{checkpoint} keeps state: rows that it read and did not write yet are in {checkpoint.location} alone.",
            _START_NEW,
        )
    if history.last is None:
        raise refused(
            f"no snapshot of {history.table} was committed by {checkpoint}, the one of {checkpoint.location}, as far as the history "
            "of the branch goes back.",
            "name the checkpoint that the query really used; check `table` and `branch` in {file}",
        )
    batch, planned = int(history.last.text), checkpoint.planned
    if batch not in planned:
        known = f"batches {min(planned)} to {max(planned)}" if planned else "no batch at all"
        raise refused(
            f"batch {batch} of {checkpoint} is the last one in {history.table}, and {checkpoint.location} does not say where "
            f"it ended: it knows {known}.",
            "name the checkpoint that the query really used",
        )
    return batch


def positions_of(checkpoint: Checkpoint, batch: int, text: str) -> dict[Partition, int]:
    """Where a batch ended, from its entry in the offset log."""
    lines = text.strip().splitlines()
    if lines[:1] != [_LOG_VERSION] or len(lines) < 2:
        raise refused(f"{checkpoint.location}/offsets/{batch} is of a kind that landonce does not know.", _START_NEW)
    sources = lines[2:]
    if len(sources) != 1:
        raise refused(f"{checkpoint} reads {len(sources)} sources; landonce can go on for one.", _START_NEW)
    try:
        topics = json.loads(sources[0])
        return {Partition(topic, int(number)): int(at) for topic, each in topics.items() for number, at in each.items()}
    except (ValueError, AttributeError, TypeError):
        raise refused(f"{checkpoint} does not read from Kafka: {sources[0][:200]}", _START_NEW) from None


def notes_of(checkpoint: Checkpoint, batch: int) -> tuple[str, ...]:
    """What else an operator should know, from the two logs."""
    later = [each for each in checkpoint.done if each > batch]
    undone = [each for each in checkpoint.planned if each > batch]
    notes = ["A checkpoint does not show whether its query still runs. Stop it first, and never start it again."]
    if later:
        notes.append(
            f"The query committed up to batch {max(later)}, and the table was rolled back to batch {batch} since: what that "
            "removed is delivered again."
        )
    elif undone:
        notes.append(f"Batch {max(undone)} was planned and is not in the table: landonce delivers it.")
    return tuple(notes)


@dataclass(frozen=True)
class CheckpointFolder:
    """A checkpoint's folder: a path, or a URI that the catalog's properties can open."""

    location: str
    properties: Mapping[str, str] = field(repr=False)

    def read(self) -> Checkpoint:
        """As it is now."""
        try:
            query = json.loads(self._text("metadata"))["id"]
        except (ValueError, KeyError, TypeError):
            raise self._unfit("its `metadata` does not name a query") from None
        return Checkpoint(
            location=self.location,
            query=query,
            planned=self._batches("offsets"),
            done=self._batches("commits"),
            stateful=bool(self._names("state")),
        )

    def entry(self, batch: int) -> str:
        """The entry of a batch in the offset log."""
        return self._text(f"offsets/{batch}")

    def _batches(self, folder: str) -> tuple[int, ...]:
        return tuple(sorted(int(name) for name in self._names(folder) if name.isdigit()))

    def _names(self, folder: str) -> tuple[str, ...]:
        files, root = self._opened()
        try:
            found = files.get_file_info(fs.FileSelector(f"{root}/{folder}", allow_not_found=True))
        except OSError as error:
            raise self._unfit(str(error)) from None
        return tuple(each.base_name for each in found)

    def _text(self, path: str) -> str:
        files, root = self._opened()
        try:
            with files.open_input_stream(f"{root}/{path}") as stream:
                return str(stream.read().decode())
        except (OSError, UnicodeDecodeError) as error:
            raise self._unfit(str(error)) from None

    def _opened(self) -> tuple[fs.FileSystem, str]:
        scheme, host, path = PyArrowFileIO.parse_location(self.location)
        try:
            return PyArrowFileIO(dict(self.properties)).fs_by_scheme(scheme, host), path.rstrip("/")
        except (OSError, ValueError) as error:
            raise self._unfit(str(error)) from None

    def _unfit(self, why: str) -> Exception:
        return refused(
            f"{self.location} is not the checkpoint of a streaming query, or cannot be read: {redact(why)}",
            "name the query's `checkpointLocation` with --from-checkpoint",
        )


@dataclass
class QueryWriter:
    """A Spark Structured Streaming query that wrote to a table with `toTable`."""

    tables: IcebergSink
    topics: tuple[str, ...]
    folder: CheckpointFolder

    def look(self) -> WriterCommits:
        checkpoint = self.folder.read()
        found = histories(self.tables, partial(said_by, checkpoint.query))
        batch = last_batch(checkpoint, found)
        positions = positions_of(checkpoint, batch, self.folder.entry(batch))
        read = frozenset(each.topic for each in positions)
        same_topics(str(checkpoint), read, frozenset(self.topics))
        return WriterCommits(
            writer=str(checkpoint),
            commits=tuple(each.last for each in found if each.last is not None),
            positions=tuple(sorted(positions.items())),
            notes=notes_of(checkpoint, batch),
            seen=(checkpoint,),
        )

    def last_commit(self, name: str, table: Table) -> LastCommit | None:
        says = partial(said_by, self.folder.read().query)
        return history_of(table, name, self.tables.config.branch, says).last
