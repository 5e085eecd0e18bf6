"""landonce as users install it: a wheel with one extra, in an empty virtualenv, outside of the checkout."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from confluent_kafka import Producer

from landonce.local import LocalClickHouse, LocalKafka

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]
CHECKOUT = Path(__file__).parents[2]
LOCK = CHECKOUT / "requirements.lock"
OTHERS = (
    "pyiceberg",
    "fastavro",
    "psycopg",
    "adbc_driver_postgresql",
    "pymysql",
    "ydb_sqlalchemy",
    "ptars",
    "grpc_tools",
    "pyroaring",
    "chdb",
    "clickhouse_connect",
    "pytest",
)


def succeed(*command: object, folder: Path) -> str:
    outside = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "VIRTUAL"))
    }
    words = [str(each) for each in command]
    done = subprocess.run(words, cwd=folder, env=outside, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The virtualenv's programs."""
    folder = tmp_path_factory.mktemp("installed")
    building = ("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, CHECKOUT)
    succeed(sys.executable, "-m", "pip", *building, folder=folder)
    [wheel] = folder.glob("landonce-*.whl")
    succeed(sys.executable, "-m", "venv", folder / "env", folder=folder)
    pins = folder / "pins.txt"
    pins.write_text(
        "".join(f"{each}\n" for each in re.findall(r"^([a-z0-9][^\\\n]*==[^\\\n]*)", LOCK.read_text(), re.M))
    )
    wanted = f"landonce[clickhouse] @ {wheel.as_uri()}"
    words = ("pip", "install", "--quiet", "--python", folder / "env/bin/python", "--constraint", pins, wanted)
    succeed(Path(sys.executable).parent / "uv", *words, folder=folder)
    return folder / "env/bin"


def test_a_pipeline_into_clickhouse_needs_its_extra_alone(
    installed: Path,
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
    tmp_path: Path,
) -> None:
    there = f"import importlib.util as u; print([each for each in {OTHERS} if u.find_spec(each)])"
    assert succeed(installed / "python", "-c", there, folder=tmp_path).strip() == "[]"
    topic, table = new_topic(), new_table()
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(100):
        producer.produce(topic, json.dumps({"id": number}))
    assert producer.flush(30) == 0
    file = tmp_path / "clicks.yaml"
    source = {"kafka": {"bootstrap_servers": kafka.bootstrap_servers, "topics": [topic], "start": "earliest"}}
    sink = {"clickhouse": {"url": clickhouse.url, "table": table, "create": True}}
    spark = {"master": "local[1]"}
    file.write_text(yaml.safe_dump({"pipeline": table, "source": source, "sink": sink, "spark": spark}))
    succeed(installed / "landonce", "check", file, folder=tmp_path)
    succeed(installed / "landonce", "run", file, "--once", folder=tmp_path)
    assert clickhouse.ask(f"SELECT count(), uniqExact(id) FROM {table}").split() == ["100", "100"]
    succeed(installed / "landonce", "verify", file, "--values", folder=tmp_path)
