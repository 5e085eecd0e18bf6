"""Where new pipelines begin, with a real Kafka: at a time, at offsets, or where a consumer group stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from deliveries import Site, expected, in_table, numbered, run, send, wait_until

from landonce.check import check_pipeline
from landonce.errors import StartRefused, TargetAhead
from landonce.local import LocalClickHouse, LocalKafka
from landonce.sinks.parts import open_parts

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]
NO_SPARK: Any = None
HOUR = 3_600_000


@pytest.fixture
def site(
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_table: Callable[[], str],
    new_topic: Callable[..., str],
    tmp_path: Path,
) -> Site:
    site = Site(kafka, clickhouse, tmp_path, new_table(), [new_topic(2)])
    site.make("id Int64, name String")
    return site


def begun(site: Site, start: Any) -> list[str]:
    """What `check` says of the beginnings."""
    parts = open_parts(site.config(kafka={"start": start}))
    found = check_pipeline(parts)
    assert not found.refused, found
    return [each.what for part in found.sections for each in part.findings if "would begin at offset" in each.what]


def test_at_a_time(site: Site) -> None:
    """One partition has records of that time, the other only older ones."""
    topic, now = site.topics[0], int(time.time() * 1000)
    send(site.kafka, topic, numbered(5), timestamp=now - 2 * HOUR)
    new = send(site.kafka, topic, numbered(3, first=5), timestamp=now)
    send(site.kafka, topic, numbered(4), partition=1, timestamp=now - 2 * HOUR)
    at = {"timestamp": datetime.fromtimestamp((now - HOUR) / 1000, timezone.utc)}
    first, second = begun(site, at)
    stamp = datetime.fromtimestamp(now // 1000, timezone.utc).isoformat().replace("+00:00", "Z")
    assert first == (
        f"{topic}[0] would begin at offset 5 of [0, 8): at most 3 records to deliver, 5 before that are left out; its "
        f"first record is of {stamp}"
    )
    assert second == (
        f"{topic}[1] would begin at offset 4 of [0, 4): at most 0 records to deliver, 4 before that are left out"
    )
    run(site.config(kafka={"start": at}), NO_SPARK)
    assert in_table(site) == expected(new)
    other = site.config(pipeline="late", kafka={"start": {"timestamp": datetime(2100, 1, 1, tzinfo=timezone.utc)}})
    with pytest.raises(StartRefused, match="has a timestamp at or after"):
        run(other, NO_SPARK)


def test_at_offsets_and_a_ledger_that_is_lost_after_that(site: Site) -> None:
    """The target may hold more than a new ledger that begins in the middle: what lies above is compared. What lies below came from
    a ledger that began earlier, and is refused."""
    topic = site.topics[0]
    sent = send(site.kafka, topic, numbered(10)) + send(site.kafka, topic, numbered(4), partition=1)
    middle = {"start": {"offsets": {topic: {0: 6, 1: 0}}}}
    wanted = [each for each in sent if each.partition or each.offset >= 6]
    run(site.config(kafka=middle), NO_SPARK)
    assert in_table(site) == expected(wanted)
    (site.folder / "p.ledger").unlink()
    run(site.config(kafka=middle), NO_SPARK)
    assert in_table(site) == expected(wanted), "recognised, and not written again"
    (site.folder / "p.ledger").unlink()
    run(site.config(batch={"block_rows": 2}), NO_SPARK)
    assert in_table(site) == expected(sent), "earliest after another start: what is missing below is written"
    (site.folder / "p.ledger").unlink()
    with pytest.raises(TargetAhead, match="would start at offsets, but the target already holds 6 records"):
        run(site.config(kafka=middle), NO_SPARK)
    found = check_pipeline(open_parts(site.config(kafka=middle)))
    assert [e.what for p in found.sections for e in p.findings if "6 records of this pipeline's topics" in e.what]
    assert in_table(site) == expected(sent)


def test_where_a_group_stopped(site: Site) -> None:
    topic = site.topics[0]
    sent = send(site.kafka, topic, numbered(10)) + send(site.kafka, topic, numbered(4), partition=1)
    config = site.config(kafka={"start": {"group": f"g-{topic}"}})
    options = {"bootstrap.servers": site.kafka.bootstrap_servers, "group.id": f"g-{topic}", "enable.auto.commit": False}
    consumer = Consumer(options)
    consumer.commit(offsets=[TopicPartition(topic, 0, 7)], asynchronous=False)
    with pytest.raises(StartRefused, match=r"no offset for .*\[1\]"):
        run(config, NO_SPARK)
    consumer.commit(offsets=[TopicPartition(topic, 1, 4)], asynchronous=False)
    consumer.subscribe([topic])
    wait_until(lambda: consumer.poll(0.1) is None and len(consumer.assignment()) == 2)
    with pytest.raises(StartRefused, match="has 1 active members"):
        run(config, NO_SPARK)
    consumer.close()
    run(config, NO_SPARK)
    assert in_table(site) == expected(each for each in sent if each.partition == 0 and each.offset >= 7)
