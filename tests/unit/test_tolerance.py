"""How many records may become dead letters: the limit, the floor, small batches that add up, and what an error says to do next."""

import itertools

import pytest

from landonce.errors import BadRecord, TooManyDeadLetters
from landonce.protocol.ledger import Totals
from landonce.protocol.reasons import Code, Reason, counted
from landonce.protocol.tolerance import CORRECT_AND_RUN, Tolerance

NONE = Totals()
WHY = counted([Reason(f"not valid JSON at character {at}", Code.MALFORMED) for at in range(3)])


def judge(tolerance: Tolerance, batch: Totals, lately: Totals = NONE, before: Totals = NONE):
    return tolerance.judge(batch, lately, before, WHY, CORRECT_AND_RUN)


@pytest.mark.parametrize(
    ("dead", "landed", "halts"),
    [(0, 0, False), (99, 0, False), (100, 0, True), (100, 900, False), (101, 900, True), (1000, 9000, False)],
)
def test_a_batch_halts_beyond_the_limit_and_not_below_the_floor(dead: int, landed: int, halts: bool) -> None:
    assert isinstance(judge(Tolerance(0.1), Totals(landed, dead)), TooManyDeadLetters) is halts


def test_small_batches_add_up_in_a_run_and_over_all_runs() -> None:
    strict, small, some = Tolerance(0.1), Totals(0, 60), Totals(0, 40)
    assert judge(strict, small) is None
    assert "of the last batches" in judge(strict, small, lately=some, before=Totals(10**9, 40)).what
    assert "of the pipeline" in judge(strict, small, before=some).what
    assert "of the batch" in judge(Tolerance(0.1, floor=60), small).what


def test_a_long_history_of_good_records_does_not_hide_a_mistake() -> None:
    """Small batches, each in a run of its own, as far as the ledger remembers them."""
    strict, history, lately, recorded = Tolerance(0.1), Totals(1_000_000, 5_000), NONE, 0
    while judge(strict, Totals(0, 60), lately, history) is None:
        lately, history, recorded = strict.lately(Totals(0, 60), lately), history.plus(Totals(0, 60)), recorded + 1
    assert recorded == 1
    assert judge(strict, Totals(0, 60), NONE, history) is None, "the control: nobody remembers"


def test_a_batch_within_the_limit_ends_what_adds_up_and_an_empty_one_does_not() -> None:
    strict, some = Tolerance(0.1), Totals(3, 40, 2)
    assert strict.lately(Totals(0, 60, 1), some) == Totals(3, 100, 3)
    assert strict.lately(Totals(), some) == some
    assert strict.lately(Totals(90, 10), some) == NONE
    assert Tolerance().lately(Totals(0, 60), some) == NONE, "without a limit"


def test_batches_of_a_stricter_limit_do_not_hide_one_that_is_beyond_a_higher_one() -> None:
    earlier, half = Totals(800, 99), Tolerance(0.5)
    assert "150 of 150 records of the batch" in judge(half, Totals(0, 150), lately=earlier, before=earlier).what
    assert half.lately(Totals(0, 60), earlier) == Totals(0, 60)


def test_a_batch_within_the_limit_goes_on_whatever_was_before() -> None:
    assert judge(Tolerance(0.1), Totals(90, 10), Totals(0, 1000), Totals(0, 1000)) is None
    assert judge(Tolerance(0.1), Totals(90, 0), Totals(0, 1000), Totals(0, 1000)) is None


def test_batches_within_the_limit_are_within_it_together() -> None:
    """So the totals are asked only for a batch that is beyond it."""
    strict = Tolerance(0.25, floor=1)
    batches = [Totals(landed, dead) for landed, dead in itertools.product(range(5), repeat=2)]
    within = [each for each in batches if not strict.beyond(each)]
    assert all(not strict.beyond(one.plus(two)) for one, two in itertools.product(within, repeat=2))


def test_no_limit_and_no_tolerance() -> None:
    assert judge(Tolerance(), Totals(0, 10**9)) is None
    assert isinstance(judge(Tolerance(0, floor=1), Totals(10**9, 1)), TooManyDeadLetters)
    assert isinstance(judge(Tolerance(halt=True), Totals(10**9, 1)), BadRecord)
    assert judge(Tolerance(halt=True), Totals(10**9, 0)) is None


def test_an_error_counts_the_reasons_and_says_what_to_do() -> None:
    error = judge(Tolerance(0.1), Totals(300, 100))
    assert error.what == (
        "100 of 400 records of the batch cannot land. That is 25 %, and `dead_letters.limit` is 10 %. In this batch:\n"
        "  3 malformed\n"
        "  3 × malformed: not valid JSON at character …, for example: not valid JSON at character 0"
    )
    assert CORRECT_AND_RUN in error.command
    assert "raise `dead_letters.limit`" in error.command
    assert "none of its dead letters counts" in error.safe
