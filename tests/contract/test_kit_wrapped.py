"""The kit's cases for wrapped sinks, tried: the references pass all that applies, and each broken sink fails its case."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from unicodedata import normalize

import pyarrow as pa
import pytest
from broken_wrapped import BROKEN_WRAPPED, Chunked, FilesSite, TableSite
from kit_controls import check_fails, check_mostly_sound

from landonce.sinks.wrapped.block import PushedBlock
from landonce.testing import WRAPPED_CASES, Case, WrappedContract, WrappedSite, prove
from landonce.testing.reference_sinks import Appending, FilePerBlock

pytestmark = pytest.mark.timeout(300)
BASICS = (
    "what_was_pushed_is_there",
    "blocks_of_a_partition_are_kept_apart",
    "partitions_and_topics_are_kept_apart",
    "offsets_may_have_gaps",
    "a_silent_target_takes_nothing",
    "a_probe_finds_what_is_there",
)


class TestIdempotent(WrappedContract):
    @pytest.fixture
    def site(self, tmp_path: Path) -> WrappedSite:
        return FilesSite(tmp_path)


class TestProbed(WrappedContract):
    @pytest.fixture
    def site(self, tmp_path: Path) -> WrappedSite:
        return TableSite(tmp_path)


@pytest.mark.parametrize("case", tuple(WRAPPED_CASES), ids=str)
def test_a_broken_sink_fails_its_case(case: Case[WrappedSite], tmp_path: Path) -> None:
    check_fails(case, BROKEN_WRAPPED[case.name](tmp_path))


class NotedFirst(FilePerBlock):
    """Wrong between two lines, and nowhere else."""

    def push(self, block: PushedBlock) -> None:
        noted = self.folder / f"{block.key}.noted"
        if noted.exists():
            return
        aside = self.folder / f"{block.key}.aside"
        aside.write_bytes(block.json_lines())
        noted.touch()
        aside.rename(self.folder / f"{block.key}.jsonl")


def test_a_crash_between_two_lines_is_tried_and_named(tmp_path: Path) -> None:
    """landonce passes four times as many lines around a push; the sink's own are tried all the same."""
    last = inspect.getsourcelines(NotedFirst.push)[1] + 7
    with pytest.raises(AssertionError, match=f"there twice; killed before line {last} of test_kit_wrapped"):
        WRAPPED_CASES["after_a_crash_at_any_line_a_block_lands_once"].check(FilesSite(tmp_path, NotedFirst))


LARGE = "after_a_crash_between_its_portions_a_large_block_lands_once"


class ChunkedToTheLast(Chunked):
    """The last row is there when all are; else all are sent again."""

    def probe(self, block: PushedBlock) -> bool:
        return super().probe(replace(block, first=block.end - 1))


class Resuming(Chunked):
    """Sends what is not there yet, and counts: a block is in portions, and sound."""

    def push(self, block: PushedBlock) -> None:
        super().push(replace(block, rows=block.rows.slice(self.count(block))))

    def probe(self, block: PushedBlock) -> bool:
        return self.count(block) == block.rows.num_rows

    def count(self, block: PushedBlock) -> int:
        with closing(self.connected()) as connection:
            asked = "SELECT count(*) FROM events WHERE _topic = ? AND _partition = ? AND _offset >= ? AND _offset < ?"
            found = connection.execute(asked, (block.topic, block.partition, block.first, block.end))
            return int(found.fetchone()[0])


def test_what_portions_lose_or_double_is_counted(tmp_path: Path) -> None:
    line = inspect.getsourcelines(Chunked.push)[1] + 2
    for name, made, difference in (
        ("first", Chunked, "4500 missing, 0 too many"),
        ("last", ChunkedToTheLast, "0 missing, 500 too many"),
    ):
        (tmp_path / name).mkdir()
        where = rf"killed before line {line} of broken_wrapped \(of 5000 rows {difference}\)"
        with pytest.raises(AssertionError, match=where):
            WRAPPED_CASES[LARGE].check(TableSite(tmp_path / name, made))


def test_portions_may_be_sound(tmp_path: Path) -> None:
    WRAPPED_CASES[LARGE].check(TableSite(tmp_path, Resuming))


@pytest.mark.long
@pytest.mark.parametrize("case", [each for each in WRAPPED_CASES if each.name != LARGE], ids=str)
def test_no_other_case_finds_portions(case: Case[WrappedSite], tmp_path: Path) -> None:
    prove(case, TableSite(tmp_path, Chunked))


@dataclass(frozen=True)
class Spoiling(FilePerBlock):
    """Something happens to the words on the way."""

    spoil: Callable[[str], str | None] = str

    def push(self, block: PushedBlock) -> None:
        words = [None if word is None else self.spoil(word) for word in block.rows.column("word").to_pylist()]
        super().push(replace(block, rows=block.rows.set_column(4, "word", pa.array(words, pa.string()))))


class Doubles(FilePerBlock):
    """Numbers as in JavaScript."""

    def push(self, block: PushedBlock) -> None:
        ids = [min(int(float(each)), 2**63 - 1) for each in block.rows.column("id").to_pylist()]
        super().push(replace(block, rows=block.rows.set_column(3, "id", pa.array(ids, pa.int64()))))


SPOILT: dict[str, Callable[[Path], FilePerBlock]] = {
    "cut": lambda folder: Spoiling(folder, lambda word: word[:4000]),
    "basic plane": lambda folder: Spoiling(folder, lambda word: "".join(each for each in word if each <= "\uffff")),
    "composed": lambda folder: Spoiling(folder, lambda word: normalize("NFC", word)),
    "line ends": lambda folder: Spoiling(folder, lambda word: word.replace("\r\n", "\n")),
    "nulls": lambda folder: Spoiling(folder, lambda word: None if word == "null" else word),
    "numbers": lambda folder: Spoiling(folder, lambda word: word.lstrip("0")),
    "unescaped": lambda folder: Spoiling(folder, lambda word: word.replace("\\n", "\n")),
    "doubles": Doubles,
}


@pytest.mark.parametrize("spoilt", SPOILT)
def test_a_value_that_is_changed_is_found(spoilt: str, tmp_path: Path) -> None:
    check_fails(WRAPPED_CASES["values_come_back_as_they_were"], FilesSite(tmp_path, SPOILT[spoilt]))


@dataclass(frozen=True)
class Buffering(FilePerBlock):
    """As a client with a buffer that nobody flushes in time."""

    buffer: list[PushedBlock] = field(default_factory=list)

    def push(self, block: PushedBlock) -> None:
        self.buffer.append(block)

    def close(self) -> None:
        while self.buffer:
            super().push(self.buffer.pop())


def test_what_is_there_only_after_closing_is_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="there only once the sink is closed"):
        WRAPPED_CASES["what_was_pushed_is_there"].check(FilesSite(tmp_path, Buffering))


@dataclass(frozen=True)
class Hoarding(Appending):
    """What could not be sent goes along with what is sent next, by the same object."""

    buffer: list[PushedBlock] = field(default_factory=list)

    def push(self, block: PushedBlock) -> None:
        self.buffer.append(block)
        super().push(replace(block, rows=pa.concat_tables(each.rows for each in self.buffer)))
        self.buffer.clear()


def test_what_an_object_keeps_after_a_failure_is_found(tmp_path: Path) -> None:
    case = WRAPPED_CASES["where_the_target_falls_silent_a_block_lands_once"]
    with pytest.raises(AssertionError, match=r"silent from line \d+ of \S+ on \(of 4 rows 0 missing, 4 too many\)"):
        case.check(TableSite(tmp_path, Hoarding))


def test_every_broken_sink_is_for_a_case() -> None:
    assert set(BROKEN_WRAPPED) == {case.name for case in WRAPPED_CASES}


def test_what_does_not_apply_has_a_reason(tmp_path: Path) -> None:
    reasons = WRAPPED_CASES.excused(FilesSite(tmp_path))
    assert "needs none if idempotent" in reasons["a_probe_finds_what_is_there"]
    assert "idempotent=False" in WRAPPED_CASES.excused(TableSite(tmp_path))["the_same_block_again_changes_nothing"]


@pytest.mark.long
@pytest.mark.parametrize("name", BROKEN_WRAPPED)
def test_a_broken_one_is_sound_otherwise(name: str, tmp_path: Path) -> None:
    def opened(other: str):
        (tmp_path / other).mkdir()
        return BROKEN_WRAPPED[name](tmp_path / other)

    check_mostly_sound([WRAPPED_CASES[name] for name in BASICS], opened, name)
