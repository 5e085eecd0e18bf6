"""The page on plain consumers, run as it stands: its files are written, its commands are run, and what they print is
what the page shows."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from landonce.local import LocalKafka
from landonce.testing import OFFSET_CASES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "consumer.md").read_text()
BLOCKS = re.findall(r"^```(python|console)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(240)]


def test_the_example_is_the_one_on_the_page() -> None:
    assert (ROOT / "examples" / "consumer" / "payments.py").read_text() in PAGE


def test_the_own_handler_on_the_page_passes_its_suite(tmp_path: Path) -> None:
    assert (ROOT / "examples" / "consumer" / "own_offsets.py").read_text() in PAGE
    for kind, block in BLOCKS:
        if kind == "python":
            (tmp_path / re.match(r"# ([\w.]+)", block)[1]).write_text(block)  # type: ignore[index]
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_own_offsets.py"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert f"{len(OFFSET_CASES)} passed" in done.stdout, done.stdout + done.stderr
    assert f"{len(OFFSET_CASES)} cases" in PAGE


def test_the_page_is_true(kafka: LocalKafka, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "KAFKA": kafka.bootstrap_servers,
        "DATABASE": f"sqlite:///{tmp_path}/payments.db",
        "PYTHONPATH": str(ROOT),
    }
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([NewTopic("payments", 1, 1)])["payments"].result(timeout=30)
    ran = 0
    for kind, block in BLOCKS:
        if kind == "python":
            (tmp_path / re.match(r"# ([\w.]+)", block)[1]).write_text(block)  # type: ignore[index]
            continue
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, shown = step.partition("\n")
            words = [sys.executable, *shlex.split(command)[1:]]
            done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, f"$ {command}\n{done.stderr}"
            assert done.stdout == shown, f"$ {command}"
            ran += 1
    assert ran == 6
