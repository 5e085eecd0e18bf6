"""Real servers on this machine, for the demo, the tests and the benchmarks: no Docker, loopback only.

Nothing in here is needed to run a pipeline, and nothing that runs a pipeline imports it.
"""

from landonce.errors import LocalStackError
from landonce.local.clickhouse import LocalClickHouse, LocalUser
from landonce.local.kafka import LocalKafka
from landonce.local.stack import StackInfo, down, status, up

__all__ = ["LocalClickHouse", "LocalKafka", "LocalStackError", "LocalUser", "StackInfo", "down", "status", "up"]
