"""One plan, several tables of ClickHouse: drivers and the server are killed between the inserts of one block, while tables are made, and
while columns are added and widened.

Every record goes to two tables of three, or to the dead letters. Between two kills no coordinate stands twice in a table; at the end every
record stands exactly once in each of its tables, which a plain query and `landonce verify` both say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import oracle
import pytest
from chain import Chain, Kill
from harness import Drivers, Feed, Site
from plain_driver import PlainDrivers
from rename_kills import killed_at_rename
from scene import Scene, wait_for

from landonce.local import LocalClickHouse, LocalKafka

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(600)]


def keeps(table: str, payload: dict[str, Any]) -> bool:
    """Even and odd ids have a table each, and all have another one."""
    return not table.endswith(("_even", "_odd")) or table.endswith("_odd") == bool(payload["id"] % 2)


@dataclass
class FanOut(Scene):
    """A pipeline that writes each record to two of three tables."""

    def landed(self) -> dict[str, list[oracle.Row]]:
        return {name: self._rows(name) for name in tables(self.site.table)}

    def _rows(self, table: str) -> list[oracle.Row]:
        there = oracle.ask(self.clickhouse, f"EXISTS TABLE {table}").strip() == "1"
        return oracle.rows(self.clickhouse, table) if there else []

    def audited(self) -> None:
        """What `landonce verify` says, and that it sees a row that one table lacks."""
        assert self.site.landonce("verify", str(self.site.file), "--values").returncode == 0
        table = tables(self.site.table)[1]
        oracle.ask(self.clickhouse, f"DELETE FROM {table} WHERE id = (SELECT min(id) FROM {table})")
        assert self.site.landonce("verify", str(self.site.file)).returncode != 0


@dataclass
class Named(FanOut):
    """A pipeline whose records name their tables."""

    made: tuple[str, ...]

    def landed(self) -> dict[str, list[oracle.Row]]:
        return {name: self._rows(name) for name in self.made}


def of_kind(table: str, payload: dict[str, Any]) -> bool:
    return table.endswith(f"_{payload['kind']}")


def tables(name: str) -> tuple[str, ...]:
    return f"{name}_all", f"{name}_even", f"{name}_odd"


@contextmanager
def fan_out(
    folder: Path, kafka: LocalKafka, server: LocalClickHouse, topic: str, table: str, drivers: type[Drivers]
) -> Iterator[FanOut]:
    site = Site(folder, kafka.bootstrap_servers, server.url, topic, table, deadline="2s")
    site.write()
    everything, even, odd = tables(table)
    listed = f'[{{table: {everything}}}, {{table: {even}, match: ".*[02468]"}}, {{table: {odd}, match: ".*[13579]"}}]'
    with drivers(site) as started:
        made = FanOut(site, started, Feed(kafka.bootstrap_servers, topic), keeps=keeps, clickhouse=server.url)
        made.edit(f"table: {table}, create", f"tables: {listed}, route_field: id, evolve: true, create")
        yield made


CREATING = [Kill("create.table")] * 3
"""Each start makes one table more."""

KILLS = [
    Kill("prepare.after", replay=False),
    # Of a block, the first table has its rows, and then the second one, and nobody knows.
    Kill("send.after", replay=True),
    Kill("send.after", skip=1, replay=True),
    Kill("probe.after", skip=1, replay=True),
    Kill("send.before", replay=True),
    Kill("rearm.after", replay=True),
    Kill("write.after", replay=True),
    Kill("commit.before", replay=True),
    Kill("record.after", replay=True),
    # The same in a first attempt.
    Kill("send.before", skip=1, replay=False),
    Kill("record.before", replay=True),
    Kill("send.after", skip=1, replay=False),
    Kill("commit.after", replay=True),
]

EVOLVING = [
    Kill("open.before"),
    # One table has the column, and the others lack it; then two have it.
    Kill("open.table"),
    Kill("open.table"),
    Kill("open.after"),
    Kill("send.after", skip=1),
    Kill("write.after"),
]
"""Columns are added, and nothing that needs them is there; or something is."""

WIDENING = [Kill("open.table"), Kill("open.table"), Kill("open.after")]

NAMED = [
    # Tables that records name: after each start there is one more.
    Kill("open.before"),
    Kill("create.table"),
    Kill("open.table"),
    Kill("create.table"),
    Kill("open.after"),
    Kill("send.after", skip=1),
]


def add_views(url: str, table: str) -> None:
    """A view that adds up what it gets."""
    columns = "_partition Int32, n UInt64, total Int64"
    oracle.ask(
        url, f"CREATE TABLE {table}_sums ({columns}) ENGINE = SummingMergeTree ORDER BY _partition SETTINGS {_WINDOW}"
    )
    select = f"SELECT _partition, count() AS n, sum(id) AS total FROM {table} GROUP BY _partition"
    oracle.ask(url, f"CREATE MATERIALIZED VIEW {table}_view TO {table}_sums AS {select}")


_WINDOW = "non_replicated_deduplication_window = 1000"


def test_killed_between_the_tables_of_a_block_and_around_new_columns(
    tmp_path: Path,
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
) -> None:
    """The views behind the tables have added up every row once."""
    with fan_out(tmp_path, kafka, clickhouse, new_topic(partitions=2), new_table(), PlainDrivers) as pipeline:
        chain, named = Chain(pipeline), tables(pipeline.site.table)
        chain.suffer(CREATING)
        for table in named:
            add_views(clickhouse.url, table)
        chain.suffer(KILLS)
        chain.settled()
        pipeline.edit("deadline: 2s", "deadline: 1s")
        pipeline.feed.extra = "extra"
        before = len(pipeline.feed.produced)
        chain.suffer(EVOLVING)
        chain.settled()
        for table in named:
            filled = oracle.ask(
                clickhouse.url, f"SELECT count(), countIf(extra = id) FROM {table} WHERE id >= {before}"
            )
            rows, right = map(int, filled.split())
            assert rows == right > 0, "the column is there, and every record since has its value in it"
            assert (
                oracle.ask(clickhouse.url, f"SELECT countIf(extra IS NOT NULL) FROM {table} WHERE id < {before}")
                == "0\n"
            )
        for table in named:
            oracle.ask(clickhouse.url, f"ALTER TABLE {table} ADD COLUMN narrow Nullable(Int8)")
        pipeline.feed.extra = "narrow"
        before = len(pipeline.feed.produced)
        assert before > 127, "wider than the column"
        chain.suffer(WIDENING)
        chain.settled()
        for table in named:
            filled = oracle.ask(clickhouse.url, f"SELECT countIf(narrow = id), countIf(id >= {before}) FROM {table}")
            assert len(set(filled.split())) == 1, filled
            views = oracle.ask(clickhouse.url, f"SELECT sum(n), sum(total) FROM {table}_sums")
            assert views == oracle.ask(clickhouse.url, f"SELECT count(), sum(id) FROM {table}")
        pipeline.audited()


def test_killed_while_tables_that_records_name_are_made(
    tmp_path: Path,
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
) -> None:
    topic, base = new_topic(partitions=2), new_table()
    site = Site(tmp_path, kafka.bootstrap_servers, clickhouse.url, topic, base, deadline="1s")
    site.write()
    made = tuple(f"{base}_{topic}_{kind}".replace("-", "_").replace(".", "_") for kind in range(3))
    with PlainDrivers(site) as started:
        feed = Feed(kafka.bootstrap_servers, topic, extra="kind", kinds=len(made))
        pipeline = Named(site, started, feed, keeps=of_kind, clickhouse=clickhouse.url, made=made)
        pipeline.edit(f"table: {base}, create", f'table: "{base}_{{_topic}}_{{kind}}", evolve: true, create')
        chain = Chain(pipeline)
        chain.suffer(NAMED)
        chain.settled()
        assert all(pipeline.landed().values()), "there are rows of every kind"
        audited = pipeline.site.landonce("verify", str(site.file), "--values")
        assert audited.returncode == 0, audited.stdout


def test_the_server_dies_between_token_and_part_of_one_table(
    tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str], new_table: Callable[[], str]
) -> None:
    """The first table has its rows. The second one has a token without them, and needs another generation; the third has nothing."""
    with (
        LocalClickHouse(tmp_path / "clickhouse") as server,
        fan_out(tmp_path, kafka, server, new_topic(partitions=1), new_table(), PlainDrivers) as pipeline,
    ):
        pipeline.feed.partitions, go = 1, tmp_path / "go"
        pipeline.feed.more(8)
        run = pipeline.start("send.before", skip=1, go=go)
        run.wait_reached()
        assert [len(rows) for rows in pipeline.landed().values()] == [8, 0, 0]
        with killed_at_rename(server, tmp_path / "strace.log"):
            go.touch()
            wait_for(lambda: not server.running, "the server was killed at its next rename", run)
        server.kill()
        server.start()
        server.wait_ready()
        assert [len(rows) for rows in pipeline.landed().values()] == [8, 0, 0]
        assert run.finish() == 0, run.tail()
        assert "is acknowledged and not there" in run.log.read_text()
        pipeline.exact()
