"""The worlds of users' own queries into a database that are searched."""

from __future__ import annotations

from .transaction_values import Faults, Scenario

SCENARIOS = (
    Scenario("nothing fails, two queries of one name", ("AA",), Faults()),
    Scenario("a query dies, an answer is lost", ("AA",), Faults(crash=1, lost=1), alive=1),
    Scenario("workers outlive their query", ("AA",), Faults(abandon=1), starts=2),
    Scenario("tasks run again", ("AA",), Faults(rerun=1, crash=1), alive=1),
    Scenario("a query dies twice", ("AA",), Faults(crash=2), starts=3, alive=1, block_rows=1),
    Scenario("the ledger does not answer", ("AA",), Faults(unsure=1, crash=1), alive=1),
    Scenario("the database is restarted", ("AA",), Faults(server=1, crash=1), alive=1),
    Scenario("the query is another one", ("AA",), Faults(crash=1, lost=1), fingerprints=("f", "g"), alive=1),
    Scenario("the ledger is lost", ("AA",), Faults(crash=1, lose=1), starts=3, alive=1, halts=("TargetAhead",)),
)
