"""Ids of events: the same for the same key on every machine, for ever; other keys have other ids.

`oracle` is written from the text in `landonce/dedup/ids.py`, record by record, and shares no code with it.
`dedup_ids_golden.json` holds its ids of `CASES`. An id must never change, so add cases and never replace one:

    .venv/bin/python -c "import sys; sys.path.insert(0, 'tests/unit'); import test_dedup_ids as t; t.write_golden()"
"""

import hashlib
import json
import math
import pickle
import struct
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from landonce.config.dedup import Dedup
from landonce.dedup import blake2b, ids
from landonce.dedup.ids import Coordinates, compute
from landonce.dedup.pipelines import accept_sink
from landonce.dedup.rows import RowsRecipe, RowsWorker
from landonce.dedup.rule import KeyColumn, KeyRule, key_rule
from landonce.dedup.store import StorePlace
from landonce.errors import ConfigError
from landonce.protocol.ranges import Partition
from landonce.protocol.reasons import UNREADABLE, Code
from landonce.read.formats.json.decode import JsonDecoder
from landonce.read.rows import with_coordinates
from landonce.read.schema.fields import Field, Schema

GOLDEN = Path(__file__).with_name("dedup_ids_golden.json")
KAFKA_KEY, HEADER = "kafka key", "header"

# The oracle


def number(value):
    if -(2**63) <= value < 2**63:
        return b"i", value.to_bytes(8, "big", signed=True)
    return b"u", value.to_bytes(8, "big")


def floating(value):
    if math.isnan(value):
        return b"f", bytes.fromhex("7ff8000000000000")
    return b"f", struct.pack(">d", 0.0 if value == 0 else value)


def decimal(value):
    sign, digits, exponent = value.as_tuple()
    text = "".join(map(str, digits)).lstrip("0")
    if not text:
        return b"n", b"0e0"
    while text.endswith("0"):
        text, exponent = text[:-1], exponent + 1
    return b"n", f"{'-' if sign else ''}{text}e{exponent}".encode()


PER_SECOND = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}


def encoded(kind, value):
    """The tag and the bytes of a value. Temporal values are whole numbers in the unit of their type."""
    if value is None:
        return b"z", b""
    if kind == KAFKA_KEY:
        return b"k", value
    if kind == HEADER:
        return b"h", value
    name = str(kind)
    if name == "bool":
        return b"b", bytes([value])
    if name.startswith(("int", "uint")):
        return number(value)
    if name in ("halffloat", "float", "double"):
        return floating(value)
    if name.startswith("decimal"):
        return decimal(value)
    if "string" in name:
        return b"s", value.encode()
    if "binary" in name:
        return b"x", value
    if "uuid" in name:
        return b"g", value
    if name.startswith("timestamp"):
        seconds, rest = divmod(value, PER_SECOND[kind.unit])
        return b"t", struct.pack(">qI", seconds, rest * 1_000_000_000 // PER_SECOND[kind.unit])
    if name.startswith("date"):
        return b"d", struct.pack(">q", value if name.startswith("date32") else value // 86_400_000)
    assert name.startswith("time")
    return b"c", struct.pack(">q", value * 1_000_000_000 // PER_SECOND[kind.unit])


def blake(canonical):
    return hashlib.blake2b(canonical, digest_size=16, person=b"landonce-id-v1").hexdigest()


def oracle(kinds, values, *, name="", on_null="dead_letter", label="t", partition=0, offset=0):
    """The id of one record in hexadecimal; None if it is rejected."""
    if None in values and on_null == "dead_letter":
        return None
    if None in values and on_null == "unique":
        place = struct.pack(">iq", partition, offset) + label.encode()
        return blake(bytes(4) + b"o" + struct.pack(">I", len(place)) + place)
    canonical = struct.pack(">I", len(name.encode())) + name.encode()
    for kind, value in zip(kinds, values, strict=True):
        tag, data = encoded(kind, value)
        canonical += tag + struct.pack(">I", len(data)) + data
    return blake(canonical)


# Records as Arrow, and their ids in hexadecimal


def array_of(type_, values):
    if type_ in (KAFKA_KEY, HEADER):
        return pa.array(values, pa.binary())
    if isinstance(type_, pa.UuidType):
        return pa.ExtensionArray.from_storage(type_, pa.array(values, type_.storage_type))
    if pa.types.is_dictionary(type_):
        return pa.array(values, type_.value_type).dictionary_encode()
    if pa.types.is_float16(type_):
        return pa.array([None if each is None else np.float16(each) for each in values], type_)
    return pa.array(values, type_)


def hexes(found):
    return [
        None if row in found.rejects else f"{hi:016x}{lo:016x}"
        for row, (hi, lo) in enumerate(zip(found.hi.tolist(), found.lo.tolist(), strict=True))
    ]


def made(columns, *, offsets=None, keys=None, headers=(), label="t", partition=0, **section):
    """`compute`, with a table of these columns and this section; and the rule."""
    rows = pa.table(columns) if columns else pa.table({"filler": pa.nulls(len(keys or ()), pa.int8())})
    schema = Schema(tuple(Field(each.name, each.type) for each in rows.schema))
    rule = key_rule(Dedup.model_validate(section), schema)
    at = np.arange(rows.num_rows) if offsets is None else np.array(offsets)
    return compute(rule, rows, keys, dict(headers), Coordinates(label, partition, at)), rule


def ids_of(columns, **options):
    return hexes(made(columns, **options)[0])


def id_of(type_, value, **section):
    """The id of one record with one field."""
    return ids_of({"x": array_of(type_, [value])}, key=["x"], **section)[0]


def test_a_header_that_could_not_be_read_is_no_null_and_no_value():
    """Only where the rule of the event holds it."""
    by = KeyColumn("string", ("kind",))
    keys = (("a", (KeyColumn(HEADER, ("h",)), KeyColumn(HEADER, ("g",)))), ("b", (KeyColumn("string", ("name",)),)))
    rows = pa.table({"kind": ["a", "b", "a", "a", "b"], "name": ["v", "w", "x", "y", "z"]})
    headers = pa.array([b"1", UNREADABLE[1], UNREADABLE[1], None, None], pa.binary())
    found = compute(KeyRule(keys, by, "value"), rows, None, {"h": headers, "g": headers}, None)
    assert {at: (str(each), each.code) for at, each in found.rejects.items()} == {
        2: ("header 'h' cannot be read: the name of a header is not UTF-8", Code.BAD_KEY)
    }
    assert [bool(each) for each in found.hi] == [True, True, False, True, True]


# The golden file

TEXTS = ["", "a", "ab", "Zürich", "日本語", "\0", "a\0", "x" * 115, "x" * 116, "x" * 1000, "😀", "1", "null"]
DATA = [b"", b"\0", b"\0\0", b"ab", b"\xff\xfe", b"1"]
TICKS = [0, 1, -1, 999, 1000, 1_699_999_999]
DECIMALS = ["0", "1", "-1", "1.5", "-12.5", "100", "0.01", "99.99"]


def width(name):
    return int("".join(filter(str.isdigit, name)))


def edge_values():
    """Types with values at their edges."""
    for name in ("int8", "int16", "int32", "int64"):
        top = 2 ** (width(name) - 1)
        yield getattr(pa, name)(), [0, 1, -1, 42, top - 1, -top]
    for name in ("uint8", "uint16", "uint32", "uint64"):
        yield getattr(pa, name)(), [0, 1, 42, 2 ** (width(name) - 1), 2 ** width(name) - 1]
    for type_, tiny in ((pa.float16(), 2**-24), (pa.float32(), 2**-149), (pa.float64(), 5e-324)):
        yield type_, [0.0, -0.0, 1.5, -1.5, math.nan, math.inf, -math.inf, tiny]
    yield pa.float64(), [0.1, 1e300, 2.0**53 + 2]
    for type_ in (pa.decimal32(6, 2), pa.decimal64(12, 4), pa.decimal128(38, 10), pa.decimal256(60, 20)):
        yield type_, [*map(Decimal, DECIMALS)]
    yield pa.decimal128(38, 0), [Decimal(0), Decimal(10**37), Decimal(-(10**38) + 1)]
    yield pa.decimal128(38, 38), [Decimal("1e-38"), Decimal("-0.5")]
    yield pa.decimal128(5, -2), [Decimal(12_500), Decimal(-100)]
    yield pa.decimal256(76, 38), [Decimal("1e37"), Decimal("1e-38")]
    yield pa.string(), TEXTS
    for type_ in (pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())):
        yield type_, ["", "ab", "Zürich"]
    yield pa.binary(), DATA
    for type_ in (pa.large_binary(), pa.binary_view()):
        yield type_, [b"", b"ab"]
    yield pa.binary(2), [b"ab", b"\0\0"]
    yield pa.uuid(), [bytes(16), bytes(range(16)), b"\xff" * 16]
    for unit in PER_SECOND:
        yield pa.timestamp(unit), TICKS
        yield pa.timestamp(unit, "UTC"), TICKS
    yield pa.timestamp("ns"), [2**63 - 1, -(2**63) + 1]
    yield pa.date32(), [0, 1, -1, 20_000]
    yield pa.date64(), [0, 86_400_000, -86_400_000]
    for type_ in (pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")):
        yield type_, [0, 1, 86_399]
    yield pa.bool_(), [True, False]
    yield KAFKA_KEY, DATA
    yield HEADER, DATA


def golden_cases():
    """Name, types, values and options of each case."""
    for type_, values in edge_values():
        for value in values:
            yield f"{type_} {value!r}", (type_,), (value,), {}
        yield f"{type_} null as a value", (type_,), (None,), {"on_null": "value"}
        yield f"{type_} null unique", (type_,), (None,), {"on_null": "unique"}
    s, i = pa.string(), pa.int64()
    for values in (("ab", "c"), ("a", "bc"), ("abc", ""), ("", "abc")):
        yield f"strings {values!r}", (s, s), values, {}
        yield f"rule click, strings {values!r}", (s, s), values, {"name": "click"}
    yield "a string and an integer", (s, i), ("a", 1), {}
    yield "an integer and a string", (i, s), (1, "a"), {}
    yield "a null and a string", (s, s), (None, "a"), {"on_null": "value"}
    yield "a string and a null", (s, s), ("a", None), {"on_null": "value"}
    yield "a field, the Kafka key and a header", (s, KAFKA_KEY, HEADER), ("a", b"b", b"c"), {}
    for name in ("*", "Käse", "x" * 300):
        yield f"rule {name}", (s,), ("a",), {"name": name}
    for partition, offset in ((0, 2**62), (31, 7), (2**31 - 1, 0)):
        options = {"on_null": "unique", "partition": partition, "offset": offset, "label": "Thema"}
        yield f"unique at {partition}/{offset}", (s,), (None,), options


CASES = {name: rest for name, *rest in golden_cases()}


def write_golden():
    found = {name: oracle(*case[:2], **case[2]) for name, case in CASES.items()}
    GOLDEN.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def computed(types, values, *, name="", on_null="dead_letter", label="t", partition=0, offset=0):
    """As `oracle`, by landonce."""
    key = [
        {"kafka_key": True} if type_ == KAFKA_KEY else {"header": f"h{at}"} if type_ == HEADER else f"f{at}"
        for at, type_ in enumerate(types)
    ]
    arrays = [array_of(type_, [value]) for type_, value in zip(types, values, strict=True)]
    return ids_of(
        {"rule": pa.array([name]), **{f"f{at}": each for at, each in enumerate(arrays)}},
        keys=next((each for type_, each in zip(types, arrays, strict=True) if type_ == KAFKA_KEY), None),
        headers={f"h{at}": each for at, each in enumerate(arrays) if types[at] == HEADER},
        **({"by": "rule", "rules": {name: key}} if name else {"key": key}),
        **{"on_null": on_null, "label": label, "partition": partition, "offsets": [offset]},
    )[0]


def test_the_golden_file_holds_every_case():
    golden = json.loads(GOLDEN.read_text())
    assert len(golden) >= 200
    assert golden.keys() == CASES.keys()


@pytest.mark.parametrize("few", [1, 10**9], ids=["vectorised", "hashlib"])
def test_ids_are_those_of_the_golden_file(few, monkeypatch):
    monkeypatch.setattr(blake2b, "_FEW", few)
    golden = json.loads(GOLDEN.read_text())
    assert {name: computed(*case[:2], **case[2]) for name, case in CASES.items()} == golden
    assert {name: oracle(*case[:2], **case[2]) for name, case in CASES.items()} == golden


# The oracle against the columns


def decimals(precision, scale):
    return st.integers(-(10**precision) + 1, 10**precision - 1).map(lambda n: Decimal(f"{n}e-{scale}"))


def whole(bits, signed=True):
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else st.integers(0, 2**bits - 1)


TYPES = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), whole(8)),
    (pa.int32(), whole(32)),
    (pa.int64(), whole(64)),
    (pa.uint32(), whole(32, signed=False)),
    (pa.uint64(), whole(64, signed=False)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.decimal64(18, 6), decimals(18, 6)),
    (pa.decimal128(20, 4), decimals(20, 4)),
    (pa.decimal256(70, 30), decimals(70, 30)),
    (pa.string(), st.text(max_size=200)),
    (pa.dictionary(pa.int32(), pa.string()), st.sampled_from(["", "a", "b", "click"])),
    (pa.large_string(), st.text(max_size=20)),
    (pa.binary(), st.binary(max_size=200)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.uuid(), st.binary(min_size=16, max_size=16)),
    *((pa.timestamp(unit), whole(64)) for unit in PER_SECOND),
    (pa.timestamp("us", "UTC"), whole(64)),
    (pa.date32(), whole(32)),
    (pa.date64(), st.integers(-(10**6), 10**6).map(lambda days: days * 86_400_000)),
    (pa.time32("ms"), st.integers(0, 86_399_999)),
    (pa.time64("ns"), st.integers(0, 86_399_999_999_999)),
    (KAFKA_KEY, st.binary(max_size=20)),
    (HEADER, st.binary(max_size=300)),
]


@st.composite
def records(draw):
    """Kinds of the parts, and rows of values."""
    columns = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=4))
    columns = [each for at, each in enumerate(columns) if each[0] != KAFKA_KEY or at == 0] or [TYPES[0]]
    values = st.tuples(*(st.one_of(each, each, st.none()) for _, each in columns))
    return [type_ for type_, _ in columns], draw(st.lists(values, max_size=25))


@given(records(), st.sampled_from(["dead_letter", "unique", "value"]), st.integers(1, 30), st.booleans(), st.data())
@settings(max_examples=300, deadline=None)
def test_ids_are_those_of_the_oracle(some, on_null, piece, at_once, data):
    """In any pieces and chunks, by either implementation of BLAKE2b, and with rows cut out of longer arrays."""
    kinds, rows = some
    cut = data.draw(st.integers(0, len(rows)))
    parts = list(zip(*rows, strict=True)) if rows else [() for _ in kinds]
    arrays = [array_of(kind, list(values)) for kind, values in zip(kinds, parts, strict=True)]
    names = [f"f{at}" for at in range(len(kinds))]
    tables = [pa.table(arrays, names).slice(0, cut), pa.table(arrays, names).slice(cut)]
    table = pa.concat_tables([each.unify_dictionaries() for each in tables])
    columns = tuple(
        KeyColumn(kind, (name,)) if kind in (KAFKA_KEY, HEADER) else KeyColumn(ids.type_class(kind), (name,))
        for kind, name in zip(kinds, names, strict=True)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ids, "_PIECE", piece)
        patch.setattr(blake2b, "_FEW", 1 if at_once else 10**9)
        patch.setattr(blake2b, "_AT_ONCE", 5)
        keys = next((each for kind, each in zip(kinds, arrays, strict=True) if kind == KAFKA_KEY), None)
        headers = {name: each for kind, name, each in zip(kinds, names, arrays, strict=True) if kind == HEADER}
        place = Coordinates("topic", 3, np.arange(len(rows)) + 100)
        found = compute(KeyRule((("", columns),), None, on_null), table, keys, headers, place)
    expected = [
        oracle(kinds, values, on_null=on_null, label="topic", partition=3, offset=100 + at)
        for at, values in enumerate(rows)
    ]
    assert hexes(found) == expected


@given(st.lists(st.binary(max_size=400), min_size=1, max_size=40), st.integers(0, 5))
@settings(deadline=None)
def test_blake2b_is_that_of_hashlib(messages, skipped):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blake2b, "_FEW", 1)
        hi, lo = blake2b.digests(pa.array([b"other"] * skipped + messages, pa.large_binary()).slice(skipped))
    assert [f"{a:016x}{b:016x}" for a, b in zip(hi.tolist(), lo.tolist(), strict=True)] == [*map(blake, messages)]


def test_many_messages_of_every_length_around_a_block():
    messages = [bytes([at % 251]) * (at % 140) for at in range(20_000)]
    hi, lo = blake2b.digests(pa.array(messages, pa.large_binary()))
    assert [f"{a:016x}{b:016x}" for a, b in zip(hi.tolist(), lo.tolist(), strict=True)] == [*map(blake, messages)]


# What an id does not depend on


@pytest.mark.parametrize(
    ("types", "value"),
    [
        ([pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint32(), pa.uint64()], 42),
        ([pa.int8(), pa.int32(), pa.int64()], -42),
        ([pa.float16(), pa.float32(), pa.float64()], 1.5),
        ([pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())], "Zürich"),
        ([pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(2)], b"ab"),
        ([pa.decimal32(6, 2), pa.decimal64(12, 4), pa.decimal128(38, 10), pa.decimal256(70, 1)], Decimal("12.5")),
    ],
    ids=lambda each: None if isinstance(each, list) else repr(each),
)
def test_an_id_survives_widening(types, value):
    assert len({id_of(type_, value) for type_ in types}) == 1


FLOATS = [pa.float32(), pa.float64()]


def sink_of_floats(type_, of_query=False, key="x"):
    """The store of a pipeline whose table has a column of this type."""
    schema = Schema((Field("id", pa.int64()), Field("x", type_), Field("y", pa.struct([("z", type_)]))))
    return accept_sink(Dedup(key=["id", key]), StorePlace("nowhere", "s"), "p", schema, of_query=of_query)


@pytest.mark.parametrize(("key", "record"), [("x", b'{"id": 1, "x": 0.1}'), ("y.z", b'{"id": 1, "y": {"z": 0.1}}')])
def test_an_id_survives_a_column_that_is_widened_to_double(key, record):
    """0.1 is another number at each width: what counts is the record, and not the column."""
    sinks = [sink_of_floats(type_, key=key) for type_ in FLOATS]
    decoded = [JsonDecoder(each.source).decode(pa.array([record], pa.binary())) for each in sinks]
    found = {
        hexes(compute(sink.rule, rows.table, None, {}, None))[0] for sink, rows in zip(sinks, decoded, strict=True)
    }
    assert found == {oracle([pa.int64(), pa.float64()], [1, 0.1])}
    assert len({each.rule.fingerprint() for each in sinks}) == 1


def test_a_row_of_a_query_has_the_same_id_at_every_width():
    """And the store keeps it as it came, so that another key rule makes the same id of it. A row that the table cannot take is rejected."""
    rows = with_coordinates(
        pa.table({"id": [1, 2, 3], "x": [0.1, 1e300, 0.5]}), Partition("t", 0), pa.array([5, 6, 7]), "t"
    )
    for type_ in FLOATS:
        sink = sink_of_floats(type_, of_query=True)
        recipe = RowsRecipe(
            pipeline="p", shards=1, place=sink.place, rule=sink.rule, late="accept", source=sink.source,
            target=sink.target, lineage="l", bucket=1, horizon=0, version="", cache=1,
        )  # fmt: skip
        decoded = RowsWorker(recipe, None)._fit(rows)
        assert decoded.table.column("row.x")[0].as_py() == 0.1
        assert decoded.table.column("hi")[0].as_py() == int(oracle([pa.int64(), pa.float64()], [1, 0.1])[:16], 16)
        assert [each.index for each in decoded.rejects] == ([] if type_ == pa.float64() else [1])
        assert decoded.table.column("row.id").to_pylist() == ([1, 2, 3] if type_ == pa.float64() else [1, 3])


@pytest.mark.parametrize("second", [0, 1, -1, 1_700_000_000])
def test_an_id_does_not_depend_on_the_unit_of_a_time(second):
    moments = {
        (unit, zone): id_of(pa.timestamp(unit, zone), second * n)
        for unit, n in PER_SECOND.items()
        for zone in (None, "UTC")
    }
    assert len(set(moments.values())) == 1
    if second >= 0:
        times = [(pa.time32("s"), 1), (pa.time32("ms"), 10**3), (pa.time64("us"), 10**6), (pa.time64("ns"), 10**9)]
        assert len({id_of(type_, second % 86_400 * n) for type_, n in times}) == 1
    assert id_of(pa.date32(), second % 86_400) == id_of(pa.date64(), second % 86_400 * 86_400_000)


def test_floats_that_are_equal_have_one_id():
    assert id_of(pa.float64(), -0.0) == id_of(pa.float32(), 0.0)
    bits = np.array([0x7FF8000000000000, 0xFFF8000000000001, 0x7FF0000000000001], np.uint64).view(np.float64)
    assert len(set(ids_of({"x": pa.array(bits)}, key=["x"]))) == 1


def test_an_id_does_not_depend_on_names_or_neighbours():
    alone = ids_of({"x": pa.array(["a"]), "y": pa.array([1])}, key=["x", "y"])
    columns = {"other": pa.array([0.5] * 3), "b": pa.array([7, 1, 9]), "a": pa.array(["c", "a", "c"])}
    assert ids_of(columns, key=["a", "b"])[1] == alone[0]


def test_a_nested_field_has_the_id_of_a_plain_one():
    inner = pa.array([{"id": {"no": 7}}, {"id": None}, None], pa.struct([("id", pa.struct([("no", pa.int32())]))]))
    nested = ids_of({"order": inner}, key=["order.id.no"], on_null="value")
    assert nested == ids_of({"no": pa.array([7, None, None])}, key=["no"], on_null="value")
    uuids = pa.StructArray.from_arrays([array_of(pa.uuid(), [bytes(range(16))])], ["id"])
    assert ids_of({"order": uuids}, key=["order.id"]) == [id_of(pa.uuid(), bytes(range(16)))]


def test_a_name_with_a_dot_comes_before_a_path():
    columns = {"a.b": pa.array(["dotted"]), "a": pa.array([{"b": "nested"}])}
    assert ids_of(columns, key=["a.b"]) == [id_of(pa.string(), "dotted")]


# What an id depends on


def test_parts_do_not_run_into_each_other():
    pairs = [("ab", "c"), ("a", "bc"), ("abc", ""), ("", "abc")]
    first, second = zip(*pairs, strict=True)
    assert len(set(ids_of({"x": pa.array(first), "y": pa.array(second)}, key=["x", "y"]))) == len(pairs)


def test_values_of_different_kinds_have_different_ids():
    one = [
        (pa.string(), "1"),
        (pa.binary(), b"1"),
        (KAFKA_KEY, b"1"),
        (HEADER, b"1"),
        (pa.int64(), 1),
        (pa.float64(), 1.0),
        (pa.decimal128(5, 0), Decimal(1)),
        (pa.bool_(), True),
        (pa.date32(), 1),
        (pa.timestamp("s"), 1),
        (pa.time64("ns"), 1),
        (pa.string(), "1e0"),
        (pa.string(), "\0\0\0\0\0\0\0\x01"),
        (pa.binary(), bytes(7) + b"\1"),
        (pa.uuid(), b"1" * 16),
        (pa.string(), "1" * 16),
        (pa.uint64(), 2**64 - 1),
        (pa.int64(), -1),
    ]
    assert len({computed((type_,), (value,)) for type_, value in one}) == len(one)


def test_a_null_is_no_empty_value():
    options = {"on_null": "value"}
    assert id_of(pa.string(), None, **options) != id_of(pa.string(), "", **options)
    assert id_of(pa.int64(), None, **options) != id_of(pa.int64(), 0, **options)


# Nulls


NULLS = {"x": pa.array(["a", None, "a", None]), "y": pa.array([1, 1, None, None])}


def test_a_null_in_the_key_is_a_reject_with_a_reason():
    found, _ = made(NULLS, key=["x", "y"])
    assert found.rejects == {
        1: "field 'x' is null, and is part of the key",
        2: "field 'y' is null, and is part of the key",
        3: "field 'x' is null, and is part of the key",
    }
    assert hexes(found)[0] == oracle([pa.string(), pa.int64()], ["a", 1])
    assert found.hi[1:].tolist() == found.lo[1:].tolist() == [0, 0, 0]


def test_an_event_with_a_null_may_be_unique():
    here, again, there = (ids_of(NULLS, key=["x", "y"], on_null="unique", partition=at) for at in (0, 0, 1))
    assert here == again
    assert len({*here, *there}) == 1 + 3 + 3
    assert here[0] == there[0] == oracle([pa.string(), pa.int64()], ["a", 1])


def test_a_null_may_be_a_value():
    twice = {name: pa.concat_arrays([each, each]) for name, each in NULLS.items()}
    found = ids_of(twice, key=["x", "y"], on_null="value")
    assert found[:4] == found[4:]
    assert len(set(found)) == 4


def test_a_missing_kafka_key_or_header_is_a_null():
    keys, header = pa.array([None, b"k"], pa.binary()), pa.array([b"h", None], pa.binary())
    key = [{"kafka_key": True}, {"header": "id"}]
    found, _ = made({}, keys=keys, headers={"id": header}, key=key)
    assert found.rejects == {
        0: "the Kafka key is null, and is part of the key",
        1: "header 'id' is null, and is part of the key",
    }


# Rules by a field


EVENTS = {
    "type": pa.array(["click", "purchase", "click", "view", None, "*"]),
    "id": pa.array([1, 1, 1, 1, 1, 1]),
    "user": pa.array(["u", "u", "v", "u", "u", "u"]),
}


def test_each_event_has_the_rule_of_its_type():
    rules = {"click": ["id", "user"], "purchase": ["id"], "*": ["user"]}
    s, i = pa.string(), pa.int64()
    assert ids_of(EVENTS, by="type", rules=rules) == [
        oracle([i, s], [1, "u"], name="click"),
        oracle([i], [1], name="purchase"),
        oracle([i, s], [1, "v"], name="click"),
        oracle([s], ["u"], name="view"),
        None,
        oracle([s], ["u"], name="*"),
    ]


def test_the_value_that_chooses_the_rule_is_part_of_the_key_and_a_null_no_empty_text():
    events = {"type": pa.array([None, "", None]), "id": pa.array([1, 1, 1])}
    section = {"by": "type", "rules": {"*": ["id"]}}
    found, _ = made(events, **section)
    assert found.rejects == dict.fromkeys([0, 2], "field 'type' is null, and is part of the key")
    assert hexes(found)[1] == oracle([pa.int64()], [1], name="")
    as_value = ids_of(events, on_null="value", **section)
    assert as_value[0] == as_value[2] != as_value[1] == hexes(found)[1]
    place = {"on_null": "unique", "offset": 2}
    assert ids_of(events, on_null="unique", **section)[2] == oracle([pa.string()], [None], **place)


def test_an_event_keeps_its_id_when_its_type_gets_a_rule_of_its_own():
    before = ids_of(EVENTS, by="type", rules={"*": ["id"]})
    assert ids_of(EVENTS, by="type", rules={"click": ["id"], "view": ["id"], "*": ["id"]}) == before
    assert before[0] != before[1]


def test_an_event_without_a_rule_is_a_reject_with_a_reason():
    found, _ = made(EVENTS, by="type", rules={"click": ["id"], "purchase": ["id"]})
    assert found.rejects == dict.fromkeys([3, 4, 5], "field 'type': no key rule for its value")
    assert hexes(found)[0] == hexes(found)[2] != hexes(found)[1]


def test_a_null_counts_only_in_the_rule_of_its_event():
    columns = {"type": pa.array(["a", "b"]), "x": pa.array([None, None], pa.string()), "y": pa.array([1, 1])}
    found, _ = made(columns, by="type", rules={"a": ["x"], "b": ["y"]})
    assert list(found.rejects) == [0]


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (pa.array([1, 2]), ("1", "2")),
        (pa.array([True, False]), ("true", "false")),
        (pa.array(["x", "y"]).dictionary_encode(), ("x", "y")),
    ],
)
def test_a_rule_has_the_name_of_a_number_a_boolean_or_a_text(values, names):
    found = ids_of({"by": values, "x": pa.array(["k", "k"])}, by="by", rules={name: ["x"] for name in names})
    assert found == [oracle([pa.string()], ["k"], name=name) for name in names]


def test_rejects_are_named_by_their_row_in_later_pieces_too(monkeypatch):
    monkeypatch.setattr(ids, "_PIECE", 2)
    columns = {"type": pa.array(["a", "b", "a", "c", "a", "a"]), "x": pa.array([1, 1, None, 1, 1, None])}
    found, _ = made(columns, by="type", rules={"a": ["x"], "b": ["x"]})
    assert sorted(found.rejects) == [2, 3, 5]


def test_a_hybrid_of_field_kafka_key_and_header():
    key = ["type", {"kafka_key": True}, {"header": "id"}]
    found = ids_of(
        {"type": pa.array(["a"])},
        keys=pa.array([b"k"]),
        headers={"id": pa.array([b"h"]), "other": pa.array([b"x"])},
        key=key,
    )
    assert found == [oracle([pa.string(), KAFKA_KEY, HEADER], ["a", b"k", b"h"])]


# The rule


SCHEMA = Schema(
    (
        Field("id", pa.int32()),
        Field("type", pa.string()),
        Field("price", pa.decimal128(10, 2)),
        Field("tags", pa.list_(pa.string())),
        Field("order", pa.struct([("id", pa.int64()), ("lines", pa.list_(pa.int64()))])),
    )
)


def rule_of(schema=SCHEMA, **section):
    return key_rule(Dedup.model_validate(section), schema)


def test_a_rule_says_what_it_needs():
    rule = rule_of(by="type", rules={"a": ["id", {"header": "h"}], "*": ["id", {"kafka_key": True}, "order.id"]})
    assert [str(each) for each in rule.columns] == [
        "field 'type'",
        "field 'id'",
        "header 'h'",
        "the Kafka key",
        "field 'order.id'",
    ]
    assert rule.needs_kafka_key
    assert rule.headers == ("h",)
    assert not rule_of(key=["id"]).needs_kafka_key


def test_a_rule_describes_itself_in_one_line():
    assert rule_of(key=["id", "order.id", {"header": "h"}]).describe() == (
        "id (integer), order.id (integer), header 'h' (nulls: dead_letter)"
    )
    assert rule_of(by="type", rules={"a": ["id"], "*": [{"kafka_key": True}]}, on_null="value").describe() == (
        "by type (string): a: id (integer); *: the Kafka key (nulls: value)"
    )


def test_a_rule_is_data():
    rule = rule_of(by="type", rules={"a": ["id"], "*": [{"kafka_key": True}]})
    assert pickle.loads(pickle.dumps(rule)) == rule
    assert hash(rule) == hash(rule_of(by="type", rules={"a": ["id"], "*": [{"kafka_key": True}]}))


def test_the_fingerprint_changes_with_the_ids():
    variants = [
        {"key": ["id"]},
        {"key": ["id"], "on_null": "value"},
        {"key": ["id"], "on_null": "unique"},
        {"key": ["id", "type"]},
        {"key": ["type", "id"]},
        {"key": ["order.id"]},
        {"key": [{"header": "id"}]},
        {"key": [{"header": "type"}]},
        {"key": [{"kafka_key": True}]},
        {"by": "type", "rules": {"a": ["id"]}},
        {"by": "id", "rules": {"a": ["id"]}},
        {"by": "type", "rules": {"b": ["id"]}},
        {"by": "type", "rules": {"a": ["id"], "*": ["id"]}},
    ]
    assert len({rule_of(**each).fingerprint() for each in variants}) == len(variants)
    text = Schema((Field("id", pa.string()), Field("type", pa.string())))
    assert rule_of(text, key=["id"]).fingerprint() != rule_of(key=["id"]).fingerprint()


def test_the_fingerprint_stays_while_the_ids_do():
    wide = Schema((Field("new", pa.int8()), Field("id", pa.int64()), Field("type", pa.large_string())))
    assert rule_of(wide, key=["id", "type"]).fingerprint() == rule_of(key=["id", "type"]).fingerprint()
    rules = {"a": ["id"], "*": ["type"]}
    turned = dict(reversed(rules.items()))
    assert rule_of(by="type", rules=rules).fingerprint() == rule_of(by="type", rules=turned).fingerprint()
    assert rule_of(key=["id"], ttl="1d", shards=4, scope="s").fingerprint() == rule_of(key=["id"]).fingerprint()
    assert rule_of(key=["id"]).fingerprint() == ("1f3bb75ed2994b8f99a98339df7517d547184b9dc6f3865be2c20a53761916d0")


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"key": ["nothing"]}, "'nothing' is not a field of the records. There are: id, type, price, tags, order."),
        ({"key": ["ID"]}, "'ID' is not a field"),
        ({"key": ["order.no"]}, "'order.no' is not a field of the records. There are: order.id, order.lines."),
        ({"key": ["id.no"]}, "'id.no' is not a field of the records. 'id' has no fields: its type is INT."),
        ({"key": ["tags"]}, "'tags' cannot be in a key: its type is ARRAY<STRING>."),
        ({"key": ["order"]}, "'order' cannot be in a key: its type is STRUCT<id: BIGINT, lines: ARRAY<BIGINT>>. There are: order.id"),
        ({"key": ["order.lines"]}, "'order.lines' cannot be in a key: its type is ARRAY<BIGINT>."),
        ({"by": "typ", "rules": {"a": ["id"]}}, "'typ' is not a field"),
        ({"by": "price", "rules": {"a": ["id"]}}, "by names 'price', which is a decimal."),
    ],
)  # fmt: skip
def test_a_rule_that_does_not_fit_the_records_is_refused(section, said):
    with pytest.raises(ConfigError) as refused:
        rule_of(**section)
    assert said in str(refused.value)


def test_rows_of_another_class_are_refused():
    """An id would drift in silence."""
    at = Coordinates("t", 0, np.arange(1))
    with pytest.raises(ValueError, match="field 'id' is string; the rule was made for a field of the class integer"):
        compute(rule_of(key=["id"]), pa.table({"id": ["1"]}), None, {}, at)


def test_what_the_rule_needs_must_be_given_for_each_row():
    rows, at = pa.table({"id": [1, 2]}), Coordinates("t", 0, np.arange(2))
    with pytest.raises(ValueError, match="the Kafka key is in the key, and is not given"):
        compute(rule_of(key=[{"kafka_key": True}]), rows, None, {}, at)
    with pytest.raises(ValueError, match="header 'h' is in the key, and is not given"):
        compute(rule_of(key=[{"header": "h"}]), rows, None, {"H": pa.array([b"", b""])}, at)
    with pytest.raises(ValueError, match="must have 2 values"):
        compute(rule_of(key=[{"kafka_key": True}]), rows, pa.array([b""]), {}, at)


def test_no_rows_have_no_ids():
    found, _ = made({"id": pa.array([], pa.int64())}, key=["id"])
    assert (len(found.hi), len(found.lo), found.rejects) == (0, 0, {})
