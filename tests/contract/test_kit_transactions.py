"""The kit's cases for databases, tried: SQLite and PostgreSQL pass all, and each broken one fails its case."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from broken_transactions import BROKEN_TRANSACTIONS, SqliteTransactions
from kit_controls import check_fails, check_mostly_sound

from landonce.ledger.block_ledgers import TargetLedger
from landonce.ledger.plain_sql import BlockKey
from landonce.sinks.sql.sink import SqlSink, open_database
from landonce.sinks.sql.table import SqlTable
from landonce.sinks.sql.writer import open_writer
from landonce.sinks.transactional import BlockTransaction
from landonce.testing import TRANSACTION_CASES, Case, Row, TransactionContract, TransactionSite
from landonce.testing.cases_transactions import BATCH, PIPELINE
from landonce.testing.sink_sites import SCHEMA

pytestmark = pytest.mark.timeout(300)
BASICS = (
    "a_block_lands_with_its_row",
    "a_block_that_is_there_is_not_written_again",
    "a_zombie_writes_nothing",
    "the_receipt_of_the_first_attempt_counts",
    "a_block_without_rows_is_done_too",
)


class TestSqlite(TransactionContract):
    @pytest.fixture
    def site(self, tmp_path: Path) -> TransactionSite:
        return SqliteTransactions(tmp_path)


class InPostgres(TransactionSite):
    """A database of its own, read by psycopg."""

    moments = 12

    def __init__(self, url: str) -> None:
        self.url = url
        self.sink = SqlSink(url, "events", PIPELINE)
        self.tables = [SqlTable(self.sink)]
        self.tables[0].create(SCHEMA)

    def ledger(self) -> TargetLedger:
        return TargetLedger(open_database(self.sink.address), PIPELINE)

    def writer(self, number: int) -> BlockTransaction:
        return open_writer(self.sink, BlockKey(PIPELINE, BATCH, number))

    def table(self) -> SqlTable:
        return SqlTable(self.sink)

    def held(self) -> list[Row]:
        with psycopg.connect(self.url.replace("+psycopg", "")) as connection:
            found = connection.execute("SELECT _topic, _partition, _offset, id, word FROM events").fetchall()
        return [Row(*row) for row in found]


@pytest.mark.integration
class TestPostgres(TransactionContract):
    @pytest.fixture
    def site(self, new_database: Callable[[], str]) -> Iterator[TransactionSite]:
        site = InPostgres(new_database())
        yield site
        site.tables[0].close()


@pytest.mark.parametrize("case", tuple(TRANSACTION_CASES), ids=str)
def test_a_broken_one_fails_its_case(case: Case[TransactionSite], tmp_path: Path) -> None:
    check_fails(case, BROKEN_TRANSACTIONS[case.name](tmp_path))


def test_every_broken_one_is_for_a_case() -> None:
    assert set(BROKEN_TRANSACTIONS) == {case.name for case in TRANSACTION_CASES}


@pytest.mark.long
@pytest.mark.parametrize("name", BROKEN_TRANSACTIONS)
def test_a_broken_one_is_sound_otherwise(name: str, tmp_path: Path) -> None:
    def opened(other: str):
        (tmp_path / other).mkdir()
        return BROKEN_TRANSACTIONS[name](tmp_path / other)

    check_mostly_sound([TRANSACTION_CASES[name] for name in BASICS], opened, name)
