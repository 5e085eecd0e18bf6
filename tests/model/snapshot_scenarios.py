"""The worlds of tables with snapshots that are searched. All of their worlds are seen, but where `part` says how many."""

from __future__ import annotations

from .snapshot_values import Faults, Scenario

UNCERTAIN = ("PositionUncertain",)
REPLACED = ("TableReplaced",)

OWN = (
    Scenario("own: nothing fails, two drivers", ("AAA",), Faults(), own=True, max_rows=(2,)),
    Scenario("own: a driver dies, answers are lost", ("AA",), Faults(crash=1, lost=1), own=True),
    Scenario("own: somebody else writes too", ("AA",), Faults(crash=1, foreign=1), own=True, max_rows=(1,)),
    Scenario("own: three drivers", ("A",), Faults(rollback=1), own=True, starts=3, alive=3, part=6_000),
    Scenario("own: rolled back", ("AA",), Faults(rollback=1, crash=1, lost=1), own=True, max_rows=(1,), part=6_000),
    Scenario("own: rolled back twice", ("AA",), Faults(rollback=2, crash=1), own=True, max_rows=(1,), part=6_000),
    Scenario(
        "own: a commit comes late", ("AA",), Faults(late=1, rollback=1, crash=1), own=True, max_rows=(1,), part=6_000
    ),
    Scenario(
        "own: rolled back and set forward", ("AA",), Faults(rollback=1, forward=1), own=True, max_rows=(1,), part=6_000
    ),
    Scenario(
        "own: history expires",
        ("AA",),
        Faults(rollback=1, foreign=1, compact=1, expire=1),
        own=True,
        max_rows=(1,),
        alive=1,
        halts=UNCERTAIN,
        part=6_000,
    ),
    Scenario(
        "own: set forward, and history expires",
        ("AA",),
        Faults(rollback=1, forward=1, foreign=1, expire=1),
        own=True,
        max_rows=(1,),
        alive=1,
        halts=UNCERTAIN,
        part=6_000,
    ),
    Scenario(
        "own: dropped and made again",
        ("AA",),
        Faults(replace=1, crash=1, rollback=1),
        own=True,
        max_rows=(1,),
        halts=REPLACED,
        part=6_000,
    ),
    Scenario("own: dead letters", ("A!", "-"), Faults(crash=2, rollback=1), own=True, starts=3, alive=1),
    Scenario(
        "own: records arrive, drivers wait",
        ("AAA", "A"),
        Faults(rollback=1, crash=1),
        own=True,
        once=False,
        levels=((1, -1), (3, 1)),
        part=6_000,
    ),
    Scenario(
        "own: a rollback is not followed",
        ("AA",),
        Faults(rollback=1, crash=1),
        own=True,
        max_rows=(1,),
        follow=False,
        halts=("RollbackRefused",),
    ),
)

SLOW = (
    Scenario(
        "own: blocks are slow",
        ("AAA", "AA"),
        Faults(slow=2, crash=1, lost=1),
        own=True,
        max_rows=(4,),
        block_rows=1,
        alive=1,
    ),
    Scenario(
        "own: blocks are slow, and a table is rolled back",
        ("AA", "A"),
        Faults(slow=1, crash=1, rollback=1),
        own=True,
        block_rows=1,
        part=6_000,
    ),
    Scenario(
        "fan-out: blocks are slow",
        ("AB", "*A"),
        Faults(slow=2, crash=1, lost=1),
        tables="AB",
        max_rows=(4, 2),
        block_rows=1,
        part=6_000,
    ),
    Scenario(
        "fan-out: blocks are slow, one driver",
        ("AB*", "*!"),
        Faults(slow=2, doubt=1, lost=1),
        tables="AB",
        block_rows=1,
        starts=1,
    ),
    Scenario(
        "fan-out: blocks are slow, and a table is rolled back",
        ("**", "*A"),
        Faults(slow=1, rollback=1),
        tables="AB",
        max_rows=(2,),
        block_rows=1,
        starts=1,
    ),
    Scenario(
        "fan-out: blocks are slow, and the ledger is restored",
        ("*A", "B"),
        Faults(slow=1, restore=1, crash=1),
        tables="AB",
        block_rows=1,
        alive=1,
        starts=3,
        part=6_000,
    ),
    Scenario(
        "fan-out: blocks are slow, and tables are made",
        ("A", "*"),
        Faults(slow=1, crash=1),
        tables="AB",
        absent="B",
        block_rows=1,
        halts=REPLACED,
    ),
)

FAN_OUT = (
    Scenario("fan-out: nothing fails, two drivers", ("AB*",), Faults(), tables="AB", max_rows=(2,)),
    Scenario("fan-out: one driver, answers are lost", ("*AB",), Faults(lost=2), tables="AB", max_rows=(1,), starts=1),
    Scenario("fan-out: a driver dies, answers are lost", ("AB*",), Faults(crash=1, lost=1), tables="AB", max_rows=(2,)),
    Scenario("fan-out: rolled back", ("*AB",), Faults(crash=1, rollback=1), tables="AB", max_rows=(2,)),
    Scenario("fan-out: rolled back twice", ("**",), Faults(crash=1, rollback=2), tables="AB", max_rows=(1,), alive=1),
    Scenario(
        "fan-out: rolled back under a zombie", ("*A",), Faults(rollback=2), tables="AB", max_rows=(1,), part=6_000
    ),
    Scenario(
        "fan-out: many blocks",
        ("A**B",),
        Faults(rollback=1, doubt=1),
        tables="AB",
        max_rows=(3,),
        block_rows=1,
        starts=1,
    ),
    Scenario(
        "fan-out: three tables",
        ("*A", "B*"),
        Faults(rollback=2, crash=1),
        tables="ABC",
        max_rows=(2,),
        alive=1,
        part=6_000,
    ),
    Scenario(
        "fan-out: a commit comes late", ("*A",), Faults(late=1, rollback=1), tables="AB", max_rows=(1,), part=6_000
    ),
    Scenario(
        "fan-out: rolled back and set forward", ("*A",), Faults(forward=1, rollback=1), tables="AB", max_rows=(1,)
    ),
    Scenario(
        "fan-out: the ledger is lost",
        ("*AB", "*A"),
        Faults(crash=2, lose=1),
        tables="AB",
        max_rows=(4, 2, 3),
        levels=((2, 1), (3, 2)),
        starts=3,
        alive=1,
    ),
    Scenario(
        "fan-out: the ledger is lost, and the pipeline begins at the end",
        ("**AB",),
        Faults(crash=1, lose=1),
        tables="AB",
        max_rows=(1, 2),
        levels=((1,), (2,), (4,)),
        latest=True,
        alive=1,
    ),
    Scenario(
        "fan-out: the ledger is lost, and tables are rolled back",
        ("*AB",),
        Faults(crash=1, lose=1, rollback=2),
        tables="AB",
        max_rows=(2, 1),
        alive=1,
    ),
    Scenario(
        "fan-out: the ledger is lost in the middle of a replay",
        ("**",),
        Faults(crash=1, lose=1, rollback=2, forward=1),
        tables="AB",
        max_rows=(1,),
        starts=1,
        halts=("TargetAhead",),
    ),
    Scenario(
        "fan-out: the ledger is restored",
        ("*AB", "*A"),
        Faults(crash=1, restore=1),
        tables="AB",
        max_rows=(4, 2, 3),
        levels=((2, 1), (3, 2)),
        starts=3,
        alive=1,
    ),
    Scenario(
        "fan-out: the ledger is restored, and a table is rolled back",
        ("*AB",),
        Faults(crash=1, restore=1, rollback=1),
        tables="AB",
        max_rows=(2, 1, 3),
        starts=3,
        alive=1,
        part=6_000,
    ),
    Scenario(
        "fan-out: the ledger is restored under a driver",
        ("*A",),
        Faults(restore=1),
        tables="AB",
        max_rows=(1, 2),
        careless=True,
        halts=("Fenced", "LedgerSetBack", "TargetAhead"),
    ),
    Scenario(
        "fan-out: history expires",
        ("*AB",),
        Faults(foreign=1, compact=1, expire=1, rollback=1),
        tables="AB",
        max_rows=(2,),
        starts=1,
        halts=UNCERTAIN,
    ),
    Scenario(
        "fan-out: set forward, and history expires",
        ("*A",),
        Faults(rollback=1, forward=1, foreign=1, expire=1),
        tables="AB",
        max_rows=(1,),
        alive=1,
        halts=UNCERTAIN,
    ),
    Scenario(
        "fan-out: a table is dropped and made again",
        ("*AB",),
        Faults(crash=1, replace=1),
        tables="AB",
        max_rows=(2,),
        halts=REPLACED,
    ),
    Scenario(
        "fan-out: tables are made as records name them",
        ("AB*",),
        Faults(crash=1, rollback=1, drop=1),
        tables="AB",
        absent="B",
        max_rows=(3,),
        block_rows=1,
        halts=REPLACED,
    ),
    Scenario(
        "fan-out: dead letters, filtered records", ("A!", "-B"), Faults(crash=1, rollback=1), tables="AB", max_rows=(2,)
    ),
    Scenario(
        "fan-out: records arrive, drivers wait",
        ("*AB",),
        Faults(rollback=1, crash=1),
        tables="AB",
        once=False,
        levels=((1,), (3,)),
        part=6_000,
    ),
    Scenario(
        "fan-out: a rollback is not followed",
        ("*A",),
        Faults(rollback=1, crash=1),
        tables="AB",
        max_rows=(1,),
        follow=False,
        halts=("RollbackRefused",),
    ),
    Scenario(
        "fan-out: the transform changes", ("*A",), Faults(crash=1), tables="AB", max_rows=(1,), fingerprints=("f", "g")
    ),
)

SCENARIOS = OWN + FAN_OUT + SLOW

# What the protocol does not withstand, and says so: each must be found, or the fakes are kinder than the world.
BEYOND = (
    Scenario(
        "the ledger is restored under a driver, and a table is rolled back",
        ("*A",),
        Faults(restore=1, rollback=1),
        tables="AB",
        max_rows=(1, 2),
        careless=True,
        halts=("Fenced", "LedgerSetBack", "TargetAhead"),
    ),
    Scenario(
        "the ledger is lost, and a table is made again",
        ("**",),
        Faults(lose=1, replace=1),
        tables="AB",
        max_rows=(1,),
        starts=1,
        halts=REPLACED,
    ),
)
