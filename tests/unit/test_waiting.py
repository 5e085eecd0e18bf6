"""A start waits for what is unreachable, and no longer than `stall`."""

from __future__ import annotations

import threading
import time

import pytest

from landonce.engine.waiting import Waiting
from landonce.errors import LedgerUnavailable, Stalled, TableUnfit, TargetUnavailable


def failing(*failures: Exception) -> tuple[list[Exception], object]:
    left = list(failures)

    def act() -> str:
        if left:
            raise left.pop(0)
        return "done"

    return left, act


def test_what_passes_is_waited_for_and_named() -> None:
    reports: list[str] = []
    left, act = failing(TargetUnavailable("no free connection"), LedgerUnavailable("starting up"))
    assert Waiting(60.0, reports.append).until(act) == "done"  # type: ignore[arg-type]
    assert left == []
    assert [each.partition(": ")[2] for each in reports] == ["no free connection", "starting up"]
    assert all(each.startswith("waiting, for at most 60 s") for each in reports)


def test_no_longer_than_the_budget() -> None:
    _, act = failing(*(TargetUnavailable("locked") for _ in range(1000)))
    began = time.monotonic()
    with pytest.raises(Stalled, match="locked") as caught:
        Waiting(0.7, lambda _: None).until(act)  # type: ignore[arg-type]
    assert 0.7 <= time.monotonic() - began < 5
    assert caught.value.exit_code == 5
    assert "landonce run {file}" in caught.value.command


def test_what_waiting_does_not_help_ends_it_at_once() -> None:
    left, act = failing(TargetUnavailable("locked"), TableUnfit("no column"), TableUnfit("never raised"))
    with pytest.raises(TableUnfit, match="no column"):
        Waiting(60.0, lambda _: None).until(act)  # type: ignore[arg-type]
    assert len(left) == 1


def test_somebody_who_stops_it_does_not_wait() -> None:
    stopping = threading.Event()
    _, act = failing(*(TargetUnavailable("locked") for _ in range(1000)))
    began = time.monotonic()
    with pytest.raises(Stalled, match="stopped while"):
        Waiting(60.0, lambda _: stopping.set(), stopping).until(act)  # type: ignore[arg-type]
    assert time.monotonic() - began < 5
