"""The peer: ClickHouse's own Kafka engine, with as many consumers as there are cores. At least once."""

from __future__ import annotations

import time
import uuid

from bench.topic import TOPIC
from landonce.local import LocalClickHouse


def land(clickhouse: LocalClickHouse, bootstrap_servers: str, table: str, records: int, consumers: int) -> float:
    """Seconds from asking for the consumers until every record is in the table, which is there already."""
    began = time.monotonic()
    clickhouse.ask(
        _ENGINE.format(table=table, brokers=bootstrap_servers, topic=TOPIC, group=uuid.uuid4().hex, consumers=consumers)
    )
    clickhouse.ask(_VIEW.format(table=table))
    while int(clickhouse.ask(f"SELECT count() FROM {table}")) < records:
        time.sleep(0.05)
    seconds = time.monotonic() - began
    for each in (f"{table}_view", f"{table}_queue"):
        clickhouse.ask(f"DROP TABLE {each} SYNC", timeout=60)
    return seconds


_COLUMNS = "id Int64, user String, event String, at DateTime64(3, 'UTC'), amount Float64, page String"
_ENGINE = (
    f"CREATE TABLE {{table}}_queue ({_COLUMNS}) ENGINE = Kafka SETTINGS kafka_broker_list = '{{brokers}}', "
    "kafka_topic_list = '{topic}', kafka_group_name = '{group}', kafka_format = 'JSONEachRow', "
    "kafka_num_consumers = {consumers}, kafka_thread_per_consumer = 1, kafka_max_block_size = 200000, "
    "kafka_poll_max_batch_size = 200000, kafka_flush_interval_ms = 500, date_time_input_format = 'best_effort'"
)
_VIEW = (
    "CREATE MATERIALIZED VIEW {table}_view TO {table} AS SELECT id, user, event, at, amount, page, "
    "_topic, toInt32(_partition) AS _partition, toInt64(_offset) AS _offset FROM {table}_queue"
)
