"""Tables in object storage: a real S3 API over HTTP, which PyIceberg's files go through, in the workers and in the driver."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pipelines import Said, landonce
from s3_server import BUCKET, SECRET_KEY, LocalS3
from small_lakes import SmallLake, once

from landonce.local import LocalKafka

pytestmark = pytest.mark.integration

Command = Callable[..., Said]


@pytest.fixture
def lake(kafka: LocalKafka, new_topic: Callable[..., str], s3: LocalS3, tmp_path: Path) -> SmallLake:
    made = SmallLake(kafka, tmp_path, new_topic(partitions=2))
    made.properties = s3.catalog(tmp_path / "catalog.db", tmp_path.name)
    return made


@pytest.fixture
def command(lake: SmallLake, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> Command:
    """`landonce WORDS FILE OPTIONS`; the key of the storage is in nothing that it says."""

    def run(*words: str) -> Said:
        at = 2 if words[0] == "state" else 1
        said = landonce(capsys, monkeypatch, *words[:at], lake.file, *words[at:])
        assert SECRET_KEY not in said.out + said.err
        return said

    return run


def test_rows_land_and_every_command_knows_where(lake: SmallLake, s3: LocalS3, command: Command) -> None:
    lake.write_file({"table": "db.t", "create": True, "partition_by": "kind"})
    lake.produce([{"id": 1, "kind": "a"}, b"broken", {"id": 2, "kind": "b"}])
    lake.produce([{"id": 3, "kind": "b"}], partition=1)
    assert command("check").code == 0
    assert not (s3.objects / lake.folder.name).exists(), "a check makes nothing"
    assert command("run", "--once").code == 0
    assert lake.offsets("db.t") == once(1) + once(1, first=2) + once(1, partition=1)
    assert [(letter["partition"], letter["offset"]) for letter in lake.letters()] == [(0, 1)]
    assert lake.table("db.t").location().startswith(f"s3://{BUCKET}/{lake.folder.name}/")
    assert not list(lake.folder.rglob("*.parquet")), "nothing is on the disk of the driver"
    kept = [
        each for folder in (lake.folder, s3.objects / lake.folder.name) for each in folder.rglob("*") if each.is_file()
    ]
    assert [each.name for each in kept if SECRET_KEY.encode() in each.read_bytes()] == [lake.file.name]
    said = command("verify", "--values")
    assert "exactly once: 4 read, 3 landed, 1 dead-lettered" in said.out, said.out + said.err
    (lost,) = (file for file in (s3.objects / lake.folder.name).rglob("*.parquet") if "kind=a" in str(file))
    lost.unlink()
    assert command("verify").code != 0, "the audit reads what the bucket holds"
    assert "commit " in command("state", "show").out
    lake.produce([{"id": 4}])
    assert "at most 1 record" in command("check").out


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"s3.secret-access-key": "another"}, "the storage refused"),
        ({"warehouse": "s3://no-such-bucket/x"}, "the storage refused"),
    ],
    ids=["key", "bucket"],
)
def test_storage_that_refuses_ends_the_run_at_once(
    lake: SmallLake, command: Command, changed: dict[str, str], what: str
) -> None:
    """Waiting does not help, and nobody has to wait for `stall`."""
    lake.properties |= changed
    lake.write_file({"table": "db.t", "create": True}, stall="20s")
    lake.produce([{"id": 1}])
    said = command("run", "--once")
    assert said.code not in (0, 5), said.out
    assert what in said.out + said.err


@pytest.mark.long
@pytest.mark.timeout(300)
def test_spark_merges_and_compacts_where_records_change_rows(lake: SmallLake, s3: LocalS3, command: Command) -> None:
    """Iceberg's own Java client writes, and Python's workers read what waits for it. In a JVM of its own."""
    lake.write_file(
        {"table": "db.t", "create": True, "identity": "id", "changes": {"mode": "upsert"}},
        batch={"interval": "0s", "max_rows": 4, "block_rows": 2},
    )
    lake.produce([{"id": number % 3, "kind": f"v{number}"} for number in range(10)])
    by_spark(lake, "run", "--once")
    assert {(row["id"], row["kind"]) for row in lake.rows("db.t")} == {(0, "v9"), (1, "v7"), (2, "v8")}
    by_spark(lake, "maintain")
    assert {(row["id"], row["kind"]) for row in lake.rows("db.t")} == {(0, "v9"), (1, "v7"), (2, "v8")}
    assert not list((s3.objects / lake.folder.name).rglob("landonce-staged/*")), "what waited is removed"
    assert "exactly once" in command("verify").out


def by_spark(lake: SmallLake, word: str, *options: str) -> None:
    words = [sys.executable, "-m", "landonce", word, str(lake.file), *options]
    done = subprocess.run(words, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert SECRET_KEY not in done.stdout + done.stderr
