"""What a user of a real database would notice late: values that pass from row to row, partitions that forget, keys that are misread."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from mariadb_server import LocalMariaDB
from sql_sites import RECEIPT, Site, changes, mariadb_site, postgres_site

from landonce.ledger.plain_sql import BlockKey
from landonce.protocol.block_rows import Claim
from landonce.protocol.ranges import Partition
from landonce.protocol.receipt import Fate
from landonce.sinks.audit import OFFSET
from landonce.sinks.contract import Level
from landonce.sinks.sql.held import SqlKeys
from landonce.sinks.sql.table import SqlTable
from landonce.sinks.sql.writer import open_writer
from landonce.sinks.transactional import settle_block
from landonce.verify.keys import LAST, LastChanges

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

COORDINATES = "_topic varchar(249), _partition int, _offset bigint"
_numbers = itertools.count(1)


@pytest.fixture
def pg(new_database: Callable[[], str]) -> Iterator[Site]:
    made = postgres_site(new_database(), key=("id",))
    yield made
    made.close()


@pytest.fixture
def maria(mariadb: LocalMariaDB) -> Iterator[Site]:
    made = mariadb_site(mariadb, f"kept{next(_numbers)}", key=("id",))
    yield made
    made.close()


def opened(site: Site) -> SqlTable:
    table = SqlTable(site.sink)
    site.tables.append(table)
    return table


def test_what_a_row_gave_up_is_a_later_rows(pg: Site) -> None:
    """Under a second unique key, in one block: 2 takes another address, and then 1 takes the one that 2 had."""
    pg.ask(f"CREATE TABLE events (id bigint PRIMARY KEY, word text UNIQUE, {COORDINATES})")
    state = pg.prepared((0, 1), (1, 3))

    def settled(number: int, rows: pa.Table) -> Fate | None:
        place = BlockKey(pg.sink.pipeline, 1, number)
        return settle_block(lambda: open_writer(pg.sink, place), Claim.of(state), RECEIPT, rows, "block").fate

    settled(0, changes((0, "U", 2, "x@example.org")))
    assert settled(1, changes((1, "U", 2, "y@example.org"), (2, "U", 1, "x@example.org"))) is Fate.LANDED
    assert pg.ask("SELECT id, word FROM events ORDER BY id") == [(1, "x@example.org"), (2, "y@example.org")]


PARTED = f"CREATE TABLE events (id bigint, word text, {COORDINATES}) PARTITION BY RANGE (id)"


def refusals(site: Site) -> list[str]:
    site.key = ()
    return [each.what for each in opened(site).check() if each.level is Level.REFUSED]


def test_a_partition_that_is_empty_after_a_crash_is_refused(pg: Site) -> None:
    pg.ask(PARTED)
    pg.ask("CREATE TABLE low PARTITION OF events FOR VALUES FROM (0) TO (10)")
    pg.ask("CREATE TABLE high PARTITION OF events FOR VALUES FROM (10) TO (99) PARTITION BY RANGE (id)")
    assert refusals(pg) == []
    pg.ask("CREATE UNLOGGED TABLE highest PARTITION OF high FOR VALUES FROM (20) TO (99)")
    (said,) = refusals(pg)
    assert "highest" in said
    assert "unlogged" in said


def test_a_partition_on_another_server_is_refused(pg: Site) -> None:
    pg.ask(PARTED)
    pg.ask("CREATE EXTENSION postgres_fdw")
    pg.ask("CREATE SERVER elsewhere FOREIGN DATA WRAPPER postgres_fdw")
    pg.ask("CREATE FOREIGN TABLE low PARTITION OF events FOR VALUES FROM (0) TO (10) SERVER elsewhere")
    (said,) = refusals(pg)
    assert "low" in said


def test_a_table_that_others_inherit_from_is_as_good_as_any(pg: Site) -> None:
    """Its rows are its own."""
    pg.ask(f"CREATE TABLE events (id bigint, word text, {COORDINATES})")
    pg.ask("CREATE UNLOGGED TABLE heirs () INHERITS (events)")
    assert refusals(pg) == []


KEYS: dict[str, tuple[str, str, list[Any], pa.DataType]] = {
    "beyond int64": ("maria", "bigint unsigned", [7, 2**64 - 1], pa.uint64()),
    "not in six digits": ("maria", "float", [0.1, 16777215.0], pa.float32()),
    "padded": ("pg", "char(4)", ["a", "abcd"], pa.string()),
}


@pytest.mark.parametrize("what", KEYS)
def test_an_audit_reads_keys_as_records_hold_them(what: str, request: pytest.FixtureRequest) -> None:
    """So that rows and changes find each other."""
    where, kind, values, arrow = KEYS[what]
    site: Site = request.getfixturevalue(where)
    site.ask(f"CREATE TABLE events (id {kind} PRIMARY KEY, word varchar(9), {COORDINATES})")
    sent = changes((0, "U", 0, "a"), (1, "U", 0, "b")).set_column(4, "id", pa.array(values, arrow))
    assert site.settle(site.prepared((0, 2)), sent).fate is Fate.LANDED
    table = opened(site)
    held = SqlKeys(table, table.schema()).rows({Partition("t", 0): 0})
    expected = LastChanges(["id"])
    expected.add(sent.select(["id"]), 0, np.array([0, 1]), np.array([False, False]))
    last = expected.table()
    assert held is not None
    assert last is not None
    both = held.join(last, "id", join_type="inner")
    assert both.num_rows == 2
    assert [each * 2 for each in both.column(OFFSET).to_pylist()] == both.column(LAST).to_pylist()
