"""Every ledger against the one contract, then what only databases have: errors, absences, lost answers.

PostgreSQL is a real server. For every guarantee there is a control: a ledger without it, which the same check refuses.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from broken_ledgers import Torn
from broken_sql_ledgers import Forgetful, TornReader, blind_to
from cutting_proxy import Cut, CuttingProxy
from ledger_sites import (
    ALL,
    BETWEEN_PROCESSES,
    COMMIT,
    Site,
    before_statement,
    memory_site,
    postgres_site,
    sqlite_site,
)
from sqlalchemy import URL, create_engine, event, text

from landonce.errors import (
    ConfigError,
    Fenced,
    Halt,
    LandonceError,
    LedgerTooNew,
    LedgerUnavailable,
    LedgerUnreadable,
)
from landonce.ledger.open import open_ledger, postgres_ledger, sqlite_ledger
from landonce.ledger.postgres import PostgresDatabase
from landonce.ledger.sql import SqlLedger
from landonce.ledger.tables import SCHEMA_VERSION
from landonce.local.postgres import LocalPostgres
from landonce.protocol.ledger import LedgerState, Totals, recorded, taken
from landonce.testing import LEDGER_CASES, LedgerContract
from landonce.testing.crashing import in_processes, started
from landonce.testing.ledger_sites import (
    PIPELINE,
    advanced,
    check_whole,
    first_state,
    full_state,
    marched,
    note,
    wide_state,
)

pytestmark = pytest.mark.timeout(300)
AFTERWARDS = "after the answer"
MOMENTS = ("UPDATE landonce_pipeline", "landonce_position", "landonce_journal", COMMIT, AFTERWARDS)


def plain(url: str) -> str:
    """Without SQLAlchemy's name of the driver."""
    return url.replace("+psycopg", "")


def connected(postgres: LocalPostgres) -> psycopg.Connection[tuple[object, ...]]:
    """Hardly ever, a loaded server drops a connection that it has just accepted. Here that is nobody's fault, and nobody's test."""
    try:
        return psycopg.connect(plain(postgres.url), autocommit=True)
    except psycopg.OperationalError:
        postgres.wait_ready()
        return psycopg.connect(plain(postgres.url), autocommit=True)


@pytest.fixture
def new_database(postgres: LocalPostgres) -> Callable[[], str]:
    """`new_database()` makes an empty schema, which is quicker than a database, and returns a URL that lives in it."""

    def make() -> str:
        name = f"ledger_{time.monotonic_ns()}"
        with connected(postgres) as connection:
            connection.execute(f"CREATE SCHEMA {name}")
            connection.execute(f"GRANT USAGE ON SCHEMA {name} TO PUBLIC")
        return f"{postgres.url}?options=-csearch_path%3D{name}"

    return make


@pytest.fixture
def new_site(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Site]:
    def make(name: str) -> Site:
        if name == "memory":
            return memory_site()
        if name == "sqlite":
            return sqlite_site(tmp_path)
        return postgres_site(request.getfixturevalue("new_database")())

    return make


class TestLedgers(LedgerContract):
    @pytest.fixture(params=ALL)
    def site(self, request: pytest.FixtureRequest, new_site: Callable[[str], Site]) -> Site:
        return new_site(request.param)


class TestTheContractNotices:
    """A ledger without the guarantee fails the check that the real ones pass. `test_kit_ledgers` has one for every case."""

    @pytest.mark.parametrize("name", BETWEEN_PROCESSES)
    @pytest.mark.parametrize("part", ["epoch", "owner", "version", "lineage"])
    def test_a_comparison_that_leaves_out_a_part(self, new_site: Callable[[str], Site], name: str, part: str) -> None:
        site = new_site(name)
        site.kind = blind_to(part)
        with pytest.raises(AssertionError, match="was let through"):
            LEDGER_CASES[f"a_driver_with_another_{part}_is_fenced"].check(site)

    @pytest.mark.parametrize("name", BETWEEN_PROCESSES)
    def test_a_transaction_for_each_statement(self, new_site: Callable[[str], Site], name: str) -> None:
        site = new_site(name)
        site.kind = Torn
        with pytest.raises(AssertionError, match="torn"):
            check_killed_at(site, "landonce_journal")

    @pytest.mark.parametrize("name", BETWEEN_PROCESSES)
    def test_a_torn_read(self, new_site: Callable[[str], Site], name: str) -> None:
        with pytest.raises(AssertionError, match="torn"):
            check_read_is_one_moment(new_site(name), TornReader)


@pytest.mark.parametrize("name", BETWEEN_PROCESSES)
class TestTransactions:
    @pytest.mark.parametrize("moment", MOMENTS)
    def test_killed_at_a_chosen_moment(self, new_site: Callable[[str], Site], name: str, moment: str) -> None:
        check_killed_at(new_site(name), moment)

    def test_a_change_that_fails_midway_leaves_nothing(self, new_site: Callable[[str], Site], name: str) -> None:
        site = new_site(name)
        check_failing_midway(site, SqlLedger)

    def test_midway_control(self, new_site: Callable[[str], Site], name: str) -> None:
        with pytest.raises(AssertionError, match="left"):
            check_failing_midway(new_site(name), Torn)

    def test_a_read_is_one_moment(self, new_site: Callable[[str], Site], name: str) -> None:
        check_read_is_one_moment(new_site(name), SqlLedger)

    def test_a_change_costs_what_it_changes(self, new_site: Callable[[str], Site], name: str) -> None:
        ledger = new_site(name).open(PIPELINE)
        state = ledger.create(wide_state(2_000))
        (partition, position), *others = state.positions
        moved = ((partition, replace(position, committed=5)), *others)
        sizes: list[int] = []
        with measured_parameters(ledger, sizes):
            ledger.change(state, replace(state, version=state.version + 1, positions=moved))
        assert sum(sizes) < 1_000

    def test_loading_makes_nothing(self, new_site: Callable[[str], Site], name: str) -> None:
        ledger = new_site(name).open(PIPELINE)
        ledger.load()
        ledger.journal()
        if name == "sqlite":
            assert not ledger.database.path.exists()
        else:
            with ledger.database.reading() as connection:
                assert not ledger.database.has_tables(connection)

    def test_what_is_answered_is_on_disk(self, new_site: Callable[[str], Site], name: str) -> None:
        ledger = new_site(name).open(PIPELINE)
        ledger.create(first_state())
        asked = {"sqlite": "PRAGMA synchronous", "postgres": "SHOW synchronous_commit"}[name]
        if name == "postgres":
            with ledger.database.engine.begin() as connection:
                connection.execute(text("ALTER ROLE landonce SET synchronous_commit = off"))
            ledger.close()
        try:
            with ledger.database.writing() as connection:
                assert connection.scalar(text(asked)) in (3, "on")
        finally:
            if name == "postgres":
                with ledger.database.engine.begin() as connection:
                    connection.execute(text("ALTER ROLE landonce RESET synchronous_commit"))

    def test_tables_of_another_version_are_left_alone(self, new_site: Callable[[str], Site], name: str) -> None:
        ledger = new_site(name).open(PIPELINE)
        state = ledger.create(first_state())
        with ledger.database.writing() as connection:
            connection.execute(text(f"UPDATE landonce_schema SET version = {SCHEMA_VERSION + 1}"))
        for use in (ledger.load, lambda: ledger.create(state), lambda: ledger.change(state, taken(state, "me"))):
            with pytest.raises(LedgerTooNew, match="pip install --upgrade landonce"):
                use()
        with ledger.database.writing() as connection:
            assert connection.scalar(text("SELECT version FROM landonce_pipeline")) == 0
            connection.execute(text(f"UPDATE landonce_schema SET version = {SCHEMA_VERSION - 1}"))
        for use in (ledger.load, lambda: ledger.create(state), lambda: ledger.change(state, taken(state, "me"))):
            with pytest.raises(LedgerUnreadable, match="continue with the landonce that wrote it"):
                use()
        with ledger.database.writing() as connection:
            assert connection.scalar(text("SELECT version FROM landonce_pipeline")) == 0
            connection.execute(text("DELETE FROM landonce_schema"))
        with pytest.raises(LedgerUnreadable, match="tables without a version"):
            ledger.load()

    def test_an_entry_that_was_edited_by_hand(self, new_site: Callable[[str], Site], name: str) -> None:
        ledger = new_site(name).open(PIPELINE)
        ledger.create(full_state())
        with ledger.database.writing() as connection:
            connection.execute(text("UPDATE landonce_pipeline SET pending = '{\"batch\": 1}'"))
        with pytest.raises(LedgerUnreadable, match=PIPELINE):
            ledger.load()

    def test_a_locked_ledger_is_waited_for_within_bounds(self, new_site: Callable[[str], Site], name: str) -> None:
        site = new_site(name)
        state = site.open(PIPELINE).create(first_state())
        ledger = quick(site)
        with site.open(PIPELINE).database.writing() as other:
            other.execute(text("UPDATE landonce_pipeline SET batch = 0"))
            began = time.monotonic()
            with pytest.raises(LedgerUnavailable):
                ledger.change(state, taken(state, "me"))
            assert time.monotonic() - began < 10
        assert ledger.change(state, taken(state, "me")) == taken(state, "me")


def quick(site: Site) -> SqlLedger:
    """With little patience, for tests of its end."""
    database = site.open(PIPELINE).database
    if isinstance(database, PostgresDatabase):
        database = PostgresDatabase(database.engine.url.update_query_dict({"connect_timeout": "2"}), answer_seconds=1.0)
    else:
        database = type(database)(database.path, busy_seconds=0.2)
    return SqlLedger(database, PIPELINE, attempts=2, backoff=0.02)


def check_killed_at(site: Site, moment: str) -> None:
    """kill -9 right before a statement of a change that moves every position and writes a note, or after it."""
    before, after = marched(4), marched(5)
    site.open(PIPELINE).create(before)
    moving = replace(recorded(after, Totals(landed=1)), owner="moved")

    def die_midway() -> None:
        ledger = site.open(PIPELINE)
        ledger.change(before, after)
        with before_statement(ledger, moment, lambda: os.kill(os.getpid(), signal.SIGKILL)):
            ledger.change(after, moving, note(1))
        os.kill(os.getpid(), signal.SIGKILL)

    worker = started(die_midway)
    worker.join(50)
    assert worker.exitcode == -signal.SIGKILL
    applied = moment == AFTERWARDS
    assert site.open(PIPELINE).load() == (moving if applied else after), "torn: a part of the change is there"
    assert site.open(PIPELINE).journal() == ((note(1),) if applied else ())


def check_failing_midway(site: Site, kind: type[SqlLedger]) -> None:
    class Injected(Exception):
        """Stands for anything that may go wrong in the middle."""

    def fail() -> None:
        raise Injected

    before = site.open(PIPELINE).create(marched(5))
    ledger = site.open(PIPELINE, kind)
    with before_statement(ledger, "landonce_journal", fail), pytest.raises(Injected):
        ledger.change(before, marched(6), note(1))
    assert site.open(PIPELINE).load() == before, "something is left of a change that failed"
    assert site.open(PIPELINE).change(before, marched(6), note(2)) == marched(6)
    assert site.open(PIPELINE).journal() == (note(2),)


def check_read_is_one_moment(site: Site, kind: type[SqlLedger]) -> None:
    """Another driver records a batch just when the reader is between the two tables."""
    site.open(PIPELINE).create(marched(5))
    writer = threading.Thread(target=lambda: site.open(PIPELINE).change(marched(5), marched(6)))
    reader = site.open(PIPELINE, kind)

    def meanwhile() -> None:
        """A sound reader may keep the writer waiting until it has read."""
        writer.start()
        writer.join(60 if kind is TornReader else 0.5)

    with before_statement(reader, "FROM landonce_position", meanwhile):
        seen = reader.load()
    writer.join(20)
    check_whole(seen)
    assert site.open(PIPELINE).load() == marched(6)


@contextmanager
def measured_parameters(ledger: SqlLedger, sizes: list[int]) -> Iterator[None]:
    def listen(connection, cursor, statement, parameters, context, executemany):
        sizes.append(len(repr(parameters)))

    event.listen(ledger.database.engine, "before_cursor_execute", listen)
    yield
    event.remove(ledger.database.engine, "before_cursor_execute", listen)


class TestLostAnswers:
    """The connection goes away in the middle of COMMIT."""

    @pytest.fixture
    def proxy(self, postgres: LocalPostgres) -> Iterator[CuttingProxy]:
        proxy = CuttingProxy(postgres.port)
        yield proxy
        proxy.close()

    @pytest.fixture
    def site(self, new_database: Callable[[], str], postgres: LocalPostgres, proxy: CuttingProxy) -> Site:
        return postgres_site(new_database().replace(f":{postgres.port}/", f":{proxy.port}/"))

    @pytest.mark.parametrize("cut", Cut)
    def test_exactly_one_application(self, site: Site, proxy: CuttingProxy, cut: Cut) -> None:
        check_settled(site, proxy, cut, SqlLedger)

    @pytest.mark.parametrize("cut", [Cut.ANSWER, Cut.LATE])
    def test_control(self, site: Site, proxy: CuttingProxy, cut: Cut) -> None:
        """A driver that does not look is fenced by itself."""
        with pytest.raises(Fenced):
            check_settled(site, proxy, cut, Forgetful)

    def test_a_doubt_outlives_the_call(self, site: Site, proxy: CuttingProxy) -> None:
        ledger = site.open(PIPELINE)
        before = ledger.create(marched(5))
        proxy.arm(Cut.ANSWER)
        proxy.deaf = True
        with pytest.raises(LedgerUnavailable, match="is not known"):
            ledger.change(before, marched(6), note(1))
        proxy.deaf = False
        assert ledger.change(before, marched(6), note(1)) == marched(6)
        assert ledger.journal() == (note(1),)

    def test_somebody_else_came_in_between(self, site: Site, proxy: CuttingProxy) -> None:
        ledger, other = site.open(PIPELINE), site.open(PIPELINE)
        before = ledger.create(marched(5))
        proxy.arm(Cut.REQUEST)
        proxy.deaf = True
        with pytest.raises(LedgerUnavailable):
            ledger.change(before, marched(6))
        proxy.deaf = False
        theirs = other.change(before, taken(before, "other"))
        with pytest.raises(Fenced):
            ledger.change(before, marched(6))
        assert ledger.load() == theirs

    def test_create(self, site: Site, proxy: CuttingProxy) -> None:
        proxy.arm(Cut.ANSWER)
        assert site.open(PIPELINE).create(full_state()) == full_state()
        assert proxy.cuts == 1


def check_settled(site: Site, proxy: CuttingProxy, cut: Cut, kind: type[SqlLedger]) -> None:
    ledger = site.open(PIPELINE, kind)
    before = ledger.create(marched(5))
    proxy.arm(cut)
    assert ledger.change(before, marched(6), note(1)) == marched(6)
    assert proxy.cuts == 1
    assert site.open(PIPELINE).load() == marched(6)
    assert site.open(PIPELINE).journal() == (note(1),)


class TestServerAway:
    @pytest.fixture
    def site(self, new_database: Callable[[], str]) -> Site:
        return postgres_site(new_database())

    @pytest.fixture(autouse=True)
    def _leave_it_running(self, postgres: LocalPostgres) -> Iterator[None]:
        yield
        if postgres.running:
            postgres.thaw()
        else:
            postgres.start()
        postgres.wait_ready()

    @pytest.mark.parametrize("gone", ["stop", "kill", "freeze"])
    def test_a_named_error_within_bounds(self, site: Site, postgres: LocalPostgres, gone: str) -> None:
        ledger = quick(site)
        state = ledger.create(first_state())
        getattr(postgres, gone)()
        for use in (lambda: ledger.change(state, taken(state, "me")), ledger.load):
            began = time.monotonic()
            with pytest.raises(LedgerUnavailable, match="did not answer") as caught:
                use()
            assert time.monotonic() - began < 10
            assert "landonce run" in str(caught.value)
            assert postgres.password not in "".join(traceback.format_exception(caught.value))

    @pytest.mark.parametrize("gone", ["stop", "kill"])
    def test_a_restart_in_the_middle(self, site: Site, postgres: LocalPostgres, gone: str) -> None:
        """A driver that goes on through a restart: every change happens once, in order, and nobody is fenced."""
        ledger = site.open(PIPELINE)
        ledger._attempts, ledger._backoff = 12, 0.05
        reached: list[LedgerState] = [ledger.create(first_state())]
        over = threading.Event()

        def drive() -> None:
            while not over.is_set():
                reached.append(ledger.change(reached[-1], advanced(reached[-1])))

        driver = threading.Thread(target=drive)
        driver.start()
        time.sleep(0.3)
        getattr(postgres, gone)()
        postgres.start()
        postgres.wait_ready()
        at_restart = len(reached)
        until = time.monotonic() + 120
        while len(reached) <= at_restart + 2 and time.monotonic() < until:
            time.sleep(0.05)
        over.set()
        driver.join(60)
        assert len(reached) > at_restart + 2
        assert ledger.load() == reached[-1]
        check_whole(reached[-1])


class TestConnections:
    """One connection is kept, and nothing that happens to it between two calls reaches the caller."""

    @pytest.fixture
    def ledger(self, new_database: Callable[[], str]) -> SqlLedger:
        ledger = postgres_ledger(new_database(), PIPELINE, attempts=1)
        ledger.create(first_state())
        return ledger

    def test_a_child_does_not_talk_on_its_parents_connection(self, ledger: SqlLedger) -> None:
        assert in_processes(2, lambda _: ledger.load()) == [first_state()] * 2
        assert ledger.change(first_state(), taken(first_state(), "me")) == taken(first_state(), "me")

    def test_a_connection_that_was_closed_meanwhile(self, ledger: SqlLedger) -> None:
        with ledger.database.engine.connect() as connection:
            kept = connection.connection.driver_connection
        kept.close()
        assert ledger.load() == first_state()


class TestWrongPlaces:
    """Each is one clear error, soon, and nothing is made."""

    def test_not_a_database(self, tmp_path: Path) -> None:
        path = tmp_path / "ledger.db"
        path.write_text("topic,partition,offset\n" * 100)
        check_refused(sqlite_ledger(path, PIPELINE), ConfigError, "not an SQLite database")
        assert path.read_text().startswith("topic,")

    def test_a_database_of_something_else(self, tmp_path: Path) -> None:
        path = tmp_path / "ledger.db"
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE customers (name TEXT)")
        check_refused(sqlite_ledger(path, PIPELINE), ConfigError, "of something else")

    def test_a_folder(self, tmp_path: Path) -> None:
        check_refused(sqlite_ledger(tmp_path, PIPELINE), ConfigError, str(tmp_path))

    def test_a_damaged_file(self, tmp_path: Path) -> None:
        path = tmp_path / "ledger.db"
        sqlite_ledger(path, PIPELINE).create(wide_state(500))
        whole = path.read_bytes()
        path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
        check_refused(sqlite_ledger(path, PIPELINE), Halt, str(path))

    def test_an_empty_file_is_an_empty_ledger(self, tmp_path: Path) -> None:
        """What a driver leaves that is killed between making the file and filling it."""
        (tmp_path / "ledger.db").touch()
        ledger = sqlite_ledger(tmp_path / "ledger.db", PIPELINE)
        assert ledger.load() is None
        assert ledger.create(full_state()) == full_state()

    def test_a_missing_folder(self, tmp_path: Path) -> None:
        ledger = sqlite_ledger(tmp_path / "missing" / "ledger.db", PIPELINE)
        assert ledger.load() is None
        with pytest.raises(ConfigError, match=r"there is no folder .*missing"):
            ledger.create(first_state())
        assert list(tmp_path.iterdir()) == []

    def test_a_read_only_folder(self, unprivileged: Path) -> None:
        ledger = sqlite_ledger(unprivileged / "ledger.db", PIPELINE)
        state = ledger.create(first_state())
        unprivileged.chmod(0o555)
        assert ledger.load() == state
        with pytest.raises(ConfigError, match="must both be writable"):
            ledger.change(state, taken(state, "me"))
        with pytest.raises(ConfigError, match="must both be writable"):
            sqlite_ledger(unprivileged / "another.db", PIPELINE).create(first_state())

    def test_a_read_only_file(self, unprivileged: Path) -> None:
        ledger = sqlite_ledger(unprivileged / "ledger.db", PIPELINE)
        state = ledger.create(first_state())
        ledger.database.path.chmod(0o444)
        assert ledger.load() == state
        with pytest.raises(ConfigError, match="must both be writable"):
            ledger.change(state, taken(state, "me"))

    def test_odd_names(self, tmp_path: Path) -> None:
        path = tmp_path / "a ledger? 100%#ü.db"
        assert sqlite_ledger(path, PIPELINE).create(full_state()) == full_state()
        assert [each.name for each in tmp_path.iterdir()] == [path.name]
        assert open_ledger(str(path), PIPELINE).load() == full_state()
        assert open_ledger(URL.create("sqlite", database=str(path)), PIPELINE).load() == full_state()

    def test_memory_is_not_a_place(self) -> None:
        with pytest.raises(ConfigError, match="is lost when"):
            open_ledger("sqlite:///:memory:", PIPELINE)

    def test_wrong_password(self, postgres: LocalPostgres) -> None:
        url = postgres.url.replace(postgres.password, "s3cret-word")
        check_refused(postgres_ledger(url, PIPELINE), ConfigError, "password authentication failed", "s3cret-word")

    def test_missing_database(self, postgres: LocalPostgres) -> None:
        url = postgres.url.rpartition("/")[0] + "/nowhere"
        check_refused(postgres_ledger(url, PIPELINE), ConfigError, '"nowhere" does not exist', postgres.password)

    def test_missing_rights(self, new_database: Callable[[], str], postgres: LocalPostgres) -> None:
        url = new_database()
        with psycopg.connect(plain(url), autocommit=True) as connection:
            connection.execute("DROP ROLE IF EXISTS guest")
            connection.execute("CREATE ROLE guest LOGIN PASSWORD 's3cret-word'")
        guest = postgres_ledger(url.replace(f"landonce:{postgres.password}", "guest:s3cret-word"), PIPELINE)
        with pytest.raises(ConfigError, match="permission denied") as caught:
            guest.create(first_state())
        assert "grant" in caught.value.command

    @pytest.mark.parametrize(
        "url",
        [
            "postgresql://me:s3cret-word@loc@alhost/db",
            "postgresql://me:s3cret-word@localhost:port/db",
            "mysql://me:s3cret-word@localhost/db",
            "s3cret-word://",
            "://s3cret-word",
        ],
    )
    def test_a_url_that_cannot_be_read_is_not_shown(self, url: str) -> None:
        with pytest.raises(ConfigError, match="percent-encoded") as caught:
            open_ledger(url, PIPELINE)
        assert "s3cret-word" not in "".join(traceback.format_exception(caught.value))

    def test_a_borrowed_engine(self, new_database: Callable[[], str]) -> None:
        engine = create_engine(new_database())
        ledger = open_ledger(engine, PIPELINE)
        state = ledger.create(full_state())
        ledger.close()
        assert ledger.change(state, replace(state, version=state.version + 1)).version == state.version + 1
        engine.dispose()

    @pytest.fixture
    def unprivileged(self) -> Iterator[Path]:
        """A folder of a user for whom permissions count, and this process as that user."""
        folder = Path(tempfile.mkdtemp(prefix="landonce-test-"))
        me = os.geteuid()
        if me == 0:
            os.chown(folder, 65534, 65534)
            os.seteuid(65534)
        yield folder
        os.seteuid(me)
        shutil.rmtree(folder)


def check_refused(ledger: SqlLedger, kind: type[LandonceError], words: str, secret: str = "s3cret-word") -> None:
    began = time.monotonic()
    for use in (ledger.load, lambda: ledger.create(first_state())):
        with pytest.raises(kind) as caught:
            use()
        assert words in str(caught.value)
        assert secret not in "".join(traceback.format_exception(caught.value))
    assert time.monotonic() - began < 3, "what waiting does not fix is not waited for"
