"""A real single-node Kafka (KRaft) in a folder, for the demo, the tests and the benchmarks.

It never listens beyond loopback, and creates no topics automatically unless `extra_config` says so. It is not for
production: one replica, small heap.
"""

import base64
import shutil
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from landonce.errors import LocalStackError
from landonce.jars import KAFKA, class_path
from landonce.local.server import LOOPBACK, LocalJavaServer, is_open, properties


class LocalKafka(LocalJavaServer):
    """One broker that is its own controller. The same folder means the same data, cluster id and port."""

    name = "Kafka"
    port_names = ("broker", "controller")

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        extra_config: Mapping[str, str] | None = None,
        heap: str = "768m",
        die_with_parent: bool = True,
    ) -> None:
        super().__init__(folder, ports={"broker": port}, die_with_parent=die_with_parent)
        self._extra_config = dict(extra_config or {})
        self._heap = heap

    @property
    def port(self) -> int:
        return self._port("broker")

    @property
    def bootstrap_servers(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def cluster_id(self) -> str:
        return (self.folder / "cluster-id").read_text().strip()

    def config(self) -> dict[str, str]:
        """The broker's configuration, `extra_config` last."""
        controller = f"{LOOPBACK}:{self._port('controller')}"
        config = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{self.bootstrap_servers},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap_servers}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.folder / "data"),
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": "0",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "4",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            # Retention by time counts from a record's own timestamp: records with old ones would vanish within seconds.
            "log.retention.ms": "-1",
            "log.retention.check.interval.ms": "1000",
            "log.initial.task.delay.ms": "500",
            # A killed broker can return only after its old session has expired.
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
            "num.network.threads": "2",
            "num.io.threads": "4",
        }
        return {**config, **self._extra_config}

    def _prepare(self) -> None:
        (self.folder / "server.properties").write_text(properties(self.config()))
        self._prepare_java({"org.apache.kafka.clients.NetworkClient": "ERROR"})
        if not (self.folder / "data" / "meta.properties").exists():
            self._format()

    def _format(self) -> None:
        """Give the folder its cluster id; an interrupted format starts over."""
        shutil.rmtree(self.folder / "data", ignore_errors=True)
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # A leading dash would read as an option.
        cluster_id = cluster_id.replace("-", "A")
        (self.folder / "cluster-id").write_text(cluster_id + "\n")
        arguments = ["format", "--cluster-id", cluster_id, "--config", "server.properties"]
        command = self._java(class_path(KAFKA), "-XX:TieredStopAtLevel=1", "kafka.tools.StorageTool", *arguments)
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise LocalStackError(f"Kafka could not format {self.folder}: {(done.stderr or done.stdout).strip()}")

    def _command(self) -> Sequence[str]:
        return self._java(class_path(KAFKA), f"-Xmx{self._heap}", "kafka.Kafka", "server.properties")

    def _answers(self) -> bool:
        # The client library writes to stderr if nothing listens, so try the port first.
        if not is_open(self.port):
            return False
        try:
            metadata = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0}).list_topics(timeout=2)
        except KafkaException:
            return False
        return bool(metadata.brokers) and metadata.cluster_id == self.cluster_id
