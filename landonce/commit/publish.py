"""Publishing a plan's dead letters: which of its files count, and whether some of them may count already."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from landonce.commit import dead_letters
from landonce.plan.blocks import Kind, Plan
from landonce.plan.ranges import Partition
from landonce.record.ledger import LedgerState


@dataclass
class Letters:
    """The dead letters of one pipeline, as its driver sees them."""

    folder: Path
    pipeline: str
    _ends: dict[Partition, int] | None = None

    def stem(self, plan: Plan, held: LedgerState) -> str:
        """What the plan's files are called."""
        return dead_letters.stem(self.pipeline, plan.batch, held.lineage)

    def publish(self, plan: Plan, held: LedgerState, names: Iterable[str]) -> None:
        """Makes them count."""
        named = list(names)
        again = any(named) and (plan.kind is Kind.REPLAY or self._lettered_before(plan, held))
        dead_letters.publish(self.folder, self.stem(plan, held), named, read_again=again)

    def require(self, names: Iterable[str]) -> None:
        """Before a commit that is to make them count: every file is here, where the driver can publish it."""
        dead_letters.require(self.folder, names)

    def publish_left(self, names: Iterable[str]) -> None:
        """Files of a batch that an earlier driver committed and did not get to publish. What it did publish is left alone,
        for people may have dealt with it by now; what it staged for a batch that it did not commit is removed."""
        staged = [name for name in names if dead_letters.is_staged(self.folder, name)]
        for plan in sorted({dead_letters.plan_of(name) for name in staged}):
            mine = [name for name in staged if dead_letters.plan_of(name) == plan]
            dead_letters.publish(self.folder, plan, mine, read_again=True)
        dead_letters.clear_staged(self.folder, self.pipeline)

    def acquired(self, state: LedgerState) -> None:
        """A driver begins. Of a last plan that is over nothing is staged any more, unless an operator gave it up."""
        if state.pending is None:
            self.publish_given_up(state)

    def publish_given_up(self, held: LedgerState) -> None:
        """What is staged of the last plan, whose records are gone."""
        dead_letters.publish_given_up(self.folder, dead_letters.stem(self.pipeline, held.batch, held.lineage))

    def forget(self) -> None:
        """What was read so far may be read again: look the files up anew."""
        self._ends = None

    def _lettered_before(self, plan: Plan, held: LedgerState) -> bool:
        """Whether a ledger that was lost, restored or rolled back may have dead-lettered some of this. Looked up once.

        The kind of the plan does not tell: records that cannot land may stand above all that the target holds.
        """
        if self._ends is None:
            self._ends = dead_letters.ends(self.folder, self.pipeline)
        ends = self._ends
        return any(
            each.first < ends.get(held.labelled(each.partition), 0) for block in plan.blocks for each in block.ranges
        )
