"""A block as bytes: what the first attempt stores. Every attempt sends its rows, as the sink writes them.

    length of the head (8 bytes) · head (JSON: counts, rejected records, tables) · one Arrow stream per table

The rows are those that fit the target when the block was stored, in (topic, partition, offset) order.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from landonce.errors import TableUnfit
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.reasons import Code, Reason
from landonce.read.block import ReadBlock, Rejected
from landonce.read.kafka.records import KafkaMessage, read_headers

VERSION = 2
_READ = (1, VERSION)
"""1 has reasons without codes."""
_COUNTS = ("read", "filtered", "bytes_read", "held", "shared")


@dataclass(frozen=True)
class FrozenRecord:
    """A rejected record, as Kafka's client gives it."""

    at: int
    moment: int
    named: bytes | None
    content: bytes | None
    beside: tuple[tuple[str, bytes | None], ...]

    def offset(self) -> int:
        return self.at

    def timestamp(self) -> tuple[int, int]:
        return 1, self.moment

    def key(self) -> bytes | None:
        return self.named

    def value(self) -> bytes | None:
        return self.content

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return list(self.beside) or None


def ranges_text(ranges: Iterable[Range]) -> str:
    """Which block it is, whatever its number."""
    return json.dumps([[each.partition.topic, each.partition.number, each.first, each.end] for each in ranges])


def to_bytes(block: ReadBlock) -> bytes:
    """The block with its rows in order."""
    tables = {name: _stream(block.rows(name)) for name in sorted(block.tables)}
    head = {
        "version": VERSION,
        **{name: getattr(block, name) for name in _COUNTS},
        "tables": [[name, len(content)] for name, content in tables.items()],
        "latest": _places(block.latest),
        "tops": {name: _places(tops) for name, tops in block.tops.items()},
        "rejected": [_rejected(each, block.messages.get((each.partition, each.offset))) for each in block.rejected],
    }
    text = json.dumps(head).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *tables.values()])


def from_bytes(content: bytes) -> ReadBlock:
    """The block as it was stored."""
    size = int.from_bytes(content[:8], "little")
    head: dict[str, Any] = json.loads(content[8 : 8 + size])
    if head["version"] not in _READ:
        raise TableUnfit(
            f"a stored block has format {head['version']}, and this landonce knows {VERSION}.",
            safe="Nothing was sent.",
            command="use the landonce that stored it until nothing is pending",
        )
    block = ReadBlock(**{name: head[name] for name in _COUNTS})
    block.latest = _partitions(head["latest"])
    block.tops = {name: _partitions(tops) for name, tops in head["tops"].items()}
    at = 8 + size
    for name, length in head["tables"]:
        block.tables[name] = [pa.ipc.open_stream(content[at : at + length]).read_all()]
        at += length
    for topic, number, offset, reason, record in head["rejected"]:
        partition = Partition(topic, number)
        block.rejected.append(Rejected(partition, offset, _reason(reason)))
        if record is not None:
            block.messages[partition, offset] = _record(offset, *record)
    return block


def _stream(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(rows.unify_dictionaries().combine_chunks())
    return bytes(sink.getvalue())


def _places(values: dict[Partition, int]) -> list[list[Any]]:
    return [[each.topic, each.number, value] for each, value in sorted(values.items())]


def _partitions(listed: list[list[Any]]) -> dict[Partition, int]:
    return {Partition(topic, number): value for topic, number, value in listed}


def _rejected(each: Rejected, record: KafkaMessage | None) -> list[Any]:
    known, why = None, Reason.of(each.reason)
    if record is not None:
        found = read_headers(record) or ()
        pairs = found.items() if isinstance(found, dict) else found
        headers = [[name, _text(value)] for name, value in pairs]
        known = [record.timestamp()[1], _text(record.key()), _text(record.value()), headers]
    return [each.partition.topic, each.partition.number, each.offset, [str(why), why.code, why.field], known]


def _reason(stored: str | list[str]) -> Reason:
    words, code, field = stored if isinstance(stored, list) else (stored, "", "")
    return Reason(words, Code.of(code), field)


def _record(offset: int, moment: int, key: str | None, value: str | None, headers: list[list[Any]]) -> FrozenRecord:
    beside = tuple((name, _bytes(content)) for name, content in headers)
    return FrozenRecord(offset, moment, _bytes(key), _bytes(value), beside)


def _text(value: bytes | str | None) -> str | None:
    if value is None:
        return None
    return base64.b64encode(value.encode() if isinstance(value, str) else value).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
