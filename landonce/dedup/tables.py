"""The tables of the store. No I/O.

    landonce_dedup_scope      one row per scope: the key rule, the window, the counts
    landonce_dedup_shard      one row per shard: its version, which every change of its runs raises
    landonce_dedup_pipeline   one row per pipeline that accepts: its mark, which is its ledger
    landonce_dedup_run        the runs that count: sorted ids of accepted events
    landonce_deduplication    their bytes, in segments. A run without a row above does not count
    landonce_dedup_chunk      the chunks that count: records of a range of one partition, and which of them are copies
    landonce_new_events       their bytes, in segments. A chunk without a row above does not count
    landonce_batches          blocks as they are sent to the target
    landonce_batch_pieces     their bytes
    landonce_dedup_copies     where copies were found, and where their originals are, if that is asked for
    landonce_dedup_sent       how far each pipeline has sent its events, for people: the ledger is what counts
    landonce_dedup_waiting    a view for people: what is accepted, how much of it is sent, and how much waits, counted by chunks

Workers only add bytes, under random names. The transaction that makes them count also moves the position.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, MetaData, Table, Text
from sqlalchemy.dialects import mysql

from landonce.ledger.tables import ENGINE

FORMAT = 1
"""Of what is in the blobs, and of what the tables mean."""
PIECE = 4 * 2**20
"""Bytes of one blob at most: YDB takes 8 MiB, MariaDB 16 MiB by default."""

metadata = MetaData()

_BIN = {"charset": "utf8mb4", "collation": "utf8mb4_bin"}
_NAME = Text().with_variant(mysql.VARCHAR(191, **_BIN), "mysql", "mariadb")
"""MySQL limits the length of keys, and would treat names that differ only in case as equal."""
_LONG = Text().with_variant(mysql.LONGTEXT(**_BIN), "mysql", "mariadb")
_BYTES = LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")


def _key(name: str, type_: Any = _NAME) -> Column[Any]:
    return Column(name, type_, primary_key=True, autoincrement=False)


def _some(name: str, type_: Any, key: str = "") -> Column[Any]:
    """`key`: what the code calls it, if its name was taken or says more."""
    return Column(name, type_, key=key or name, nullable=False)


scope_table = Table(
    "landonce_dedup_scope",
    metadata,
    _key("scope"),
    _some("format", Integer),
    _some("lineage", _NAME),
    _some("rule", _NAME),
    _some("described", _LONG),
    _some("shards", Integer),
    _some("ttl_s", BigInteger, "ttl"),
    _some("bucket_s", BigInteger, "bucket"),
    _some("horizon", BigInteger),
    _some("accepted", BigInteger),
    _some("copies", BigInteger),
    _some("seen_again", BigInteger),
    **ENGINE,
)

shard_table = Table(
    "landonce_dedup_shard",
    metadata,
    _key("scope"),
    _key("shard", Integer),
    _some("version", BigInteger),
    **ENGINE,
)

pipeline_table = Table(
    "landonce_dedup_pipeline",
    metadata,
    _key("scope"),
    _key("pipeline"),
    _some("commit_number", BigInteger),
    _some("mark", _LONG),
    _some("removed", _LONG),
    _some("journal", _LONG),
    **ENGINE,
)

run_table = Table(
    "landonce_dedup_run",
    metadata,
    _key("run"),
    _some("scope", _NAME),
    _some("shard", Integer),
    _some("level", Integer),
    _some("bucket", BigInteger),
    _some("key_count", BigInteger, "rows"),
    _some("segments", Integer),
    _some("digest", _NAME),
    Index("landonce_dedup_run_by_shard", "scope", "shard"),
    **ENGINE,
)

run_bytes = Table(
    "landonce_deduplication",
    metadata,
    _key("run"),
    _key("segment", Integer),
    _some("written_at", BigInteger),
    _some("ids", _BYTES),
    _some("first_seen", _BYTES),
    Index("landonce_deduplication_by_time", "written_at"),
    **ENGINE,
)

chunk_table = Table(
    "landonce_dedup_chunk",
    metadata,
    _key("chunk"),
    _some("scope", _NAME),
    _some("pipeline", _NAME),
    _some("topic", _NAME),
    _some("partition_number", Integer, "partition"),
    _some("first_offset", BigInteger, "first"),
    _some("last_offset", BigInteger, "last"),
    _some("records", Integer),
    _some("accepted", Integer),
    _some("size", BigInteger),
    _some("segments", Integer),
    _some("schema_version", _NAME),
    _some("accepted_at", BigInteger),
    Column("dropped", _BYTES),
    Index("landonce_dedup_chunk_by_age", "scope", "pipeline", "accepted_at"),
    Index("landonce_dedup_chunk_by_place", "scope", "pipeline", "topic", "partition", "last"),
    **ENGINE,
)

chunk_bytes = Table(
    "landonce_new_events",
    metadata,
    _key("chunk"),
    _key("segment", Integer),
    _some("written_at", BigInteger),
    _some("events", _BYTES),
    Index("landonce_new_events_by_time", "written_at"),
    **ENGINE,
)

batch_table = Table(
    "landonce_batches",
    metadata,
    _key("scope"),
    _key("pipeline"),
    _key("batch", BigInteger),
    _key("block", Integer),
    _some("ranges", _LONG),
    _some("status", _NAME),
    _some("records", BigInteger),
    _some("sha256", _NAME),
    _some("pieces", Integer),
    _some("created_at", BigInteger),
    Column("sent_at", BigInteger),
    **ENGINE,
)

batch_bytes = Table(
    "landonce_batch_pieces",
    metadata,
    _key("scope"),
    _key("pipeline"),
    _key("batch", BigInteger),
    _key("block", Integer),
    _key("sha256"),
    _key("piece", Integer),
    _some("content", _BYTES),
    **ENGINE,
)

copy_table = Table(
    "landonce_dedup_copies",
    metadata,
    _key("scope"),
    _key("pipeline"),
    _key("commit_number", BigInteger),
    _key("piece", Integer),
    _some("found_at", BigInteger),
    _some("copies", _BYTES),
    **ENGINE,
)

sent_table = Table(
    "landonce_dedup_sent",
    metadata,
    _key("scope"),
    _key("pipeline"),
    _key("topic"),
    _key("partition_number", Integer),
    _some("sent_up_to", BigInteger),
    **ENGINE,
)

WAITING = "landonce_dedup_waiting"
WAITING_SQL = """
CREATE VIEW landonce_dedup_waiting AS
SELECT c.scope, c.pipeline, c.topic, c.partition_number,
       SUM(c.accepted) AS accepted,
       SUM(CASE WHEN c.last_offset < COALESCE(s.sent_up_to, 0) THEN c.accepted ELSE 0 END) AS sent,
       SUM(CASE WHEN c.last_offset < COALESCE(s.sent_up_to, 0) THEN 0 ELSE c.accepted END) AS waiting,
       MIN(c.first_offset) AS first_offset,
       MAX(c.last_offset) AS last_offset,
       SUM(c.size) AS bytes,
       MAX(c.accepted_at) AS accepted_at
FROM landonce_dedup_chunk c
LEFT JOIN landonce_dedup_sent s
  ON s.scope = c.scope AND s.pipeline = c.pipeline AND s.topic = c.topic AND s.partition_number = c.partition_number
GROUP BY c.scope, c.pipeline, c.topic, c.partition_number
"""
"""A chunk of which only a part is sent counts as waiting."""

NEW, SENT = "NEW", "SENT"
"""The states of a stored block: it may be sent; it is in the target."""
