"""A real ZooKeeper in a folder, for the tests. It never listens beyond loopback."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from landonce.local.server import LOOPBACK, LocalJavaServer, properties

_JARS = "/etc/zookeeper/conf:/usr/share/java/zookeeper.jar"
"""As Debian's package says it; the jar names the others that it needs."""


def installed() -> bool:
    return Path(_JARS.rpartition(":")[2]).exists()


class LocalZooKeeper(LocalJavaServer):
    """One server. The same folder means the same data and port."""

    name = "ZooKeeper"
    port_names = ("client",)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, ports={})

    @property
    def port(self) -> int:
        return self._port("client")

    def _prepare(self) -> None:
        self._prepare_java({})
        config = {
            "dataDir": str(self.folder / "data"),
            "clientPort": str(self.port),
            "clientPortAddress": LOOPBACK,
            "tickTime": "500",
            "maxClientCnxns": "0",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "ruok",
        }
        (self.folder / "zoo.cfg").write_text(properties(config))

    def _command(self) -> Sequence[str]:
        return self._java(_JARS, "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(self.folder / "zoo.cfg"))

    def _answers(self) -> bool:
        try:
            with socket.create_connection((LOOPBACK, self.port), timeout=2) as connection:
                connection.sendall(b"ruok")
                return connection.recv(4) == b"imok"
        except OSError:
            return False
