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
    ["engine.pipeline", "check", "verify.assemble", "cli.state.show", "cli.state.decide"],
)
def test_pyiceberg_and_pandas_are_loaded_for_iceberg_only(module: str) -> None:
    assert not loaded_by(f"import landonce.{module}") & {"pyiceberg", "pandas"}


OPTIONAL = {
    "iceberg": ("pyiceberg", "fastavro", "pyroaring"),
    "postgres": ("psycopg", "adbc_driver_manager", "adbc_driver_postgresql"),
    "mysql": ("pymysql",),
    "ydb": ("ydb", "ydb_sqlalchemy"),
    "local": ("chdb", "clickhouse_connect"),
}
WITHOUT = f"""
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {[each for names in OPTIONAL.values() for each in names]}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in {[each for names in OPTIONAL.values() for each in names]} else found(name, package)
"""


IMPORTED = (
    "engine.pipeline",
    "engine.task",
    "sinks.clickhouse.sink",
    "sinks.sql.table",
    "check",
    "verify.assemble",
    "query.running",
    "consumer",
    "cli.state.show",
    "cli.state.decide",
)


def test_extras_are_not_needed_to_import() -> None:
    program = "".join(f"\nimport landonce.{each}" for each in IMPORTED)
    subprocess.run([sys.executable, "-c", WITHOUT + program], check=True, timeout=60)


@pytest.mark.parametrize(
    ("arguments", "sink", "extra"),
    [
        (("check", "{file}"), "iceberg: {table: db.t}", "iceberg"),
        (("run", "{file}", "--once"), "sql: {url: 'postgresql://me@h/d', table: t}", "postgres"),
        (("check", "{file}"), "sql: {url: 'mariadb://me@h/d', table: t}", "mysql"),
        (("check", "{file}"), "sql: {url: 'ydb://h:2136/local', table: t}", "ydb"),
        (("state", "show", "{file}"), "clickhouse: {url: 'http://h/d', table: t}", "postgres"),
        (("up",), "", "local"),
        (("demo",), "", "local"),
    ],
)
def test_a_missing_extra_is_named(arguments: tuple[str, ...], sink: str, extra: str, tmp_path: Path) -> None:
    """Exit code 2 and the command that installs it; no traceback."""
    file = tmp_path / "clicks.yaml"
    ledger = "ledger: {postgres: 'postgresql://me@h/d'}" if sink.startswith("clickhouse") else ""
    file.write_text(
        f"pipeline: x\nsource: {{kafka: {{bootstrap_servers: 'h:1', topics: [t]}}}}\nsink: {{{sink}}}\n{ledger}\n"
    )
    asked = ["landonce", *(each.format(file=file) for each in arguments)]
    program = f"{WITHOUT}\nfrom landonce.cli import main\nsys.argv = {asked}\nmain()"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 2, run.stdout + run.stderr
    assert f'pip install "landonce[{extra}]"' in " ".join(run.stderr.split())
    assert "Traceback" not in run.stderr
