"""A real Kafka Connect worker with Iceberg's own sink, and a real Iceberg REST catalog, each in a folder.

For benchmarks and tests. They never listen beyond loopback.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError, URLError
from xml.sax.saxutils import escape

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from landonce.errors import LocalStackError
from landonce.jars import ICEBERG_CONNECT, ICEBERG_REST, class_path
from landonce.local.server import LOOPBACK, NO_PROXY, LocalJavaServer, properties

HADOOP_AND_LOGS = (
    "hadoop-client-api",
    "hadoop-client-runtime",
    "slf4j-api",
    "log4j-api",
    "log4j-core",
    "log4j-slf4j2-impl",
)
"""Jars that PySpark includes, for servers whose own sets leave them out."""


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


class LocalConnect(LocalJavaServer):
    """One standalone worker with one sink, from `topics` of schemaless JSON to existing `tables`. It creates the one
    topic that the sink needs for itself.

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
            with NO_PROXY.open(f"{self.url}/connectors/{self.connector}/status", timeout=2) as answer:
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
        self._prepare_java({"org.apache.kafka.clients": "ERROR"})
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
        return self._java(jars, f"-Xmx{self._heap}", main, "worker.properties", "sink.properties")

    def _answers(self) -> bool:
        self._refuse_failed()
        status = self.status()
        return status is not None and status.running

    def _refuse_failed(self) -> None:
        status = self.status()
        if status is not None and status.failed:
            raise LocalStackError(f"the connector {self.connector} failed: {status.reason or self._end_of_log()}")


class LocalRestCatalog(LocalJavaServer):
    """One catalog: Iceberg's own reference servlet on Jetty. The same folder means the same tables and port.

    Iceberg's own launcher of that servlet listens on all interfaces without a password, so this class configures Jetty
    itself. A SQLite file in the folder keeps the tables; they survive a crash.
    """

    name = "the REST catalog"
    port_names = ("http",)

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        catalog_name: str = "landonce",
        heap: str = "256m",
        die_with_parent: bool = True,
    ) -> None:
        """A SQL catalog that is opened under `catalog_name` on `database` has the same tables."""
        super().__init__(folder, ports={"http": port}, die_with_parent=die_with_parent)
        self.catalog_name = catalog_name
        self._heap = heap

    @property
    def uri(self) -> str:
        return f"http://{LOOPBACK}:{self._port('http')}"

    @property
    def properties(self) -> dict[str, str]:
        """What PyIceberg and Iceberg's own clients need to open it."""
        return {"type": "rest", "uri": self.uri}

    @property
    def warehouse(self) -> Path:
        return self.folder / "warehouse"

    @property
    def database(self) -> Path:
        return self.folder / "catalog.db"

    def _prepare(self) -> None:
        self.warehouse.mkdir(exist_ok=True)
        (self.folder / "jetty.xml").write_text(self._jetty_xml())
        self._prepare_java({"org.eclipse.jetty.server.AbstractConnector": "INFO"})

    def _command(self) -> Sequence[str]:
        jars = class_path(ICEBERG_REST, from_pyspark=HADOOP_AND_LOGS)
        # Validation would require a document type.
        options = [f"-Xmx{self._heap}", "-Dorg.eclipse.jetty.xml.XmlParser.Validating=false"]
        return self._java(jars, *options, "org.eclipse.jetty.xml.XmlConfiguration", "jetty.xml")

    def _answers(self) -> bool:
        """The log shows that this server, not another one, has the port."""
        started = f"{{{LOOPBACK}:{self._port('http')}}}"
        if not self.log.exists() or started not in self.log.read_bytes()[self._log_start :].decode(errors="replace"):
            return False
        try:
            with NO_PROXY.open(f"{self.uri}/v1/config", timeout=2) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False

    def _jetty_xml(self) -> str:
        properties = {
            "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
            "uri": f"jdbc:sqlite:{self.database}?busy_timeout=20000",
            "jdbc.schema-version": "V1",
            "warehouse": self.warehouse.as_uri(),
        }
        entries = "".join(
            f"<Entry><Item>{escape(name)}</Item><Item>{escape(value)}</Item></Entry>"
            for name, value in properties.items()
        )
        catalog = (
            '<Call class="org.apache.iceberg.CatalogUtil" name="buildIcebergCatalog">'
            f"<Arg>{escape(self.catalog_name)}</Arg><Arg><Map>{entries}</Map></Arg>"
            '<Arg><New class="org.apache.hadoop.conf.Configuration"/></Arg></Call>'
        )
        servlet = _new(
            "org.eclipse.jetty.ee10.servlet.ServletHolder",
            _new(
                "org.apache.iceberg.rest.RESTCatalogServlet",
                _new("org.apache.iceberg.rest.RESTCatalogAdapter", catalog),
            ),
        )
        return f"""\
<Configure id="Server" class="org.eclipse.jetty.server.Server">
  <Call name="addConnector"><Arg><New class="org.eclipse.jetty.server.ServerConnector">
    <Arg><Ref refid="Server"/></Arg>
    <Set name="host">{LOOPBACK}</Set>
    <Set name="port">{self._port("http")}</Set>
  </New></Arg></Call>
  <Set name="handler"><New class="org.eclipse.jetty.ee10.servlet.ServletContextHandler">
    <Call name="addServlet"><Arg>{servlet}</Arg><Arg>/*</Arg></Call>
  </New></Set>
</Configure>
"""


def _new(class_name: str, argument: str) -> str:
    return f'<New class="{class_name}"><Arg>{argument}</Arg></New>'
