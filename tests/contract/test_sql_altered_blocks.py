"""A block's transaction and a table that is altered: it is compared before any row, and stays as it is until the end."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from mariadb_server import LocalMariaDB
from sql_sites import RECEIPT, Site, mariadb_site, postgres_site, rows, sqlite_site

from landonce.ledger.plain_sql import BlockKey
from landonce.protocol.block_rows import Claim
from landonce.protocol.ledger import LedgerState
from landonce.protocol.receipt import Fate
from landonce.sinks.sql.table import SqlTable
from landonce.sinks.sql.worker import refused_rows
from landonce.sinks.sql.writer import open_writer
from landonce.sinks.transactional import Altered, BlockTransaction, Trouble, settle_block

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

MINE = "id bigint, word varchar(20), ratio double precision, amount decimal(10,4), _topic varchar(249), _partition int, _offset bigint"
ALTERED = {
    "postgresql": [
        "ALTER TABLE events ALTER id TYPE double precision",
        "ALTER TABLE events ALTER word TYPE varchar(30)",
        "ALTER TABLE events ALTER word TYPE varchar(3)",
        "ALTER TABLE events ALTER word SET NOT NULL",
        "ALTER TABLE events ALTER ratio TYPE real",
        "ALTER TABLE events ALTER amount TYPE decimal(10,2)",
        "ALTER TYPE mood RENAME VALUE 'glad' TO 'merry'",
        "ALTER DOMAIN small SET NOT NULL",
        "ALTER TABLE events ADD COLUMN more int",
        "ALTER TABLE events RENAME word TO words",
        "ALTER TABLE events SET UNLOGGED",
        "CREATE UNIQUE INDEX ON events (words)",
        "ALTER TYPE mood ADD VALUE 'sad'",
        "ALTER TYPE shade ADD VALUE 'dark'",
        "ALTER TYPE tint ADD VALUE 'red'",
        "ALTER TABLE events ENABLE ROW LEVEL SECURITY",
        "CREATE RULE nothing AS ON DELETE TO events DO INSTEAD NOTHING",
        "CREATE TRIGGER nothing BEFORE UPDATE ON events FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    ],
    "sqlite": [
        "ALTER TABLE events ADD COLUMN more int",
        "CREATE UNIQUE INDEX words ON Events (word)",
        "ALTER TABLE events DROP COLUMN more",
    ],
    "mariadb": [
        "ALTER TABLE events ENGINE = Aria",
        "ALTER TABLE events MODIFY word varchar(30)",
        "ALTER TABLE events MODIFY word varchar(3)",
        "ALTER TABLE events MODIFY word varchar(20) COLLATE utf8mb4_bin NOT NULL",
        "ALTER TABLE events MODIFY ratio float",
        "ALTER TABLE events MODIFY amount decimal(10,2)",
        "ALTER TABLE events MODIFY mood enum('merry')",
        "CREATE UNIQUE INDEX words ON events (word)",
    ],
}
_numbers = itertools.count(1)


@pytest.fixture(params=ALTERED)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    if request.param == "sqlite":
        made = sqlite_site(tmp_path)
    elif request.param == "mariadb":
        mariadb: LocalMariaDB = request.getfixturevalue("mariadb")
        made = mariadb_site(mariadb, f"altered_block{next(_numbers)}")
    else:
        new: Callable[[], str] = request.getfixturevalue("new_database")
        made = postgres_site(new())
        made.ask("CREATE TYPE mood AS ENUM ('glad')")
        made.ask("CREATE TYPE shade AS ENUM ('light')")
        made.ask("CREATE TYPE tint AS ENUM ('blue')")
        made.ask("CREATE DOMAIN tints AS tint[]")
        made.ask("CREATE DOMAIN small AS varchar(5)")
    mood = {
        "postgresql": ", mood mood, small small, shades shade[], tints tints",
        "mariadb": ", mood enum('glad')",
    }.get(request.param, "")
    made.ask(f"CREATE TABLE events ({MINE}{mood})")
    yield made
    made.close()


def opening(site: Site) -> Callable[[], BlockTransaction]:
    """Writers to the table as it is now."""
    table = SqlTable(site.sink)
    site.tables.append(table)
    sink = replace(site.sink, examined=table.fingerprint())
    return lambda: open_writer(sink, BlockKey(sink.pipeline, 1, 0))


def settle(opened: Callable[[], BlockTransaction], state: LedgerState) -> Fate | None:
    return settle_block(opened, Claim.of(state), RECEIPT, rows(0, 1, 2), "block").fate


def test_nothing_lands_in_a_table_that_was_altered(site: Site) -> None:
    state = site.prepared((0, 3))
    for alter in ALTERED[site.sink.dialect]:
        opened = opening(site)
        site.ask(alter)
        with pytest.raises(Altered):
            settle(opened, state)
        with pytest.raises(Altered):
            refused_rows(opened, Claim.of(state), rows(0, 1, 2), "block")
        assert site.ask("SELECT count(*) FROM events") == [(0,)], alter
        assert [row[3] for row in site.blocks()] == ["BEFORE"], alter


def test_rows_land_in_a_table_that_is_as_it_was(site: Site) -> None:
    """What a table counts is not what it is."""
    if site.sink.dialect in ("mysql", "mariadb"):
        site.ask("ALTER TABLE events ADD COLUMN number bigint NOT NULL AUTO_INCREMENT UNIQUE")
    state, opened = site.prepared((0, 3)), opening(site)
    site.ask("INSERT INTO events (id) VALUES (7)")
    site.ask("INSERT INTO events (id) VALUES (8)")
    site.ask("DELETE FROM events")
    assert settle(opened, state) is Fate.LANDED
    assert [row[2] for row in site.coordinates()] == [0, 1, 2]


def test_a_table_stays_as_it_is_until_the_block_has_landed(site: Site) -> None:
    """An ALTER that comes after the comparison waits."""
    state = site.prepared((0, 3))
    writer = opening(site)()
    assert writer.flip(Claim.of(state), RECEIPT)
    assert writer.unaltered()
    done = threading.Event()

    def alter() -> None:
        site.ask(ALTERED[site.sink.dialect][0])
        done.set()

    hand = threading.Thread(target=alter)
    hand.start()
    ended: Trouble | None = None
    try:
        assert not done.wait(1.0)
        writer.write(rows(0, 1, 2))
        writer.commit()
    except Trouble as trouble:
        ended = trouble
    finally:
        writer.close()
        hand.join(60)
    assert done.is_set()
    assert ended is None or ended.passing, "MySQL may end the block rather than the ALTER that waits for it"
    landed = site.blocks()[0][3] == "AFTER"
    assert [row[2] for row in site.coordinates()] == ([0, 1, 2] if landed else [])
    assert landed or site.sink.dialect in ("mysql", "mariadb")


@pytest.mark.parametrize("site", ["postgresql"], indirect=True)
def test_a_column_that_was_altered_in_the_middle_of_a_block_makes_it_wait(site: Site) -> None:
    """The ALTER comes first, and its transaction is still open: the block waits for it, and sees what it did."""
    state, opened = site.prepared((0, 3)), opening(site)
    seen: list[str] = []

    def land() -> None:
        with suppress(Altered):
            settle(opened, state)
            seen.append("landed")
            return
        seen.append("altered")

    with psycopg.connect(site.url.replace("+psycopg", "")) as other:
        other.execute("ALTER TABLE events ALTER id TYPE double precision")
        hand = threading.Thread(target=land)
        hand.start()
        time.sleep(1.0)
        assert seen == []
        other.commit()
    hand.join(60)
    assert seen == ["altered"]


SWAPPED = {
    "postgresql": ("ALTER TABLE events RENAME TO gone", "CREATE TABLE events (LIKE gone INCLUDING ALL)"),
    "sqlite": ("DROP TABLE events", f"CREATE TABLE events ({MINE})"),
    "mariadb": ("CREATE TABLE fresh LIKE events", "RENAME TABLE events TO gone, fresh TO events"),
}


def test_nothing_lands_in_a_table_that_only_looks_the_same(site: Site) -> None:
    state, opened = site.prepared((0, 3)), opening(site)
    time.sleep(1.1)  # MariaDB's times of creation are whole seconds
    for statement in SWAPPED[site.sink.dialect]:
        site.ask(statement)
    with pytest.raises(Altered):
        settle(opened, state)
    site.ask("DROP TABLE events")
    with pytest.raises(Altered):
        settle(opened, state)
    assert [row[3] for row in site.blocks()] == ["BEFORE"]
