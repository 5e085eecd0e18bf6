"""The page on plug-ins, run as it stands: its files are written, its commands are run, and what they print is what it shows."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from landonce import plugin
from landonce.testing import LEDGER_CASES, SINK_CASES, SNAPSHOT_CASES, TRANSACTION_CASES, WRAPPED_CASES

PAGE = Path(__file__).parents[2] / "docs" / "plugins.md"
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_the_page_is_true(tmp_path: Path) -> None:
    ran = 0
    for kind, text in BLOCK.findall(PAGE.read_text()):
        if kind == "python":
            (tmp_path / re.match(r"# ([\w.]+)", text)[1]).write_text(text)  # type: ignore[index]
            continue
        command, *expected = text.strip().splitlines()
        words = shlex.split(command.removeprefix("$ "))
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(PAGE.parents[1]), str(tmp_path)]),
            "COLUMNS": "300",
        }
        done = subprocess.run(
            [sys.executable, *words[1:]],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        for line in expected:
            assert line in done.stdout, f"{command}\n{done.stdout}\n{done.stderr}"
        ran += 1
    assert ran == 2


SUITES = {
    "Ledger": LEDGER_CASES,
    "Sink": SINK_CASES,
    "Snapshot": SNAPSHOT_CASES,
    "Transaction": TRANSACTION_CASES,
    "Wrapped": WRAPPED_CASES,
}


@pytest.mark.parametrize("name", SUITES)
def test_the_number_of_cases_is_true(name: str) -> None:
    assert f"`{name}Contract` | {len(SUITES[name])} |" in PAGE.read_text()


def test_every_name_on_the_page_is_for_authors() -> None:
    """Classes of the tables, and what is called `landonce.plugin.…`."""
    text = PAGE.read_text()
    named = {*re.findall(r"landonce\.plugin\.(\w+)", text), *re.findall(r"^\| `([A-Z]\w+)` \|", text, re.MULTILINE)}
    assert {"TransactionalSink", "SnapshotTable", "PlainSqlLedger", "fenced"} <= named
    assert named <= set(plugin.__all__), named - set(plugin.__all__)
