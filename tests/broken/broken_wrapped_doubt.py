"""Wrapped sinks that are broken in a crash or a silence, and in nothing else. Nothing but a test of the kit may open one."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace

from landonce.errors import NotPushed
from landonce.sinks.wrapped.block import PushedBlock
from landonce.testing.reference_sinks import Appending


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
