"""Drivers and workers that reach PostgreSQL through a pooler: between two transactions their session is somebody else's.

What a session remembers (settings, prepared statements, locks, temporary tables) is not there in the next transaction, or is
another client's. Nothing of the guarantee may rest on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from chain import Chain
from harness import Drivers
from pooler import Pooler
from scene import fenced_for_nothing
from sql_scene import IN_TRANSACTIONS, Base, base, postgres_judge

from landonce.local import LocalKafka

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(600)]


@dataclass(frozen=True)
class Behind:
    """A database: straight, and through the pooler."""

    straight: str
    pooled: str


@pytest.fixture
def behind(new_database: Callable[[], str], pooler: Pooler) -> Behind:
    url = new_database()
    return Behind(url, pooler.url_of(url))


@pytest.fixture
def pooled(
    tmp_path: Path, kafka: LocalKafka, drivers: type[Drivers], new_topic: Callable[..., str], behind: Behind
) -> Iterator[Base]:
    batch = "interval: 0s, max_rows: 40, block_rows: 8"
    judge = postgres_judge(behind.straight)
    with base(
        tmp_path, kafka, new_topic(partitions=2), behind.pooled, judge, batch=batch, master="local[4]", drivers=drivers
    ) as made:
        yield made


def test_sessions_do_change_hands(behind: Behind) -> None:
    """The control: a setting that one client leaves is another's."""
    plain = behind.pooled.replace("+psycopg", "")
    with (
        psycopg.connect(plain, autocommit=True) as one,
        psycopg.connect(plain, autocommit=True) as other,
    ):
        one.execute("SET lock_timeout = '12345ms'")
        assert other.execute("SHOW lock_timeout").fetchone() == ("12345ms",)
        one.execute("RESET lock_timeout")


@pytest.mark.long
def test_drivers_behind_a_pooler_are_killed(pooled: Base) -> None:
    chain = Chain(pooled)
    chain.suffer(IN_TRANSACTIONS)
    chain.settled()
    assert pooled.blocks() == []


def test_a_paused_driver_does_not_hold_the_pool(pooled: Base) -> None:
    """It stands with a transaction in its hands. The pooler lends sessions out under their clients' names, so a takeover finds
    the one to end."""
    pooled.feed.more(40, bad_every=10)
    inside = pooled.pause_at("rows.after")
    assert pooled.count() == 0
    pooled.drivers.drain()
    fenced_for_nothing(pooled, inside)


def test_the_pooler_is_killed_in_the_middle_of_a_transaction(pooled: Base, pooler: Pooler, tmp_path: Path) -> None:
    """The worker's COMMIT has no answer: it looks at the block's row, and writes the block again."""
    go = tmp_path / "go"
    pooled.feed.more(40, bad_every=10)
    run = pooled.start("rows.after", go=go)
    run.wait_reached()
    pooler.kill()
    pooler.start()
    pooler.wait_ready()
    assert pooled.count() == 0
    go.touch()
    assert run.finish() == 0, run.tail()
    pooled.exact()
