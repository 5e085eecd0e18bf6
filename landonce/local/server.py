"""What all local servers have in common: a folder, loopback ports, one process, a log, a state file.

The folder is the server: start it again on the same folder and it has the same data, ports and identity. A server
never listens beyond loopback, never puts a secret on a command line, and never signals a process that it did not start:
a process is identified by its id *and* its start time, so a recycled id is left alone.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from landonce.errors import LocalStackError
from landonce.jars import need_java

LOOPBACK = "127.0.0.1"
FIRST, END = 15_000, 32_000
"""No port of the kernel's ephemeral range: an outgoing connection could take such a port between the moment it is picked
and the moment the server binds it, or while the server is down between two starts."""
NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_EXEC_WITH_PARENT = Path(__file__).with_name("exec_with_parent.py")
_LOG_LINES_IN_ERRORS = 15

Server = TypeVar("Server", bound="LocalServer")


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


@dataclass(frozen=True)
class ProcessRef:
    """One process: `birth` is the boot it belongs to and its start time in clock ticks since that boot."""

    pid: int
    birth: str

    @classmethod
    def of(cls, pid: int) -> ProcessRef:
        """The process that has this id now; if there is none, the birth matches no process."""
        return cls(pid, _birth(pid) or "gone")

    def alive(self) -> bool:
        return _birth(self.pid) == self.birth

    def signal_group(self, number: signal.Signals) -> None:
        """Signal the process and its children; does nothing if it has ended."""
        if self.alive():
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def wait_gone(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while self.alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def end(self, *, timeout: float) -> None:
        """SIGTERM, then SIGKILL if the process is still there after `timeout` seconds."""
        self.signal_group(signal.SIGTERM)
        if not self.wait_gone(timeout):
            self.signal_group(signal.SIGKILL)
            self.wait_gone(10)


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat after the command's name. None if there is no such process, or only a zombie."""
    try:
        # The command name in parentheses may hold anything, so count the fields from its end.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # A killed process is a zombie at once, but holds its ports and locks until its last thread is gone.
    return None if fields[0] in "ZX" and int(fields[17]) <= 1 else fields


def _birth(pid: int) -> str | None:
    fields = _stat(pid)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return None if fields is None else f"{boot}:{fields[19]}"


def members(session: int) -> list[int]:
    """The ids of all processes of this session that are alive. A driver, its JVM and its workers are one session."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if (fields := _stat(pid)) and int(fields[3]) == session]


def signal_tree(session: int, number: signal.Signals) -> int:
    """Signals every process of the session; returns how many there were."""
    pids = members(session)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    return len(pids)


def kill_tree(session: int, *, timeout: float = 10.0) -> int:
    """SIGKILL for every process of the session. It stops them first, so that none can start another meanwhile."""
    count = signal_tree(session, signal.SIGSTOP)
    deadline = time.monotonic() + timeout
    while members(session) and time.monotonic() < deadline:
        signal_tree(session, signal.SIGKILL)
        time.sleep(0.02)
    return count


def dying_with_parent(command: Sequence[str]) -> list[str]:
    """The command, started so that it ends when this process ends, whatever ends it."""
    return [sys.executable, "-I", "-S", str(_EXEC_WITH_PARENT), str(os.getpid()), *command]


@dataclass(frozen=True)
class ServerState:
    """What `state.json` in a server's folder keeps between starts."""

    ports: dict[str, int] = field(default_factory=dict)
    process: ProcessRef | None = None

    @classmethod
    def read(cls, path: Path) -> ServerState:
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
        self._state = ServerState.read(self.folder / "state.json")
        self._child: subprocess.Popen[bytes] | None = None
        self._log_start = 0

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
        command = dying_with_parent(self._command()) if self.die_with_parent else list(self._command())
        with self.log.open("ab") as output:
            self._child = subprocess.Popen(
                command,
                cwd=self.folder,
                env=dict(self._environment()),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
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
            time.sleep(0.05)

    def stop(self) -> None:
        """End the server with SIGTERM, or by force if that takes too long."""
        if self._state.process is not None:
            self._state.process.end(timeout=self.stop_timeout)
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

    def __exit__(self, *_: object) -> None:
        self.stop()

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
        state.write(self.folder / "state.json")

    def _forget_process(self) -> None:
        self._reap()
        if self._state.process is not None and self.folder.exists():
            self._remember(replace(self._state, process=None))

    def _reap(self) -> None:
        if self._child is not None:
            self._child.poll()

    def _end_of_log(self) -> str:
        text = self.log.read_bytes()[self._log_start :].decode(errors="replace") if self.log.exists() else ""
        lines = text.splitlines()[-_LOG_LINES_IN_ERRORS:]
        return f"the end of {self.log}:\n" + "\n".join(f"  {line}" for line in lines or ["(empty)"])


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

    java_options: ClassVar[tuple[str, ...]] = ()
    """For the JVM of every server that this process starts."""

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
        return [
            need_java(),
            *options,
            *self.java_options,
            f"-Djava.io.tmpdir={self.folder / 'tmp'}",
            "-cp",
            class_path,
            *arguments,
        ]

    def _environment(self) -> Mapping[str, str]:
        return {name: value for name, value in os.environ.items() if name not in ("CLASSPATH", "JAVA_TOOL_OPTIONS")}


def properties(config: Mapping[str, str]) -> str:
    """A Java properties file; only backslashes need escaping in our values."""
    return "".join(f"{name}={value}\n".replace("\\", "\\\\") for name, value in config.items())
