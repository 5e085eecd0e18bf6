"""The page on users' own queries, run from top to bottom as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from landonce.local import LocalKafka

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "query.md"
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]


def run(command: str, folder: Path, environment: dict[str, str]) -> str:
    program, *rest = command.split()
    words = [sys.executable, *rest] if program == "python" else [str(Path(sys.executable).parent / program), *rest]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, f"$ {command}\n{done.stdout}\n{done.stderr[-5000:]}"
    return done.stdout


def test_the_page_is_true(kafka: LocalKafka, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "KAFKA": kafka.bootstrap_servers,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": str(ROOT),
    }
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for made in admin.create_topics([NewTopic("clicks", 2, 1)]).values():
        made.result(timeout=30)
    ran, printed = 0, ""
    for kind, text in BLOCK.findall(PAGE.read_text()):
        if kind == "python":
            (tmp_path / re.match(r"# ([\w.]+)", text)[1]).write_text(text)  # type: ignore[index]
            continue
        for line in text.splitlines():
            if line.startswith("$ "):
                printed, ran = run(line[2:], tmp_path, environment), ran + 1
            else:
                assert line in printed.splitlines(), printed
    assert ran == 6
