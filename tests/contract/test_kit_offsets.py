"""The kit's cases for handlers of a consumer's offsets, tried: landonce's own for SQL databases and the example pass all, and each broken one
fails its case."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from broken_offsets import BROKEN_OFFSETS, InOneFile
from kit_controls import check_fails, check_mostly_sound
from offsets_in_rows import OffsetsInRows
from sqlalchemy import Engine, create_engine, text

from landonce.consumer import OffsetHandler, SqlOffsets
from landonce.testing import OFFSET_CASES, Case, OffsetContract, OffsetSite


class InDatabase(OffsetSite):
    """Results beside the offsets."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        with engine.begin() as connection:
            connection.execute(text("DROP TABLE IF EXISTS kit_results"))
            connection.execute(text("DROP TABLE IF EXISTS kit_offsets"))
            connection.execute(text("CREATE TABLE kit_results (id VARCHAR(20))"))

    def open(self) -> OffsetHandler:
        return SqlOffsets(create_engine(self.engine.url), table="kit_offsets")

    def write(self, transaction: Any, text_: str) -> None:
        transaction.execute(text("INSERT INTO kit_results VALUES (:text)"), {"text": text_})

    def results(self) -> list[str]:
        with self.engine.connect() as connection:
            return list(connection.scalars(text("SELECT id FROM kit_results")))


class TestSqlite(OffsetContract):
    @pytest.fixture
    def site(self, tmp_path: Path) -> Iterator[OffsetSite]:
        engine = create_engine(f"sqlite:///{tmp_path}/db")
        yield InDatabase(engine)
        engine.dispose()


@pytest.mark.integration
class TestServers(OffsetContract):
    @pytest.fixture(params=["postgres", "mariadb"])
    def site(self, request: pytest.FixtureRequest) -> Iterator[OffsetSite]:
        engine = create_engine(request.getfixturevalue(request.param).url)
        yield InDatabase(engine)
        engine.dispose()


class TestExample(OffsetContract):
    @pytest.fixture
    def site(self, tmp_path: Path) -> OffsetSite:
        return InOneFile(tmp_path)


class InRows(OffsetSite):
    """Offsets in the rows of the results, by a store without transactions."""

    def __init__(self, path: Path, kind: type[OffsetsInRows] = OffsetsInRows) -> None:
        self.path, self.kind = str(path), kind

    def open(self) -> OffsetHandler:
        return self.kind(self.path)

    def write(self, transaction: Any, text: str) -> None:
        transaction.add(text)

    def results(self) -> list[str]:
        with closing(sqlite3.connect(self.path)) as connection:
            rows = connection.execute("SELECT result FROM results WHERE result IS NOT NULL ORDER BY id").fetchall()
        return [result for (result,) in rows]


class TestInRows(OffsetContract):
    @pytest.fixture
    def site(self, tmp_path: Path) -> OffsetSite:
        return InRows(tmp_path / "results.db")


class Unconditional(OffsetsInRows):
    """Looks first, and then writes whatever has come since."""

    def write(self, rows: list[list[object]], seen: Mapping[Any, int | None]) -> bool:
        del seen
        return super().write(rows, {})


def test_rows_that_are_written_without_a_condition_fail(tmp_path: Path) -> None:
    """The control: reading the offset before a write is not enough."""
    check_fails(
        OFFSET_CASES["load_sees_what_an_open_transaction_leaves"], InRows(tmp_path / "results.db", Unconditional)
    )


def test_every_case_has_a_broken_handler() -> None:
    assert list(BROKEN_OFFSETS) == [each.name for each in OFFSET_CASES]


@pytest.mark.parametrize("case", tuple(OFFSET_CASES), ids=str)
def test_a_broken_handler_fails_its_case(case: Case[OffsetSite], tmp_path: Path) -> None:
    check_fails(case, InOneFile(tmp_path, BROKEN_OFFSETS[case.name]))


@pytest.mark.parametrize("name", [each for each in BROKEN_OFFSETS if each != "a_second_consumer_begins_too"])
def test_a_broken_handler_is_sound_otherwise(name: str, tmp_path: Path) -> None:
    """One that begins only once is of no use: every case opens several."""

    def opened(case: str) -> InOneFile:
        (tmp_path / case).mkdir()
        return InOneFile(tmp_path / case, BROKEN_OFFSETS[name])

    check_mostly_sound(OFFSET_CASES, opened, name)
