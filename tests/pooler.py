"""A real pgbouncer before a real PostgreSQL, in transaction mode: between two transactions a session is somebody else's.

Few server sessions for many clients, so that they do change hands. It does not run as root, and listens on loopback only.
"""

from __future__ import annotations

import os
import pwd
import shutil
from collections.abc import Sequence
from pathlib import Path

import psycopg

from landonce.local.postgres import DATABASE, USER, LocalPostgres
from landonce.local.server import LOOPBACK, LocalServer

_CONFIG = """\
[databases]
* = host={loopback} port={server} password={password}
[pgbouncer]
listen_addr = {loopback}
listen_port = {port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {users}
pool_mode = transaction
default_pool_size = 2
max_client_conn = 100
server_fast_close = 1
"""


def installed() -> bool:
    return _binary() is not None


class Pooler(LocalServer):
    """Clients come in by the same user and password as without it."""

    name = "pgbouncer"
    port_names = ("sql",)

    def __init__(self, folder: Path, server: LocalPostgres) -> None:
        super().__init__(folder, ports={})
        self._server = server

    @property
    def port(self) -> int:
        return self._port("sql")

    def url_of(self, url: str) -> str:
        """The same database, through here."""
        return url.replace(f":{self._server.port}/", f":{self.port}/")

    def _prepare(self) -> None:
        users, config = self.folder / "users", self.folder / "pgbouncer.ini"
        password = self._server.password
        users.write_text(f'"{USER}" "{password}"\n')
        config.write_text(
            _CONFIG.format(loopback=LOOPBACK, server=self._server.port, password=password, port=self.port, users=users)
        )
        for each in (users, config):
            each.chmod(0o600)
            if os.geteuid() == 0:
                shutil.chown(each, *_account())

    def _command(self) -> Sequence[str]:
        server = [str(_binary()), str(self.folder / "pgbouncer.ini")]
        if os.geteuid() != 0:
            return server
        user, group = _account()
        return ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", "--pdeathsig=KILL", *server]

    def _answers(self) -> bool:
        try:
            address = {"host": LOOPBACK, "port": self.port, "user": USER, "password": self._server.password}
            psycopg.connect(**address, dbname=DATABASE, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True


def _account() -> tuple[int, int]:
    found = pwd.getpwnam("postgres")
    return found.pw_uid, found.pw_gid


def _binary() -> str | None:
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
