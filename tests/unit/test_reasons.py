"""Reasons of dead letters are counted by cause: what differs from record to record makes no reason of its own."""

import copy
import pickle
import re
from pathlib import Path

import pytest
from corpus import ALL

from landonce.protocol.reasons import (
    OTHERS,
    Code,
    Counted,
    Reason,
    by_code,
    cause_of,
    counted,
    lines,
    merged,
    missing,
    of_field,
    too_large,
)
from landonce.protocol.receipt import Receipt


def malformed(words: str) -> Reason:
    return Reason(words, Code.MALFORMED)


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
    broken = (malformed(f"not valid JSON at character {at}") for at in range(206))
    counts = counted([*broken, Reason("field 'id' is missing", Code.MISSING_FIELD, "id")])
    assert counts == (
        Counted("not valid JSON at character …", 206, "not valid JSON at character 0", Code.MALFORMED),
        Counted("field 'id' is missing", 1, "field 'id' is missing", Code.MISSING_FIELD),
    )
    assert lines(counts, 207) == [
        "  206 × malformed: not valid JSON at character …, for example: not valid JSON at character 0",
        "    1 × missing_field: field 'id' is missing",
    ]
    assert by_code(counts) == {Code.MALFORMED: 206, Code.MISSING_FIELD: 1}


def test_those_of_several_blocks_add_up():
    one, two = counted(["a 1", "b"]), counted(["b", "b", "a 2"])
    refused = Code.REFUSED_BY_TARGET
    assert merged((*one, *two)) == (Counted("b", 3, "b", refused), Counted("a …", 2, "a 1", refused))


def test_many_causes_stay_few_and_none_is_lost():
    counts = counted(f"reason {chr(97 + at)}" for at in range(26) for _ in range(at + 1))
    assert len(counts) == 20
    assert (counts[0].records, counts[-1].cause) == (26, OTHERS)
    assert sum(each.records for each in counts) == sum(range(27))
    again = merged((*counts, *counts))
    assert len(again) == 20
    assert (again[-1].cause, sum(each.records for each in again)) == (OTHERS, 2 * sum(range(27)))
    other = merged((*counts, *counted([malformed("z")])))
    assert by_code(other) == {Code.REFUSED_BY_TARGET: sum(range(27)), Code.MALFORMED: 1}, "the rest keeps its codes"


def test_letters_whose_reason_is_not_known_are_counted_too():
    assert lines(counted(["a"]), 3) == ["  1 × refused_by_target: a", "  2 × of an earlier start: their files say why"]


def test_a_receipt_keeps_them_in_the_ledger():
    receipt = Receipt(read=3, landed=1, dead_lettered=2, reasons=counted([malformed("a 1"), malformed("a 2")]))
    assert Receipt.from_json(receipt.to_json()) == receipt
    without = Receipt(read=1, landed=1)
    assert "reasons" not in without.to_json()
    assert Receipt.from_json(without.to_json()) == without


def test_a_receipt_of_a_landonce_without_codes_is_read():
    old = '{"read":2,"landed":1,"dead_lettered":1,"reasons":[["a …",1,"a 1"]]}'
    assert Receipt.from_json(old).reasons == (Counted("a …", 1, "a 1", Code.UNKNOWN),)


def test_a_reason_keeps_its_code_and_field_on_the_way_to_the_driver():
    reason = Reason("field 'a.b' is missing", Code.MISSING_FIELD, "a.b")
    for each in (pickle.loads(pickle.dumps(reason)), copy.deepcopy(reason), reason.reworded(str(reason))):
        assert (each, each.code, each.field) == ("field 'a.b' is missing", Code.MISSING_FIELD, "a.b")


def test_a_plug_in_that_gives_no_code_refused_the_record():
    assert Reason.of("no room").code is Code.REFUSED_BY_TARGET
    assert Reason.of(malformed("no room")).code is Code.MALFORMED


def test_a_code_that_this_landonce_does_not_know_is_unknown():
    assert [Code.of("late"), Code.of("nonsense"), Code.of(None)] == [Code.LATE, Code.UNKNOWN, Code.UNKNOWN]


def test_the_page_lists_every_code_with_an_example_of_it():
    page = (Path(__file__).parents[2] / "docs" / "dead-letters.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| (?:`+(.*?)`+|[^|]*) \|$", page, re.MULTILINE)
    assert [code for code, _ in rows] == [code.value for code in Code]
    said = (outcome for each in ALL for outcome in each.expected().values() if outcome.startswith("dead "))
    codes = {reason: code.split()[1] for code, _, reason in (outcome.partition(": ") for outcome in said)}
    shown = {example: code for code, example in rows if example in codes}
    assert len(shown) > 8, "most examples are cases of the corpus"
    assert shown == {example: codes[example] for example in shown}


def test_what_is_often_wrong_has_one_wording():
    assert (too_large(9, 5), too_large(9, 5).code) == ("record of 9 bytes exceeds max_record_bytes=5", Code.TOO_LARGE)
    assert (missing("a.b"), missing("a.b").field) == ("missing required field 'a.b'", "a.b")
    assert of_field("a", Reason("is odd", Code.INVALID_VALUE)).field == "a"
