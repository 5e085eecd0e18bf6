"""Corners of real databases: keys that a table takes for one, names that are found elsewhere, limits, engines, sessions that end."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cutting_proxy import Cut, CuttingProxy
from mariadb_server import LocalMariaDB
from sql_sites import RECEIPT, Site, changes, mariadb_site, postgres_site, rows, sqlite_site

from landonce.errors import LandonceError, TargetRefused, TargetUnavailable
from landonce.local.postgres import LocalPostgres
from landonce.protocol.block_rows import Claim
from landonce.protocol.ledger import LedgerState
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.receipt import Fate
from landonce.read.rows import ends_by_key
from landonce.read.schema.ddl import parse_schema
from landonce.read.schema.fields import JSON
from landonce.sinks.contract import Level
from landonce.sinks.sql.held import SqlKeys
from landonce.sinks.sql.table import SqlTable
from landonce.sinks.transactional import Blame, Trouble

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

COORDINATES = "_topic text, _partition int, _offset bigint"
_numbers = itertools.count(1)


@pytest.fixture
def pg(new_database: Callable[[], str]) -> Iterator[Site]:
    yield from _made(postgres_site(new_database()))


@pytest.fixture
def keyed_pg(new_database: Callable[[], str]) -> Iterator[Site]:
    yield from _made(postgres_site(new_database(), key=("id",)))


@pytest.fixture
def maria(mariadb: LocalMariaDB) -> Iterator[Site]:
    yield from _made(mariadb_site(mariadb, f"corner{next(_numbers)}"))


@pytest.fixture
def keyed_maria(mariadb: LocalMariaDB) -> Iterator[Site]:
    yield from _made(mariadb_site(mariadb, f"corner{next(_numbers)}", key=("id",)))


@pytest.fixture
def lite(tmp_path: Path) -> Iterator[Site]:
    yield from _made(sqlite_site(tmp_path))


@pytest.fixture
def keyed_lite(tmp_path: Path) -> Iterator[Site]:
    yield from _made(sqlite_site(tmp_path, key=("id",)))


def _made(site: Site) -> Iterator[Site]:
    site.made()
    yield site
    site.close()


def refusals(site: Site, **options: Any) -> list[str]:
    table = SqlTable(site.sink)
    try:
        return [each.what for each in table.check(**options) if each.level is Level.REFUSED]
    finally:
        table.close()


ALIKE = {
    "keyed_pg": ("id char(4) PRIMARY KEY", "{} "),
    "keyed_lite": ("id text COLLATE NOCASE PRIMARY KEY", "{:u}"),
    "keyed_maria": ("id varchar(9) COLLATE utf8mb4_general_ci PRIMARY KEY", "{:u}"),
}


@pytest.mark.parametrize("where", ALIKE)
def test_of_keys_that_the_table_takes_for_one_the_last_change_counts(
    where: str, request: pytest.FixtureRequest
) -> None:
    """Within one block, whose keys all differ."""
    site: Site = request.getfixturevalue(where)
    key, like = ALIKE[where]
    site.ask("DROP TABLE events")
    site.ask(f"CREATE TABLE events ({key}, word text, {COORDINATES})")

    def other(name: str) -> str:
        return name.upper() if like == "{:u}" else like.format(name)

    sent = changes(
        (0, "U", 0, "old"),
        (1, "U", 0, "new"),
        (2, "U", 0, "there"),
        (3, "D", 0, None),
        (4, "D", 0, None),
        (5, "U", 0, "b"),
    )
    ids = ["a", other("a"), "b", other("b"), "c", other("c")]
    state = site.prepared((0, 6))
    assert site.settle(state, sent.set_column(4, "id", [ids])).fate is Fate.LANDED
    found = sorted(
        (key.strip().lower(), word, at) for key, word, at in site.ask("SELECT id, word, _offset FROM events")
    )
    assert found == [("a", "new", 1), ("c", "b", 5)]


def test_statements_are_no_longer_than_the_server_reads(maria: Site, mariadb: LocalMariaDB) -> None:
    """It would refuse them, and the pipeline would halt, though each row alone can land. A row that is too long alone is a dead letter."""
    [[usual]] = maria.ask("SELECT @@max_allowed_packet")
    with mariadb.connect() as admin, admin.cursor() as cursor:
        cursor.execute("SET GLOBAL max_allowed_packet = 1048576")
        try:
            state = maria.prepared((0, 3), (3, 6))
            long = dict.fromkeys(range(3), "x" * 500000)
            assert maria.settle(state, rows(0, 1, 2, words=long)).fate is Fate.LANDED
            found = maria.refused(state, rows(3, 4, 5, words={4: "x" * 1_100_000}), 1)
        finally:
            cursor.execute(f"SET GLOBAL max_allowed_packet = {usual}")
    assert [(at, why.blame) for at, why in found or ()] == [(1, Blame.ROW)]
    assert [why.said for _, why in found or ()] == ["the row takes more than max_allowed_packet (1,048,575 bytes)"]


@pytest.mark.parametrize("where", ["lite", "pg", "maria"])
def test_rows_of_many_partitions_are_counted_and_removed(where: str, request: pytest.FixtureRequest) -> None:
    """More ranges than a statement may have conditions in SQLite."""
    site: Site = request.getfixturevalue(where)
    state = site.prepared((0, 3))
    assert site.settle(state, rows(0, 1, 2)).fate is Fate.LANDED
    table = SqlTable(site.sink)
    many = [Range(Partition("t", at), 0, 2) for at in range(1_100)]
    try:
        assert table.count(many) == 2
        table.remove(many)
        assert table.count(many) == 0
    finally:
        table.close()
    assert site.coordinates() == [("t", 0, 2)]


@pytest.mark.parametrize("where", ["keyed_pg", "keyed_lite"])
def test_what_a_deleted_row_held_may_be_anothers(where: str, request: pytest.FixtureRequest) -> None:
    """Under another unique key: a mail address, say, of an account that is closed and of one that is opened."""
    site: Site = request.getfixturevalue(where)
    site.ask("CREATE UNIQUE INDEX words ON events (word)")
    state = site.prepared((0, 2), (2, 4))
    site.settle(state, changes((0, "U", 1, "ann@example.org")), 0)
    assert site.settle(state, changes((2, "D", 1, None), (3, "U", 2, "ann@example.org")), 1).fate is Fate.LANDED
    assert site.ask("SELECT id, word FROM events") == [(2, "ann@example.org")]


def test_a_key_that_is_a_uuid(keyed_pg: Site) -> None:
    keyed_pg.ask("DROP TABLE events")
    keyed_pg.ask(f"CREATE TABLE events (id uuid PRIMARY KEY, word text, {COORDINATES})")
    sent = changes((0, "U", 0, "one"), (1, "U", 0, "two"), (2, "U", 0, "uno"), (3, "D", 0, None))
    ids = [bytes([each]) * 16 for each in (1, 2, 1, 2)]
    sent = sent.set_column(4, "id", pa.chunked_array([pa.array(ids, pa.uuid())]))
    sent = sent.take(pa.array(ends_by_key(sent, ("id",))[1]))
    assert sent.num_rows == 2
    keyed_pg.settle(keyed_pg.prepared((0, 4)), sent)
    assert keyed_pg.ask("SELECT id::text, word FROM events") == [("01010101-0101-0101-0101-010101010101", "uno")]


def test_a_session_is_left_as_it_was(pg: Site) -> None:
    """With a pooler in between it is another's before and after the transaction: what a block needs is set inside of it."""
    state = pg.prepared((0, 3))
    writer: Any = pg.writer()
    asked = "SELECT current_setting('lock_timeout'), current_setting('idle_in_transaction_session_timeout')"
    before = writer._ask(asked)
    assert writer.flip(Claim.of(state), RECEIPT)
    assert writer._ask(asked) == [("20s", "1min")]
    writer.commit()
    assert writer._ask(asked) == before == [("0", "0")]
    writer.close()


def test_a_table_in_a_schema_that_is_not_the_first_of_the_path(pg: Site) -> None:
    pg.ask("CREATE SCHEMA first")
    name = pg.url.rpartition("/")[2]
    pg.ask(f"ALTER DATABASE {name} SET search_path = first, public")
    assert pg.settle(pg.prepared((0, 3)), rows(0, 1, 2)).fate is Fate.LANDED
    assert pg.ask("SELECT count(*) FROM public.events") == [(3,)]


def test_a_key_that_is_too_long_for_its_index_is_to_blame(keyed_pg: Site) -> None:
    keyed_pg.ask("DROP TABLE events")
    keyed_pg.made("id STRING NOT NULL, word STRING")
    long = "".join(random.Random(5).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=9000))
    sent = changes((0, "U", 0, "a"), (1, "U", 0, "b")).set_column(4, "id", [["short", long]])
    state = keyed_pg.prepared((0, 2))
    with pytest.raises(Trouble) as trouble:
        keyed_pg.settle(state, sent)
    assert trouble.value.blame is Blame.ROW
    assert [at for at, _ in keyed_pg.refused(state, sent) or ()] == [1]


def test_a_row_without_a_partition_may_have_one_later(pg: Site) -> None:
    """A CHECK, by PostgreSQL's number; but a job that creates partitions may be late."""
    pg.ask("DROP TABLE events")
    pg.ask(f"CREATE TABLE events (id bigint, word text CHECK (word <> 'w1'), {COORDINATES}) PARTITION BY RANGE (id)")
    pg.ask("CREATE TABLE part PARTITION OF events FOR VALUES FROM (0) TO (2)")
    state = pg.prepared((0, 3))
    found = pg.refused(state, rows(0, 1, 2))
    assert [(at, each.blame) for at, each in found or ()] == [(1, Blame.ROW), (2, Blame.OTHERS)]
    pg.ask("CREATE TABLE more PARTITION OF events FOR VALUES FROM (2) TO (9)")
    assert pg.settle(state, rows(0, 2)).fate is Fate.LANDED


def test_a_table_that_takes_other_numbers_blames_no_row(pg: Site) -> None:
    """All of its rows would be dead letters."""
    assert refusals(pg) == []
    state = pg.prepared((0, 3))
    pg.ask("ALTER TABLE events ALTER COLUMN _partition TYPE bigint")
    with pytest.raises(TargetRefused):
        pg.settle(state, rows(0, 1, 2))
    [said] = refusals(pg)
    assert "_partition" in said


@pytest.mark.parametrize(
    "change", ["_topic TYPE varchar(20)", "_topic TYPE char(255)", "_partition TYPE smallint", "_offset TYPE integer"]
)
def test_coordinates_that_would_not_fit_are_refused(pg: Site, change: str) -> None:
    pg.ask("DROP INDEX events_coordinates")
    pg.ask(f"ALTER TABLE events ALTER COLUMN {change}")
    [said] = refusals(pg)
    assert change.split()[0] in said


def test_what_no_record_can_fill_is_not_left_out_without_a_word(pg: Site) -> None:
    """A value for it is a dead letter. What a number of any digits, an address or an interval holds, records fill."""
    pg.ask("CREATE DOMAIN short AS varchar(3) CHECK (value <> 'no')")
    pg.ask("ALTER TABLE events ADD price numeric, ADD ip inet, ADD span interval year DEFAULT '1 year', ADD code short")
    assert refusals(pg) == []
    declared = parse_schema("id BIGINT, price DECIMAL(20,3), code STRING")
    assert refusals(pg, declared=declared) == []
    assert refusals(pg, selected=True) == []
    table = SqlTable(pg.sink)
    fields = table.schema(declared).by_name()
    undeclared = table.schema().by_name()
    table.close()
    assert [name for name, each in undeclared.items() if not each.is_filled] == ["span"]
    assert undeclared["price"].type == JSON
    assert (fields["price"].type, fields["code"].type) == (pa.decimal128(20, 3), pa.string())
    sent = rows(0, 1).append_column("price", pa.array([Decimal("1.250"), None], pa.decimal128(20, 3)))
    pg.settle(pg.prepared((0, 2)), sent.append_column("code", [["abc", None]]))
    assert sorted(pg.ask("SELECT id, price, code FROM events")) == [(0, Decimal("1.250"), "abc"), (1, None, None)]


@pytest.mark.parametrize("where", ["pg", "maria", "lite"])
def test_values_come_back_as_they_were(where: str, request: pytest.FixtureRequest) -> None:
    """Every byte, text with everything that quoting could stumble over, and decimals of every size."""
    site: Site = request.getfixturevalue(where)
    site.ask("DROP TABLE events")
    decimals = where != "lite"
    site.made("id BIGINT NOT NULL, word STRING, b BINARY, x DOUBLE" + (", d DECIMAL(38,10)" if decimals else ""))
    chance = random.Random(7)
    pieces = ["'", '"', "\\", "%", "%s", ":a", "\n", "\x1a", "é", "漢", "😀", "`", "{}", ";--", "\t", " "]
    words = ["", *pieces, *("".join(chance.choices(pieces, k=9)) for _ in range(40))]
    count = len(words)
    bytes_ = [bytes(range(256)), b"", *(chance.randbytes(40) for _ in range(count - 2))]
    numbers = [0.1, -1e300, 5e-324, 2.0**53 + 2, *(chance.uniform(-1e9, 1e9) for _ in range(count - 4))]
    sent = rows(*range(count)).set_column(4, "word", [words])
    sent = sent.append_column("b", [bytes_])
    sent = sent.append_column("x", [numbers])
    exact: list[Decimal] = []
    if decimals:
        edges = [
            "0",
            "1",
            "-1",
            "9999",
            "10000",
            "10000.0001",
            "0.0000000001",
            "-0.5",
            "0.05",
            "0.0005",
            "0.00005",
            "0.00010001",
            "1e27",
            "9e27",
            "99999999",
        ]
        exact = [Decimal(each) for each in edges]
        exact += [
            Decimal(chance.randrange(-(10 ** chance.randrange(1, 38)), 10 ** chance.randrange(1, 38))).scaleb(-10)
            for _ in range(count - len(exact))
        ]
        sent = sent.append_column("d", pa.array(exact, pa.decimal128(38, 10)))
    assert site.settle(site.prepared((0, count)), sent).fate is Fate.LANDED
    found = sorted(site.ask(f"SELECT id, word, b, x{', d' if decimals else ''} FROM events"))
    assert [row[1] for row in found] == words
    assert [bytes(row[2]) for row in found] == bytes_
    assert [row[3] for row in found] == numbers
    assert [row[4] for row in found] == exact if decimals else True


@pytest.mark.parametrize("where", ["pg", "maria", "lite"])
def test_a_first_start_that_ended_in_the_middle(where: str, request: pytest.FixtureRequest) -> None:
    """Tables of the ledger without a version and without an entry: nobody has begun."""
    site: Site = request.getfixturevalue(where)
    site.ledger().create(LedgerState("contract", "lineage"))
    for name in ("schema", "pipeline"):
        site.ask(f"DELETE FROM landonce_{name}")
    assert site.ledger().load() is None
    assert site.settle(site.prepared((0, 3)), rows(0, 1, 2)).fate is Fate.LANDED


def test_the_ledger_has_transactions_whatever_the_servers_default_is(mariadb: LocalMariaDB) -> None:
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET GLOBAL default_storage_engine = Aria")
    try:
        site = mariadb_site(mariadb, f"corner{next(_numbers)}")
        site.made()
        state = site.prepared((0, 3))
        writer = site.writer()
        assert writer.flip(Claim.of(state), RECEIPT)
        writer.write(rows(0, 1, 2))
        writer.close()
        assert (site.coordinates(), [row[3] for row in site.blocks()]) == ([], ["BEFORE"]), "rolled back, both"
        assert refusals(site) == []
        site.ask("ALTER TABLE landonce_block ENGINE = Aria")
        [said] = refusals(site)
        assert "landonce_block has the engine Aria" in said
        site.close()
    finally:
        with mariadb.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET GLOBAL default_storage_engine = InnoDB")


def test_a_key_of_which_only_the_beginning_counts_is_refused(keyed_maria: Site) -> None:
    """MySQL would change the row of another key."""
    assert refusals(keyed_maria) == []
    keyed_maria.ask("DROP TABLE events")
    keyed_maria.ask(f"CREATE TABLE events (id text NOT NULL, word text, {COORDINATES}, UNIQUE (id(3)))")
    [said] = refusals(keyed_maria)
    assert "beginning" in said


def test_two_drivers_that_make_the_ledger_at_once(mariadb: LocalMariaDB) -> None:
    """Making tables ends transactions there, so they take turns until the first one's entry is there."""
    for _ in range(3):
        site = mariadb_site(mariadb, f"corner{next(_numbers)}")
        seen: list[object] = []
        ready = threading.Barrier(4)

        def begin(lineage: str, site: Site = site, seen: list[object] = seen, ready: threading.Barrier = ready) -> None:
            ledger = site.ledger()
            ready.wait(30)
            try:
                seen.append(ledger.create(LedgerState("contract", lineage)).lineage)
            except LandonceError as error:
                seen.append(error)

        threads = [threading.Thread(target=begin, args=(f"lineage{at}",)) for at in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)
        assert len(seen) == 4
        assert len({str(each) for each in seen}) == 1, seen
        site.close()


@pytest.mark.parametrize("cut", [Cut.ANSWER, Cut.REQUEST, Cut.LATE], ids=lambda cut: cut.name)
def test_a_commit_without_an_answer_in_mariadb(maria: Site, mariadb: LocalMariaDB, cut: Cut) -> None:
    proxy = CuttingProxy(mariadb.port)
    try:
        url = maria.url.replace(f":{mariadb.port}/", f":{proxy.port}/")
        state = maria.prepared((0, 3))
        proxy.arm(cut)
        assert maria.settle(state, rows(0, 1, 2), url=url).fate is Fate.LANDED
        assert proxy.cuts == 1
        assert len(maria.coordinates()) == 3
        assert [row[3] for row in maria.blocks()] == ["AFTER"]
    finally:
        proxy.close()


def test_a_session_that_the_server_has_ended_is_replaced(maria: Site) -> None:
    table = SqlTable(maria.sink)
    assert table.exists()
    mine = "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"
    sessions = maria.ask(mine)
    assert sessions
    for (number,) in sessions:
        maria.ask(f"KILL {number}")
    assert table.exists()
    table.close()


@pytest.mark.parametrize("where", ["keyed_pg", "keyed_maria", "keyed_lite"])
def test_keys_that_are_true_or_false_can_be_audited(where: str, request: pytest.FixtureRequest) -> None:
    site: Site = request.getfixturevalue(where)
    site.ask("DROP TABLE events")
    site.made("id BOOLEAN NOT NULL, word STRING")
    sent = changes((0, "U", 0, "a"), (1, "U", 0, "b")).set_column(4, "id", [[True, False]])
    site.settle(site.prepared((0, 2)), sent)
    table = SqlTable(site.sink)
    held = SqlKeys(table, table.schema()).rows({Partition("t", 0): 0})
    table.close()
    assert held is not None
    assert sorted(zip(*held.select([0, 2]).to_pydict().values(), strict=True)) == [(False, 1), (True, 0)]


def _slow(site: Site, seconds: float = 1) -> SqlTable:
    """A table that takes so long to be read."""
    site.ask("ALTER TABLE events RENAME TO held")
    slowly = f"BEGIN PERFORM pg_sleep({seconds}); RETURN QUERY SELECT * FROM held; END"
    site.ask(f"CREATE FUNCTION slowly() RETURNS SETOF held LANGUAGE plpgsql AS '{slowly}'")
    site.ask("CREATE VIEW events AS SELECT * FROM slowly()")
    return SqlTable(site.sink)


@pytest.mark.parametrize("where", ["pg", "keyed_pg"])
def test_a_look_at_a_large_table_takes_as_long_as_it_takes(where: str, request: pytest.FixtureRequest) -> None:
    """As does an audit. The control: a look within the limit for questions that are answered at once."""
    site: Site = request.getfixturevalue(where)
    site.settle(site.prepared((0, 9)), changes((7, "U", 1, "a")) if site.key else rows(7))
    table = _slow(site, 1.5)
    keys = SqlKeys(table, parse_schema("id BIGINT NOT NULL")) if site.key else None
    table.database._answer_seconds = 0.8  # type: ignore[attr-defined]
    asked = [(Partition("t", 0), 7), (Partition("t", 1), 0), (Partition("u", 0), 0)]
    assert table.look(asked).ends == ((Partition("t", 0), 8),)
    assert table.look([(Partition("t", 0), 8)]).ends == ()
    if keys is not None:
        assert keys.rows({}) is not None
    table.database.scanning = table.database.reading  # type: ignore[method-assign]
    with pytest.raises(TargetUnavailable):
        table.look(asked)
    table.close()


def test_a_look_at_a_server_that_stands_still_ends(
    pg: Site, postgres: LocalPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("landonce.ledger.postgres._ASK_SECONDS", 0.2)
    monkeypatch.setattr("landonce.ledger.postgres._UNANSWERED", 2)
    table = _slow(pg)
    stop = threading.Timer(1, postgres.freeze)
    stop.start()
    try:
        with pytest.raises(TargetUnavailable):
            table.look([(Partition("t", 0), 0)] * 300)
    finally:
        stop.join()
        postgres.thaw()
    table.close()


@pytest.mark.parametrize("where", ["pg", "keyed_pg", "maria", "keyed_maria", "lite"])
def test_the_index_that_a_check_names_can_be_made_as_written(where: str, request: pytest.FixtureRequest) -> None:
    site = request.getfixturevalue(where)
    site.ask("DROP TABLE events")
    site.ask("CREATE TABLE events (_topic varchar(249), _partition int, _offset bigint, id bigint NOT NULL)")

    def advice() -> list[str]:
        table = SqlTable(site.sink)
        site.tables.append(table)
        return [each.change for each in table.check(parse_schema("id BIGINT NOT NULL")) if "INDEX" in each.change]

    (statement,) = advice()
    site.ask(statement)
    assert advice() == []


@pytest.mark.parametrize("where", ["pg", "keyed_pg", "maria", "keyed_maria"])
def test_a_column_that_comes_under_a_driver_makes_no_dead_letters(where: str, request: pytest.FixtureRequest) -> None:
    """It may not be NULL, and the driver does not know it: the records may well hold it, and land once the driver starts again."""
    site = request.getfixturevalue(where)
    state = site.prepared((0, 3))
    site.ask("ALTER TABLE events ADD COLUMN late int NOT NULL")
    if where.endswith("maria"):
        site.ask("ALTER TABLE events ALTER COLUMN late DROP DEFAULT")
    records = rows(0, 1, 2) if "keyed" not in where else changes((0, "u", 1, "a"), (1, "u", 2, "b"))
    with pytest.raises((Trouble, TargetRefused)) as raised:
        site.settle(state, records)
    assert "late" in str(raised.value)
    assert getattr(raised.value, "blame", Blame.ELSE) is Blame.ELSE
    assert site.coordinates() == []


def test_a_key_that_is_unique_only_at_the_end_is_refused_by_the_check(pg: Site) -> None:
    """PostgreSQL finds no row by a DEFERRABLE key, nor by an index that was never finished. A second key on the same column will do."""
    for number, key in enumerate(("PRIMARY KEY DEFERRABLE", "UNIQUE DEFERRABLE INITIALLY DEFERRED")):
        site = Site(pg.url, pg.ask, key=("id",), table=f"late{number}")
        site.ask(f"CREATE TABLE late{number} (id bigint {key}, word text, {COORDINATES})")
        assert any("DEFERRABLE" in each for each in refusals(site)), key
        site.ask(f"CREATE UNIQUE INDEX ON late{number} (id)")
        assert refusals(site) == []
    site = Site(pg.url, pg.ask, key=("id",), table="unfinished")
    site.ask(f"CREATE TABLE unfinished (id bigint, word text, {COORDINATES})")
    site.ask("CREATE UNIQUE INDEX left_over ON unfinished (id)")
    assert refusals(site) == []
    site.ask("UPDATE pg_index SET indisvalid = false WHERE indexrelid = CAST('left_over' AS regclass)")
    assert any("not valid" in each for each in refusals(site))


def as_user(site: Site, *, keyed: bool = False) -> Site:
    """The same database, for a user who may do nothing yet."""
    name = f"user{next(_numbers)}"
    maria = not site.url.startswith("postgresql")
    site.ask(f"CREATE USER {name} IDENTIFIED BY 'p'" if maria else f"CREATE ROLE {name} LOGIN PASSWORD 'p'")
    before, _, after = site.url.partition("://")[2].rpartition("@")
    del before
    url = f"{site.url.partition('://')[0]}://{name}:p@{after}"
    return Site(url, site.ask, key=("id",) if keyed else ())


def user_of(site: Site) -> str:
    return site.url.partition("://")[2].partition(":")[0]


GRANTS = {
    "INSERT on the table events": ("INSERT", "ON events"),
    "SELECT on the table events": ("SELECT", "ON events"),
    "UPDATE, DELETE on the table events": ("UPDATE, DELETE", "ON events"),
    "sequence events_number_seq": ("USAGE", "ON SEQUENCE events_number_seq"),
    "temporary tables": ("TEMPORARY", "ON DATABASE {database}"),
    "create the ledger's tables": ("CREATE", "ON SCHEMA public"),
}


def test_rights_that_a_block_needs_are_asked_for_first(pg: Site) -> None:
    """Each of them is missed by the check, and a user who has them all lands rows."""
    pg.ask("ALTER TABLE events ADD COLUMN number serial")
    pg.ask("ALTER TABLE events ADD UNIQUE (id)")
    database = pg.url.rpartition("/")[2]
    pg.ask(f"REVOKE ALL ON DATABASE {database} FROM PUBLIC")
    pg.ask("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    site = as_user(pg, keyed=True)
    user = user_of(site)
    pg.ask(f"GRANT CONNECT ON DATABASE {database} TO {user}")
    for right, on in GRANTS.values():
        pg.ask(f"GRANT {right} {on.format(database=database)} TO {user}")
    assert refusals(site) == []
    for missed, (right, on) in GRANTS.items():
        pg.ask(f"REVOKE {right} {on.format(database=database)} FROM {user}")
        assert [missed in each for each in refusals(site)] == [True], refusals(site)
        pg.ask(f"GRANT {right} {on.format(database=database)} TO {user}")
    state = site.prepared((0, 3))
    assert site.settle(state, changes((0, "u", 1, "a"), (1, "u", 2, "b"), (2, "d", 2, None))).fate is Fate.LANDED
    pg.ask(f"ALTER TABLE landonce_block OWNER TO {pg.ask('SELECT current_user')[0][0]}")
    assert any("landonce_block" in each for each in refusals(site))
    site.close()


def test_rights_in_mariadb(maria: Site) -> None:
    site = as_user(maria, keyed=True)
    database, user = maria.url.rpartition("/")[2].partition("?")[0], user_of(site)
    maria.ask("ALTER TABLE events ADD UNIQUE (id)")
    maria.ask("ALTER TABLE events DROP INDEX events_coordinates")
    maria.ask(f"GRANT SELECT ON {database}.* TO {user}")
    assert [each.partition(" on ")[0] for each in refusals(site)] == [
        "the user has no right to INSERT",
        "the user has no right to UPDATE",
        "the user has no right to DELETE",
    ]
    maria.ask(f"GRANT INSERT, UPDATE, DELETE ON {database}.events TO {user}")
    assert refusals(site) == []
