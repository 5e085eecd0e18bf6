"""Nobody waits for what a command does not need: help comes at once, and a pipeline to ClickHouse is not kept by PyIceberg."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("pyarrow", "pyspark", "pyiceberg", "pandas", "sqlalchemy", "confluent_kafka", "clickhouse_connect")


def heavy_after(program: str) -> tuple[set[str], str]:
    """What is loaded once the program has run, and what it wrote to standard error."""
    tail = f"\nimport sys; print(*[each for each in {HEAVY} if each in sys.modules])"
    run = subprocess.run([sys.executable, "-c", program + tail], capture_output=True, text=True, check=True, timeout=60)
    return set(run.stdout.splitlines()[-1].split()), run.stderr


def loaded_by(program: str) -> set[str]:
    return heavy_after(program)[0]


@pytest.mark.parametrize("command", [(), ("run",), ("check",), ("maintain",), ("state",), ("state", "show")])
def test_help_loads_nothing_heavy(command: tuple[str, ...]) -> None:
    asked = [*command, "--help"]
    program = f"from typer.testing import CliRunner; from landonce.cli import app; assert not CliRunner().invoke(app, {asked}).exit_code"
    assert loaded_by(program) == set()


@pytest.mark.parametrize(
    "command",
    [
        ("run",),
        ("check",),
        ("maintain",),
        ("verify",),
        ("state", "show"),
        ("state", "accept-gap"),
        ("state", "accept-change"),
        ("state", "settle", "--block", "x", "--landed"),
    ],
    ids=" ".join,
)
def test_a_wrong_file_or_key_is_answered_before_anything_heavy_is_loaded(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "clicks.yaml"
    said = "there is no such file"
    if command != ("run",):
        file.write_text("pipeline: clicks\nsuorce: {}\n")
        said = "did you mean 'source'?"
    program = (
        f"import sys; from landonce.cli import main; sys.argv = {['landonce', *command, str(file)]}\n"
        f"try: main()\nexcept SystemExit as end: assert end.code == 2, end.code"
    )
    loaded, errors = heavy_after(program)
    assert said in errors
    assert loaded == set()


@pytest.mark.parametrize(
    "module",
    ["engine.pipeline", "check", "verify.assemble", "cli.state.show", "cli.state.source", "cli.state.plans"],
)
def test_pyiceberg_and_pandas_are_loaded_for_iceberg_only(module: str) -> None:
    assert not loaded_by(f"import landonce.{module}") & {"pyiceberg", "pandas"}
