"""A target for `push_tailer` that takes whatever it is sent: a block that is pushed twice is there twice. It can be asked."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import landonce


def sink(folder: str) -> landonce.WrappedSink:
    def connected() -> sqlite3.Connection:
        connection = sqlite3.connect(Path(folder, "target.db"), timeout=60)
        with connection:
            connection.execute("CREATE TABLE IF NOT EXISTS lines (_topic TEXT, _partition INT, _offset INT, line TEXT)")
            connection.execute("CREATE TABLE IF NOT EXISTS blocks (key TEXT)")
        return connection

    def push(block: landonce.PushedBlock) -> None:
        refuses = Path(folder, "refuse")
        if refuses.exists():
            refuses.unlink()
            raise landonce.NotPushed("busy")
        rows = [tuple(json.loads(line).values()) for line in block.json_lines().splitlines()]
        with closing(connected()) as connection, connection:
            connection.execute("INSERT INTO blocks VALUES (?)", (block.key,))
            connection.executemany("INSERT INTO lines VALUES (?, ?, ?, ?)", rows)

    def probe(block: landonce.PushedBlock) -> bool:
        with closing(connected()) as connection:
            return connection.execute("SELECT 1 FROM blocks WHERE key = ?", (block.key,)).fetchone() is not None

    return landonce.wrap(push, idempotent=False, probe=probe, settles_within=600, name="target")
