"""Brokers that are asked at the start of a query's micro-batch, and are away just then: real ones, which a test stops between two batches."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from py4j.protocol import Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from query_site import Site, in_sqlite
from running import running

import landonce
from landonce.errors import SourceRefused, SourceUnavailable, TopicMissing
from landonce.local import LocalKafka
from landonce.query.running import _named

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

IMPATIENT = {"kafka.request.timeout.ms": "3000", "kafka.default.api.timeout.ms": "4000"}
"""How long Kafka's own client tries."""


@pytest.fixture(scope="module")
def own_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    with running(LocalKafka(tmp_path_factory.mktemp("own-kafka"), heap="256m")) as server:
        yield server


@pytest.fixture
def site(spark: SparkSession, own_kafka: LocalKafka, tmp_path: Path) -> Site:
    make_topic(own_kafka, tmp_path.name)
    sink = landonce.sql(f"sqlite:///{tmp_path / 'target.db'}", "events", create=True)
    made = Site(
        spark, own_kafka.bootstrap_servers, (tmp_path.name,), tmp_path, sink, lambda: in_sqlite(tmp_path / "target.db")
    )
    made.produce(20)
    return made


def make_topic(kafka: LocalKafka, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([NewTopic(name, 2, 1)])[name].result(timeout=30)


def delete_topic(kafka: LocalKafka, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.delete_topics([name])[name].result(timeout=30)


def before_the_second(once: Callable[[DataFrame, int], None], act: Callable[[], object]) -> Callable[..., None]:
    """Spark has planned the second micro-batch, and landonce has not asked about it yet."""

    def deliver(batch: DataFrame, number: int) -> None:
        if number == 1:
            act()
        once(batch, number)

    return deliver


def later(seconds: float, act: Callable[[], object]) -> None:
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()


def test_a_broker_that_is_started_again_is_waited_for(
    site: Site, own_kafka: LocalKafka, caplog: pytest.LogCaptureFixture
) -> None:
    def restart() -> None:
        own_kafka.kill()
        later(8, own_kafka.start)

    site.run(before_the_second(site.once(), restart), per_trigger=10, **IMPATIENT)
    site.exact()
    assert "Kafka did not describe the cluster and the topics" in caplog.text


@pytest.mark.parametrize("comes_back", [True, False], ids=["created again", "stays away"])
def test_a_topic_that_is_gone_is_missing_only_if_it_stays_away(
    site: Site, own_kafka: LocalKafka, comes_back: bool
) -> None:
    """One that comes back is looked at; here it is another one, of which nothing may land."""
    [topic] = site.topics
    deleted: list[float] = []

    def delete() -> None:
        delete_topic(own_kafka, topic)
        deleted.append(time.monotonic())
        if comes_back:
            later(3, lambda: make_topic(own_kafka, topic))

    with pytest.raises(StreamingQueryException, match="TopicRecreated" if comes_back else "TopicMissing"):
        site.run(before_the_second(site.once(), delete), per_trigger=10)
    assert comes_back or time.monotonic() - deleted[0] > 10
    assert len(site.ask()) == 10


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("TopicAuthorizationException", SourceRefused),
        ("SaslAuthenticationException", SourceRefused),
        ("UnknownTopicOrPartitionException", TopicMissing),
        ("TimeoutException", SourceUnavailable),
    ],
)
def test_only_what_may_pass_is_waited_for(spark: SparkSession, name: str, error: type[Exception]) -> None:
    """As Kafka's own client says it."""
    jvm: Any = spark.sparkContext._jvm
    asked = jvm.java.util.concurrent.CompletableFuture()
    asked.completeExceptionally(getattr(jvm.org.apache.kafka.common.errors, name)("no"))
    with pytest.raises(Py4JJavaError) as caught:
        asked.get()
    assert type(_named(caught.value, ("t",), "")) is error
