"""`landonce run` with `dedup` is killed with a target of every other kind: in transactions, around commits, in claims; and with a store
in MariaDB."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from dedup_scene import BATCH, in_accept, in_push, sqlite_store, unique
from iceberg_scene import lake
from mariadb_server import LocalMariaDB
from plain_driver import PlainDrivers
from sql_scene import base, mariadb_judge, postgres_judge, sqlite_judge
from wrapped_scene import wrapped

from landonce.local import LocalKafka

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(1800)]

SHORT = [
    *in_accept("joined.after"),
    *in_accept("accepted.before", "accepted.after", skip=1),
    *in_push("freeze.after", "write.after"),
    *in_accept("commit.after"),
    *in_push("commit.before", "record.before", "record.after"),
]
"""Where the store or the target has changed since the place before."""
IN_TRANSACTION = in_push("flip.before", "flip.after", "rows.after", "landed.after")
IN_COMMIT = [*in_push("files.after"), *in_push("attempt.before", "attempt.after", skip=1)]
IN_CLAIM = in_push("claim.after", "push.after", "settle.before", "settle.after")


def test_rows_land_in_transactions(
    tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str], new_database: Callable[[], str]
) -> None:
    """Target, ledger and store are one PostgreSQL database."""
    url = new_database()
    judge = postgres_judge(url)
    play = base(tmp_path, kafka, new_topic(partitions=2), url, judge, batch=BATCH, drivers=PlainDrivers)
    with unique(play, judge.ask) as made:
        made.suffer([*SHORT, *IN_TRANSACTION])
        made.settled()


@pytest.mark.long
def test_files_are_committed_to_iceberg(tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str]) -> None:
    """The table is its own ledger, and the store is a file beside it."""
    play = lake(tmp_path, kafka, new_topic(partitions=2), batch=BATCH, drivers=PlainDrivers)
    with unique(play, sqlite_store(tmp_path / "landonce.dedup")) as made:
        made.suffer([*SHORT, *IN_COMMIT])
        made.settled()


@pytest.mark.long
def test_blocks_are_claimed_for_a_wrapped_sink(
    tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str]
) -> None:
    """The target is not idempotent, and takes whatever it is sent. The store is a file of its own."""
    play = wrapped(tmp_path, kafka, new_topic(partitions=2), batch=BATCH, drivers=PlainDrivers)
    with unique(play, sqlite_store(tmp_path / "store"), "key: [id], store: {sqlite: store}") as made:
        for kill in [*SHORT, *IN_CLAIM]:
            made.play.an_hour_passes()
            made.suffer([kill])
        made.play.an_hour_passes()
        made.settled(audited=False)  # landonce cannot read what a wrapped sink holds
        made.play.same_bytes()


@pytest.mark.long
def test_events_are_accepted_into_mariadb(
    tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str], mariadb: LocalMariaDB
) -> None:
    """The store has a database of its own there. The target is an SQLite file."""
    judge = mariadb_judge(mariadb, "store_that_is_killed")
    mariadb_judge(mariadb).ask("CREATE DATABASE store_that_is_killed CHARACTER SET utf8mb4")
    target, of_target = "sqlite:///target.db", sqlite_judge(tmp_path / "target.db")
    play = base(tmp_path, kafka, new_topic(partitions=2), target, of_target, batch=BATCH, drivers=PlainDrivers)
    store = f'key: [id], store: {{mysql: "{mariadb.url_of("store_that_is_killed")}"}}'
    with unique(play, judge.ask, store) as made:
        made.suffer([*SHORT, *in_accept("attempt.after", skip=1), *in_push("flip.after")])
        made.settled()
