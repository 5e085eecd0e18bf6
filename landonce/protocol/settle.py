"""What a worker does with one block, step by step. Pure: the caller asks the sink.

    FIRST    a plan that was just prepared: nothing of it can be in the target, so send at once
    RESOLVE  any doubt: the driver has waited out the deadline and killed what still ran, so look before sending

    mode     after            saw                                   then
    ───────  ───────────────  ────────────────────────────────────  ─────────────────────────────────────────────
    FIRST    begin            -                                     send all rows under the token
    RESOLVE  begin            -                                     probe
             probe            every row, once                       LANDED
                              some, newer rows replace the others   LANDED
                              a row twice                           HALTED  DuplicatePresent
                              part of one table partition           HALTED  PartialPresence (unless resend is harmless
                                                                            or an operator asked to fill)
                              some or none                          send the missing rows under the same token
                              none, newer rows replace them all     send all rows under the same token
                              rows missing, the token is suspect    TOKEN_USED_UP, and nothing is sent under it again
             send             acknowledged, FIRST, first send       LANDED (no doubt, no probe), unless `wary`
                              acknowledged otherwise                probe again
                              refused as late                       LATE
                              refused, the request is over          probe (a block may have landed in part), then again
                              no answer                             DOUBTFUL
             probe again      every row, once                       LANDED
                              newer rows replace what is missing    LANDED
                              rows missing                          TOKEN_USED_UP (the token was taken, the rows are not there)

Before its rows, RESOLVE looks for the records of the block that cannot be decoded (`looks_for_rejected`): one whose row is there has landed,
and is no dead letter.

A block with rows for several tables goes through this once for each table, under a token of its own (`block_fate`).

The token is not proof, so no outcome rests on it: a resend under the same token can only be harmless or useless, and
the second probe tells which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from landonce.protocol.receipt import Fate


class Mode(str, Enum):
    """How a worker begins."""

    FIRST = "first"
    RESOLVE = "resolve"


class Reply(str, Enum):
    """What came back for an insert."""

    ACKNOWLEDGED = "acknowledged"
    LATE = "late"
    """Refused by the deadline: nothing was written, and the request is over."""
    REFUSED = "refused"
    """An error by the target itself that may pass: the request is over, and may have landed in part."""
    LOST = "lost"
    """No answer: it may have landed, may land later, or never."""


@dataclass(frozen=True)
class Presence:
    """What a probe saw of a block's rows."""

    expected: int
    missing: int
    torn: bool = False
    """One table partition holds some of its rows and lacks others, which one atomic write cannot do."""
    duplicated: int = 0
    unproven: bool = False
    """Nothing of the block is there, and newer rows replace every row of it: it may have landed, or never was sent."""

    @property
    def complete(self) -> bool:
        return self.missing == 0


class InsertStage(str, Enum):
    """Where a worker is with its block."""

    SEND = "send"
    PROBE = "probe"
    PROBE_AGAIN = "probe again"


class Problem(str, Enum):
    """Why a block is halted by what a probe saw."""

    PARTIAL = "partial"
    DUPLICATE = "duplicate"


@dataclass(frozen=True)
class Settling:
    """A worker's memory of one block. `missing_only`: the next send leaves out what the probe saw."""

    mode: Mode
    stage: InsertStage
    sends: int = 0
    missing_only: bool = False
    wary: bool = False
    """Another run of the task may have sent this block, and nobody can tell."""
    fill: bool = False
    """What a torn table partition lacks is written: an operator's word, or an engine that makes a resend harmless."""
    suspect: bool = False
    """The target died since the plan was made, so that the token may have outlived its rows; and what is sent under such a token would
    reach views behind the table, but not the table. No earlier insert can land any more."""
    fate: Fate | None = None
    problem: Problem | None = None


def begin(mode: Mode, *, fill: bool = False, wary: bool = False, suspect: bool = False) -> Settling:
    """The first thing to do with a block."""
    if mode is Mode.FIRST:
        return Settling(mode, InsertStage.SEND, sends=1, fill=fill, wary=wary)
    return Settling(mode, InsertStage.PROBE, fill=fill, wary=wary, suspect=suspect)


def looks_for_rejected(mode: Mode) -> bool:
    """Whether the target may hold rows of records that cannot be decoded now. They landed when the pipeline file said something else, or as
    dead letters that were replayed, and the ledger was restored since, or its position went back."""
    return mode is Mode.RESOLVE


def nothing_to_land(settling: Settling) -> Settling:
    """A block whose records are all dead letters or filtered has no rows, and is done."""
    return _done(settling, Fate.LANDED)


def after_send(settling: Settling, reply: Reply) -> Settling:
    """The next thing to do once an insert was answered, or was not."""
    if reply is Reply.LOST:
        return _done(settling, Fate.DOUBTFUL)
    if reply is Reply.LATE:
        return _done(settling, Fate.LATE)
    if reply is Reply.REFUSED:
        return replace(settling, stage=InsertStage.PROBE)
    if settling.mode is Mode.FIRST and settling.sends == 1 and not settling.wary:
        return _done(settling, Fate.LANDED)
    return replace(settling, stage=InsertStage.PROBE_AGAIN)


def after_probe(settling: Settling, presence: Presence) -> Settling:
    """The next thing to do once the target was looked at."""
    if presence.duplicated:
        return _done(settling, Fate.HALTED, Problem.DUPLICATE)
    if presence.complete and not (presence.unproven and settling.stage is InsertStage.PROBE):
        return _done(settling, Fate.LANDED)
    if presence.torn and not settling.fill:
        return _done(settling, Fate.HALTED, Problem.PARTIAL)
    if settling.stage is InsertStage.PROBE_AGAIN or (settling.suspect and settling.sends == 0):
        return _done(settling, Fate.TOKEN_USED_UP)
    return replace(settling, stage=InsertStage.SEND, sends=settling.sends + 1, missing_only=True)


def block_fate(settled: Sequence[Settling], tables: int) -> Fate | None:
    """The fate of a block with rows for so many tables, of which the first ones are settled. None: the next table comes.

    every table LANDED      LANDED: one table proves nothing of another
    one is not              its fate: the rest of the tables waits until that is settled
    """
    other = next((each.fate for each in settled if each.fate is not Fate.LANDED), None)
    if other is not None:
        return other
    return Fate.LANDED if len(settled) == tables else None


def _done(settling: Settling, fate: Fate, problem: Problem | None = None) -> Settling:
    return replace(settling, fate=fate, problem=problem)
