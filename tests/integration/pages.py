"""A page of the documentation, run from top to bottom as it stands: its files are written, its commands are run, and what they
print is what the page shows."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from said import says

from landonce.local import LocalKafka

_DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^```(yaml|python|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def run_page(name: str, kafka: LocalKafka, topics: tuple[str, ...], folder: Path, **environment: str) -> int:
    """Runs it in an empty folder, and gives how many commands that took."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for made in admin.create_topics([NewTopic(topic, 1, 1) for topic in topics]).values():
        made.result(timeout=30)
    told = {**os.environ, "KAFKA": kafka.bootstrap_servers, "COLUMNS": "200", **environment}
    ran = 0
    for kind, text in _BLOCK.findall((_DOCS / name).read_text()):
        if kind != "console":
            (folder / re.match(r"# ([\w.]+)", text)[1]).write_text(text)  # type: ignore[index]
            continue
        for command, expected in _steps(text):
            _shows(command, _run(command, folder, told), expected)
            ran += 1
    return ran


def _steps(block: str) -> list[tuple[str, list[str]]]:
    """Commands, each with the lines that must be in what it prints."""
    found: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line.strip():
            found[-1][1].append(line)
    return found


def _run(command: str, folder: Path, environment: dict[str, str]) -> str:
    words = shlex.split(command)
    if words[0] == "landonce":
        words = [sys.executable, "-m", "landonce", *words[1:]]
    elif words[0] == "python":
        words = [sys.executable, *words[1:]]
    elif words[0] == "spark-submit":
        words = [str(Path(sys.executable).parent / words[0]), *words[1:]]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, f"$ {command}\n{done.stdout}\n{done.stderr[-5000:]}"
    return done.stdout + done.stderr


def _shows(command: str, printed: str, expected: list[str]) -> None:
    """Every line is there. Where rows are shown, they are all that there are, in this order."""
    for line in expected:
        assert says(printed, line), f"$ {command}\nlacks: {line}\n{printed}"
    rows = [line for line in expected if line.startswith("{'")]
    lines = [line for line in printed.splitlines() if line.startswith("{'")]
    assert lines == rows or not rows, f"$ {command}\n{printed}"
