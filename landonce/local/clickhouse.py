"""A real ClickHouse server in a folder, for the demo, the tests and the benchmarks.

It never listens beyond loopback, never writes a password to disk (only its hash) and never puts one on a command
line. Its Keeper lives in memory, so KeeperMap tables do not survive a restart, unless it is given another one. It is not for production.
"""

import base64
import hashlib
import os
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote
from xml.sax.saxutils import escape

from landonce.errors import LocalStackError
from landonce.local.server import LOOPBACK, NO_PROXY, LocalServer

_SERVER = Path(__file__).with_name("clickhouse_server.py")
_MEMORY_LIMIT = 4 << 30
# The rights of the built-in user under which chdb runs its queries.
_OWN_GRANTS = ("GRANT SYSTEM LISTEN ON *.*", "GRANT SELECT ON system.numbers")


@dataclass(frozen=True)
class LocalUser:
    """A user of a local ClickHouse. Without grants it may do everything; with grants, only what they allow.

    Users come from the configuration: this server has no writable place for `CREATE USER`.
    """

    name: str
    password: str = ""
    grants: tuple[str, ...] = ()


class LocalClickHouse(LocalServer):
    """One server. The same folder means the same data and ports."""

    name = "ClickHouse"
    port_names = ("http", "tcp")

    def __init__(
        self,
        folder: Path,
        *,
        http_port: int | None = None,
        tcp_port: int | None = None,
        user: str = "default",
        password: str = "",
        extra_users: Sequence[LocalUser] = (),
        extra_config_xml: str = "",
        keeper_port: int | None = None,
        die_with_parent: bool = True,
    ) -> None:
        super().__init__(folder, ports={"http": http_port, "tcp": tcp_port}, die_with_parent=die_with_parent)
        if user == "default" and password:
            raise LocalStackError(
                'the user "default" of a local ClickHouse cannot have a password; name another user, for example '
                'user="landonce"'
            )
        self.user = user
        self._password = password
        self._extra_users = tuple(extra_users)
        self._extra_config_xml = extra_config_xml
        self._keeper_port = keeper_port

    @property
    def http_port(self) -> int:
        return self._port("http")

    @property
    def tcp_port(self) -> int:
        return self._port("tcp")

    @property
    def url(self) -> str:
        """With user and password: for clients, not for logs."""
        return self.url_for(LocalUser(self.user, self._password))

    def url_for(self, user: LocalUser) -> str:
        return f"http://{quote(user.name)}:{quote(user.password, safe='')}@{LOOPBACK}:{self.http_port}/default"

    def ask(self, query: str, *, timeout: float = 10.0) -> str:
        """The result of one query as tab-separated text; for the server's own checks and small tests."""
        login = base64.b64encode(f"{self.user}:{self._password}".encode()).decode()
        request = urllib.request.Request(
            f"http://{LOOPBACK}:{self.http_port}/", data=query.encode(), headers={"Authorization": f"Basic {login}"}
        )
        try:
            with NO_PROXY.open(request, timeout=timeout) as answer:
                return bytes(answer.read()).decode()
        except HTTPError as error:
            raise LocalStackError(error.read().decode().strip()) from None

    def _prepare(self) -> None:
        if find_spec("chdb") is None:
            raise LocalStackError("a local ClickHouse needs chdb; install it with: pip install 'landonce[local]'")
        (self.folder / "tmp").mkdir(exist_ok=True)
        config = self.folder / "config.xml"
        config.unlink(missing_ok=True)
        with os.fdopen(os.open(config, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(self._config_xml())

    def _config_xml(self) -> str:
        users = [LocalUser(self.user, self._password), *self._extra_users]
        if self.user != "default":
            users.append(LocalUser("default", grants=_OWN_GRANTS))
        keeper = "<implementation>testkeeper</implementation>"
        if self._keeper_port is not None:
            keeper = (
                f"<node><host>{LOOPBACK}</host><port>{self._keeper_port}</port></node>"
                "<session_timeout_ms>5000</session_timeout_ms><operation_timeout_ms>3000</operation_timeout_ms>"
            )
        return f"""\
<clickhouse>
  <listen_host>{LOOPBACK}</listen_host>
  <http_port>{self.http_port}</http_port>
  <tcp_port>{self.tcp_port}</tcp_port>
  <max_server_memory_usage>{_MEMORY_LIMIT}</max_server_memory_usage>
  <mark_cache_size>{256 << 20}</mark_cache_size>
  <background_pool_size>2</background_pool_size>
  <background_common_pool_size>2</background_common_pool_size>
  <background_fetches_pool_size>1</background_fetches_pool_size>
  <background_move_pool_size>1</background_move_pool_size>
  <background_schedule_pool_size>8</background_schedule_pool_size>
  <background_message_broker_schedule_pool_size>8</background_message_broker_schedule_pool_size>
  <zookeeper>{keeper}</zookeeper>
  <keeper_map_path_prefix>/keeper_map</keeper_map_path_prefix>
  <users_config>config.xml</users_config>
  <profiles><default/></profiles>
  <quotas><default/></quotas>
  <users>
{"".join(map(user_xml, users))}  </users>
{self._extra_config_xml}
</clickhouse>
"""

    def _command(self) -> Sequence[str]:
        return [sys.executable, str(_SERVER), str(self.folder / "data")]

    def _environment(self) -> Mapping[str, str]:
        return {**os.environ, "TMPDIR": str(self.folder / "tmp")}

    def _answers(self) -> bool:
        """A server on this port with another folder is another server."""
        try:
            data = self.ask("SELECT path FROM system.disks WHERE name = 'default'", timeout=2).strip()
        except (LocalStackError, OSError):
            return False
        return Path(data) == self.folder / "data"


def user_xml(user: LocalUser) -> str:
    digest = hashlib.sha256(user.password.encode()).hexdigest()
    secret = f"<password_sha256_hex>{digest}</password_sha256_hex>" if user.password else "<password></password>"
    queries = "".join(f"<query>{escape(grant)}</query>" for grant in user.grants)
    rights = f"<grants>{queries}</grants>" if user.grants else "<access_management>1</access_management>"
    return (
        f"    <{user.name}>{secret}<networks><ip>{LOOPBACK}</ip></networks>"
        f"<profile>default</profile><quota>default</quota>{rights}</{user.name}>\n"
    )
