"""The page on wrapped sinks, run from top to bottom as it stands: its files are written, its commands are run, and what they
print is what the page shows."""

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

PAGE = Path(__file__).parents[2] / "docs" / "wrap.md"
BLOCK = re.compile(r"^```(yaml|python|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]


def blocks() -> list[tuple[str, str]]:
    return BLOCK.findall(PAGE.read_text())


def steps(block: str) -> list[tuple[str, list[str]]]:
    """Commands, each with the lines that must be in what it prints."""
    found: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line.strip():
            found[-1][1].append(line)
    return found


def run(command: str, folder: Path, environment: dict[str, str]) -> str:
    words = shlex.split(command)
    if words[0] == "landonce":
        words = [sys.executable, "-m", "landonce", *words[1:]]
    elif words[0] == "python":
        words = [sys.executable, *words[1:]]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"$ {command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def test_the_page_is_true(kafka: LocalKafka, tmp_path: Path) -> None:
    environment = {**os.environ, "KAFKA": kafka.bootstrap_servers, "COLUMNS": "200"}
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for made in admin.create_topics([NewTopic("readings", 1, 1)]).values():
        made.result(timeout=30)
    ran = 0
    for kind, text in blocks():
        if kind != "console":
            (tmp_path / re.match(r"# ([\w.]+)", text)[1]).write_text(text)  # type: ignore[index]
            continue
        for command, expected in steps(text):
            printed = run(command, tmp_path, environment)
            for line in expected:
                assert line in " ".join(printed.split()) or line in printed, f"$ {command}\n{printed}"
            ran += 1
    assert ran >= 5
