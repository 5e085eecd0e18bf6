"""Two tasks of one block at once, as with speculation: Spark ends the other with the first that comes back. So the one that did not
land the block waits for the one that may."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from test_push_ledgers import SPOT, prepared, row_of

import landonce
from landonce.engine.task import write_rows
from landonce.errors import TargetRefused
from landonce.ledger.block_ledgers import PushLedger, PushPlace
from landonce.protocol.block_rows import BlockState, Claim
from landonce.protocol.receipt import BlockResult, Fate, Receipt
from landonce.read.schema.ddl import parse_schema
from landonce.sinks.claimed import PushTask
from landonce.sinks.wrapped.worker import WrappedRecipe

ROWS = pa.table({"_topic": ["t"] * 3, "_partition": [0] * 3, "_offset": [0, 1, 4], "id": [1, 2, 3]})
GIVEN = parse_schema("id BIGINT")
SIBLINGS = Receipt(read=5, landed=5)
A_WHILE = 1.0


@dataclass
class Scene:
    """A block that a sibling of the task has claimed and pushes, and what the task itself pushes."""

    place: PushPlace
    ledger: PushLedger
    claim: Claim
    task: PushTask
    pushed: list[str] = field(default_factory=list)
    results: list[BlockResult] = field(default_factory=list)
    running: threading.Thread | None = None

    def sibling_claims(self, *, harmless: bool = False) -> None:
        assert self.ledger.claim(SPOT, self.claim, "sibling", harmless=harmless, wait=60_000)

    def start(
        self, *, idempotent: bool = False, meanwhile: Callable[[], object] = bool, opening: Exception | None = None
    ) -> None:
        """`meanwhile`: what happens while the task pushes. `opening`: what keeps the task from that."""
        scene = self

        class Target:
            def open(self) -> None:
                if opening is not None:
                    raise opening

            def push(self, block: landonce.PushedBlock) -> None:
                scene.pushed.append(block.key)
                meanwhile()

        sink = landonce.wrap(Target, idempotent=idempotent, settles_within=60)
        worker = WrappedRecipe(
            pipeline="p", source=GIVEN, target=GIVEN, sink=sink, ledger=self.place, shuffled=True
        ).worker(self.task)
        self.running = threading.Thread(
            target=lambda: self.results.append(write_rows(worker, self.task, ROWS)), daemon=True
        )
        self.running.start()

    def waits(self) -> None:
        assert self.running is not None
        self.running.join(A_WHILE)
        assert self.results == [], "Spark would end the sibling now"

    def result(self) -> BlockResult:
        assert self.running is not None
        self.running.join(60)
        [result] = self.results
        return result

    def an_hour_passes(self) -> None:
        with closing(sqlite3.connect(self.place.where)) as connection, connection:
            connection.execute("UPDATE landonce_push SET claimed_at = claimed_at - 3600000")


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    place = PushPlace(tmp_path / "ledger", "p")
    with closing(place.open()) as ledger:
        state = prepared(ledger)
        assert state.pending is not None
        claim, block = Claim.of(state), state.pending.blocks[0]
        yield Scene(place, ledger, claim, PushTask(index=0, batch=1, plan="", block=block, key="key", claim=claim))


def test_what_the_sibling_settles_counts(scene: Scene) -> None:
    scene.sibling_claims()
    scene.start()
    scene.waits()
    assert scene.ledger.settle(SPOT, "sibling", SIBLINGS.to_json())
    assert (scene.result().fate, scene.result().receipt) == (Fate.LANDED, SIBLINGS)
    assert scene.pushed == []


def test_what_the_sibling_gives_back_is_left_to_the_driver(scene: Scene) -> None:
    """The sibling comes back too, and would end a push that began now."""
    scene.sibling_claims()
    scene.start()
    scene.waits()
    assert scene.ledger.release(SPOT, "sibling")
    assert scene.result().fate is Fate.DOUBTFUL
    assert scene.pushed == []


def test_a_sibling_that_is_never_heard_of_again_is_waited_out(scene: Scene) -> None:
    """Nothing is guessed: what became of its push the driver finds out, or asks."""
    scene.sibling_claims()
    scene.start()
    scene.waits()
    scene.an_hour_passes()
    assert (scene.result().fate, row_of(scene.ledger).mark) == (Fate.DOUBTFUL, BlockState.CLAIMED)
    assert scene.pushed == []


@pytest.mark.parametrize("error", [ConnectionError("away"), TargetRefused("never")])
def test_one_that_could_not_begin_waits_too(scene: Scene, error: Exception) -> None:
    """Its own machine may be the reason."""
    scene.sibling_claims()
    scene.start(opening=error)
    scene.waits()
    assert scene.ledger.settle(SPOT, "sibling", SIBLINGS.to_json())
    assert scene.result().fate is Fate.LANDED


def test_of_two_harmless_pushes_the_later_one_settles_for_both(scene: Scene) -> None:
    """Otherwise each task that comes back has lost the claim to the next, and no batch ever ends."""
    scene.start(idempotent=True, meanwhile=lambda: scene.sibling_claims(harmless=True))
    scene.waits()
    assert scene.ledger.settle(SPOT, "sibling", SIBLINGS.to_json())
    assert (scene.result().fate, scene.result().receipt) == (Fate.LANDED, SIBLINGS)


@pytest.mark.parametrize("idempotent", [True, False])
def test_nobody_waits_for_an_attempt_of_his_own(scene: Scene, idempotent: bool) -> None:
    def fail() -> None:
        raise OSError("no answer")

    scene.start(idempotent=idempotent, meanwhile=fail)
    assert scene.result().fate is Fate.DOUBTFUL
    assert "no answer" in scene.result().why
