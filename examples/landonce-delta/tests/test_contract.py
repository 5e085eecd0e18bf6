"""The sink against landonce's contract: `pip install -e '.[test]' && pytest`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from landonce_delta import Delta
from landonce_delta.sink import DeltaSink

from landonce.testing import Row, SnapshotContract, SnapshotSite
from landonce.testing.sink_sites import SCHEMA


class Folder(SnapshotSite):
    """A table in a folder of its own, read by deltalake alone."""

    forks = False
    secret = "s3cret-word"

    def __init__(self, folder: Path) -> None:
        self.path = folder / "events"

    def sink(self, pipeline: str) -> DeltaSink:
        return Delta(table=str(self.path), storage_options={"secret": self.secret}).to_sink(pipeline)

    def held(self) -> list[Row]:
        found = DeltaTable(self.path).to_pyarrow_table().to_pydict()
        return [Row(*each) for each in zip(*found.values(), strict=True)]

    def write_aside(self, table: pa.Table) -> None:
        write_deltalake(self.path, table, mode="append")

    def roll_back(self, commits: int) -> None:
        table = DeltaTable(self.path)
        table.restore(table.version() - commits)

    def expire(self) -> None:
        """As thirty days do: a checkpoint, and only the commits from it on stay."""
        table = DeltaTable(self.path)
        table.create_checkpoint()
        for each in (self.path / "_delta_log").glob("*.json"):
            if int(each.stem) < table.version():
                each.unlink()

    def replace(self) -> None:
        shutil.rmtree(self.path)
        self.sink("other").open_table().create(SCHEMA)


class TestSink(SnapshotContract):
    @pytest.fixture
    def site(self, tmp_path: Path) -> SnapshotSite:
        return Folder(tmp_path)
