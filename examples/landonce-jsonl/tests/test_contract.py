"""The sink and the ledger against landonce's contract: `pip install -e '.[test]' && pytest`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from landonce_jsonl.ledger import FolderLedger
from landonce_jsonl.sink import jsonl

from landonce import WrappedSink
from landonce.testing import LedgerContract, LedgerSite, Row, WrappedContract, WrappedSite


class Files(WrappedSite):
    """A folder of its own, read by plain JSON: what the index counts, and nothing behind it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "events"
        self.folder.mkdir()

    def sink(self) -> WrappedSink:
        return jsonl(str(self.folder))

    def held(self) -> list[Row]:
        found = []
        for index in self.folder.glob("*.index.json"):
            counts = json.loads(index.read_text())["bytes"]
            data = index.with_name(index.name.replace(".index.json", ".jsonl")).read_bytes()[:counts]
            found += [Row(*json.loads(line).values()) for line in data.decode().split("\n") if line]
        return found

    @contextmanager
    def unreachable(self) -> Iterator[None]:
        elsewhere = self.folder.with_name("away")
        self.folder.rename(elsewhere)
        try:
            yield
        finally:
            elsewhere.rename(self.folder)


class TestSink(WrappedContract):
    @pytest.fixture
    def site(self, tmp_path: Path) -> WrappedSite:
        return Files(tmp_path)


class Folder(LedgerSite):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, pipeline: str) -> FolderLedger:
        return FolderLedger(self.folder, pipeline)


class TestLedger(LedgerContract):
    @pytest.fixture
    def site(self, tmp_path: Path) -> LedgerSite:
        return Folder(tmp_path)
