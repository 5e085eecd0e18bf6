"""The folder of dead letters in worlds with drivers that replay them.

One number of the world (`held_in`) has the letters in its low bits, and above them which letters are stored for which plans (`STEM.replay`).
A letter is stored before PREPARE, read by workers, and taken out after RECORD, by whoever comes to it: its own driver, or the next that
acquires the pipeline. Between RECORD and that, a driver may die.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from .core import Core
from .values import Table

_LETTERS = 16
LOW = (1 << _LETTERS) - 1
W = TypeVar("W", bound=Any)
Files = frozenset[tuple[int, str, int]]


class Folder:
    """The production rules say which letters may land, and when they are taken out of their files."""

    def __init__(self, core: Core, held_in: str, bit: Mapping[tuple[int, int], int], topic: str, dead: int) -> None:
        self.core, self._held_in, self._bit, self._topic, self._dead = core, held_in, bit, topic, dead
        self._stored = Table()
        self._stored.of(frozenset())

    def letters(self, world: Any) -> int:
        return int(getattr(world, self._held_in)) & LOW

    def files(self, world: Any) -> Files:
        """(batch, lineage, letters) of each plan whose letters are stored."""
        found: Files = self._stored.values[getattr(world, self._held_in) >> _LETTERS]
        return found

    def holding(self, world: W, letters: int, files: Files) -> W:
        held: W = world._replace(**{self._held_in: letters | self._stored.of(files) << _LETTERS})
        return held

    def storing(self, world: W, state: Any) -> W:
        """Before PREPARE: the letters of the plan that is about to be pending."""
        plan = state.pending
        stored = (plan.batch, state.lineage, self.of_plan(plan))
        return self.holding(world, self.letters(world), self.files(world) | {stored})

    def landing(self, world: W, state: Any, delivered: int) -> W:
        """Before RECORD, as `engine.publish.Letters.landing`: the letters of records that a plan delivers again and does not reject."""
        files = frozenset(each for each in self.files(world) if each[:2] != (state.batch, state.lineage))
        gone = self.letters(world) & delivered
        return self.holding(world, self.letters(world), files | {(state.batch, state.lineage, gone)} if gone else files)

    def of_plan(self, plan: Any) -> int:
        """Its letters: the driver's survey said which."""
        return int(plan.blocks[0].shard or self._dead)

    def settled(self, world: W, state: Any, *, owner: bool) -> W:
        """As `engine.replay.settle_left`: the production rule says what is done."""
        letters, files = self.letters(world), self.files(world)
        for batch, lineage, bits in sorted(files):
            mine = (batch, lineage) == (state.batch, state.lineage)
            if mine and self.core.letters.landed_for_good(state, batch, lineage):
                letters &= ~bits
                files -= {(batch, lineage, bits)}
            elif not mine and owner:
                files -= {(batch, lineage, bits)}
        return self.holding(world, letters, files)

    def chosen(self, world: Any, held: Any, among: int = LOW) -> Any:
        """The letters that may land, as `engine.replay.Replay` chooses them; None where there are none."""
        places = [
            (self.core.ranges.Partition(self._topic, number), offset)
            for (number, offset), bit in self._bit.items()
            if bit & self.letters(world) & among
        ]
        mine = [place for place in places if self.core.letters.partition_of(held, *place) is not None]
        bits = sum(self._bit[place.number, offset] for place, offset in mine)
        return self.core.letters.LetterBatch(str(bits), tuple(self.core.letters.covering(mine, 8))) if mine else None

    def moving(self, world: Any, state: Any) -> int:
        """Letters of a replay that is on its way: they may be in the target already."""
        files = self.files(world)
        return sum(bits for batch, lineage, bits in files if (batch, lineage) == (state.batch, state.lineage))
