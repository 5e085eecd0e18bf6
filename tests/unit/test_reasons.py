"""Reasons of dead letters are counted by cause: what differs from record to record makes no reason of its own."""

import pytest

from landonce.protocol.receipt import OTHERS, Counted, Receipt, cause_of, counted, lines, merged


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("not valid JSON: Expecting value at character 17", "not valid JSON: Expecting value at character …"),
        ("field 'id' should be int64 but is a string", "field 'id' should be int64 but is a string"),
        ("field 'line 2' is longer than 1,000 bytes", "field 'line 2' is longer than … bytes"),
        ("field 'x' does not fit decimal128(10, 2)", "field 'x' does not fit decimal128(10, 2)"),
        ("no room for -12.5 at 10:30", "no room for … at …"),
        ("column `n2`: 300 is too large", "column `n2`: … is too large"),
    ],
)
def test_a_cause_is_a_reason_without_the_numbers_of_its_record(reason, cause):
    assert cause_of(reason) == cause


def test_206_letters_of_one_cause_are_one_reason_with_an_example():
    counts = counted([*(f"not valid JSON at character {at}" for at in range(206)), "field 'id' is missing"])
    assert counts == (
        Counted("not valid JSON at character …", 206, "not valid JSON at character 0"),
        Counted("field 'id' is missing", 1, "field 'id' is missing"),
    )
    assert lines(counts, 207) == [
        "  206 × not valid JSON at character …, for example: not valid JSON at character 0",
        "    1 × field 'id' is missing",
    ]


def test_those_of_several_blocks_add_up():
    one, two = counted(["a 1", "b"]), counted(["b", "b", "a 2"])
    assert merged((*one, *two)) == (Counted("b", 3, "b"), Counted("a …", 2, "a 1"))


def test_many_causes_stay_few_and_none_is_lost():
    counts = counted(f"reason {chr(97 + at)}" for at in range(26) for _ in range(at + 1))
    assert len(counts) == 20
    assert (counts[0].records, counts[-1].cause) == (26, OTHERS)
    assert sum(each.records for each in counts) == sum(range(27))
    again = merged((*counts, *counts))
    assert len(again) == 20
    assert (again[-1].cause, sum(each.records for each in again)) == (OTHERS, 2 * sum(range(27)))


def test_letters_whose_reason_is_not_known_are_counted_too():
    assert lines(counted(["a"]), 3) == ["  1 × a", "  2 × of an earlier start: their files say why"]


def test_a_receipt_keeps_them_in_the_ledger():
    receipt = Receipt(read=3, landed=1, dead_lettered=2, reasons=counted(["a 1", "a 2"]))
    assert Receipt.from_json(receipt.to_json()) == receipt
    without = Receipt(read=1, landed=1)
    assert "reasons" not in without.to_json()
    assert Receipt.from_json(without.to_json()) == without
