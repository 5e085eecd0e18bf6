"""A real MariaDB in a folder, for the tests. It never listens beyond loopback, and requires a password."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from landonce.errors import LocalStackError
from landonce.local.postgres import DATABASE, USER, LocalDatabase
from landonce.local.server import LOOPBACK

_SYSTEM_TABLES = ("mysql_system_tables.sql", "mysql_performance_tables.sql", "mysql_system_tables_data.sql")
_SBIN = "/usr/sbin:/usr/local/sbin"


class LocalMariaDB(LocalDatabase):
    """One server. It runs as the user who starts it."""

    name = "MariaDB"
    made = "mysql"

    @property
    def url(self) -> str:
        """For SQLAlchemy, with user and password: for clients, not for logs."""
        return self.url_of(DATABASE)

    def url_of(self, database: str) -> str:
        return f"mariadb+pymysql://{USER}:{self.password}@{LOOPBACK}:{self.port}/{database}"

    def connect(self, database: str = DATABASE) -> Any:
        """A PyMySQL connection."""
        import pymysql

        return pymysql.connect(
            host=LOOPBACK,
            port=self.port,
            user=USER,
            password=self.password,
            database=database,
            connect_timeout=5,
            autocommit=True,
        )

    # For LocalServer.

    def _init_data(self) -> None:
        """Does what `mariadb-install-db` does, which needs a program from a package that may be missing."""
        self._setup_file.touch(mode=0o600)
        self._setup_file.write_text(
            f"CREATE DATABASE IF NOT EXISTS {DATABASE} CHARACTER SET utf8mb4;\n"
            f"CREATE USER IF NOT EXISTS '{USER}'@'%' IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL ON *.* TO '{USER}'@'%' WITH GRANT OPTION;\n"
            "ALTER USER 'root'@'localhost' ACCOUNT LOCK;\n"
        )
        scripts = [(_messages() / name).read_text() for name in _SYSTEM_TABLES]
        command = [
            str(_mariadb_binary("mariadbd")),
            "--no-defaults",
            "--bootstrap",
            f"--datadir={self._data}",
            f"--tmpdir={self.folder}",
            f"--lc-messages-dir={_messages()}",
            "--log-warnings=0",
            *_as_root(),
        ]
        statements = "CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket = NULL;\n" + "\n".join(scripts)
        self._make_with(command, input=statements)

    def _command(self) -> Sequence[str]:
        return [
            str(_mariadb_binary("mariadbd")),
            "--no-defaults",
            f"--datadir={self._data}",
            f"--tmpdir={self.folder}",  # in a folder that servers share, one that starts removes the temporary tables of the others
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
    def _setup_file(self) -> Path:
        return self.folder / "setup.sql"


def installed() -> bool:
    """Whether MariaDB's server is on this machine."""
    return _found("mariadbd") is not None


def _as_root() -> list[str]:
    return ["--user=root"] if os.geteuid() == 0 else []


def _messages() -> Path:
    """The folder of the server's own files: its messages, and the statements that create its tables."""
    return _mariadb_binary("mariadbd").parents[1] / "share" / "mysql"


def _found(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=_SBIN)


def _mariadb_binary(name: str) -> Path:
    found = _found(name)
    if found is None:
        raise LocalStackError(f"a local MariaDB needs `{name}`; install it with: apt-get install mariadb-server-core")
    return Path(found)
