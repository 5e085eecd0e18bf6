"""What there is to read: every coordinate that ever exists is a bit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .core import Core
from .values import Routed

TOPIC = "t"


class Topics:
    """The records of a scenario, and what is meant for which table."""

    def __init__(self, core: Core, scenario: Routed) -> None:
        self.core, self.scenario = core, scenario
        self.levels = scenario.levels or (tuple(len(each) for each in scenario.routes),)
        self.partitions = [core.ranges.Partition(TOPIC, number) for number in range(len(scenario.routes))]
        places = [
            (number, offset, letter)
            for number, letters in enumerate(scenario.routes)
            for offset, letter in enumerate(letters)
            if letter != " "
        ]
        self.bit = {(number, offset): 1 << index for index, (number, offset, _) in enumerate(places)}
        self.dead = sum(self.bit[number, offset] for number, offset, letter in places if letter == "!")
        self.filtered = sum(self.bit[number, offset] for number, offset, letter in places if letter == "-")
        self.meant = [
            sum(self.bit[number, offset] for number, offset, letter in places if letter in (table, "*"))
            for table in scenario.tables
        ]
        self._withins: dict[tuple[int, int, int], int] = {}
        self._surveys: dict[tuple[int, int, bool], Any] = {}

    def name(self, bits: int) -> str:
        return " ".join(f"{TOPIC}[{number}]@{offset}" for (number, offset), bit in self.bit.items() if bit & bits)

    def within(self, number: int, first: int, end: int) -> int:
        known = self._withins.get((number, first, end))
        if known is None:
            known = sum(bit for (at, offset), bit in self.bit.items() if at == number and first <= offset < end)
            self._withins[number, first, end] = known
        return known

    def below(self, positions: Any) -> int:
        """What a state's positions say is done."""
        return sum(self.within(at.number, each.first, each.committed) for at, each in positions)

    def of(self, ranges: Iterable[Any]) -> int:
        return sum(self.within(each.partition.number, each.first, each.end) for each in ranges)

    def tops(self, bits: int) -> tuple[tuple[Any, int], ...]:
        """The last of these in each partition."""
        found = {number: offset for (number, offset), bit in self.bit.items() if bit & bits}
        return tuple((self.partitions[number], offset) for number, offset in sorted(found.items()))

    def due(self, level: int, promised: tuple[int, ...]) -> int:
        """What has to be somewhere in the end."""
        begins = dict(enumerate(promised))
        return sum(self.within(number, begins.get(number, 0), end) for number, end in enumerate(self.levels[level]))

    def above(self, floors: Any) -> int:
        """What a table with these floors may get."""
        floored = {at.number: floor for at, floor in floors}
        return sum(bit for (number, offset), bit in self.bit.items() if offset >= floored.get(number, 0))

    def surveyed(self, level: int, max_rows: int, look: bool) -> Any:
        known = self._surveys.get((level, max_rows, look))
        if known is None:
            extents = tuple(
                (partition, self.core.source.Extent(0, end))
                for partition, end in zip(self.partitions, self.levels[level], strict=True)
                if end >= 0
            )
            known = self.core.steps.Surveyed(
                source=self.core.source.SourceView("cluster", ((TOPIC, "id"),), extents),
                target_now=0,
                limits=self.core.packing.Limits(max_rows, self.scenario.block_rows),
                patience=0,
                look=look,
            )
            self._surveys[level, max_rows, look] = known
        return known
