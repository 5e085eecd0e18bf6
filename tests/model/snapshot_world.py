"""The world around the protocol of snapshots: drivers, tables, the ledger, and everything that can happen to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .core import Core
from .search import Found
from .snapshot_drivers import LAST, Step
from .snapshot_effects import Effects
from .snapshot_values import KINDS, NONE, Agent, Lake, Scenario
from .values import Violation

PATIENCE = 200
"""Steps that a run without faults may take before it counts as never ending."""
ROUNDS = 40
QUIET = (0,) * len(KINDS)


class Snapshots(Effects):
    """Every step that a world of this scenario can take, and what must hold in each."""

    def __init__(self, core: Core, scenario: Scenario) -> None:
        super().__init__(core, scenario)
        self._happenings = {
            "rollback": self.tables.rolled_back,
            "forward": self.tables.rolled_forward,
            "foreign": self.tables.written_by_others,
            "compact": self.tables.compacted,
            "expire": self.tables.expired,
            "replace": self.tables.made_again,
            "drop": self.tables.dropped,
        }

    def first(self) -> Lake:
        left = tuple(getattr(self.scenario.faults, kind) for kind in KINDS)
        return Lake(0, self._fresh(0), NONE, self.tables.first(), (), (), 0, left, 0, (), "")

    def _fresh(self, life: int) -> int:
        return self.ledgers.of(self.core.ledger.LedgerState("p", f"lineage {life}"))

    # ── all steps ───────────────────────────────────────────────────────────────────────────────────────────────────

    def steps(self, world: Lake) -> Iterator[Step]:
        for agent in world.drivers:
            yield from self.driver_steps(world, agent)
        if world.starts < self.scenario.starts and len(world.drivers) < self.scenario.alive:
            yield from self.starts(world)
        if world.level + 1 < len(self.topics.levels):
            yield "records arrive", world._replace(level=world.level + 1)
        for agent in world.drivers:
            if self.left(world, "crash"):
                yield from self._deaths(world, agent)
        yield from self._arrivals(world)
        for kind, happen in self._happenings.items():
            if self.left(world, kind):
                for table, number in enumerate(world.tables):
                    for what, after in happen(number):
                        spent = self.touch(self.spend(world, kind), table, after)
                        yield f"table {self.scenario.tables[table]} {what}", self._prune(spent)
        yield from self._ledger_steps(world)

    def starts(self, world: Lake) -> Iterator[Step]:
        yield self.start(world)

    def _deaths(self, world: Lake, agent: Agent) -> Iterator[Step]:
        dead = self.spend(self.leave(world, agent), "crash")
        yield f"driver {agent.number} dies", dead
        if agent.attempt is not None and self.left(world, "late"):
            yield f"driver {agent.number} dies, its commit is on its way", self.fly(dead, agent.attempt)

    def _arrivals(self, world: Lake) -> Iterator[Step]:
        for flight in world.flights:
            if self.tables.fits(world.tables[flight.table], flight):
                rest = list(world.flights)
                rest.remove(flight)
                rows = self.topics.name(flight.rows) or "nothing"
                after = self.arrive(world._replace(flights=tuple(rest)), flight)
                yield f"late commit: table {self.scenario.tables[flight.table]} takes {rows}", after

    def _prune(self, world: Lake) -> Lake:
        """A commit whose head has gone comes to nothing, unless the table may go back to it."""
        if not world.flights or self.left(world, "rollback") or self.left(world, "forward"):
            return world
        flights = tuple(each for each in world.flights if self.tables.fits(world.tables[each.table], each))
        return world._replace(flights=flights)

    def _ledger_steps(self, world: Lake) -> Iterator[Step]:
        rest = self.scenario.careless or not (world.drivers or world.flights)
        if self.left(world, "restore"):
            if world.backup == NONE:
                yield "the ledger is backed up", world._replace(backup=world.ledger)
            elif rest and world.backup != world.ledger:
                yield "the ledger is restored", self.spend(world, "restore")._replace(ledger=world.backup)
        marked = any(self.tables.tabs.values[each].copy != NONE for each in world.tables)
        if self.left(world, "lose") and rest and (marked or not self.scenario.latest):  # else it is a first start
            yield "the ledger is lost", self.spend(world, "lose")._replace(ledger=self._fresh(1))

    # ── what must hold ──────────────────────────────────────────────────────────────────────────────────────────────

    def wrong(self, world: Lake) -> str:
        for table, number in enumerate(world.tables):
            wrong = self.tables.wrong(number, table)
            if wrong:
                return wrong
        return ""

    def rests(self, world: Lake) -> Iterator[tuple[str, Lake]]:
        """From every world all ends well, whoever is left of the drivers, if nothing more goes wrong."""
        tables = tuple(self.tables.pruned(each) for each in world.tables)
        alone = world._replace(backup=NONE, tables=tables, flights=(), left=QUIET, starts=LAST)
        yield "everybody dies", alone._replace(drivers=())
        for agent in world.drivers:
            yield f"only driver {agent.number} goes on", alone._replace(drivers=(agent,))

    def finish(self, world: Lake, known: dict[Lake, None]) -> Found | None:
        """Whoever is left, and then one more driver: every record is exactly where it should be.

        `known` are worlds that end well; all worlds on the way to such an end are added to it.
        """
        schedule: list[str] = []
        way: list[Lake] = []
        for _ in range(PATIENCE):
            if world in known:
                self._remember(known, way)
                return None
            if self._at_rest(world, way):
                wrong = self._unfinished(world)
                if wrong:
                    return Found(wrong, tuple(schedule))
                self._remember(known, way)
                return None
            way.append(world)
            label, after = self._next(world)
            schedule.append(label)
            wrong = after.what if isinstance(after, Violation) else self.wrong(after)
            if isinstance(after, Violation) or wrong:
                return Found(wrong, tuple(schedule))
            world = after
        return Found("a run without faults does not come to an end", (*schedule[:ROUNDS], "… and so on"))

    def _remember(self, known: dict[Lake, None], way: list[Lake]) -> None:
        known.update(dict.fromkeys(way))

    def _next(self, world: Lake) -> Step:
        if world.drivers:
            return next(self.driver_steps(world, world.drivers[0]))
        return self.start(world, patient=True)

    def _at_rest(self, world: Lake, way: list[Lake]) -> bool:
        """The last driver has left, or whoever is there waits, looks, and waits again."""
        if not world.drivers:
            return world.starts > LAST
        waits = isinstance(self.effects.values[world.drivers[0].effect], self.core.steps.Idle)
        return waits and world in way

    def _unfinished(self, world: Lake) -> str:
        if world.halted:
            return ""
        due = self.topics.due(world.level, world.promised)
        for table, number in enumerate(world.tables):
            missing = due & self.topics.meant[table] & ~self.tables.total(self.tables.tabs.values[number])
            if missing:
                return f"in the end {self.topics.name(missing)} is not in table {self.scenario.tables[table]}"
        if due & self.topics.dead & ~world.letters:
            return f"in the end {self.topics.name(due & self.topics.dead & ~world.letters)} is not dead-lettered"
        state = self._status(world)
        ends = tuple(end for end in self.topics.levels[world.level] if end >= 0)
        if tuple(each.committed for _, each in state.positions) != ends:
            return "in the end the committed position is not at the end of the topic"
        return ""

    def _status(self, world: Lake) -> Any:
        """The ledger's state."""
        if not self.scenario.own:
            return self.ledgers.values[world.ledger]
        view = self.tables.owns.values[self.tables.own(world.tables[0])]
        return view.valid.state
