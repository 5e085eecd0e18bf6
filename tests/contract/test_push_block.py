"""One block and one sink, with a real ledger: what each way to end a push comes to, in the target and in the block's row."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from claim_places import an_hour_passes, place_of
from test_push_ledgers import SPOT, prepared, row_of

import landonce
from landonce.errors import Fenced, NotPushed, OutcomeUnknown, TargetRefused
from landonce.ledger.claims import ClaimLedger
from landonce.protocol import ledger as states
from landonce.protocol.block_rows import BlockState, Claim
from landonce.protocol.ledger import LedgerState
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.receipt import BlockResult, Fate, Receipt
from landonce.sinks.wrapped.worker import Sending, push_block

ROWS = pa.table({"_topic": ["t"] * 3, "_partition": [0] * 3, "_offset": [0, 1, 4], "id": [1, 2, 3]})
RECEIPT = Receipt(read=3, landed=3)


@dataclass
class Target:
    """Takes whatever it gets; `then` is what happens after it took it, and `instead` what happens before."""

    held: list[tuple[str, int, bytes]] = field(default_factory=list)
    then: Callable[[], object] = bool
    instead: Callable[[], object] = bool
    probed: int = 0

    def push(self, block: landonce.PushedBlock) -> None:
        self.instead()
        self.held.append((block.key, block.attempt, block.ipc()))
        self.then()

    def probe(self, block: landonce.PushedBlock) -> bool:
        self.probed += 1
        return any(key == block.key for key, _, _ in self.held)


def fails(error: BaseException) -> Callable[[], object]:
    def fail() -> object:
        raise error

    return fail


@pytest.fixture(params=["sqlite", "folder"])
def ledger(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ClaimLedger]:
    with closing(place_of(request.param, tmp_path, str).open()) as opened:
        yield opened


@pytest.fixture
def state(ledger: ClaimLedger) -> LedgerState:
    return prepared(ledger)


def send(ledger: ClaimLedger, state: LedgerState, sink: landonce.WrappedSink, rows: pa.Table = ROWS) -> BlockResult:
    whole = Range(Partition("t", 0), 0, 5)
    return push_block(sink, ledger, Sending(0, SPOT, Claim.of(state), "key", whole, rows, RECEIPT))


def strict(target: object, settles_within: float = 60.0) -> landonce.WrappedSink:
    return landonce.wrap(target, idempotent=False, settles_within=settles_within)


def test_a_push_that_returns_has_landed(ledger: ClaimLedger, state: LedgerState) -> None:
    target = Target()
    for _ in range(2):
        result = send(ledger, state, strict(target))
        assert (result.fate, result.receipt) == (Fate.LANDED, RECEIPT)
    assert [(key, attempt) for key, attempt, _ in target.held] == [("key", 1)]
    assert row_of(ledger).mark is BlockState.AFTER


@pytest.mark.parametrize("arrived", [True, False])
def test_an_unknown_outcome_is_not_pushed_again(ledger: ClaimLedger, state: LedgerState, arrived: bool) -> None:
    """Not before it is over; then the probe decides."""
    error = fails(OSError("no answer"))
    target = Target(then=error) if arrived else Target(instead=error)
    sink = strict(target)
    result = send(ledger, state, sink)
    assert result.fate is Fate.DOUBTFUL
    assert "may have arrived: OSError: no answer" in result.why
    target.then = target.instead = bool
    an_hour_passes(ledger)
    assert send(ledger, state, sink).fate is Fate.LANDED
    assert target.probed == 1
    assert [attempt for _, attempt, _ in target.held] == [1 if arrived else 2]
    assert len({seen for _, _, seen in target.held}) == 1


def test_a_claim_is_respected_until_it_is_over(ledger: ClaimLedger, state: LedgerState) -> None:
    target = Target(instead=fails(OSError("no answer")))
    for _ in range(3):
        assert send(ledger, state, strict(target)).fate is Fate.DOUBTFUL
    assert (target.held, target.probed, row_of(ledger).attempt) == ([], 0, 1)


def test_where_pushing_again_is_harmless_it_is_done(ledger: ClaimLedger, state: LedgerState) -> None:
    target = Target(then=fails(OSError("no answer")))
    sink = landonce.wrap(target, idempotent=True)
    assert send(ledger, state, sink).fate is Fate.DOUBTFUL
    target.then = bool
    assert send(ledger, state, sink).fate is Fate.LANDED
    assert [attempt for _, attempt, _ in target.held] == [1, 2]
    assert len({seen for _, _, seen in target.held}) == 1


def test_what_certainly_did_not_arrive_is_free_again(ledger: ClaimLedger, state: LedgerState) -> None:
    target = Target(instead=fails(NotPushed("busy")))
    result = send(ledger, state, strict(target))
    assert (result.fate, row_of(ledger).mark) == (Fate.DOUBTFUL, BlockState.BEFORE)
    assert "busy" in result.why
    target.instead = fails(TargetRefused("never"))
    result = send(ledger, state, strict(target))
    assert (result.fate, row_of(ledger).mark) == (Fate.HALTED, BlockState.BEFORE)
    assert isinstance(result.error, TargetRefused)
    target.instead = bool
    assert send(ledger, state, strict(target)).fate is Fate.LANDED
    assert len(target.held) == 1


def test_a_probe_that_fails_says_nothing(ledger: ClaimLedger, state: LedgerState) -> None:
    target = Target(then=fails(OSError("no answer")))
    sink = strict(target)
    assert send(ledger, state, sink).fate is Fate.DOUBTFUL
    an_hour_passes(ledger)
    deaf = landonce.wrap(target, idempotent=False, probe=lambda _: 1 / 0 > 0)
    result = send(ledger, state, deaf)
    assert (result.fate, row_of(ledger).mark) == (Fate.DOUBTFUL, BlockState.CLAIMED)
    assert "the probe failed" in result.why
    assert len(target.held) == 1


@pytest.mark.parametrize("answer", [None, "no", 0, []])
def test_a_probe_that_says_neither_is_not_believed(ledger: ClaimLedger, state: LedgerState, answer: object) -> None:
    """A probe that forgot its `return` gives None. Taken for a no, the block would be there twice."""
    target = Target(then=fails(OSError("no answer")))
    assert send(ledger, state, strict(target)).fate is Fate.DOUBTFUL
    an_hour_passes(ledger)
    result = send(ledger, state, landonce.wrap(target, idempotent=False, probe=lambda _: answer))
    assert isinstance(result.error, OutcomeUnknown)
    assert f"`probe` returned {answer!r} for block key" in str(result.error)
    assert (len(target.held), row_of(ledger).mark) == (1, BlockState.CLAIMED)
    numpy_bool = landonce.wrap(target, idempotent=False, probe=lambda _: np.bool_(True))
    assert send(ledger, state, numpy_bool).fate is Fate.LANDED
    assert len(target.held) == 1


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("answer", [False, "<Response [500]>", 17])
def test_a_push_that_gives_something_back_has_not_landed(
    ledger: ClaimLedger, state: LedgerState, answer: object, idempotent: bool
) -> None:
    """`lambda block: requests.post(…)` gives back a response, which may be a refusal: its records would be lost."""
    result = send(ledger, state, landonce.wrap(lambda _: answer, idempotent=idempotent))
    assert (result.fate, row_of(ledger).mark) == (Fate.HALTED, BlockState.CLAIMED)
    assert isinstance(result.error, OutcomeUnknown)
    assert f"`push` returned {answer!r}" in str(result.error)
    assert "returns nothing once all has landed" in result.error.command


def test_a_push_that_leaves_the_process_is_an_unknown_outcome(ledger: ClaimLedger, state: LedgerState) -> None:
    """A command-line client as a library: `sys.exit` would take the worker's other blocks along."""
    target = Target(then=fails(SystemExit(1)))
    result = send(ledger, state, strict(target))
    assert (result.fate, row_of(ledger).mark) == (Fate.DOUBTFUL, BlockState.CLAIMED)
    assert "may have arrived: SystemExit: 1" in result.why


def test_a_sink_that_cannot_be_opened_has_claimed_nothing(ledger: ClaimLedger, state: LedgerState) -> None:
    class Away(Target):
        def open(self) -> None:
            raise ConnectionError("away")

    result = send(ledger, state, strict(Away()))
    assert (result.fate, row_of(ledger).mark) == (Fate.DOUBTFUL, BlockState.BEFORE)
    assert "could not be opened" in result.why


def test_one_that_is_too_late_does_not_begin(
    ledger: ClaimLedger, state: LedgerState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stopped between its claim and its push, for longer than it may take."""
    claim = ledger.claim

    def slow(*given: object, **more: object) -> object:
        row = claim(*given, **more)  # type: ignore[arg-type]
        time.sleep(0.2)
        return row

    monkeypatch.setattr(ledger, "claim", slow)
    target = Target()
    assert send(ledger, state, strict(target, settles_within=0.1)).fate is Fate.DOUBTFUL
    assert (target.held, row_of(ledger).mark) == ([], BlockState.BEFORE)


def test_nothing_is_pushed_where_there_is_nothing(ledger: ClaimLedger, state: LedgerState) -> None:
    target = Target()
    assert send(ledger, state, strict(target), ROWS.slice(0, 0)).fate is Fate.LANDED
    assert (target.held, row_of(ledger).mark, row_of(ledger).attempt) == ([], BlockState.AFTER, 0)


def test_one_that_was_taken_over_pushes_nothing(ledger: ClaimLedger, state: LedgerState) -> None:
    ledger.change(state, states.taken(state, "newer"))
    target = Target()
    result = send(ledger, state, landonce.wrap(target, idempotent=True))
    assert result.fate is Fate.HALTED
    assert isinstance(result.error, Fenced)
    assert target.held == []


def test_without_the_claim_it_would_be_there_twice(ledger: ClaimLedger, state: LedgerState) -> None:
    """The control: the same sink and the same accident, with nothing but a wrong declaration."""
    target = Target(then=fails(OSError("no answer")))
    wrong = landonce.wrap(target, idempotent=True)
    assert send(ledger, state, wrong).fate is Fate.DOUBTFUL
    target.then = bool
    assert send(ledger, state, wrong).fate is Fate.LANDED
    assert len(target.held) == 2


class Mute(Exception):
    """Some clients' errors cannot even be shown."""

    def __str__(self) -> str:
        raise KeyError("message")

    __repr__ = __str__


def test_an_error_that_cannot_be_shown_is_an_unknown_outcome_like_any_other(
    ledger: ClaimLedger, state: LedgerState
) -> None:
    result = send(ledger, state, strict(Target(then=fails(Mute()))))
    assert (result.fate, result.why) == (
        Fate.DOUBTFUL,
        "the push failed, and may have arrived: Mute: (its own text cannot be made: KeyError)",
    )
    assert row_of(ledger).mark is BlockState.CLAIMED


def test_an_answer_that_cannot_be_shown_halts_like_any_other(ledger: ClaimLedger, state: LedgerState) -> None:
    result = send(ledger, state, landonce.wrap(lambda _: Mute(), idempotent=True))
    assert isinstance(result.error, OutcomeUnknown)
