"""The page on installing is true: the wheel is built as it says, and its commands run from that wheel and not from the checkout."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from pages import run_page

from landonce.local import LocalKafka

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "install.md").read_text()

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the page's wheel holds. Its dependencies are those of this environment, and nothing is fetched."""
    folder = tmp_path_factory.mktemp("installed")
    (wheel,) = re.findall(r"^(pip wheel .*?) +#", PAGE, re.MULTILINE)
    _pip(*shlex.split(wheel.replace(" dist ", f" {folder}/dist "))[1:], "--no-build-isolation")
    assert "pip install dist/landonce-*.whl" in PAGE
    (built,) = (folder / "dist").glob("landonce-*.whl")
    _pip("install", "--no-deps", "--target", str(folder / "lib"), str(built))
    return folder / "lib"


def _pip(*words: str) -> None:
    done = subprocess.run([sys.executable, "-m", "pip", *words], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_the_page_is_true(installed: Path, kafka: LocalKafka, tmp_path: Path) -> None:
    (tmp_path / "where.py").write_text("import landonce; print(landonce.__file__)")
    environment = {"PYTHONPATH": str(installed), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    said = subprocess.run(
        [sys.executable, "where.py"],
        cwd=tmp_path,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said.startswith(str(installed)), "this is about the wheel"
    assert run_page("install.md", kafka, ("clicks",), tmp_path, **environment) == 2


@pytest.mark.parametrize("name", ["clickhouse", "iceberg", "postgres", "local", "mysql", "protobuf", "ydb", "testing"])
def test_every_extra_is_explained(name: str) -> None:
    assert f"`landonce[{name}]`" in PAGE
