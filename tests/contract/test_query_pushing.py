"""A query finds a pending block of a wrapped sink that does not come again as it was: what its row in the ledger says of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from test_push_ledgers import SPOT, prepared

import landonce
from landonce.engine.perform import PushPerformer
from landonce.engine.publish import NoLetters
from landonce.errors import Fenced, OutcomeUnknown
from landonce.ledger.block_ledgers import PushLedger, PushPlace
from landonce.ledger.claims import AttemptDecision
from landonce.protocol import ledger as states
from landonce.protocol.batch import Machine
from landonce.protocol.block_rows import Claim
from landonce.protocol.claimed import Claimed, key_of
from landonce.protocol.ledger import LedgerState, Note, Totals
from landonce.protocol.match_ranges import Incoming
from landonce.protocol.packing import Limits
from landonce.protocol.receipt import Receipt
from landonce.protocol.steps import Asked, Change, Step, Surveyed
from landonce.query.rows import QueryWorkers
from landonce.read.schema.ddl import parse_schema
from landonce.sinks.wrapped.worker import WrappedRecipe

RECEIPT = Receipt(read=5, landed=5).to_json()

GIVEN = parse_schema("id BIGINT")


class World:
    """A driver that died, its worker with one claim, and the driver after it."""

    def __init__(self, place: PushPlace, ledger: PushLedger, *, idempotent: bool) -> None:
        self.ledger = ledger
        self.old = prepared(ledger)
        sink = landonce.wrap(print, idempotent=idempotent, settles_within=600, name="s")
        self.performer = PushPerformer(
            Claimed("s", "f", once=True, block_rows=5, harmless=idempotent, wait=sink.wait),
            WrappedRecipe(pipeline="p", source=GIVEN, target=GIVEN, sink=sink, ledger=place, shuffled=True),
            QueryWorkers(),
            NoLetters(),
            ledger,
        )

    def claimed(self) -> None:
        assert self.ledger.claim(SPOT, Claim.of(self.old), "lost", harmless=False)

    def taken(self) -> LedgerState:
        return self.ledger.change(self.old, states.taken(self.old, "newer"))

    def an_hour_passes(self) -> None:
        with self.ledger.database.writing() as connection:
            connection.exec_driver_sql("UPDATE landonce_push SET claimed_at = claimed_at - 3600000")

    def found(self, state: LedgerState) -> tuple[bool, Totals]:
        """Whether the driver says that the block landed, which Spark does not bring again."""
        assert state.pending is not None
        nothing = Incoming((), state.cluster_id, state.topic_ids)
        machine = Machine(self.performer.settings, step=Step.SURVEY, ledger=state)
        machine, effect = machine.advance(Surveyed(nothing, 0, Limits(5, 5), 0))
        while not isinstance(effect, Change):
            assert isinstance(effect, Asked)
            machine, effect = machine.advance(self.performer.perform(effect, state))
        return effect.new.committed() != state.committed(), effect.new.totals.minus(state.totals)


@pytest.fixture(params=[True, False], ids=["idempotent", "not idempotent"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    place = PushPlace(tmp_path / "ledger", "p")
    with closing(place.open()) as ledger:
        yield World(place, ledger, idempotent=request.param)


def test_what_nobody_claimed_never_was_and_can_be_pushed_no_more(world: World) -> None:
    state = world.taken()
    assert world.found(state) == (False, Totals())
    assert world.ledger.claim(SPOT, Claim.of(world.old), "zombie", harmless=True) is None


def test_what_was_settled_landed(world: World) -> None:
    world.claimed()
    assert world.ledger.settle(SPOT, "lost", RECEIPT)
    assert world.found(world.taken()) == (True, Totals(landed=5))


def test_what_a_person_says_landed_has_landed(world: World) -> None:
    """Nobody knows how many rows it were, but never that it is pushed again."""
    world.claimed()
    state = world.ledger.decide(
        world.old, states.taken(world.old, "person"), Note("now", "settle", "lost"), AttemptDecision(SPOT, "lost", True)
    )
    assert world.found(state) == (True, Totals())


def test_a_claim_that_stays_open_is_not_guessed_about(world: World) -> None:
    world.claimed()
    state = world.taken()
    world.an_hour_passes()
    with pytest.raises(OutcomeUnknown) as caught:
        world.found(state)
    assert state.pending is not None
    assert key_of(state, state.pending.blocks[0]) in caught.value.command


@pytest.mark.parametrize("said", ["settle", "release"])
def test_a_zombie_that_speaks_up_is_waited_for(world: World, said: str) -> None:
    """The worker of a driver that is gone may push for a while yet, and says truly what came of it."""
    world.claimed()
    state = world.taken()
    results: list[Any] = []
    asked = threading.Thread(target=lambda: results.append(world.found(state)), daemon=True)
    asked.start()
    asked.join(1.0)
    assert results == []
    if said == "settle":
        assert world.ledger.settle(SPOT, "lost", RECEIPT)
    else:
        assert world.ledger.release(SPOT, "lost")
    asked.join(60)
    assert [landed for landed, _ in results] == [said == "settle"]


def test_a_batch_that_another_driver_recorded_is_not_looked_for(world: World) -> None:
    stale = world.old
    newer = world.taken()
    world.ledger.change(newer, states.resolved(newer, {}, None))
    with pytest.raises(Fenced):
        world.found(stale)


def test_a_block_is_not_pushed_again_by_another_pyarrow(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = world.performer.recipe
    now = recipe.fingerprint()
    assert recipe.fingerprint() == now
    monkeypatch.setattr(pa, "__version__", "999")
    assert recipe.fingerprint() != now
