"""How many records may become dead letters before a run halts. Pure.

    on_bad   dead letters                                                    what follows
    ───────  ──────────────────────────────────────────────────────────────  ──────────────────────────────────────────────────
    any      none in this batch                                              it is recorded
    halt     one                                                             `BadRecord`
    divert   a share of this batch within the limit                          it is recorded
    divert   a larger share, and too many: in this batch with those just     `TooManyDeadLetters`
             before it that were beyond the limit too, in this run or in
             earlier ones; or in all batches
    divert   a larger share, and not too many yet                            it is recorded

Too many: `floor` letters or more, which are a larger share of the records that were read than `limit`. If every batch is within the limit,
all of them together are. The ledger keeps the counts of the batches that were beyond it one after the other, so that neither a long history
of good records nor a restart hides a mistake. A batch is judged when all of its receipts are there, before its letters count and before it is recorded; a plan
that is written again is judged as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from landonce.errors import BadRecord, Halt, TooManyDeadLetters
from landonce.protocol.ledger import Totals
from landonce.protocol.reasons import Counted, by_code, lines, merged

CORRECT_AND_RUN = "correct it in {file}, then `landonce run {file}`"
_WRONG = "if the schema or the transform is wrong: "
_BAD = "If these records are truly bad: "
_SAFE = "The batch was not recorded, and none of its dead letters counts."
_SHOWN = 5
"""Causes that an error names."""


@dataclass(frozen=True)
class Tolerance:
    """What the pipeline file allows."""

    limit: float = 1.0
    """The largest share of records, from 0 to 1."""
    floor: int = 100
    """Fewer letters are never too many."""
    halt: bool = False
    """The first one is too many."""

    def beyond(self, totals: Totals) -> bool:
        """Whether the share is larger than the limit, however few records these are."""
        return totals.dead_lettered > self.limit * totals.read

    def too_many(self, totals: Totals) -> bool:
        return totals.dead_lettered >= self.floor and self.beyond(totals)

    def lately(self, batch: Totals, before: Totals) -> Totals:
        """Of the last batches that were beyond the limit one after the other, once this one is recorded. One without records says nothing,
        and neither do earlier ones that are within the limit by now."""
        if not batch.read:
            return before
        if not self.beyond(batch):
            return Totals()
        return before.plus(batch) if self.beyond(before) else batch

    def judge(
        self, batch: Totals, lately: Totals, before: Totals, reasons: Iterable[Counted], then: str
    ) -> Halt | None:
        """Why a batch must not be recorded. `lately`: the batches just before it that were beyond the limit too. `before`: all batches.
        `then`: what to do about it, if the pipeline file is wrong."""
        if self.halt and batch.dead_lettered:
            said = f"{batch.dead_lettered:,} of {batch.read:,} records of the batch cannot land:\n{_said(reasons)}"
            return bad_record(said, then)
        if not self.beyond(batch):
            return None
        for totals, where in ((self.lately(batch, lately), "the last batches"), (batch.plus(before), "the pipeline")):
            if self.too_many(totals):
                return self._refusal(totals, where if totals != batch else "the batch", reasons, then)
        return None

    def _refusal(self, totals: Totals, where: str, reasons: Iterable[Counted], then: str) -> TooManyDeadLetters:
        share = totals.dead_lettered / totals.read
        return TooManyDeadLetters(
            f"{totals.dead_lettered:,} of {totals.read:,} records of {where} cannot land. That is {percent(share)}, and "
            f"`dead_letters.limit` is {percent(self.limit)}. In this batch:\n{_said(reasons)}",
            safe=_SAFE,
            command=f"{_WRONG}{then}. {_BAD}raise `dead_letters.limit` in {{file}}, then `landonce run {{file}}`",
        )


def _said(reasons: Iterable[Counted]) -> str:
    known = merged(reasons)
    codes = ", ".join(f"{records:,} {code.value}" for code, records in by_code(known).items())
    return "\n".join((f"  {codes}", *lines(known[:_SHOWN], 0)))


def percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def bad_record(what: str, then: str) -> BadRecord:
    return BadRecord(
        what,
        safe=_SAFE,
        command=f"{_WRONG}{then}. {_BAD}set `dead_letters.on_bad: divert` in {{file}}, then `landonce run {{file}}`",
    )
