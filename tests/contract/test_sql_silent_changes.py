"""What a database would change, drop or invent without a word: refused before the start, a dead letter, or as it was told."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sql_sites import Site, changes, mariadb_site, postgres_site, rows, sqlite_site

from landonce.errors import ConfigError
from landonce.local.mariadb import LocalMariaDB
from landonce.read.ddl import parse_schema
from landonce.write.receipt import Fate
from landonce.write.sink import Level
from landonce.write.sql.table import SqlTable

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

BESIDE = "_topic varchar(249), _partition int, _offset bigint"
_numbers = itertools.count(1)

Made = Callable[..., Site]
"""A table with these columns, beside the coordinates; `key`, if any."""


@pytest.fixture
def pg(new_database: Callable[[], str]) -> Iterator[Made]:
    yield from _making(lambda **told: postgres_site(new_database(), **told))


@pytest.fixture
def maria(mariadb: LocalMariaDB) -> Iterator[Made]:
    yield from _making(lambda **told: mariadb_site(mariadb, f"silent{next(_numbers)}", **told))


@pytest.fixture
def lite(tmp_path: Path) -> Iterator[Made]:
    def made(**told: Any) -> Site:
        folder = tmp_path / str(next(_numbers))
        folder.mkdir()
        return sqlite_site(folder, **told)

    yield from _making(made)


def _making(made: Callable[..., Site]) -> Iterator[Made]:
    sites: list[Site] = []

    def make(columns: str, *, beside: str = BESIDE, before: str = "", **told: Any) -> Site:
        site = made(**told)
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
