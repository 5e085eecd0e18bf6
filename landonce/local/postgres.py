"""A real PostgreSQL in a folder, for the demo, the tests and for trying out a shared ledger.

It never listens beyond loopback, and requires the password, which only the owner of the folder can read. It is not for
production.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import subprocess
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, ClassVar

import psycopg

from landonce.errors import LocalStackError
from landonce.local.server import LOOPBACK, LocalServer, ProcessRef

USER = DATABASE = "landonce"


class LocalDatabase(LocalServer):
    """A port, a data folder that is created once, and a password. The same folder means the same three."""

    port_names = ("sql",)
    made: ClassVar[str]
    """A file that the data folder holds once it is complete."""

    def __init__(self, folder: Path, *, port: int | None = None, die_with_parent: bool = True) -> None:
        super().__init__(folder, ports={"sql": port}, die_with_parent=die_with_parent)

    @property
    def port(self) -> int:
        return self._port("sql")

    @property
    def password(self) -> str:
        return self._password_file.read_text().strip()

    @abstractmethod
    def _init_data(self) -> None:
        """Creates the data, in an existing empty folder."""

    def _prepare(self) -> None:
        if (self._data / self.made).exists():
            return
        self._password_file.touch(mode=0o600)
        self._password_file.write_text(secrets.token_hex(16))
        shutil.rmtree(self._data, ignore_errors=True)  # left by an interrupted start
        self._data.mkdir(mode=0o700)
        self._init_data()

    def _make_with(self, command: Sequence[str], **how: Any) -> None:
        done = subprocess.run(command, cwd="/", capture_output=True, text=True, **how)
        if done.returncode != 0:
            output = (done.stderr or done.stdout).strip()[-600:]
            raise LocalStackError(f"{Path(command[0]).name} could not create {self._data}: {output}")

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    @property
    def _password_file(self) -> Path:
        return self.folder / "password"


_DEBIAN = Path("/usr/lib/postgresql")
_UNPRIVILEGED = ("postgres", "nobody")


class LocalPostgres(LocalDatabase):
    """One server, without a socket file.

    PostgreSQL refuses to run as root: then it runs as the user `postgres`, or else `nobody`, and its data belongs to
    that user.
    """

    name = "PostgreSQL"
    made = "PG_VERSION"

    def __init__(
        self, folder: Path, *, port: int | None = None, fsync: bool = True, die_with_parent: bool = True
    ) -> None:
        """`fsync=False` is faster, and loses data if the machine (not only the server) goes down."""
        super().__init__(folder, port=port, die_with_parent=die_with_parent)
        self._fsync = fsync
        self._account = _account()

    @property
    def url(self) -> str:
        """For SQLAlchemy, with user and password: for clients, not for logs."""
        return f"postgresql+psycopg://{USER}:{self.password}@{LOOPBACK}:{self.port}/{DATABASE}"

    def wait_ready(self, timeout: float = 60.0) -> None:
        super().wait_ready(timeout)
        with self._connect("postgres") as connection:
            found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,)).fetchone()
            if found is None:
                connection.execute(f"CREATE DATABASE {DATABASE}")

    def stop(self) -> None:
        """End the server and its sessions in an orderly way: PostgreSQL's SIGTERM would wait for open connections."""
        if self._state.process is not None and self.running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGINT)
            self._state.process.wait_gone(self.stop_timeout)
        super().stop()

    def kill(self) -> None:
        """Each session has its own process group, and a new server does not start while one of them is alive."""
        sessions = [ProcessRef.of(each) for each in self._sessions()]
        super().kill()
        for session in sessions:
            session.signal_group(signal.SIGKILL)
            session.wait_gone(10)

    def freeze(self) -> None:
        """Stop answering without closing anything, like a machine that hangs. `thaw` ends it."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal_all(signal.SIGCONT)

    def _command(self) -> Sequence[str]:
        """Does not use `exec_with_parent`: the death signal must be set after the change of user, which clears it."""
        settings = {
            "listen_addresses": LOOPBACK,
            "port": str(self.port),
            "unix_socket_directories": "",
            "fsync": "on" if self._fsync else "off",
            "max_connections": "50",
            "shared_buffers": "32MB",
            "dynamic_shared_memory_type": "mmap",
            "lc_messages": "C",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        server = [str(_postgres_binary("postgres")), "-D", str(self._data), *options]
        if self._account is None:
            return server
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            raise LocalStackError(
                "a local PostgreSQL, started by root, needs `setpriv`; install it with: apt-get install util-linux"
            )
        died = ["--pdeathsig=KILL"] if self.die_with_parent else []
        account = self._account
        return [setpriv, f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups", *died, *server]

    def _environment(self) -> Mapping[str, str]:
        return {name: value for name, value in os.environ.items() if not name.startswith("PG")}

    def _answers(self) -> bool:
        """A server on this port with another folder is another server."""
        try:
            with self._connect("postgres") as connection:
                row = connection.execute("SHOW data_directory").fetchone()
        except psycopg.OperationalError:
            return False
        return row is not None and Path(row[0]) == self._data

    def _connect(self, database: str) -> psycopg.Connection[tuple[str, ...]]:
        url = f"postgresql://{USER}:{self.password}@{LOOPBACK}:{self.port}/{database}"
        return psycopg.connect(url, connect_timeout=5, autocommit=True)

    def _init_data(self) -> None:
        self._check_enterable()
        account = self._account
        with NamedTemporaryFile("w") as file:  # only its owner may read it, so it must belong to the server's user
            file.write(self.password)
            file.flush()
            if account is not None:
                for each in (file.name, self._data):
                    os.chown(each, account.pw_uid, account.pw_gid)
            command = [str(_postgres_binary("initdb")), "-D", str(self._data), "-U", USER, "--auth=scram-sha-256"]
            command += [f"--pwfile={file.name}", "--encoding=UTF8", "--locale=C"]
            command += [] if self._fsync else ["--no-sync"]
            self._make_with(
                command,
                env=dict(self._environment()),
                user=account.pw_uid if account else None,
                group=account.pw_gid if account else None,
                extra_groups=[] if account else None,
            )

    def _check_enterable(self) -> None:
        """The server's user must be able to enter every folder of the path."""
        if self._account is None:
            return
        for folder in (self.folder, *self.folder.parents):
            status = folder.stat()
            mine = status.st_uid == self._account.pw_uid
            if not status.st_mode & (0o100 if mine else 0o001):
                raise LocalStackError(
                    f"PostgreSQL does not run as root, and the user {self._account.pw_name} may not enter {folder}: "
                    f"choose another folder, or: chmod o+x {folder}"
                )

    def _sessions(self) -> list[int]:
        if not self.running:
            return []
        listed = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return [int(each) for each in listed.read_text().split()]

    def _signal_all(self, number: signal.Signals) -> None:
        for pid in (self.pid, *self._sessions()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def _account() -> pwd.struct_passwd | None:
    """The user to switch to; None if this process may run the server itself."""
    if os.geteuid() != 0:
        return None
    for name in _UNPRIVILEGED:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise LocalStackError(f"PostgreSQL does not run as root, and there is no user {' or '.join(_UNPRIVILEGED)} here")


def _postgres_binary(name: str) -> Path:
    """From PATH, otherwise the newest of Debian's packages."""
    found = shutil.which(name)
    if found is not None:
        return Path(found)
    installed = [each / "bin" / name for each in _DEBIAN.glob("*") if (each / "bin" / name).exists()]
    if not installed:
        raise LocalStackError(f"a local PostgreSQL needs `{name}`; install it with: apt-get install postgresql")
    return max(installed, key=lambda each: [int(part) for part in each.parts[-3].split(".") if part.isdigit()])
