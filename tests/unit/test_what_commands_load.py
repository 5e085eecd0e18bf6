"""Nobody waits for what a command does not need: help comes at once, and a pipeline to ClickHouse is not kept by PyIceberg."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("pyarrow", "pyspark", "pyiceberg", "pandas", "sqlalchemy", "confluent_kafka", "clickhouse_connect")


def loaded_by(program: str) -> set[str]:
    tail = f"; import sys; print(*[each for each in {HEAVY} if each in sys.modules])"
    run = subprocess.run([sys.executable, "-c", program + tail], capture_output=True, text=True, check=True, timeout=60)
    return set(run.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("command", [(), ("run",), ("check",), ("maintain",), ("state",), ("state", "show")])
def test_help_loads_nothing_heavy(command: tuple[str, ...]) -> None:
    asked = [*command, "--help"]
    program = f"from typer.testing import CliRunner; from landonce.cli import app; assert not CliRunner().invoke(app, {asked}).exit_code"
    assert loaded_by(program) == set()


@pytest.mark.parametrize(
    "module",
    ["run.pipeline", "check", "verify.assemble", "cli.state.show", "cli.state.source", "cli.state.plans"],
)
def test_pyiceberg_and_pandas_are_loaded_for_iceberg_only(module: str) -> None:
    assert not loaded_by(f"import landonce.{module}") & {"pyiceberg", "pandas"}
