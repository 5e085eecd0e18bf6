"""Two ClickHouse servers of one cluster, `both`, with two shards of different weights; for tests of sharding.

Each server knows both, so that a Distributed table on either says itself where rows belong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from landonce.local import LocalClickHouse, LocalUser
from landonce.local.server import LOOPBACK, free_ports

WEIGHTS = (3, 4)
_SHARD = "<shard><weight>{}</weight><replica><host>{}</host><port>{}</port></replica></shard>"
_SKIP = "SETTINGS optimize_skip_unused_shards = 1, force_optimize_skip_unused_shards = 1"


@dataclass(frozen=True)
class TwoShards:
    """The servers. Queries are plain HTTP."""

    servers: tuple[LocalClickHouse, LocalClickHouse]

    @property
    def endpoints(self) -> list[str]:
        return [each.url for each in self.servers]

    def on_each(self, statement: str) -> list[str]:
        return [each.ask(statement, timeout=60) for each in self.servers]

    def distributed(self, table: str, key: str) -> str:
        """A Distributed table over this one, with this sharding key."""
        name = f"{table}_all"
        columns = self.servers[0].ask(f"SELECT count() FROM system.tables WHERE name = '{name}'").strip()
        assert columns == "0", "made once"
        self.servers[0].ask(f"CREATE TABLE {name} AS {table} ENGINE = Distributed(both, default, {table}, {key})")
        return name

    def offsets(self, table: str) -> list[list[int]]:
        """What each shard holds, in order."""
        found = self.on_each(f"SELECT _offset FROM {table} ORDER BY _topic, _partition, _offset")
        return [[*map(int, each.split())] for each in found]

    def as_distributed(self, table: str, everything: str, key: str) -> list[list[int]]:
        """The same of another table that ClickHouse itself spreads these rows over."""
        twin = f"{table}_twin"
        engine = "ENGINE = MergeTree ORDER BY tuple()"
        self.on_each(f"CREATE TABLE {twin} AS {table} {engine}")
        spread = self.distributed(twin, key)
        through_the_key = "distributed_foreground_insert = 1, parallel_distributed_insert_select = 0"
        self.servers[0].ask(f"INSERT INTO {spread} SELECT * FROM {everything} SETTINGS {through_the_key}", timeout=60)
        return self.offsets(twin)

    def skipping(self, everything: str, condition: str) -> int:
        """How many rows a query finds that asks only the shards on which they must be."""
        return int(self.servers[0].ask(f"SELECT count() FROM {everything} WHERE {condition} {_SKIP}", timeout=60))


@contextmanager
def two_shards(folder: Path, users: Sequence[LocalUser] = ()) -> Iterator[TwoShards]:
    ports = free_ports(2)
    shards = "".join(_SHARD.format(weight, LOOPBACK, port) for weight, port in zip(WEIGHTS, ports, strict=True))
    cluster = f"<remote_servers><both>{shards}</both></remote_servers>"
    first, second = (
        LocalClickHouse(folder / f"shard{at}", tcp_port=port, extra_users=users, extra_config_xml=cluster)
        for at, port in enumerate(ports, 1)
    )
    with first, second:
        yield TwoShards((first, second))
