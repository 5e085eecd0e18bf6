"""The worlds of users' own queries into an Iceberg table that are searched."""

from __future__ import annotations

from .snapshot_scenarios import REPLACED, UNCERTAIN
from .snapshot_values import Faults, Scenario

SCENARIOS = (
    Scenario("nothing fails, two queries of one name", ("AAA",), Faults(), own=True),
    Scenario("a query dies, answers are lost", ("AA",), Faults(crash=1, lost=1), own=True),
    Scenario("a query dies twice", ("AA",), Faults(crash=2, doubt=1), own=True, starts=3, alive=1, block_rows=1),
    Scenario("a zombie's commit comes late", ("AA",), Faults(late=1, crash=1), own=True, part=20_000),
    Scenario("three queries of one name", ("A",), Faults(lost=1), own=True, starts=3, alive=3, part=20_000),
    Scenario("records arrive", ("AAA",), Faults(crash=1), own=True, levels=((1,), (3,))),
    Scenario("rolled back", ("AA",), Faults(rollback=1, crash=1), own=True, part=20_000),
    Scenario("rolled back and set forward", ("AA",), Faults(rollback=1, forward=1), own=True, part=20_000),
    Scenario("somebody else writes too", ("AA",), Faults(crash=1, foreign=1, compact=1), own=True, part=20_000),
    Scenario(
        "the position is lost with the table's history",
        ("AA",),
        Faults(rollback=1, foreign=1, expire=1),
        own=True,
        alive=1,
        halts=UNCERTAIN,
        part=20_000,
    ),
    Scenario("dropped and made again", ("AA",), Faults(replace=1, crash=1), own=True, halts=REPLACED),
)
