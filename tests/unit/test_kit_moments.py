"""When the kit has a plug-in die: at every line of its own, and at some of those around it."""

from __future__ import annotations

import inspect
import sys
import threading
from functools import partial

import pytest

from landonce.testing.crashing import SOME_MOMENTS, lines_of, moments, repeats, struck

LOOPS = 300


def stepping(times: int = 1) -> None:
    total = 0
    for each in range(times):
        total += each
    assert total >= 0


def test_every_line_is_a_moment() -> None:
    lines = lines_of(stepping)
    assert lines == ("test_kit_moments",)
    assert len(moments(lines, stepping)) == 5
    assert str(moments(lines, stepping)[0]).endswith(" of test_kit_moments")


def test_a_line_that_is_passed_often_does_not_crowd_others_out() -> None:
    found = moments(("test_kit_moments",), partial(stepping, LOOPS), 10)
    assert {each.where[1] for each in found} == {each.where[1] for each in moments(("test_kit_moments",), stepping)}
    assert len(found) == 6, "the loop's two lines twice, first and last"


def test_what_is_done_again_and_again_is_interrupted_in_between() -> None:
    """The loop's two lines at the second time, half-way and at the last time, and each other line once."""
    start, lines = inspect.getsourcelines(stepping)[1], ("test_kit_moments",)
    found = repeats(lines, partial(stepping, LOOPS))
    assert [each.where[1] - start for each in found] == [1, 2, 3, 2, 3, 3, 2, 4]
    assert [int(each) for each in found] == [0, 3, 4, 301, 302, 600, 601, 602]
    assert [each.where[1] - start for each in repeats(lines, stepping)] == [1, 3, 2, 4]
    assert len(repeats(lines, partial(stepping, LOOPS), 3)) == 3
    assert len(repeats(lines, partial(stepping, LOOPS), 1)) == len(moments(lines, stepping, 1)) == 1


def test_something_happens_before_a_line_is_passed() -> None:
    happened: list[int] = []
    before = sys.gettrace(), threading.gettrace()
    struck(("test_kit_moments",), lambda: noting(happened), 2, lambda: happened.append(0))
    assert happened == [1, 0, 2]
    assert (sys.gettrace(), threading.gettrace()) == before, "a coverage tool cannot go on"


def noting(happened: list[int]) -> None:
    happened.append(1)
    happened.append(2)


def test_of_the_lines_around_it_some_will_do() -> None:
    def act() -> None:
        lines_of(stepping)
        for _ in range(LOOPS):
            lines_of(stepping)
        stepping()

    found = moments(("test_kit_moments",), act, also=("landonce.testing",))
    assert {each.where[0] for each in found} == {"test_kit_moments"}, "lines of the kit itself are nobody's steps"
    around = moments(("test_kit_moments",), partial(_reading, LOOPS), also=("json",))
    assert sum(each.where[0].startswith("json") for each in around) <= SOME_MOMENTS


def _reading(times: int) -> None:
    import json

    for _ in range(times):
        json.loads("{}")


def test_the_function_in_a_partial_is_found() -> None:
    assert lines_of(partial(partial(stepping, 1))) == ("test_kit_moments",)


def test_code_that_is_never_passed_is_said() -> None:
    with pytest.raises(AssertionError, match="no line of nowhere was passed: say in `packages`"):
        moments(("nowhere",), stepping)
