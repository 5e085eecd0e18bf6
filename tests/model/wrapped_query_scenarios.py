"""The worlds of users' own queries into a wrapped sink that are searched."""

from __future__ import annotations

from .wrapped_scenarios import UNKNOWN
from .wrapped_values import Faults, Scenario

SCENARIOS = (
    Scenario("nothing fails, two queries of one name", ("AA",), Faults(), clock=2),
    Scenario("harmless: a query dies, an answer is lost", ("AA",), Faults(crash=1, lost=1), True, alive=1, clock=3),
    Scenario("probe: a query dies, an answer is lost", ("AA",), Faults(crash=1, lost=1), alive=1, clock=3),
    Scenario("probe: a query dies twice", ("AA",), Faults(crash=2), starts=3, alive=1, block_rows=1, clock=3),
    Scenario("probe: a worker outlives its query", ("AA",), Faults(abandon=1, vanish=1), alive=1, clock=4),
    Scenario("no probe: a worker outlives its query", ("AA",), Faults(abandon=1), probe=False, halts=UNKNOWN, alive=1),
    Scenario("probe: tasks run again", ("A",), Faults(rerun=1, crash=1), alive=1, clock=3),
    Scenario("probe: the ledger does not answer", ("AA",), Faults(unsure=1, crash=1), alive=1, clock=3),
    Scenario(
        "probe: the query is another one", ("AA",), Faults(crash=1, lost=1), fingerprints=("f", "g"), alive=1, clock=3
    ),
    Scenario("probe: pushes are refused", ("AA",), Faults(refused=1, crash=1), alive=1, clock=3),
)
