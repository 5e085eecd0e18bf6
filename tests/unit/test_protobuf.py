"""Protobuf: every record becomes the row that google.protobuf reads from it, or a reject that names the field."""

from __future__ import annotations

import json
import math
import pickle
import random
import struct
import sys
from collections.abc import Mapping
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from corpus.in_memory import InMemory
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from landonce.errors import ConfigError, RegistryUnavailable, SourceUnavailable
from landonce.read.formats import Decoded
from landonce.read.formats.protobuf import source as source_module
from landonce.read.formats.protobuf.decode import ProtobufDecoder
from landonce.read.formats.protobuf.format import schema_of
from landonce.read.formats.protobuf.source import Messages, ProtobufSource, compile_text
from landonce.read.formats.protobuf.wire import BadFrame, Frame, frame_of
from landonce.read.schema.ddl import parse_schema, spelled_schema
from landonce.read.schema.fields import JSON, Field, Schema
from landonce.read.schema.registry import Registered

ORDERS = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/any.proto";
import "google/protobuf/empty.proto";
enum State { NEW = 0; PAID = 1; LOST = -7; }
message Item { string sku = 1; int32 count = 2; optional double price = 3; repeated string tags = 4; }
message Tree { string name = 1; repeated Tree children = 2; Tree left = 3; }
message Order {
  int64 id = 1;
  optional string note = 2;
  State state = 3;
  Item first = 4;
  repeated Item items = 5;
  map<string, int64> counts = 6;
  map<int32, Item> by_line = 7;
  oneof paid_with { string card = 8; int64 voucher = 9; Item barter = 10; }
  google.protobuf.Timestamp at = 11;
  google.protobuf.Duration took = 12;
  google.protobuf.Int64Value maybe = 13;
  google.protobuf.Struct extra = 14;
  google.protobuf.Any any = 15;
  Tree tree = 16;
  repeated State states = 17;
  repeated double weights = 18;
  bytes raw = 19;
  uint64 large = 20;
  float small = 21;
  bool flag = 22;
  fixed32 f32 = 23; fixed64 f64 = 24; sfixed32 sf32 = 25; sfixed64 sf64 = 26; sint32 s32 = 27; sint64 s64 = 28;
  uint32 u32 = 29; int32 i32 = 30; double d = 31;
  google.protobuf.Empty empty = 32;
  map<bool, State> flags = 33;
}
"""
OLD = """
syntax = "proto2";
package old;
enum Level { LOW = 3; HIGH = 9; }
message Log {
  required string host = 1;
  optional int32 port = 2 [default = 80];
  optional Level level = 3;
  optional group Place = 4 { optional string city = 1; required int32 zip = 2; }
  repeated group Part = 5 { optional string name = 1; }
  repeated Level levels = 6;
  repeated int32 packed = 7 [packed = true];
}
"""


@cache
def source(text: str, message: str) -> ProtobufSource:
    return ProtobufSource(compile_text(text, {}), message)


@cache
def class_of(text: str, message: str) -> Any:
    return GetMessageClass(Messages(source(text, message).descriptors).find(message))


def order(**values: Any) -> Any:
    return class_of(ORDERS, "shop.Order")(**values)


def decode(values: list[bytes | None], ddl: str | Schema, *, of: ProtobufSource | None = None) -> Decoded:
    schema = parse_schema(ddl) if isinstance(ddl, str) else ddl
    of = of or source(ORDERS, "shop.Order")
    decoded = ProtobufDecoder(schema, of, max_record_bytes=2**20).decode(pa.array(values, pa.binary()))
    decoded.table.validate(full=True)
    assert sorted([*decoded.kept.tolist(), *(each.index for each in decoded.rejects)]) == list(range(len(values)))
    assert decoded.table.num_rows == len(decoded.kept)
    assert (np.diff(decoded.kept) > 0).all()
    return decoded


def rows(values: list[Any], ddl: str | Schema, *, of: ProtobufSource | None = None) -> list[dict[str, Any]]:
    bytes_ = [each if isinstance(each, bytes) else each.SerializeToString() for each in values]
    decoded = decode(bytes_, ddl, of=of)
    assert decoded.rejects == ()
    return decoded.table.to_pylist()


def reason(value: bytes | None, ddl: str | Schema, *, of: ProtobufSource | None = None) -> str:
    """The reason of a bad record, which is the same among good ones, and does not change them."""
    good = b"\x0a\x01h" if of else order(id=7, d=1.5, note="5", raw=b"xx", items=[{"price": 1}]).SerializeToString()
    (reject,) = decode([value], ddl, of=of).rejects
    around = decode([good, value, good], ddl, of=of)
    assert around.rejects == (reject._replace(index=1),)
    assert around.table.to_pylist() == decode([good, good], ddl, of=of).table.to_pylist()
    return reject.reason


# Values


def test_every_scalar_keeps_its_extremes() -> None:
    extremes = order(
        id=-(2**63), large=2**64 - 1, f32=2**32 - 1, f64=2**64 - 1, sf32=-(2**31), sf64=2**63 - 1, s32=-(2**31)
    )
    extremes.s64, extremes.u32, extremes.i32, extremes.flag = 2**63 - 1, 2**32 - 1, -1, True
    extremes.raw, extremes.d, extremes.small = b"\x00\xff", math.inf, -0.0
    found = rows([extremes], schema_of(source(ORDERS, "shop.Order")))[0]
    assert found["id"] == -(2**63)
    assert (found["large"], found["f64"]) == (Decimal(2**64 - 1), Decimal(2**64 - 1))
    assert (found["f32"], found["sf32"], found["sf64"]) == (2**32 - 1, -(2**31), 2**63 - 1)
    assert (found["s32"], found["s64"], found["u32"], found["i32"]) == (-(2**31), 2**63 - 1, 2**32 - 1, -1)
    assert (found["raw"], found["flag"], found["d"]) == (b"\x00\xff", True, math.inf)
    assert math.copysign(1, found["small"]) == -1


def test_an_absent_field_without_presence_is_its_zero_and_one_with_presence_is_null() -> None:
    found = rows([order()], schema_of(source(ORDERS, "shop.Order")))[0]
    assert (found["id"], found["state"], found["raw"], found["d"], found["flag"]) == (0, "NEW", b"", 0.0, False)
    assert (found["items"], found["counts"], found["weights"]) == ([], [], [])
    names = ("note", "first", "card", "voucher", "barter", "at", "took", "maybe", "extra", "any", "tree", "empty")
    assert {name: found[name] for name in names} == dict.fromkeys(names)


def test_an_empty_value_is_a_message_and_no_value_is_a_tombstone() -> None:
    decoded = decode([b"", None], "id BIGINT, note STRING")
    assert decoded.table.to_pylist() == [{"id": 0, "note": None}]
    assert [each.reason for each in decoded.rejects] == ["no value (a tombstone)"]


def test_presence_is_kept_for_zeros() -> None:
    there = order(note="", voucher=0, first={}, at={}, took={}, maybe={}, tree={}, extra={}, empty={})
    found = rows([there], schema_of(source(ORDERS, "shop.Order")))[0]
    assert (found["note"], found["voucher"], found["card"], found["maybe"]) == ("", 0, None, 0)
    assert found["first"] == {"sku": "", "count": 0, "price": None, "tags": []}
    assert (found["at"].year, found["took"], found["extra"], found["empty"]) == (1970, Decimal(0), "{}", "{}")


def test_the_wrapper_types_are_values_that_may_be_absent() -> None:
    ddl = "maybe BIGINT"
    assert rows([order(), order(maybe={}), order(maybe={"value": -1})], ddl) == [
        {"maybe": None},
        {"maybe": 0},
        {"maybe": -1},
    ]
    assert rows([order(maybe={"value": 5})], "maybe STRUCT<value: INT>") == [{"maybe": {"value": 5}}]


def test_nested_fields_are_found_by_name_and_others_are_skipped() -> None:
    made = order(first={"sku": "a", "count": 2}, items=[{"sku": "b", "price": 0.5}, {}], note="skipped")
    ddl = "items ARRAY<STRUCT<price: DOUBLE, sku: STRING>>, first STRUCT<count: SMALLINT, nothing: INT>, nowhere INT"
    assert rows([made], ddl) == [
        {
            "items": [{"price": 0.5, "sku": "b"}, {"price": None, "sku": ""}],
            "first": {"count": 2, "nothing": None},
            "nowhere": None,
        }
    ]


def test_names_may_be_aliases_or_differ_in_case() -> None:
    renamed = Schema((Field("number", pa.int64(), aliases=("id",)),))
    assert rows([order(id=3)], renamed) == [{"number": 3}]
    assert rows([order(id=3)], Schema((Field("ID", pa.int64()),), fold_case=True)) == [{"ID": 3}]
    assert rows([order(id=3)], Schema((Field("ID", pa.int64()),))) == [{"ID": None}]


def test_maps_have_text_keys_and_the_last_of_equal_keys_counts() -> None:
    made = order(counts={"b": 1, "": 2}, by_line={-3: {"sku": "x"}}, flags={True: 1, False: -7})
    found = rows([made], schema_of(source(ORDERS, "shop.Order")))[0]
    assert dict(found["counts"]) == {"b": 1, "": 2}
    assert dict(found["by_line"]) == {"-3": {"sku": "x", "count": 0, "price": None, "tags": []}}
    assert dict(found["flags"]) == {"true": "PAID", "false": "LOST"}
    twice = b"".join(order(counts={"a": at}).SerializeToString() for at in (1, 2)) + b"\x32\x00" + b"\x32\x02\x10\x09"
    assert rows([twice, order(counts={"a": 5})], "counts MAP<STRING, BIGINT>") == [
        {"counts": [("a", 2), ("", 9)]},
        {"counts": [("a", 5)]},
    ]
    absent = b"\x3a\x02\x08\x05"
    assert rows([absent], "by_line MAP<STRING, STRUCT<sku: STRING> NOT NULL>") == [{"by_line": [("5", {"sku": ""})]}]


def test_the_last_member_of_a_oneof_counts_as_the_specification_says() -> None:
    card, voucher, barter = (order(**{name: value}).SerializeToString() for name, value in PAID.items())
    expected = {"card": None, "voucher": None, "barter": None}
    ddl = "card STRING, voucher BIGINT, barter STRUCT<sku: STRING>"
    found = rows([card + voucher, voucher + barter, barter + card, card, barter + voucher + barter], ddl)
    assert found == [
        expected | {"voucher": 5},
        expected | {"barter": {"sku": "x"}},
        expected | {"card": "c"},
        expected | {"card": "c"},
        expected | {"barter": {"sku": "x"}},
    ]
    assert rows([card + voucher, card], "card STRING") == [{"card": None}, {"card": "c"}]


PAID: Mapping[str, Any] = {"card": "c", "voucher": 5, "barter": {"sku": "x"}}


def test_pieces_of_a_message_are_one_message() -> None:
    pieces = order(first={"sku": "a"}).SerializeToString() + order(first={"count": 3}).SerializeToString()
    assert rows([pieces], "first STRUCT<sku: STRING, count: INT>") == [{"first": {"sku": "a", "count": 3}}]
    assert json.loads(rows([pieces], "first STRING")[0]["first"]) == {"sku": "a", "count": 3}


def test_enums_are_names_or_numbers() -> None:
    made = order(state=1, states=[0, -7, 1])
    assert rows([made], "state STRING, states ARRAY<STRING>") == [{"state": "PAID", "states": ["NEW", "LOST", "PAID"]}]
    assert rows([order(state=5, states=[-9])], "state INT, states ARRAY<BIGINT>") == [{"state": 5, "states": [-9]}]
    why = "holds a number that enum shop.State does not name"
    assert reason(order(state=5).SerializeToString(), "state STRING") == f"field 'state' {why}"
    assert reason(order(states=[0, 6]).SerializeToString(), "states ARRAY<STRING>") == f"field 'states[]' {why}"


def test_timestamps_are_exact_or_rejected() -> None:
    far = {"seconds": 253402300799, "nanos": 999_999_000}
    first = {"seconds": -62135596800}
    found = decode([order(at=each).SerializeToString() for each in (far, first)], "at TIMESTAMP").table
    assert found.column("at").cast(pa.int64()).to_pylist() == [253402300799_999999, -62135596800_000000]
    ddl = "at TIMESTAMP(9)"
    fine = decode([order(at={"seconds": -1, "nanos": 999_999_999}).SerializeToString()], ddl).table
    assert fine.column("at").cast(pa.int64()).to_pylist() == [-1]
    bad = order(at={"nanos": 1}).SerializeToString()
    assert reason(bad, "at TIMESTAMP") == "field 'at' is finer than TIMESTAMP with 6 digits after the second"
    assert "outside the range" in reason(order(at=far).SerializeToString(), ddl)
    for wrong in ({"nanos": -1}, {"nanos": 10**9}, {"seconds": 253402300800}, {"seconds": -(2**63)}):
        assert reason(order(at=wrong).SerializeToString(), "at TIMESTAMP") == "field 'at' is not a valid Timestamp"
    assert rows([order(at={"seconds": 1, "nanos": 5 * 10**8})], "at STRING") == [{"at": "1970-01-01T00:00:01.500Z"}]
    assert rows([order(at={"seconds": 1})], "at STRUCT<seconds: BIGINT>") == [{"at": {"seconds": 1}}]


def test_durations_are_seconds() -> None:
    longest = 315_576_000_000
    made = [order(took={"seconds": s, "nanos": n}) for s, n in ((-longest, -999_999_999), (0, 1), (3, 0))]
    assert rows(made, "took DECIMAL(21, 9)") == [
        {"took": Decimal("-315576000000.999999999")},
        {"took": Decimal("0.000000001")},
        {"took": Decimal(3)},
    ]
    assert rows(made[2:], "took STRING") == [{"took": "3s"}]
    assert "does not fit" in reason(made[1].SerializeToString(), "took DECIMAL(10, 3)")
    for wrong in ({"seconds": 1, "nanos": -1}, {"seconds": longest + 1}, {"seconds": -(2**63)}, {"nanos": 10**9}):
        assert (
            reason(order(took=wrong).SerializeToString(), "took DECIMAL(21, 9)")
            == "field 'took' is not a valid Duration"
        )


def test_messages_as_json() -> None:
    made = order(tree={"name": "a", "children": [{"name": "ü"}], "left": {}})
    made.extra.update({"k": [1, None, "x", {"y": True}]})
    found = rows([made, order()], "tree JSON, extra STRING")
    assert json.loads(found[0]["tree"]) == {"name": "a", "children": [{"name": "ü"}], "left": {}}
    assert json.loads(found[0]["extra"]) == {"k": [1, None, "x", {"y": True}]}
    assert found[1] == {"tree": None, "extra": None}
    made.extra.fields["k"].number_value = math.nan
    assert "that JSON cannot hold" in reason(made.SerializeToString(), "extra STRING")


def test_repeated_fields_and_maps_as_json() -> None:
    made = order(items=[{"sku": "a"}, {}], counts={"x": 2**60}, states=[1, 0], weights=[math.nan, 1.5])
    made.by_line[-1].tags.append("ü")
    ddl = "items JSON, counts JSON, states JSON, weights STRING, by_line JSON"
    expected = MessageToDict(made, preserving_proto_field_name=True)
    assert {name: json.loads(text) for name, text in rows([made], ddl)[0].items()} == expected
    assert list(rows([order()], ddl)[0].values()) == ["[]", "{}", "[]", "[]", "{}"]
    assert "that JSON cannot hold" in reason(b"\x2a\x03\x0a\x01\xff", "items JSON")


def test_single_values_as_json() -> None:
    made = order(id=-(2**63), note='a"\n', state=1, raw=b"\xff\x00", large=2**64 - 1, small=0.5, flag=True, d=1e300)
    names = ("id", "note", "state", "raw", "large", "small", "flag", "d", "maybe", "u32")
    (found,) = rows([made], ", ".join(f"{each} JSON" for each in names))
    assert {name: None if text is None else json.loads(text) for name, text in found.items()} == {
        "id": -(2**63),
        "note": 'a"\n',
        "state": "PAID",
        "raw": "/wA=",
        "large": 2**64 - 1,
        "small": 0.5,
        "flag": True,
        "d": 1e300,
        "maybe": None,
        "u32": 0,
    }
    nan = order(d=math.nan).SerializeToString()
    assert reason(nan, "d JSON") == "field 'd' holds a number that JSON cannot hold"
    inside = rows([order(items=[{"price": 0.5}, {"sku": "x"}])], "items ARRAY<STRUCT<price: JSON, sku: JSON>>")
    assert inside == [{"items": [{"price": "0.5", "sku": '""'}, {"price": None, "sku": '"x"'}]}]


def test_wide_integers_come_from_integers_strings_and_wrappers() -> None:
    def wide(name: str) -> Field:
        return Field(name, JSON, bounds=(-(2**127), 2**127 - 1), called="Int128")

    schema = Schema(tuple(map(wide, ("id", "note", "large", "state", "maybe"))))
    most = str(2**127 - 1)
    made = order(id=-7, note=most, large=2**64 - 1, state=1, maybe={"value": 5})
    expected = {"id": "-7", "note": most, "large": str(2**64 - 1), "state": "1", "maybe": "5"}
    assert rows([made], schema) == [expected]
    assert rows([order(note="0")], schema)[0]["maybe"] is None
    outside = "field 'note' is not an integer in the range of Int128"
    for text in (str(2**127), "1.0", "", "x", '"5"'):
        assert reason(order(note=text).SerializeToString(), schema) == outside
    for name in ("d", "flag", "raw"):
        with pytest.raises(TypeError, match=f"field '{name}' is .*, which cannot become"):
            decode([b""], Schema((wide(name),)))


def test_a_repeated_field_fills_a_tuple_without_names() -> None:
    point = pa.struct([pa.field(str(at), pa.float64(), nullable=False) for at in (1, 2)])
    schema = Schema((Field("id", pa.int64()), Field("weights", point, required=True)))
    given = [[1.5, -2.0], [1.0], [], [1.0, 2.0, 3.0], [0.0, 0.5]]
    found = decode([order(id=at, weights=each).SerializeToString() for at, each in enumerate(given)], schema)
    assert found.table.to_pylist() == [
        {"id": 0, "weights": {"1": 1.5, "2": -2.0}},
        {"id": 4, "weights": {"1": 0.0, "2": 0.5}},
    ]
    wrong = "field 'weights' does not hold 2 items"
    assert [str(each.reason) for each in found.rejects] == [wrong, "missing required field 'weights'", wrong]
    optional = Schema((Field("weights", point),))
    assert rows([order(), order(weights=[1, 2])], optional) == [{"weights": None}, {"weights": {"1": 1.0, "2": 2.0}}]
    small = pa.struct([("1", pa.string()), ("2", pa.int8())])
    with pytest.raises(TypeError, match=r"field 'weights\[0\]' is repeated double, which cannot become STRING"):
        decode([b""], Schema((Field("weights", small),)))


def test_a_value_for_a_column_that_no_record_fills_is_a_dead_letter() -> None:
    """An absent field without presence is zero elsewhere, and no value here."""
    names = ("large", "note", "items", "counts", "first", "state")
    schema = Schema((Field("id", pa.int64()), *(Field.unfilled(each, "Geometry") for each in names)))
    nothing = dict.fromkeys(names)
    assert rows([order(id=1), b""], schema) == [{"id": 1, **nothing}, {"id": 0, **nothing}]
    filled = (
        order(large=1),
        order(note=""),
        order(items=[{}]),
        order(counts={"a": 0}),
        order(first={}),
        order(state=1),
    )
    found = decode([each.SerializeToString() for each in filled], schema)
    assert [str(each.reason) for each in found.rejects] == [
        f"field '{name}' has a value, and its column is Geometry, which no record can fill exactly" for name in names
    ]


def test_any_is_its_bytes_or_the_json_of_a_known_type() -> None:
    made = order()
    made.any.Pack(order(id=5).__class__(id=5))
    found = rows([made], "any STRUCT<type_url: STRING, value: BINARY>")[0]["any"]
    assert found == {"type_url": "type.googleapis.com/shop.Order", "value": order(id=5).SerializeToString()}
    assert json.loads(rows([made], "any JSON")[0]["any"]) == {"@type": "type.googleapis.com/shop.Order", "id": "5"}
    made.any.type_url = "type.googleapis.com/shop.Unknown"
    assert "that JSON cannot hold" in reason(made.SerializeToString(), "any JSON")


def test_numbers_fit_or_are_rejected() -> None:
    assert rows([order(large=2**63)], "large DECIMAL(20, 0)") == [{"large": Decimal(2**63)}]
    assert reason(order(large=2**63).SerializeToString(), "large BIGINT") == "field 'large' does not fit BIGINT"
    assert reason(order(id=128).SerializeToString(), "id TINYINT") == "field 'id' does not fit TINYINT"
    assert reason(order(id=10**5).SerializeToString(), "id DECIMAL(5, 0)") == "field 'id' does not fit DECIMAL(5,0)"
    assert rows([order(id=10**5 - 1)], "id DECIMAL(5, 0)") == [{"id": Decimal(99_999)}]
    assert reason(order(id=2**53 + 1).SerializeToString(), "id DOUBLE") == "field 'id' does not fit DOUBLE"
    assert reason(order(d=1e300).SerializeToString(), "d FLOAT") == "field 'd' does not fit FLOAT"
    found = rows([order(d=math.nan, small=math.inf)], "d DOUBLE, small DOUBLE")[0]
    assert math.isnan(found["d"])
    assert found["small"] == math.inf
    finite = Schema((Field("d", pa.float64(), finite=True),))
    assert reason(order(d=math.nan).SerializeToString(), finite) == "field 'd' is not a finite number"


def test_text_may_be_a_number_a_time_or_a_uuid() -> None:
    uuid = "c0ffee00-0000-4000-8000-000000000001"
    note = {"DECIMAL(5, 2)": "1.50", "UUID": uuid, "DATE": "2026-02-03", "TIMESTAMP": "2026-02-03T04:05:06Z"}
    for type_, text in note.items():
        assert rows([order(note=text), order()], f"note {type_}")[1] == {"note": None}
    assert rows([order(note="1.5")], "note DECIMAL(5, 2)") == [{"note": Decimal("1.50")}]
    for wrong in ("", "1.555", "1e2", "x", "12345"):
        assert "field 'note'" in reason(order(note=wrong).SerializeToString(), "note DECIMAL(5, 2)")
    assert str(rows([order(raw=bytes(15) + b"\x01")], "raw UUID")[0]["raw"]).endswith("0001")
    assert rows([order(raw=b"ab")], "raw FIXED(2)") == [{"raw": b"ab"}]
    assert reason(order(raw=b"abc").SerializeToString(), "raw FIXED(2)") == "field 'raw' does not hold exactly 2 bytes"
    assert rows([order(id=1500)], "id TIMESTAMP(3)")[0]["id"].timestamp() == 1.5


def test_required_fields_of_the_table() -> None:
    assert rows([order()], "id BIGINT NOT NULL") == [{"id": 0}]
    assert reason(order().SerializeToString(), "note STRING NOT NULL") == "missing required field 'note'"
    inside = order(items=[{"price": 1}, {}]).SerializeToString()
    ddl = "items ARRAY<STRUCT<price: DOUBLE NOT NULL>>"
    assert reason(inside, ddl) == "missing required field 'items[].price'"


def test_limits_of_the_target() -> None:
    short = Schema((Field("note", pa.string(), longest=2), Field("state", pa.string(), allowed=frozenset({"NEW"}))))
    assert "longer than 2" in reason(order(note="abc").SerializeToString(), short)
    assert "not one of the allowed names" in reason(order(state=1).SerializeToString(), short)


def test_limits_of_the_keys_and_values_of_a_map() -> None:
    text = 'syntax = "proto3"; message M { map<string, string> m = 1; map<int32, string> n = 2; }'
    of, made = source(text, "M"), class_of(text, "M")
    limits = (Field("key", pa.string(), longest=2), Field("value", pa.string(), allowed=frozenset({"a"})))
    schema = Schema(tuple(Field(name, pa.map_(pa.string(), pa.string()), inner=limits) for name in ("m", "n")))
    values: list[dict[str, Any]] = [
        {"m": {"ab": "a"}, "n": {99: "a"}},
        {"m": {"abc": "a"}},
        {"m": {"a": "b"}},
        {"n": {100: "a"}},
    ]
    decoded = decode([made(**each).SerializeToString() for each in values], schema, of=of)
    assert decoded.table.to_pylist() == [{"m": [("ab", "a")], "n": [("99", "a")]}]
    assert [each.reason for each in decoded.rejects] == [
        "field 'm' is longer than 2 characters",
        "field 'm' is not one of the allowed names",
        "field 'n' is longer than 2 characters",
    ]


# Bytes that are no message


GOOD = {"id": 5, "note": "text", "items": [{"sku": "abc", "tags": ["x"]}], "weights": [1.0, 2.0], "d": 0.5}
BAD: dict[str, tuple[bytes, str]] = {
    "cut in a string": (b"\x12\x05ab", "it ends inside field 'note'"),
    "cut in a number": (b"\x08\xff", "it ends inside field 'id'"),
    "cut in a tag": (b"\x08\x01\xff", "it ends inside the number of a field"),
    "cut in a length": (b"\x12\x80", "it ends inside the length of field 'note'"),
    "cut in a double": (b"\xf9\x01\x00\x00", "it ends inside field 'd'"),
    "cut in an unknown field": (b"\xda\x06\x05", "it ends inside an unknown field"),
    "cut in a nested message": (b"\x2a\x03\x0a\x05a", "it ends inside field 'items[].sku'"),
    "a number of eleven bytes": (b"\x08" + b"\xff" * 10 + b"\x01", "field 'id' has more than 10 bytes"),
    "field zero": (b"\x00\x01", "it holds a field without a valid number and type"),
    "wire type 7": (b"\x0f", "it holds a field without a valid number and type"),
    "a tag of six bytes": (b"\x88\x80\x80\x80\x80\x00\x01", "it holds a field without a valid number and type"),
    "a group that does not end": (b"\xdb\x06", "it ends inside a group"),
    "a group that did not begin": (b"\x0c", "a group ends that did not begin"),
    "a group that ends as another": (b"\xdb\x06\xe4\x06", "a group ends that did not begin"),
    "an odd number of packed bytes": (b"\x92\x01\x03abc", "field 'weights[]' does not hold whole numbers"),
    "a huge length": (b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "it ends inside field 'note'"),
    "a length that wraps around": (b"\x12" + b"\xff" * 9 + b"\x01", "it ends inside field 'note'"),
    "deep groups": (b"\xdb\x06" * 100_000, "messages are nested deeper than 100 levels"),
    "JSON": (b'{"id": 5}', "it ends inside an unknown field"),
}
DDL = "id BIGINT, note STRING, items ARRAY<STRUCT<sku: STRING, tags: ARRAY<STRING>>>, weights ARRAY<DOUBLE>, d DOUBLE"


@pytest.mark.parametrize("name", BAD)
def test_a_malformed_record_is_rejected_with_the_place_and_changes_no_other(name: str) -> None:
    value, why = BAD[name]
    assert reason(value, DDL) == f"not a valid shop.Order: {why}"


def test_a_million_groups_do_not_end_the_process() -> None:
    limit = 2**21
    decoder = ProtobufDecoder(parse_schema(DDL), source(ORDERS, "shop.Order"), max_record_bytes=limit)
    good = order(id=1).SerializeToString()
    decoded = decoder.decode(pa.array([good, b"\x7b" * limit, good], pa.binary()))
    assert decoded.kept.tolist() == [0, 2]


@pytest.mark.parametrize("field", ["note", "items[].sku", "items[].tags[]"])
def test_text_that_is_not_utf8_is_rejected_by_name(field: str) -> None:
    bad = {"note": b"\x12\x01\xff", "items[].sku": b"\x2a\x03\x0a\x01\xff", "items[].tags[]": b"\x2a\x03\x22\x01\xff"}
    assert reason(bad[field], DDL) == f"field {field!r} is not valid UTF-8"


def test_a_record_that_is_too_large() -> None:
    large = order(note="x" * 2**20).SerializeToString()
    assert reason(large, DDL) == f"record of {len(large)} bytes exceeds max_record_bytes={2**20}"


def test_unknown_fields_are_skipped() -> None:
    unknown = b"\xd8\x06\x05" + b"\xda\x06\x01\xff" + b"\xdb\x06\x08\x01\xdc\x06" + b"\xdd\x06abcd"
    assert rows([unknown + order(id=5).SerializeToString()], "id BIGINT") == [{"id": 5}]
    wrong_wire_type = b"\x0d\x01\x00\x00\x00"
    assert rows([wrong_wire_type], "id BIGINT") == [{"id": 0}]


def test_many_bad_records_among_good_ones() -> None:
    shuffled = random.Random(5)
    bad = [value for value, _ in BAD.values()][:17]
    values = [order(id=at).SerializeToString() if at % 7 else shuffled.choice(bad) for at in range(3000)]
    decoded = decode(values, DDL)
    assert decoded.table.column("id").to_pylist() == [at for at in range(3000) if at % 7]


# An independent reader of the same bytes


def plain(message: Any) -> dict[str, Any]:
    """A message of `DIFF` as rows show it, read by the API of google.protobuf."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.name == "f24":
            found[field.name] = {str(each.key): each.value for each in value}
        elif field.is_repeated:
            found[field.name] = [plain(each) if field.message_type else each for each in value]
        elif field.has_presence and not message.HasField(field.name):
            found[field.name] = None
        else:
            found[field.name] = plain(value) if field.message_type else value
    return found


DIFF = """
syntax = "proto3";
message Leaf { int32 a = 1; bytes b = 2; repeated sint64 c = 3; oneof o { int32 d = 4; bytes e = 5; } }
message All {
  int32 f1 = 1; int64 f2 = 2; uint32 f3 = 3; sint32 f4 = 4; sint64 f5 = 5; fixed32 f6 = 6; sfixed64 f7 = 7; bool f8 = 8;
  double f9 = 9; float f10 = 10; bytes f11 = 11; optional int32 f12 = 12; optional bytes f13 = 13;
  repeated int32 f14 = 14; repeated fixed32 f15 = 15; repeated double f16 = 16; repeated bytes f17 = 17; repeated bool f18 = 18;
  Leaf f19 = 19; repeated Leaf f20 = 20; oneof o { int32 f21 = 21; Leaf f22 = 22; bytes f23 = 23; }
  map<int32, int32> f24 = 24; repeated int64 f25 = 25 [packed = false];
}
"""


@cache
def diff_decoder() -> tuple[ProtobufDecoder, Any]:
    of = source(DIFF, "All")
    entries = DIFF.replace("map<int32, int32>", "repeated Entry")  # upb drops entries with unknown fields
    oracle = class_of(entries + "message Entry { int32 key = 1; int32 value = 2; }", "All")
    return ProtobufDecoder(schema_of(of), of, max_record_bytes=2**20), oracle


def shown(row: Any) -> Any:
    """Comparable: NaN is equal to itself, and a map has no order."""
    if isinstance(row, dict):
        return {name: shown(dict(value) if name == "f24" else value) for name, value in row.items()}
    if isinstance(row, list):
        return [shown(each) for each in row]
    return struct.pack("d", row) if isinstance(row, float) and not math.isnan(row) else str(row)


def varint(number: int) -> bytes:
    found = b""
    while number > 127:
        found, number = found + bytes([number & 127 | 128]), number >> 7
    return found + bytes([number])


@st.composite
def fields(draw: st.DrawFn, depth: int = 0) -> bytes:
    """Bytes that are often a message: with fields in any order, twice, packed or not, of wrong types, unknown, cut."""
    kind = draw(st.sampled_from([0, 0, 1, 2, 2, 2, 3, 5] if depth < 3 else [0, 1, 5]))
    number = draw(st.integers(1, 26))
    head = varint(number << 3 | kind)
    if kind == 0:
        return head + varint(draw(st.integers(0, 2**64 - 1) | st.integers(0, 300)))
    if kind in (1, 5):
        size = 8 if kind == 1 else 4
        return head + draw(st.binary(min_size=size, max_size=size))
    inside = b"".join(draw(st.lists(fields(depth + 1), max_size=3)))
    if kind == 3:
        return head + inside + varint(number << 3 | 4)
    body = draw(st.just(inside) | st.binary(max_size=9) | st.lists(st.integers(0, 2**64 - 1).map(varint)).map(b"".join))
    return head + varint(len(body)) + body


@given(st.lists(st.lists(fields(), max_size=5).map(b"".join) | st.binary(max_size=12), max_size=6))
@settings(deadline=None)
def test_rows_are_what_google_protobuf_reads(values: list[bytes]) -> None:
    decoder, message = diff_decoder()
    decoded = decoder.decode(pa.array(values, pa.binary()))
    expected = {}
    for at, value in enumerate(values):
        try:
            expected[at] = shown(plain(message.FromString(value)))
        except DecodeError:
            continue
    assert decoded.kept.tolist() == list(expected)
    assert [shown(row) for row in decoded.table.to_pylist()] == list(expected.values())


@given(st.data())
@settings(deadline=None, max_examples=30)
def test_rows_agree_with_the_json_of_google_protobuf(data: st.DataObject) -> None:
    text = st.text(max_size=4)
    item = st.fixed_dictionaries(
        {}, optional={"sku": text, "count": st.integers(-9, 9), "tags": st.lists(text, max_size=2)}
    )
    made = order(
        id=data.draw(st.integers(-(2**63), 2**63 - 1)),
        state=data.draw(st.sampled_from([0, 1, -7])),
        items=data.draw(st.lists(item, max_size=3)),
        counts=data.draw(st.dictionaries(text, st.integers(-9, 9), max_size=3)),
    )
    items = "ARRAY<STRUCT<sku: STRING, count: INT, tags: ARRAY<STRING>>>"
    found = rows([made], f"id BIGINT, state STRING, items {items}, counts MAP<STRING, BIGINT>")[0]
    listed = MessageToDict(made, always_print_fields_with_no_presence=True, preserving_proto_field_name=True)
    items = [{name: each[name] for name in ("sku", "count", "tags")} for each in listed["items"]]
    counts = {name: int(each) for name, each in listed["counts"].items()}
    assert (found["id"], found["state"], found["items"]) == (int(listed["id"]), listed["state"], items)
    assert dict(found["counts"]) == counts


# proto2


def old(**values: Any) -> Any:
    return class_of(OLD, "old.Log")(**values)


def test_proto2_absent_is_null_also_if_a_default_is_declared() -> None:
    of = source(OLD, "old.Log")
    assert rows([old(host="a")], "host STRING, port INT, level STRING", of=of) == [
        {"host": "a", "port": None, "level": None}
    ]


def test_proto2_required_fields_and_groups() -> None:
    of = source(OLD, "old.Log")
    made = old(host="a", place={"city": "x", "zip": 5}, part=[{"name": "p"}, {}], levels=[3, 9], packed=[1, -1])
    found = rows([made, old(host="b")], schema_of(of), of=of)
    assert found[0] == {
        "host": "a",
        "port": None,
        "level": None,
        "place": {"city": "x", "zip": 5},
        "part": [{"name": "p"}, {"name": None}],
        "levels": ["LOW", "HIGH"],
        "packed": [1, -1],
    }
    assert found[1]["place"] is None
    assert reason(b"\x10\x05", schema_of(of), of=of) == "missing required field 'host'"
    within = old(host="a", place={"city": "x"}).SerializePartialToString()
    assert reason(within, schema_of(of), of=of) == "missing required field 'place.zip'"


def test_a_number_that_a_closed_enum_does_not_name_is_not_lost() -> None:
    of = source(OLD, "old.Log")
    value = old(host="a").SerializeToString() + b"\x18\x04"
    assert rows([value], "level INT", of=of) == [{"level": 4}]
    assert "does not name" in reason(value, "level STRING", of=of)


# Schemas


def test_the_suggested_schema() -> None:
    assert spelled_schema(schema_of(source(ORDERS, "shop.Order"))) == (
        "id BIGINT, note STRING, state STRING, "
        "first STRUCT<sku: STRING, count: INT, price: DOUBLE, tags: ARRAY<STRING NOT NULL>>, "
        "items ARRAY<STRUCT<sku: STRING, count: INT, price: DOUBLE, tags: ARRAY<STRING NOT NULL>> NOT NULL>, "
        "counts MAP<STRING, BIGINT NOT NULL>, "
        "by_line MAP<STRING, STRUCT<sku: STRING, count: INT, price: DOUBLE, tags: ARRAY<STRING NOT NULL>> NOT NULL>, "
        "card STRING, voucher BIGINT, barter STRUCT<sku: STRING, count: INT, price: DOUBLE, tags: ARRAY<STRING NOT NULL>>, "
        "at TIMESTAMP, took DECIMAL(21, 9), maybe BIGINT, extra JSON, any STRUCT<type_url: STRING, value: BINARY>, "
        "tree STRUCT<name: STRING, children: ARRAY<JSON NOT NULL>, left: JSON>, states ARRAY<STRING NOT NULL>, "
        "weights ARRAY<DOUBLE NOT NULL>, raw BINARY, large DECIMAL(20, 0), small FLOAT, flag BOOLEAN, "
        "f32 BIGINT, f64 DECIMAL(20, 0), sf32 INT, sf64 BIGINT, s32 INT, s64 BIGINT, u32 BIGINT, i32 INT, d DOUBLE, "
        "empty JSON, flags MAP<STRING, STRING NOT NULL>"
    )


def test_times_have_nanoseconds_if_a_record_shows_some() -> None:
    of = source(ORDERS, "shop.Order")
    units = [
        schema_of(of, [order(at={"nanos": nanos}).SerializeToString(), b"\xff"]).by_name()["at"].type.unit
        for nanos in (1000, 1001)
    ]
    assert units == ["us", "ns"]


@pytest.mark.parametrize(
    ("ddl", "why"),
    [
        ("id STRING", "field 'id' is int64, which cannot become STRING"),
        ("note BIGINT", "field 'note' is string, which cannot become BIGINT"),
        ("items BIGINT", "field 'items' is repeated shop.Item, which cannot become BIGINT"),
        ("first INT", "field 'first' is shop.Item, which cannot become INT"),
        ("counts BOOLEAN", "field 'counts' is map<string, int64>, which cannot become BOOLEAN"),
        ("items ARRAY<STRUCT<sku: INT>>", "field 'items[].sku' is string, which cannot become INT"),
        ("state BOOLEAN", "field 'state' is enum shop.State, which cannot become BOOLEAN"),
        ("raw STRING", "field 'raw' is bytes, which cannot become STRING"),
    ],
)
def test_a_field_that_can_never_fit_is_refused_before_any_record(ddl: str, why: str) -> None:
    with pytest.raises(TypeError) as caught:
        ProtobufDecoder(parse_schema(ddl), source(ORDERS, "shop.Order"), max_record_bytes=100)
    assert why in str(caught.value)


def test_sources_are_files(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "item.proto").write_text('syntax = "proto3"; message Item { string sku = 1; }')
    proto = tmp_path / "order.proto"
    proto.write_text('syntax = "proto3"; import "parts/item.proto"; message Order { Item item = 1; }')
    of = ProtobufSource.of_file(proto)
    assert of.message == "Order"
    (tmp_path / "order.desc").write_bytes(of.descriptors)
    assert ProtobufSource.of_file(tmp_path / "order.desc", "Order") == of
    assert pickle.loads(pickle.dumps(of)) == of
    assert rows([b"\x0a\x03\x0a\x01x"], "item STRUCT<sku: STRING>", of=of) == [{"item": {"sku": "x"}}]


def test_sources_that_cannot_be_used(tmp_path: Path) -> None:
    proto = tmp_path / "order.proto"
    cases = {
        'syntax = "proto3"; message A {} message B {}': "has several messages (A, B), and none is chosen",
        'syntax = "proto3"; message A { int32 x = 1; int32 y = 1; }': "cannot be compiled",
        'syntax = "proto3"; import "other.proto"; message A {}': "other.proto",
    }
    for text, why in cases.items():
        proto.write_text(text)
        with pytest.raises(ConfigError) as caught:
            ProtobufSource.of_file(proto)
        assert why in str(caught.value)
    for data, why in ((b"\xff", "not a FileDescriptorSet"), (b"", "holds no file")):
        (tmp_path / "x.desc").write_bytes(data)
        with pytest.raises(ConfigError) as caught:
            ProtobufSource.of_file(tmp_path / "x.desc", "A")
        assert why in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        ProtobufSource.of_file(tmp_path / "nowhere.proto")
    assert "nowhere.proto" in str(caught.value)
    message_of_set = ProtobufSource(compile_text(ORDERS, {}), "shop.Nothing")
    with pytest.raises(ConfigError) as caught:
        ProtobufDecoder(parse_schema("id BIGINT"), message_of_set, max_record_bytes=1)
    assert "has no message 'shop.Nothing'. It has: shop.Item, shop.Tree, shop.Order" in str(caught.value)


def test_a_schema_does_not_write_outside_of_its_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        compile_text('syntax = "proto3";', {f"../../..{tmp_path}/evil.proto": "x"})
    assert list(tmp_path.iterdir()) == []


# Confluent's framing


def framed(schema_id: int, value: bytes, *indexes: int) -> bytes:
    """As Confluent's serializers write it: zigzag varints."""
    listed = b"".join(varint(each << 1) for each in (len(indexes), *indexes)) if indexes else b"\0"
    return b"\0" + schema_id.to_bytes(4, "big") + listed + value


EVENTS = """
syntax = "proto3";
package e;
import "item.proto";
import "confluent/meta.proto";
message A { int64 id = 1; Item item = 2; }
message B { message C { string name = 1 [(confluent.field_meta).doc = "name"]; int64 id = 2; } string id = 1; }
"""
NEWER = 'syntax = "proto3"; package e; message A { int64 id = 1; string added = 3; bool item = 2; }'
ITEM = 'syntax = "proto3"; package e; message Item { string sku = 1; }'
EVENTS_WITH_ITEM = Registered("PROTOBUF", EVENTS, (("item.proto", ITEM),))
NEWER_ALONE = Registered("PROTOBUF", NEWER)
KNOWN = {
    1: EVENTS_WITH_ITEM,
    2: NEWER_ALONE,
    3: Registered("PROTOBUF", "no schema"),
    4: Registered("AVRO", '"int"'),
    70_000: NEWER_ALONE,
}
REGISTRY = InMemory("http", "nowhere", 1, known=tuple(KNOWN.items()))


def test_a_frame_says_which_message_follows() -> None:
    assert frame_of(framed(1, b"xyz")) == (Frame(1, (0,)), 6)
    assert frame_of(framed(2**31, b"", 0)) == (Frame(2**31, (0,)), 7)
    assert frame_of(framed(5, b"\1", 1, 0)) == (Frame(5, (1, 0)), 8)
    assert frame_of(framed(5, b"\1", 200)) == (Frame(5, (200,)), 8)
    for bad in (
        b"",
        b"\1\0\0\0\1\0",
        b"\0\0\0\0\1",
        b"\0\0\0\0\1\2",
        b"\0\0\0\0\1\1",
        b"\0\0\0\0\1\2\1",
        b"\0\0\0\0\1" + b"\xff" * 11,
    ):
        with pytest.raises(BadFrame):
            frame_of(bad)


def test_records_of_several_schemas_and_messages_in_one_batch() -> None:
    of = ProtobufSource(registry=REGISTRY)
    values = [
        framed(1, b"\x08\x05"),
        framed(2, b"\x08\x06\x1a\x01x"),
        framed(1, b"\x08\x07", 0),
        framed(1, b"\x10\x08\x0a\x01n", 1, 0),
        framed(70_000, b"\x08\x09"),
        framed(2, b""),
    ]
    ddl = "id BIGINT, added STRING, name STRING"
    assert [tuple(row.values()) for row in rows(values, ddl, of=of)] == [
        (5, None, None),
        (6, "x", None),
        (7, None, None),
        (8, None, "n"),
        (9, "", None),
        (0, "", None),
    ]
    suggested = schema_of(of, values)
    assert spelled_schema(suggested) == "id BIGINT, item BOOLEAN, name STRING, added STRING"


def test_what_the_registry_or_the_framing_does_not_know_is_rejected() -> None:
    of = ProtobufSource(registry=REGISTRY)
    good = framed(1, b"\x08\x05")
    bad = {
        b"": "does not begin with the zero byte of Confluent's framing",
        b"\x08\x05": "does not begin with the zero byte of Confluent's framing",
        b"\0\0\0\0\1": "ends inside Confluent's framing",
        framed(9, b""): "schema 9 is not in the registry",
        framed(4, b""): "schema 4 of the registry is AVRO, not PROTOBUF",
        framed(3, b""): "schema 3 of the registry cannot be compiled",
        framed(1, b"", 5): "schema 1 has no message [5]",
        framed(1, b"", 1): "e.B does not fit: field 'id' is string, which cannot become BIGINT",
        framed(1, b"\xff"): "not a valid e.A: it ends inside the number of a field",
    }
    values = [each for value in bad for each in (good, value)]
    decoded = decode(values, "id BIGINT", of=of)
    assert [each.reason for each in decoded.rejects] == list(bad.values())
    assert decoded.table.column("id").to_pylist() == [5] * len(bad)


def test_only_the_chosen_message_lands() -> None:
    of = ProtobufSource(message="e.A", registry=REGISTRY)
    decoded = decode([framed(1, b"\x08\x05"), framed(1, b"", 1, 0)], "id BIGINT", of=of)
    assert [each.reason for each in decoded.rejects] == ["is a e.B.C, not a e.A"]


PROTOC_FAILS = {
    "signal 9 ended protoc": "import os; os.kill(os.getpid(), 9)",
    "No module named grpc_tools": "import sys; sys.exit('No module named grpc_tools')",
    "landonce_main.proto:1:1: warning: unused": "import sys; sys.exit('landonce_main.proto:1:1: warning: unused')",
    "protoc did not end in 1 s": "import time; time.sleep(60)",
    "No such file or directory": None,
}


@pytest.mark.parametrize("problem", PROTOC_FAILS)
def test_a_protoc_that_does_not_run_is_no_dead_letter(
    problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program runs instead of Python with protoc."""
    program, instead = tmp_path / "python", PROTOC_FAILS[problem]
    if instead is not None:
        program.write_text(f"#!{sys.executable}\n{instead}\n")
        program.chmod(0o700)
    schema = Registered("PROTOBUF", f'syntax = "proto3"; message M {{ int64 id = 1; }} // {problem}')
    of = ProtobufSource(registry=InMemory("http", "nowhere", 1, known=((1, schema),)))
    with monkeypatch.context() as broken:
        broken.setattr(sys, "executable", str(program))
        broken.setattr(source_module, "_PROTOC_SECONDS", 1)
        with pytest.raises(SourceUnavailable, match=problem):
            decode([framed(1, b"\x08\x05")], "id BIGINT", of=of)
    assert rows([framed(1, b"\x08\x05")], "id BIGINT", of=of) == [{"id": 5}]


@pytest.mark.parametrize("name", ["", "a", "x" * 300, "\0", "\ud800"])
def test_a_reference_whose_name_is_no_file_is_rejected(name: str) -> None:
    schema = Registered("PROTOBUF", 'syntax = "proto3"; message M {}', (("a/b.proto", ""), (name, "")))
    of = ProtobufSource(registry=InMemory("http", "nowhere", 1, known=((1, schema),)))
    (reject,) = decode([framed(1, b"")], "id BIGINT", of=of).rejects
    assert reject.reason == "schema 1 of the registry cannot be compiled"


def test_an_error_of_the_registry_itself_is_no_dead_letter() -> None:
    class Unreachable(InMemory):
        def schema(self, number: int) -> Registered:
            raise RegistryUnavailable(str(number))

    unreachable = ProtobufSource(registry=Unreachable("http", "nowhere", 1))
    decoder = ProtobufDecoder(parse_schema("id BIGINT"), unreachable, max_record_bytes=100)
    with pytest.raises(RegistryUnavailable):
        decoder.decode(pa.array([framed(1, b"")], pa.binary()))
