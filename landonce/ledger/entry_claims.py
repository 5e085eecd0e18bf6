"""Claims of blocks in any ledger, whoever wrote it: they are kept in the pipeline's own entry, so its author does nothing for them.

    stored                          is
    ──────────────────────────────  ─────────────────────────────────────────────────────────────────────────────────
    owner                           random for each change: two changes never make the same state, so a ledger that
                                    recognises its own change by the state's key is never mistaken
    version                         counts all changes, of the state and of claims
    labels                          the state's, and one text more: the state's own owner and version, and the rows
    all other fields                the state's

One compare-and-set of the entry changes the state and the rows together. So it does with them what `PushLedger` does in a transaction:

    ACQUIRE   rows have no epoch of their own. A claim holds if its epoch and owner are those of the entry that it is written to: from the
              takeover on no earlier driver's worker claims a block, and a claim made before is seen by the takeover
    PREPARE   the plan and its rows
    RECORD    sees every row, and is refused where one changes meanwhile

Somebody else's change in between, such as another worker's claim, fails the compare-and-set: then all is read and decided again.

A store has no clock that could be asked. So the time that passed since a claim is measured by those who wait for it. A row holds the
attempt's age: nobody adds more to it than passed on its own clock since it saw that attempt. An age is never more than the time that
really passed, however wrong a machine's time of day is. Time in which no driver ran does not count.
"""

from __future__ import annotations

import json
import random
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from landonce.clock import now
from landonce.config.model import remember_secrets
from landonce.errors import Fenced, LedgerUnavailable, LedgerUnreadable, NothingToDo
from landonce.ledger.claims import AttemptDecision, ClaimLedger, ClaimPlace
from landonce.ledger.open import plugged_ledger
from landonce.protocol.block_rows import (
    BlockState,
    Claim,
    Condition,
    PushRow,
    PushRows,
    Spot,
    block_change,
    claimable,
    claims_may_change,
    mine,
    reclaimable,
)
from landonce.protocol.ledger import Ledger, LedgerState, Note, check_change, fenced, key

_BESIDE = "claims of blocks"
"""Its place among the labels. No topic has such a name: there is no space in one."""
_STEP = 500
"""Milliseconds. Ages are stored in steps that are no smaller."""
_LONGEST_PAUSE = 0.2
_CHANCE = random.SystemRandom()


@dataclass(frozen=True)
class _Row:
    """One block of the pending plan, and the last attempt to push it."""

    number: int
    state: str = BlockState.BEFORE.value
    attempt: int = 0
    nonce: str = ""
    age: int = 0
    """Milliseconds that certainly passed since the attempt was claimed."""
    wait: int = 0
    receipt: str | None = None

    def shown(self, claim: Claim, at: int) -> PushRow:
        return PushRow(
            self.number, claim, BlockState(self.state), self.attempt, self.nonce, at - self.age, self.receipt, self.wait
        )


@dataclass(frozen=True)
class _Entry:
    """What the ledger holds of a pipeline."""

    state: LedgerState
    batch: int = 0
    """Whose rows these are."""
    rows: tuple[_Row, ...] = ()
    change: str = ""
    """Names the last change of the state."""

    @staticmethod
    def of(stored: LedgerState) -> _Entry:
        """An entry without claims is another kind of sink's, or new. Where somebody changed it who knows nothing of claims, its owner and
        version are the state's, and the rows hold."""
        text = dict(stored.labels).get(_BESIDE)
        if text is None:
            return _Entry(stored)
        try:
            fields: dict[str, Any] = json.loads(text)
            rows = tuple(_Row(**each) for each in fields["rows"])
            own = {"owner": fields["owner"], "version": fields["version"]} if fields["by"] == stored.owner else {}
            labels = tuple(each for each in stored.labels if each[0] != _BESIDE)
            return _Entry(replace(stored, labels=labels, **own), fields["batch"], rows, fields["change"])
        except (ValueError, KeyError, TypeError) as failure:
            raise LedgerUnreadable(
                f"the claims of blocks in the ledger's entry cannot be read ({type(failure).__name__}): it is damaged, or was edited by "
                "hand.",
                safe="Nothing was changed.",
                command="restore the ledger from a backup, then: landonce run {file}",
            ) from failure

    def after(self, seen: LedgerState) -> LedgerState:
        """What is stored in the place of `seen`."""
        owner = uuid.uuid4().hex
        fields = {
            "by": owner,
            "owner": self.state.owner,
            "version": self.state.version,
            "change": self.change,
            "batch": self.batch,
            "rows": [asdict(each) for each in self.rows],
        }
        labels = (*self.state.labels, (_BESIDE, json.dumps(fields, separators=(",", ":"))))
        return replace(self.state, owner=owner, version=seen.version + 1, labels=labels)

    def row(self, spot: Spot) -> _Row | None:
        return (
            next((each for each in self.rows if each.number == spot.number), None) if spot.batch == self.batch else None
        )

    def with_row(self, row: _Row) -> _Entry:
        return replace(self, rows=tuple(row if each.number == row.number else each for each in self.rows))

    def meets(self, row: _Row, where: Condition) -> bool:
        claim = Claim.of(self.state)
        holds = {"epoch": claim.epoch, "owner": claim.owner, "state": row.state, "nonce": row.nonce}
        return all(holds[name] in allowed for name, allowed in where.items())


class EntryClaims(ClaimLedger):
    """Keeps one pipeline's state and its claims in one entry of another ledger."""

    def __init__(self, ledger: Ledger, address: ClaimPlace) -> None:
        self.pipeline, self.address = ledger.pipeline, address
        self._ledger = ledger
        self._doubt: tuple[LedgerState, str] | None = None
        """A change without an answer: the new state, and the change's name. It outlives the call, so the caller may call again."""
        self._seen: dict[tuple[int, int, str], tuple[float, int]] = {}
        """By batch, number and nonce: when this process saw an attempt first, and how old it was then."""
        self._began = now()
        self._began_at = int(time.time() * 1000)

    # As every ledger.

    def load(self) -> LedgerState | None:
        return _state(self._ledger.load())

    def load_while_idle(self) -> LedgerState | None:
        return _state(self._ledger.load_while_idle())

    def create(self, state: LedgerState) -> LedgerState:
        return _Entry.of(self._ledger.create(state)).state

    def change(self, old: LedgerState, new: LedgerState, note: Note | None = None) -> LedgerState:
        return self._change(old, new, note, None)

    def decide(self, old: LedgerState, new: LedgerState, note: Note, decision: AttemptDecision) -> LedgerState:
        return self._change(old, new, note, decision)

    def journal(self) -> tuple[Note, ...]:
        return self._ledger.journal()

    def close(self) -> None:
        self._ledger.close()

    def _change(
        self, old: LedgerState, new: LedgerState, note: Note | None, decision: AttemptDecision | None
    ) -> LedgerState:
        check_change(self.pipeline, old, new)
        again = self._doubt is not None and self._doubt[0] == new
        change = self._doubt[1] if self._doubt is not None and again else uuid.uuid4().hex

        def decide(entry: _Entry) -> _Entry | None:
            """None: an attempt at this very change that had no answer was applied."""
            if entry.change == change:
                return None
            if key(entry.state) != key(old):
                raise fenced(old, entry.state)
            return replace(_changed(entry, old, new, decision), change=change)

        try:
            entry, _ = self._swap(decide, note)
        except LedgerUnavailable:
            self._doubt = (new, change)
            raise
        except BaseException:
            self._doubt = None
            raise
        self._doubt = None
        if entry is None:
            raise fenced(old, None)
        return new

    # For the driver.

    def status(self, batch: int) -> PushRows:
        def decide(entry: _Entry) -> _Entry | None:
            rows = self._aged(batch, entry.rows) if entry.batch == batch else entry.rows
            return replace(entry, rows=rows) if rows != entry.rows else None

        entry, _ = self._swap(decide)
        entry = _there(entry, self.pipeline)
        at, claim = self._now(), Claim.of(entry.state)
        rows = entry.rows if entry.batch == batch else ()
        return PushRows(tuple(each.shown(claim, at) for each in rows), at)

    # For workers.

    def row(self, spot: Spot) -> PushRows:
        seen = self.status(spot.batch)
        return replace(seen, rows=tuple(each for each in seen.rows if each.number == spot.number))

    def claim(self, spot: Spot, claim: Claim, nonce: str, *, harmless: bool, wait: int = 0) -> PushRow | None:
        return self._claimed(spot, claimable(claim, harmless=harmless), nonce, wait)

    def reclaim(self, spot: Spot, claim: Claim, nonce: str, seen: str, *, wait: int = 0) -> PushRow | None:
        return self._claimed(spot, reclaimable(claim, seen), nonce, wait)

    def settle(self, spot: Spot, nonce: str, receipt: str) -> bool:
        entry, changed = self._set(spot, mine(nonce), lambda row: _landed(row, receipt))
        row = entry.row(spot)
        return changed or (row is not None and row.state == BlockState.AFTER.value and row.nonce == nonce)

    def found(self, spot: Spot, claim: Claim, seen: str, receipt: str) -> bool:
        return self._set(spot, reclaimable(claim, seen), lambda row: _landed(row, receipt))[1]

    def skip(self, spot: Spot, claim: Claim, receipt: str) -> bool:
        return self._set(spot, claimable(claim, harmless=True), lambda row: _landed(row, receipt))[1]

    def release(self, spot: Spot, nonce: str) -> bool:
        return self._set(spot, mine(nonce), _free)[1]

    def _claimed(self, spot: Spot, where: Condition, nonce: str, wait: int) -> PushRow | None:
        def claimed(row: _Row) -> _Row:
            return replace(row, state=BlockState.CLAIMED.value, nonce=nonce, attempt=row.attempt + 1, age=0, wait=wait)

        entry, _ = self._set(spot, where, claimed)
        row = entry.row(spot)
        if row is None or row.state != BlockState.CLAIMED.value or row.nonce != nonce:
            return None
        return row.shown(Claim.of(entry.state), self._now())

    def _set(self, spot: Spot, where: Condition, change: Callable[[_Row], _Row]) -> tuple[_Entry, bool]:
        """The entry as it is then, and whether the row met the condition and was changed."""

        def decide(entry: _Entry) -> _Entry | None:
            row = entry.row(spot)
            return entry.with_row(change(row)) if row is not None and entry.meets(row, where) else None

        entry, changed = self._swap(decide)
        return _there(entry, self.pipeline), changed

    # The compare-and-set, and time.

    def _swap(self, decide: Callable[[_Entry], _Entry | None], note: Note | None = None) -> tuple[_Entry | None, bool]:
        """The entry as it is then, and whether this changed it. What is decided on an entry that is not there any more is decided again:
        somebody else got something done, so there is an end to it."""
        pause = 0.005
        while True:
            stored = self._ledger.load()
            if stored is None:
                return None, False
            entry = _Entry.of(stored)
            wanted = decide(entry)
            if wanted is None:
                return entry, False
            try:
                self._ledger.change(stored, wanted.after(stored), note)
                return wanted, True
            except Fenced:
                seen = self._ledger.load()
            if seen is not None and key(seen) == key(stored):
                raise fenced(stored, seen)
            time.sleep(_CHANCE.uniform(0, pause))
            pause = min(_LONGEST_PAUSE, 2 * pause)

    def _now(self) -> int:
        """Milliseconds. Nobody sets it while this process runs."""
        return self._began_at + int((now() - self._began) * 1000)

    def _aged(self, batch: int, rows: tuple[_Row, ...]) -> tuple[_Row, ...]:
        """With the ages that attempts have by what this process saw."""
        at, before, aged = now(), self._seen, list[_Row]()
        self._seen = {}
        for row in rows:
            if row.state == BlockState.CLAIMED.value:
                name = (batch, row.number, row.nonce)
                since, then = self._seen[name] = before.get(name, (at, row.age))
                age = then + int((at - since) * 1000)
                row = replace(row, age=age) if age >= row.age + _STEP else row
            aged.append(row)
        return tuple(aged)


def _state(stored: LedgerState | None) -> LedgerState | None:
    return None if stored is None else _Entry.of(stored).state


def _changed(entry: _Entry, old: LedgerState, new: LedgerState, decision: AttemptDecision | None) -> _Entry:
    """The entry with the new state, and with the rows that go with it. Raises where a claim forbids the change."""
    diff = block_change(old, new)
    if old.pending is not None:
        held = entry.rows if entry.batch == old.pending.batch else ()
        claims_may_change(old, new, tuple(each.shown(Claim.of(old), 0) for each in held))
    made = replace(entry, state=new)
    if diff.removed is not None or old.pending is None:
        batch = new.pending.batch if new.pending is not None else 0
        made = replace(made, batch=batch, rows=tuple(_Row(number) for number in diff.added))
    if decision is None:
        return made
    row = made.row(decision.spot)
    if row is None or not made.meets(row, mine(decision.nonce)):
        raise NothingToDo(
            "the outcome of the block is known: the attempt was settled in the meantime.",
            safe="Nothing was changed.",
            command="landonce run {file}",
        )
    return made.with_row(_landed(row, None) if decision.landed else _free(row))


def _landed(row: _Row, receipt: str | None) -> _Row:
    return replace(row, state=BlockState.AFTER.value, receipt=receipt)


def _free(row: _Row) -> _Row:
    return replace(row, state=BlockState.BEFORE.value, nonce="")


def _there(entry: _Entry | None, pipeline: str) -> _Entry:
    if entry is not None:
        return entry
    raise LedgerUnreadable(
        f"the ledger has no entry of pipeline {pipeline!r} on {socket.gethostname()}: it was removed, or workers of this machine open "
        "another store than the driver does.",
        safe="Nothing was pushed.",
        command="keep the ledger where every worker reaches it, or restore it from a backup, then: landonce run {file}",
    )


@dataclass(frozen=True)
class PluginPlace(ClaimPlace):
    """A ledger of another package."""

    name: str
    pipeline: str
    folder: Path
    options: tuple[tuple[str, Any], ...] = field(repr=False)

    def open(self) -> EntryClaims:
        remember_secrets(dict(self.options))
        return EntryClaims(plugged_ledger(self.name, dict(self.options), self.pipeline, self.folder), self)
