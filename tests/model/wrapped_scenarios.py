"""The worlds of wrapped sinks that are searched. All of their worlds are seen, but where `part` says how many."""

from __future__ import annotations

from .wrapped_values import Faults, Scenario

UNKNOWN = ("OutcomeUnknown",)

SCENARIOS = (
    Scenario("nothing fails, two drivers", ("AAA",), Faults(), max_rows=(2,), block_rows=1, clock=2),
    Scenario(
        "harmless: answers are lost",
        ("AA",),
        Faults(crash=1, lost=1, vanish=1, unsure=1),
        True,
        block_rows=1,
        part=6_000,
    ),
    Scenario("harmless: workers outlive their driver", ("AA",), Faults(abandon=1, lost=1, late=1), True, part=6_000),
    Scenario(
        "harmless: tasks run again",
        ("AA",),
        Faults(rerun=2, crash=1),
        True,
        block_rows=1,
        alive=1,
        clock=2,
        part=6_000,
    ),
    Scenario("probe: a driver dies", ("A",), Faults(crash=1, lost=1, vanish=1), part=6_000),
    Scenario(
        "probe: the ledger does not answer", ("AA",), Faults(crash=1, unsure=1), block_rows=1, clock=3, part=6_000
    ),
    Scenario("probe: workers outlive their driver", ("A",), Faults(abandon=1, lost=1, vanish=1), part=6_000),
    Scenario("probe: one worker outlives its driver", ("A",), Faults(abandon=1), alive=1, clock=3),
    Scenario("probe: two look at once", ("A",), Faults(rerun=1, vanish=1), starts=1, alive=1, clock=3),
    Scenario(
        "no probe: one worker outlives its driver",
        ("A",),
        Faults(abandon=1),
        probe=False,
        halts=UNKNOWN,
        alive=1,
        clock=3,
    ),
    Scenario(
        "probe: a sink is declared again",
        ("A",),
        Faults(abandon=1, vanish=1),
        waits=(2, 1),
        alive=1,
        clock=5,
    ),
    Scenario("probe: workers outlive two drivers", ("A",), Faults(abandon=2), starts=3, alive=3, clock=4, part=6_000),
    Scenario("probe: tasks run again", ("A",), Faults(rerun=2, vanish=1), alive=1, part=6_000),
    Scenario("probe: pushes are refused", ("A",), Faults(refused=1, rerun=1, crash=1), part=6_000),
    Scenario("probe: in order", ("AAA",), Faults(abandon=1, vanish=1), max_rows=(2, 3), block_rows=2, part=6_000),
    Scenario("probe: two partitions", ("A", "A"), Faults(crash=1, lost=1), clock=3, part=6_000),
    Scenario(
        "no probe: a driver dies",
        ("AA",),
        Faults(crash=1, lost=1, vanish=1),
        probe=False,
        halts=UNKNOWN,
        block_rows=1,
        part=6_000,
    ),
    Scenario(
        "no probe: tasks run again",
        ("A",),
        Faults(rerun=1, vanish=1, abandon=1),
        probe=False,
        halts=UNKNOWN,
        part=6_000,
    ),
    Scenario("no probe: pushes are refused", ("AA",), Faults(refused=2, crash=1), probe=False, halts=UNKNOWN, clock=3),
    Scenario("dead letters, filtered records", ("A!", "-"), Faults(crash=2), starts=3, alive=1, block_rows=1, clock=3),
    Scenario(
        "a block without rows", ("!-", "A"), Faults(crash=1, rerun=1), probe=False, halts=UNKNOWN, clock=3, part=6_000
    ),
    Scenario(
        "records arrive", ("AAA", "A"), Faults(crash=1), levels=((1, -1), (3, 1)), max_rows=(2, 3), clock=3, part=6_000
    ),
    Scenario("the transform changes", ("AA",), Faults(crash=1), fingerprints=("f", "g"), block_rows=1, clock=3),
    Scenario("three drivers", ("A",), Faults(crash=1, lost=1), starts=3, alive=3, clock=4, part=6_000),
)
