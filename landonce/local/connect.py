"""A real Kafka Connect worker in a folder that runs Iceberg's own sink, for benchmarks and tests of moving in.

It never listens beyond loopback, and creates the one topic that the sink needs for itself. It is not for production:
a standalone worker.
"""

import json
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError, URLError

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from landonce.errors import LocalStackError
from landonce.jars import ICEBERG_CONNECT, class_path
from landonce.local.jvm import HADOOP_AND_LOGS, java_command, java_environment, prepare_java, properties
from landonce.local.ports import LOOPBACK
from landonce.local.server import LocalServer

_NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class ConnectorStatus:
    """The state of the connector and its tasks, as the worker reports it: RUNNING, FAILED, …"""

    connector: str
    tasks: tuple[str, ...] = ()
    trace: str = ""

    @property
    def running(self) -> bool:
        return bool(self.tasks) and {self.connector, *self.tasks} == {"RUNNING"}

    @property
    def reason(self) -> str:
        """The trace without the lines of Java code."""
        return " ".join(line for line in self.trace.splitlines() if not line.startswith("\t"))

    @property
    def failed(self) -> bool:
        return "FAILED" in (self.connector, *self.tasks)


class LocalConnect(LocalServer):
    """One worker with one sink, from `topics` of schemaless JSON to existing `tables`.

    `catalog` holds the properties with which Iceberg's Java classes open the catalog; `extra_sink` and `extra_worker`
    override everything else.
    """

    name = "Kafka Connect"
    port_names = ("http",)

    def __init__(
        self,
        folder: Path,
        *,
        bootstrap_servers: str,
        topics: Sequence[str],
        tables: Sequence[str],
        catalog: Mapping[str, str],
        catalog_name: str = "landonce",
        connector: str = "iceberg-sink",
        commit_interval_ms: int = 1000,
        tasks: int = 1,
        extra_sink: Mapping[str, str] | None = None,
        extra_worker: Mapping[str, str] | None = None,
        heap: str = "1g",
        die_with_parent: bool = True,
    ) -> None:
        super().__init__(folder, ports={}, die_with_parent=die_with_parent)
        self.bootstrap_servers = bootstrap_servers
        self.connector = connector
        self._topics, self._tables = tuple(topics), tuple(tables)
        self._catalog, self._catalog_name = dict(catalog), catalog_name
        self._commit_interval_ms, self._tasks = commit_interval_ms, tasks
        self._extra_sink, self._extra_worker = dict(extra_sink or {}), dict(extra_worker or {})
        self._heap = heap

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self._port('http')}"

    @property
    def control_topic(self) -> str:
        """The topic through which the sink's tasks and its coordinator communicate."""
        return f"control-{self.connector}"

    @property
    def group(self) -> str:
        """The consumer group that holds the sink's position in its topics."""
        return f"connect-{self.connector}"

    def worker_config(self) -> dict[str, str]:
        return {
            "bootstrap.servers": self.bootstrap_servers,
            "listeners": f"HTTP://{LOOPBACK}:{self._port('http')}",
            "rest.advertised.host.name": LOOPBACK,
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter.schemas.enable": "false",
            "offset.storage.file.filename": str(self.folder / "offsets"),
            # An idle task reads the control topic at most this often.
            "offset.flush.interval.ms": "500",
            "plugin.discovery": "SERVICE_LOAD",
            **self._extra_worker,
        }

    def sink_config(self) -> dict[str, str]:
        return {
            "name": self.connector,
            "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
            "tasks.max": str(self._tasks),
            "topics": ",".join(self._topics),
            "iceberg.tables": ",".join(self._tables),
            "iceberg.control.topic": self.control_topic,
            "iceberg.control.commit.interval-ms": str(self._commit_interval_ms),
            "iceberg.catalog": self._catalog_name,
            **{f"iceberg.catalog.{name}": value for name, value in self._catalog.items()},
            **self._extra_sink,
        }

    def status(self) -> ConnectorStatus | None:
        """None while the worker does not know its connector yet, or does not answer."""
        try:
            with _NO_PROXY.open(f"{self.url}/connectors/{self.connector}/status", timeout=2) as answer:
                status = json.load(answer)
        except (HTTPError, URLError, OSError):
            return None
        traces = [part.get("trace", "") for part in (status["connector"], *status["tasks"])]
        return ConnectorStatus(
            status["connector"]["state"],
            tuple(task["state"] for task in status["tasks"]),
            next(filter(None, traces), ""),
        )

    def wait_until(self, done: Callable[[], bool], timeout: float = 120.0, *, every: float = 0.5) -> None:
        """Return when `done` is true; raise when the connector failed, the worker died or `timeout` is over."""
        deadline = time.monotonic() + timeout
        while not done():
            self._refuse_failed()
            if not self.running:
                raise LocalStackError(f"{self.name} ended; {self._end_of_log()}")
            if time.monotonic() > deadline:
                raise LocalStackError(f"{self.name} was not done within {timeout:g} s; {self._end_of_log()}")
            time.sleep(every)

    def _prepare(self) -> None:
        (self.folder / "worker.properties").write_text(properties(self.worker_config()))
        (self.folder / "sink.properties").write_text(properties(self.sink_config()))
        prepare_java(self.folder, {"org.apache.kafka.clients": "ERROR"})
        self._make_control_topic()

    def _make_control_topic(self) -> None:
        """Without automatic topic creation in the broker the sink would wait for ever."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        topic = NewTopic(self.control_topic, num_partitions=1, replication_factor=1)
        try:
            admin.create_topics([topic])[self.control_topic].result(timeout=30)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise LocalStackError(f"cannot create the topic {self.control_topic}: {error}") from None

    def _command(self) -> Sequence[str]:
        jars = class_path(ICEBERG_CONNECT, from_pyspark=HADOOP_AND_LOGS)
        main = "org.apache.kafka.connect.cli.ConnectStandalone"
        return java_command(self.folder, jars, f"-Xmx{self._heap}", main, "worker.properties", "sink.properties")

    def _environment(self) -> Mapping[str, str]:
        return java_environment()

    def _answers(self) -> bool:
        self._refuse_failed()
        status = self.status()
        return status is not None and status.running

    def _refuse_failed(self) -> None:
        status = self.status()
        if status is not None and status.failed:
            raise LocalStackError(f"the connector {self.connector} failed: {status.reason or self._end_of_log()}")
