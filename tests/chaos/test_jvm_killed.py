"""Spark's JVM is killed alone, as the kernel's OOM killer does it: the driver says so, ends with 5, and the next start lands the rest.

Where a command has no step to stop at, the JVM is killed as soon as it is there, or as soon as it answers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from harness import DriverRun, Drivers, Home
from iceberg_scene import lake
from scene import scene
from sql_scene import base, sqlite_judge
from test_iceberg_changes import _PIPELINE as CHANGES
from test_iceberg_changes import People, found
from wrapped_scene import wrapped

from landonce.errors import SparkLost
from landonce.local import LocalClickHouse, LocalKafka
from landonce.local.server import members

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(900)]

Opens = Callable[[], AbstractContextManager[Any]]
NOT_YET_ITS_OWN = 0.5
"""Seconds after which a JVM that was just started is Java, and not yet Spark."""


def kill_jvm(session: int, *, after: float = 0.0, patience: float = 60.0) -> None:
    """SIGKILL for the JVM of this session and for nothing else, so many seconds after it is there."""
    deadline = time.monotonic() + patience
    while not (pids := [each for each in members(session) if _is_spark(each)]):
        assert time.monotonic() < deadline, "there is no JVM"
        time.sleep(0.01)
    time.sleep(after)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def _is_spark(pid: int) -> bool:
    """Java is also asked for its version, and a JVM of its own makes Spark's command line."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return command.split(b"\0")[0].endswith(b"java") and b"SparkSubmit" in command and b"launcher.Main" not in command


def says_so(run: DriverRun) -> None:
    """One error with a name, and nothing that a person would take for a defect."""
    assert run.finish(60) == SparkLost.exit_code, run.tail(60)
    log = run.log.read_text()
    assert "SparkLost: Spark's JVM ended" in log, log
    assert "Next step: start again" in log
    assert "Traceback" not in log, log
    assert "defect" not in log


def killed_at(drivers: Drivers, place: str) -> None:
    """The JVM dies while the driver, or one of its workers, stands at this place."""
    go = drivers.site.folder / f"go-{len(drivers.runs)}"
    run = drivers.start(place, go=go)
    run.wait_reached()
    kill_jvm(run.process.pid)
    go.touch()
    says_so(run)


@contextmanager
def in_sqlite(folder: Path, kafka: LocalKafka, topic: str) -> Iterator[Any]:
    path = folder / "target.db"
    with base(folder, kafka, topic, f"sqlite:///{path}", sqlite_judge(path)) as play:
        yield play


def test_a_driver_whose_jvm_dies_ends_and_the_next_one_lands_the_rest(
    tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str]
) -> None:
    with in_sqlite(tmp_path, kafka, new_topic(partitions=2)) as play:
        play.feed.more(40, bad_every=7)
        starting = play.drivers.start()
        kill_jvm(starting.process.pid, after=NOT_YET_ITS_OWN)
        says_so(starting)
        killed_at(play.drivers, "rows.after")
        play.drivers.drain()
        play.exact()


@pytest.mark.long
@pytest.mark.parametrize("after", [0.0, 1.0, 1.5, 2.0, 2.5, 3.0])
def test_a_jvm_that_dies_while_it_starts(
    tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str], after: float
) -> None:
    with in_sqlite(tmp_path, kafka, new_topic(partitions=2)) as play:
        play.feed.more(40)
        starting = play.drivers.start("acquire.before")
        kill_jvm(starting.process.pid, after=after)
        says_so(starting)
        play.drivers.drain()
        play.exact()


@pytest.mark.long
@pytest.mark.parametrize(
    ("sink", "places"),
    [
        ("clickhouse", ("write.before", "send.before", "send.after")),
        ("iceberg", ("write.before", "files.after", "attempt.before")),
        ("wrapped", ("write.before", "push.after")),
    ],
)
def test_other_sinks(
    tmp_path: Path,
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
    sink: str,
    places: tuple[str, ...],
) -> None:
    topic = new_topic(partitions=2)
    opens: dict[str, Opens] = {
        "clickhouse": lambda: scene(tmp_path, kafka, clickhouse, topic, new_table()),
        "iceberg": lambda: lake(tmp_path, kafka, topic),
        "wrapped": lambda: wrapped(tmp_path, kafka, topic, "file_per_block:sink"),
    }
    with opens[sink]() as play:
        for place in places:
            play.feed.more(40, bad_every=7)
            go = play.site.folder / f"go-{len(play.drivers.runs)}"
            run = play.drivers.start(place, go=go)
            run.wait_reached()
            kill_jvm(run.process.pid)
            go.touch()
            if place == "attempt.before":  # PyIceberg commits without Spark, so this batch is done
                assert run.finish() in (0, SparkLost.exit_code), run.tail()
            else:
                says_so(run)
        play.drivers.drain()
        play.exact()


@pytest.mark.long
def test_a_merge_by_spark(tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str]) -> None:
    topic = new_topic(partitions=2)
    home = Home(tmp_path)
    home.save(CHANGES.substitute(bootstrap=kafka.bootstrap_servers, topic=topic, version=2))
    people = People(kafka.bootstrap_servers, topic)
    with Drivers(home) as drivers:
        for place in ("write.before", "files.after", "commit.before"):
            people.change(100)
            killed_at(drivers, place)
        drivers.drain()
        assert found(tmp_path) == people.rows


@pytest.mark.long
@pytest.mark.parametrize("command", [("check", "--spark"), ("verify",)])
def test_other_commands(
    tmp_path: Path,
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
    command: tuple[str, ...],
) -> None:
    with scene(tmp_path, kafka, clickhouse, new_topic(partitions=2), new_table(), where="id >= 0") as play:
        play.feed.more(40)
        play.drivers.drain()
        name, *options = command
        process = subprocess.Popen(
            [sys.executable, "-m", "landonce", name, str(play.site.file), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )
        kill_jvm(process.pid, after=NOT_YET_ITS_OWN)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == SparkLost.exit_code, output
        assert "SparkLost: Spark's JVM ended" in output
        assert "Traceback" not in output
