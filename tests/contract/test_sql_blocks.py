"""A block's transaction in real databases: rows and the block's row are there together, once, and only for its owner."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from cutting_proxy import Cut, CuttingProxy
from sql_sites import RECEIPT, TOPIC, Site, changes, mariadb_site, postgres_site, rows, sqlite_site, ydb_site

from landonce.errors import DuplicatePresent, PlanPending, TargetUnavailable, Unbalanced
from landonce.local.postgres import LocalPostgres
from landonce.protocol.block_rows import BlockState, Claim, accounted
from landonce.protocol.ledger import LedgerState, Totals, recorded, taken
from landonce.protocol.operate import accept_gap
from landonce.protocol.receipt import Fate
from landonce.protocol.source import Extent, SourceView
from landonce.read.schema.fields import Field, Schema
from landonce.sinks.sql import statements
from landonce.sinks.sql.postgres import Patience
from landonce.sinks.sql.sink import TargetPostgres
from landonce.sinks.sql.table import SqlTable
from landonce.sinks.transactional import Blame, Trouble, as_error

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


_databases = itertools.count(1)


_DATABASES = ["postgresql", "sqlite", "mariadb", *(["ydb"] if "YDB_ENDPOINT" in os.environ else [])]


@pytest.fixture(params=_DATABASES)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    yield from _site(request, tmp_path)


@pytest.fixture(params=_DATABASES)
def keyed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    yield from _site(request, tmp_path, key=("id",))


def _site(request: pytest.FixtureRequest, folder: Path, **options: tuple[str, ...]) -> Iterator[Site]:
    if request.param == "sqlite":
        made = sqlite_site(folder, **options)
    elif request.param == "mariadb":
        made = mariadb_site(request.getfixturevalue("mariadb"), f"database{next(_databases)}", **options)
    elif request.param == "ydb":
        made = ydb_site(os.environ["YDB_ENDPOINT"], "events", **options)
    else:
        made = postgres_site(_new(request), **options)
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
    monkeypatch.setattr(statements, "flippable", lambda _: {"state": BlockState.BEFORE.value})
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


def test_what_the_database_refuses_is_found_and_leaves_nothing(site: Site) -> None:
    state = site.prepared((0, 9))
    missing = rows(*range(9)).set_column(3, "id", [[0, None, 2, 3, 4, 5, 6, None, 8]])
    with pytest.raises(Trouble) as raised:
        site.settle(state, missing)
    assert raised.value.blame is Blame.ROW
    found = site.refused(state, missing)
    assert [(at, each.blame) for at, each in found or ()] == [(1, Blame.ROW), (7, Blame.ROW)]
    assert site.coordinates() == []
    assert [row[3] for row in site.blocks()] == ["BEFORE"]


def test_what_the_database_refuses_of_changes_is_found(keyed: Site) -> None:
    keyed.ask("INSERT INTO events (_topic, _partition, _offset, id, word) VALUES ('t', 0, 0, 7, 'there') RETURNING id")
    state = keyed.prepared((1, 9))
    sent = changes((1, "U", 1, "a"), (2, "U", 2, "b"), (3, "D", 7, None), (4, "U", 3, "c"))
    sent = sent.set_column(4, "id", [[1, None, 7, 3]])
    assert [at for at, _ in keyed.refused(state, sent) or ()] == [1]
    assert keyed.ask("SELECT id, word FROM events") == [(7, "there")]


def test_nothing_is_searched_in_a_block_of_somebody_else(site: Site) -> None:
    old = site.prepared((0, 3))
    site.taken_over(old)
    assert site.refused(old, rows(0, 1, 2)) is None


def test_a_row_that_lacks_its_other_row_is_not_to_blame_for_ever(site: Site) -> None:
    """A foreign key: what is missing now may be there later."""
    if site.url.startswith("sqlite"):
        pytest.skip("SQLite looks at foreign keys only in connections that ask for it")
    kind = "VARCHAR(9) PRIMARY KEY" if "maria" in site.url else "text PRIMARY KEY"
    site.ask(f"CREATE TABLE parent (word {kind})")
    site.ask("INSERT INTO parent VALUES ('w0'), ('w2')")
    if "maria" in site.url:
        site.ask("ALTER TABLE events MODIFY word VARCHAR(9)")
    deferred = "" if "maria" in site.url else " DEFERRABLE INITIALLY DEFERRED"
    site.ask(f"ALTER TABLE events ADD FOREIGN KEY (word) REFERENCES parent (word){deferred}")
    state = site.prepared((0, 3))
    with pytest.raises(Trouble) as raised:
        site.settle(state, rows(0, 1, 2))
    assert raised.value.blame is Blame.OTHERS
    assert [(at, each.blame) for at, each in site.refused(state, rows(0, 1, 2)) or ()] == [(1, Blame.OTHERS)]
    site.ask("INSERT INTO parent VALUES ('w1')")
    assert site.settle(state, rows(0, 1, 2)).fate is Fate.LANDED


def test_coordinates_that_something_else_wrote_are_named(site: Site) -> None:
    state = site.prepared((0, 3))
    if site.url.startswith("postgresql"):  # where landonce makes none of its own
        site.ask("CREATE UNIQUE INDEX ON events (_topic, _partition, _offset)")
    site.ask("INSERT INTO events (_topic, _partition, _offset, id) VALUES ('t', 0, 1, 1) RETURNING id")
    with pytest.raises(Trouble) as raised:
        site.settle(state, rows(0, 1, 2))
    assert isinstance(as_error(raised.value, "block"), DuplicatePresent)
    assert [(at, each.blame) for at, each in site.refused(state, rows(0, 1, 2)) or ()] == [(1, Blame.TWICE)]
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
    seen: list[object] = []
    threads = [threading.Thread(target=lambda: seen.append(site.settle(state, rows(0, 1, 2)).fate)) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert seen == [Fate.LANDED] * 4
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
    state = site.prepared((0, 3), (3, 6))
    forgotten = replace(taken(state, "operator"), pending=None)
    site.settle(state, rows(0, 1, 2))
    with pytest.raises(PlanPending, match="would be delivered again"):
        site.ledger().change(state, forgotten)
    assert len(site.blocks()) == 2


def test_nor_is_such_a_block_cut_out_of_it(site: Site) -> None:
    state = site.prepared((0, 3), (3, 6))
    assert state.pending is not None
    site.settle(state, rows(0, 1, 2))
    first, second = (
        replace(taken(state, "operator"), pending=replace(state.pending, blocks=(block,)))
        for block in state.pending.blocks
    )
    with pytest.raises(PlanPending, match="would be delivered again"):
        site.ledger().change(state, second)
    assert site.ledger().change(state, first) == first


def _gap_up_to(start: int) -> SourceView:
    return SourceView("c", (), ((TOPIC, Extent(start, 9)),))


@pytest.mark.parametrize("start", [5, 6], ids=["some of it is left", "nothing is"])
def test_a_gap_leaves_alone_what_landed(site: Site, start: int) -> None:
    """Its receipt names its dead letters, and nobody can read them again: the batch is recorded with it."""
    state = site.prepared((0, 3), (3, 6))
    site.settle(state, rows(0, 1, 2))
    landed = accounted(site.ledger().blocks(1))
    decision = accept_gap(state, _gap_up_to(start), "operator", landed=landed)
    state = site.ledger().change(state, decision.new, decision.note())
    assert state.pending is not None
    assert [each.ranges[0].first for each in state.pending.blocks] == ([0, 5] if start == 5 else [0])
    assert site.blocks()[0][3:] == ("AFTER", RECEIPT)
    if start == 5:
        site.settle(state, rows(5), 1)
    done = site.ledger().change(state, recorded(state, Totals(landed=3)))
    assert done.committed() == {TOPIC: 6}
    assert site.blocks() == []


@pytest.mark.parametrize("start", [5, 6], ids=["some of it is left", "nothing is"])
def test_a_gap_is_not_accepted_over_a_block_that_just_landed(site: Site, start: int) -> None:
    """It did so after the operator had looked, and before the driver was fenced."""
    state = site.prepared((0, 3), (3, 6))
    decision = accept_gap(state, _gap_up_to(start), "operator", landed=accounted(site.ledger().blocks(1)))
    site.settle(state, rows(0, 1, 2))
    with pytest.raises(PlanPending, match="names its dead letters"):
        site.ledger().change(state, decision.new, decision.note())
    assert site.ledger().load() == state
    assert [each[3] for each in site.blocks()] == ["AFTER", "BEFORE"]


def _forgotten_under(site: Site, waiting: Callable[[], bool]) -> tuple[bool, int]:
    """An operator forgets a plan while a worker of the last driver has flipped a block, and commits once the operator waits
    for it: whether the plan is still known, and how many rows are there."""
    state = site.prepared((0, 3))
    worker = site.writer()
    assert worker.flip(Claim.of(state), RECEIPT)
    worker.write(rows(0, 1, 2))
    seen: list[bool] = []

    def forget() -> None:
        try:
            site.ledger().change(state, replace(taken(state, "operator"), pending=None))
            seen.append(False)
        except PlanPending:
            seen.append(True)

    operator = threading.Thread(target=forget)
    operator.start()
    while operator.is_alive() and not waiting():
        time.sleep(0.02)
    with suppress(Trouble):  # its session may have been ended
        worker.commit()
    worker.close()
    operator.join(60)
    [known] = seen
    return known, len(site.coordinates())


def test_a_plan_is_not_forgotten_under_a_transaction_that_is_open(site: Site) -> None:
    """Either its rows are not there, or the plan is still known."""
    if site.url.startswith("sqlite"):
        pytest.skip("one writer at a time: the operator waits")
    began = time.monotonic()
    assert _forgotten_under(site, lambda: time.monotonic() - began > 1) in ((False, 0), (True, 3))


@pytest.mark.parametrize("locking", [True, False], ids=["as it is", "the control"])
def test_a_plan_that_is_to_be_forgotten_is_read_under_a_lock(
    pg: Site, monkeypatch: pytest.MonkeyPatch, locking: bool
) -> None:
    """Without it, the rows of a plan that nobody knows any more are in the table: they would be delivered again."""
    monkeypatch.setattr(TargetPostgres, "end_writers", lambda *_: None)
    if not locking:
        monkeypatch.setattr(TargetPostgres, "locking", lambda _, wanted: wanted)
    waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    assert _forgotten_under(pg, lambda: bool(pg.ask(waits))) == (locking, 3)


def test_blocks_get_their_table_where_a_ledger_is_without_one(site: Site) -> None:
    """The database kept the ledger of another sink before."""
    ledger = site.ledger()
    state = ledger.create(LedgerState("contract", "lineage"))
    site.ask("DROP TABLE landonce_block")
    assert site.ledger().change(state, taken(state, "first")).epoch == 1
    assert site.blocks() == []


_NAMES = ("50% off", "select", 'qu"ote', "a:b", "Größe", "order", "x?y", "p$1", "%s")


def test_columns_of_any_name(site: Site) -> None:
    _names_are_kept(site, rows(0, 1))


def test_columns_of_any_name_of_changed_rows(keyed: Site) -> None:
    _names_are_kept(keyed, changes((0, "U", 0, "w0"), (1, "U", 1, "w1")))


def _names_are_kept(site: Site, given: pa.Table) -> None:
    site.ask("DROP TABLE events")
    table = SqlTable(site.sink)
    table.create(Schema((Field("id", pa.int64(), required=True), *(Field(name, pa.string()) for name in _NAMES))))
    table.add({f"more {name}": pa.int64() for name in _NAMES})
    assert table.schema().arrow.names == ["id", *_NAMES, *sorted(f"more {name}" for name in _NAMES)]
    table.close()
    for name in _NAMES:
        given = given.append_column(name, given.column("word")).append_column(f"more {name}", given.column("id"))
    site.settle(site.prepared((0, 2)), given.drop_columns(["word"]))
    found = sorted(site.ask("SELECT * FROM events ORDER BY _offset"))
    assert [row[4 : 4 + len(_NAMES)] for row in found] == [("w0",) * len(_NAMES), ("w1",) * len(_NAMES)]


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


def test_a_server_that_stands_still_holds_nobody_for_ever(
    pg: Site, postgres: LocalPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of its processes are frozen in the middle of a transaction. Once it wakes, the block is written again."""
    from landonce.sinks.sql import postgres as writers

    state = pg.prepared((0, 3))
    writer = pg.writer()
    assert writer.flip(Claim.of(state), RECEIPT)
    writer.close()
    monkeypatch.setattr(writers, "PATIENCE", Patience(every=0.2, unanswered=2))
    writer = pg.writer()
    assert writer.flip(Claim.of(state), RECEIPT)
    try:
        postgres.freeze()
        with pytest.raises(Trouble) as raised:
            writer.write(rows(0, 1, 2))
        assert (raised.value.passing, raised.value.answered) == (True, False)
    finally:
        postgres.thaw()
    writer.close()
    monkeypatch.undo()
    assert pg.settle(state, rows(0, 1, 2)).fate is Fate.LANDED
    assert len(pg.coordinates()) == 3


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


def test_keys_that_differ_in_case_and_spaces_are_different(keyed: Site) -> None:
    keyed.ask("DROP TABLE events")
    keyed.made("id STRING NOT NULL, word STRING")
    sent = changes(*((at, "U", at, f"w{at}") for at in range(5)))
    ids = ["a", "A", "a ", "ä", ""]
    keyed.settle(keyed.prepared((0, 5)), sent.set_column(4, "id", [ids]))
    assert sorted(keyed.ask("SELECT id, word FROM events")) == sorted((each, f"w{at}") for at, each in enumerate(ids))


def test_an_older_change_never_replaces_a_newer_one(keyed: Site) -> None:
    """The blocks of a partition come in order; and if they did not, the coordinates would still tell."""
    state = keyed.prepared((0, 4), (4, 8))
    keyed.settle(state, changes((4, "U", 1, "new"), (5, "U", 2, "new")), 1)
    keyed.settle(state, changes((0, "U", 1, "old"), (1, "D", 2, None), (2, "U", 3, "only")), 0)
    assert sorted(keyed.ask("SELECT id, word FROM events")) == [(1, "new"), (2, "new"), (3, "only")]
