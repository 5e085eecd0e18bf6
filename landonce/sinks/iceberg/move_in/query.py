"""Where a Spark Structured Streaming query stopped. Pure.

Spark writes where a batch ends to `offsets/N` of the checkpoint, then commits the rows, with the query's id and N in the
snapshot, then writes `commits/N`. So the table itself says which batch is the last one in it, and the offset log where
that one ended: a batch that is planned and not in the table does not count, one in the table counts even if `commits/N`
is missing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from landonce.errors import ImportRefused
from landonce.protocol.ranges import Partition
from landonce.sinks.iceberg.look import STREAMING_QUERY
from landonce.sinks.iceberg.move_in.found import History, refused

EPOCH = "spark.sql.streaming.epochId"
_LOG_VERSION = "v1"
_START_ANEW = "let a pipeline with a new table deliver everything: the position of this query cannot be taken over"


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
    """The query keeps rows back: aggregations, joins, deduplication."""

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
            _START_ANEW,
        )
    if history.told is None:
        raise _unknown(checkpoint, history)
    batch = int(history.told.said)
    if batch not in checkpoint.planned:
        raise refused(
            f"batch {batch} of {checkpoint} is the last one in {history.table}, and {checkpoint.location} does not say where "
            f"it ended: it knows {_span(checkpoint.planned)}.",
            "name the checkpoint that the query really used",
        )
    return batch


def positions_of(checkpoint: Checkpoint, batch: int, text: str) -> dict[Partition, int]:
    """Where a batch ended, from its entry in the offset log."""
    lines = text.strip().splitlines()
    if lines[:1] != [_LOG_VERSION] or len(lines) < 2:
        raise refused(f"{checkpoint.location}/offsets/{batch} is of a kind that landonce does not know.", _START_ANEW)
    sources = lines[2:]
    if len(sources) != 1:
        raise refused(f"{checkpoint} reads {len(sources)} sources; landonce can go on for one.", _START_ANEW)
    try:
        told = json.loads(sources[0])
        return {Partition(topic, int(number)): int(at) for topic, each in told.items() for number, at in each.items()}
    except (ValueError, AttributeError, TypeError):
        raise refused(f"{checkpoint} does not read from Kafka: {sources[0][:200]}", _START_ANEW) from None


def notes_of(checkpoint: Checkpoint, batch: int) -> tuple[str, ...]:
    """What else the two logs say."""
    later, undone = (
        [each for each in checkpoint.done if each > batch],
        [each for each in checkpoint.planned if each > batch],
    )
    notes = [
        "Whether the query still runs cannot be told from its checkpoint. Stop it first, and never start it again."
    ]
    if later:
        notes.append(
            f"The query committed up to batch {max(later)}, and the table was rolled back to batch {batch} since: what that "
            "removed is delivered again."
        )
    elif undone:
        notes.append(f"Batch {max(undone)} was planned and is not in the table: landonce delivers it.")
    return tuple(notes)


def _unknown(checkpoint: Checkpoint, history: History) -> ImportRefused:
    return refused(
        f"no snapshot of {history.table} was committed by {checkpoint}, the one of {checkpoint.location}, as far as the history "
        "of the branch goes back.",
        "name the checkpoint that the query really used; check `table` and `branch` in {file}",
    )


def _span(batches: tuple[int, ...]) -> str:
    return f"batches {min(batches)} to {max(batches)}" if batches else "no batch at all"
