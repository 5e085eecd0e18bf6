"""Before a task PySpark has Python read every zip on its path again: landonce's tasks leave none to be read."""

from __future__ import annotations

import importlib
import sys
import zipfile
from pathlib import Path
from zipimport import zipimporter

import pytest

from landonce.engine.spark.finders import sparing


def test_after_a_task_no_zip_is_read_again_and_its_modules_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "some.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("landonce_test_one.py", "said = 1")
        archive.writestr("landonce_test_two.py", "said = 2")
    monkeypatch.syspath_prepend(str(path))
    read: list[str] = []
    monkeypatch.setattr(zipimporter, "invalidate_caches", lambda self: read.append(self.archive))

    def task(recipe: str, number: int) -> int:
        return int(importlib.import_module(f"landonce_test_{recipe}").said) + number

    assert task("one", 1) == 2
    importlib.invalidate_caches()
    assert str(path) in read, "the control: without it, it is"
    read.clear()
    assert sparing(task, "one", 1) == 2
    importlib.invalidate_caches()
    assert str(path) not in read
    assert sparing(task, "two", 1) == 3
    for name in ("landonce_test_one", "landonce_test_two"):
        sys.modules.pop(name)
