"""Several servers as one table: each row is on the shard from which a Distributed table with the same sharding key reads it.

A Distributed table sends a row to the shard in whose slots the remainder of its sharding key by the sum of all weights lies: shard 1 has the
first slots, as many as its weight. ClickHouse computes the remainder for the rows of a block, in one query that is sent only the columns
that the key names: no hash function and no type is imitated here.

A block is one insert on each shard that has rows of it, under a token of its own, one after the other. To the code that drives a block
(`sinks.deduplicating`) shards are like table partitions: a block may land in some of them only. So

    an insert       is acknowledged once every shard has acknowledged; what any other shard replied is the reply
    a probe         looks at every shard for every row. A row that another shard map sent elsewhere is not sent again
    the clock       is that of the shard that is behind: past a deadline on it is past it everywhere
    kill, look      and whatever else is asked of a table is asked of every shard; one that does not answer stops all

Nothing of a block depends on which shard is asked for the remainders, so any one is as good as another: the first is asked.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from landonce.errors import TargetRefused
from landonce.failpoints import reach
from landonce.protocol.blocks import shard_token
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.settle import Presence, Reply
from landonce.protocol.target import TargetView
from landonce.read.schema.fields import Schema
from landonce.sinks.clickhouse.address import TableName
from landonce.sinks.clickhouse.check import place_of, undetermined
from landonce.sinks.clickhouse.connection import Access, connect
from landonce.sinks.clickhouse.driver import ClickHouseTarget
from landonce.sinks.clickhouse.probe import Line, bring_up_to_date, compare, found_in, of_added, torn
from landonce.sinks.clickhouse.table import Table, columns_in, describe, to_evaluate
from landonce.sinks.clickhouse.worker import ClickHouseWriter
from landonce.sinks.contract import BlockWriter, Finding, Insert, Level, Probe, Target

_INTEGERS = frozenset(f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64))
_LOOKED_AT = 1_000_000
"""Rows of each shard that `check` looks at, for those of another shard."""

_refused = partial(Finding, Level.REFUSED)


@dataclass(frozen=True)
class ShardMap:
    """The sharding key of a Distributed table, and the weights of its shards."""

    expression: str
    weights: tuple[int, ...]

    @property
    def slot(self) -> str:
        """The remainder as a Distributed table computes it: a negative integer of at most 32 bits is taken for one of 32 bits without
        sign, and any other for one of 64."""
        key = f"({self.expression})"
        unsigned = f"if(toTypeName({key}) LIKE '%64%', toUInt64({key}), toUInt64(toUInt32({key})))"
        return f"{unsigned} % {sum(self.weights)}"

    def elsewhere(self, shard: int) -> str:
        """The condition that a row belongs to another shard."""
        first = sum(self.weights[:shard])
        return f"NOT ({self.slot} BETWEEN {first} AND {first + self.weights[shard] - 1})"

    def shards_of(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The shard of each remainder, counted from 0."""
        return np.searchsorted(np.cumsum(self.weights), slots, side="right").astype(np.int64)

    def __str__(self) -> str:
        return f"{self.expression} with the weights {', '.join(map(str, self.weights))}"


@dataclass(frozen=True)
class Shard:
    """One shard's server, and the table there."""

    access: Access
    table: TableName

    def __str__(self) -> str:
        """It has no secrets, and not the user: another user does not make another shard."""
        address = self.access.address
        return f"{address.scheme}://{address.host}:{address.port}/{self.table}"


class ShardedWriter(BlockWriter):
    """One table on all shards. Opened on a worker, for one task."""

    def __init__(self, shards: ShardMap, writers: Sequence[ClickHouseWriter]) -> None:
        self._map, self._writers = shards, tuple(writers)

    @property
    def resend_harmless(self) -> bool:
        return all(each.resend_harmless for each in self._writers)

    @property
    def atomic(self) -> bool:
        """A block may land on some of its shards."""
        return False

    def send(self, rows: pa.Table, insert: Insert) -> Reply:
        if rows.num_rows == 0:
            return Reply.ACKNOWLEDGED
        owner = self._owners(rows)
        for shard in map(int, np.unique(owner)):
            writer = self._writers[shard]
            mine = replace(insert, token=shard_token(insert.token, shard))
            reply = writer.send(rows.filter(pa.array(owner == shard)), mine)
            if reply is not Reply.ACKNOWLEDGED:
                self.said = f"shard {shard + 1}: {writer.said}"
                return reply
            reach("shard.after")
        return Reply.ACKNOWLEDGED

    def why_gone(self) -> str:
        return next((why for each in self._writers if (why := each.why_gone())), "")

    def suspects(self, deadline: int) -> bool:
        return any(each.suspects(deadline) for each in self._writers)

    def count(self, ranges: Iterable[Range]) -> int:
        asked = tuple(ranges)
        return sum(each.count(asked) for each in self._writers)

    def probe(self, rows: pa.Table, ranges: Iterable[Range]) -> Probe:
        """What one table partition of one shard holds in part is torn."""
        if rows.num_rows == 0:
            return Probe(Presence(0, 0), pa.array([], pa.bool_()))
        asked = tuple(ranges)
        line, found = Line.of(asked), []
        for writer in self._writers:
            bring_up_to_date(writer.connection, writer.table)
            found.append(line.numbers(found_in(writer.connection, writer.table, asked)))
        seen = compare(line.numbers(rows), np.concatenate(found))

        def torn_somewhere() -> bool:
            absent = rows.filter(pa.array(seen.missing))
            owner = self._owners(absent)
            return any(
                torn(writer.connection, writer.table, absent.filter(pa.array(owner == at)), asked)
                for at, writer in enumerate(self._writers)
                if len(found[at]) and np.any(owner == at)
            )

        return of_added(seen, torn_somewhere, resend_harmless=self.resend_harmless)

    def _owners(self, rows: pa.Table) -> npt.NDArray[np.int64]:
        """The shard of each row. One block is one block there, too: its rows come back in their order."""
        first = self._writers[0]
        source, sent = to_evaluate(first.table, columns_in(first.table, self._map.expression), rows)
        sql = f"SELECT {self._map.slot} AS slot FROM {source} SETTINGS max_threads = 1"  # noqa: S608
        found = first.connection.ask(sql, rows=sent)
        if found.num_rows != rows.num_rows:
            raise ValueError(f"{found.num_rows} shards for {rows.num_rows} rows")
        return self._map.shards_of(np.asarray(found.column(0).cast(pa.int64()).to_numpy(), np.int64))


class ShardedTarget(Target):
    """One table on all shards. Opened on the driver."""

    def __init__(self, shards: ShardMap, targets: Sequence[tuple[Shard, ClickHouseTarget]]) -> None:
        self._map = shards
        self._shards = tuple(shard for shard, _ in targets)
        self._targets = tuple(target for _, target in targets)
        self._lacking: tuple[ClickHouseTarget, ...] = ()
        """The shards that had no table when `create` began."""

    def now(self) -> int:
        """Of the clock that is behind: past a deadline on it is past it on all. A plan gets the less time on the others."""
        return min(each.now() for each in self._targets)

    def kill(self) -> None:
        for each in self._targets:
            each.kill()

    def look(self, floors: Iterable[tuple[Partition, int]]) -> TargetView:
        """The furthest of all shards: what one of them may hold is compared."""
        asked, ends = tuple(floors), dict[Partition, int]()
        for each in self._targets:
            for partition, end in each.look(asked).ends:
                ends[partition] = max(end, ends.get(partition, 0))
        return TargetView(tuple(sorted(ends.items())))

    def count(self, ranges: Iterable[Range]) -> int:
        asked = tuple(ranges)
        return sum(each.count(asked) for each in self._targets)

    def no_removal(self) -> str:
        return next((why for each in self._targets if (why := each.no_removal())), "")

    def remove(self, ranges: Iterable[Range]) -> None:
        asked = tuple(ranges)
        for each in self._targets:
            each.remove(asked)
            reach("remove.shard")

    def exists(self) -> bool:
        """On every shard: no row is written before that."""
        return all(each.exists() for each in self._targets)

    def create(self, declared: Schema, *, order_by: str | None = None, partition_by: str | None = None) -> None:
        self._lacking = tuple(each for each in self._targets if not each.exists())
        for each in self._targets:
            each.create(declared, order_by=order_by, partition_by=partition_by)
            reach("create.shard")

    def creatable(self) -> tuple[Finding, ...]:
        return self._of_each(ClickHouseTarget.creatable)

    def take_back(self) -> None:
        """From the shards that had none: one that was there is somebody's own."""
        for each in self._lacking:
            each.take_back()

    def schema(self) -> Schema:
        """Of the first shard: `check` refuses others that differ."""
        return self._targets[0].schema()

    def check(self) -> tuple[Finding, ...]:
        found = self._of_each(ClickHouseTarget.check)
        if any(each.level is Level.REFUSED for each in found):
            return found
        return (*found, *self._check_map())

    def close(self) -> None:
        for each in self._targets:
            each.close()

    def _of_each(self, asked: Callable[[ClickHouseTarget], tuple[Finding, ...]]) -> tuple[Finding, ...]:
        pairs = zip(self._shards, self._targets, strict=True)
        return tuple(
            replace(finding, what=f"shard {shard}: {finding.what}")
            for shard, target in pairs
            for finding in asked(target)
        )

    def _check_map(self) -> tuple[Finding, ...]:
        tables = [describe(connect(each.access), each.table) for each in self._shards]
        found = (*self._differences(tables), *self._twice(tables), *self._key(tables[0]))
        if any(each.level is Level.REFUSED for each in found):
            return found
        rule = Finding(
            Level.OK,
            f"rows go to {len(self._shards)} shards by {self._map}: give a Distributed table this sharding key, and its cluster these shards, "
            "weights and order. Another endpoint, weight, `shard_by` or `hash` holds for new rows only: rows that are there stay where they are",
        )
        return (*found, rule, *self._clocks(), *self._misplaced())

    def _differences(self, tables: Sequence[Table]) -> Iterator[Finding]:
        """The first shard's columns decide how rows are filled, and its default expressions on which shard a row belongs."""
        first, *others = (
            {each.name: (each.type, each.default_kind, each.default) for each in table.columns} for table in tables
        )
        for shard, columns in zip(self._shards[1:], others, strict=True):
            names = sorted({name for name, _ in first.items() ^ columns.items()})
            if names:
                yield _refused(
                    f"shard {shard}: the columns {', '.join(names)} differ from those of shard {self._shards[0]}",
                    "alter the table so that it has the same columns on all shards, with the same types and defaults",
                )

    def _twice(self, tables: Sequence[Table]) -> Iterator[Finding]:
        """Every row would be found on both."""
        places = [self._place(shard, table) for shard, table in zip(self._shards, tables, strict=True)]
        for place, times in Counter(places).items():
            if times > 1:
                named = ", ".join(str(each) for each, at in zip(self._shards, places, strict=True) if at == place)
                yield _refused(f"endpoints: {named} are the same table", "name one endpoint for each shard")

    @staticmethod
    def _place(shard: Shard, table: Table) -> str:
        """The same for a table, under any name of its server, and for its replicas."""
        if table.replicated:
            asked = {"database": shard.table.database, "name": shard.table.name}
            sql = "SELECT zookeeper_path FROM system.replicas WHERE database = {database:String} AND table = {name:String}"
            found = connect(shard.access).ask_if_allowed(sql, asked)
            if found is not None and found.num_rows:
                return str(found.column(0)[0])
        return place_of(connect(shard.access), shard.table)

    def _key(self, table: Table) -> Iterator[Finding]:
        connection, key = connect(self._shards[0].access), self._map.expression
        try:
            described = connection.ask(f"DESCRIBE TABLE (SELECT {key} AS landonce_key FROM {table.name.sql})")  # noqa: S608
        except TargetRefused as error:
            yield _refused(f"shard_by: {error.what}", "correct `shard_by` and `hash` in {file}")
            return
        type_ = re.sub(r"^LowCardinality\((.*)\)$", r"\1", str(described.column("type")[0]))
        if type_ not in _INTEGERS:
            yield _refused(
                f"shard_by: {key} is of type {type_}, and a Distributed table takes integers of up to 64 bits that are never NULL",
                "name a `hash`; declare the field NOT NULL, or give ifNull(…) as an expression",
            )
        defaults = [each.default for each in columns_in(table, key)]
        loose = undetermined(connection, [key, *defaults])
        if loose:
            yield _refused(
                f"shard_by: {', '.join(sorted(loose))} may give another result for a row that is sent again",
                "use an expression of columns that come from the record",
            )

    def _clocks(self) -> Iterator[Finding]:
        zones = {str(connect(each.access).one("SELECT timezone()")) for each in self._shards}
        if len(zones) > 1:
            yield Finding(
                Level.WARNING,
                f"the shards have different time zones, {', '.join(sorted(zones))}: a key that takes the day or hour of a time is another one "
                "on each, also for a Distributed table",
                "give the servers one time zone, or name a zone in `shard_by`",
            )

    def _misplaced(self) -> Iterator[Finding]:
        for at, shard in enumerate(self._shards):
            sample = f"(SELECT {self._map.elsewhere(at)} AS elsewhere FROM {shard.table.sql} LIMIT {_LOOKED_AT})"  # noqa: S608
            rows = connect(shard.access).one(f"SELECT countIf(elsewhere) FROM {sample}")  # noqa: S608
            if rows:
                yield Finding(
                    Level.WARNING, misplaced(shard, rows), "move them if queries set optimize_skip_unused_shards"
                )


def misplaced(shard: object, rows: int) -> str:
    """For people, about rows that landed by another shard map."""
    return (
        f"shard {shard} holds {rows} rows that would now go to another shard: they landed when the shard map was another one, and a "
        "Distributed table that skips shards does not find them"
    )
