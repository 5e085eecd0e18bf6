"""Texts for PostgreSQL's own types: which are a value, which are one and the same, and numbers of any size. What PostgreSQL makes of the
bytes: `test_sql_types`."""

from __future__ import annotations

import io
import json
from decimal import Decimal, localcontext

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Numeric

from landonce.read.formats.avro.decode import Avro
from landonce.read.schema.fields import Digits, Schema
from landonce.sinks.sql.forms import ANY_NUMBER, Parsed, array_in_postgres, in_postgres, one_spelling
from landonce.sinks.sql.types import field_of

SAME = {
    "numeric": [["1.50", "1.5", "15e-1", "+01.5"], ["0", "-0", "0.00", "0e5"], ["1e5", "100000"]],
    "interval": [["P1Y2M", "P14M", "1 year 2 mons"], ["PT25H", "25:00:00"], ["P1D", "1 day", "P1DT0S"], ["PT-1.5S", "-00:00:01.5"]],
    "timetz": [["12:00:00.50+02:00", "12:00:00.5+02"], ["00:00Z", "00:00:00+00", "00:00-00:00"]],
    "int4range": [["[1,4]", "[1,5)", "(0,4]"], ["empty", "(1,2)", "[1,1)"], ["(,)", "[,]"]],
    "numrange": [["[1.50,2)", "[1.5,2.0)"], ["(1,1]", "empty"]],
    "daterange": [["[2026-01-31,2026-02-28]", "(2026-01-30,2026-03-01)"]],
    "tstzrange": [["[2026-01-01T02:00+02:00,)", '["2026-01-01 00:00:00+00",)', "[2026-01-01 00:00,]"]],
}  # fmt: skip
NONE = {
    "numeric": ["", ".", "NaN", "Infinity", "1_0", " 1", "1e131072", "1e-16384", "1e999999999999999999999", "١"],
    "interval": ["", " ", "P", "PT", "P1YT", "P1.5D", "1", "P99999999999Y", "P999999999Y", "PT0.0000001S", "1 week"],
    "timetz": ["12:00", "24:00Z", "12:60Z", "12:00+16", "12:00:00.0000001Z"],
    "int4range": ["", "[1,2", "1,2", "[2,1]", "[1,2147483647]", "[ 1,2]", "[1_0,]", "[a,]", "[1,2,3]", '["",1]'],
    "int8range": ["[9223372036854775808,]"],
    "numrange": ["[NaN,]", "[1e999999999,)"],
    "daterange": ["[5,6)", "[20260131,)", "[2026-02-30,)", "(,9999-12-31]"],
    "tsrange": ["[today,)", "[infinity,)", "[0001-01-01T00:00+01:00,)"],
}


@pytest.mark.parametrize("kind", SAME)
def test_spellings_of_one_value(kind: str) -> None:
    for texts in SAME[kind]:
        assert len({one_spelling(each, kind) for each in texts}) == 1, texts
        if kind not in ("numeric", "numrange"):  # which keep the zeros after the point
            assert len({in_postgres(each, kind) for each in texts}) == 1, texts
    assert len({one_spelling(each[0], kind) for each in SAME[kind]}) == len(SAME[kind])
    good = [each for texts in SAME[kind] for each in texts]
    assert Parsed(kind)(pa.array([*good, None])).null_count == len(good) + 1


@pytest.mark.parametrize("kind", NONE)
def test_what_is_no_value(kind: str) -> None:
    assert Parsed(kind)(pa.array(NONE[kind])).to_pylist() == [f"is not a valid {kind.upper()}"] * len(NONE[kind])
    assert [one_spelling(each, kind) for each in NONE[kind]] == NONE[kind]


@given(st.decimals(-(10**40), 10**40, places=50) | st.decimals(-9, 9) | st.integers(-(10**60), 10**60).map(Decimal))
def test_numbers_of_any_size(number: Decimal) -> None:
    """As PostgreSQL reads them: groups of four digits."""
    text = str(number)
    sent = in_postgres(text, "numeric")
    count, weight, sign, scale = (int.from_bytes(sent[at : at + 2], "big", signed=True) for at in (0, 2, 4, 6))
    groups = [int.from_bytes(sent[at : at + 2], "big") for at in range(8, len(sent), 2)]
    assert len(groups) == count
    with localcontext() as context:
        context.prec = 2000
        value = sum(Decimal(each).scaleb(4 * (weight - at)) for at, each in enumerate(groups))
        assert (-value if sign else value) == number
    assert scale == max(0, -int(number.as_tuple().exponent))
    assert Decimal(one_spelling(text, "numeric")) == number


def test_digits_before_and_after_the_point() -> None:
    texts = ["1.5", "1.500", "15", "0.5", "1e1", "1e2", "0.125e1", "0", "007", None, "x", "-99.99", "99.999"]
    found = Digits(2, 2)(pa.array(texts)).to_pylist()
    assert [text for text, problem in zip(texts, found, strict=True) if problem] == ["1e2", "x", "99.999"]
    assert Digits(0, 40)(pa.array(["0.5", "-0.5", "1", "0"])).to_pylist() == [None, None, "has too many digits", None]
    long = "9" * 300 + "." + "9" * 300
    assert ANY_NUMBER(pa.array([long, "9" * 131_072])).null_count == 2
    assert ANY_NUMBER(
        pa.array(["9" * 131_073, "1." + "0" * 17_000, "0." + "0" * 16_383 + "1"])
    ).is_valid().to_pylist() == [True, False, True]


def test_arrays() -> None:
    assert array_in_postgres([], "text", 7) == bytes(8) + bytes([0, 0, 0, 7])
    head = [1, 1, 7, 2, 1]
    elements = (2).to_bytes(4, "big") + b"ab" + b"\xff" * 4
    assert array_in_postgres(["ab", None], "text", 7) == b"".join(each.to_bytes(4, "big") for each in head) + elements


def test_the_longest_number_has_a_form() -> None:
    """It has more groups of digits than a signed count of two bytes."""
    sent = in_postgres("9" * 131_072, "numeric")
    assert (int.from_bytes(sent[:2], "big"), len(sent)) == (32_768, 8 + 2 * 32_768)


def test_numbers_of_a_union_land_in_a_column_of_numbers() -> None:
    """Without the name of their branch, which JSON text has."""
    schema = {"type": "record", "name": "R", "fields": [{"name": "x", "type": ["null", "long", "string", "double"]}]}
    bodies = []
    for each in (None, 5, "6.50", "x", 1.5):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(schema), {"x": each})
        bodies.append(out.getvalue())
    columns = Schema((field_of("x", Numeric(), "postgresql", required=False),))
    found = Avro((json.dumps(schema),)).decoder(columns, max_record_bytes=2**20).decode(pa.array(bodies, pa.binary()))
    assert found.table.column("x").to_pylist() == [None, "5", "6.50"]
    assert [each.index for each in found.rejects] == [3, 4]
