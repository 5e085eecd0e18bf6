"""What all local servers have in common: a folder, loopback ports, one process, a log, a state file.

The folder is the server: start it again on the same folder and it has the same data, ports and identity. A server
never listens beyond loopback, and never puts a secret on a command line.
"""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, TypeVar

from landonce.errors import LocalStackError
from landonce.jars import need_java
from landonce.local import process
from landonce.local.process import ProcessRef

LOOPBACK = "127.0.0.1"
FIRST, END = 15_000, 32_000
"""No port of the kernel's ephemeral range: an outgoing connection could take such a port between the moment it is picked
and the moment the server binds it, or while the server is down between two starts."""
NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def is_free(port: int) -> bool:
    """Whether a server could bind the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def is_open(port: int, timeout: float = 0.5) -> bool:
    """Whether something accepts connections on the port."""
    try:
        socket.create_connection((LOOPBACK, port), timeout=timeout).close()
    except OSError:
        return False
    return True


def free_ports(count: int) -> list[int]:
    """`count` different free ports, in random order so that parallel test runs rarely meet."""
    candidates = random.SystemRandom().sample(range(FIRST, END), END - FIRST)
    picked = list(islice(filter(is_free, candidates), count))
    if len(picked) < count:
        raise OSError(f"fewer than {count} free ports between {FIRST} and {END} on {LOOPBACK}")
    return picked


_LOG_LINES_IN_ERRORS = 15
_POLL_SECONDS = 0.05

Server = TypeVar("Server", bound="LocalServer")


@dataclass(frozen=True)
class ServerState:
    """What `state.json` in a server's folder keeps between starts."""

    ports: dict[str, int] = field(default_factory=dict)
    process: ProcessRef | None = None

    @classmethod
    def read(cls, path: Path) -> "ServerState":
        try:
            raw: dict[str, Any] = json.loads(path.read_text())
        except FileNotFoundError:
            return cls()
        return cls(raw["ports"], ProcessRef(**raw["process"]) if raw["process"] else None)

    def write(self, path: Path) -> None:
        """Replace the file in one step, so that a reader never sees half of it."""
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(self), indent=2) + "\n")
        os.replace(temporary, path)


class LocalServer(ABC):
    """One server process that lives in one folder. As a context manager it starts, becomes ready, and stops."""

    name: ClassVar[str]
    port_names: ClassVar[tuple[str, ...]]
    stop_timeout: ClassVar[float] = 15.0

    def __init__(self, folder: Path, *, ports: Mapping[str, int | None], die_with_parent: bool = True) -> None:
        self.folder = Path(folder).absolute()
        self.die_with_parent = die_with_parent
        self._wanted_ports = {name: port for name, port in ports.items() if port is not None}
        self._state = ServerState.read(self._state_file)
        self._child: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    # What a subclass defines.

    @abstractmethod
    def _prepare(self) -> None:
        """Write the configuration; the folder exists and the ports are known."""

    @abstractmethod
    def _command(self) -> Sequence[str]:
        """The command line. Anyone on the machine can read it: no secrets."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether *this* server, not another one on its port, serves requests now."""

    def _environment(self) -> Mapping[str, str]:
        return os.environ

    # The life of the process.

    @property
    def running(self) -> bool:
        self._reap()
        return self._state.process is not None and self._state.process.alive()

    @property
    def started_before(self) -> bool:
        """Whether a server was ever started in this folder."""
        return bool(self._state.ports)

    @property
    def pid(self) -> int:
        if self._state.process is None:
            raise LocalStackError(f"{self.name} in {self.folder} was never started")
        return self._state.process.pid

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    def start(self) -> None:
        """Start the process and return at once; `wait_ready` says when it serves."""
        if self.running:
            raise LocalStackError(f"{self.name} in {self.folder} runs already, as process {self.pid}")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._choose_ports()
        self._prepare()
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self._child = process.start(
            self._command(),
            cwd=self.folder,
            log=self.log,
            env=self._environment(),
            die_with_parent=self.die_with_parent,
        )
        self._remember(replace(self._state, process=ProcessRef.of(self._child.pid)))

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Return when the server answers; raise with the end of its log if it died or `timeout` is over."""
        deadline = time.monotonic() + timeout
        while not self._answers():
            if not self.running:
                raise LocalStackError(f"{self.name} ended while it started; {self._end_of_log()}")
            if time.monotonic() > deadline:
                raise LocalStackError(f"{self.name} did not answer within {timeout:g} s; {self._end_of_log()}")
            time.sleep(_POLL_SECONDS)

    def stop(self) -> None:
        """End the server with SIGTERM, or by force if that takes too long."""
        if self._state.process is not None:
            process.end(self._state.process, timeout=self.stop_timeout)
        self._forget_process()

    def kill(self) -> None:
        """End the server the way a crash does (SIGKILL). Its folder stays as it is."""
        if self._state.process is not None:
            self._state.process.signal_group(signal.SIGKILL)
            self._state.process.wait_gone(10)
        self._forget_process()

    def __enter__(self: Server) -> Server:
        self.start()
        try:
            self.wait_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # State and log.

    @property
    def _state_file(self) -> Path:
        return self.folder / "state.json"

    def _port(self, name: str) -> int:
        try:
            return self._state.ports[name]
        except KeyError:
            raise LocalStackError(f"{self.name} in {self.folder} was never started, so it has no port") from None

    def _choose_ports(self) -> None:
        """The requested ports, otherwise the ports of the last start, otherwise free ones."""
        known = {**self._state.ports, **self._wanted_ports}
        missing = [name for name in self.port_names if name not in known]
        known.update(zip(missing, free_ports(len(missing)), strict=True))
        taken = [port for port in known.values() if not is_free(port)]
        if taken:
            listed = ", ".join(map(str, taken))
            raise LocalStackError(f"{self.name} in {self.folder} needs port {listed}, which another process holds")
        self._remember(replace(self._state, ports=known))

    def _remember(self, state: ServerState) -> None:
        self._state = state
        state.write(self._state_file)

    def _forget_process(self) -> None:
        self._reap()
        if self._state.process is not None and self.folder.exists():
            self._remember(replace(self._state, process=None))

    def _reap(self) -> None:
        if self._child is not None:
            self._child.poll()

    def _end_of_log(self) -> str:
        try:
            text = self.log.read_bytes()[self._log_start :].decode(errors="replace")
        except FileNotFoundError:
            text = ""
        lines = text.splitlines()[-_LOG_LINES_IN_ERRORS:]
        return f"the end of {self.log}:\n" + "\n".join(f"  {line}" for line in lines or ["(empty)"])


HADOOP_AND_LOGS = (
    "hadoop-client-api",
    "hadoop-client-runtime",
    "slf4j-api",
    "log4j-api",
    "log4j-core",
    "log4j-slf4j2-impl",
)
"""Jars that PySpark includes, for servers whose own sets leave them out."""

_LOG4J = """\
rootLogger.level = WARN
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %m (%c)%n
"""


class LocalJavaServer(LocalServer):
    """A local server that runs on Java: quiet logs, and nothing from the caller's class path."""

    def _prepare_java(self, levels: Mapping[str, str]) -> None:
        """Logs warnings and errors to the console; `levels` overrides single loggers. Java's temporary files go into the
        folder and are removed here, because a killed server cannot remove them."""
        shutil.rmtree(self.folder / "tmp", ignore_errors=True)
        (self.folder / "tmp").mkdir()
        loggers = (
            f"logger.{number}.name = {name}\nlogger.{number}.level = {level}\n"
            for number, (name, level) in enumerate(levels.items())
        )
        (self.folder / "log4j2.properties").write_text(_LOG4J + "".join(loggers))

    def _java(self, class_path: str, *arguments: str) -> list[str]:
        """The command to run in the folder, once it is prepared."""
        options = ["-XX:-UsePerfData", "-Djava.awt.headless=true", "-Dlog4j2.configurationFile=log4j2.properties"]
        return [need_java(), *options, f"-Djava.io.tmpdir={self.folder / 'tmp'}", "-cp", class_path, *arguments]

    def _environment(self) -> Mapping[str, str]:
        return {name: value for name, value in os.environ.items() if name not in ("CLASSPATH", "JAVA_TOOL_OPTIONS")}


def properties(config: Mapping[str, str]) -> str:
    """A Java properties file; only backslashes need escaping in our values."""
    return "".join(f"{name}={value}\n".replace("\\", "\\\\") for name, value in config.items())
