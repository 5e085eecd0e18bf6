"""Finding the moment to kill: a plan is pending in the ledger, and ClickHouse is running the insert of one of its blocks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import clickhouse_connect
from clickhouse_connect.driver.exceptions import ClickHouseError

from landonce.plan.blocks import Block, token
from landonce.record.ledger import Ledger

_EVERY = 0.01


@dataclass(frozen=True)
class InFlight:
    """A block that the server is writing right now."""

    batch: int
    block: Block
    query_id: str


class Watch:
    """Looks at the ledger and at the server's running queries, and touches neither."""

    def __init__(self, ledger: Ledger, clickhouse_url: str) -> None:
        self._ledger = ledger
        self._client = clickhouse_connect.get_client(dsn=clickhouse_url, autogenerate_session_id=False)

    def wait(self, *, after_batch: int, timeout: float, alive: Callable[[], bool]) -> InFlight | None:
        """The first block in flight of a batch after this one; None when the time is over or the driver has ended."""
        end = time.monotonic() + timeout
        while time.monotonic() < end and alive():
            found = self._now(after_batch)
            if found is not None:
                return found
            time.sleep(_EVERY)
        return None

    def _now(self, after_batch: int) -> InFlight | None:
        try:
            running = [row[0] for row in self._client.query(_RUNNING).result_rows]
        except (ClickHouseError, OSError):
            return None
        if not running:
            return None
        state = self._ledger.load()
        if state is None or state.pending is None or state.pending.batch <= after_batch:
            return None
        for block in state.pending.blocks:
            short = token(state.identity, block)[:16]
            for query_id in running:
                if short in query_id:
                    return InFlight(state.pending.batch, block, query_id)
        return None


_RUNNING = "SELECT query_id FROM system.processes WHERE startsWith(query_id, 'landonce:') AND NOT is_cancelled"
