"""The ledger in a KeeperMap table against the one contract, on a real ClickHouse with a real ZooKeeper; then what only it has: a Keeper that
stops, notes that become too many, entries that become too large, servers without KeeperMap.

For every guarantee there is a control: a ledger without it, which the same case refuses.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import pytest
from running import running
from zookeeper_server import LocalZooKeeper

from landonce.errors import ConfigError, Fenced, Halt, LedgerUnavailable, LedgerUnreadable, TargetRefused
from landonce.local import LocalClickHouse
from landonce.local.clickhouse import LocalUser
from landonce.protocol.ledger import Ledger, LedgerState, key, taken
from landonce.sinks.clickhouse import keeper_map
from landonce.sinks.clickhouse.address import TableName, parse_url
from landonce.sinks.clickhouse.connection import Access
from landonce.sinks.clickhouse.keeper_map import Entry, KeeperMapLedger
from landonce.sinks.clickhouse.replies import Answer
from landonce.testing import LEDGER_CASES, LedgerContract
from landonce.testing.crashing import SOME_MOMENTS
from landonce.testing.ledger_sites import PIPELINE, LedgerSite, advanced, first_state, marched, note, wide_state

pytestmark = pytest.mark.timeout(300)
_NUMBERS = itertools.count()


@dataclass
class KeeperSite(LedgerSite):
    """An empty table at a path of its own."""

    url: str
    kind: type[KeeperMapLedger] = KeeperMapLedger
    packages = ("landonce.sinks.clickhouse",)
    moments = SOME_MOMENTS

    def __post_init__(self) -> None:
        self.name = f"ledger_{time.monotonic_ns()}_{next(_NUMBERS)}"

    def open(self, pipeline: str, attempts: int = 12) -> KeeperMapLedger:
        table, path = TableName("default", self.name), f"/ledgers/{self.name}"
        return self.kind(Access(parse_url(self.url)), table, path, pipeline, attempts=attempts, backoff=0.05)


@pytest.fixture
def site(clickhouse_with_zookeeper: LocalClickHouse) -> KeeperSite:
    return KeeperSite(clickhouse_with_zookeeper.url)


class TestKeeperMap(LedgerContract):
    """On ZooKeeper."""

    @pytest.fixture
    def site(self, clickhouse_with_zookeeper: LocalClickHouse) -> KeeperSite:
        return KeeperSite(clickhouse_with_zookeeper.url)


class Blind(KeeperMapLedger):
    """Swaps whatever is there: no version in the condition of its UPDATE."""

    def _update(self, entry: Entry, version: int) -> None:
        del version
        text = keeper_map.literal(entry.to_text())
        self._do(
            f"ALTER TABLE {self._table.sql} UPDATE entry = {text} WHERE name = {keeper_map.literal(self.pipeline)}"
        )


class Trusting(KeeperMapLedger):
    """Believes in an UPDATE that changed nothing: does not read back."""

    def _change(self, old, new, note):  # type: ignore[no-untyped-def]
        found = self._row()
        if found is None or key(found[0].state) != key(old):
            raise Fenced("another driver")
        self._update(self._with(replace(found[0], state=new), note), found[1])
        return new


class Slow(KeeperMapLedger):
    """ClickHouse thinks for a moment between the row that an UPDATE reads and the row that it writes. That alone is harmless."""

    def _update(self, entry: Entry, version: int) -> None:
        text = keeper_map.literal(entry.to_text())
        where = f"name = {keeper_map.literal(self.pipeline)} AND _version = {version} AND sleepEachRow(0.1) = 0"
        self._do(f"ALTER TABLE {self._table.sql} UPDATE entry = {text} WHERE {where}")


class Lax(Slow):
    """Without strict mode: the version is in the condition that ClickHouse looks at, and Keeper compares nothing."""

    def _request(self, sql: str, more: Mapping[str, str]) -> Answer:
        return super()._request(sql, {**more, "keeper_map_strict_mode": "0"})


@pytest.mark.parametrize("kind", [Blind, Trusting, Lax])
def test_a_ledger_without_the_guarantee_is_noticed(site: KeeperSite, kind: type[KeeperMapLedger]) -> None:
    site.kind = kind
    with pytest.raises(AssertionError):
        LEDGER_CASES["processes_that_count_at_once_lose_nothing"].check(site)


def test_only_strict_mode_is_missing_there(site: KeeperSite) -> None:
    site.kind = Slow
    LEDGER_CASES["processes_that_count_at_once_lose_nothing"].check(site)


class Overtaken(KeeperMapLedger):
    """Another driver changes the entry between its UPDATE and its look."""

    def _update(self, entry: Entry, version: int) -> None:
        super()._update(entry, version)
        KeeperMapLedger(self._access, self._table, self._path, self.pipeline).change(
            entry.state, taken(entry.state, "another")
        )


def test_a_change_that_was_made_is_known_as_made_though_another_followed_at_once(site: KeeperSite) -> None:
    state = site.open(PIPELINE).create(first_state())
    site.kind = Overtaken
    ledger, new = site.open(PIPELINE), taken(state, "me")
    assert ledger.change(state, new) == new
    site.kind = KeeperMapLedger
    seen = site.open(PIPELINE).load()
    assert seen == taken(new, "another")
    with pytest.raises(Fenced):
        site.open(PIPELINE).change(new, advanced(new))


def test_zookeeper_stops_and_starts_under_load(site: KeeperSite, zookeeper: LocalZooKeeper) -> None:
    """A march of changes, each with a note, while ZooKeeper is killed three times: no change is lost, and none is made twice."""
    state = site.open(PIPELINE).create(first_state())
    reached = [state.version]
    marching, failures = threading.Event(), list[BaseException]()
    marching.set()

    def march() -> None:
        ledger, at = site.open(PIPELINE), state
        try:
            while marching.is_set():
                at = patiently(ledger, at)
                reached.append(at.version)
        except BaseException as error:
            failures.append(error)

    def wait_for_more() -> None:
        """Changes of the ledger, after those that are made by now."""
        most, end = reached[-1] + 3, time.monotonic() + 120
        while reached[-1] < most and not failures:
            assert time.monotonic() < end, f"no change since {most - 3}"
            time.sleep(0.02)

    thread = threading.Thread(target=march)
    thread.start()
    try:
        wait_for_more()
        for _ in range(3):
            zookeeper.kill()
            time.sleep(0.3)
            zookeeper.start()
            zookeeper.wait_ready()
            wait_for_more()
    finally:
        marching.clear()
        thread.join(120)
    assert not failures
    ledger = site.open(PIPELINE)
    seen = ledger.load()
    assert seen is not None
    assert seen == marched(seen.version)
    assert [each.detail for each in ledger.journal()] == [f"to {number + 1}" for number in range(seen.version)]


def patiently(ledger: Ledger, state: LedgerState) -> LedgerState:
    """One change more, however long the ledger is away."""
    new = advanced(state)
    while True:
        try:
            return ledger.change(state, new, replace(note(0), detail=f"to {new.version}"))
        except LedgerUnavailable:
            time.sleep(0.1)


def test_while_zookeeper_is_down_every_request_ends_within_its_limit(
    site: KeeperSite, zookeeper: LocalZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every statement but CREATE, which takes ClickHouse 26 seconds. Without the settings, it tries for minutes."""
    real, took = keeper_map.post, dict[str, float]()

    def post(access: Access, parameters: Mapping[str, str], body: bytes, seconds: float) -> Answer:
        began = time.monotonic()
        try:
            return real(access, parameters, body, seconds)
        finally:
            kind = body.decode().partition(" ")[0]
            took[kind] = max(took.get(kind, 0.0), time.monotonic() - began)

    ledger = site.open(PIPELINE, attempts=2)
    state = ledger.create(first_state())
    zookeeper.kill()
    try:
        monkeypatch.setattr(keeper_map, "post", post)
        for call in (ledger.load, ledger.journal, lambda: ledger.change(state, advanced(state))):
            with pytest.raises(LedgerUnavailable, match="did not answer"):
                call()
        ledger._insert(f"{PIPELINE}/notes/1", "[]")  # Keeper's refusal is no answer: what is read back decides
        ledger._update(Entry(advanced(state)), 0)
    finally:
        zookeeper.start()
        zookeeper.wait_ready()
    print(took)
    assert took.keys() == {"SELECT", "INSERT", "ALTER"}
    assert max(took.values()) < 15, took
    assert ledger.load() == state
    assert ledger.change(state, advanced(state)) == advanced(state)


REFUSED = Answer(500, 999, data=b"Code: 999. Coordination::Exception: All connection tries failed (KEEPER_EXCEPTION)")
"""What ClickHouse says while Keeper is away."""


@pytest.mark.parametrize("asked", ["INSERT", "ALTER", "SELECT"])
def test_clickhouse_is_told_how_long_it_may_wait_for_keeper(
    site: KeeperSite, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    """Without these settings it tries for minutes, and a request holds up a driver until its own limit."""
    real, sent = keeper_map.post, list[Mapping[str, str]]()

    def post(access: Access, parameters: Mapping[str, str], body: bytes, seconds: float) -> Answer:
        if body.startswith(asked.encode()):
            sent.append(parameters)
        return real(access, parameters, body, seconds)

    monkeypatch.setattr(keeper_map, "post", post)
    ledger = site.open(PIPELINE)
    one_more(ledger, ledger.create(first_state()))
    assert sent
    for each in sent:
        assert int(each["insert_keeper_max_retries"]) <= 2
        assert int(each["insert_keeper_retry_max_backoff_ms"]) <= 500
        assert int(each["keeper_max_retries"]) <= 2
        assert int(each["keeper_retry_max_backoff_ms"]) <= 500


def test_a_first_start_while_keeper_is_away_may_pass(site: KeeperSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no table yet, and none can be made. ClickHouse takes 26 seconds to say so, hence its answer is played here."""
    real, away = keeper_map.post, [3]

    def post(access: Access, parameters: Mapping[str, str], body: bytes, seconds: float) -> Answer:
        if away[0] and body.startswith(b"CREATE"):
            away[0] -= 1
            return REFUSED
        return real(access, parameters, body, seconds)

    monkeypatch.setattr(keeper_map, "post", post)
    with pytest.raises(LedgerUnavailable, match="All connection tries failed"):
        site.open(PIPELINE, attempts=2).create(first_state())
    assert site.open(PIPELINE, attempts=2).create(first_state()) == first_state()


@pytest.mark.long
def test_a_first_start_while_zookeeper_is_down(site: KeeperSite, zookeeper: LocalZooKeeper) -> None:
    zookeeper.kill()
    try:
        with pytest.raises(LedgerUnavailable, match="did not answer"):
            site.open(PIPELINE, attempts=1).create(first_state())
    finally:
        zookeeper.start()
        zookeeper.wait_ready()
    assert site.open(PIPELINE).create(first_state()) == first_state()


class ByTurns(KeeperMapLedger):
    """A URL with several servers: each request of a row is answered by the next one."""

    servers: tuple[str, ...] = ()

    def _request(self, sql: str, more: Mapping[str, str]) -> Answer:
        if "system.tables" not in sql:
            self.servers = (*self.servers[1:], self.servers[0])
        self._access = Access(parse_url(self.servers[0]))
        return super()._request(sql, more)


def test_several_servers_behind_one_url(
    site: KeeperSite, zookeeper: LocalZooKeeper, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each has the table, or lacks it: nothing of that is another driver's change."""
    with running(LocalClickHouse(tmp_path_factory.mktemp("second"), keeper_port=zookeeper.port)) as second:
        state = site.open(PIPELINE).create(first_state())

        def behind(*urls: str) -> None:
            site.kind = type("Behind", (ByTurns,), {"servers": urls})

        behind(site.url, second.url)
        with pytest.raises(LedgerUnavailable, match="UNKNOWN_TABLE"):
            one_more(site.open(PIPELINE, attempts=3), state)
        behind(site.url, second.url, second.url)
        state = one_more(site.open(PIPELINE), state)
        behind(site.url, second.url)
        for _ in range(20):
            state = one_more(site.open(PIPELINE), state)
        site.kind, site.url = KeeperMapLedger, second.url
        assert site.open(PIPELINE).load() == state, "the second server has made the table, and has the entry"


def one_more(ledger: Ledger, state: LedgerState) -> LedgerState:
    new = advanced(state)
    return ledger.change(state, new, replace(note(0), detail=f"to {new.version}"))


class Lagging(KeeperMapLedger):
    """Reads from a member of Keeper that is two changes behind, until it writes something itself."""

    late = False

    def _update(self, entry: Entry, version: int) -> None:
        super()._update(entry, version)
        self.late = True

    def _request(self, sql: str, more: Mapping[str, str]) -> Answer:
        if "INSERT" in sql:
            self.late = False
        return super()._request(sql, more)

    def _row(self) -> tuple[Entry, int] | None:
        return (Entry(first_state()), 0) if self.late else super()._row()


def test_what_is_read_back_late_is_read_again(site: KeeperSite) -> None:
    state = site.open(PIPELINE).create(first_state())
    state = one_more(site.open(PIPELINE), one_more(site.open(PIPELINE), state))
    site.kind = Lagging
    new = one_more(site.open(PIPELINE), state)
    site.kind = KeeperMapLedger
    assert site.open(PIPELINE).load() == new


def test_notes_that_become_many_get_rows_of_their_own(
    site: KeeperSite, clickhouse_with_zookeeper: LocalClickHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_map, "_MANY_NOTES", 5)
    ledger = site.open(PIPELINE)
    state = ledger.create(first_state())
    for number in range(12):
        state = ledger.change(state, advanced(state), replace(note(0), detail=f"note {number}"))
    assert [each.detail for each in site.open(PIPELINE).journal()] == [f"note {number}" for number in range(12)]
    names = clickhouse_with_zookeeper.ask(f"SELECT name FROM {site.name} ORDER BY name").split()
    assert [each.partition("/notes/")[0] for each in names] == [PIPELINE] * 3
    clickhouse_with_zookeeper.ask(f"DELETE FROM {site.name} WHERE name LIKE '%/notes/%'")
    with pytest.raises(LedgerUnreadable, match="old notes"):
        ledger.journal()
    assert ledger.load() == state


def test_notes_whose_row_keeper_refused_are_not_lost(site: KeeperSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_map, "_MANY_NOTES", 2)
    real, refused = keeper_map.post, list[bytes]()

    def post(access: Access, parameters: Mapping[str, str], body: bytes, seconds: float) -> Answer:
        if body.startswith(b"INSERT") and b"/notes/" in body and len(refused) < 3:
            refused.append(body)
            return REFUSED
        return real(access, parameters, body, seconds)

    monkeypatch.setattr(keeper_map, "post", post)
    ledger = site.open(PIPELINE, attempts=2)
    state = one_more(ledger, one_more(ledger, ledger.create(first_state())))
    with pytest.raises(LedgerUnavailable, match="All connection tries failed"):
        one_more(ledger, state)
    assert ledger.load() == state
    state = one_more(ledger, state)
    assert [each.detail for each in ledger.journal()] == ["to 1", "to 2", "to 3"]
    assert ledger.load() == state
    assert len({*refused}) == 3, "each attempt writes a row of its own"


def test_a_wide_plan_fits_and_one_that_is_too_wide_is_refused(site: KeeperSite) -> None:
    ledger = site.open(PIPELINE)
    state = ledger.create(first_state())
    wide = wide_state(5_000)
    assert ledger.change(state, wide) == wide
    assert site.open(PIPELINE).load() == wide
    labels = tuple((f"{number:040d}{hash(str(number)):x}", f"{number * 7919:x}") for number in range(60_000))
    with pytest.raises(Halt, match="holds at most"):
        ledger.change(wide, replace(wide, version=wide.version + 1, labels=labels))
    assert ledger.load() == wide


def test_people_can_read_it(site: KeeperSite, clickhouse_with_zookeeper: LocalClickHouse) -> None:
    site.open(PIPELINE).create(first_state())
    entry = clickhouse_with_zookeeper.ask(f"SELECT entry FROM {site.name} WHERE name = '{PIPELINE}' FORMAT JSONEachRow")
    assert json.loads(json.loads(json.loads(entry)["entry"])["state"])["pipeline"] == PIPELINE


def test_an_entry_that_was_edited_is_refused(site: KeeperSite, clickhouse_with_zookeeper: LocalClickHouse) -> None:
    ledger = site.open(PIPELINE)
    ledger.create(first_state())
    clickhouse_with_zookeeper.ask(f"ALTER TABLE {site.name} UPDATE entry = '{{}}' WHERE name = '{PIPELINE}'")
    with pytest.raises(LedgerUnreadable, match="edited by hand"):
        ledger.load()


def test_names_are_quoted(site: KeeperSite) -> None:
    name = "it's \\ a `name`; DROP TABLE x"
    ledger = site.open(name)
    state = ledger.create(first_state(name))
    assert site.open(name).load() == state


def test_loading_makes_no_table(site: KeeperSite, clickhouse_with_zookeeper: LocalClickHouse) -> None:
    ledger = site.open(PIPELINE)
    assert ledger.load() is None
    assert ledger.journal() == ()
    assert clickhouse_with_zookeeper.ask(f"EXISTS TABLE {site.name}").strip() == "0"


@pytest.mark.parametrize("made", ["another path", "another engine", "the same path"])
def test_a_table_of_another_ledger_is_refused_in_words(
    site: KeeperSite, clickhouse_with_zookeeper: LocalClickHouse, made: str
) -> None:
    """Its rows are another ledger's: with them, a pipeline would have two positions. A slash at the end of a path means nothing, and a table
    that is made by hand may have more arguments."""
    site.open("it's \\ here").create(first_state("it's \\ here"))
    clickhouse_with_zookeeper.ask(f"DROP TABLE {site.name} SYNC")
    path = f"/ledgers/{site.name}" + (" it\\'s" if made == "another path" else "/")
    engine = "Memory" if made == "another engine" else f"KeeperMap('{path}', 100) PRIMARY KEY name"
    clickhouse_with_zookeeper.ask(f"CREATE TABLE {site.name} (name String, entry String) ENGINE = {engine}")
    if made == "the same path":
        assert site.open(PIPELINE).create(first_state()) == first_state()
        return
    found = "has the engine Memory" if made == "another engine" else f'is at the path "/ledgers/{site.name} it\'s"'
    ledger, new = site.open(PIPELINE), advanced(first_state())
    calls = (
        ledger.load,
        ledger.journal,
        partial(ledger.create, first_state()),
        partial(ledger.change, first_state(), new),
    )
    for call in calls:
        with pytest.raises(ConfigError, match=re.escape(found)) as refused:
            call()
        assert "another `table` under `ledger`" in refused.value.command
    assert clickhouse_with_zookeeper.ask(f"SELECT count() FROM {site.name}").strip() == "0"


class WithoutKeeperMap(LocalClickHouse):
    """A server as Debian's package configures it."""

    def _config_xml(self) -> str:
        return re.sub("<keeper_map_path_prefix>.*</keeper_map_path_prefix>", "", super()._config_xml())


def test_a_server_without_keeper_map_is_refused_in_words(
    servers: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with (
        running(WithoutKeeperMap(tmp_path_factory.mktemp("plain"))) as server,
        pytest.raises(ConfigError, match="keeper_map_path_prefix"),
    ):
        KeeperSite(server.url).open(PIPELINE).create(first_state())


def test_a_user_without_rights_is_refused_in_words(
    servers: None, zookeeper: LocalZooKeeper, tmp_path_factory: pytest.TempPathFactory
) -> None:
    reader = LocalUser("reader", grants=("GRANT SELECT ON *.*",))
    folder = tmp_path_factory.mktemp("users")
    with (
        running(LocalClickHouse(folder, keeper_port=zookeeper.port, extra_users=[reader])) as server,
        pytest.raises(TargetRefused, match="give the user"),
    ):
        KeeperSite(server.url_for(reader)).open(PIPELINE).create(first_state())
