"""`convert` where records change rows: every value becomes what it becomes in a record that is a row, in each form of a change."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from datetime import date, datetime, timezone
from typing import Any

import pyarrow as pa
import pytest

from landonce.config.source import Convert, RecordFormat
from landonce.read.changes import Changes
from landonce.read.convert import decode as decode_module
from landonce.read.decoding import Decode, Decoding, conversions_of, decoder_of, format_of
from landonce.read.schema.ddl import parse_schema
from landonce.read.schema.fields import Schema

TYPES = (
    *("BIGINT", "INT", "DOUBLE", "DECIMAL(9,2)", "BOOLEAN", "STRING", "BINARY"),
    *("TIMESTAMP", "TIMESTAMP(3)", "TIMESTAMP_NTZ", "DATE", "TIME"),
    *("ARRAY<INT>", "STRUCT<n: INT>", "MAP<STRING, BOOLEAN>"),
)
VALUES = (
    *("2", "2.0", "2.5", "1e2", "0", "1", "-0", "9223372036854775808", "1700000000", "1700000000250", "1699920000"),
    *('"2"', '"2.0"', '"2.50"', '"1"', '"true"', '"text"', '""', '"007"', '"aGk="', '"2026-11-18"', '"12:30:00"'),
    *('"2026-11-18T00:00:00Z"', '"2026-11-18T12:30:00.250+02:00"', '"1700000000"'),
    *("true", "null", "{}", '{"n": "2"}', '{"n": 2.5}', '["1", 2.0]', '["x"]', '{"a": "true", "b": 1}'),
)
NUMBER = re.compile('"?-?[0-9.e]+"?')
RULES = ("fit", {"default": {"empty": None}}, {"default": "fit", "fields": {"v": "strict"}})
FORMS = {
    "upsert": (Changes("upsert"), '{"id": 1, "v": %s}'),
    "operation": (Changes("operation"), '{"op": "u", "id": 1, "v": %s}'),
    "debezium": (Changes("debezium"), '{"op": "u", "before": {"id": 1, "v": "x"}, "after": {"id": 1, "v": %s}}'),
    "connect": (Changes("debezium"), '{"schema": {}, "payload": {"op": "c", "after": {"id": 1, "v": %s}}}'),
    "dms": (Changes("dms"), '{"metadata": {"operation": "insert"}, "data": {"id": 1, "v": %s}}'),
}


@pytest.fixture(autouse=True, scope="module")
def small_sample() -> Iterator[None]:
    before, decode_module._SAMPLE = decode_module._SAMPLE, 8
    yield
    decode_module._SAMPLE = before


def decoding(convert: Any, section: Any = "json", keys: Any = "json") -> Decoding:
    formats = [format_of(RecordFormat.model_validate(each)) for each in (section, keys)]
    return Decoding(*formats, convert=conversions_of(Convert.model_validate(convert)))


def changing(schema: str | Schema, convert: Any, how: Changes, **formats: Any) -> Decode:
    """A decoder of changes to rows with the identity `id`, which has not learned anything yet."""
    decoder_of.cache_clear()
    fields = parse_schema(schema) if isinstance(schema, str) else schema
    return decoder_of(fields, decoding(convert, **formats), ("id",), how)


class Keyed:
    """A record of which only the key is read."""

    def __init__(self, key: bytes | None) -> None:
        self._key = key

    def key(self) -> bytes | None:
        return self._key


def outcomes(decode: Decode, values: list[str | None], keys: list[bytes | None] | None = None) -> list[Any]:
    """For each record its row, or the reason."""
    messages: Any = [Keyed(each) for each in keys or [None] * len(values)]
    found = decode(pa.array([each if each is None else each.encode() for each in values], pa.binary()), messages)
    found.table.validate(full=True)
    rows = dict(zip(found.kept.tolist(), found.table.to_pylist(), strict=True))
    return [each for _, each in sorted({**rows, **dict(found.rejects)}.items())]


def fate(outcome: Any) -> Any:
    return "refused" if isinstance(outcome, str) else outcome["v"]


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_a_value_becomes_what_it_becomes_in_a_row(form: str, rule: Any) -> None:
    """Whatever stands beside it. A number for a DATE counts days in Debezium's envelopes, and is tried apart."""
    how, text = FORMS[form]
    for type_ in TYPES:
        schema = f"id BIGINT, v {type_}"
        decoder_of.cache_clear()
        of_rows = decoder_of(parse_schema(schema), decoding(rule))
        days = type_ == "DATE" and how.mode == "debezium"
        values = [each for each in VALUES if not (days and NUMBER.fullmatch(each))]
        expected = [fate(each) for each in outcomes(of_rows, [FORMS["upsert"][1] % each for each in values])]
        found = outcomes(changing(schema, rule, how), [text % each for each in values])
        assert [fate(each) for each in found] == expected, type_


@pytest.mark.parametrize("form", FORMS)
def test_rows_are_known_by_converted_values(form: str) -> None:
    how, text = FORMS[form]
    records = [(text % "1").replace('"id": 1', f'"id": {each}') for each in ("1", '"1"', "1.0", '"x"')]
    found = outcomes(changing("id BIGINT NOT NULL, v INT", "fit", how), [text % "1" for _ in range(16)] + records)[16:]
    assert [each["id"] for each in found[:3]] == [1, 1, 1]
    assert "is not a valid BIGINT" in found[3]


DEBEZIUM = FORMS["debezium"][0]
DMS = FORMS["dms"][0]
UNSENT = "__debezium_unavailable_value"


def test_an_update_does_not_move_a_row_whose_identity_is_written_in_two_ways() -> None:
    records = [
        '{"op": "u", "before": {"id": "1"}, "after": {"id": 1.0}}',
        '{"op": "u", "before": {"id": "1"}, "after": {"id": 2}}',
    ]
    row, refused = outcomes(changing("id BIGINT", "fit", DEBEZIUM), records)
    assert row == {"_op": "U", "id": 1}
    assert refused == "field 'id' is part of the identity and changed in place"


def test_a_deletion_needs_only_its_identity() -> None:
    records = [
        '{"op": "d", "before": {"id": "1", "v": "x"}, "after": null}',
        '{"op": "u", "before": null, "after": {"id": "1", "v": "x"}}',
    ]
    deleted, refused = outcomes(changing("id BIGINT, v INT NOT NULL", "fit", DEBEZIUM), records)
    assert deleted == {"_op": "D", "id": 1, "v": None}
    assert refused == "field 'after.v' is not a valid INT"
    deleted, refused = outcomes(
        changing("id BIGINT, v INT NOT NULL", "fit", Changes("operation")),
        ['{"op": "d", "id": 1.0, "v": "x"}', '{"op": "u", "id": 1.0, "v": "x"}'],
    )
    assert deleted == {"_op": "D", "id": 1, "v": None}
    assert refused == "field 'v' is not a valid INT"


@pytest.mark.parametrize(
    ("rule", "written", "day"),
    [
        ("strict", "20410", date(2025, 11, 18)),
        ("fit", "20410", date(2025, 11, 18)),
        ("fit", "-1", date(1969, 12, 31)),
        ("fit", '"2025-11-18"', date(2025, 11, 18)),
        ("fit", '"2025-11-18T00:00:00Z"', date(2025, 11, 18)),
        ({"fields": {"v": {"epoch": "s"}}}, "86400", date(1970, 1, 2)),
        ({"fields": {"w": "fit"}}, "20410", date(2025, 11, 18)),
    ],
)
def test_debeziums_dates_count_days_unless_the_file_says_otherwise(rule: Any, written: str, day: date) -> None:
    for form in ("debezium", "connect"):
        how, text = FORMS[form]
        (row,) = outcomes(changing("id BIGINT, v DATE, w INT", rule, how), [text % written])
        assert row["v"] == day


def test_a_field_that_stays_strict_keeps_its_integers_as_times() -> None:
    """Beside one that is converted, in the same envelope."""
    schema = parse_schema("id BIGINT, v TIMESTAMP(3), w INT")
    record = '{"op": "c", "after": {"id": 1, "v": 1000, "w": "2"}}'
    (row,) = outcomes(changing(schema, {"fields": {"w": "fit"}}, DEBEZIUM), [record])
    assert (row["v"], row["w"]) == (datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc), 2)


def test_limits_of_the_target_hold_for_converted_values() -> None:
    fields = parse_schema("id BIGINT, v STRING").fields
    schema = Schema((fields[0], replace(fields[1], longest=2)))
    for how, text in FORMS.values():
        fits, refused = outcomes(changing(schema, "fit", how), [text % "12", text % "123"])
        assert fits["v"] == "12"
        assert refused == "field 'v' is longer than 2 characters"


@pytest.mark.parametrize(
    ("type_", "key", "meant"),
    [
        ("BIGINT", b"42", 42),
        ("BIGINT", b'"42"', 42),
        ("BIGINT", b"42.0", 42),
        ("BIGINT", b'{"id": "42"}', 42),
        ("BIGINT", b"4.5", "field 'id' has a fraction, which BIGINT cannot hold"),
        ("BOOLEAN", b"1", True),
        ("BOOLEAN", b'"False"', False),
        ("STRING", b"42", "42"),
        ("STRING", b'{"id": 42}', "42"),
        ("STRING", b'{"id": 4.20}', "4.20"),
        ("STRING", b"4.20", "4.20"),
        ("STRING", b'"open', '"open'),
        ("STRING", b"", ""),
        ("STRING", b"\xff", "a tombstone whose key is not valid UTF-8"),
        ("DATE", b"2026-11-18", date(2026, 11, 18)),
        ("DATE", b"2026-11-18T00:00:00Z", date(2026, 11, 18)),
        ("DATE", b"1699920000", date(2023, 11, 14)),
        ("DATE", b"soon", "field 'id' is not a valid DATE"),
        ("TIMESTAMP", b"1700000000.5", datetime(2023, 11, 14, 22, 13, 20, 500_000, tzinfo=timezone.utc)),
        ("BINARY", b"1234", b"\xd7\x6d\xf8"),
    ],
)
def test_the_key_of_a_tombstone_is_converted_like_the_identity(type_: str, key: bytes, meant: Any) -> None:
    """Each alone and among others that are read in other ways."""
    for keys in ([key], [b'{"id": null}', key, b"\xfe", None]):
        decode = changing(f"id {type_}", "fit", Changes("upsert"))
        found = outcomes(decode, [None] * len(keys), keys)[keys.index(key)]
        assert found == (meant if isinstance(found, str) else {"_op": "D", "id": meant})
        assert isinstance(found, str) == (isinstance(meant, str) and " " in meant)


LINES = {"csv": {"columns": ["id", "v"]}}


@pytest.mark.parametrize("rule", ["strict", "fit"])
def test_a_line_is_the_new_row_of_its_identity(rule: str) -> None:
    decode = changing("id BIGINT, v INT", rule, Changes("upsert"), section=LINES)
    found = outcomes(decode, ["1,2", "1,2.0", ",3", None], [b"x", b"x", b"x", b"1"])
    assert found[0] == {"_op": "U", "id": 1, "v": 2}
    assert found[1] == ({"_op": "U", "id": 1, "v": 2} if rule == "fit" else "field 'v' is not a valid INT")
    assert found[2] == "missing identity field 'id'"
    assert found[3] == {"_op": "D", "id": 1, "v": None}


def test_keys_that_are_lines_are_converted_and_keys_with_types_are_not() -> None:
    upserts = Changes("upsert")
    (found,) = outcomes(changing("id BIGINT", "fit", upserts, keys={"csv": {"columns": ["id"]}}), [None], [b"1.0"])
    assert found == {"_op": "D", "id": 1}
    framed: Any = {"json": {"framing": "confluent"}}
    (found,) = outcomes(changing("id BIGINT", "fit", upserts, keys=framed), [None], [b'\0\0\0\0\1{"id": "1"}'])
    assert found == {"_op": "D", "id": 1}


@pytest.mark.parametrize(
    ("how", "record"),
    [
        (DEBEZIUM, '{"op": "u", "before": {"id": "1", "v": "2"}, "after": {"id": 1, "v": 3.0}}'),
        (
            DMS,
            '{"metadata": {"operation": "update"}, "before-image": {"id": "1", "v": "2"}, "data": {"id": 1, "v": 3.0}}',
        ),
    ],
)
def test_the_row_before_a_change_is_converted_too(how: Changes, record: str) -> None:
    (row,) = outcomes(changing("id BIGINT, v INT", "fit", replace(how, before=True)), [record])
    assert row == {"_op": "U", "id": 1, "v": 3, "_before": {"id": 1, "v": 2}}


@pytest.mark.parametrize("rule", ["strict", "fit"])
@pytest.mark.parametrize(("type_", "mark"), [("STRING", UNSENT), ("BINARY", b64encode(UNSENT.encode()).decode())])
def test_a_value_that_debezium_did_not_send_is_refused(type_: str, mark: str, rule: str) -> None:
    """JSON holds bytes in Base64, those of the mark, too."""
    (refused,) = outcomes(changing(f"id BIGINT, v {type_}", rule, DEBEZIUM), [FORMS["debezium"][1] % f'"{mark}"'])
    assert refused == "field 'v' was not sent by Debezium"


def test_conversions_are_part_of_what_decides_rows() -> None:
    assert decoding("fit").decisive() != decoding("strict").decisive()
