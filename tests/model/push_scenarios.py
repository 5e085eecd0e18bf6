"""The worlds of pushes that are searched: one partition each, since every partition has a ledger entry of its own."""

from __future__ import annotations

from . import snapshot_values, transaction_values, wrapped_values
from .values import Faults, Scenario
from .wrapped_scenarios import UNKNOWN

TWO, THREE = ((2,),), ((3,),)

IN_CLICKHOUSE = (
    Scenario("one program pushes again and again", THREE, Faults(), table_partitions=1, starts=1),
    Scenario("two programs push one partition", TWO, Faults(), table_partitions=1, part=10_000),
    Scenario(
        "a program dies, an answer is lost", TWO, Faults(crash=1, lost=1), table_partitions=1, alive=1, part=10_000
    ),
    Scenario("a block is there in part", TWO, Faults(crash=1, lost=1), alive=1, part=10_000),
    Scenario("the ledger is lost", TWO, Faults(crash=1, lose=1), table_partitions=1, starts=3, alive=1, part=10_000),
)

_Faults, _Scenario = transaction_values.Faults, transaction_values.Scenario
IN_DATABASES = (
    _Scenario("one program pushes again and again", ("AAA",), _Faults(), starts=1),
    _Scenario("two programs push one partition", ("AA",), _Faults()),
    _Scenario("a program dies, an answer is lost", ("AA",), _Faults(crash=1, lost=1), alive=1),
)

_Attempts, _Wrapped = wrapped_values.Faults, wrapped_values.Scenario
WRAPPED = (
    _Wrapped("one program pushes again and again", ("AAA",), _Attempts(), starts=1, clock=2),
    _Wrapped(
        "harmless: a program dies, an answer is lost", ("AA",), _Attempts(crash=1, lost=1), True, alive=1, clock=3
    ),
    _Wrapped("probe: a program dies, an answer is lost", ("AA",), _Attempts(crash=1, lost=1), alive=1, clock=3),
    _Wrapped("two programs push one partition", ("AA",), _Attempts(), clock=1),
    _Wrapped("a zombie pushes", ("AA",), _Attempts(abandon=1), alive=1, clock=3),
    _Wrapped("no probe: a program dies", ("AA",), _Attempts(crash=1), probe=False, halts=UNKNOWN, alive=1),
)

_Commits, _Lake = snapshot_values.Faults, snapshot_values.Scenario
IN_TABLES = (
    _Lake("one program pushes again and again", ("AAA",), _Commits(), own=True, starts=1),
    _Lake("two programs push one partition", ("AA",), _Commits(), own=True),
    _Lake("a program dies, answers are lost", ("AA",), _Commits(crash=1, lost=1), own=True, part=10_000),
    _Lake("a zombie's commit comes late", ("AA",), _Commits(late=1, crash=1), own=True, part=10_000),
)
