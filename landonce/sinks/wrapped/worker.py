"""The worker's part of a wrapped sink: claim a block in the ledger, push it, record the outcome, as `protocol.push` decides.

A task that Spark runs again does the same again: the block's row says whether it may push.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from landonce import errors
from landonce.clock import now
from landonce.config.secrets import redact
from landonce.failpoints import reach
from landonce.ledger.claims import ClaimLedger
from landonce.protocol import push as steps
from landonce.protocol.block_rows import BlockState, Claim, PushRow, Spot, over
from landonce.protocol.push import Outcome, Pushing, PushStage
from landonce.protocol.ranges import Range
from landonce.protocol.receipt import BlockResult, Fate, Receipt
from landonce.read.block import ReadBlock, Reader
from landonce.read.changes import Changes
from landonce.read.decoding import BesideChanges, decode_by
from landonce.read.envelopes import OPERATION
from landonce.read.rows import CHANGE, as_is, fit_to
from landonce.read.schema.fields import Schema
from landonce.sinks.claimed import PushRecipe, PushTask
from landonce.sinks.worker import BlockWorker, Refuse, failed
from landonce.sinks.wrapped.block import PushedBlock, pushed_rows
from landonce.sinks.wrapped.sink import Delivery, WrappedSink

_PAUSE = 0.25
_RAISED = (Exception, SystemExit)
"""What a user's function may raise. `SystemExit` would end the process, with the worker's other blocks."""


@dataclass(frozen=True, kw_only=True)
class WrappedRecipe(PushRecipe):
    """The recipe of a wrapped sink."""

    source: Schema
    """What a record is decoded to."""
    target: Schema
    """What the sink gets: the source, or what `select` makes of it. Rows of a query are pushed as they are."""
    sink: WrappedSink
    as_given: bool = False
    """Rows are brought, by a query or a push: they are pushed as they are."""
    key: tuple[str, ...] = ()
    changes: Changes | None = None
    """How records change rows of this key, if they do."""

    @property
    def pushes(self) -> WrappedSink:
        return self.sink

    def _decisive(self) -> tuple[object, ...]:
        keyed = (self.key, repr(self.changes)) if self.changes is not None else ()
        return pa.__version__, self.sink.identity, self.source.fingerprint(), self.select, self.where, *keyed

    def worker(self, task: PushTask) -> BlockWorker:
        return WrappedWorker(self, task)


@dataclass(frozen=True)
class WrappedWorker(BlockWorker):
    """Pushes one block under a claim."""

    recipe: WrappedRecipe
    task: PushTask
    nonce: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Names the attempt."""

    @property
    def spot(self) -> Spot:
        """The block's row in the ledger."""
        return Spot(self.task.batch, self.task.block.number)

    def reader(self) -> Reader:
        recipe = self.recipe
        decode = decode_by(recipe.source, recipe.decoding)
        if recipe.changes is not None:
            decode = BesideChanges.of(recipe.source, recipe.decoding, recipe.key, recipe.changes)
        return Reader.of_one(self.task.block.table, decode, as_is if recipe.as_given else fit_to(recipe.target))

    def write(self, block: ReadBlock, receipt: Receipt, refuse: Refuse | None) -> BlockResult:
        del refuse
        task, rows = self.task, block.rows(self.task.block.table)
        if self.recipe.changes is not None:
            rows = rows.rename_columns([CHANGE if each == OPERATION else each for each in rows.column_names])
        sending = Sending(
            index=task.index,
            spot=self.spot,
            claim=task.claim,
            key=task.key,
            range=task.labelled[0],
            rows=rows,
            receipt=replace(receipt, landed=rows.num_rows),
            nonce=self.nonce,
        )
        if self.recipe.shuffled:
            return self._push_beside_others(sending)
        with closing(self.recipe.ledger.open()) as ledger:
            return push_block(self.recipe.sink, ledger, sending)

    def _push_beside_others(self, sending: Sending) -> BlockResult:
        """Spark ends the other tasks of a block when the first one returns, even in the middle of a push, whose outcome is then unknown. So a
        task that did not land the block waits as long as the others may take; what they record counts."""
        try:
            with closing(self.recipe.ledger.open()) as ledger:
                result = push_block(self.recipe.sink, ledger, sending)
        except Exception as error:
            result = failed(self.task, error)
        if result.fate is Fate.LANDED:
            return result
        with closing(self.recipe.ledger.open()) as ledger:
            while True:
                seen = ledger.row(self.spot)
                row = seen.rows[0] if seen.rows else None
                if row is not None and row.mark is BlockState.AFTER:
                    known = Receipt.from_json(row.receipt) if row.receipt is not None else sending.receipt
                    return BlockResult(self.task.index, Fate.LANDED, known)
                others = row is not None and row.mark is BlockState.CLAIMED and row.nonce != self.nonce
                if row is None or not others or over(row, seen.now, self.recipe.sink.wait):
                    return result
                time.sleep(_PAUSE)


@dataclass(frozen=True)
class Sending:
    """One block of a pending plan, with its rows."""

    index: int
    """Its index in the plan, for the result."""
    spot: Spot
    """Its row in the ledger."""
    claim: Claim
    """The claim of the driver that sent the task."""
    key: str
    range: Range
    """Under the name that the target knows the topic by."""
    rows: pa.Table
    """`_topic`, `_partition`, `_offset` and the fields, in the order of offsets. The same records must give the same rows on every retry."""
    receipt: Receipt
    """The receipt if the block lands."""
    nonce: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Names the attempt."""


def push_block(sink: WrappedSink, ledger: ClaimLedger, sending: Sending) -> BlockResult:
    """Returns once the block's fate is known, or the driver has to find it out. Pushes at most once."""
    with ExitStack() as stack:
        try:
            delivery = stack.enter_context(sink.opened())
        except _RAISED as error:
            if isinstance(error, errors.LandonceError) and not isinstance(error, errors.NotPushed):
                raise
            return BlockResult(sending.index, Fate.DOUBTFUL, why=_failure("the sink could not be opened", error))
        return _Attempt(sink, ledger, sending, delivery).run()


class _Attempt:
    """One attempt of one worker to push one block."""

    def __init__(self, sink: WrappedSink, ledger: ClaimLedger, sending: Sending, delivery: Delivery) -> None:
        self._sink, self._ledger, self._sending, self._delivery = sink, ledger, sending, delivery
        self._row: PushRow | None = None
        self._began = 0.0
        self._why = "another attempt is claimed, and what became of it is not known yet"
        self._error: errors.LandonceError | None = None
        self._state = steps.begin(harmless=sink.idempotent, can_probe=sink.can_probe, empty=sending.rows.num_rows == 0)

    def run(self) -> BlockResult:
        sending = self._sending
        while self._state.fate is None:
            stage = self._state.stage
            reach(f"{stage.value}.before")
            self._state = self._step(stage)
            reach(f"{stage.value}.after")
        state = self._state
        if state.fate is Fate.LANDED:
            known = Receipt.from_json(state.settled) if state.settled is not None else sending.receipt
            return BlockResult(sending.index, Fate.LANDED, known)
        if state.fate is Fate.HALTED or self._error is not None:
            fenced = errors.Fenced(
                f"the pipeline was taken over: block {sending.range} of batch {sending.spot.batch} is not claimed by epoch "
                f"{sending.claim.epoch} any more.",
                safe="It was not pushed again, and this driver stops. Nothing is lost: the newer driver continues.",
            )
            return BlockResult(sending.index, Fate.HALTED, error=self._error or fenced)
        return BlockResult(sending.index, Fate.DOUBTFUL, why=self._why)

    def _step(self, stage: PushStage) -> Pushing:
        """Does what the stage asks for, and returns the next state."""
        ledger, sending, state, sink = self._ledger, self._sending, self._state, self._sink
        spot, claim, nonce, receipt = sending.spot, sending.claim, sending.nonce, sending.receipt.to_json()
        if stage in (PushStage.CLAIM, PushStage.RECLAIM):
            self._began = now()
            if stage is PushStage.CLAIM:
                self._row = ledger.claim(spot, claim, nonce, harmless=sink.idempotent, wait=sink.wait)
            else:
                self._row = ledger.reclaim(spot, claim, nonce, state.seen, wait=sink.wait)
            return steps.after_claim(state, won=self._row is not None)
        if stage is PushStage.ROW:
            seen = ledger.row(spot)
            row = seen.rows[0] if seen.rows else None
            done = row is not None and over(row, seen.now, sink.wait)
            return steps.after_row(state, row, claim, over=done)
        if stage is PushStage.PROBE:
            return self._probe(state)
        if stage is PushStage.PUSH:
            return steps.after_push(state, self._push())
        if stage is PushStage.FOUND:
            return steps.after_settle(state, won=ledger.found(spot, claim, state.seen, receipt))
        if stage is PushStage.SETTLE:
            return steps.after_settle(state, won=ledger.settle(spot, nonce, receipt))
        if stage is PushStage.RELEASE:
            ledger.release(spot, nonce)
            return steps.after_release(state)
        return steps.after_settle(state, won=ledger.skip(spot, claim, receipt))

    def _probe(self, state: Pushing) -> Pushing:
        """A probe that raises proves nothing: the driver tries again."""
        try:
            there: object = self._delivery.probe(self._block()) if self._delivery.probe is not None else None
        except _RAISED as error:
            self._why = _failure("the probe failed", error)
            return replace(state, fate=Fate.DOUBTFUL)
        if not isinstance(there, bool | np.bool_):
            self._error = _no_answer(
                self._sending, "probe", there, "returns True or False, and raises where it cannot tell"
            )
            return replace(state, fate=Fate.DOUBTFUL)
        return steps.after_probe(state, there=bool(there))

    def _push(self) -> Outcome:
        block = self._block()
        if now() - self._began > self._sink.begins_within and not self._sink.idempotent:
            self._why = "it was too late after the claim to begin"
            return Outcome.NOT_PUSHED
        try:
            said: object = self._delivery.push(block)  # type: ignore[func-returns-value]
        except errors.NotPushed as error:
            self._why = _failure("not pushed", error)
            return Outcome.NOT_PUSHED
        except errors.TargetRefused as error:
            self._error = error
            return Outcome.REFUSED
        except _RAISED as error:
            self._why = _failure("the push failed, and may have arrived", error)
            return Outcome.UNKNOWN
        if said is not None:
            self._error = _no_answer(
                self._sending, "push", said, "returns nothing once all has landed, and raises otherwise"
            )
            return Outcome.UNKNOWN
        return Outcome.RETURNED

    def _block(self) -> PushedBlock:
        sending, row = self._sending, self._row
        return PushedBlock(
            key=sending.key,
            topic=sending.range.partition.topic,
            partition=sending.range.partition.number,
            first=sending.range.first,
            end=sending.range.end,
            rows=pushed_rows(sending.rows),
            attempt=row.attempt if row is not None else 0,
            deadline=row.claimed_at + self._sink.wait if row is not None else 0,
        )


def _failure(what: str, error: BaseException) -> str:
    return redact(f"{what}: {type(error).__name__}: {_shown(str, error)}")[:2000]


def _shown(show: Callable[[object], str], given: object) -> str:
    """The text of a user's object. Its `__str__` is the user's code, and may fail."""
    try:
        return show(given)
    except Exception as error:
        return f"(its own text cannot be made: {type(error).__name__})"


def _no_answer(sending: Sending, what: str, said: object, rule: str) -> errors.OutcomeUnknown:
    """A return value that was not asked for is not interpreted: it may be a refusal."""
    return errors.OutcomeUnknown(
        redact(
            f"`{what}` returned {_shown(repr, said)[:200]} for block {sending.key} ({sending.range}): landonce does "
            "not know what that means."
        ),
        safe="The block was not pushed again, and the position did not move.",
        command=f"write `{what}` so that it {rule}; then: landonce run {{file}}",
    )
