"""Kafka's own tools show a pipeline's position, and nothing that is done to the consumer group changes the pipeline."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from deliveries import Site, Watch, expected, in_table, numbered, run, running, send, wait_until
from test_replay_kills import killed_at

from landonce.check import check_pipeline
from landonce.dedup.run import run_pipeline
from landonce.jars import KAFKA, KAFKA_TOOLS, class_path
from landonce.jvm import java
from landonce.local import LocalClickHouse, LocalKafka
from landonce.protocol.ranges import Partition
from landonce.read.kafka.mirror import Mirror
from landonce.sinks.parts import open_parts
from landonce.sinks.pipeline_file import parse

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240), pytest.mark.usefixtures("last_copy")]
NO_SPARK: Any = None


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


def offsets(site: Site, group: str = "") -> dict[int, int]:
    """What the group has committed, read as any client would."""
    options = {"bootstrap.servers": site.kafka.bootstrap_servers, "group.id": group or f"p-{site.table}"}
    consumer = Consumer(options)
    found = consumer.committed([TopicPartition(site.topics[0], number) for number in (0, 1)], timeout=10)
    consumer.close()
    return {each.partition: each.offset for each in found if each.offset >= 0}


def warned(site: Site, **kafka: Any) -> list[str]:
    found = check_pipeline(open_parts(site.config(kafka=kafka)))
    assert not found.refused
    (section,) = (each for each in found.sections if each.name == "Kafka")
    return [each.what for each in section.findings if "group" in each.what]


def test_kafkas_own_tool_shows_the_lag_and_nobody_reads_the_group(site: Site) -> None:
    topic, group = site.topics[0], f"p-{site.table}"
    sent = send(site.kafka, topic, numbered(10)) + send(site.kafka, topic, numbered(4), partition=1)
    run(site.config(), NO_SPARK)
    later = send(site.kafka, topic, numbered(3, first=10))
    jars = f"{class_path(KAFKA)}:{class_path(KAFKA_TOOLS)}"
    command = [str(java()), "-cp", jars, "-XX:TieredStopAtLevel=1"]
    tool = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    arguments = ["--bootstrap-server", site.kafka.bootstrap_servers, "--describe", "--group", group]
    shown = subprocess.run([*command, tool, *arguments], capture_output=True, text=True, check=True, timeout=60)
    rows = [line.split()[:6] for line in shown.stdout.splitlines() if line.startswith(group)]
    assert sorted(rows) == [[group, topic, "0", "10", "13", "3"], [group, topic, "1", "4", "4", "0"]]

    admin = AdminClient({"bootstrap.servers": site.kafka.bootstrap_servers})
    consumer = Consumer({"bootstrap.servers": site.kafka.bootstrap_servers, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, 2, "landonce")], asynchronous=False)  # somebody moves it
    consumer.close()
    run(site.config(), NO_SPARK)
    assert in_table(site) == expected(sent + later)
    assert offsets(site) == {0: 13, 1: 4}
    admin.delete_consumer_groups([group])[group].result(30)
    more = send(site.kafka, topic, numbered(2, first=13))
    run(site.config(), NO_SPARK)
    assert in_table(site) == expected(sent + later + more)
    assert offsets(site) == {0: 15, 1: 4}


def test_a_group_that_somebody_uses_is_left_alone(site: Site) -> None:
    """While it has members, and also while they are stopped."""
    topic, group = site.topics[0], f"p-{site.table}"
    sent = send(site.kafka, topic, numbered(5))
    options = {"bootstrap.servers": site.kafka.bootstrap_servers, "group.id": group, "enable.auto.commit": False}
    consumer = Consumer(options)
    consumer.subscribe([topic])
    wait_until(lambda: consumer.poll(0.1) is None and len(consumer.assignment()) == 2)
    assert warned(site) == [f"the consumer group {group} has 1 active members: it is left alone"]
    watch = Watch()
    run(site.config(), NO_SPARK, watch)
    assert offsets(site) == {}
    (trouble,) = watch.troubles
    assert f"consumer group '{group}': it has active members. The pipeline does not need it." in trouble
    consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    consumer.close()
    more = send(site.kafka, topic, numbered(5, first=5))
    what = f"the consumer group {group} has offsets of {topic}[0] that landonce did not commit: it is left alone"
    assert warned(site) == [what]
    run(site.config(), NO_SPARK, watch := Watch())
    assert offsets(site) == {0: 1}
    assert "that landonce did not commit" in watch.troubles[0]
    assert in_table(site) == expected(sent + more)
    assert warned(site, mirror_group=False) == []
    run(site.config(kafka={"mirror_group": f"{group}-lag"}), NO_SPARK, watch := Watch())
    assert offsets(site, f"{group}-lag") == {0: 10, 1: 0}
    assert watch.troubles == []


def test_it_follows_a_running_pipeline(site: Site) -> None:
    topic = site.topics[0]
    with running(site.config(), NO_SPARK, Watch()):
        for count in (1, 2, 3):
            send(site.kafka, topic, numbered(1, first=count))
            wait_until(lambda expected=count: offsets(site) == {0: expected, 1: 0})


def test_killed_before_it_copies_the_position_the_next_start_does_though_nothing_is_new(site: Site) -> None:
    topic = site.topics[0]
    sent = send(site.kafka, topic, numbered(5))
    site.write_file()
    killed_at(site, "record.after", "run", site.file.name, "--once")
    assert site.position() == {(topic, 0): 5, (topic, 1): 0}
    assert offsets(site).get(0, 0) == 0
    run(site.config(), NO_SPARK, watch := Watch())
    assert offsets(site) == {0: 5, 1: 0}
    assert (watch.batches, in_table(site)) == ([], expected(sent))


def test_with_dedup_it_shows_what_has_landed(site: Site) -> None:
    topic = site.topics[0]
    send(site.kafka, topic, [*numbered(4), *numbered(4)])
    site.write_file(dedup={"key": ["id"], "ttl": "1d"}, kafka={"schema": "id BIGINT, name STRING"})
    run_pipeline(parse(site.file.read_text(), site.file), once=True)
    assert offsets(site) == {0: 8, 1: 0}


@pytest.mark.parametrize("kind", ["sql", "iceberg"])
def test_with_other_sinks_it_follows_each_batch(
    kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path, kind: str
) -> None:
    """Also where the position is in the target itself."""
    site = Site(kafka, None, tmp_path, "t", [new_topic(2)])  # type: ignore[arg-type]
    sinks = {"sql": {"url": f"sqlite:///{tmp_path}/t.db", "table": "t"}, "iceberg": {"table": "db.t"}}
    source = {"bootstrap_servers": kafka.bootstrap_servers, "topics": list(site.topics), "schema": "id BIGINT"}
    document = {"pipeline": site.topics[0], "source": {"kafka": source}, "sink": {kind: sinks[kind] | {"create": True}}}
    site.file.write_text(json.dumps(document))
    for first, position in ((0, {0: 4, 1: 1}), (4, {0: 8, 1: 2})):
        send(kafka, site.topics[0], numbered(4, first))
        send(kafka, site.topics[0], numbered(1, first), partition=1)
        run_pipeline(parse(site.file.read_text(), site.file), once=True)
        assert offsets(site, site.topics[0]) == position


def test_nobody_waits_for_a_kafka_that_does_not_answer() -> None:
    mirror = Mirror("g", "p", {"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    mirror.moved({Partition("t", 0): 1})
    mirror.close(0.2)
    mirror.moved({Partition("t", 0): 2})
    mirror.close(0)
