"""The local Kafka and ClickHouse are real servers that survive a crash with their data, and leave nothing behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import clickhouse_connect
import psutil
import pytest
from clickhouse_connect.driver.exceptions import ClickHouseError
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from landonce.local import LocalClickHouse, LocalKafka, LocalStackError, LocalUser, down, status, up

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


def produce(bootstrap: str, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(20) == 0


def consume(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])  # no group to join: seconds saved
    values: list[bytes] = []
    deadline = time.monotonic() + 20
    while len(values) < count and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            values.append(message.value())
    consumer.close()
    return values


def make_topic(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(timeout=20)


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_kafka_carries_records_and_transactions(kafka: LocalKafka, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"dropped")
    producer.flush(20)
    producer.abort_transaction(20)
    producer.begin_transaction()
    producer.produce(topic, b"kept")
    producer.commit_transaction(20)
    assert consume(kafka.bootstrap_servers, topic, 1) == [b"kept"]


def test_killed_kafka_comes_back_with_data_identity_and_port(tmp_path: Path) -> None:
    with LocalKafka(tmp_path / "kafka") as server:
        make_topic(server.bootstrap_servers, "t")
        produce(server.bootstrap_servers, "t", [b"one", b"two"])
        before = (server.cluster_id, server.port)
        server.kill()
        assert not server.running

        again = LocalKafka(tmp_path / "kafka")
        with again:
            assert (again.cluster_id, again.port) == before
            assert consume(again.bootstrap_servers, "t", 2) == [b"one", b"two"]


def test_killed_clickhouse_comes_back_with_data_and_ports(tmp_path: Path) -> None:
    with LocalClickHouse(tmp_path / "with space") as server:
        server.ask("CREATE TABLE t (n Int64) ENGINE = MergeTree ORDER BY n")
        server.ask("INSERT INTO t SELECT number FROM numbers(1000)")
        before = (server.http_port, server.tcp_port)
        server.kill()
        server.start()
        server.wait_ready(20)
        assert (server.http_port, server.tcp_port) == before
        assert server.ask("SELECT count(), sum(n) FROM t") == "1000\t499500\n"


def test_running_queries_can_be_seen_and_killed(clickhouse: LocalClickHouse) -> None:
    client = clickhouse_connect.get_client(dsn=clickhouse.url)
    sleeper = subprocess.Popen(
        [sys.executable, "-c", _SLEEPER, clickhouse.url], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    seen = "SELECT count() FROM system.processes WHERE query_id = 'sleeper'"
    assert wait_until(lambda: client.query(seen).result_rows == [(1,)])
    client.command("KILL QUERY WHERE query_id = 'sleeper' SYNC")
    assert sleeper.wait(20) != 0
    assert client.query(seen).result_rows == [(0,)]


_SLEEPER = """
import sys, clickhouse_connect
client = clickhouse_connect.get_client(dsn=sys.argv[1])
client.command(
    "SELECT sleepEachRow(1) FROM numbers(60) FORMAT Null",
    settings={"query_id": "sleeper", "max_block_size": 1, "function_sleep_max_microseconds_per_block": 3000000},
)
"""


def test_password_and_grants_hold_and_the_password_is_nowhere_to_read(tmp_path: Path) -> None:
    password = "s3cret & <word>/@"
    reader = LocalUser("reader", "other-word", grants=("GRANT SELECT ON default.*",))
    server = LocalClickHouse(tmp_path, user="landonce", password=password, extra_users=[reader])
    with server:
        client = clickhouse_connect.get_client(dsn=server.url)
        client.command("CREATE TABLE t (n Int64) ENGINE = MergeTree ORDER BY n")
        limited = clickhouse_connect.get_client(dsn=server.url_for(reader))
        assert limited.query("SELECT count() FROM t").result_rows == [(0,)]
        with pytest.raises(ClickHouseError, match="Not enough privileges"):
            limited.command("DROP TABLE t")
        for stranger in (LocalUser("landonce", "wrong"), LocalUser("landonce"), LocalUser("default")):
            with pytest.raises(ClickHouseError):
                clickhouse_connect.get_client(dsn=server.url_for(stranger)).query("SELECT * FROM t")
        assert all("s3cret" not in word for word in psutil.Process(server.pid).cmdline())
        for file in tmp_path.rglob("*"):
            assert not file.is_file() or b"s3cret" not in file.read_bytes(), file
        assert (tmp_path / "config.xml").stat().st_mode & 0o077 == 0


def test_an_idle_clickhouse_costs_nearly_no_cpu(clickhouse: LocalClickHouse) -> None:
    process = psutil.Process(clickhouse.pid)
    before = sum(process.cpu_times()[:2])
    time.sleep(2)
    assert sum(process.cpu_times()[:2]) - before < 0.4


def test_servers_listen_on_loopback_only(kafka: LocalKafka, clickhouse: LocalClickHouse) -> None:
    for pid in (kafka.pid, clickhouse.pid):
        listening = [c.laddr.ip for c in psutil.Process(pid).net_connections() if c.status == psutil.CONN_LISTEN]
        assert listening
        assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}


def test_a_failed_start_shows_the_end_of_the_log(tmp_path: Path) -> None:
    server = LocalKafka(tmp_path, extra_config={"num.io.threads": "none"})
    with pytest.raises(LocalStackError, match=r"(?s)Kafka (could not format|ended while it started).*num\.io\.threads"):
        server.__enter__()
    assert not server.running


def test_a_second_start_on_the_same_folder_is_refused(clickhouse: LocalClickHouse) -> None:
    with pytest.raises(LocalStackError, match=f"runs already, as process {clickhouse.pid}"):
        LocalClickHouse(clickhouse.folder).start()


def test_servers_die_with_an_owner_that_is_killed(tmp_path: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", _OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    assert psutil.pid_exists(pid)
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait(10)
    assert wait_until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


_OWNER = """
import sys, time
from pathlib import Path
from landonce.local import LocalClickHouse
with LocalClickHouse(Path(sys.argv[1])) as server:
    print(server.pid, flush=True)
    time.sleep(60)
"""


def test_up_and_down_can_be_repeated_and_repair_what_died(in_folder: Path) -> None:
    stack = Path("stack")
    assert status(stack) is None
    try:
        first = up(stack)
        assert up(stack) == first == status(stack)
        produce(first.kafka_bootstrap, "t", [b"kept"])  # the first steps of every page: nobody makes the topic by hand

        assert first.clickhouse_pid is not None
        os.kill(first.clickhouse_pid, signal.SIGKILL)
        assert wait_until(lambda: not status(stack).running)  # type: ignore[union-attr]
        second = up(stack)
        assert second.kafka_pid == first.kafka_pid
        assert (second.kafka_bootstrap, second.clickhouse_url) == (first.kafka_bootstrap, first.clickhouse_url)

        down(stack)
        down(stack)
        stopped = status(stack)
        assert stopped is not None
        assert not stopped.running
        assert consume(up(stack).kafka_bootstrap, "t", 1) == [b"kept"]
    finally:
        down(stack)
    of_stack = [p for p in psutil.process_iter() if p.status() != psutil.STATUS_ZOMBIE and _lives_in(p, in_folder)]
    assert of_stack == []


def _lives_in(process: psutil.Process, folder: Path) -> bool:
    if process.pid == os.getpid():
        return False
    try:
        return Path(process.cwd()).is_relative_to(folder)
    except psutil.Error:
        return False


def test_clickhouse_reads_kafka_with_its_own_engine(
    kafka: LocalKafka, clickhouse: LocalClickHouse, new_topic: Callable[..., str], new_table: Callable[[], str]
) -> None:
    topic, table = new_topic(), new_table()
    produce(kafka.bootstrap_servers, topic, [b'{"n": 1}', b'{"n": 2}'])
    clickhouse.ask(f"CREATE TABLE {table} (n Int64) ENGINE = MergeTree ORDER BY n")
    clickhouse.ask(
        f"CREATE TABLE {table}_queue (n Int64) ENGINE = Kafka SETTINGS kafka_format = 'JSONEachRow', "
        f"kafka_broker_list = '{kafka.bootstrap_servers}', kafka_topic_list = '{topic}', kafka_group_name = '{topic}'"
    )
    clickhouse.ask(f"CREATE MATERIALIZED VIEW {table}_view TO {table} AS SELECT n FROM {table}_queue")
    try:
        assert wait_until(lambda: clickhouse.ask(f"SELECT sum(n) FROM {table}") == "3\n")
    finally:
        clickhouse.ask(f"DROP VIEW {table}_view SYNC")
        clickhouse.ask(f"DROP TABLE {table}_queue SYNC", timeout=30)
