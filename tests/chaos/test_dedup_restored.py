"""A store that was lost or restored is noticed before anything is accepted; stored blocks land as they are, whatever the file has become."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from chain import Kill
from dedup_scene import PUSH, Unique, sqlite_store, unique
from iceberg_scene import lake
from plain_driver import PlainDrivers
from scene import scene
from sql_scene import base, sqlite_judge
from wrapped_scene import wrapped

from landonce.errors import KeyRuleChanged, LandonceError, StoreBehind

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def clicks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Unique]:
    """ClickHouse, and a store that is a file of its own."""
    with unique(play_of("clickhouse", tmp_path, request), sqlite_store(tmp_path / "store"), STORE) as made:
        yield made


STORE = "key: [id], store: {sqlite: store}"
BATCH = "interval: 0s, max_rows: 40, block_rows: 8"


def play_of(target: str, folder: Path, request: pytest.FixtureRequest) -> AbstractContextManager[Any]:
    kafka, topic = request.getfixturevalue("kafka"), request.getfixturevalue("new_topic")(partitions=2)
    plain: dict[str, Any] = {"batch": BATCH, "drivers": PlainDrivers}
    if target == "clickhouse":
        table = request.getfixturevalue("new_table")()
        return scene(folder, kafka, request.getfixturevalue("clickhouse"), topic, table, deadline="3s", **plain)
    if target == "iceberg":
        return lake(folder, kafka, topic, **plain)
    if target == "sql":
        return base(folder, kafka, topic, "sqlite:///target.db", sqlite_judge(folder / "target.db"), **plain)
    return wrapped(folder, kafka, topic, **plain)


def refused(play: Unique, error: type[LandonceError], what: str = "") -> None:
    """A start ends with this error, and lands nothing."""
    before = sorted(play.rows(), key=repr), sorted(play.letters(), key=repr)
    run = play.drivers.start()
    assert run.finish() == error.exit_code, run.tail()
    assert f"{error.__name__}:" in run.log.read_text(), run.tail()
    assert what in run.log.read_text(), run.tail()
    assert (sorted(play.rows(), key=repr), sorted(play.letters(), key=repr)) == before


@pytest.mark.parametrize(
    "target",
    [
        "clickhouse",
        "iceberg",
        pytest.param("sql", marks=pytest.mark.long),
        pytest.param("wrapped", marks=pytest.mark.long),
    ],
)
def test_a_store_that_was_restored_or_deleted_is_noticed(
    tmp_path: Path, request: pytest.FixtureRequest, target: str
) -> None:
    store, backup = tmp_path / "store", tmp_path / "backup"
    with unique(play_of(target, tmp_path, request), sqlite_store(store), STORE) as play:
        play.feed.more(30, bad_every=5)
        play.drivers.drain()
        shutil.copy(store, backup)
        play.feed.more(30, bad_every=5)
        play.drivers.drain()
        play.exact()
        newest = store.read_bytes()

        shutil.copy(backup, store)
        play.feed.again()
        accepted = play.counts()
        refused(play, StoreBehind)
        assert play.counts() == accepted, "something was accepted"

        store.unlink()
        refused(play, StoreBehind)

        store.write_bytes(newest)
        play.drivers.drain()
        play.exact()


def test_the_ledger_and_the_store_are_restored_together(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """They are one file. The target says that it was restored."""
    ledger, backup = tmp_path / "ledger", tmp_path / "backup"
    with unique(play_of("clickhouse", tmp_path, request), sqlite_store(ledger)) as play:
        play.feed.more(30)
        play.drivers.drain()
        shutil.copy(ledger, backup)
        play.feed.more(30)
        play.drivers.drain()
        newest = ledger.read_bytes()
        shutil.copy(backup, ledger)
        refused(play, StoreBehind)
        ledger.unlink()
        refused(play, StoreBehind)
        ledger.write_bytes(newest)
        play.settled()


def test_another_key_rule_is_refused(clicks: Unique) -> None:
    clicks.feed.more(30, bad_every=5)
    clicks.drivers.drain()
    clicks.play.edit("key: [id]", "key: [id, word]")
    clicks.feed.more(5)
    refused(clicks, KeyRuleChanged, "dedup rekey")
    clicks.play.edit("key: [id, word]", "key: [id]")
    clicks.settled()


def test_a_stored_block_lands_as_it_is(clicks: Unique) -> None:
    """It was stored and not sent. Then the file drops a field: rows of the stored block keep it, and rows after that do not have it."""
    clicks.feed.events(range(8))
    clicks.killed(Kill("freeze.after", thread=PUSH))
    assert clicks.ask_store("SELECT status, records FROM landonce_batches") == [("NEW", 8)]
    assert clicks.rows() == []
    clicks.play.edit(", amount DOUBLE", "")
    clicks.feed.events(range(8, 20))
    clicks.drivers.drain()
    amounts = {row[3]: row[5] for row in clicks.rows()}
    assert amounts == {number: number / 8 if number < 8 and number % 5 != 4 else None for number in range(20)}


def test_a_block_that_was_not_stored_lands_by_the_new_file(clicks: Unique) -> None:
    """The control of the one above: it was read and not stored."""
    clicks.feed.events(range(8))
    clicks.killed(Kill("read.after", thread=PUSH))
    clicks.play.edit(", amount DOUBLE", "")
    clicks.drivers.drain()
    assert {row[3]: row[5] for row in clicks.rows()} == dict.fromkeys(range(8))


def test_payloads_are_removed_once_they_are_sent(clicks: Unique) -> None:
    clicks.play.edit("key: [id]", "payloads: sent, keep_sent: 0s, key: [id]")
    clicks.suffer([Kill("record.before", thread=PUSH), Kill("freeze.after", thread=PUSH)])
    clicks.drivers.drain()
    clicks.exact()
    clicks.feed.more(10)
    clicks.settled()
