"""Publishing a plan's dead letters: which of its files count, and whether some of them may count already."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from landonce.engine import dead_letters
from landonce.protocol.blocks import Kind, Plan
from landonce.protocol.ledger import LedgerState, Note
from landonce.protocol.ranges import Partition, Range


@dataclass
class Letters:
    """The dead letters of one pipeline, as its driver sees them."""

    folder: Path
    pipeline: str
    journal: Callable[[], tuple[Note, ...]] = tuple
    """What operators decided: a plan that one of them gave up is named there."""
    _ends: dict[Partition, int] | None = None
    _earlier: frozenset[str] = frozenset()
    _elsewhere: frozenset[str] = frozenset()
    """The same, in the folder of a plan that was made with another one."""

    def begin(self) -> None:
        """Before a driver takes the pipeline: all files that are there are of earlier ones, or of its own earlier life. What
        comes later may be a newer driver's, and is not this one's to take away."""
        self._ends = None
        self._earlier = dead_letters.found(self.folder, self.pipeline)

    def stem(self, plan: Plan, held: LedgerState) -> str:
        """What the plan's files are called."""
        return dead_letters.stem(self.pipeline, plan.batch, held.lineage)

    def publish(self, plan: Plan, held: LedgerState, names: Iterable[str]) -> None:
        """Makes them count, and puts away what other attempts at the plan left. Blocks that an operator took out of it, for their
        records are gone, have no receipt: their letters count too."""
        named = {name for name in names if name}
        stem, folder = self.stem(plan, held), self.folder_of(plan, held)
        again = bool(named) and (plan.kind is Kind.REPLAY or self._lettered_before(plan, held, folder))
        dead_letters.publish(folder, stem, named, read_again=again)
        if dead_letters.left(folder, stem) - named:
            dead_letters.publish_given_up(folder, stem, but={block.number for block in plan.blocks})
            earlier = self._earlier if folder == self.folder else self._elsewhere
            dead_letters.put_away(folder, stem, named, _labelled(plan, held), earlier)

    def folder_of(self, plan: Plan, held: LedgerState) -> Path:
        """Where the plan's letters are: in the folder that it was made with, if that holds any. The file may name another one by
        now, and a letter that is written again must not be in both."""
        before = Path(plan.letters or self.folder)
        return before if before != self.folder and dead_letters.left(before, self.stem(plan, held)) else self.folder

    def require(self, names: Iterable[str], folder: Path) -> None:
        """Before a commit that is to make them count: every file is here, where the driver can publish it."""
        dead_letters.require(folder, names)

    def publish_left(self, names: Iterable[str], where: str) -> None:
        """Files of a batch that an earlier driver committed and did not get to publish, from the folder that it staged them in. What
        it did publish is left alone, for people may have dealt with it by now; what it staged for a batch that it did not commit
        is removed."""
        listed = tuple(names)
        for folder in {self.folder, Path(where or self.folder)}:
            staged = [name for name in listed if dead_letters.is_staged(folder, name)]
            for plan in sorted({dead_letters.plan_of(name) for name in staged}):
                mine = [name for name in staged if dead_letters.plan_of(name) == plan]
                dead_letters.publish(folder, plan, mine, read_again=True)
        dead_letters.clear_staged(self.folder, self._earlier)

    def acquired(self, state: LedgerState) -> None:
        """A driver begins. What is staged of a last plan that is over is a zombie's, unless an operator gave it up: then it does
        not count, and goes only if it says nothing new."""
        stem = dead_letters.stem(self.pipeline, state.batch, state.lineage)
        if state.pending is not None:
            self._elsewhere = dead_letters.found(self.folder_of(state.pending, state), self.pipeline)
        files = dead_letters.left(self.folder, stem) if state.pending is None else ()
        if files and any(stem in note.detail for note in self.journal()):
            self.publish_given_up(state)
        elif files:
            dead_letters.put_away(self.folder, stem, dead_letters.counting(files), (), ())

    def given_up(self, held: LedgerState) -> str:
        """What the journal says of a pending plan that is given up."""
        stem = dead_letters.stem(self.pipeline, held.batch, held.lineage)
        return f"Dead letters that are staged of it ({stem}) count from then on."

    def publish_given_up(self, held: LedgerState) -> None:
        """What is staged of the last plan, whose records are gone."""
        folder = self.folder_of(held.pending, held) if held.pending is not None else self.folder
        dead_letters.publish_given_up(folder, dead_letters.stem(self.pipeline, held.batch, held.lineage))

    def _lettered_before(self, plan: Plan, held: LedgerState, folder: Path) -> bool:
        """Whether a ledger that was lost, restored or rolled back may have dead-lettered some of this. Looked up once.

        The kind of the plan does not tell: records that cannot land may be above all that the target holds.
        """
        if self._ends is None:
            self._ends = dead_letters.ends(self.folder, self.pipeline)
        ends = self._ends if folder == self.folder else dead_letters.ends(folder, self.pipeline)
        return any(
            each.first < ends.get(held.labelled(each.partition), 0) for block in plan.blocks for each in block.ranges
        )


class NoLetters(Letters):
    """Of a user's own query: every row must fit. What a pipeline of its name left is not touched."""

    def __init__(self) -> None:
        super().__init__(Path(), "")

    def begin(self) -> None: ...

    def stem(self, plan: Plan, held: LedgerState) -> str:
        del plan, held
        return ""

    def publish(self, plan: Plan, held: LedgerState, names: Iterable[str]) -> None: ...

    def folder_of(self, plan: Plan, held: LedgerState) -> Path:
        del plan, held
        return self.folder

    def require(self, names: Iterable[str], folder: Path) -> None: ...

    def publish_left(self, names: Iterable[str], where: str) -> None: ...

    def acquired(self, state: LedgerState) -> None: ...


def _labelled(plan: Plan, held: LedgerState) -> list[Range]:
    """The plan's ranges under the names that the target knows the topics by."""
    return [
        Range(held.labelled(each.partition), each.first, each.end) for block in plan.blocks for each in block.ranges
    ]
