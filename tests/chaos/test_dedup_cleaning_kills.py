"""Keys expire and what nobody needs any more is removed, and `landonce run` is killed in the middle of it.

Between two kills, most of the window passes. So each start knows the keys of the round before, and forgets those before them. The producer
repeats events of these two rounds only: they land once.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from chain import Kill
from dedup_scene import BATCH, CLEANING, Unique, in_accept, sqlite_store, unique
from plain_driver import PlainDrivers
from sql_scene import base, sqlite_judge

from landonce.local import LocalKafka

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(900)]

TTL, PASSES = 800, 600
"""Seconds. Keys are forgotten after 900 at the latest."""
_OLDER = (
    f"UPDATE landonce_dedup_run SET bucket = bucket - {PASSES // (TTL // 8)}",
    f"UPDATE landonce_dedup_chunk SET accepted_at = accepted_at - {PASSES}",
    f"UPDATE landonce_dedup_copies SET found_at = found_at - {PASSES}",
    f"UPDATE landonce_batches SET sent_at = sent_at - {PASSES}",
    # A day is over for what killed drivers left.
    "UPDATE landonce_deduplication SET written_at = written_at - 100000",
    "UPDATE landonce_new_events SET written_at = written_at - 100000",
)
MORE = [
    *in_accept("expired.after"),
    *in_accept("cleaned.before", skip=1),
    *in_accept("cleaned.after"),
    # Bytes that no commit lists are what the next start removes last.
    *in_accept("joined.after"),
    *in_accept("cleaned.before", skip=3),
    *in_accept("joined.after"),
    *in_accept("cleaned.after", skip=4),
]


@dataclass
class Rounds:
    """Each begins most of a window after the one before."""

    play: Unique
    store: Path
    _before: int = 0

    def more(self) -> None:
        """Time passes, and there are new events, with copies of those of the last two rounds."""
        with closing(sqlite3.connect(self.store, timeout=60)) as connection, connection:
            for each in _OLDER if self.play.feed.produced else ():
                connection.execute(each)
        feed = self.play.feed
        feed.since, self._before = self._before, len(feed.produced)
        feed.more(24, bad_every=5)

    def count(self, what: str, of: str) -> int:
        return int(self.play.ask_store(f"SELECT {what} FROM landonce_{of}")[0][0] or 0)


@pytest.fixture
def rounds(tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str]) -> Iterator[Rounds]:
    store, judge = tmp_path / "store", sqlite_judge(tmp_path / "target.db")
    play = base(
        tmp_path, kafka, new_topic(partitions=2), "sqlite:///target.db", judge, batch=BATCH, drivers=PlainDrivers
    )
    dedup = f"key: [id], store: {{sqlite: store}}, ttl: {TTL}s, keep_sent: {PASSES - 10}s, copies: keep"
    with unique(play, sqlite_store(store), dedup) as made:
        yield Rounds(made, store)


@pytest.mark.parametrize("kills", [CLEANING, pytest.param(MORE, marks=pytest.mark.long)], ids=["each", "more"])
def test_expiry_and_cleaning_are_killed(rounds: Rounds, kills: list[Kill]) -> None:
    play = rounds.play
    for _ in range(2):
        rounds.more()
        play.drivers.drain()
    first = [each for each in play.feed.produced if not each.bad]
    for kill in kills:
        rounds.more()
        play.killed(kill)
    for _ in range(3):
        rounds.more()
        play.drivers.drain()
    play.exact()

    horizon, listed = rounds.count("max(horizon)", "dedup_scope"), rounds.count("sum(key_count)", "dedup_run")
    assert horizon > 0
    live = {each.payload["id"] for each in play.feed.recent()}
    assert listed == len(live), "the keys of the last two rounds, and no others"
    assert rounds.count("sum(length(ids)) / 16", "deduplication") == listed, "nothing is left of expired keys"
    assert rounds.count("sum(accepted)", "dedup_chunk") == listed
    assert rounds.count("count(DISTINCT chunk)", "new_events") == rounds.count("count(*)", "dedup_chunk")
    of_old = "(SELECT count(*) FROM landonce_batches WHERE sent_at < unixepoch() - 700)"
    assert rounds.count(of_old, "dedup_scope") == 0, "stored blocks stay for one round"

    # The window is over for the first rounds alone.
    play.feed.again(play.feed.recent())
    play.drivers.drain()
    play.exact()
    play.feed.again(first)
    play.drivers.drain()
    once = {each.payload["id"] for each in first}
    assert sorted(row[3] for row in play.rows()) == sorted([*play.feed.ids, *once])
