"""The demo on ClickHouse: the driver is killed twice, and the server once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import clickhouse_connect
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from landonce.demo.stage import TOPIC, InFlight, Proof, Stage, proof_of
from landonce.ledger.open import sqlite_ledger
from landonce.local import LocalClickHouse
from landonce.protocol.blocks import token
from landonce.protocol.ledger import Ledger

_RUNNING = "SELECT query_id FROM system.processes WHERE startsWith(query_id, 'landonce:') AND NOT is_cancelled"


class OnClickHouse(Stage):
    """Kills while a plan is pending in the ledger and ClickHouse runs the insert of one of its blocks."""

    place = "ClickHouse"

    @contextmanager
    def servers(self) -> Iterator[str]:
        with LocalClickHouse(self.folder / "clickhouse") as server:
            self._server = server
            self._client = self._connect()
            self._ledger = sqlite_ledger(self.folder / "demo.ledger", "demo")
            yield f"a real ClickHouse at port {server.http_port}"

    def sink(self) -> str:
        return (
            "sink:\n"
            f'  clickhouse: {{url: "{self._server.url}", table: {TOPIC}, create: true, deadline: 5s}}\n'
            "ledger: {sqlite: demo.ledger}"
        )

    def in_flight(self, after: int) -> InFlight | None:
        return blocks_in_flight(self._client, self._ledger, after)

    def third_kill(self) -> str:
        self._server.kill()
        self._server.start()
        self._server.wait_ready(60)
        return "killed the ClickHouse server with -9, and start it again"

    def prove(self, produced: list[int], kills: int) -> Proof:
        """Counts rows and distinct (partition, offset, id): finds a record that landed under another's offset."""
        client = self._connect()
        counted = client.query(
            "SELECT _partition, count(), uniqExact(_offset, id) FROM {table:Identifier} "
            "WHERE id % {partitions:UInt32} = _partition AND intDiv(id, {partitions:UInt32}) = _offset "
            "GROUP BY _partition",
            parameters={"table": TOPIC, "partitions": len(produced)},
        ).result_rows
        total = client.query("SELECT count() FROM {table:Identifier}", parameters={"table": TOPIC}).result_rows[0][0]
        found = {partition: (rows, distinct) for partition, rows, distinct in counted}
        return proof_of(found, int(total), produced, kills)

    def _connect(self) -> Client:
        return clickhouse_connect.get_client(dsn=self._server.url, autogenerate_session_id=False)


def blocks_in_flight(client: Client, ledger: Ledger, after: int) -> InFlight | None:
    """A block of a pending plan above `after` that the server is writing right now."""
    try:
        running = [row[0] for row in client.query(_RUNNING).result_rows]
    except (ClickHouseError, OSError):
        return None
    state = ledger.load() if running else None
    if state is None or state.pending is None or state.pending.batch <= after:
        return None
    for block in state.pending.blocks:
        short = token(state.identity, block)[:16]
        if any(short in query_id for query_id in running):
            return InFlight(state.pending.batch, f"block {block} is in flight")
    return None
