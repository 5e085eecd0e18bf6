"""A push that hangs: nothing interrupts it, and a person hears of it while it lasts."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from test_push_ledgers import SPOT, prepared

from landonce.engine.perform import overdue, watched
from landonce.ledger.block_ledgers import PushLedger, PushPlace
from landonce.protocol.block_rows import Claim
from landonce.sinks.claimed import PushTask

NAMES = {0: "t-0-0-5-abc", 1: "t-1-0-5-abc"}


@pytest.fixture
def place(tmp_path: Path) -> PushPlace:
    return PushPlace(tmp_path / "ledger", "p")


@pytest.fixture
def ledger(place: PushPlace) -> Iterator[PushLedger]:
    with closing(place.open()) as opened:
        yield opened


def an_hour_passes(place: PushPlace) -> None:
    with closing(sqlite3.connect(place.where)) as connection, connection:
        connection.execute("UPDATE landonce_push SET claimed_at = claimed_at - 3600000")


def test_a_push_that_lasts_too_long_is_said_while_it_lasts(place: PushPlace, ledger: PushLedger) -> None:
    state = prepared(ledger)
    claim = Claim.of(state)
    assert state.pending is not None
    task = PushTask(index=0, batch=1, plan="", block=state.pending.blocks[0], key="t-0-0-5-abc", claim=claim)
    assert ledger.claim(SPOT, claim, "hangs", harmless=False, wait=60_000)
    an_hour_passes(place)
    said, heard = [], threading.Event()

    def tell(what: str) -> None:
        said.append(what)
        heard.set()

    with watched(place, [task], tell, every=0.05):
        assert heard.wait(60)
    assert "block t-0-0-5-abc (t[0] [0, 5)) was claimed 360" in said[0]
    assert "not interrupted" in said[0]


def test_what_is_in_time_or_settled_is_not_mentioned(place: PushPlace, ledger: PushLedger) -> None:
    claim = Claim.of(prepared(ledger))
    assert ledger.claim(SPOT, claim, "in time", harmless=False, wait=60_000)
    assert overdue(ledger.status(1), NAMES) == ()
    assert ledger.settle(SPOT, "in time", "{}")
    an_hour_passes(place)
    assert overdue(ledger.status(1), NAMES) == ()
