"""The example packages, as a third party would have them: installed, proved by the kit, and named in pipeline files."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import duckdb
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from plain_process import UNDISTURBED, PlainProcess

from landonce.local import LocalClickHouse, LocalKafka

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
MOST_LINES = {"landonce-jsonl": 200, "landonce-duckdb": 300, "landonce-delta": 500}

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A package in a folder of its own, with its entry points. Nothing is fetched."""

    @cache
    def install(name: str) -> Path:
        folder = tmp_path_factory.mktemp("package")
        ignored = shutil.ignore_patterns("__pycache__", ".*", "build", "*.egg-info")
        shutil.copytree(EXAMPLES / name, folder / "source", ignore=ignored)
        uv = [Path(sys.executable).parent / "uv", "pip", "install", "--quiet", "--offline", "--no-deps"]
        options = ["--no-build-isolation", "--python", sys.executable, "--target", folder / "site"]
        subprocess.run([*uv, *options, folder / "source"], check=True, timeout=300)
        return folder

    return install


@pytest.fixture
def installed(packages: Callable[[str], Path]) -> Path:
    return packages("landonce-jsonl")


def run(installed: Path, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(installed / "site"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}
    command = [sys.executable, "-m", *words]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500, check=False
    )


def landonce(installed: Path, folder: Path, *words: str) -> str:
    done = run(installed, "landonce", *words, folder=folder)
    assert done.returncode == 0, f"landonce {' '.join(words)}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture
def plain(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """`landonce`, forked, with plain workers; in `make test-long` as a user starts it, with Spark."""

    def forked(installed: Path, folder: Path, *words: str) -> str:
        site, log = str(installed / "site"), folder / ".printed"
        monkeypatch.syspath_prepend(site)
        log.unlink(missing_ok=True)
        environment = {**os.environ, "PYTHONPATH": site, "COLUMNS": "200", **UNDISTURBED}
        process = PlainProcess(words, environment, log, folder=folder)
        assert process.wait(300) == 0, f"landonce {' '.join(words)}\n{log.read_text()}"
        return log.read_text()

    return landonce if request.config.getoption("--spark-workers") else forked


def produce(kafka: LocalKafka, topic: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in numbers:
        producer.produce(topic, json.dumps({"id": number}), partition=number % 2)
    assert producer.flush(60) == 0


@pytest.mark.slow
@pytest.mark.parametrize("package", MOST_LINES)
def test_the_package_passes_the_kit(package: str, packages: Callable[[str], Path]) -> None:
    folder = packages(package)
    done = run(folder, "pytest", "-q", "-rs", "-p", "no:cacheprovider", "tests", folder=folder / "source")
    assert done.returncode == 0, done.stdout + done.stderr
    if package == "landonce-jsonl":
        assert "the sink has no probe, and needs none if idempotent" in done.stdout


@pytest.mark.parametrize("package", MOST_LINES)
def test_a_package_is_small(package: str) -> None:
    modules = [each for each in (EXAMPLES / package).rglob("*.py") if "tests" not in each.parts]
    assert sum(len(each.read_text().splitlines()) for each in modules) <= MOST_LINES[package]


@pytest.mark.parametrize("package", MOST_LINES)
def test_a_package_needs_no_name_of_landonce_but_those_for_authors(package: str) -> None:
    for module in (EXAMPLES / package).rglob("landonce_*/*.py"):
        imported = re.findall(r"^from (landonce\S*) import|^import (landonce\S*)", module.read_text(), re.MULTILINE)
        names = {first or second for first, second in imported}
        own = {name for name in names if name.startswith(package.replace("-", "_"))}
        assert names - own <= {"landonce", "landonce.plugin", "landonce.errors"}, module


@pytest.mark.slow
def test_a_pipeline_file_names_the_sink(
    installed: Path, plain: Callable[..., str], kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic(partitions=2)
    """With the ledger of the same package, which its workers open, too."""
    landed = tmp_path / "landed"
    landed.mkdir()
    (tmp_path / "ledgers").mkdir()
    (tmp_path / "pipeline.yaml").write_text(
        f"""
pipeline: example
source: {{kafka: {{bootstrap_servers: "{kafka.bootstrap_servers}", topics: [{topic}], schema: id BIGINT NOT NULL}}}}
sink: {{wrapped: {{sink: jsonl, options: {{path: "{landed}"}}}}}}
ledger: {{plugin: {{name: folder, options: {{path: ledgers}}}}}}
spark: {{master: "local[2]"}}
"""
    )
    for numbers in (range(100), range(100, 150)):
        produce(kafka, topic, numbers)
        plain(installed, tmp_path, "run", "pipeline.yaml", "--once")
    found = [json.loads(line) for file in landed.glob("*.jsonl") for line in file.read_text().splitlines()]
    assert sorted(each["id"] for each in found) == list(range(150))
    assert sorted(each["_offset"] for each in found if each["_partition"] == 0) == list(range(75))
    kept = json.loads((tmp_path / "ledgers" / "example.json").read_text().splitlines()[0])
    assert [position[-1] for position in kept["positions"]] == [75, 75]


def duckdb_rows(folder: Path) -> list[tuple[int, int, int]]:
    with duckdb.connect(str(folder / "events.duckdb")) as connection:
        return connection.execute("SELECT id, _partition, _offset FROM events").fetchall()


def delta_rows(folder: Path) -> list[tuple[int, int, int]]:
    rows = DeltaTable(folder / "events").to_pyarrow_table(columns=["id", "_partition", "_offset"]).to_pylist()
    return [(row["id"], row["_partition"], row["_offset"]) for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "sink", "held"),
    [
        ("landonce-duckdb", "duckdb: {path: events.duckdb, table: events, create: true}", duckdb_rows),
        ("landonce-delta", "delta: {table: events, create: true}", delta_rows),
    ],
    ids=["duckdb", "delta"],
)
def test_a_pipeline_file_names_a_sink_of_another_kind(
    package: str,
    sink: str,
    held: Callable[[Path], list[tuple[int, int, int]]],
    packages: Callable[[str], Path],
    plain: Callable[..., str],
    kafka: LocalKafka,
    new_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    """DuckDB first with Spark. The pipeline file does not say where the package is, nor of what kind its sink is."""
    installed, topic = packages(package), new_topic(partitions=2)
    (tmp_path / "pipeline.yaml").write_text(
        f"""
pipeline: example
source: {{kafka: {{bootstrap_servers: "{kafka.bootstrap_servers}", topics: [{topic}], schema: id BIGINT NOT NULL}}}}
sink: {{{sink}}}
spark: {{master: "local[2]"}}
"""
    )
    first = landonce if package == "landonce-duckdb" else plain
    for numbers, command in ((range(100), first), (range(100, 150), plain)):
        produce(kafka, topic, numbers)
        command(installed, tmp_path, "run", "pipeline.yaml", "--once")
    assert sorted(held(tmp_path)) == sorted((number, number % 2, number // 2) for number in range(150))
    plain(installed, tmp_path, "check", "pipeline.yaml")
    assert "example" in plain(installed, tmp_path, "state", "show", "pipeline.yaml")


@pytest.mark.slow
@pytest.mark.long
def test_a_pipeline_file_names_the_ledger(
    installed: Path,
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
    tmp_path: Path,
) -> None:
    topic, table = new_topic(partitions=2), new_table()
    (tmp_path / "ledgers").mkdir()
    (tmp_path / "pipeline.yaml").write_text(
        f"""
pipeline: example
source: {{kafka: {{bootstrap_servers: "{kafka.bootstrap_servers}", topics: [{topic}], schema: id BIGINT NOT NULL}}}}
sink: {{clickhouse: {{url: "{clickhouse.url}", table: {table}, create: true}}}}
ledger: {{plugin: {{name: folder, options: {{path: ledgers}}}}}}
spark: {{master: "local[2]"}}
"""
    )
    for numbers in (range(100), range(100, 150)):
        produce(kafka, topic, numbers)
        landonce(installed, tmp_path, "run", "pipeline.yaml", "--once")
    assert (
        clickhouse.ask(f"SELECT count(), uniqExact(id), uniqExact(_partition, _offset) FROM {table}").split()
        == ["150"] * 3
    )
    kept = json.loads((tmp_path / "ledgers" / "example.json").read_text().splitlines()[0])
    assert [position[-1] for position in kept["positions"]] == [75, 75]
    assert "plug-in folder, landonce_jsonl.ledger.FolderLedger" in landonce(
        installed, tmp_path, "check", "pipeline.yaml"
    )
    assert "the plug-in folder" in landonce(installed, tmp_path, "state", "show", "pipeline.yaml")
