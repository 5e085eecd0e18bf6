"""The same delivery on a real Spark standalone cluster and under spark-submit, and what Spark shows to everybody."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyspark
import pytest
from deliveries import Site, Watch, expected, in_table, letters, numbered, run, send, wait_until
from pyspark.sql import SparkSession
from said import says

import landonce
from landonce.config.model import Spark
from landonce.engine.spark.archive import java_options
from landonce.engine.spark.session import open_session
from landonce.errors import ConfigError
from landonce.local import LocalClickHouse, LocalKafka
from landonce.protocol.ledger import Totals
from landonce.protocol.steps import Effect, Step

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(180)]
SPARK_WORKERS = True
OWN_JVM = True
"""The shared one would give its jars to every executor."""

HERE = Path(__file__).resolve()
MAIN = HERE.parents[2] / "landonce" / "__main__.py"
HOME = Path(pyspark.__file__).parent
LOOPBACK = "127.0.0.1"
QUICK_START = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC{java_options()}"
SECRET = "pa55-w0rd-nobody-may-see"


def free_port() -> int:
    with socket.create_server((LOOPBACK, 0)) as server:
        return int(server.getsockname()[1])


@dataclass
class Cluster:
    """A master and two workers, each in a process group of its own."""

    folder: Path
    hosts: tuple[str, ...] = (LOOPBACK, LOOPBACK)
    cores: int = 1
    url: str = ""
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    master: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        port, web = free_port(), free_port()
        self.url = f"spark://{LOOPBACK}:{port}"
        self.master = self._launch("master.Master", "--host", LOOPBACK, "--port", str(port), "--webui-port", str(web))
        wait_until(lambda: reachable(port), 120)
        for host in self.hosts:
            self.workers.append(
                self._launch(
                    "worker.Worker",
                    "--host",
                    host,
                    "--webui-port",
                    str(free_port()),
                    "--cores",
                    str(self.cores),
                    "--memory",
                    "1g",
                    "--work-dir",
                    str(self.folder / "work"),
                    self.url,
                )
            )
        wait_until(lambda: page(f"http://{LOOPBACK}:{web}/json/").count('"ALIVE"') >= 3, 120)

    def executors(self) -> list[psutil.Process]:
        """The executors that run now, all of them children of our own workers."""
        found = []
        for worker in self.workers:
            with suppress(psutil.NoSuchProcess):
                for child in psutil.Process(worker.pid).children(recursive=True):
                    with suppress(psutil.NoSuchProcess):
                        if "CoarseGrainedExecutorBackend" in " ".join(child.cmdline()):
                            found.append(child)
        return found

    def stop(self) -> None:
        for process in (*self.workers, self.master):
            if process is not None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait(20)

    def _launch(self, what: str, *arguments: str) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "SPARK_HOME": str(HOME),
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK_START,
            "PYSPARK_PYTHON": sys.executable,
        }
        with (self.folder / f"{what}.log").open("ab") as log:
            return subprocess.Popen(
                [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{what}", *arguments],
                env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
                cwd=self.folder,
            )  # fmt: skip


def reachable(port: int) -> bool:
    with suppress(OSError), socket.create_connection((LOOPBACK, port), 1):
        return True
    return False


def page(url: str) -> str:
    with (
        suppress(OSError),
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=10) as answer,
    ):
        return bytes(answer.read()).decode()
    return ""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def spark(cluster: Cluster) -> Iterator[SparkSession]:
    """A session whose executors are processes of the cluster. Its UI is on, to see what it shows."""
    conf: dict[str, str | int | float | bool] = {
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": QUICK_START,
        "spark.executor.cores": 1,
        "spark.ui.enabled": True,
        "spark.ui.port": free_port(),
    }
    session = open_session("test-cluster", Spark(master=cluster.url, conf=conf))
    yield session
    with suppress(Exception):
        session.stop()


@pytest.fixture
def site(
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_table: Callable[[], str],
    new_topic: Callable[..., str],
    tmp_path: Path,
) -> Site:
    site = Site(kafka, clickhouse, tmp_path, new_table(), [new_topic(4)])
    site.make("id Int64, name String")
    return site


@pytest.mark.parametrize(
    "where", [pytest.param(None, id="plain", marks=pytest.mark.long), pytest.param("id % 2 = 0", id="with a transform")]
)
def test_the_same_delivery(site: Site, spark: SparkSession, cluster: Cluster, where: str | None) -> None:
    sent = [each for number in range(4) for each in send(site.kafka, site.topics[0], numbered(2000), partition=number)]
    send(site.kafka, site.topics[0], [b"bad"])
    landing = [each for each in sent if where is None or each.fields["id"] % 2 == 0]
    totals = run(
        site.config(
            spark={"master": cluster.url},
            dead_letters={"shared": True},
            batch={"max_rows": 3000, "block_rows": 700},
            **({"transform": {"where": where}} if where else {}),
        ),
        spark,
    )
    assert in_table(site) == expected(landing)
    assert totals == Totals(landed=len(landing), dead_lettered=1, filtered=len(sent) - len(landing))
    assert [each["value"] for each in letters(site.dead)] == ["bad"]


def test_unique_events_are_compared_by_several_executors(
    site: Site, spark: SparkSession, cluster: Cluster, new_database: Callable[[], str]
) -> None:
    """Every partition gets the same events. Keys are in PostgreSQL, which all executors reach; a file they do not is refused."""
    for number in range(4):
        send(site.kafka, site.topics[0], numbered(2000), partition=number)
    options = {
        "spark": {"master": cluster.url},
        "dead_letters": {"shared": True},
        "batch": {"max_rows": 3000, "block_rows": 700},
    }
    with pytest.raises(ConfigError, match="a file on this machine"):
        landonce.run_pipeline(site.config(**options, dedup={"key": ["id"]}), once=True)
    config = site.config(**options, dedup={"key": ["id"], "store": {"postgres": new_database()}})
    assert executors_that_compared(spark) == set()
    totals = landonce.run_pipeline(config, once=True)
    assert (totals.landed, totals.filtered) == (2000, 6000)
    assert sorted(int(row["id"]) for row in site.ask(f"SELECT id FROM {site.table}")) == list(range(2000))
    assert spark.sparkContext.master == cluster.url
    wait_until(lambda: len(executors_that_compared(spark)) == 2, 30)


def executors_that_compared(spark: SparkSession) -> set[str]:
    """Those whose tasks got parts of blocks from other tasks: only keys are spread so."""
    context = spark.sparkContext
    stages = json.loads(page(f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/stages?details=true"))
    return {
        task["executorId"]
        for stage in stages
        for task in stage["tasks"].values()
        if task.get("taskMetrics", {}).get("shuffleReadMetrics", {}).get("recordsRead", 0)
    }


def test_a_local_folder_for_dead_letters_is_refused(site: Site, spark: SparkSession, cluster: Cluster) -> None:
    with pytest.raises(ConfigError, match=r"dead_letters\.path") as caught:
        run(site.config(spark={"master": cluster.url}), spark)
    assert "shared: true" in caught.value.command


def test_spark_shows_no_secret(
    site: Site, spark: SparkSession, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with LocalClickHouse(tmp_path_factory.mktemp("locked"), user="landonce", password=SECRET) as locked:
        site.clickhouse = locked
        site.make("id Int64, name String")
        sent = send(site.kafka, site.topics[0], numbered(100))
        config = site.config(
            spark={"master": cluster.url},
            dead_letters={"shared": True},
            kafka={"options": {"sasl.password": SECRET + "2", "sasl.username": "u"}},
            transform={"where": "id >= 0"},
        )
        run(config, spark)
        assert in_table(site) == expected(sent)
        context = spark.sparkContext
        assert SECRET not in str(context.getConf().getAll())
        api = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}"
        shown = [f"{context.uiWebUrl}/{each}/" for each in ("environment", "jobs", "stages", "SQL", "executors")]
        for url in (*shown, f"{api}/environment", f"{api}/jobs", f"{api}/sql?details=true"):
            seen = page(url)
            assert seen, url
            assert SECRET not in seen, url
        for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                assert SECRET not in " ".join(process.cmdline())


def test_killed_executors_and_workers_change_nothing(site: Site, spark: SparkSession, cluster: Cluster) -> None:
    """One executor dies in the middle of a block, then a worker with its executor. What ran again is settled by looking."""
    topic = site.topics[0]
    sent = [each for number in range(4) for each in send(site.kafka, topic, numbered(6000), partition=number)]
    watch = Watch()
    killed: list[str] = []

    def kill(effect: Effect) -> None:
        if effect.step is not Step.WRITE or len(watch.batches) < 1 or "worker" in killed:
            return
        if killed.count("executor") < 5 and not ran_again(watch):
            assassin(lambda: psutil_kill(cluster.executors()[0], killed), 0.15)
        elif "executor" in killed:
            killed.append("worker")
            assassin(lambda: os.killpg(cluster.workers[1].pid, signal.SIGKILL), 0.1)

    watch.at = kill
    totals = run(
        site.config(
            spark={"master": cluster.url},
            dead_letters={"shared": True},
            batch={"max_rows": 3000, "block_rows": 1500},
            clickhouse={"deadline": "5s"},
            stall="120s",
        ),
        spark,
        watch,
    )
    assert in_table(site) == expected(sent)
    assert totals == Totals(landed=len(sent))
    assert {"executor", "worker"} <= set(killed)
    assert ran_again(watch), watch.troubles


def ran_again(watch: Watch) -> bool:
    """A block met a kill. On a busy machine there are other troubles too."""
    return any("Spark ran the task again" in each or "ExecutorLost" in each for each in watch.troubles)


def assassin(act: Callable[[], None], after: float) -> None:
    def work() -> None:
        time.sleep(after)
        with suppress(ProcessLookupError, psutil.NoSuchProcess, IndexError):
            act()

    threading.Thread(target=work, daemon=True).start()


def psutil_kill(process: psutil.Process, killed: list[str]) -> None:
    process.kill()
    killed.append("executor")


def test_under_spark_submit(site: Site) -> None:
    sent = send(site.kafka, site.topics[0], numbered(500))
    send(site.kafka, site.topics[0], [b"bad"])
    site.write_file()
    done = subprocess.run(
        [str(HOME / "bin" / "spark-submit"), "--master", "local[2]", str(MAIN), "run", str(site.file), "--once"],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": LOOPBACK, "PYSPARK_PYTHON": sys.executable,
             "PYSPARK_DRIVER_PYTHON": sys.executable},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert says(done.stdout, "501 read = 500 landed + 1 dead-lettered + 0 filtered")
    assert f"dead letters are in {site.dead}, by reason:\n  1 × malformed: not valid JSON" in done.stdout
    assert in_table(site) == expected(sent)
    assert [each["value"] for each in letters(site.dead)] == ["bad"]
