"""What a person sees of a run on a terminal."""

from __future__ import annotations

import io
import json
import logging
import re
import time

import pytest
from rich.console import Console

from landonce.cli import progress as show
from landonce.cli.progress import LogProgress, TerminalProgress
from landonce.dedup.rule import LATE
from landonce.dedup.run import DedupTotals
from landonce.engine.observe import AcceptReport, BatchReport
from landonce.protocol.blocks import Block, Plan
from landonce.protocol.ledger import Totals
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.reasons import counted
from landonce.protocol.settle import Mode
from landonce.protocol.steps import Commit, Idle, Write

BLOCKS = tuple(Block((Range(Partition("t", 0), at, at + 10),), "events", number=at) for at in range(0, 30, 10))
WRITE = Write(Plan(1, BLOCKS, "f", deadline=0), (0, 1, 2), Mode.FIRST)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [time.monotonic()]
    monkeypatch.setattr(show.time, "monotonic", lambda: now[0])
    return now


def shown(progress: TerminalProgress, width: int = 80) -> list[str]:
    """As a terminal of so many columns shows it now."""
    screen = Console(file=io.StringIO(), width=width)
    screen.print(progress._render())
    return screen.file.getvalue().splitlines()  # type: ignore[attr-defined]


def batch(read: int, lag: int) -> BatchReport:
    return BatchReport(1, "deliver", 3, Totals(landed=read), 1.0, lag)


def test_a_step_that_lasts_says_for_how_long(clock: list[float]) -> None:
    """A first batch may take minutes, and nothing of it is recorded before its end."""
    screen = io.StringIO()
    with TerminalProgress(Console(file=screen, width=160), "clicks") as progress:
        progress.step(Idle())
        progress.step(WRITE)
        progress.watch(lambda: 2)
        clock[0] += 75
    assert "clicks: writing batch 1, 2 of 3 blocks, 75 s" in screen.getvalue()
    assert "waiting for records" not in screen.getvalue()


def test_progress_inside_of_a_batch(clock: list[float]) -> None:
    """Blocks that are done count, though nothing is recorded yet: there is a bar, a rate and an end in sight."""
    done = [0]
    progress = TerminalProgress(Console(file=io.StringIO(), width=80), "clicks")
    progress.watch(lambda: done[0])
    progress.lag(100)
    progress.step(WRITE)
    first = shown(progress)
    clock[0] += 2
    done[0] = 2
    second = shown(progress)
    assert first[0] == "clicks: writing batch 1, 0 of 3 blocks"
    assert second[0] == "clicks: writing batch 1, 2 of 3 blocks, 2 s"
    assert second[1].split()[:2] == ["landed", "0"]
    assert second[3].split() == ["lag", "80", "records/s", "10"]
    assert second[4].split()[-5:] == ["20%", "about", "8", "s", "left"]
    progress.step(Commit(WRITE.plan, ()))
    assert shown(progress)[3].split()[1] == "70", "what is written is not taken back until it is recorded"
    progress.batch(batch(30, 70))
    assert shown(progress)[3].split()[1] == "70"


def test_the_rate_of_a_run_that_idles_is_not_its_last_one(clock: list[float]) -> None:
    progress = TerminalProgress(Console(file=io.StringIO(), width=80), "clicks")
    progress.lag(30)
    shown(progress)
    clock[0] += 1
    progress.batch(batch(30, 0))
    progress.step(Idle())
    assert shown(progress)[3].split() == ["lag", "0", "records/s", "30"]
    for _ in range(12):
        clock[0] += 1
        lines = shown(progress)
    assert lines[3].split() == ["lag", "0", "records/s", "0"]
    assert lines[4] == "up to date"


def test_a_topic_that_grows_faster_than_it_is_read_has_no_end_in_sight(clock: list[float]) -> None:
    progress = TerminalProgress(Console(file=io.StringIO(), width=80), "clicks")
    progress.lag(100)
    shown(progress)
    clock[0] += 2
    progress.batch(batch(30, 200))
    assert "left" not in shown(progress)[4]


@pytest.mark.parametrize("width", [80, 120])
def test_it_fits_into_80_columns_and_numbers_keep_their_places(width: int, clock: list[float]) -> None:
    progress = TerminalProgress(Console(file=io.StringIO(), width=width), "a-pipeline-with-" + "a-long-name-" * 6)
    progress.lag(0)
    few = shown(progress, width)
    progress.lag(98_765_432_109)
    progress.batch(BatchReport(1, "deliver", 3, Totals(9_999_999_999, 1_234_567, 99), 1.0, 98_765_432_109))
    clock[0] += 3
    many = shown(progress, width)
    assert len(few) == len(many) == 5, "nothing wraps"
    assert all(len(line) <= width for line in many)
    for before, after in zip(few[1:4], many[1:4], strict=True):
        labels = re.findall(r"[a-z]+(?: [a-z]+)?(?:/s)?", after)
        assert [before.index(each) for each in labels] == [after.index(each) for each in labels]
        assert len(before.rstrip()) == len(after.rstrip())


@pytest.mark.parametrize(
    ("seconds", "words"), [(5, "5 s"), (59.6, "1 min 00 s"), (125, "2 min 05 s"), (7_300, "2 h 01 min")]
)
def test_how_long_it_takes_is_said_in_words(seconds: float, words: str) -> None:
    assert show._duration(seconds) == words


def test_a_spark_that_does_not_answer_does_not_break_the_view(clock: list[float]) -> None:
    asked = []

    def dead() -> int:
        asked.append(1)
        raise ConnectionRefusedError

    progress = TerminalProgress(Console(file=io.StringIO(), width=80), "clicks")
    progress.watch(dead)
    progress.step(WRITE)
    assert shown(progress)[0] == shown(progress)[0] == "clicks: writing batch 1, 0 of 3 blocks"
    assert asked == [1]


def test_a_short_step_says_only_its_name() -> None:
    screen = io.StringIO()
    with TerminalProgress(Console(file=screen, width=160), "clicks") as progress:
        progress.step(Idle())
    assert "waiting for records" in screen.getvalue()
    assert ", 0 s" not in screen.getvalue()


def test_a_stop_that_was_asked_for_is_no_trouble(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("test of landonce")
    with caplog.at_level(logging.INFO, log.name):
        LogProgress("clicks", log).note("stopping: what is in hand is finished first.")
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert json.loads(record.message)["event"] == "stopping"


ACCEPTED = AcceptReport(BatchReport(4, "deliver", 3, Totals(60, 5, 35), 1.0, 20), copies=30, seen_again=2)


def test_with_dedup_the_bar_is_about_what_is_read_and_the_numbers_about_both_steps(clock: list[float]) -> None:
    progress = TerminalProgress(Console(file=io.StringIO(), width=80), "clicks")
    progress.lag(120)
    shown(progress)
    clock[0] += 2
    progress.accepted(ACCEPTED)
    progress.pushing(WRITE)
    progress.batch(BatchReport(1, "deliver", 1, Totals(40, 1, 0), 1.0, 19))
    lines = [line.split() for line in shown(progress)]
    assert lines[1] == ["new", "60", "copies", "30"]
    assert lines[2] == ["landed", "40", "dead", "letters", "6"]
    assert lines[3][:2] == ["filtered", "5"], "seen again, or too late"
    assert lines[4] == ["lag", "20", "records/s", "50"], "pushing does not change how far reading is"


def test_with_dedup_the_log_has_a_line_for_each_batch_of_either_step(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("test of landonce")
    progress = LogProgress("clicks", log)
    with caplog.at_level(logging.DEBUG, log.name):
        progress.accepted(ACCEPTED)
        progress.pushing(WRITE)
        progress.batch(batch(40, 19))
    accepted, step, landed = [json.loads(each.message) for each in caplog.records]
    counts = {"event": "accepted", "read": 100, "accepted": 60, "copies": 30, "seen_again": 2, "dead_lettered": 5}
    assert accepted | counts | {"filtered": 3, "lag": 20} == accepted
    assert step["step"] == "push.write"
    assert landed | {"event": "batch", "landed": 40, "waiting": 19} == landed
    assert "lag" not in landed


def test_the_totals_of_a_run_with_dedup_account_for_every_record() -> None:
    plain = DedupTotals.of(Totals(60, 1, 30), Totals(58, 2, 0), 30, 0, counted(["no JSON", "refused", "refused"]))
    assert plain.sentence() == "91 read = 60 new + 30 copies + 1 dead-lettered; 58 landed, 2 dead-lettered"
    assert (plain.read, plain.landed, plain.dead_lettered, plain.filtered) == (91, 58, 3, 30)
    late = DedupTotals.of(Totals(60, 5, 36), Totals(50, 0, 10), 30, 2, counted([LATE] * 4 + ["no JSON"]))
    assert late.sentence() == (
        "101 read = 60 new + 30 copies + 5 dead-lettered (4 late) + 2 seen again + 4 dropped (late); 50 landed, 10 filtered"
    )
