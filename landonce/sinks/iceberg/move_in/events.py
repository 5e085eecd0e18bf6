"""What the tasks of Iceberg's sink report to its coordinator. Pure.

A task that is asked for a commit sends one `DATA_WRITTEN` for each table that it wrote files for, then one `DATA_COMPLETE`
with the next offset of each of its partitions, and commits the same offsets to the consumer group: all of it in one
transaction of Kafka, and before anything is in a table.
"""

from __future__ import annotations

from dataclasses import dataclass

from landonce.protocol.ranges import Partition
from landonce.sinks.iceberg.move_in.avro import decode

_DATA_WRITTEN, _DATA_COMPLETE = 1, 2


@dataclass(frozen=True)
class Written:
    """Files of rows, and of deletes, that are meant for a table."""

    table: str
    files: tuple[str, ...]
    rows: int


@dataclass(frozen=True)
class Complete:
    """The partitions of a task, and the next offset of each that it had records of."""

    offsets: tuple[tuple[Partition, int | None], ...]


def event_of(message: bytes, group: str) -> Written | Complete | None:
    """None for events of other groups, and for those that say nothing of files or offsets."""
    event = decode(message)
    if event["group_id"] != group:
        return None
    payload = event["payload"]
    if event["type"] == _DATA_WRITTEN:
        files = [*(payload["data_files"] or ()), *(payload["delete_files"] or ())]
        kept = [each for each in files if each["record_count"] > 0]
        table = ".".join((*payload["table_reference"]["namespace"], payload["table_reference"]["name"]))
        return Written(table, tuple(each["file_path"] for each in kept), sum(each["record_count"] for each in kept))
    if event["type"] == _DATA_COMPLETE:
        told = payload["assignments"] or ()
        return Complete(tuple((Partition(each["topic"], each["partition"]), each["offset"]) for each in told))
    return None
