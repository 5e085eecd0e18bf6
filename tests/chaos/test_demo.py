"""`landonce demo`: it kills what it says it kills, and its proof would show what is wrong."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from plain_process import UNDISTURBED, PlainProcess
from rich.console import Console

from landonce.cli import main
from landonce.cli.local import SinkName
from landonce.demo import scenario
from landonce.demo.proof import LandedRows, Proof, proof_of, prove_events, prove_records
from landonce.demo.scenario import DedupDemo, DriverProcess

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


@pytest.mark.parametrize("sink", ["sqlite", "wrapped"])
def test_the_demo_without_a_server_kills_the_driver_three_times(
    sink: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scenario, "DriverProcess", PlainDriverProcess)
    code, said = demo(monkeypatch, capsys, "--sink", sink, "--records", "80000")
    assert code in (0, None), said
    assert "exactly once: 80000 read, 80000 landed, 0 duplicated, 0 missing, 3 kills" in said.splitlines()
    assert len(re.findall(r"^  killed the driver with -9", said, re.MULTILINE)) == 3, said


@pytest.mark.parametrize(
    ("sink", "server"),
    [
        ("clickhouse", "ClickHouse"),
        pytest.param("iceberg", "", marks=pytest.mark.long),
        pytest.param("postgres", "PostgreSQL", marks=pytest.mark.long),
        pytest.param("sqlite", "", marks=pytest.mark.long),
        pytest.param("wrapped", "", marks=pytest.mark.long),
    ],
)
def test_the_demo_of_deduplication_kills_both_halves_and_counts_every_event(
    sink: str, server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scenario, "DriverProcess", PlainDriverProcess)
    code, said = demo(monkeypatch, capsys, "--dedup", "--sink", sink, "--records", "40000")
    assert code in (0, None), said
    lines = said.splitlines()
    proof = "each event once: 52,000 records of 40,000 events read, 40,000 landed, 0 twice, 0 missing, 3 kills"
    assert proof in lines, said
    halves = re.findall(r"^(accept|push): batch \d+ is pending, .*:$", said, re.MULTILINE)
    assert halves == ["accept", "push", "push"], said
    killed = len(re.findall(r"^  killed the driver with -9", said, re.MULTILINE))
    assert killed == (2 if server else 3), said
    assert not server or f"  killed the {server} server with -9, and start it again" in lines


@pytest.mark.long
@pytest.mark.parametrize("sink", [each.value for each in SinkName])
@pytest.mark.parametrize(
    ("options", "proof"),
    [
        ((), "exactly once: 1000000 read, 1000000 landed, 0 duplicated, 0 missing, 3 kills"),
        (
            ("--dedup",),
            "each event once: 1,300,000 records of 1,000,000 events read, 1,000,000 landed, 0 twice, 0 missing, 3 kills",
        ),
    ],
    ids=["records", "events"],
)
def test_the_demo_as_a_user_starts_it(sink: str, options: tuple[str, ...], proof: str) -> None:
    command = [sys.executable, "-m", "landonce", "demo", "--sink", sink, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
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
    assert (proof.total("duplicated"), proof.total("missing")) == (duplicated, missing)
    monkeypatch.setattr(scenario.Demo, "play", lambda _: proof)
    code, said = demo(monkeypatch, capsys)
    assert code == 1
    assert (
        f"NOT exactly once: 20 read, {proof.total('landed')} landed, {duplicated} duplicated, {missing} missing, 3 kills"
        in said
    )


def test_a_demo_that_did_not_kill_has_proved_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scenario.Demo, "play", lambda _: Proof(proof_of({0: (1, 1)}, 1, [1], 2).groups, 2))
    code, _ = demo(monkeypatch, capsys)
    assert code == 1


SENT = [[0, 2, 0, 4], [1, 3, 2, 5]]
"""Events of two partitions. 0 is sent twice to one of them, and 2 to both."""
EACH = [(0, 0, 0), (1, 1, 0), (2, 1, 2), (3, 1, 1), (4, 0, 3), (5, 1, 3)]
"""A row for each: its event, partition and offset."""
SPOILED: dict[str, tuple[list[tuple[int, int, int]], str]] = {
    "nothing": (EACH, "each event once: 8 records of 6 events read, 6 landed, 0 twice, 0 missing, 3 kills"),
    "a copy landed": (
        [*EACH, (0, 0, 2)],
        "NOT each event once: 8 records of 6 events read, 6 landed, 1 twice, 0 missing, 3 kills",
    ),
    "a row is there twice": (
        [*EACH, EACH[3]],
        "NOT each event once: 8 records of 6 events read, 6 landed, 1 twice, 0 missing, 3 kills",
    ),
    "one twice and one missing": (
        [*EACH[1:], EACH[1]],
        "NOT each event once: 8 records of 6 events read, 5 landed, 1 twice, 1 missing, 3 kills",
    ),
    "an event under the coordinates of another": (
        [(5, 0, 0), *EACH[1:]],
        "NOT each event once: 8 records of 6 events read, 5 landed, 0 twice, 1 missing, 1 rows of no record, 3 kills",
    ),
    "coordinates of no record": (
        [*EACH, (5, 1, 4)],
        "NOT each event once: 8 records of 6 events read, 6 landed, 0 twice, 0 missing, 1 rows of no record, 3 kills",
    ),
    "no rows": ([], "NOT each event once: 8 records of 6 events read, 0 landed, 0 twice, 6 missing, 3 kills"),
}


@pytest.mark.parametrize("what", SPOILED)
def test_the_proof_of_events_shows_what_is_wrong(
    what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, sentence = SPOILED[what]
    proof = prove_events(LandedRows.of(rows), SENT, 3)
    monkeypatch.setattr(scenario.DedupDemo, "play", lambda _: proof)
    code, said = demo(monkeypatch, capsys, "--dedup")
    assert " ".join(said.split()) == sentence
    assert code == (0 if proof.exact else 1)


def all_landed(sent: Sequence[Sequence[int]]) -> LandedRows:
    """A row for every record."""
    return LandedRows.of(
        [(event, partition, offset) for partition, here in enumerate(sent) for offset, event in enumerate(here)]
    )


def test_three_of_ten_events_are_sent_again_in_every_way(tmp_path: Path) -> None:
    """The control: a pipeline that lands every record once lands every copy, and the proof of events counts them."""
    play = DedupDemo(Console(), tmp_path, 20_000, stage=None)  # type: ignore[arg-type]
    rounds = []
    for kills in range(4):
        play.kills = kills
        rounds.append(list(play.to_send()))
    sent = [record for records in rounds for record in records]
    assert len(sent) == play.to_read() == 26_000
    assert {event for event, _ in sent} == set(range(20_000))
    assert [len(records) for records in rounds] == [6_500] * 4
    assert play.copies.keys() == {"at once", "later", "in another partition", "after a restart"}
    assert min(play.copies.values()) > 1_000
    assert sum(event < 5_000 for records in rounds[1:] for event, _ in records) > 300, "sent before the first kill"
    elsewhere = sum(partition != event % 8 for event, partition in sent)
    assert elsewhere == play.copies["in another partition"]
    proof = prove_events(all_landed(play.sent), play.sent, 3)
    assert (proof.total("duplicated"), proof.total("missing"), proof.foreign) == (6_000, 0, 0)


def test_the_proof_of_records_reads_their_coordinates() -> None:
    rows = [(number, number % 2, number // 2) for number in range(20)]
    assert prove_records(LandedRows.of(rows), [10, 10], 3).exact
    assert prove_records(LandedRows.of([*rows, rows[3]]), [10, 10], 3).total("duplicated") == 1
    moved = prove_records(LandedRows.of([(0, 0, 1), *rows[1:]]), [10, 10], 3)
    assert (moved.total("duplicated"), moved.total("missing")) == (1, 1)
