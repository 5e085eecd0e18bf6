"""The worlds of a database with rows and ledger that are searched. All of their worlds are seen, but where `part` says how many."""

from __future__ import annotations

from .transaction_values import Faults, Scenario

SCENARIOS = (
    Scenario("nothing fails, two drivers", ("AAA",), Faults(), max_rows=(2,), block_rows=1),
    Scenario("a driver dies, answers are lost", ("AA",), Faults(crash=1, lost=1, unsure=1), block_rows=1),
    Scenario("workers outlive their driver", ("AA",), Faults(abandon=1, lost=1), max_rows=(1, 2)),
    Scenario("workers outlive two drivers", ("A",), Faults(abandon=2), starts=3, alive=3),
    Scenario("tasks run again", ("AA",), Faults(rerun=2, crash=1), block_rows=1, alive=1),
    Scenario("the database is restarted", ("AA",), Faults(server=1, crash=1, rerun=1), block_rows=1),
    Scenario("commits come late", ("AA",), Faults(lost=2, abandon=1), max_rows=(2, 1)),
    Scenario("three drivers", ("AA",), Faults(crash=1), starts=3, alive=3),
    Scenario("records arrive", ("AAA", "A"), Faults(crash=1, lost=1), levels=((1, -1), (3, 1)), max_rows=(2, 3)),
    Scenario("dead letters, filtered records", ("A!", "-"), Faults(crash=2, lost=1), starts=3, alive=1, block_rows=1),
    Scenario(
        "too many dead letters",
        ("A!A!",),
        Faults(crash=2, lost=1),
        starts=4,
        alive=1,
        max_rows=(1, 2, 1, 2),
        block_rows=1,
        limits=(0.3, 0.3, 0.3, 1.0),
        floor=2,
        halts=("TooManyDeadLetters",),
    ),
    Scenario(
        "too many dead letters after good records",
        ("AA!!",),
        Faults(crash=2, lost=1),
        starts=4,
        alive=1,
        max_rows=(2, 1, 1, 1),
        block_rows=1,
        limits=(0.5, 0.5, 0.5, 1.0),
        floor=2,
        halts=("TooManyDeadLetters",),
    ),
    Scenario(
        "one bad record is too many",
        ("AA!",),
        Faults(abandon=1, lost=1),
        max_rows=(3, 1),
        block_rows=1,
        limits=(0.3, 0.3),
        halts=("TooManyDeadLetters",),
    ),
    Scenario("columns are added", ("AA",), Faults(wants=1, crash=1, abandon=1), block_rows=1),
    Scenario("keyed: two drivers", ("AAA", "A"), Faults(crash=1, lost=1), keyed=True, max_rows=(4,), block_rows=2),
    Scenario("keyed: workers outlive their driver", ("AAA",), Faults(abandon=1, lost=1), keyed=True, block_rows=2),
    Scenario("the transform changes", ("AA",), Faults(crash=1), fingerprints=("f", "g"), block_rows=1),
    Scenario(
        "the ledger is lost", ("AA",), Faults(crash=1, lose=1), max_rows=(1,), starts=3, alive=1, halts=("TargetAhead",)
    ),
    Scenario(
        "the ledger is lost, and the pipeline begins at the end",
        ("AAA",),
        Faults(lose=1),
        levels=((1,), (2,), (3,)),
        max_rows=(1,),
        starts=3,
        alive=1,
        latest=True,
        halts=("TargetAhead",),
    ),
    Scenario(
        "the database is restored under its drivers",
        ("AA",),
        Faults(restore=1, abandon=1),
        max_rows=(2, 1),
        halts=("Fenced", "LedgerSetBack", "Unbalanced"),
    ),
)
