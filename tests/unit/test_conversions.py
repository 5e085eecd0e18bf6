"""`convert: fit`: every cell of the tables in docs/conversions.md, an oracle for all other values, and guesses that change no row."""

from __future__ import annotations

import json
import pickle
import re
import time
from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from datetime import time as time_of_day
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from landonce.config.source import Convert, RecordFormat
from landonce.errors import ConfigError
from landonce.read.convert import decode as decode_module
from landonce.read.convert.decode import Conversions
from landonce.read.decoding import Decode, Decoding, conversions_of, decoder_of, format_of
from landonce.read.formats import Decoded
from landonce.read.schema.ddl import parse_schema
from landonce.sinks.pipeline_file import parse

PAGE = (Path(__file__).parents[2] / "docs" / "conversions.md").read_text()
REFUSED = "—"
FIT = conversions_of(Convert.model_validate("fit"))
CSV = {"csv": {"columns": ["a"]}}


@pytest.fixture(autouse=True, scope="module")
def small_sample() -> Iterator[None]:
    """What is decoded exactly before anything is guessed."""
    before, decode_module._SAMPLE = decode_module._SAMPLE, 8
    yield
    decode_module._SAMPLE = before


def decoder(schema: str, convert: Any = "fit", section: Any = "json") -> Decode:
    """A decoder that has not learned anything yet."""
    decoder_of.cache_clear()
    format_ = format_of(RecordFormat.model_validate(section))
    decoding = Decoding(format_, convert=conversions_of(Convert.model_validate(convert)))
    return decoder_of(parse_schema(schema), pickle.loads(pickle.dumps(decoding)))


def decode(decode_: Decode, *records: str | bytes) -> Decoded:
    values = [each if isinstance(each, bytes) else each.encode() for each in records]
    decoded = decode_(pa.array(values, pa.binary()), [])
    decoded.table.validate(full=True)
    assert len(decoded.kept) + len(decoded.rejects) == len(records)
    return decoded


def outcomes(decoded: Decoded) -> list[Any]:
    """For each record its row, or the reason."""
    rows = dict(zip(decoded.kept.tolist(), decoded.table.to_pylist(), strict=True))
    return [each for _, each in sorted({**rows, **dict(decoded.rejects)}.items())]


# The tables of the page.


def tables(first: str) -> Iterator[tuple[list[str], list[str]]]:
    """The header and the cells of each line, of the tables whose first column has this name."""
    header: list[str] | None = None
    for line in PAGE.splitlines():
        cells = [each.strip() for each in line.strip("|").split(" | ")] if line.startswith("| ") else []
        if not cells:
            header = header if line.startswith("|---") else None
        elif header is None:
            header = cells
        elif header[0] == first:
            yield header, cells


def cells_of(first: str) -> list[tuple[str, str, str, bool]]:
    """What a record holds, the type, what lands, and whether strict takes it."""
    return [
        (cells[0].strip("`"), type_, cell.strip("*").strip("`"), cell.startswith("**"))
        for header, cells in tables(first)
        for type_, cell in zip(header[1:], cells[1:], strict=True)
    ]


def shown(value: Any) -> str:
    """A value as the page writes it."""
    if isinstance(value, (date, datetime, time_of_day)):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, (Decimal, UUID)):
        return str(value)
    return value.hex() if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False)


def landed(decode_: Decode, record: str, often: int = 1) -> str:
    """What the record becomes, the same for each of its copies: the first ones are decoded exactly, the others by what was learned."""
    decoded = decode(decode_, *[record] * often)
    if decoded.rejects:
        assert len(decoded.rejects) == often
        assert len({each.reason for each in decoded.rejects}) == 1
        return REFUSED
    (value,) = {shown(each) for each in decoded.table.column(0).to_pylist()}
    return value


@pytest.mark.parametrize(("text", "type_", "cell", "bold"), cells_of("the record holds"))
def test_a_json_value(text: str, type_: str, cell: str, bold: bool) -> None:
    record = f'{{"a":{text}}}'
    assert landed(decoder(f"a {type_}"), record, often=12) == cell
    assert landed(decoder(f"a {type_}", "strict"), record) == (cell if bold else REFUSED)


@pytest.mark.parametrize(("text", "type_", "cell", "bold"), cells_of("the value"))
def test_a_csv_value(text: str, type_: str, cell: str, bold: bool) -> None:
    assert landed(decoder(f"a {type_}", section=CSV), text) == cell
    assert landed(decoder(f"a {type_}", "strict", CSV), text) == (cell if bold else REFUSED)


@pytest.mark.parametrize(("rule", "text", "type_", "cell"), [cells for _, cells in tables("rule")])
def test_an_option(rule: str, text: str, type_: str, cell: str) -> None:
    convert = {"fields": {"a": yaml.safe_load(rule.strip("`"))}}
    assert landed(decoder(f"a {type_}", convert), f'{{"a":{text.strip("`")}}}', often=12) == cell.strip("`")


def test_the_page_has_all_of_its_tables() -> None:
    assert len(cells_of("the record holds")) > 280
    assert len(cells_of("the value")) > 90
    assert len(list(tables("rule"))) > 20


# Every place of a record.

NESTED = (
    "s STRUCT<n: INT, t: STRUCT<b: BOOLEAN>>, l ARRAY<BIGINT>, m MAP<STRING, DATE>, ls ARRAY<STRUCT<p: DECIMAL(9,2)>>"
)


def test_every_place_is_converted() -> None:
    record = (
        '{"s":{"n":"2","t":{"b":"true"}},"l":["1",2.0,null,1e2],"m":{"x":1699920000,"y":"2026-11-18"},'
        '"ls":[{"p":"1.5"},{"p":2},null]}'
    )
    row = {
        "s": {"n": 2, "t": {"b": True}},
        "l": [1, 2, None, 100],
        "m": [("x", date(2023, 11, 14)), ("y", date(2026, 11, 18))],
        "ls": [{"p": Decimal("1.50")}, {"p": Decimal("2.00")}, None],
    }
    nothing = {"s": None, "l": None, "m": None, "ls": None}
    found = decode(decoder(NESTED), *[record, "{}"] * 10)
    assert found.table.to_pylist() == [row, nothing] * 10


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ('{"s":{"n":2.5}}', "field 's.n' has a fraction, which INT cannot hold"),
        ('{"s":{"t":{"b":"yes"}}}', "field 's.t.b' is not a valid BOOLEAN"),
        ('{"l":[1,"x"]}', "field 'l[]' is not a valid BIGINT"),
        ('{"l":["9223372036854775808"]}', "field 'l[]' is out of the range of BIGINT"),
        ('{"m":{"k":1}}', "field 'm[]' is a number, and its unit is not known: declare `epoch`"),
        ('{"m":{"k":1700000000}}', "field 'm[]' has a time of day, which DATE cannot hold"),
        ('{"ls":[{"p":"1.234"}]}', "field 'ls[].p' does not fit DECIMAL(9,2)"),
        ('{"ls":[{"p":{}}]}', "field 'ls[].p' should be DECIMAL(9,2) but is an object"),
        ('{"l":"1"}', "field 'l' should be ARRAY<BIGINT> but is a string"),
        ('{"ls":[[]]}', "field 'ls[]' should be STRUCT<p: DECIMAL(9,2)> but is an array"),
    ],
)
def test_a_reason_names_the_place_and_the_neighbours_land(record: str, reason: str) -> None:
    good = '{"l":["7"]}'
    for often in (1, 20):
        found = decode(decoder(NESTED), *[good] * often, record, good)
        assert [(each.index, each.reason) for each in found.rejects] == [(often, reason)]
        assert found.table.column("l").to_pylist() == [[7]] * (often + 1)


def test_a_number_that_no_double_holds_is_text_only_where_a_rule_says_so() -> None:
    schema = "t STRING, l ARRAY<STRING>, s STRUCT<t: STRING, j: JSON>, j JSON, n BIGINT, x DOUBLE, y DOUBLE"
    convert = {"fields": {"t": "fit", "l": "fit", "s.t": "fit", "n": "fit", "x": "fit"}}
    long = "9" * 400
    row = {"t": "1e400", "l": ["-1E+0400", long, "1"], "s": {"t": f"{long}.5", "j": "7"}, "j": "[1]", "n": 2, "x": 2.0}
    good = f'{{"t": 1e400 ,"l":[-1E+0400, {long},1],"s":{{"t":{long}.5,"j":7}},"j":[1],"n":"2","x":"2","y":9007199254740992}}'
    bad = {
        '{"n":1e400}': "field 'n' is out of the range of BIGINT",
        '{"x":1e400}': "field 'x' is not a finite number of its type",
        '{"y":1e400}': "holds a number beyond the range of a double",
        '{"z":1e400}': "holds a number beyond the range of a double",
        '{"j":1e400}': "holds a number beyond the range of a double",
        '{"t":{"x":1e400}}': "holds a number beyond the range of a double",
        '{"s":{"j":1e400}}': "field 's.j' holds a number beyond the range of a double",
    }
    malformed = ['{"t":1e400x}', '{"t":01e400}', '{"t":1.e400}', '{"t":1e400,}', '{"t":--1e400}', '{"t":1e400e400}']
    for often in (1, 20):
        decode_ = decoder(schema, convert)
        found = outcomes(decode(decode_, *[good] * often, *bad, *malformed, good))
        assert found[0] == found[-1] == {**row, "y": 9007199254740992.0}
        assert found[often : often + len(bad)] == list(bad.values())
        assert all(isinstance(each, str) for each in found[often + len(bad) : -1])


def test_only_the_named_fields_are_converted() -> None:
    convert = {"fields": {"a": "fit", "s": "fit", "s.y": "strict", "l[].z": {"empty": None}}}
    decode_ = decoder("a INT, b INT, s STRUCT<x: INT, y: INT>, l ARRAY<STRUCT<z: INT>>", convert)
    good = ['{"a":"1"}', '{"s":{"x":"1","y":2}}', '{"l":[{"z":""}]}']
    bad = ['{"b":"1"}', '{"s":{"y":"1"}}']
    found = decode(decode_, *good, *bad)
    assert found.kept.tolist() == [0, 1, 2]
    assert [each.reason for each in found.rejects] == [
        "field 'b' should be INT but is a string",
        "field 's.y' should be INT but is a string",
    ]


def test_names_in_any_case_and_aliases() -> None:
    schema = parse_schema("Id INT")
    folding = type(schema)(schema.fields, fold_case=True)
    decode_ = decoder_of(folding, Decoding(convert=conversions_of(Convert.model_validate({"fields": {"ID": "fit"}}))))
    assert decode(decode_, *['{"iD":"2"}', '{"ID":2}'] * 10).table.column(0).to_pylist() == [2, 2] * 10


def test_what_is_required_must_be_there_after_the_conversion() -> None:
    convert = {"default": {"empty": None}}
    found = decode(decoder("a INT NOT NULL, s STRUCT<b: INT NOT NULL>", convert), '{"a":""}', '{"a":"1","s":{"b":""}}')
    assert [each.reason for each in found.rejects] == ["missing required field 'a'", "field 's' holds a null"]


@pytest.mark.parametrize(
    ("type_", "shape"),
    [
        ("BINARY", "%s"),
        ("ARRAY<BINARY>", "[%s]"),
        ("STRUCT<b: BINARY>", '{"b":%s}'),
        ("MAP<STRING, BINARY>", '{"k":%s}'),
    ],
)
def test_an_empty_text_is_null_also_in_bytes_whatever_came_before(type_: str, shape: str) -> None:
    empty, full = ('{"a":' + shape % each + "}" for each in ('""', '"aGk="'))
    convert = {"default": {"empty": None}}
    (fresh,) = decode(decoder(f"a {type_}", convert), empty).table.to_pylist()
    learned = decoder(f"a {type_}", convert)
    decode(learned, *[full] * 20)
    assert decode(learned, *[full] * 20, empty).table.to_pylist()[-1] == fresh
    assert "None" in str(fresh)


def test_confluents_framing_and_record_columns() -> None:
    framed = decoder("a INT", section={"json": {"framing": "confluent"}})
    assert decode(framed, b'\0\0\0\0\x07{"a":"2"}').table.column(0).to_pylist() == [2]

    class Sent:
        def key(self) -> bytes:
            return b"k"

    values = pa.array([b'{"a":"2"}'], pa.binary())
    assert decoder("_key STRING, a INT")(values, [Sent()]).table.to_pylist() == [{"_key": "k", "a": 2}]  # type: ignore[list-item]


# An oracle, written without the rules' own code.

NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?")
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def expected(text: str, type_: str) -> Any:
    """What a JSON value becomes, or REFUSED."""
    value = json.loads(text, parse_int=lambda each: ("number", each), parse_float=lambda each: ("number", each))
    if value is None:
        return None
    literal = value[1] if isinstance(value, tuple) else value if isinstance(value, str) else None
    number = Fraction(literal) if literal is not None and NUMBER.fullmatch(literal) else None
    quoted = isinstance(value, str)
    if type_ == "STRING":
        return value if quoted else text
    if type_ == "BOOLEAN":
        if isinstance(value, bool):
            return value
        if quoted:
            return {"true": True, "false": False, "1": True, "0": False}.get(value.lower(), REFUSED)
        return bool(number) if number in (0, 1) else REFUSED
    if number is None:
        return REFUSED
    if type_ in ("BIGINT", "TINYINT"):
        half = 2**63 if type_ == "BIGINT" else 2**7
        return int(number) if number.denominator == 1 and -half <= number < half else REFUSED
    if type_ == "DECIMAL(9,2)":
        whole = number * 100
        return Decimal(int(whole)) / 100 if whole.denominator == 1 and abs(whole) < 10**9 else REFUSED
    if type_ == "DOUBLE":
        nearest = float(literal or "")
        exact = set(literal or "") & set(".eE") or Fraction(nearest) == number
        return nearest if exact and abs(nearest) != float("inf") else REFUSED
    assert type_ == "TIMESTAMP"
    if quoted:
        return REFUSED
    start, end = datetime(1980, 1, 1, tzinfo=timezone.utc), datetime(2500, 1, 1, tzinfo=timezone.utc)
    for digits in (0, 3, 6, 9):
        seconds = number / 10**digits
        if (start - EPOCH) // timedelta(seconds=1) <= seconds < (end - EPOCH) // timedelta(seconds=1):
            micros = seconds * 10**6
            return EPOCH + timedelta(microseconds=int(micros)) if micros.denominator == 1 else REFUSED
    return REFUSED


digits = st.text("0123456789", max_size=22)
numbers = st.builds(
    lambda sign, whole, point, exponent: sign + whole + point + exponent,
    st.sampled_from(["", "", "-"]),
    st.sampled_from(["0", "1", "2", "100", "127", "128", "9223372036854775807", "9223372036854775808"])
    | st.integers(0, 10**20).map(str)
    | st.integers(3 * 10**8, 2 * 10**10).map(str),
    st.sampled_from(["", "", ".0", ".00"]) | digits.map(lambda each: "." + each if each else ""),
    st.sampled_from(["", "", "e2", "E-2", "e+0", "e-30", "e30"]),
).filter(lambda each: abs(float(each)) < 1e300)
odd = st.sampled_from(["", " 2", "+2", "007", "0x10", "２", "NaN", "TRUE", "fAlse", "1e999", "1_0", ".5", "5.", "-"])
strings = (numbers | odd | st.text(max_size=4)).map(lambda each: json.dumps(each, ensure_ascii=False))
escaped = numbers.map(lambda each: '"' + "".join(f"\\u{ord(char):04x}" for char in each) + '"')
others = st.sampled_from(["true", "false", "null", "{}", "[ ]", '{"a": [1, "x"]}'])
texts = numbers | strings | escaped | others
TYPES = ["BIGINT", "TINYINT", "DOUBLE", "DECIMAL(9,2)", "BOOLEAN", "STRING", "TIMESTAMP"]


def is_strict_decimal(text: str) -> bool:
    """DECIMAL takes more from strings, as strict does."""
    return text.startswith('"') and not NUMBER.fullmatch(json.loads(text))


@given(st.lists(texts, min_size=1, max_size=30), st.sampled_from(TYPES))
@example(["1e-400", "-0", "-0.0", '"-0"', "0"], "STRING")
@example(["9007199254740993", '"9007199254740993"', "9007199254740993.0", "9223372036854775808"], "DOUBLE")
def test_the_oracle(drawn: list[str], type_: str) -> None:
    found = outcomes(decode(decoder(f"a {type_}"), *(f'{{"a":{each}}}' for each in drawn)))
    for text, outcome in zip(drawn, found, strict=True):
        if type_ == "DECIMAL(9,2)" and is_strict_decimal(text):
            continue
        wanted = expected(text, type_)
        if wanted == REFUSED and not (isinstance(wanted, str) and type_ == "STRING" and isinstance(outcome, dict)):
            assert isinstance(outcome, str), (text, outcome)
            assert "'a'" in outcome
        else:
            assert isinstance(outcome, dict), (text, outcome)
            assert repr(outcome["a"]) == repr(wanted) or outcome["a"] == wanted, text


MIXED = "id BIGINT, name STRING, at TIMESTAMP, ok BOOLEAN, price DECIMAL(9,2), x DOUBLE, s STRUCT<n: INT>, l ARRAY<INT>"
records = st.builds(
    lambda *parts: "{" + ",".join(f'"{name}":{text}' for name, text in zip(MIXED_NAMES, parts, strict=True)) + "}",
    *[texts] * 6,
    texts.map(lambda each: f'{{"n":{each}}}'),
    st.lists(texts, max_size=3).map(lambda each: f"[{','.join(each)}]"),
)
MIXED_NAMES = ["id", "name", "at", "ok", "price", "x", "s", "l"]
LIKELY = [
    '{"id":1,"name":"n","at":"2026-11-18T00:00:00Z","ok":true,"price":1.5,"x":0.5,"s":{"n":1},"l":[1]}',
    '{"id":"1","name":7,"at":1700000000123,"ok":"true","price":"1.5","x":"0.5","s":{"n":"1"},"l":["1"]}',
    '{"id":1.0,"name":0,"at":1700000000.5,"ok":1,"price":"","x":1,"s":{"n":""},"l":[1.0]}',
]


@settings(max_examples=settings.default.max_examples // 3)
@given(
    st.lists(st.sampled_from(LIKELY), min_size=1, max_size=3),
    st.lists(records, max_size=6),
    st.lists(records, min_size=1, max_size=12),
    st.sampled_from(["fit", {"default": {"empty": None}}]),
)
def test_what_was_learned_changes_no_row(likely: list[str], seen: list[str], drawn: list[str], convert: Any) -> None:
    learned = decoder(MIXED, convert)
    decode(learned, *[*likely, *seen] * (10 // len([*likely, *seen]) + 1))
    fresh = outcomes(decode(decoder(MIXED, convert), *drawn))
    assert repr(outcomes(decode(learned, *drawn, *likely))[: len(drawn)]) == repr(fresh)


@pytest.mark.parametrize(
    ("type_", "seen", "text", "cell"),
    [
        ("STRING", "7", "-0", '"-0"'),
        ("STRING", "7", "0", '"0"'),
        ("STRING", '"7"', "7", '"7"'),
        ("TIMESTAMP(3)", '"2026-11-18"', "1700000000", "2023-11-14T22:13:20Z"),
        ("TIMESTAMP(3)", "1700000000123", '"2026-11-18"', "2026-11-18T00:00:00Z"),
        ("BIGINT", "7", '"007"', REFUSED),
        ("BIGINT", '"7"', "2.00000000000000000001", REFUSED),
        ("DOUBLE", '"7"', "9007199254740993", REFUSED),
        ("DECIMAL(9,2)", "7", '"1e-3"', REFUSED),
        ("BOOLEAN", "1", "2", REFUSED),
    ],
)
def test_a_guess_that_is_wrong(type_: str, seen: str, text: str, cell: str) -> None:
    decode_ = decoder(f"a {type_}")
    decode(decode_, *[f'{{"a":{seen}}}'] * 20)
    assert landed(decode_, f'{{"a":{text}}}') == cell


@given(st.lists(texts, min_size=1, max_size=20), st.sampled_from([*TYPES, "DATE", "FLOAT", "TIME", "UUID", "BINARY"]))
def test_what_strict_takes_fit_takes_as_the_same_value(drawn: list[str], type_: str) -> None:
    records = [f'{{"a":{each}}}' for each in drawn]
    strict, fit = (outcomes(decode(decoder(f"a {type_}", each), *records)) for each in ("strict", "fit"))
    for one, other in zip(strict, fit, strict=True):
        if isinstance(one, dict):
            assert repr(one) == repr(other)


@given(st.lists((numbers | odd).filter(lambda each: '"' not in each), min_size=1, max_size=20), st.sampled_from(TYPES))
def test_the_same_for_csv(drawn: list[str], type_: str) -> None:
    strict, fit = (outcomes(decode(decoder(f"a {type_}", each, CSV), *drawn)) for each in ("strict", "fit"))
    for one, other in zip(strict, fit, strict=True):
        if isinstance(one, dict):
            assert repr(one) == repr(other)


@pytest.mark.parametrize("type_", ["BIGINT", "DOUBLE", "DECIMAL(38,10)", "BOOLEAN", "TIMESTAMP", "DATE", "TIME"])
def test_no_number_takes_more_time_or_memory_than_its_text(type_: str) -> None:
    long = "9" * 1_000_000
    hostile = ["1e999999999", "1e-999999999", "1e" + "9" * 5000, long, "0." + long, f"{long}e-{len(long)}", "-1e308"]
    started = time.process_time()
    convert = {"default": {"epoch": "s"}}
    found = decode(decoder(f"a {type_}", convert), *(f'{{"a":"{each}"}}' for each in hostile))
    assert time.process_time() - started < 10
    assert type_ == "DOUBLE" or not len(found.kept)
    assert all(len(each.reason) < 100 for each in found.rejects)


@pytest.mark.parametrize("type_", [*TYPES, "UUID", "BINARY", "DATE", "TIME", "STRUCT<x: INT>", "ARRAY<INT>"])
def test_a_reason_holds_no_content(type_: str) -> None:
    secrets = ['"hunter2!"', '{"hunter2!":"hunter2!"}', '["hunter2!"]', '"7777777.77777"', "7777777.77777"]
    found = decode(decoder(f"a {type_}"), *(f'{{"a":{each}}}' for each in secrets))
    assert all("'a" in each.reason for each in found.rejects)
    assert not any(secret in each.reason for each in found.rejects for secret in ("hunter", "777"))


# The pipeline file.


def test_strict_decodes_as_ever_and_has_the_fingerprint_of_before() -> None:
    strict = conversions_of(Convert.model_validate({"fields": {"a": "strict"}}))
    assert not strict
    assert Decoding(convert=strict).decisive() == Decoding().decisive()
    assert Decoding(convert=strict).values == Decoding().format


def test_every_rule_is_part_of_the_fingerprint() -> None:
    rules: list[Any] = [
        "strict",
        "fit",
        {"default": {"epoch": "ms"}},
        {"default": {"epoch": "s"}},
        {"default": {"empty": None}},
        {"fields": {"a": "fit"}},
        {"fields": {"b": "fit"}},
        {"default": "fit", "fields": {"a": "strict"}},
        {"fields": {"a": {"epoch": "ms"}}},
    ]
    made = [Decoding(convert=conversions_of(Convert.model_validate(each))).decisive() for each in rules]
    assert len({json.dumps(each) for each in made}) == len(rules)


PIPELINE = """
pipeline: p
source: {kafka: {bootstrap_servers: "k:1", topics: [t], format: %s, convert: %s}}
sink: {sql: {url: "sqlite:///x.db", table: t%s}}
"""


def test_the_file_says_it_for_all_or_for_some(tmp_path: Path) -> None:
    def convert(text: str) -> Conversions:
        return conversions_of(parse(PIPELINE % ("json", text, ""), tmp_path / "p.yaml").source.kafka.convert)

    assert convert("fit") == FIT
    assert convert("{fields: {a: {empty: null}}}").of("a") == convert("{default: {empty: null}}").of("a")
    assert convert("{fields: {a: fit}}").of("ab") is None


@pytest.mark.parametrize(
    ("format_", "convert", "more", "said"),
    [
        ("json", "loose", "", "convert: must be strict, fit, or say which fields"),
        ("json", "{fields: {a: loose}}", "", "convert.fields.a: must be strict, fit, or options of fit"),
        ("json", "{fields: {a: {epoch: h}}}", "", "must be 's', 'ms', 'us', 'ns' or 'd'"),
        ("json", "{fields: {a: {mode: strict, epoch: s}}}", "", "strict has no options"),
        ("json", "{field: {a: fit}}", "", "did you mean 'fields'"),
        ("json", "{fields: {a: {epok: s}}}", "", "unknown key"),
        ("raw", "fit", "", "convert: records of the formats raw and string have no fields to convert"),
    ],
)
def test_mistakes_in_the_file_are_named(format_: str, convert: str, more: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(PIPELINE % (format_, convert, more), tmp_path / "p.yaml")


@pytest.mark.parametrize(
    ("path", "rule", "mistake"),
    [
        ("a", "fit", None),
        ("s", {"epoch": "ms"}, None),
        ("s.at", {"epoch": "ms"}, None),
        ("l[].n", "fit", None),
        ("m[]", "fit", None),
        ("b", "fit", "there is no field 'b'"),
        ("s.b", "strict", "there is no field 's.b'"),
        ("l.n", "fit", "there is no field 'l.n'"),
        ("a", {"epoch": "ms"}, "field 'a' holds no times, so that it has no `epoch`"),
    ],
)
def test_fields_that_are_not_there_are_named(path: str, rule: Any, mistake: str | None) -> None:
    schema = parse_schema("a INT, s STRUCT<at: TIMESTAMP>, l ARRAY<STRUCT<n: INT>>, m MAP<STRING, INT>")
    convert = conversions_of(Convert.model_validate({"fields": {path: rule}}))
    assert list(convert.mistakes(schema)) == ([mistake] if mistake else [])
