"""The end of a consumer's transaction is not known: the connection is cut at its COMMIT. Exactly once all the same."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from confluent_kafka import Message, Producer
from cutting_proxy import Cut, CuttingProxy
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from landonce.consumer import OffsetStore, SqlOffsets
from landonce.local import LocalKafka
from landonce.local.postgres import LocalPostgres

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


def land(store: OffsetStore, done: Callable[[], bool]) -> None:
    """Records become rows, one transaction per poll."""
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        messages: list[Message] = store.consume(3, timeout=0.2)
        if messages:
            with store.transaction() as connection:
                for each in messages:
                    connection.execute(text("INSERT INTO results VALUES (:off)"), {"off": each.offset()})
                store.save_many(messages, connection)


@pytest.mark.parametrize("cut", list(Cut), ids=lambda cut: cut.name.lower())
def test_a_commit_without_an_answer(
    kafka: LocalKafka, new_topic: Callable[..., str], postgres: LocalPostgres, cut: Cut
) -> None:
    topic = new_topic()
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(10):
        producer.produce(topic, str(number))
    assert producer.flush(30) == 0
    direct, proxy = create_engine(postgres.url), CuttingProxy(postgres.port)
    with direct.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS results"))
        connection.execute(text("CREATE TABLE results (off BIGINT)"))
    engine = create_engine(postgres.url.replace(f":{postgres.port}/", f":{proxy.port}/"))
    config = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": topic}

    def rows() -> list[int]:
        with direct.connect() as connection:
            return sorted(connection.scalars(text("SELECT off FROM results")))

    with OffsetStore.connect(config, [topic], SqlOffsets(engine)) as store:
        land(store, lambda: len(rows()) >= 3)
        proxy.arm(cut)
        with pytest.raises(DBAPIError):
            land(store, lambda: False)
        assert proxy.cuts == 1
        land(store, lambda: set(rows()) == set(range(10)))
    assert rows() == list(range(10))
    engine.dispose()
    direct.dispose()
    proxy.close()
