# changes.py
"""Lands each change of a PostgreSQL database once, from a slot of logical decoding, however often it is killed.

    SOURCE=postgresql://… python changes.py            up to the newest commit
    SOURCE=postgresql://… python changes.py --follow   until it is stopped

The source needs `wal_level = logical`. `TARGET` is a database for SQLAlchemy (default: `sqlite:///changes.db`).
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import psycopg
import pyarrow as pa

import landonce

SLOT = "landonce_changes"
SCHEMA = pa.schema([("commit_lsn", pa.int64()), ("xid", pa.int64()), ("change", pa.string())])
AT_ONCE = 1000
"""Changes of one push, in whole transactions. After a crash it is the same, so what was in doubt comes again whole."""
COMMIT_BYTES, MOST_CHANGES = 32, 1 << 20
"""A commit takes at least so many bytes of WAL, and a transaction may have so many changes: then offsets suffice for 256 TiB of WAL."""


def open_slot(source: psycopg.Connection[Any]) -> str:
    """Makes the slot at the first start. The name of its changes: offsets mean something in this server only."""
    if not source.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", [SLOT]).fetchall():
        source.execute("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", [SLOT])
    row = source.execute("SELECT system_identifier FROM pg_control_system()").fetchone()
    return f"{SLOT}-{row[0] if row else ''}"


def peek(source: psycopg.Connection[Any]) -> tuple[list[dict[str, object]], int]:
    """The next transactions in the order of their commits, and the end of the last one. They stay in the slot.

    A change's own LSN does not grow: transactions overlap. So its offset is made of its commit's LSN and its number in the transaction.
    """
    query = "SELECT lsn - '0/0', xid::text::bigint, data FROM pg_logical_slot_peek_changes(%s, NULL, %s, 'include-xids', 'off')"
    rows: list[dict[str, object]] = []
    changes: list[str] = []
    end = 0
    for lsn, xid, data in source.execute(query, [SLOT, AT_ONCE]):
        if data == "BEGIN":
            changes = []
        elif data != "COMMIT":
            changes.append(data)
        else:
            end = int(lsn)
            if len(changes) > MOST_CHANGES:
                raise SystemExit(
                    f"transaction {xid} has {len(changes)} changes: raise MOST_CHANGES before the first start"
                )
            first = end // COMMIT_BYTES * MOST_CHANGES
            rows += [
                {"_offset": first + number, "commit_lsn": end, "xid": xid, "change": change}
                for number, change in enumerate(changes)
            ]
    return rows, end


def deliver(source: psycopg.Connection[Any], once: landonce.ExactlyOnceSink, partition: str) -> int:
    """Pushes what the slot holds, and returns how many changes landed. The slot moves on only after they have."""
    landed = 0
    while True:
        rows, end = peek(source)
        if not end:
            return landed
        if rows:
            begins = min(rows[0]["_offset"], once.position(partition) or rows[0]["_offset"])
            landed += once.push(partition, rows, first=begins).landed
        source.execute("SELECT pg_replication_slot_advance(%s, '0/0'::pg_lsn + %s::numeric)", [SLOT, end])


def main(follow: bool) -> None:
    sink = landonce.sql(os.environ.get("TARGET", "sqlite:///changes.db"), "changes", create=True)
    with (
        psycopg.connect(os.environ["SOURCE"], autocommit=True) as source,
        landonce.ExactlyOnceSink(sink, name="changes", schema=SCHEMA) as once,
    ):
        partition = open_slot(source)
        print(f"{deliver(source, once, partition)} changes landed")
        while follow:
            time.sleep(0.5)
            deliver(source, once, partition)


if __name__ == "__main__":
    main("--follow" in sys.argv)
