"""The harness bites: the same kills without landonce make duplicates, and the oracle sees whatever is wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import oracle
import plain_consumer
import plain_streaming
import pytest
from harness import Drivers, Feed, Site, good

from landonce.local import LocalClickHouse, LocalKafka

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(600)]

_TABLE = """\
CREATE TABLE {} (_topic String, _partition Int32, _offset Int64, id Int64, word String, amount Nullable(Float64))
ENGINE = MergeTree ORDER BY (_topic, _partition, _offset)"""


@pytest.mark.parametrize(
    "stream", [plain_consumer, pytest.param(plain_streaming, marks=pytest.mark.long)], ids=lambda each: each.__name__
)
def test_a_plain_stream_duplicates_under_the_same_kills(
    stream: ModuleType,
    tmp_path: Path,
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
) -> None:
    topic, table = new_topic(partitions=2), new_table()
    site = Site(tmp_path, kafka.bootstrap_servers, clickhouse.url, topic, table)
    oracle.ask(site.url, _TABLE.format(table))
    feed = Feed(site.bootstrap, topic)
    script = (sys.executable, str(stream.__file__))
    arguments = (site.bootstrap, topic, site.url, table, str(tmp_path / "checkpoint"))
    with Drivers(site, command=(*script, *arguments)) as drivers:
        feed.more(48)
        drivers.kill_at("send.before", skip=1)
        assert oracle.twice(oracle.rows(site.url, table)) == []
        drivers.kill_at("send.after")
        drivers.drain()
    found = oracle.rows(site.url, table)
    verdict = oracle.compare(oracle.expected_rows(feed.produced), found)
    assert not verdict.missing, verdict
    assert verdict.surplus.total() == 16, "one batch was inserted, and inserted again because nobody recorded it"
    assert len(oracle.twice(found)) == 16
    assert not verdict.exact


def test_the_oracle_sees_loss_copies_and_changes_in_a_table(
    clickhouse: LocalClickHouse, new_table: Callable[[], str]
) -> None:
    table = new_table()
    oracle.ask(clickhouse.url, _TABLE.format(table))
    records = [oracle.Produced("t", number % 2, number // 2, good(number)) for number in range(40)]
    values = ", ".join(f"('t', {n % 2}, {n // 2}, {n}, '', NULL)" for n in range(40))
    oracle.ask(clickhouse.url, f"INSERT INTO {table} VALUES {values}")

    changed = oracle.compare(oracle.expected_rows(records), oracle.rows(clickhouse.url, table))

    assert changed.missing.total() == changed.surplus.total() > 30, "same coordinates, other payloads"
    assert oracle.twice(oracle.rows(clickhouse.url, table)) == []
    there = oracle.rows(clickhouse.url, table)
    oracle.ask(clickhouse.url, f"ALTER TABLE {table} DELETE WHERE _offset = 3 SETTINGS mutations_sync = 2")
    oracle.ask(clickhouse.url, f"INSERT INTO {table} VALUES ('t', 0, 0, 0, '', NULL)")
    verdict = oracle.compare(there, oracle.rows(clickhouse.url, table))
    assert sorted(row[:3] for row in verdict.missing) == [("t", 0, 3), ("t", 1, 3)]
    assert [row[:3] for row in verdict.surplus] == [("t", 0, 0)] == oracle.twice(oracle.rows(clickhouse.url, table))


def test_the_oracle_sees_what_is_wrong_with_dead_letters(tmp_path: Path) -> None:
    bad = [oracle.Produced("t", 0, number, "no json", bad=True) for number in range(3)]
    line = '{"topic": "t", "partition": 0, "offset": %d, "value": "no json"}\n'
    (tmp_path / "one.jsonl").write_text(line % 0 + line % 1)
    (tmp_path / "two.jsonl").write_text(line % 1)
    (tmp_path / "three.jsonl.staged").write_text(line % 2)
    found = oracle.letters(tmp_path)
    verdict = oracle.compare(oracle.expected_letters(bad), found)
    assert list(verdict.missing) == [("t", 0, 2, "no json")]
    assert list(verdict.surplus) == [("t", 0, 1, "no json")]
    assert oracle.twice(found) == [("t", 0, 1)]
