"""`landonce demo`: it kills what it says it kills, and its proof would show what is wrong."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from dataclasses import dataclass

import pytest
from plain_process import UNDISTURBED, PlainProcess

from landonce.cli import main
from landonce.demo import scenario
from landonce.demo.scenario import DriverProcess
from landonce.demo.stage import Proof, proof_of

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(600)]


@dataclass
class PlainDriverProcess(DriverProcess):
    """A driver of the demo, without Spark."""

    def start(self) -> None:
        log = self.file.with_name("driver.log")
        log.touch()
        self.process = PlainProcess(("run", str(self.file), "--once"), UNDISTURBED, log)  # type: ignore[assignment]
        self._thread = threading.Thread()
        self._thread.start()


def demo(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int | str | None, str]:
    """The command, in this process."""
    monkeypatch.setattr("sys.argv", ["landonce", "demo", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, capsys.readouterr().out


def test_the_demo_kills_three_times_and_counts_every_record(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scenario, "DriverProcess", PlainDriverProcess)
    code, said = demo(monkeypatch, capsys, "--records", "200000")
    assert code in (0, None), said
    assert "exactly once: 200000 read, 200000 landed, 0 duplicated, 0 missing, 3 kills" in said.splitlines()
    pending = re.findall(r"^batch (\d+) is pending, block .* is in flight:$", said, re.MULTILINE)
    assert len(pending) == 3, said
    assert (
        len(re.findall(r"^  killed the driver with -9 \(\d+ processes\), and start it again$", said, re.MULTILINE)) == 2
    )
    assert "  killed the ClickHouse server with -9, and start it again" in said.splitlines()
    assert said.count("25,000") == 3 * 8, "eight partitions, each with as many records, rows and distinct ones"


@pytest.mark.long
@pytest.mark.parametrize("sink", ["clickhouse", "iceberg", "postgres", "sqlite"])
def test_the_demo_as_a_user_starts_it(sink: str) -> None:
    command = [sys.executable, "-m", "landonce", "demo", "--sink", sink]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    proof = "exactly once: 1000000 read, 1000000 landed, 0 duplicated, 0 missing, 3 kills"
    assert proof in done.stdout.splitlines()


WRONG = {
    "a record is missing": (proof_of({0: (10, 10), 1: (9, 9)}, 19, [10, 10], 3), 0, 1),
    "a partition is missing": (proof_of({0: (10, 10)}, 10, [10, 10], 3), 0, 10),
    "a record is there twice": (proof_of({0: (11, 10), 1: (10, 10)}, 21, [10, 10], 3), 1, 0),
    "one twice and one missing": (proof_of({0: (10, 9), 1: (10, 10)}, 20, [10, 10], 3), 1, 1),
    "a row of no partition": (proof_of({0: (10, 10), 1: (10, 10)}, 21, [10, 10], 3), 1, 0),
}


@pytest.mark.parametrize("what", WRONG)
def test_the_proof_shows_what_is_wrong(
    what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    proof, duplicated, missing = WRONG[what]
    assert not proof.exact
    assert (proof.duplicated, proof.missing) == (duplicated, missing)
    monkeypatch.setattr(scenario.Demo, "play", lambda _: proof)
    code, said = demo(monkeypatch, capsys)
    assert code == 1
    assert (
        f"NOT exactly once: 20 read, {proof.landed} landed, {duplicated} duplicated, {missing} missing, 3 kills" in said
    )


def test_a_demo_that_did_not_kill_has_proved_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scenario.Demo, "play", lambda _: Proof(proof_of({0: (1, 1)}, 1, [1], 2).partitions, 2))
    code, _ = demo(monkeypatch, capsys)
    assert code == 1
