"""The decisions of the offset store, without a broker: limits, options, starts, and which saves follow which."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from typing import Any

import pytest
from confluent_kafka import Consumer
from sqlalchemy import create_engine, make_url
from sqlalchemy.dialects import mysql
from sqlalchemy.schema import CreateTable

from landonce import errors
from landonce.consumer import OffsetOrigin, OffsetStore, Partition, SqlOffsets, Stored, store
from landonce.consumer.claims import BrokerExtent, start_of
from landonce.consumer.kafka import _stored
from landonce.consumer.offsets import Holding, in_doubt, origin_of
from landonce.consumer.options import Start, check_foreign, client_config, consumer_config, settings
from landonce.consumer.sql import PlainConnection, insert_new, offset_table
from landonce.consumer.store import PollClock

P = Partition("orders", 0)
GROUP = {"group.id": "g", "bootstrap.servers": "127.0.0.1:1"}


def test_importing_it_loads_neither_spark_nor_arrow_nor_chdb() -> None:
    code = "import sys, landonce.consumer; sys.exit(bool({'pyspark', 'pyarrow', 'chdb', 'pandas'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class _Connection(sqlite3.Connection):
    """Of Python 3.12 or later, where `autocommit` is an attribute; before, it is none."""

    autocommit: Any = -1


@pytest.mark.parametrize(
    ("autocommit", "isolation_level", "begun", "alone"),
    [
        (-1, "", False, False),
        (-1, None, False, True),
        (-1, None, True, False),
        (True, "", False, True),
        (True, "", True, False),
        (False, None, False, False),
    ],
)
def test_whether_a_plain_connection_of_sqlite_commits_by_itself(
    autocommit: Any, isolation_level: str | None, begun: bool, alone: bool
) -> None:
    dialect = create_engine("sqlite://").dialect
    connection: Any = sqlite3.connect(":memory:", factory=_Connection, isolation_level=isolation_level)
    if begun:
        connection.execute("BEGIN")
    connection.autocommit = autocommit
    assert PlainConnection(connection, dialect).commits_itself == alone
    connection.close()


@pytest.mark.parametrize(
    ("url", "refused"),
    [
        ("sqlite+aiosqlite://", True),
        ("sqlite+aiosqlite:///:memory:", True),
        ("sqlite+aiosqlite:///file::memory:?uri=true", True),
        ("sqlite+aiosqlite:///file:x?mode=memory&uri=true", True),
        ("sqlite+aiosqlite:///offsets.db", False),
    ],
)
def test_an_async_engine_in_memory_is_refused(url: str, refused: bool) -> None:
    """Fences are taken over in connections of their own."""

    class Async:
        dialect = create_engine("sqlite://").dialect

    Async.url = make_url(url)  # type: ignore[attr-defined]
    if refused:
        with pytest.raises(errors.ConfigError, match="in SQLite's memory"):
            SqlOffsets(Async())  # type: ignore[arg-type]
    else:
        SqlOffsets(Async())  # type: ignore[arg-type]


def test_a_consumer_that_could_not_subscribe_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class Watched(Consumer):
        closed = False

        def close(self) -> None:
            self.closed = True
            super().close()

    def make(options: dict[str, Any]) -> Consumer:
        made.append(Watched(options))
        return made[0]  # type: ignore[no-any-return]

    monkeypatch.setattr(store, "Consumer", make)
    handler = SqlOffsets(create_engine("sqlite://"))
    with pytest.raises(errors.ConfigError, match="cannot subscribe"):
        OffsetStore.connect(GROUP, ["^orders-("], handler)
    assert [each.closed for each in made] == [True]
    mine = Watched(GROUP | {"enable.auto.commit": False, "auto.offset.reset": "error"})
    with pytest.raises(errors.ConfigError, match="cannot subscribe"):
        OffsetStore.subscribe(
            mine, ["^orders-("], handler, config=GROUP | {"enable.auto.commit": False, "auto.offset.reset": "error"}
        )
    assert not mine.closed, "it is the user's"
    mine.close()


def test_what_a_newer_landonce_stores_of_an_origin_is_left_out() -> None:
    value = {"offset": 4, "epoch": 1, "topic_id": "id", "origin": {"member": "m", "generation": 7, "machine": "new"}}
    assert _stored(value, "me") == Stored(4, 2, "me", "id", OffsetOrigin("m", 7))


class Hands:
    """A clock that is set by hand."""

    time = 100.0

    def __call__(self) -> float:
        return self.time


def test_the_poll_limit_is_counted_from_the_last_poll() -> None:
    hands = Hands()
    clock = PollClock(300_000, 45_000, hands)
    for _ in range(29):
        hands.time += 10
        clock.beat()
    assert clock.remaining_ms() == 10_000
    hands.time += 10
    clock.beat()
    assert clock.remaining_ms() <= 0
    clock.polled()
    assert clock.remaining_ms() == 45_000


def test_a_process_that_did_not_run_for_a_session_has_expired() -> None:
    hands = Hands()
    clock = PollClock(300_000, 45_000, hands)
    hands.time += 44
    assert clock.remaining_ms() == 1_000
    hands.time += 2
    assert clock.remaining_ms() <= 0, "before the thread could beat"
    clock.beat()
    hands.time += 1
    assert clock.remaining_ms() <= 0, "and after it"
    clock.polled()
    assert clock.remaining_ms() == 45_000


def test_the_thread_beats_and_ends() -> None:
    clock = PollClock(300_000, 1_000)
    clock.start()
    try:
        clock._ended.wait(1.5)
        assert clock.remaining_ms() > 0
    finally:
        clock.stop()


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ({"bootstrap.servers": "x"}, {}),
        (GROUP | {"auto.offset.reset": "sometimes"}, {}),
        (GROUP, {"offset_not_found": "guess"}),
        (GROUP, {"commit_to_kafka": "perhaps"}),
    ],
)
def test_wrong_options_are_named(config: dict[str, Any], options: dict[str, Any]) -> None:
    with pytest.raises(errors.ConfigError):
        settings(config, **options)


@pytest.mark.parametrize("on", [True, "true", "True", "1"])
def test_a_consumer_that_commits_by_itself_is_refused(on: object) -> None:
    with pytest.raises(errors.ConfigError, match=r"enable\.auto\.commit"):
        consumer_config(GROUP | {"enable.auto.commit": on})
    with pytest.raises(errors.ConfigError, match=r"enable\.auto\.commit"):
        check_foreign(GROUP | {"enable.auto.commit": on, "auto.offset.reset": "error"})
    with pytest.raises(errors.ConfigError, match="default"):
        check_foreign(GROUP | {"auto.offset.reset": "error"})


def test_a_foreign_consumer_that_could_jump_is_refused() -> None:
    with pytest.raises(errors.ConfigError, match=r"auto\.offset\.reset"):
        OffsetStore.subscribe(None, ["t"], None, config=GROUP | {"enable.auto.commit": False})  # type: ignore[arg-type]
    check_foreign(GROUP | {"enable.auto.commit": "false", "auto.offset.reset": "error"})


def test_what_a_configuration_means() -> None:
    assert not settings(GROUP).incremental
    assert settings(GROUP | {"partition.assignment.strategy": "cooperative-sticky"}).incremental
    assert settings(GROUP | {"group.protocol": "consumer"}).incremental
    assert settings(GROUP).start == "earliest"
    assert settings(GROUP | {"auto.offset.reset": "largest"}).start == "latest"
    assert (settings(GROUP).poll_ms, settings(GROUP).session_ms) == (300_000, 45_000)
    made = consumer_config(GROUP | {"auto.offset.reset": "latest"})
    assert (made["auto.offset.reset"], made["enable.auto.commit"]) == ("error", False)


def test_what_other_clients_of_the_cluster_have_of_a_consumers_configuration() -> None:
    """All that a login may need, whatever it is called, and nothing that only a consumer has: an admin client would refuse a callback or a
    deserializer, and the statistics would come twice."""
    reached = {
        "bootstrap.servers": "127.0.0.1:1",
        "sasl.password": "x",
        "sasl.oauthbearer.client.secret": "x",
        "enable.sasl.oauthbearer.unsecure.jwt": True,
        "https.ca.location": "ca.pem",
        "https.ca.pem": "x",
        "enable.ssl.certificate.verification": False,
        "broker.address.family": "v4",
        "client.id": "reader",
        "socket.timeout.ms": 1000,
        "oauth_cb": lambda _: ("token", 1.0),
    }
    own = {
        "group.id": "g",
        "group.instance.id": "one",
        "group.protocol": "consumer",
        "session.timeout.ms": 6000,
        "max.poll.interval.ms": 9000,
        "partition.assignment.strategy": "range",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "fetch.min.bytes": 1,
        "isolation.level": "read_committed",
        "statistics.interval.ms": 1000,
        "debug": "all",
        "error_cb": print,
        "stats_cb": print,
        "on_commit": print,
        "value.deserializer": print,
        "transactional.id": "mine",
    }
    assert client_config(own | reached) == reached


@pytest.mark.parametrize(
    ("stored", "committed", "start", "expected"),
    [
        (None, None, "earliest", 10),
        (None, None, "latest", 90),
        (None, 40, "latest", 40),
        (50, 40, "latest", 50),
        (10, None, "latest", 10),
        (90, None, "earliest", 90),
        (9, None, "latest", errors.RetentionOverrun),
        (None, 9, "latest", errors.RetentionOverrun),
        (91, None, "latest", errors.PositionBeyondEnd),
    ],
)
def test_where_a_partition_begins(stored: int | None, committed: int | None, start: Start, expected: Any) -> None:
    def begin() -> int:
        return start_of(P, Stored(stored, 1, "me", "id"), BrokerExtent("id", 10, 90), committed, start)

    if isinstance(expected, int):
        assert begin() == expected
    else:
        with pytest.raises(expected):
            begin()


def test_another_topic_of_the_same_name_is_refused() -> None:
    with pytest.raises(errors.TopicRecreated):
        start_of(P, Stored(50, 1, "me", "old"), BrokerExtent("new", 0, 90), None, "earliest")
    assert start_of(P, Stored(50, 1, "me", ""), BrokerExtent("new", 0, 90), None, "earliest") == 50, "put there by hand"


def test_which_saves_follow_which() -> None:
    held = Holding(Stored(10, 3, "me", "id"), saved=10, given=20)
    assert (held.step(P, 15).previous, held.step(P, 15).epoch) == (10, 3)
    with pytest.raises(errors.OffsetOutOfStep, match="must increase"):
        held.step(P, 10)
    with pytest.raises(errors.OffsetOutOfStep, match="given out"):
        held.step(P, 21)
    held = held.save(15)
    assert held.step(P, 20).previous == 15
    with pytest.raises(errors.OffsetOutOfStep, match="must increase"):
        held.step(P, 15)
    assert (held.commit().saved, held.commit().unsettled) == (15, False)


def test_records_that_the_user_may_hold_twice_are_noticed() -> None:
    back = {P: Holding(Stored(15, 4, "me"), saved=15, given=15)}
    assert in_doubt({P}, back) == {P}
    assert in_doubt({P}, {}) == set()
    assert in_doubt(set(), back) == set()


def test_a_database_whose_locks_are_not_known_is_refused() -> None:
    engine = create_engine("sqlite://")
    engine.dialect.name = "oracle"
    with pytest.raises(errors.ConfigError, match="oracle"):
        SqlOffsets(engine)


def test_the_statements_for_mariadb() -> None:
    table = offset_table("offsets", None)
    made = str(CreateTable(table).compile(dialect=mysql.dialect()))
    assert "utf8mb4_bin" in made
    assert "ENGINE=InnoDB" in made
    assert "INSERT IGNORE" in str(insert_new(table, "mysql").compile(dialect=mysql.dialect()))


def test_member_and_generation_of_a_consumer() -> None:
    raw = b"CGMDv2:" + (7).to_bytes(4, sys.byteorder) + b"group\0consumer-1\0\x01"
    assert origin_of(raw, "text") == OffsetOrigin("consumer-1", 7, "text")
    for unknown in (None, b"", b"CGMDv2:", b"CGMDv3:" + raw[7:]):
        assert origin_of(unknown, "text") == OffsetOrigin(metadata="text")
