"""A real MariaDB server in a folder, for the tests.

It never listens beyond loopback, and lets nobody in without the password, which lies in the folder for its owner only. It runs as
the user who starts it. It is not for production.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from landonce.errors import LocalStackError
from landonce.local.ports import LOOPBACK
from landonce.local.server import LocalServer

_USER = "landonce"
_DATABASE = "landonce"
_SYSTEM_TABLES = ("mysql_system_tables.sql", "mysql_performance_tables.sql", "mysql_system_tables_data.sql")
_SBIN = "/usr/sbin:/usr/local/sbin"


class LocalMariaDB(LocalServer):
    """One server. The same folder means the same data, port and password."""

    name = "MariaDB"
    port_names = ("sql",)

    def __init__(self, folder: Path, *, port: int | None = None, die_with_parent: bool = True) -> None:
        super().__init__(folder, ports={"sql": port}, die_with_parent=die_with_parent)

    @property
    def port(self) -> int:
        return self._port("sql")

    @property
    def password(self) -> str:
        return self._password_file.read_text().strip()

    @property
    def url(self) -> str:
        """For SQLAlchemy, with user and password: for clients, not for logs."""
        return self.url_of(_DATABASE)

    def url_of(self, database: str) -> str:
        return f"mariadb+pymysql://{_USER}:{self.password}@{LOOPBACK}:{self.port}/{database}"

    def __enter__(self) -> LocalMariaDB:
        super().__enter__()
        return self

    def connect(self, database: str = _DATABASE) -> Any:
        """A connection of PyMySQL's."""
        import pymysql

        return pymysql.connect(
            host=LOOPBACK,
            port=self.port,
            user=_USER,
            password=self.password,
            database=database,
            connect_timeout=5,
            autocommit=True,
        )

    # What LocalServer asks.

    def _prepare(self) -> None:
        if (self._data / "mysql").exists():
            return
        self._password_file.touch(mode=0o600)
        self._password_file.write_text(secrets.token_hex(16))
        self._setup_file.touch(mode=0o600)
        self._setup_file.write_text(
            f"CREATE DATABASE IF NOT EXISTS {_DATABASE} CHARACTER SET utf8mb4;\n"
            f"CREATE USER IF NOT EXISTS '{_USER}'@'%' IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL ON *.* TO '{_USER}'@'%';\n"
            "ALTER USER 'root'@'localhost' ACCOUNT LOCK;\n"
        )
        shutil.rmtree(self._data, ignore_errors=True)  # what an interrupted start left
        self._data.mkdir(mode=0o700)
        self._init_data()

    def _command(self) -> Sequence[str]:
        return [
            str(_binary("mariadbd")),
            "--no-defaults",
            f"--datadir={self._data}",
            f"--bind-address={LOOPBACK}",
            f"--port={self.port}",
            "--socket=mariadb.sock",
            f"--init-file={self._setup_file}",
            "--skip-name-resolve",
            "--innodb-buffer-pool-size=32M",
            f"--lc-messages-dir={_messages()}",
            *_as_root(),
        ]

    def _answers(self) -> bool:
        """A server on this port with another folder is another server."""
        import pymysql

        try:
            with self.connect() as connection, connection.cursor() as cursor:
                cursor.execute("SELECT @@datadir")
                row = cursor.fetchone()
        except pymysql.MySQLError:
            return False
        return row is not None and Path(row[0]) == self._data

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    @property
    def _password_file(self) -> Path:
        return self.folder / "password"

    @property
    def _setup_file(self) -> Path:
        return self.folder / "setup.sql"

    def _init_data(self) -> None:
        """As `mariadb-install-db` does it, which needs a program of another package that need not be there."""
        scripts = [(_messages() / name).read_text() for name in _SYSTEM_TABLES]
        command = [
            str(_binary("mariadbd")),
            "--no-defaults",
            "--bootstrap",
            f"--datadir={self._data}",
            f"--lc-messages-dir={_messages()}",
            "--log-warnings=0",
            *_as_root(),
        ]
        told = "CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket = NULL;\n" + "\n".join(scripts)
        done = subprocess.run(command, cwd="/", input=told, capture_output=True, text=True)
        if done.returncode != 0:
            raise LocalStackError(
                f"mariadbd could not make {self._data}: {(done.stderr or done.stdout).strip()[-600:]}"
            )


def installed() -> bool:
    """Whether MariaDB's server is on this machine."""
    return _found("mariadbd") is not None


def _as_root() -> list[str]:
    return ["--user=root"] if os.geteuid() == 0 else []


def _messages() -> Path:
    """Where the server's own files are: its words, and the statements that make its tables."""
    return _binary("mariadbd").parents[1] / "share" / "mysql"


def _found(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=_SBIN)


def _binary(name: str) -> Path:
    found = _found(name)
    if found is None:
        raise LocalStackError(f"a local MariaDB needs `{name}`; install it with: apt-get install mariadb-server-core")
    return Path(found)
