"""Real servers on this machine, for the demo, the tests and the benchmarks: no Docker, loopback only.

A pipeline does not need this folder, and never imports it.
"""

from landonce.errors import LocalStackError
from landonce.local.clickhouse import LocalClickHouse, LocalUser
from landonce.local.iceberg import LocalConnect, LocalRestCatalog
from landonce.local.kafka import LocalKafka
from landonce.local.stack import StackInfo, down, status, up

__all__ = [
    "LocalClickHouse",
    "LocalConnect",
    "LocalKafka",
    "LocalRestCatalog",
    "LocalStackError",
    "LocalUser",
    "StackInfo",
    "down",
    "status",
    "up",
]
