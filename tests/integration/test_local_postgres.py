"""The local PostgreSQL: its folder is the server, and it never outlives who started it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from open_folder import open_folder

from landonce.errors import LocalStackError
from landonce.local import postgres as module
from landonce.local.postgres import LocalPostgres
from landonce.local.server import is_open

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

_START_AND_DIE = """
import os, signal, sys
from pathlib import Path
from landonce.local.postgres import LocalPostgres
server = LocalPostgres(Path(sys.argv[1]), fsync=False)
server.start()
server.wait_ready()
print(server.port, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with open_folder() as made:
        yield made


def ask(server: LocalPostgres, query: str) -> list[tuple[object, ...]]:
    with psycopg.connect(server.url.replace("+psycopg", ""), autocommit=True) as connection:
        cursor = connection.execute(query)
        return cursor.fetchall() if cursor.description else []


def test_the_folder_is_the_server(folder: Path) -> None:
    with LocalPostgres(folder / "pg", fsync=False) as server:
        ask(server, "CREATE TABLE kept AS SELECT 42 AS answer")
        first = server.url
        server.kill()
        server.start()
        server.wait_ready()
        assert ask(server, "SELECT answer FROM kept") == [(42,)]
    with LocalPostgres(folder / "pg", fsync=False) as again:
        assert again.url == first
        assert ask(again, "SELECT answer FROM kept") == [(42,)]


def test_nobody_comes_in_without_the_password(folder: Path) -> None:
    with LocalPostgres(folder / "pg", fsync=False) as server:
        assert (folder / "pg" / "password").stat().st_mode & 0o077 == 0
        assert server.password not in Path(f"/proc/{server.pid}/cmdline").read_text()
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(server.url.replace("+psycopg", "").replace(server.password, "guess"))


def test_it_dies_with_its_parent(folder: Path) -> None:
    started = subprocess.run(
        [sys.executable, "-c", _START_AND_DIE, str(folder / "pg")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(module.__file__).parents[2])},
    )
    assert started.returncode == -signal.SIGKILL, started.stderr
    port, deadline = int(started.stdout), time.monotonic() + 10
    while is_open(port):
        assert time.monotonic() < deadline, "the server outlived its parent"
        time.sleep(0.05)


def test_a_missing_server_names_the_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_DEBIAN", folder / "nothing")
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(LocalStackError, match="apt-get install postgresql"):
        LocalPostgres(folder / "pg").start()


def test_a_folder_that_the_servers_user_may_not_enter(folder: Path) -> None:
    if os.geteuid() != 0:
        return  # then the server's user is this one, who made the folder
    (folder / "closed").mkdir(mode=0o700)
    with pytest.raises(LocalStackError, match=r"chmod o\+x .*closed"):
        LocalPostgres(folder / "closed" / "pg").start()
