"""The audit's comparison, exhaustively over small windows, against an oracle that looks at one offset at a time."""

import itertools

import numpy as np
import pytest

from landonce.verify.judge import Counted, Expected, Fault, Place, judge
from landonce.verify.runs import LISTED, Run, Runs

FATES = ("none", "lands", "dead", "filtered")


def oracle(fate, rows, letters, compacted):
    found = set()
    if fate == "lands" and not rows:
        found.add((Fault.MISSING, Place.TARGET))
    if fate == "dead" and not letters:
        found.add((Fault.MISSING, Place.DEAD_LETTERS))
    if rows > 1:
        found.add((Fault.DUPLICATED, Place.TARGET))
    if letters > 1:
        found.add((Fault.DUPLICATED, Place.DEAD_LETTERS))
    if rows and letters:
        found.add((Fault.DUPLICATED, Place.BOTH))
    elif not (compacted and fate == "none"):
        if rows and fate != "lands":
            found.add((Fault.UNEXPECTED, Place.TARGET))
        if letters and fate != "dead":
            found.add((Fault.UNEXPECTED, Place.DEAD_LETTERS))
    return found


def counted(numbers):
    return Counted.of(np.repeat(np.arange(len(numbers), dtype=np.int64), numbers))


@pytest.mark.parametrize("compacted", [False, True])
def test_every_pair_of_neighbours(compacted):
    """All fates × rows × letters of two neighbouring offsets: 1,296 windows."""
    one = list(itertools.product(FATES, range(3), range(3)))
    for pair in itertools.product(one, one):
        there = [(at, fate) for at, (fate, _, _) in enumerate(pair) if fate != "none"]
        expected = Expected(
            np.array([at for at, _ in there], np.int64),
            np.array([fate == "lands" for _, fate in there], np.bool_),
            np.array([fate == "dead" for _, fate in there], np.bool_),
        )
        judged = judge(
            expected, counted([n for _, n, _ in pair]), counted([n for _, _, n in pair]), compacted=compacted
        )
        found = [
            {(fault, place) for fault, place, mask in judged.faults if at in judged.offsets[mask]} for at in (0, 1)
        ]
        assert found == [oracle(*each, compacted) for each in pair]
        assert judged.landed == sum(fate == "lands" and rows > 0 for fate, rows, _ in pair)
        assert judged.dead_lettered == sum(fate == "dead" and letters > 0 for fate, _, letters in pair)


def runs_of(*windows):
    runs = Runs()
    for offsets, faulty in windows:
        runs.add(np.array(offsets, np.int64), np.isin(offsets, faulty))
    return runs


def test_runs_go_over_offsets_that_hold_nothing():
    assert runs_of(([1, 5, 9, 20], [5, 9])).listed == [Run(5, 10, 2)]


def test_runs_go_over_the_edge_of_a_window():
    runs = runs_of(([1, 2], [2]), ([], []), ([7, 8], [7]), ([9], [9]))
    assert runs.listed == [Run(2, 8, 2), Run(9, 10, 1)]
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
