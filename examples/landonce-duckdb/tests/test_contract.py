"""The sink against landonce's contract: `pip install -e '.[test]' && pytest`."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
from landonce_duckdb.file import transaction
from landonce_duckdb.sink import DuckDbBlock, DuckDbLedger, DuckDbSink

from landonce.plugin import BlockKey
from landonce.testing import LedgerContract, LedgerSite, Row, TransactionContract, TransactionSite
from landonce.testing.cases_transactions import BATCH, PIPELINE
from landonce.testing.sink_sites import SCHEMA


class File(TransactionSite):
    """A file of its own, read by duckdb alone."""

    moments = 12

    def __init__(self, folder: Path) -> None:
        self.path = folder / "events.duckdb"
        self.sink = DuckDbSink(self.path, "events")
        self.sink.open_table().create(SCHEMA)

    def ledger(self) -> DuckDbLedger:
        return DuckDbLedger(self.path, PIPELINE)

    def writer(self, number: int) -> DuckDbBlock:
        return self.sink.open_block(BlockKey(PIPELINE, BATCH, number))

    def held(self) -> list[Row]:
        with duckdb.connect(str(self.path)) as connection:
            return [Row(*row) for row in connection.execute("SELECT * FROM events").fetchall()]


class TestTransactions(TransactionContract):
    @pytest.fixture
    def site(self, tmp_path: Path) -> TransactionSite:
        return File(tmp_path)


class LedgerFile(LedgerSite):
    bare = False
    moments = 4

    def __init__(self, folder: Path) -> None:
        self.path = folder / "ledger.duckdb"

    def open(self, pipeline: str) -> DuckDbLedger:
        return DuckDbLedger(self.path, pipeline)


class TestLedger(LedgerContract):
    @pytest.fixture
    def site(self, tmp_path: Path) -> LedgerSite:
        return LedgerFile(tmp_path)


def test_columns_come_back(tmp_path: Path) -> None:
    table = DuckDbSink(tmp_path / "a.duckdb", "a b").open_table()
    assert not table.exists()
    table.create(SCHEMA)
    table.create(SCHEMA)
    assert table.schema() == SCHEMA
    assert table.check() == ()


def test_a_table_without_coordinates_is_refused(tmp_path: Path) -> None:
    with transaction(tmp_path / "a.duckdb") as connection:
        connection.execute("CREATE TABLE events (id BIGINT, _offset BIGINT)")
    (found,) = DuckDbSink(tmp_path / "a.duckdb", "events").open_table().check()
    assert found.what == "events lacks the columns _topic VARCHAR, _partition INTEGER"
    for statement in found.change.split("; "):
        with transaction(tmp_path / "a.duckdb") as connection:
            connection.execute(statement)
    assert DuckDbSink(tmp_path / "a.duckdb", "events").open_table().check() == ()
