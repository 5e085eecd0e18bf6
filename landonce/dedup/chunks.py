"""Chunks: records of a range of one partition as bytes, and the source that reads them back for the push pipeline.

To the push pipeline the store looks like the topics: the same partitions and offsets, up to the accepted position, without the copies.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from landonce.config.model import TopicMatch
from landonce.dedup.contents import Chunk
from landonce.dedup.store import Store, StorePlace
from landonce.errors import RetentionOverrun, RunGone, SourceUnavailable, TableUnfit, TopicRecreated
from landonce.protocol.dedup import all_accepted, none_removed
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.reasons import Code, Reason
from landonce.protocol.source import Extent, SourceView
from landonce.read.block import ReadBlock, Rejected
from landonce.read.kafka.records import BlockId, KafkaMessage, Records, RecordSource, header_pairs, read_headers

VALUE = "value"
"""The payloads in a chunk of records. A chunk of a query's rows has none."""
ROW = "row."
"""Before the names of the columns of a query's rows in a chunk."""
MOST = 65_536
"""Records of one chunk."""
_BYTES = 32 * 2**20
"""Bytes of its values, about."""
_VERSION = 2
_READ = (1, _VERSION)
"""1 has reasons without codes."""
_COUNTS = ("read", "filtered", "bytes_read", "held", "shared")


def cut(sizes: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Where records of these sizes are cut into chunks."""
    ends = np.cumsum(sizes)
    begin = 0
    while begin < len(ends):
        fitting = int(np.searchsorted(ends, ends[begin] - sizes[begin] + _BYTES, side="right"))
        end = min(begin + MOST, max(fitting, begin + 1))
        yield begin, end
        begin = end


def encode_records(records: pa.Table) -> bytes:
    """Arrow IPC, compressed."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, records.schema, options=options) as writer:
        writer.write_table(records.combine_chunks())
    return bytes(sink.getvalue())


def decode_records(content: bytes) -> pa.Table:
    return pa.ipc.open_stream(content).read_all().combine_chunks()


def records_table(messages: Sequence[KafkaMessage]) -> pa.Table:
    """Records of one partition, as chunks hold them."""
    return pa.table(
        {
            "offset": pa.array([each.offset() for each in messages], pa.int64()),
            "timestamp": pa.array([each.timestamp()[1] for each in messages], pa.int64()),
            "key": pa.array([each.key() for each in messages], pa.binary()),
            "value": pa.array([each.value() for each in messages], pa.binary()),
            "headers": headers_of([read_headers(each) for each in messages]),
        }
    )


def headers_of(found: Sequence[Any]) -> pa.BinaryArray:
    """The headers of each record as bytes; null where there are none. Few topics have any."""
    if not any(found):
        return pa.nulls(len(found), pa.binary())
    listed = [
        [[name, value.hex() if value is not None else None] for name, value in header_pairs(each)] for each in found
    ]
    return pa.array([json.dumps(each).encode() if each else None for each in listed], pa.binary())


@dataclass(frozen=True)
class StoredRecord:
    """One record, as Kafka's client gives it."""

    table: pa.Table
    at: int

    def offset(self) -> int:
        return int(self.table.column("offset")[self.at].as_py())

    def timestamp(self) -> tuple[int, int]:
        """As Kafka's client: the kind of the timestamp, and milliseconds."""
        return 1, int(self.table.column("timestamp")[self.at].as_py())

    def key(self) -> bytes | None:
        return self.table.column("key")[self.at].as_py()  # type: ignore[no-any-return]

    def value(self) -> bytes | None:
        return self.table.column("value")[self.at].as_py()  # type: ignore[no-any-return]

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        found = self.table.column("headers")[self.at].as_py()
        if found is None:
            return None
        return [(name, bytes.fromhex(value) if value is not None else None) for name, value in json.loads(found)]


@dataclass(frozen=True)
class StoredSequence(Sequence[StoredRecord]):
    """The records of a table, made when they are asked for: hardly any of them is."""

    table: pa.Table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __getitem__(self, at: int) -> StoredRecord:  # type: ignore[override]  # nobody slices
        if not 0 <= at < len(self):
            raise IndexError(at)
        return StoredRecord(self.table, at)


def accepted_records(store: Store, chunk: Chunk, within: Range) -> pa.Table:
    """Those of a chunk that are no copies and in the range. Raises `RunGone` if the chunk was removed since it was listed."""
    records = decode_records(store.events_of(chunk))
    offsets = records.column("offset").to_numpy()
    keep = (offsets >= within.first) & (offsets < within.end)
    if chunk.dropped is not None:
        keep &= np.unpackbits(np.frombuffer(chunk.dropped, np.uint8), count=len(offsets)) == 0
    return records if keep.all() else records.filter(pa.array(keep)).combine_chunks()


def columns_of(rows: pa.Table) -> pa.Table:
    """The columns of a query's rows, by their own names."""
    return pa.table({name.removeprefix(ROW): rows.column(name) for name in rows.column_names if name.startswith(ROW)})


# A block as bytes: what the first attempt stores. Every attempt sends its rows, as the sink writes them.
#
#     length of the head (8 bytes) · head (JSON: counts, rejected records, tables) · one Arrow stream per table
#
# The rows are those that fit the target when the block was stored, in (topic, partition, offset) order.


@dataclass(frozen=True)
class FrozenRecord:
    """A rejected record as it was stored, read as Kafka's client gives it."""

    at: int
    moment: int
    named: str | None
    content: str | None
    beside: list[tuple[str, str | None]]

    def offset(self) -> int:
        return self.at

    def timestamp(self) -> tuple[int, int]:
        return 1, self.moment

    def key(self) -> bytes | None:
        return _bytes(self.named)

    def value(self) -> bytes | None:
        return _bytes(self.content)

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return [(name, _bytes(value)) for name, value in self.beside] or None


def ranges_text(ranges: Iterable[Range]) -> str:
    """Which block it is, whatever its number."""
    return json.dumps([[each.partition.topic, each.partition.number, each.first, each.end] for each in ranges])


def block_to_bytes(block: ReadBlock) -> bytes:
    """The block with its rows in order."""
    tables = {name: encode_records(block.rows(name).unify_dictionaries()) for name in sorted(block.tables)}
    head = {
        "version": _VERSION,
        **{name: getattr(block, name) for name in _COUNTS},
        "tables": [[name, len(content)] for name, content in tables.items()],
        "latest": _places(block.latest),
        "tops": {name: _places(tops) for name, tops in block.tops.items()},
        "rejected": [_rejected(each, block.messages.get((each.partition, each.offset))) for each in block.rejected],
    }
    text = json.dumps(head).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *tables.values()])


def block_from_bytes(content: bytes) -> ReadBlock:
    """The block as it was stored."""
    size = int.from_bytes(content[:8], "little")
    head: dict[str, Any] = json.loads(content[8 : 8 + size])
    if head["version"] not in _READ:
        raise TableUnfit(
            f"a stored block has format {head['version']}, and this landonce knows {_VERSION}.",
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
        words, code, field = reason if isinstance(reason, list) else (reason, "", "")
        block.rejected.append(Rejected(partition, offset, Reason(words, Code.of(code), field)))
        if record is not None:
            block.messages[partition, offset] = FrozenRecord(offset, *record)
    return block


def _places(values: dict[Partition, int]) -> list[list[Any]]:
    return [[each.topic, each.number, value] for each, value in sorted(values.items())]


def _partitions(listed: list[list[Any]]) -> dict[Partition, int]:
    return {Partition(topic, number): value for topic, number, value in listed}


def _rejected(each: Rejected, record: KafkaMessage | None) -> list[Any]:
    known, why = None, Reason.of(each.reason)
    if record is not None:
        headers = [[name, _text(value)] for name, value in header_pairs(read_headers(record))]
        known = [record.timestamp()[1], _text(record.key()), _text(record.value()), headers]
    return [each.partition.topic, each.partition.number, each.offset, [str(why), why.code, why.field], known]


def _text(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


# The store as the source of the push pipeline.


@lru_cache(maxsize=8)
def opened(place: StorePlace) -> Store:
    """One per process and place: workers keep it for the next block."""
    return place.open()


@dataclass(frozen=True)
class StoredRecords(RecordSource):
    """The accepted records of one pipeline."""

    place: StorePlace
    pipeline: str

    def read(self, ranges: tuple[Range, ...]) -> Iterator[Records]:
        store = opened(self.place)
        self._require_accepted(store, ranges)
        for each in ranges:
            for chunk in store.chunks(self.pipeline, each):
                records = self._records(store, chunk, ranges, each)
                if records.num_rows:
                    yield Records(
                        each.partition,
                        records.column("offset").combine_chunks(),
                        records.column("value").combine_chunks(),
                        StoredSequence(records),
                    )
        self._require_kept(store, ranges)

    def _records(self, store: Store, chunk: Chunk, ranges: tuple[Range, ...], within: Range) -> pa.Table:
        try:
            return accepted_records(store, chunk, within)
        except RunGone as gone:
            self._require_kept(store, ranges)
            raise SourceUnavailable(gone.what) from None

    def _require_accepted(self, store: Store, ranges: tuple[Range, ...]) -> None:
        """Before chunks are listed: others may be accepted meanwhile."""
        mark = store.mark(self.pipeline)
        accepted = mark.state.committed() if mark is not None else {}
        for each in ranges:
            if not all_accepted(each.end, accepted.get(each.partition, 0)):
                raise SourceUnavailable(
                    f"{each} is to be sent, and the store has accepted events up to {accepted.get(each.partition, 0)}: it was restored. "
                    "It waits until they are accepted again."
                )

    def _require_kept(self, store: Store, ranges: tuple[Range, ...]) -> None:
        """After chunks are read: others may be removed meanwhile."""
        removed = store.removed(self.pipeline)
        for each in ranges:
            if not none_removed(each.first, removed.get(each.partition, 0)):
                raise RetentionOverrun(
                    f"{each} is to be sent, and the store has removed events up to {removed[each.partition]}.",
                    safe="Nothing was skipped.",
                    command="restore the newest ledger: these events were in the target",
                )

    def require_same(self, topics: Mapping[str, str]) -> None:
        """What is accepted belongs to the topics that the accepting pipeline knows, whatever Kafka has now."""
        mark = opened(self.place).mark(self.pipeline)
        known = dict(mark.state.topic_ids) if mark is not None else {}
        for topic, topic_id in topics.items():
            if known.get(topic, topic_id) != topic_id:
                raise TopicRecreated(
                    f"topic {topic!r} was deleted and created again: the store knows id {known[topic]}, the plan has {topic_id}.",
                    safe="No row was written. The position did not move.",
                    command="restore the store that belongs to the plan; or land the new topic under a new `pipeline` name, in another table",
                )

    freezes = True

    def frozen(self, block: BlockId) -> ReadBlock | None:
        stored = opened(self.place).block(block.pipeline, block.batch, block.number, ranges_text(block.ranges))
        return block_from_bytes(stored.content) if stored is not None else None

    def freeze(self, block: BlockId, content: ReadBlock) -> ReadBlock:
        """What is stored is read back: the first attempt sends the bytes that all others send."""
        stored = opened(self.place).put_block(
            block.pipeline,
            block.batch,
            block.number,
            ranges_text(block.ranges),
            content.read,
            block_to_bytes(content),
        )
        return block_from_bytes(stored.content)


@dataclass(frozen=True)
class StoredTopics:
    """The store as the driver of the push pipeline sees it: topics that end where the accepting pipeline is."""

    place: StorePlace
    pipeline: str

    def survey(self, topics: Iterable[str] | TopicMatch) -> SourceView:
        del topics
        store = opened(self.place)
        mark = store.mark(self.pipeline)
        if mark is None or mark.state.fresh:
            raise SourceUnavailable(f"pipeline {self.pipeline!r} has accepted nothing yet.")
        removed = store.removed(self.pipeline)
        extents = tuple(
            (partition, Extent(max(position.first, removed.get(partition, 0)), position.committed))
            for partition, position in mark.state.positions
        )
        return SourceView(mark.state.cluster_id, mark.state.topic_ids, extents)

    def record_bytes(self, ranges: tuple[Range, ...]) -> float | None:
        """The mean size of some records that wait, as it is once they are decoded: their bytes are compressed."""
        chunks = opened(self.place).chunks(self.pipeline, ranges[0]) if ranges else []
        records = sum(each.records for each in chunks)
        return 4 * sum(each.size for each in chunks) / records if records else None
