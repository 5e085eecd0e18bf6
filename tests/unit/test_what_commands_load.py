"""Nobody waits for what a command does not need: help comes at once, and a pipeline to ClickHouse is not kept by PyIceberg."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import pytest

HEAVY = ("pyarrow", "pyspark", "pyiceberg", "pandas", "sqlalchemy", "confluent_kafka", "clickhouse_connect")
LIGHT = f"""
import json, os, sys, tempfile, traceback
import landonce.cli, typer.testing
assert not [each for each in {HEAVY} if each in sys.modules]

def run(program):
    try:
        exec(program, {{}})
    except SystemExit as end:
        return end.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
    return 0

for line in sys.stdin:
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        child = os.fork()
        if not child:
            os.dup2(out.fileno(), 1)
            os.dup2(errors.fileno(), 2)
            code = run(json.loads(line))
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        errors.seek(0)
        print(json.dumps([code, out.read(), errors.read()]), flush=True)
"""


class Ended(NamedTuple):
    code: int
    out: str
    errors: str


@lru_cache(1)
def light_process() -> Callable[[str], Ended]:
    """Runs a program in a fork of a process that has loaded `landonce.cli` and nothing heavy: Python starts once for all."""
    process = subprocess.Popen([sys.executable, "-c", LIGHT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    requests, replies = process.stdin, process.stdout

    def run(program: str) -> Ended:
        print(json.dumps(program), file=requests, flush=True)
        return Ended(*json.loads(replies.readline()))

    return run


def heavy_after(program: str) -> tuple[set[str], str]:
    """What is loaded once the program has run, and what it wrote to standard error."""
    tail = f"\nimport sys; print(*[each for each in {HEAVY} if each in sys.modules])"
    ended = light_process()(program + tail)
    assert ended.code == 0, ended.errors
    return set(ended.out.splitlines()[-1].split()), ended.errors


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


def test_pyiceberg_and_pandas_are_loaded_for_iceberg_only() -> None:
    modules = [
        f"landonce.{each}"
        for each in ("engine.pipeline", "check", "verify.audit", "cli.state.show", "cli.state.decide")
    ]
    program = f"""
import importlib, sys
for module in {modules}:
    importlib.import_module(module)
    assert not {{"pyiceberg", "pandas"}} & set(sys.modules), module
"""
    assert "pyarrow" in loaded_by(program)


OPTIONAL = {
    "iceberg": ("pyiceberg", "fastavro", "pyroaring"),
    "postgres": ("psycopg", "adbc_driver_manager", "adbc_driver_postgresql"),
    "mysql": ("pymysql",),
    "ydb": ("ydb", "ydb_sqlalchemy"),
    "protobuf": ("google", "grpc_tools", "ptars"),
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
    "verify.audit",
    "query.running",
    "consumer",
    "cli.state.show",
    "cli.state.decide",
)


def test_extras_are_not_needed_to_import() -> None:
    program = "".join(f"\nimport landonce.{each}" for each in IMPORTED)
    ended = light_process()(WITHOUT + program)
    assert ended.code == 0, ended.errors


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
    ended = light_process()(f"{WITHOUT}\nfrom landonce.cli import main\nsys.argv = {asked}\nmain()")
    assert ended.code == 2, ended.out + ended.errors
    assert f'pip install "landonce[{extra}]"' in " ".join(ended.errors.split())
    assert "Traceback" not in ended.errors


def test_check_names_the_extra_of_a_format(tmp_path: Path) -> None:
    file = tmp_path / "clicks.yaml"
    kafka = "{bootstrap_servers: 'h:1', topics: [t], format: {protobuf: {schema: t.proto}}}"
    file.write_text(f"pipeline: x\nsource: {{kafka: {kafka}}}\nsink: {{sql: {{url: 'sqlite:///d', table: t}}}}\n")
    asked = ["landonce", "check", str(file)]
    ended = light_process()(f"{WITHOUT}\nfrom landonce.cli import main\nsys.argv = {asked}\nmain()")
    assert ended.code == 1, ended.out + ended.errors
    assert 'pip install "landonce[protobuf]"' in " ".join(ended.out.split())
    assert "Traceback" not in ended.errors
