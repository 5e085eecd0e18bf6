"""Servers and names that any test may ask for.

One Kafka, one ClickHouse, one MariaDB and one Iceberg REST catalog serve the whole session; a test never stops or kills them (make
your own `LocalKafka` in `tmp_path` for that) and keeps to topics and tables of its own, which `new_topic` and
`new_table` hand out. The servers die with the test process, whatever kills it. Spark is not here: tests that need it say so in their own folder.
"""

import gc
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from certificates import Certificates, certificates
from confluent_kafka.admin import AdminClient, NewTopic
from hypothesis import settings
from iceberg_servers import LocalRestCatalog
from mariadb_server import LocalMariaDB
from mariadb_server import installed as mariadb_installed
from open_folder import open_folder
from pooler import Pooler
from pooler import installed as pooler_installed
from running import running
from s3_server import LocalS3
from xdist.scheduler import LoadFileScheduling
from zookeeper_server import LocalZooKeeper
from zookeeper_server import installed as zookeeper_installed

from landonce.engine.spark.archive import java_options
from landonce.engine.spark.temp_dirs import temporary_folder
from landonce.local import LocalClickHouse, LocalKafka
from landonce.local.postgres import LocalPostgres
from landonce.local.server import LocalJavaServer
from landonce.read.kafka import mirror

os.environ["PYTHONDONTWRITEBYTECODE"] = ""  # as in the Makefile, for the processes that tests start
sys.dont_write_bytecode = False
LocalJavaServer.java_options = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""No server lives long enough, or has enough to do, for Java's second compiler."""
settings.register_profile("test", max_examples=100, deadline=None, derandomize="CI" in os.environ)
settings.register_profile("long", max_examples=1000, deadline=None)
"""A red run of CI is the change's own: there, the examples are the same every time. Everywhere else they are new ones."""
settings.load_profile("test")  # `make test-long` runs tests/unit with --hypothesis-profile=long

_numbers = itertools.count(1)
_MEMORY_NEEDED = 6 << 30
_DURATIONS = Path(__file__).with_name("durations.json")
"""Seconds that each file takes: `build/durations.json` of a run of `make test`."""
_SHORT_SESSIONS = {
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "5000",
    "group.consumer.min.heartbeat.interval.ms": "200",
    "group.consumer.heartbeat.interval.ms": "500",
}
"""The broker lets a test set a short session, so that a consumer that was stopped loses its partitions within seconds."""
_SELDOM = {
    "metadata.max.idle.interval.ms": "10000",
    "broker.heartbeat.interval.ms": "1500",
    "broker.session.timeout.ms": "9000",
}
"""A broker that nobody kills talks to itself less often: all of them together took a tenth of a core."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-servers", action="store_true", help="skip every test that asks for a server")
    parser.addoption(
        "--spark-workers", action="store_true", help="every driver of tests/integration has Spark's workers"
    )
    parser.addoption(
        "--worlds", type=int, default=0, help="search at most so many worlds of each scenario of tests/model"
    )


def pytest_configure() -> None:
    """The folders of tests are in memory, if there is enough of it: databases wait for the disk at every commit, and what they write
    is thrown away. `TMPDIR=/tmp make test` keeps them on the disk."""
    memory = Path("/dev/shm")
    if "TMPDIR" in os.environ or not os.access(memory, os.W_OK) or os.statvfs(memory).f_flag & os.ST_NOEXEC:
        return
    if min(shutil.disk_usage(memory).free, psutil.virtual_memory().available) >= _MEMORY_NEEDED:
        folder = memory / f"landonce-tests-{os.getuid()}"
        folder.mkdir(exist_ok=True)
        os.environ["TMPDIR"] = str(folder)
        tempfile.tempdir = None  # asks TMPDIR again


def pytest_collection_finish() -> None:
    """The garbage collector leaves the thousands of tests and their modules alone: none of it becomes garbage."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """With `--durations`, the slowest files, too. What each file took goes to build/durations.json."""
    if config.getoption("durations") is None:
        return
    reports = [each for some in terminalreporter.stats.values() for each in some if hasattr(each, "duration")]
    seconds: Counter[str] = Counter()
    for each in reports:
        seconds[each.nodeid.partition("::")[0]] += each.duration
    terminalreporter.section(f"slowest files, of {sum(seconds.values()):.0f} s in all")
    for name, spent in seconds.most_common(20):
        terminalreporter.write_line(f"{spent:8.0f}s {name}")
    stored = config.rootpath / "build" / "durations.json"
    stored.parent.mkdir(exist_ok=True)
    slow = {name: round(spent) for name, spent in seconds.most_common() if spent >= 1}
    stored.write_text(json.dumps(slow, indent=1) + "\n")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slowest files first: a test process takes a whole file at a time, and at the end no process waits long for another one.
    tests/contract comes before them: it forks the test process, which is safest while that has no threads of Spark's."""
    seconds: Counter[str] = Counter()
    for file, spent in json.loads(_DURATIONS.read_text()).items():
        seconds[_unit(file)] += spent

    def place(item: pytest.Item) -> tuple[bool, int]:
        file = item.nodeid.partition("::")[0]
        return not file.startswith("tests/contract/"), -seconds[_unit(file)]

    items.sort(key=place)


def _unit(file: str) -> str:
    """What one test process takes at a time: a file, or all files of users' queries, for a JVM is slow until it has run a few of them."""
    return "queries" if file.startswith("tests/integration/test_query") else file


class _ByUnit(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return _unit(super()._split_scope(nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    return _ByUnit(config, log)


@pytest.fixture(scope="session")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """An authority, and certificates that clients must take or refuse."""
    return certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def servers(request: pytest.FixtureRequest) -> None:
    """Whatever starts one needs this."""
    if request.config.getoption("--no-servers"):
        pytest.skip("needs a server")


def pytest_sessionstart() -> None:
    """Test modules are imported by their bare names: two of one name cannot be collected together, so no run begins with them."""
    seen: dict[str, Path] = {}
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        if path.name not in ("__init__.py", "conftest.py") and seen.setdefault(path.name, path) != path:
            raise pytest.UsageError(f"two test modules have one name: {seen[path.name]} and {path}; rename one")


@pytest.fixture(scope="session", autouse=True)
def leftovers() -> Iterator[None]:
    """What Spark's JVMs put aside goes with the session, or, if that is killed, at the start of the next one. None of them lives
    long enough for Java's second compiler."""
    folder = temporary_folder()
    os.environ["SPARK_SUBMIT_OPTS"] = (
        f"-Djava.io.tmpdir={folder} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC{java_options()}"
    )
    yield
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module", autouse=True)
def own_jvm() -> Iterator[None]:
    """A module's JVM ends with it: one that was started without some jars cannot load them for the next module. The one that modules of
    tests/integration share goes on."""
    before = _gateway()
    yield
    gateway = _gateway()
    if gateway is None:
        return
    from pyspark import SparkContext

    if SparkContext._active_spark_context is not None:
        SparkContext._active_spark_context.stop()
    if gateway is before:
        return
    gateway.shutdown()
    gateway.proc.terminate()
    gateway.proc.wait(30)
    SparkContext._gateway = SparkContext._jvm = None


def _gateway() -> Any:
    """To the JVM that PySpark has started in this process, if any."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark import SparkContext

    return SparkContext._gateway


@pytest.fixture(scope="session")
def kafka(servers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    with running(LocalKafka(tmp_path_factory.mktemp("kafka"), extra_config=_SHORT_SESSIONS | _SELDOM)) as server:
        yield server


@pytest.fixture(scope="session")
def clickhouse(servers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalClickHouse]:
    with running(LocalClickHouse(tmp_path_factory.mktemp("clickhouse"))) as server:
        yield server


@pytest.fixture(scope="module")
def zookeeper(servers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalZooKeeper]:
    if not zookeeper_installed():
        pytest.skip("ZooKeeper is not installed: scripts/test-setup does that")
    with running(LocalZooKeeper(tmp_path_factory.mktemp("zookeeper"))) as server:
        yield server


@pytest.fixture(scope="module")
def clickhouse_with_zookeeper(
    zookeeper: LocalZooKeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalClickHouse]:
    with running(LocalClickHouse(tmp_path_factory.mktemp("clickhouse"), keeper_port=zookeeper.port)) as server:
        yield server


@pytest.fixture(scope="session")
def rest_catalog(servers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRestCatalog]:
    with running(LocalRestCatalog(tmp_path_factory.mktemp("rest"))) as server:
        yield server


@pytest.fixture(scope="session")
def s3(servers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalS3]:
    with running(LocalS3(tmp_path_factory.mktemp("s3"))) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_made(servers: None) -> Iterator[Path]:
    """What every PostgreSQL begins with: making it takes longer than starting one."""
    with open_folder() as folder:
        with LocalPostgres(folder / "postgres", fsync=False):
            pass
        yield folder / "postgres"


@pytest.fixture(scope="module")
def postgres(postgres_made: Path) -> Iterator[LocalPostgres]:
    """A module's own."""
    with open_folder() as folder:
        (folder / "postgres").mkdir()
        subprocess.run(
            ["cp", "-a", postgres_made / "data", postgres_made / "password", folder / "postgres"], check=True
        )
        with running(LocalPostgres(folder / "postgres", fsync=False)) as server:
            yield server


@pytest.fixture(scope="session")
def mariadb(servers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalMariaDB]:
    if not mariadb_installed():
        pytest.skip("MariaDB is not installed: scripts/test-setup does that")
    with running(LocalMariaDB(tmp_path_factory.mktemp("mariadb"))) as server:
        yield server


@pytest.fixture(scope="module")
def pooler(postgres: LocalPostgres) -> Iterator[Pooler]:
    """Before the module's PostgreSQL."""
    if not pooler_installed():
        pytest.skip("pgbouncer is not installed: scripts/test-setup does that")
    with open_folder() as folder, Pooler(folder, postgres) as server:
        yield server


@pytest.fixture
def new_database(postgres: LocalPostgres) -> Callable[[], str]:
    """`new_database()` makes a database in PostgreSQL and returns its URL."""

    def make() -> str:
        name = f"database{next(_numbers)}"
        with psycopg.connect(postgres.url.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return postgres.url.rpartition("/")[0] + f"/{name}"

    return make


@pytest.fixture(scope="session")
def new_topic(kafka: LocalKafka) -> Callable[..., str]:
    """`new_topic(partitions=1, **config)` makes a topic and returns its name."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})

    def make(partitions: int = 1, **config: str) -> str:
        name = f"topic{next(_numbers)}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
        admin.create_topics([topic])[name].result(timeout=30)
        return name

    return make


@pytest.fixture
def last_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run waits at its end until its position is in the consumer group, also on a busy machine."""
    monkeypatch.setattr(mirror, "AT_THE_END", 60.0)


@pytest.fixture
def new_table() -> Callable[[], str]:
    """`new_table()` returns the name of a table that no other test uses; making it is up to the test."""
    return lambda: f"table{next(_numbers)}"


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test runs in an empty folder whose name holds a space."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder
