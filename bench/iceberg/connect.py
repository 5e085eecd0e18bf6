"""The second peer: Iceberg's Kafka Connect sink, in one warm worker, with a new connector and a new table each time."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path
from types import TracebackType

from confluent_kafka.admin import AdminClient, NewTopic
from iceberg_servers import LocalConnect

from bench.iceberg.tables import Lake
from bench.topic import TOPIC

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_TASKS = 2
_PATIENCE = 900.0


class ConnectPeer:
    """The worker starts with a connector for a topic that stays empty, so that its JVM is there."""

    def __init__(self, folder: Path, bootstrap_servers: str, lake: Lake) -> None:
        self._lake = lake
        self._bootstrap_servers = bootstrap_servers
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers})
        self._admin.create_topics([NewTopic("idle", 1, 1)])["idle"].result(timeout=30)
        lake.make("bench.idle")
        self._server = LocalConnect(
            folder,
            bootstrap_servers=bootstrap_servers,
            topics=["idle"],
            tables=["bench.idle"],
            catalog={"type": "rest", "uri": lake.rest.uri},
            connector="idle",
            tasks=1,
            heap="2g",
            extra_worker={"connector.client.config.override.policy": "All"},
        )

    def __enter__(self) -> ConnectPeer:
        self._server.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.__exit__(kind, error, trace)

    @property
    def pid(self) -> int:
        return self._server.pid

    def land(self, table: str, records: int) -> float:
        """Seconds from asking for the connector until every row is visible. The table is there already."""
        name = table.replace(".", "-")
        control = f"control-{name}"
        self._admin.create_topics([NewTopic(control, 1, 1)])[control].result(timeout=30)
        config = {
            **self._server.sink_config(),
            "name": name,
            "topics": TOPIC,
            "tasks.max": str(_TASKS),
            "iceberg.tables": table,
            "iceberg.control.topic": control,
            "iceberg.control.commit.interval-ms": "1000",
            "consumer.override.max.poll.records": "50000",
            "consumer.override.auto.offset.reset": "earliest",
            "consumer.override.fetch.max.bytes": str(64 * 2**20),
            "consumer.override.max.partition.fetch.bytes": str(8 * 2**20),
        }
        began = time.monotonic()
        self._ask("POST", "/connectors", {"name": name, "config": config})
        while self._lake.rows(table) < records:
            if time.monotonic() - began > _PATIENCE:
                raise RuntimeError(
                    f"{self._lake.rows(table)} of {records} records landed: {self._ask('GET', f'/connectors/{name}/status')}"
                )
            time.sleep(0.1)
        seconds = time.monotonic() - began
        self._ask("DELETE", f"/connectors/{name}")
        return seconds

    def _ask(self, method: str, path: str, body: object = None) -> str:
        request = urllib.request.Request(
            self._server.url + path,
            method=method,
            data=json.dumps(body).encode() if body is not None else None,
            headers={"Content-Type": "application/json"},
        )
        with _OPENER.open(request, timeout=60) as answer:
            return str(answer.read().decode())
