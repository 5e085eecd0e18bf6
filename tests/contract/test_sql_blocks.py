"""A block's transaction in real databases: rows and the block's row are there together, once, and only for its owner."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cutting_proxy import Cut, CuttingProxy
from sql_sites import RECEIPT, Site, changes, mariadb_site, postgres_site, rows, sqlite_site, ydb_site

from landonce.errors import DuplicatePresent, PlanPending, TargetRefused, TargetUnavailable, Unbalanced
from landonce.local.mariadb import LocalMariaDB, installed
from landonce.local.postgres import LocalPostgres
from landonce.record.blocks import Claim, Mark
from landonce.record.ledger import Totals, recorded, taken
from landonce.write.receipt import Fate
from landonce.write.sql import statements

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


_databases = itertools.count(1)


@pytest.fixture(scope="module")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalMariaDB]:
    if not installed():
        pytest.skip("MariaDB is not installed: scripts/test-setup does that")
    with LocalMariaDB(tmp_path_factory.mktemp("mariadb")) as server:
        yield server


_DATABASES = ["postgresql", "sqlite", "mariadb", *(["ydb"] if "YDB_ENDPOINT" in os.environ else [])]


@pytest.fixture(params=_DATABASES)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    yield from _site(request, tmp_path)


@pytest.fixture(params=_DATABASES)
def keyed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    yield from _site(request, tmp_path, key=("id",))


def _site(request: pytest.FixtureRequest, folder: Path, **told: tuple[str, ...]) -> Iterator[Site]:
    if request.param == "sqlite":
        made = sqlite_site(folder, **told)
    elif request.param == "mariadb":
        made = mariadb_site(request.getfixturevalue("mariadb"), f"database{next(_databases)}", **told)
    elif request.param == "ydb":
        made = ydb_site(os.environ["YDB_ENDPOINT"], "events", **told)
    else:
        made = postgres_site(_new(request), **told)
    made.made()
    yield made
    made.close()


@pytest.fixture
def pg(new_database: Callable[[], str]) -> Iterator[Site]:
    made = postgres_site(new_database())
    made.made()
    yield made
    made.close()


def _new(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("new_database")())


def test_a_block_lands_with_its_row(site: Site) -> None:
    state = site.prepared((0, 3), (3, 6))
    assert [row[3] for row in site.blocks()] == ["BEFORE", "BEFORE"]
    assert site.settle(state, rows(0, 1, 2)).fate is Fate.LANDED
    assert site.coordinates() == [("t", 0, 0), ("t", 0, 1), ("t", 0, 2)]
    assert [(row[3], row[4]) for row in site.blocks()] == [("AFTER", RECEIPT), ("BEFORE", None)]


def test_a_block_that_is_there_is_not_written_again(site: Site) -> None:
    state = site.prepared((0, 3))
    site.settle(state, rows(0, 1, 2))
    again = site.settle(state, rows(0, 1, 2), receipt="{}")
    assert (again.fate, again.settled) == (Fate.LANDED, RECEIPT)
    assert len(site.coordinates()) == 3


def test_a_block_without_rows_is_done_too(site: Site) -> None:
    state = site.prepared((0, 3))
    assert site.settle(state, rows()).fate is Fate.LANDED
    assert [row[3] for row in site.blocks()] == ["AFTER"]


def test_a_zombie_writes_nothing(site: Site) -> None:
    old = site.prepared((0, 3))
    new = site.taken_over(old)
    assert site.settle(old, rows(0, 1, 2)).fate is Fate.HALTED
    assert site.coordinates() == []
    assert site.settle(new, rows(0, 1, 2)).fate is Fate.LANDED
    assert len(site.coordinates()) == 3


def test_without_the_claim_a_zombie_would_write(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the same zombie, in a landonce that does not look whose block it is."""
    old = site.prepared((0, 3))
    site.taken_over(old)
    monkeypatch.setattr(statements, "flippable", lambda _: {"state": Mark.BEFORE.value})
    assert site.settle(old, rows(0, 1, 2)).fate is Fate.LANDED
    assert len(site.coordinates()) == 3


def test_a_transaction_that_is_not_committed_leaves_nothing(site: Site) -> None:
    state = site.prepared((0, 3))
    writer = site.writer()
    assert writer.flip(Claim.of(state), RECEIPT)
    writer.write(rows(0, 1, 2))
    writer.close()
    assert site.coordinates() == []
    assert [row[3] for row in site.blocks()] == ["BEFORE"]


def test_what_the_database_refuses_is_named_and_leaves_nothing(site: Site) -> None:
    state = site.prepared((0, 3))
    missing = rows(0, 1, 2).set_column(3, "id", [[0, None, 2]])
    with pytest.raises(TargetRefused, match="refused its rows"):
        site.settle(state, missing)
    assert site.coordinates() == []
    assert [row[3] for row in site.blocks()] == ["BEFORE"]


def test_coordinates_that_something_else_wrote_are_named(site: Site) -> None:
    state = site.prepared((0, 3))
    if site.url.startswith("postgresql"):  # where landonce makes none of its own
        site.ask("CREATE UNIQUE INDEX ON events (_topic, _partition, _offset)")
    site.ask("INSERT INTO events (_topic, _partition, _offset, id) VALUES ('t', 0, 1, 1) RETURNING id")
    with pytest.raises(DuplicatePresent, match="block"):
        site.settle(state, rows(0, 1, 2))
    assert site.coordinates() == [("t", 0, 1)]


def test_blocks_of_one_plan_land_side_by_side(site: Site) -> None:
    state = site.prepared(*((at * 10, at * 10 + 10) for at in range(6)))
    fates: list[object] = []

    def land(number: int) -> None:
        fates.append(site.settle(state, rows(*range(number * 10, number * 10 + 10)), number).fate)

    threads = [threading.Thread(target=land, args=(number,)) for number in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert fates == [Fate.LANDED] * 6
    assert [at for _, _, at in site.coordinates()] == list(range(60))


def test_two_runs_of_one_task_at_once(site: Site) -> None:
    state = site.prepared((0, 3))
    told: list[object] = []
    threads = [threading.Thread(target=lambda: told.append(site.settle(state, rows(0, 1, 2)).fate)) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert told == [Fate.LANDED] * 4
    assert len(site.coordinates()) == 3


def test_a_batch_is_not_recorded_before_all_of_its_blocks_are_there(site: Site) -> None:
    state = site.prepared((0, 3), (3, 6))
    site.settle(state, rows(0, 1, 2))
    with pytest.raises(Unbalanced, match="is not in the table"):
        site.ledger().change(state, recorded(state, Totals(landed=3)))
    site.settle(state, rows(3, 4, 5), 1)
    assert site.ledger().change(state, recorded(state, Totals(landed=6))).pending is None
    assert site.blocks() == []


def test_a_plan_is_not_forgotten_with_blocks_that_are_there(site: Site) -> None:
    from dataclasses import replace

    state = site.prepared((0, 3), (3, 6))
    forgotten = replace(taken(state, "operator"), pending=None)
    site.settle(state, rows(0, 1, 2))
    with pytest.raises(PlanPending, match="would be delivered again"):
        site.ledger().change(state, forgotten)
    assert len(site.blocks()) == 2


def test_a_takeover_ends_a_transaction_that_hangs(pg: Site) -> None:
    """A worker of a machine that was stopped: its session is ended, so its rows never come, and nobody waits for it."""
    old = pg.prepared((0, 3))
    hanging = pg.writer()
    assert hanging.flip(Claim.of(old), RECEIPT)
    hanging.write(rows(0, 1, 2))
    began = time.monotonic()
    new = pg.taken_over(old)
    assert time.monotonic() - began < 60
    with pytest.raises(Exception, match=r"terminat|closed|lost|no connection"):
        hanging.commit()
    hanging.close()
    assert pg.coordinates() == []
    assert pg.settle(new, rows(0, 1, 2)).fate is Fate.LANDED
    assert len(pg.coordinates()) == 3


@pytest.mark.parametrize("cut", [Cut.ANSWERED, Cut.REQUEST], ids=lambda cut: cut.name)
def test_a_commit_without_an_answer(pg: Site, postgres: LocalPostgres, cut: Cut) -> None:
    """What became of it is in the block's row."""
    proxy = CuttingProxy(postgres.port)
    try:
        url = pg.url.replace(f":{postgres.port}/", f":{proxy.port}/")
        state = pg.prepared((0, 3))
        proxy.arm(cut)
        assert pg.settle(state, rows(0, 1, 2), url=url).fate is Fate.LANDED
        assert proxy.cuts == 1
        assert len(pg.coordinates()) == 3
        assert [row[3] for row in pg.blocks()] == ["AFTER"]
    finally:
        proxy.close()


def test_without_the_blocks_row_a_lost_answer_would_double(pg: Site, postgres: LocalPostgres) -> None:
    """The control: the same cut, and a client that sends again what was not answered, as plain code does."""
    import psycopg

    pg.ask("CREATE TABLE plain (id bigint)")
    proxy = CuttingProxy(postgres.port)
    try:
        url = pg.url.replace("+psycopg", "").replace(f":{postgres.port}/", f":{proxy.port}/")
        proxy.arm(Cut.ANSWERED)
        for _ in range(2):
            try:
                with psycopg.connect(url) as connection:
                    connection.execute("INSERT INTO plain VALUES (1), (2), (3)")
                break
            except psycopg.OperationalError:
                continue
        assert pg.ask("SELECT count(*) FROM plain") == [(6,)]
    finally:
        proxy.close()


def test_a_server_that_is_away(pg: Site, postgres: LocalPostgres) -> None:
    state = pg.prepared((0, 3))
    with pytest.raises(TargetUnavailable):
        pg.settle(state, rows(0, 1, 2), url=pg.url.replace(f":{postgres.port}/", ":1/"))
    assert [row[3] for row in pg.blocks()] == ["BEFORE"]


def test_rows_are_changed_by_their_key(keyed: Site) -> None:
    state = keyed.prepared((0, 4), (4, 8))
    keyed.settle(state, changes((0, "U", 1, "one"), (1, "U", 2, "two"), (2, "U", 3, "three")), 0)
    keyed.settle(state, changes((4, "U", 1, "uno"), (5, "D", 2, None), (6, "I", 4, None), (7, "D", 9, None)), 1)
    found = sorted(keyed.ask("SELECT id, word, _offset FROM events"))
    assert found == [(1, "uno", 4), (3, "three", 2), (4, None, 6)]


def test_an_older_change_never_replaces_a_newer_one(keyed: Site) -> None:
    """The blocks of a partition come in order; and if they did not, the coordinates would still tell."""
    state = keyed.prepared((0, 4), (4, 8))
    keyed.settle(state, changes((4, "U", 1, "new"), (5, "U", 2, "new")), 1)
    keyed.settle(state, changes((0, "U", 1, "old"), (1, "D", 2, None), (2, "U", 3, "only")), 0)
    assert sorted(keyed.ask("SELECT id, word FROM events")) == [(1, "new"), (2, "new"), (3, "only")]
