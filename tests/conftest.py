"""Servers and names that any test may ask for.

One Kafka, one ClickHouse, one MariaDB and one Iceberg REST catalog serve the whole session; a test never stops or kills them (make
your own `LocalKafka` in `tmp_path` for that) and keeps to topics and tables of its own, which `new_topic` and
`new_table` hand out. The servers die with the test process, whatever kills it. Spark is not here: tests that need it say so in their own folder.
"""

import itertools
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from open_folder import open_folder
from pooler import Pooler
from pooler import installed as pooler_installed

from landonce.engine.spark.archive import java_options
from landonce.engine.spark.temp_dirs import temporary_folder
from landonce.local import LocalClickHouse, LocalKafka, LocalRestCatalog
from landonce.local.databases import LocalMariaDB, LocalPostgres
from landonce.local.databases import installed as mariadb_installed

_numbers = itertools.count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-servers", action="store_true", help="skip every test that asks for a server")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """With `--durations`, the slowest files, too: a test process takes a whole file at a time."""
    if config.getoption("durations") is None:
        return
    reports = [each for some in terminalreporter.stats.values() for each in some if hasattr(each, "duration")]
    seconds: Counter[str] = Counter()
    for each in reports:
        seconds[each.nodeid.partition("::")[0]] += each.duration
    terminalreporter.section(f"slowest files, of {sum(seconds.values()):.0f} s in all")
    for name, spent in seconds.most_common(20):
        terminalreporter.write_line(f"{spent:8.0f}s {name}")


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
    """A module's JVM ends with it: one that was started without some jars cannot load them for the next module."""
    yield
    if "pyspark" not in sys.modules:
        return
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is None:
        return
    if SparkContext._active_spark_context is not None:
        SparkContext._active_spark_context.stop()
    gateway.shutdown()
    gateway.proc.terminate()
    gateway.proc.wait(30)
    SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture(scope="session")
def kafka(servers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    with LocalKafka(tmp_path_factory.mktemp("kafka")) as server:
        yield server


@pytest.fixture(scope="session")
def clickhouse(servers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalClickHouse]:
    with LocalClickHouse(tmp_path_factory.mktemp("clickhouse")) as server:
        yield server


@pytest.fixture(scope="session")
def rest_catalog(servers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRestCatalog]:
    with LocalRestCatalog(tmp_path_factory.mktemp("rest")) as server:
        yield server


@pytest.fixture(scope="module")
def postgres(servers: None) -> Iterator[LocalPostgres]:
    """A module's own."""
    with open_folder() as folder, LocalPostgres(folder / "postgres", fsync=False) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb(servers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalMariaDB]:
    if not mariadb_installed():
        pytest.skip("MariaDB is not installed: scripts/test-setup does that")
    with LocalMariaDB(tmp_path_factory.mktemp("mariadb")) as server:
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
