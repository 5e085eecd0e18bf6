"""A driver that waits for records hears that another one has taken the pipeline, though no record comes."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from landonce.config.model import Batch
from landonce.engine import driver as drivers
from landonce.engine.driver import Driver
from landonce.engine.observe import Silent
from landonce.engine.perform import InsertPerformer, PushPerformer, TransactPerformer
from landonce.engine.publish import Letters
from landonce.engine.workers import said
from landonce.errors import Fenced, LandonceError, LedgerSetBack, LedgerUnavailable, LedgerUnreadable, TargetAhead
from landonce.ledger.open import sqlite_ledger
from landonce.protocol import ledger as states
from landonce.protocol.deduplicating import Deduplicating
from landonce.protocol.packing import Pace
from landonce.protocol.ranges import Partition
from landonce.protocol.source import Extent, SourceView
from landonce.protocol.steps import Effect, Step
from landonce.protocol.target import TargetView
from landonce.sinks.worker import failed


class UntilIdle(Silent):
    def __init__(self) -> None:
        self.idle = threading.Event()

    def step(self, effect: Effect) -> None:
        if effect.step is Step.IDLE:
            self.idle.set()


def superseded(folder: Path, name: str = "ledger") -> None:
    """By a newer driver."""
    with closing(sqlite_ledger(folder / name, "p")) as other:
        held = other.load()
        assert held is not None
        other.change(held, states.taken(held, "newer"))


def restored(folder: Path) -> None:
    """From a backup, under the running driver."""
    shutil.copy(folder / "backup", folder / "ledger")


def restored_and_taken(folder: Path) -> None:
    """From a backup; then another driver took it, under the number that the running one has. At once: the running one looks often."""
    superseded(folder, "backup")
    (folder / "backup").replace(folder / "ledger")


@pytest.mark.parametrize(
    ("happens", "comparable", "error", "code"),
    [
        (superseded, True, Fenced, 4),
        (restored, True, LedgerSetBack, 5),
        (restored, False, TargetAhead, 3),
        (restored_and_taken, True, Fenced, 4),
    ],
)
def test_a_driver_that_waits_ends_when_it_is_not_the_owner(
    happens: Callable[[Path], None],
    comparable: bool,
    error: type[LandonceError],
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Exit code 4 says that another one goes on; 5, that this one is to be started again; 3, that a person must look, since a start
    would deliver again what a restored ledger forgot (a wrapped sink cannot be compared with it)."""
    monkeypatch.setattr(InsertPerformer, "comparable", comparable)
    first = sqlite_ledger(tmp_path / "ledger", "p")
    begun = first.create(states.LedgerState("p", lineage="l"))
    first.change(begun, states.taken(begun, "earlier"))
    first.close()
    shutil.copy(tmp_path / "ledger", tmp_path / "backup")
    monkeypatch.setattr(drivers, "_STILL_MINE", 0.3)
    view = SourceView("cluster", (("t", "id"),), ((Partition("t", 0), Extent(0, 0)),))
    target = SimpleNamespace(now=lambda: 0, kill=lambda: None, look=lambda _: TargetView(()))
    watch, ended, errors = UntilIdle(), threading.Event(), list[LandonceError]()
    waiting = Driver(
        pipeline="p",
        topics=("t",),
        broker=SimpleNamespace(survey=lambda _: view, record_bytes=lambda _: None),  # type: ignore[arg-type]
        ledger=sqlite_ledger(tmp_path / "ledger", "p"),
        performer=InsertPerformer(
            settings=Deduplicating("table", "fingerprint"),
            recipe=SimpleNamespace(),  # type: ignore[arg-type]
            target=target,  # type: ignore[arg-type]
            workers=SimpleNamespace(incoming=None),  # type: ignore[arg-type]
            letters=Letters(tmp_path / "dead", "p"),
        ),
        pace=Pace(Batch(), 2.0, 1),
        stall=60.0,
        observer=watch,
    )

    def run() -> None:
        with pytest.raises(LandonceError) as failure:
            waiting.run()
        errors.append(failure.value)
        ended.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        assert watch.idle.wait(20)
        happens(tmp_path)
        assert ended.wait(20), "it waits on, and nobody knows which of the two is the one that works"
    finally:
        waiting.stopping.set()
        thread.join(20)
    assert [type(each) for each in errors] == [error]
    assert errors[0].exit_code == code
    assert ("the newer driver continues" in str(errors[0])) is (error is Fenced)


@pytest.mark.parametrize(
    ("epoch", "owner", "version", "expected"),
    [
        (4, "another", 90, LedgerSetBack),
        (5, "me", 49, LedgerSetBack),
        (5, "another", 49, Fenced),
        (6, "another", 51, Fenced),
        (6, "another", 10, Fenced),
        (5, "me", 50, LedgerUnreadable),
    ],
)
def test_which_of_two_states_is_newer_says_who_goes_on(
    epoch: int, owner: str, version: int, expected: type[LandonceError]
) -> None:
    mine = states.LedgerState("p", lineage="l", epoch=5, owner="me", version=50)
    seen = states.LedgerState("p", lineage="l", epoch=epoch, owner=owner, version=version)
    assert type(states.fenced(mine, seen)) is expected
    assert type(states.fenced(mine, None)) is LedgerSetBack


def test_only_a_target_that_cannot_be_asked_needs_a_person_then() -> None:
    assert InsertPerformer.comparable
    assert not PushPerformer.comparable


def untouched(ledger: states.Ledger, before: bytes, path: Path) -> None:
    """Only the rows of its blocks are gone, of which a worker has just heard."""


def back_to_its_own_time(ledger: states.Ledger, before: bytes, path: Path) -> None:
    """From a backup that was made since this driver has the pipeline: epoch and owner are the same."""
    path.write_bytes(before)


def taken_by_another(ledger: states.Ledger, before: bytes, path: Path) -> None:
    superseded(path.parent)


@pytest.mark.parametrize(
    ("happens", "performer", "error", "code"),
    [
        (back_to_its_own_time, TransactPerformer, LedgerSetBack, 5),
        (back_to_its_own_time, PushPerformer, TargetAhead, 3),
        (untouched, TransactPerformer, LedgerUnreadable, 3),
        (untouched, PushPerformer, LedgerUnreadable, 3),
        (taken_by_another, TransactPerformer, Fenced, 4),
        (taken_by_another, PushPerformer, Fenced, 4),
    ],
)
def test_what_a_worker_takes_for_another_driver_is_looked_up_in_the_ledger(
    happens: Callable[[states.Ledger, bytes, Path], None],
    performer: type[TransactPerformer] | type[PushPerformer],
    error: type[LandonceError],
    code: int,
    tmp_path: Path,
) -> None:
    """A worker that does not find its block's row says "taken over"; with exit code 4 a supervisor would leave the pipeline down."""
    path = tmp_path / "ledger"
    ledger = sqlite_ledger(path, "p")

    class Writing:
        once, comparable, block_rows = True, performer.__dict__.get("comparable", True), performer.block_rows

        def begin(self) -> None:
            begun = ledger.create(states.LedgerState("p", lineage="l"))
            mine = ledger.change(begun, states.taken(begun, "me"))
            before = path.read_bytes()
            driver._state = ledger.change(mine, replace(mine, version=mine.version + 1))
            happens(ledger, before, path)
            raise Fenced("pipeline 'p' was taken over: a block is not claimed by this epoch any more.")

    nothing = SimpleNamespace()
    driver = Driver("p", ("t",), nothing, ledger, Writing(), Pace(Batch(), 2.0, 1), 60.0, Silent())  # type: ignore[arg-type]
    with pytest.raises(LandonceError) as failure:
        driver.run()
    assert type(failure.value) is error
    assert failure.value.exit_code == code
    assert ("the newer driver continues" in str(failure.value)) is (error is Fenced)


def test_trouble_of_a_block_tells_no_command_in_the_middle_of_a_sentence() -> None:
    """The driver goes on trying, and says what to do if it gives up."""
    error = LedgerUnavailable("the disk is full.", safe="Nothing was changed.", command="landonce run {file}")
    assert failed(SimpleNamespace(index=0), error).why == "the disk is full."  # type: ignore[arg-type]


def test_a_worker_that_died_is_reported_of_without_a_stack_of_java() -> None:
    text = (
        "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n: org.apache.spark.SparkException: "
        "Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times, most recent failure: Lost task 0.0 in stage 0.0 (TID 0): "
        "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed).\n\tat org.apache.spark.rdd.RDD.a(RDD.scala:1)\n"
        "\t... 3 more\n\nDriver stacktrace:\n\tat org.apache.spark.B.b(B.scala:2)\nCaused by: java.io.EOFException"
    )
    assert said(text) == (
        "Lost task 0.0 in stage 0.0 (TID 0): org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). "
        "Caused by: java.io.EOFException"
    )
    assert said("the JVM is gone") == "the JVM is gone"
