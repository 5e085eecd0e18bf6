"""What the tasks of Iceberg's sink report to its coordinator on the control topic. Pure.

A task that is asked for a commit sends one `DATA_WRITTEN` for each table that it wrote files for, then one `DATA_COMPLETE`
with the next offset of each of its partitions, and commits the same offsets to the consumer group: all of it in one
transaction of Kafka, before anything is in a table. An event is one Avro value with its schema before it:

    C2 01 | length of the schema, 2 bytes | the schema as JSON | the value
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import fastavro
from fastavro.schema import SchemaParseException

from landonce.protocol.ranges import Partition

_MAGIC = b"\xc2\x01"
_HEADER = 4
_DATA_WRITTEN, _DATA_COMPLETE = 1, 2


def decode(message: bytes) -> Any:
    """The value: records are dicts. `ValueError` for what is not in this form."""
    if message[:2] != _MAGIC:
        raise ValueError("not an Avro value with its schema before it")
    end = _HEADER + int.from_bytes(message[2:_HEADER], "big")
    try:
        return fastavro.schemaless_reader(io.BytesIO(message[end:]), _schema(message[_HEADER:end]), None)
    except (EOFError, IndexError, SchemaParseException) as error:
        raise ValueError(f"an Avro value cannot be read: {error}") from None


@lru_cache(maxsize=64)
def _schema(text: bytes) -> Any:
    return fastavro.parse_schema(_plain(json.loads(text), "", set()))


def _plain(schema: Any, space: str, named: set[str]) -> Any:
    """The schema without namespaces and logical types: values are wanted as they were written.

    Java names a type that has no namespace by its bare name, even inside a record that has one, where fastavro takes the name for
    one of the record's namespace. Each full name becomes a name of its own.
    """
    if isinstance(schema, list):
        return [_plain(each, space, named) for each in schema]
    if isinstance(schema, str):
        return next((_flat(each) for each in (f"{space}.{schema}", schema) if each in named), schema)
    kind = schema["type"]
    if kind == "array":
        return {"type": kind, "items": _plain(schema["items"], space, named)}
    if kind == "map":
        return {"type": kind, "values": _plain(schema["values"], space, named)}
    if kind not in ("record", "fixed", "enum"):
        return _plain(kind, space, named)
    space = schema.get("namespace", space)
    name = f"{space}.{schema['name']}" if space and "." not in schema["name"] else schema["name"]
    named.add(name)
    rest = {key: schema[key] for key in ("size", "symbols") if key in schema}
    fields = [{"name": each["name"], "type": _plain(each["type"], space, named)} for each in schema.get("fields", ())]
    return {"type": kind, "name": _flat(name), **rest, **({"fields": fields} if kind == "record" else {})}


def _flat(name: str) -> str:
    return name.replace("_", "__").replace(".", "_")


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
        assignments = payload["assignments"] or ()
        return Complete(tuple((Partition(each["topic"], each["partition"]), each["offset"]) for each in assignments))
    return None
