"""What a database would change, drop or invent without a word: refused before the start, a dead letter, or as configured."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from mariadb_server import LocalMariaDB
from sql_sites import Site, changes, mariadb_site, postgres_site, rows, sqlite_site

from landonce.errors import ConfigError, TargetUnavailable
from landonce.protocol.receipt import Fate
from landonce.read.schema.ddl import parse_schema
from landonce.read.schema.fields import Field
from landonce.read.schema.values import unfit_value
from landonce.sinks.contract import Level
from landonce.sinks.sql.table import SqlTable
from landonce.sinks.transactional import Blame, Trouble

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

BESIDE = "_topic varchar(249), _partition int, _offset bigint"
_numbers = itertools.count(1)

Made = Callable[..., Site]
"""A table with these columns, beside the coordinates; `key`, if any."""


@pytest.fixture
def pg(new_database: Callable[[], str]) -> Iterator[Made]:
    yield from _making(lambda **options: postgres_site(new_database(), **options))


@pytest.fixture
def maria(mariadb: LocalMariaDB) -> Iterator[Made]:
    yield from _making(lambda **options: mariadb_site(mariadb, f"silent{next(_numbers)}", **options))


@pytest.fixture
def lite(tmp_path: Path) -> Iterator[Made]:
    def made(**options: Any) -> Site:
        folder = tmp_path / str(next(_numbers))
        folder.mkdir()
        return sqlite_site(folder, **options)

    yield from _making(made)


def _making(made: Callable[..., Site]) -> Iterator[Made]:
    sites: list[Site] = []

    def make(columns: str, *, beside: str = BESIDE, before: str = "", **options: Any) -> Site:
        site = made(**options)
        sites.append(site)
        for statement in filter(None, (before, f"CREATE TABLE events ({columns}, {beside})")):
            site.ask(statement)
        return site

    yield make
    for each in sites:
        each.close()


def refusals(site: Site, declared: str = "", level: Level = Level.REFUSED) -> list[str]:
    table = SqlTable(site.sink)
    try:
        return [each.what for each in table.check(parse_schema(declared) if declared else None) if each.level is level]
    finally:
        table.close()


def test_a_key_that_is_zero_stays_zero(maria: Made) -> None:
    """In a column that counts by itself MySQL takes 0 for nothing, and every change of that key would be a row of its own."""
    site = maria("id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, word varchar(20)", key=("id",))
    state = site.prepared((0, 2), (2, 4))
    assert site.settle(state, changes((0, "U", 0, "first")), 0).fate is Fate.LANDED
    assert site.settle(state, changes((2, "U", 0, "second"), (3, "U", 7, "seven")), 1).fate is Fate.LANDED
    assert sorted(site.ask("SELECT id, word FROM events")) == [(0, "second"), (7, "seven")]


def test_a_url_cannot_take_strict_mode_away(maria: Made) -> None:
    site = maria("id BIGINT, word varchar(5)")
    state = site.prepared((0, 1))
    with pytest.raises(ConfigError, match="init_command"):
        site.settle(state, rows(0), url=f"{site.url}?init_command=SET%20sql_mode%3D%27%27")
    assert site.coordinates() == []


@pytest.mark.parametrize(
    "columns",
    ["id integer, word text UNIQUE ON CONFLICT IGNORE", "id integer, word text NOT NULL on conflict\n REPLACE"],
)
def test_a_table_that_settles_conflicts_itself_is_refused(lite: Made, columns: str) -> None:
    [said] = refusals(lite(columns))
    assert "ON CONFLICT" in said
    assert refusals(lite("id integer, word text UNIQUE ON CONFLICT ABORT")) == []


def test_a_view_in_sqlite_is_refused(lite: Made) -> None:
    site = lite("id integer, word text")
    site.ask("ALTER TABLE events RENAME TO held")
    site.ask("CREATE VIEW events AS SELECT * FROM held")
    site.ask("CREATE TRIGGER away INSTEAD OF INSERT ON events BEGIN SELECT 1; END")
    assert "is a view" in refusals(site)[0]


def _screened(request: pytest.FixtureRequest, where: str) -> Site:
    """A trigger leaves out the second row, without a word."""
    site: Site = request.getfixturevalue(where)("id bigint, word text")
    if where == "lite":
        site.ask("CREATE TRIGGER screen BEFORE INSERT ON events WHEN new.word = 'w1' BEGIN SELECT RAISE(IGNORE); END")
        return site
    site.ask(
        "CREATE FUNCTION screen() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN IF new.word = ''w1'' THEN RETURN NULL; END IF; RETURN new; END'"
    )
    site.ask("CREATE TRIGGER screen BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION screen()")
    return site


@pytest.mark.parametrize("where", ["pg", "lite"])
def test_a_row_that_a_trigger_leaves_out_is_to_blame(where: str, request: pytest.FixtureRequest) -> None:
    """It would count as landed."""
    site = _screened(request, where)
    state = site.prepared((0, 4))
    with pytest.raises(Trouble) as trouble:
        site.settle(state, rows(0, 1, 2, 3))
    assert trouble.value.blame is Blame.ROW
    assert [at for at, _ in site.refused(state, rows(0, 1, 2, 3)) or ()] == [1]
    assert site.settle(state, rows(0, 2, 3)).fate is Fate.LANDED
    assert sorted(site.ask("SELECT id, word FROM events")) == [(0, "w0"), (2, "w2"), (3, "w3")]


def test_a_trigger_of_a_partition_is_seen(pg: Made) -> None:
    site = pg("id bigint, word text")
    site.ask("ALTER TABLE events RENAME TO part")
    site.ask("CREATE TABLE events (LIKE part) PARTITION BY RANGE (id)")
    site.ask("ALTER TABLE events ATTACH PARTITION part FOR VALUES FROM (0) TO (99)")
    site.ask("CREATE FUNCTION screen() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    site.ask("CREATE TRIGGER screen BEFORE INSERT ON part FOR EACH ROW EXECUTE FUNCTION screen()")
    with pytest.raises(Trouble, match="took 0 of 2 rows"):
        site.settle(site.prepared((0, 2)), rows(0, 1))


def test_what_may_leave_changes_out_is_named(pg: Made, lite: Made) -> None:
    site = pg("id bigint PRIMARY KEY, word text", key=("id",))
    assert refusals(site) == refusals(site, level=Level.WARNING) == []
    site.ask("CREATE FUNCTION screen() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    site.ask("CREATE TRIGGER screen BEFORE DELETE ON events FOR EACH ROW EXECUTE FUNCTION screen()")
    assert "trigger screen" in refusals(site, level=Level.WARNING)[0]
    site.ask("CREATE RULE stay AS ON DELETE TO events DO INSTEAD NOTHING")
    assert "rule stay" in refusals(site)[0]
    small = lite("id bigint PRIMARY KEY, word text", key=("id",))
    small.ask("CREATE TRIGGER screen BEFORE DELETE ON events BEGIN SELECT raise (ignore); END")
    assert "trigger screen" in refusals(small)[0]


def test_rows_that_a_policy_hides_are_not_deleted_so_it_is_refused(pg: Made) -> None:
    site = pg("id bigint PRIMARY KEY, word text", key=("id",))
    site.ask("ALTER TABLE events ENABLE ROW LEVEL SECURITY")
    assert refusals(site) == [], "a user whom the policies do not concern may write"
    name = f"app{next(_numbers)}"
    site.ask(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'")
    site.ask(f"GRANT ALL ON events TO {name}")
    site.ask(f"CREATE POLICY hidden ON events TO {name} USING (id <> 1)")
    site.url = re.sub(r"//[^@]*@", f"//{name}:secret@", site.url)
    assert "row-level security" in refusals(site)[0]


def fields(site: Site, declared: str = "") -> dict[str, Field]:
    table = SqlTable(site.sink)
    try:
        return table.schema(parse_schema(declared) if declared else None).by_name()
    finally:
        table.close()


def unfit(field: Field, *values: object) -> list[object]:
    """Those that are dead letters."""
    return [each for each in values if unfit_value(pa.array([each], field.type), field.type, field)]


def test_a_domain_keeps_what_it_is_made_of(pg: Made) -> None:
    """However many domains there are on the way."""
    domains = (
        "CREATE DOMAIN seconds AS timestamp(0); CREATE DOMAIN zoned AS timestamp(3) with time zone; CREATE DOMAIN five AS varchar(5); "
        "CREATE DOMAIN code AS five; CREATE DOMAIN price AS numeric(10,2); CREATE DOMAIN free AS text"
    )
    site = pg("id bigint, a seconds, b zoned, c five, d code, e price, f free, g five NOT NULL", before=domains)
    assert refusals(site) == []
    found = fields(site)
    assert [(found[each].digits, found[each].type) for each in "ab"] == [
        (0, pa.timestamp("us")),
        (3, pa.timestamp("us", "UTC")),
    ]
    assert [found[each].longest for each in "cdfg"] == [5, 5, None, 5]
    assert found["e"].type == pa.decimal128(10, 2)
    half = datetime(2024, 1, 1, 0, 0, 0, 600_000)
    assert unfit(found["a"], half, half.replace(microsecond=0)) == [half]
    assert unfit(found["d"], "abc     ", "abcde") == ["abc     "]


def test_text_in_a_json_column_of_sqlite_becomes_no_number(lite: Made) -> None:
    site = lite("id bigint, doc JSON")
    given = fields(site, "id BIGINT, doc STRING")["doc"]
    documents = ['{"a": 1}', "[1]", '"1"', "true", ""]
    numbers = ["12345678901234567890", "007", " 1", "-1e3", ".5"]
    assert unfit(given, *documents, *numbers) == numbers
    site.settle(site.prepared((0, 5)), rows(*range(5)).drop_columns(["word"]).append_column("doc", [documents]))
    assert [doc for (doc,) in site.ask("SELECT doc FROM events ORDER BY id")] == documents


def test_what_mysql_would_round_is_refused(maria: Made) -> None:
    site = maria(
        "id BIGINT, a double(10,2) NOT NULL, b float(7,2) NOT NULL, c set('a','b') NOT NULL, d double, e float"
    )
    assert sorted(each.split(":")[0] for each in refusals(site)) == ["column a", "column b"]
    assert unfit(fields(site)["c"], "b,a", "", "c", "a,", "A") == ["c", "a,", "A"]


def test_blanks_that_mysql_would_cut_are_no_rows(maria: Made) -> None:
    site = maria("id BIGINT, word tinytext, code char(5)")
    assert unfit(fields(site)["code"], "a  ", "a b", "", "abcdef") == ["a  ", "abcdef"]
    state = site.prepared((0, 3))
    long = "é" * 127 + "a"
    sent = rows(0, 1, 2, words={0: long, 1: f"{long}  ", 2: "b  "})
    with pytest.raises(Trouble) as trouble:
        site.settle(state, sent)
    assert trouble.value.blame is Blame.ROW
    assert [at for at, _ in site.refused(state, sent) or ()] == [1]
    assert site.settle(state, sent.take([0, 2])).fate is Fate.LANDED
    assert sorted(site.ask("SELECT id, word FROM events")) == [(0, long), (2, "b  ")]


def test_sqlite_invents_no_id_in_the_place_of_one(lite: Made) -> None:
    """Unless it is said that records hold none."""
    site = lite("id INTEGER PRIMARY KEY, word text")
    assert "a number of its own" in refusals(site)[0]
    for declared, required in (("id BIGINT, word STRING", True), ("word STRING", False)):
        assert refusals(site, declared) == []
        assert fields(site, declared)["id"].required is required
    assert refusals(lite("id INT PRIMARY KEY, word text")) == []
    assert refusals(lite("id INTEGER, word text", beside=f"{BESIDE}, PRIMARY KEY (id, word)")) == []
    keyed = lite("id INTEGER PRIMARY KEY, word text", key=("id",))
    assert refusals(keyed) == []


def test_a_table_with_bytes_that_landonce_made_is_fit(maria: Made) -> None:
    site = maria("id BIGINT, a tinyblob, b mediumblob, c blob")
    assert {str(fields(site)[each].type) for each in "abc"} == {"binary"}
    site.ask("DROP TABLE events")
    site.made("id BIGINT NOT NULL, word STRING, bytes BINARY")
    assert refusals(site) == []
    sent = rows(0).append_column("bytes", pa.array([bytes(range(256))]))
    assert site.settle(site.prepared((0, 1)), sent).fate is Fate.LANDED
    assert site.ask("SELECT bytes FROM events") == [(bytes(range(256)),)]


def of_topic(topic: str, table: pa.Table) -> pa.Table:
    return table.set_column(0, "_topic", pa.array([topic] * table.num_rows))


@pytest.mark.parametrize(
    ("where", "topics"),
    [
        ("maria", "varchar(249) COLLATE utf8mb4_general_ci"),
        ("maria", "varchar(249) CHARACTER SET latin1"),
        ("lite", "text COLLATE NOCASE"),
        ("pg", "text COLLATE nocase"),
    ],
)
def test_topics_that_differ_in_case_only_are_two(where: str, topics: str, request: pytest.FixtureRequest) -> None:
    """Offsets of two topics say nothing about which change is newer."""
    nocase = "CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
    site = request.getfixturevalue(where)(
        "id bigint PRIMARY KEY, word varchar(20)",
        beside=f"_topic {topics}, _partition int, _offset bigint",
        before=nocase if where == "pg" else "",
        key=("id",),
    )
    assert refusals(site) == []
    state = site.prepared((0, 10), (10, 20), (20, 30))
    site.settle(state, of_topic("T", changes((9, "U", 1, "of T"), (8, "U", 2, "of T"))), 0)
    site.settle(state, changes((3, "U", 1, "of t"), (4, "D", 2, None)), 1)
    assert site.ask("SELECT id, word, _topic, _offset FROM events") == [(1, "of t", "t", 3)]
    site.settle(state, changes((2, "U", 1, "older"), (1, "D", 1, None)), 2)
    assert site.ask("SELECT id, word, _topic, _offset FROM events") == [(1, "of t", "t", 3)], (
        "of one topic it still counts"
    )


@pytest.mark.parametrize("column", ["_topic integer", "_partition text", "_offset text", "_offset real"])
def test_coordinates_that_sqlite_would_compare_otherwise_are_refused(lite: Made, column: str) -> None:
    """As text, offset 10 is older than offset 9."""
    options = {"_topic": "_topic text", "_partition": "_partition int", "_offset": "_offset bigint"}
    name = column.split()[0]
    site = lite("id integer PRIMARY KEY, word text", beside=", ".join({**options, name: column}.values()), key=("id",))
    [said] = refusals(site)
    assert name in said


def test_an_index_that_compares_a_key_otherwise_is_refused(lite: Made) -> None:
    """The table would take `a` and `A` for one, and a deletion of `A` would not find `a`."""
    site = lite("id text NOT NULL, word text", key=("id",))
    site.ask("CREATE UNIQUE INDEX only ON events (id COLLATE NOCASE)")
    [said] = refusals(site)
    assert "index only" in said
    site.ask("DROP INDEX only")
    site.ask("CREATE UNIQUE INDEX only ON events (id)")
    assert refusals(site) == []


def test_a_statement_that_took_too_long_is_tried_again(maria: Made, mariadb: LocalMariaDB) -> None:
    """MariaDB ends it, where the server has a limit: no reason to halt."""
    site = maria("id BIGINT, word varchar(20)")
    state = site.prepared((0, 3))
    with mariadb.connect(site.url.rpartition("/")[2]) as other, other.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT * FROM landonce_block FOR UPDATE")
        site.ask("SET GLOBAL max_statement_time = 0.3")
        try:
            with pytest.raises(TargetUnavailable, match="max_statement_time"):
                site.settle(state, rows(0, 1, 2))
        finally:
            site.ask("SET GLOBAL max_statement_time = 0")
    assert site.settle(state, rows(0, 1, 2)).fate is Fate.LANDED
