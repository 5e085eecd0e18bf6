"""The audit's comparison, exhaustively over small windows, against an oracle that looks at one offset at a time."""

import itertools
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from landonce.protocol.ranges import Partition
from landonce.sinks.audit import CountedOffsets
from landonce.verify.handled import HandledLetters
from landonce.verify.judge import Discrepancy, Fates, Whereabouts, judge_letters, judge_rows
from landonce.verify.report import LISTED, FaultyRange, Runs
from landonce.verify.topic import Window

FATES = ("none", "lands", "dead", "filtered")


def oracle(fate, rows, letters, compacted):
    found = set()
    if fate == "lands" and not rows:
        found.add((Discrepancy.MISSING, Whereabouts.TARGET))
    if fate == "dead" and not letters:
        found.add((Discrepancy.MISSING, Whereabouts.DEAD_LETTERS))
    if rows > 1:
        found.add((Discrepancy.DUPLICATED, Whereabouts.TARGET))
    if letters > 1:
        found.add((Discrepancy.DUPLICATED, Whereabouts.DEAD_LETTERS))
    if rows and letters:
        found.add((Discrepancy.DUPLICATED, Whereabouts.BOTH))
    elif not (compacted and fate == "none"):
        if rows and fate != "lands":
            found.add((Discrepancy.UNEXPECTED, Whereabouts.TARGET))
        if letters and fate != "dead":
            found.add((Discrepancy.UNEXPECTED, Whereabouts.DEAD_LETTERS))
    return found


def counted(numbers):
    return CountedOffsets.of(np.repeat(np.arange(len(numbers), dtype=np.int64), numbers))


def judged(expected, rows, letters, compacted):
    """The verdicts on one table and on the dead letters, as (offset -> faults, landed, dead-lettered)."""
    of_rows = judge_rows(expected.of("a"), rows, letters, compacted=compacted)
    of_letters = judge_letters(expected, rows.offsets, letters, compacted=compacted)
    found = [
        {
            (fault, place)
            for each in (of_rows, of_letters)
            for fault, place, mask in each.faults
            if at in each.offsets[mask]
        }
        for at in (0, 1)
    ]
    return found, of_rows.right, of_letters.right


def fates_of(fates, tables=("a",)):
    """`lands` stands for the first table; `lands b` for the table b."""
    there = [(at, fate) for at, fate in enumerate(fates) if fate != "none"]
    names = {f"lands {table}" if table != tables[0] else "lands": table for table in tables}
    return Fates(
        np.array([at for at, _ in there], np.int64),
        np.array([fate == "dead" for _, fate in there], np.bool_),
        {
            table: np.array([index for index, (_, fate) in enumerate(there) if fate == name], np.int64)
            for name, table in names.items()
        },
    )


@pytest.mark.parametrize("compacted", [False, True])
def test_every_pair_of_neighbours(compacted):
    """All fates × rows × letters of two neighbouring offsets: 1,296 windows."""
    one = list(itertools.product(FATES, range(3), range(3)))
    for pair in itertools.product(one, one):
        expected = fates_of([fate for fate, _, _ in pair])
        rows, letters = counted([n for _, n, _ in pair]), counted([n for _, _, n in pair])
        found, landed, dead_lettered = judged(expected, rows, letters, compacted)
        assert found == [oracle(*each, compacted) for each in pair]
        assert landed == sum(fate == "lands" and rows > 0 for fate, rows, _ in pair)
        assert dead_lettered == sum(fate == "dead" and letters > 0 for fate, _, letters in pair)


def test_every_pair_of_tables():
    """One offset, two tables: each is judged for itself, and the dead letters against both."""
    fates = (*FATES, "lands b", "both")
    for fate, in_a, in_b, letters in itertools.product(fates, range(3), range(3), range(3)):
        expected = fates_of(["lands" if fate == "both" else fate], ("a", "b"))
        if fate == "both":
            expected = replace(expected, lands={"a": np.array([0]), "b": np.array([0])})
        mail = counted([letters])
        for table, rows in (("a", in_a), ("b", in_b)):
            judged = judge_rows(expected.of(table), counted([rows]), mail)
            mine = "lands" if fate == "both" or fate == {"a": "lands", "b": "lands b"}[table] else "none"
            wanted = oracle("dead" if fate == "dead" else mine, rows, letters, False)
            assert {each[:2] for each in judged.faults} == {
                each for each in wanted if each[1] is not Whereabouts.DEAD_LETTERS
            }
        held = np.array([0] if in_a or in_b else [], np.int64)
        judged = judge_letters(expected, held, mail)
        wanted = oracle(fate, in_a or in_b, letters, False)
        assert {each[:2] for each in judged.faults} == {each for each in wanted if each[1] is Whereabouts.DEAD_LETTERS}


def test_a_table_that_no_record_is_for():
    expected = fates_of(["lands", "lands", "dead"]).of("another")
    assert expected.offsets.tolist() == [2]
    assert not expected.lands.any()


def test_a_window_is_cut_with_all_that_belongs_to_its_records():
    changes = pa.table({"id": [10, 12, 13]})
    whole = Fates(
        np.array([10, 11, 12, 13]),
        np.array([False, True, False, False]),
        {"a": np.array([0, 2, 3]), "b": np.array([0])},
        {"a": changes, "b": changes.slice(0, 1)},
    )
    part = whole.between(11, 13)
    assert part.offsets.tolist() == [11, 12]
    assert part.dead.tolist() == [True, False]
    assert {table: indexes.tolist() for table, indexes in part.lands.items()} == {"a": [1]}
    assert {table: rows.column("id").to_pylist() for table, rows in part.changes.items()} == {"a": [12]}
    assert whole.between(0, 100) is whole


def test_what_the_target_refused_is_dead():
    changes = pa.table({"id": [10, 12, 13]})
    whole = Fates(
        np.array([10, 11, 12, 13]), np.array([False, True, False, False]), {"a": np.array([0, 2, 3])}, {"a": changes}
    )
    part = whole.without(np.array([12, 99]))
    assert part.dead.tolist() == [False, True, True, False]
    assert part.lands["a"].tolist() == [0, 3]
    assert part.changes["a"].column("id").to_pylist() == [10, 13]
    assert whole.without(np.array([99])) is whole


def runs_of(*windows):
    runs = Runs()
    for offsets, faulty in windows:
        runs.add(np.array(offsets, np.int64), np.isin(offsets, faulty))
    return runs


def test_runs_go_over_offsets_that_hold_nothing():
    assert runs_of(([1, 5, 9, 20], [5, 9])).listed == [FaultyRange(5, 10, 2)]


def test_runs_go_over_the_edge_of_a_window():
    runs = runs_of(([1, 2], [2]), ([], []), ([7, 8], [7]), ([9], [9]))
    assert runs.listed == [FaultyRange(2, 8, 2), FaultyRange(9, 10, 1)]
    assert runs.records == 3


def test_only_so_many_runs_are_listed_and_all_are_counted():
    count = LISTED + 5
    offsets = list(range(2 * count))
    faulty = offsets[1::2]
    runs = runs_of((offsets, faulty), ([2 * count, 2 * count + 1], [2 * count]))
    assert (len(runs.listed), runs.more, runs.records) == (LISTED, 5, count + 1)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_windows_of_any_size_find_the_same_runs(size):
    offsets = [at for at in range(40) if at % 3]
    for faulty in itertools.combinations(offsets[8:14], 3):
        cut = [(offsets[at : at + size], faulty) for at in range(0, len(offsets), size)]
        assert runs_of(*cut).listed == runs_of((offsets, faulty)).listed


class Seen(np.ndarray):
    """Counts how often it is made a list."""

    lists = 0

    def tolist(self) -> list[int]:
        Seen.lists += 1
        return super().tolist()


def test_a_replay_on_its_way_is_compared_with_the_target_once() -> None:
    """However many letters it has: each comparison goes through all that the target holds."""
    label, count = Partition("t", 0), 400
    here = np.arange(count, dtype=np.int64)
    held = np.arange(0, count, 2, dtype=np.int64).view(Seen)
    letters = HandledLetters(landing={label: dict.fromkeys(range(count), b"new")})
    window = Window(0, count, here, pa.array([b"old"] * count, pa.binary()))
    judged, left, dropped = letters.judged(label, window, CountedOffsets.of(here), lambda: held)
    assert judged.values.to_pylist() == [b"new", b"old"] * (count // 2)
    assert left.offsets.tolist() == [*range(1, count, 2)]
    assert dropped.tolist() == []
    assert Seen.lists <= 2
