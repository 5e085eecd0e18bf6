"""The worlds of users' own queries that are searched."""

from __future__ import annotations

from .values import Faults, Scenario

ONE, TWO, THREE = ((1,),), ((2,),), ((3,),)

SCENARIOS = (
    Scenario("nothing fails, two queries of one name", TWO, Faults(), table_partitions=1, part=15_000),
    Scenario("a query dies, an answer is lost", TWO, Faults(crash=1, lost=1), table_partitions=1, part=15_000),
    Scenario("a block is there in part", TWO, Faults(crash=1, lost=1), alive=1),
    Scenario("a query dies twice", ONE, Faults(crash=2, forget=1), table_partitions=1, starts=3, alive=1, clock=6),
    Scenario("a zombie, and the target forgets", TWO, Faults(lost=1, forget=1), table_partitions=1, part=15_000),
    Scenario("batches of another size", THREE, Faults(crash=1), table_partitions=1, starts=3, alive=1, part=15_000),
    Scenario("the ledger does not answer", TWO, Faults(unsure=1, crash=1), table_partitions=1, part=15_000),
    Scenario("the ledger is lost", TWO, Faults(crash=1, lose=1), table_partitions=1, starts=3, alive=1, part=15_000),
    Scenario("the ledger is lost with a block in part", TWO, Faults(crash=1, lose=1), starts=3, alive=1, part=15_000),
    Scenario(
        "the ledger is restored",
        TWO,
        Faults(crash=1, restore=1),
        table_partitions=1,
        starts=3,
        alive=1,
        clock=3,
        part=20_000,
    ),
    Scenario(
        "the query is another one",
        TWO,
        Faults(crash=1, lost=1),
        fingerprints=("f", "g"),
        table_partitions=1,
        part=15_000,
    ),
)

TWO_AND_ONE = ((2, 1),)
OF_SEVERAL_PARTITIONS = (
    Scenario(
        "two partitions: the ledger is lost", TWO_AND_ONE, Faults(lose=1), table_partitions=1, alive=1, part=15_000
    ),
    Scenario(
        "two partitions: a query dies, an answer is lost",
        ((1, 1),),
        Faults(crash=1, lost=1),
        table_partitions=1,
        starts=3,
        alive=1,
        part=15_000,
    ),
)
