"""The worlds that are searched. All of their worlds are seen, but where `part` says how many."""

from __future__ import annotations

from .values import Faults, Scenario

TWO = ((2,),)
"""One Kafka partition with two records: one block over two table partitions."""
PAIR = ((2, 1),)
"""Two Kafka partitions in one block."""
GROWS = ((1, 1), (2, 1))
TINY = ((1,),)

SCENARIOS = (
    Scenario("nothing fails, two drivers", PAIR, Faults()),
    Scenario("a driver dies, an answer is lost", PAIR, Faults(crash=1, lost=1)),
    Scenario("a zombie, and the target forgets", TWO, Faults(lost=1, forget=1)),
    Scenario("workers outlive their driver", TWO, Faults(abandon=1, lost=1, forget=1), clock=5, part=20_000),
    Scenario("Spark runs a task again", TWO, Faults(rerun=1, crash=1, forget=1), part=20_000),
    Scenario("a token is used up, twice", TWO, Faults(burn=2, crash=1), clock=6, part=20_000),
    Scenario("a token is used up under a zombie", TWO, Faults(burn=1, lost=1, forget=1), clock=6, part=20_000),
    Scenario("the server dies, inserts end in errors", TWO, Faults(server=1, refused=1, crash=1), clock=5, part=20_000),
    Scenario("the ledger does not answer", TWO, Faults(unsure=2, crash=1), starts=3, part=20_000),
    Scenario(
        "records arrive, two blocks", GROWS, Faults(crash=1, lost=1), block_rows=1, table_partitions=1, part=20_000
    ),
    Scenario("records arrive, one block", GROWS, Faults(crash=1), table_partitions=1),
    Scenario("the batch is smaller than the topic", ((3, 1),), Faults(crash=1), max_rows=2, table_partitions=1),
    Scenario(
        "a new deadline, a late insert",
        TINY,
        Faults(crash=2, forget=1),
        table_partitions=1,
        starts=3,
        alive=1,
        clock=6,
    ),
    Scenario(
        "two tables, a token is used up, a driver dies",
        TWO,
        Faults(burn=1, crash=1),
        table_partitions=1,
        tables=2,
        clock=5,
        part=20_000,
    ),
    Scenario(
        "two tables, an answer is lost, workers outlive their driver",
        TWO,
        Faults(lost=1, abandon=1),
        table_partitions=1,
        tables=2,
        part=20_000,
    ),
    Scenario("the ledger is restored", TWO, Faults(crash=1, restore=1)),
    Scenario("restored, with a token that is used up", TWO, Faults(crash=1, burn=1, restore=1), part=20_000),
    Scenario("restored, with another cut", ((1,), (3,)), Faults(crash=1, restore=1), block_rows=2, part=20_000),
    Scenario(
        "restored twice over",
        TWO,
        Faults(crash=2, restore=1, lose=1, forget=1),
        starts=3,
        alive=1,
        clock=6,
        part=20_000,
    ),
    Scenario("restored under a zombie", TWO, Faults(restore=1, crash=1), starts=3, zombie_restore=True, part=20_000),
    Scenario(
        "an epoch is handed out twice",
        TINY,
        Faults(restore=1, crash=1),
        table_partitions=1,
        starts=3,
        clock=1,
        zombie_restore=True,
    ),
    Scenario(
        "restored, and a partition is seen late",
        ((1, -1), (1, 1)),
        Faults(crash=1, restore=1, stale=1),
        table_partitions=1,
        starts=3,
        alive=1,
    ),
    Scenario("the ledger is lost", GROWS, Faults(crash=1, lose=1, forget=1), part=20_000),
    Scenario(
        "the ledger is lost, and the pipeline begins at the end",
        ((1, 1), (2, 2), (3, 2)),
        Faults(crash=1, lose=1),
        table_partitions=1,
        max_rows=2,
        block_rows=1,
        starts=3,
        alive=1,
        latest=True,
    ),
    Scenario("a kill misses, the token holds", TWO, Faults(leak=1, lost=1, crash=1), clock=5, part=20_000),
    Scenario(
        "the transform changes", TWO, Faults(crash=1, lost=1), fingerprints=("f", "g", "f"), starts=3, part=20_000
    ),
    Scenario(
        "gaps, filtered records and dead letters",
        ((4, 2),),
        Faults(crash=1, lost=1),
        gone=frozenset({(0, 1)}),
        filtered=frozenset({(0, 3), (1, 0)}),
        dead=frozenset({(1, 1)}),
        max_rows=3,
        block_rows=2,
        part=20_000,
    ),
    Scenario(
        "too many dead letters",
        ((1,), (2,)),
        Faults(crash=1, lost=1, forget=1),
        table_partitions=1,
        block_rows=1,
        dead=frozenset({(0, 0)}),
        limits=(0.3, 1.0),
        alive=1,
    ),
)

# What the protocol does not withstand, and says so: each must be found, or the fakes are kinder than the world.
BEYOND = (
    Scenario("a kill misses, and the target forgets", TWO, Faults(leak=1, lost=1, forget=1, crash=1), clock=5),
    Scenario("restored under a running driver", TINY, Faults(restore=1), table_partitions=1, careless=True),
)
