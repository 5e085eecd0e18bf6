"""Real servers on this machine, for the demo, the tests and the benchmarks: no Docker, loopback only.

`up` keeps one Kafka and one ClickHouse running in a folder, detached from the command that started them. It leaves
running servers alone, and starts dead ones again on the same data and ports. Nothing here ends a process that `up` did
not start. The broker creates topics automatically, as most brokers do. A pipeline never imports this folder.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from landonce.errors import LocalStackError
from landonce.local.clickhouse import LocalClickHouse, LocalUser
from landonce.local.kafka import LocalKafka

__all__ = ["LocalClickHouse", "LocalKafka", "LocalStackError", "LocalUser", "StackInfo", "down", "status", "up"]


@dataclass(frozen=True)
class StackInfo:
    """The addresses and processes of the two servers. A pid of None means: not running."""

    folder: Path
    kafka_bootstrap: str
    clickhouse_url: str
    clickhouse_http_port: int
    clickhouse_tcp_port: int
    kafka_pid: int | None
    clickhouse_pid: int | None

    @property
    def running(self) -> bool:
        return self.kafka_pid is not None and self.clickhouse_pid is not None


def up(folder: Path, *, timeout: float = 60.0) -> StackInfo:
    """Start what does not run yet, wait until both answer, and return their addresses."""
    with _alone(folder):
        kafka, clickhouse = _servers(folder)
        for server in (kafka, clickhouse):
            if not server.running:
                server.start()
        for server in (kafka, clickhouse):
            server.wait_ready(timeout)
        return _info(folder, kafka, clickhouse)


def down(folder: Path) -> None:
    """Stop both; the data stays. Does nothing if nothing runs."""
    if not Path(folder).is_dir():
        return
    with _alone(folder):
        for server in _servers(folder):
            server.stop()


def status(folder: Path) -> StackInfo | None:
    """What `up` returned, with the processes that still run; None if `up` was never called here."""
    kafka, clickhouse = _servers(folder)
    return _info(folder, kafka, clickhouse) if kafka.started_before and clickhouse.started_before else None


def _servers(folder: Path) -> tuple[LocalKafka, LocalClickHouse]:
    return (
        LocalKafka(Path(folder, "kafka"), extra_config={"auto.create.topics.enable": "true"}, die_with_parent=False),
        LocalClickHouse(Path(folder, "clickhouse"), die_with_parent=False),
    )


def _info(folder: Path, kafka: LocalKafka, clickhouse: LocalClickHouse) -> StackInfo:
    return StackInfo(
        folder=Path(folder).absolute(),
        kafka_bootstrap=kafka.bootstrap_servers,
        clickhouse_url=clickhouse.url,
        clickhouse_http_port=clickhouse.http_port,
        clickhouse_tcp_port=clickhouse.tcp_port,
        kafka_pid=kafka.pid if kafka.running else None,
        clickhouse_pid=clickhouse.pid if clickhouse.running else None,
    )


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lets one command at a time use the folder."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    with Path(folder, "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
