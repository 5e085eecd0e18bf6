"""The worked example of a plug-in, as a third party would have it: installed, proved by the kit, and named in pipeline files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from landonce.local import LocalClickHouse, LocalKafka

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "examples" / "landonce-jsonl"

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package in a folder of its own, with its entry points. Nothing is fetched."""
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(PACKAGE, folder / "source", ignore=shutil.ignore_patterns("__pycache__", ".*"))
    uv = Path(sys.executable).parent / "uv"
    install = [
        uv,
        "pip",
        "install",
        "--quiet",
        "--offline",
        "--no-deps",
        "--no-build-isolation",
        "--python",
        sys.executable,
    ]
    subprocess.run([*install, "--target", folder / "site", folder / "source"], check=True, timeout=300)
    return folder


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


def produce(kafka: LocalKafka, topic: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in numbers:
        producer.produce(topic, json.dumps({"id": number}), partition=number % 2)
    assert producer.flush(60) == 0


@pytest.mark.slow
def test_the_package_passes_the_kit(installed: Path) -> None:
    done = run(installed, "pytest", "-q", "-rs", "-p", "no:cacheprovider", "tests", folder=installed / "source")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the sink has no probe, and needs none if idempotent" in done.stdout


@pytest.mark.slow
def test_a_pipeline_file_names_the_sink(
    installed: Path, kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic(partitions=2)
    landed = tmp_path / "landed"
    landed.mkdir()
    (tmp_path / "pipeline.yaml").write_text(
        f"""
pipeline: example
source: {{kafka: {{bootstrap_servers: "{kafka.bootstrap_servers}", topics: [{topic}], schema: id BIGINT NOT NULL}}}}
sink: {{wrapped: {{sink: jsonl, options: {{path: "{landed}"}}}}}}
spark: {{master: "local[2]"}}
"""
    )
    for numbers in (range(100), range(100, 150)):
        produce(kafka, topic, numbers)
        landonce(installed, tmp_path, "run", "pipeline.yaml", "--once")
    found = [json.loads(line) for file in landed.glob("*.jsonl") for line in file.read_text().splitlines()]
    assert sorted(each["id"] for each in found) == list(range(150))
    assert sorted(each["_offset"] for each in found if each["_partition"] == 0) == list(range(75))


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
