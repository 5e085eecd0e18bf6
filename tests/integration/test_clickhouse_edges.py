"""Every type of a ClickHouse column, from the JSON of a record to the table and back: the least, the greatest, and what is just beyond.

The server says what it holds, as text. What a type cannot hold exactly is a reject with a reason, never another value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from clickhouse_tables import block, insert, make, sink_for

from landonce.errors import TableUnfit
from landonce.local import LocalClickHouse
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.settle import Reply
from landonce.read.formats.json.decode import JsonDecoder
from landonce.sinks.clickhouse.held import ClickHouseRows
from landonce.sinks.clickhouse.sink import ClickHouseSink
from landonce.sinks.clickhouse.types import parse_type
from landonce.verify.values import differing

pytestmark = pytest.mark.integration

NewTable = Callable[[], str]
RANGE = (Range(Partition("t", 0), 0, 100),)
NOT_STORED = {"Decimal32", "Decimal64", "Decimal128", "Decimal256", "Nested"}
"""Names of types that a table holds under another name."""
MISSING = "missing required field"
UUID = "61f0c404-5cb3-11e7-907b-a6006ad3dba0"


@dataclass
class Edges:
    """Values of one type: as a record writes them, and as the server shows them; and those that must not land, with the reason."""

    type: str
    good: dict[str, str]
    bad: dict[str, str] = field(default_factory=dict)
    shown: str = "toString(v)"


def integers(name: str, low: int, high: int) -> Edges:
    beyond = "in the range of" if high >= 2**64 else "out of the range of"
    good = {str(each): str(each) for each in (low, high, 1)}
    bad = {str(low - 1): beyond, str(high + 1): beyond, "1.5": "", "true": "", '"x"': "", "null": MISSING, "[1]": ""}
    return Edges(name, good, bad)


def moments(scale: int) -> Edges:
    unit = (0, 3, 3, 3, 6, 6, 6, 9, 9, 9)[scale]
    fraction = "." + "9" * scale if scale else ""
    last = "2262-04-11 23:47:15" if unit == 9 else "2299-12-31 23:59:59"
    first = "1900-01-01 00:00:00"
    good = {json.dumps(f"{each.replace(' ', 'T')}{last_digits}Z"): f"{each}{last_digits}"
            for each, last_digits in ((first, "." + "0" * scale if scale else ""), (last, fraction.replace("9", "8")))}  # fmt: skip
    bad = {'"1899-12-31T23:59:59Z"': "outside the range", '"2300-01-01T00:00:00Z"': "", "null": MISSING}
    if scale < 9:
        bad[f'"2020-01-01T00:00:00.{"0" * scale}1Z"'] = ""
    return Edges(f"DateTime64({scale}, 'UTC')", good, bad)


def times(scale: int) -> Edges:
    fraction = "." + "123456789"[:scale] if scale else ""
    zeros = "." + "0" * scale if scale else ""
    good = {json.dumps(f"{each}{fraction}"): f"{each}{fraction}" for each in ("999:59:59", "-999:59:59", "00:00:00")}
    good |= {'"23:59:59"': f"23:59:59{zeros}"} | ({'"01:00:00.000000000000"': f"01:00:00{zeros}"} if scale else {})
    wrong = f"not a valid Time64({scale})" if scale else "not a valid Time"
    bad = dict.fromkeys(
        ('"1000:00:00"', '"1:00:00"', '"24:60:00"', '"00:00"', f'"00:00:00.{"0" * scale}1"', '""'), wrong
    )
    return Edges(f"Time64({scale})" if scale else "Time", good, bad | {"null": MISSING, "60": "should be STRING"})


EDGES = [
    *(integers(f"Int{bits}", -(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64, 128, 256)),
    *(integers(f"UInt{bits}", 0, 2**bits - 1) for bits in (8, 16, 32, 64, 128, 256)),
    Edges("Nullable(UInt256)", {f'"{2**256 - 1}"': str(2**256 - 1), "null": "NULL"}, {'"+1"': "", '"01"': "", '" 1"': ""}),
    Edges("Array(Int128)", {f'[1, "-{2**127}"]': f"[1,-{2**127}]", "[]": "[]"}, {f"[{2**127}]": "", "[null]": ""}),
    Edges("Bool", {"true": "true", "false": "false"}, {"1": "", '"true"': "", "null": MISSING}),
    Edges("Float32", {"3.4028234663852886e38": "3.4028235e38", "16777216": "16777216", "-0.0": "-0"},
          {"3.5e38": "not a finite number", "16777217": "cannot hold exactly", '"1"': "", "NaN": ""}),
    Edges("Float64", {"1.7976931348623157e308": "1.7976931348623157e308", "5e-324": "5e-324", "9007199254740992": "9007199254740992"},
          {"1e309": "beyond the range", "9007199254740993": "cannot hold exactly"}),
    Edges("BFloat16", {"0.5": "0.5", "-256": "-256", "3.3895313892515355e38": "3.3895314e38", "0.100097656": "0.100097656"},
          {"0.1": "BFloat16 holds exactly", "257": "BFloat16 holds exactly", "3.4e38": "BFloat16", "1e39": "", "null": MISSING},
          "toString(toFloat32(v))"),
    Edges("Array(BFloat16)", {"[1.5, -2]": "[1.5,-2]"}, {"[1.5, 0.1]": "BFloat16 holds exactly"}, "toString(CAST(v, 'Array(Float32)'))"),
    Edges("Decimal(76, 76)", {f'"-0.{"9" * 76}"': f"-0.{'9' * 76}", "0": "0"}, {"1": "", f'"0.{"0" * 76}1"': ""}),
    Edges("Decimal(76, 0)", {"9" * 76: "9" * 76}, {"1" + "0" * 76: "does not fit", "0.5": ""}),
    Edges("Decimal(38, 38)", {f"0.{'9' * 38}": f"0.{'9' * 38}"}, {"1": "does not fit"}),
    Edges("Decimal(9, 2)", {"9999999.99": "9999999.99", '"-9999999.99"': "-9999999.99", "1.500": "1.5"},
          {"10000000": "does not fit", "0.001": "", '"x"': ""}),
    Edges("String", {'""': "", r'"a\u0000b"': "a\0b", '"é"': "é"}, {"1": "", "null": MISSING, r'"\ud800"': ""}),
    Edges("FixedString(4)", {'"abcd"': "abcd", '"éé"': "éé", '""': ""}, {'"abcde"': "longer than 4 bytes", '"ééa"': "longer"},
          "toStringCutToZero(v)"),
    Edges("FixedString(256)", {json.dumps("x" * 256): "x" * 256}, {json.dumps("x" * 257): "longer than 256 bytes"}),
    Edges("Date", {'"1970-01-01"': "1970-01-01", '"2149-06-06"': "2149-06-06"},
          {'"1969-12-31"': "outside the range", '"2149-06-07"': "outside the range", '"2020-02-30"': "", '"x"': ""}),
    Edges("Date32", {'"1900-01-01"': "1900-01-01", '"2299-12-31"': "2299-12-31"},
          {'"1899-12-31"': "outside the range", '"2300-01-01"': "outside the range"}),
    Edges("DateTime('Asia/Kathmandu')", {'"1970-01-01T00:00:00Z"': "1970-01-01 05:30:00", "4294967295": "2106-02-07 12:13:15"},
          {'"1969-12-31T23:59:59Z"': "outside", "4294967296": "outside", '"2020-01-01T00:00:00.5Z"': ""}),
    *map(moments, range(10)),
    Edges("DateTime64(3, 'Europe/Berlin')", {'"2020-10-25T00:30:00Z"': "2020-10-25 02:30:00.000", "-1": "1970-01-01 00:59:59.999"}),
    *map(times, range(10)),
    Edges("Nullable(Time64(3))", {'"-00:00:00.5"': "-00:00:00.500", "null": "NULL"}),
    Edges("IntervalSecond", {"-9223372036854775808": "-9223372036854775808", "7": "7"}, {"9223372036854775808": "", "1.5": ""},
          "toString(toInt64(v))"),
    Edges("Nullable(IntervalMonth)", {"7": "7", "null": "NULL"}, {}, "ifNull(toString(v), 'NULL')"),
    Edges("UUID", {json.dumps(UUID.upper()): UUID, f'"{"0" * 8}-0000-0000-0000-{"0" * 12}"': f"{'0' * 8}-0000-0000-0000-{'0' * 12}"},
          {'"x"': "not a valid UUID", json.dumps(UUID.replace("-", "")): "not a valid UUID", '""': "", "null": MISSING}),
    Edges("Enum8('a' = -128, 'b,\\'c' = 127)", {'"a"': "a", '"b,\'c"': "b,'c"}, {'"c"': "allowed names", '""': "", "127": ""}),
    Edges("Enum16('a' = -32768, '' = 32767)", {'"a"': "a", '""': ""}, {'"b"': "allowed names"}),
    Edges("IPv4", {'"0.0.0.0"': "0.0.0.0", '"255.255.255.255"': "255.255.255.255"}, {'"256.0.0.1"': "not a valid IPv4", '"::1"': ""}),
    Edges("IPv6", {'"::"': "::", f'"{":".join(["FFFF"] * 8)}"': ":".join(["ffff"] * 8)}, {'"1.2.3.4"': "not a valid IPv6", '":::"': ""}),
    Edges("LowCardinality(String)", {'""': "", '"x"': "x"}, {"null": MISSING}),
    Edges("LowCardinality(Nullable(FixedString(2)))", {'"ab"': "ab", "null": "NULL"}, {'"abc"': "longer than 2 bytes"}),
    Edges("LowCardinality(UUID)", {json.dumps(UUID): UUID}, {'"x"': "not a valid UUID"}),
    Edges("Array(Array(Nullable(Int8)))", {"[[127,null],[]]": "[[127,NULL],[]]", "[]": "[]"}, {"[[128]]": "", "[null]": "", "null": MISSING}),
    Edges("Array(Enum8('a' = 1))", {'["a","a"]': "['a','a']"}, {'["a","b"]': "allowed names", "[null]": "null"}),
    Edges("Map(String, Int8)", {'{"a":127,"":-128}': "{'a':127,'':-128}", "{}": "{}"},
          {'{"a":128}': "", '{"a":1,"a":2}': "twice", '{"a":null}': "null", "[]": "", "null": MISSING}),
    Edges("Map(LowCardinality(String), Nullable(Float64))", {'{"a":null,"b":0.5}': "{'a':NULL,'b':0.5}"}, {'{"a":"x"}': ""}),
    Edges("Map(UInt8, Array(UUID))", {f'{{"255":["{UUID}"],"0":[]}}': f"{{255:['{UUID}'],0:[]}}"},
          {'{"256":[]}': "key", '{"01":[]}': "key", '{"-1":[]}': "key", '{"1":["x"]}': "not a valid UUID"}),
    Edges("Map(Enum8('a' = 1), Tuple(key String))", {'{"a":{"key":"z"}}': "{'a':('z')}"}, {'{"z":{"key":"a"}}': "allowed names"}),
    Edges("Map(Bool, Int8)", {'{"true":1,"false":2}': "{true:1,false:2}"}, {'{"True":1}': "", '{"1":1}': ""}),
    Edges("Map(Decimal(9, 2), String)", {'{"-0.5":"a","7":"b"}': "{-0.5:'a',7:'b'}"}, {'{"0.001":"a"}': "", '{"7":"a","7.00":"b"}': "twice"}),
    Edges("Map(Int256, Date)", {f'{{"-{2**255}":"2020-01-01"}}': f"{{-{2**255}:'2020-01-01'}}"},
          {f'{{"{2**255}":"2020-01-01"}}': "in the range of Int256", '{"1":"1969-12-31"}': "outside the range"}),
    Edges("Map(Date, Map(String, BFloat16))", {'{"2020-01-01":{"a":1}}': "{'2020-01-01':{'a':1}}"},
          {'{"1969-12-31":{}}': "outside", '{"2020-01-01":{"a":0.1}}': "BFloat16"}, "toString(CAST(v, 'Map(Date, Map(String, Float32))'))"),
    Edges("Tuple(a Int8, `b c` Nullable(UUID), d Tuple(a Enum8('x' = 1), b String))",
          {f'{{"a":-128,"b c":"{UUID}","d":{{"a":"x","b":"y"}}}}': f"(-128,'{UUID}',('x','y'))",
           '{"d":{"b":"","a":"x"},"a":127}': "(127,NULL,('x',''))"},
          {'{"a":1,"b c":"x","d":{"a":"x","b":""}}': "not a valid UUID", '{"a":1,"d":{"a":"y","b":""}}': "allowed names",
           '{"a":null,"d":{"a":"x","b":""}}': "null", '{"a":1}': "null", "[1]": "", "null": MISSING}),
    Edges("Tuple(Int8, String, Array(Tuple(UInt8, IPv4)))", {'[1,"x",[[255,"1.2.3.4"],[0,"0.0.0.0"]]]': "(1,'x',[(255,'1.2.3.4'),(0,'0.0.0.0')])",
                                                             ' [ 1 , "]," , [] ] ': "(1,'],',[])"},
          {"[1]": "should have 3 items but has 1", '[1,"x",[],4]': "should have 3 items but has 4", "[]": "items", '[1,"x",[[256,"1.2.3.4"]]]': "",
           '[1,"x",[[1,"1.2.3"]]]': "not a valid IPv4", '[1,null,[]]': "null", '["x",1,[]]': ""}),
    Edges("Nullable(Tuple(a Int8, b String))", {'{"a":1,"b":""}': "(1,'')", "null": "NULL"}, {'{"a":1}': "null"}),
    Edges("Nullable(Tuple(u UUID, t Time64(3), i Int256, a IPv4, n Nullable(UUID), l Array(UUID)))",
          {f'{{"u":"{UUID}","t":"00:00:01","i":7,"a":"1.2.3.4","n":null,"l":[]}}': f"('{UUID}','00:00:01.000',7,'1.2.3.4',NULL,[])",
           "null": "NULL"}),
    Edges("Map(Float64, Int8)", {'{"1.5":1,"-0.0":2,"1e300":3,"0.1":4}': "{1.5:1,-0:2,1e300:3,0.1:4}"},
          {'{"1.0":1,"1":2}': "twice", '{"0":1,"-0.0":2}': "twice", '{"1e999":1}': "not a DOUBLE", '{"1e-999":1}': "not a DOUBLE", '{"9007199254740993":1}': "not a DOUBLE",
           '{"x":1}': "not a DOUBLE", '{"nan":1}': "not a DOUBLE", '{"01":1}': "not a DOUBLE"}),
    Edges("Map(Float32, BFloat16)", {'{"0.1":0.5,"16777216":1}': "{0.1:0.5,16777216:1}"}, {'{"0.1":0.1}': "", '{"16777217":1}': "not a FLOAT"}),
    Edges("Array(Tuple(o Nullable(Tuple(u Date, v Nullable(IPv4), w Array(UUID)))))",
          {f'[{{"o":{{"u":"2020-01-01","v":"1.2.3.4","w":["{UUID}"]}}}},{{"o":null}},{{}}]': f"[(('2020-01-01','1.2.3.4',['{UUID}'])),(NULL),(NULL)]"},
          {'[{"o":{"u":"1969-12-31","v":"1.2.3.4","w":[]}}]': "outside"}),
    Edges("Array(Nested(a Int8, b Date))", {'[[{"a":1,"b":"2020-01-01"}],[]]': "[[(1,'2020-01-01')],[]]"}, {'[[{"a":1,"b":"1900-01-01"}]]': "outside"}),
    Edges("Point", {"[1.5,-2]": "(1.5,-2)"}, {"[1]": "2 items", "[1,2,3]": "2 items", '["a",1]': "", "[null,1]": "null", "1": "", "null": MISSING}),
    Edges("Nullable(Point)", {"[1.5,-2]": "(1.5,-2)", "null": "NULL"}, {"[1]": "2 items"}),
    Edges("Ring", {"[[0,0],[1,0],[1,1]]": "[(0,0),(1,0),(1,1)]", "[]": "[]"}, {"[[0]]": "2 items"}),
    Edges("LineString", {"[[0,0.5]]": "[(0,0.5)]"}, {"[[0,9007199254740993]]": "cannot hold exactly"}),
    Edges("MultiPoint", {"[[0,0.5]]": "[(0,0.5)]"}, {"[0,1]": ""}),
    Edges("MultiLineString", {"[[[0,0.5]],[]]": "[[(0,0.5)],[]]"}, {"[[[0,0.5,1]]]": "2 items"}),
    Edges("Polygon", {"[[[0,0],[1,0]],[[2,2]]]": "[[(0,0),(1,0)],[(2,2)]]"}, {"[[0,0]]": ""}),
    Edges("MultiPolygon", {"[[[[0,0],[1,0]]],[]]": "[[[(0,0),(1,0)]],[]]"}, {"[[[[0]]]]": "2 items"}),
    Edges("SimpleAggregateFunction(max, UInt64)", {"18446744073709551615": "18446744073709551615"}, {"-1": ""}),
    Edges("SimpleAggregateFunction(anyLast, Nullable(UUID))", {json.dumps(UUID): UUID, "null": "NULL"}, {'"x"': "not a valid UUID"}),
    Edges("SimpleAggregateFunction(groupArrayArray, Array(Int8))", {"[1]": "[1]"}, {"[128]": ""}),
    Edges("QBit(Float32, 3)", {"[0.5,1,-2]": "[0.5,1,-2]"}, {"[0.5,1]": "3 items", "[1,2,3,4]": "3 items", "null": MISSING},
          "toString(CAST(v, 'Array(Float32)'))"),
    Edges("JSON", {'{"a":{"b":[1,"x",null,{"c":true}]},"d":-0.5}': '{"a":{"b":[1,"x",null,{"c":true}]},"d":-0.5}', "{}": "{}",
                   '{"a":18446744073709551615,"b":-9223372036854775808}': '{"a":18446744073709551615,"b":-9223372036854775808}',
                   '{"a":"2020-01-01T00:00:00Z","b":"12","c":[true,1],"é":"\\u0000"}': '{"a":"2020-01-01T00:00:00Z","b":"12","c":[true,1],"é":"\\u0000"}',
                   '{"a":null,"b":{},"c":1.50}': '{"c":1.5}'},
          {"[1]": "not an object", '"{}"': "not an object", "1": "not an object", '{"a.b":1}': "a key with a dot", '{"a":[{"b":1,"b":2}]}': "twice",
           '{"a":18446744073709551616}': "more than 64 bits", '{"a":[9007199254740993,0.5]}': "cannot hold exactly", '{"a":1e999}': "beyond",
           '{"a":' * 100 + "1" + "}" * 100: "too deeply", "null": MISSING}, "toJSONString(v)"),
    Edges("JSON(a.b UInt8, c Nullable(String), l Array(Int64), f LowCardinality(Nullable(String)), d Nullable(Float64), SKIP s, SKIP t.`u v`)",
          {'{"a":{"b":255,"x":1},"l":[9007199254740993]}': '{"a":{"b":255,"x":1},"c":null,"d":null,"f":null,"l":[9007199254740993]}',
           '{"a":{"b":0},"c":"x","d":0.1,"f":"y","l":[],"t":{"w":2},"s":null}': '{"a":{"b":0},"c":"x","d":0.1,"f":"y","l":[],"t":{"w":2}}'},
          {'{"l":[]}': "lacks 'a.b', which the column would set to a default", '{"a":{"b":null},"l":[]}': "lacks 'a.b'", '{"a":{"b":256},"l":[]}': "holds no UInt8 at 'a.b'",
           '{"a":{"b":"1"},"l":[]}': "holds no UInt8", '{"a":1,"l":[]}': "on the way to 'a.b'", '{"a":{"b":1}}': "lacks 'l'", '{"a":{"b":1},"l":[1.5]}': "holds no Array",
           '{"a":{"b":1},"l":[],"c":5}': "holds no Nullable(String) at 'c'", '{"a":{"b":1},"l":[],"s":1}': "holds 's', which the column skips",
           '{"a":{"b":1},"l":[],"t":{"u v":1}}': "holds 't.u v'", '{"a":{"b":1},"l":[],"d":9007199254740993}': "holds no Nullable(Float64)", "[1]": "not an object"}, "toJSONString(v)"),
    Edges("Nullable(JSON)", {'{"a":1}': '{"a":1}', "null": "NULL"}, {"1": "not an object"}),
    Edges("Array(JSON(max_dynamic_paths=2))", {'[{"a":1,"b":2,"c":3},{}]': '[{"a":1,"b":2,"c":3},{}]'}, {'[{"a.b":1}]': "a dot", "[1]": "not an object"},
          "toJSONString(v)"),
    Edges("Tuple(j JSON, m Map(String, JSON))", {'{"j":{"a":1},"m":{"x":{"b":[]}}}': '{"j":{"a":1},"m":{"x":{"b":[]}}}'},
          {'{"j":{"a":1},"m":{"x":1}}': "not an object"}, "toJSONString(v)"),
    Edges("Variant(Array(UInt8), Date, Decimal(9, 2), JSON, String, UUID)",
          {"127": "127 Decimal(9, 2)", '"x"': '"x" String', f'"{UUID}"': f'"{UUID}" UUID', "[255]": "[255] Array(UInt8)",
           '{"a":1}': '{"a":1} JSON', '"2020-01-01"': '"2020-01-01" Date', '"1969-12-31"': '"1969-12-31" String', "1.25": "1.25 Decimal(9, 2)",
           "null": "NULL"},
          {"true": "no value of Variant", "-129.001": "no value of Variant", "[256]": "no value of Variant", '{"a.b":1}': "no value of Variant"},
          "concat(toJSONString(v), ' ', toString(variantType(v)))"),
    Edges("Variant(DateTime64(3, 'Asia/Tokyo'), Float32, Tuple(a Int256, b Map(String, BFloat16)))",
          {'"2020-01-01T00:00:00Z"': "DateTime64(3, 'Asia/Tokyo')", "0.1": "Float32", '{"a":1,"b":{"x":0.5}}': "Tuple(a Int256, b Map(String, BFloat16))"},
          {'"x"': "no value", "16777217": "no value", '{"a":1,"b":{"x":0.1}}': "no value"}, "variantType(v)"),
    Edges("Dynamic", {"true": "true Bool", "-1": "-1 Int64", "18446744073709551615": "18446744073709551615 UInt64", "0.1": "0.1 Float64", '"12"': '"12" String',
                      '"2020-01-01"': '"2020-01-01" String', "[1,null]": "[1,null] Array(Nullable(Int64))", "[1,0.5]": "[1,0.5] Array(Nullable(Float64))",
                      '["x"]': '["x"] Array(Nullable(String))', '[{"a":[]}]': '[{"a":[]}] Array(JSON)', '{"a":{"b":1}}': '{"a":{"b":1}} JSON', "null": "NULL"},
          {"18446744073709551617": "no value of Dynamic", '[1,"x"]': "no value of Dynamic", '{"a.b":1}': "no value", "[[1]]": "no value"},
          "concat(toJSONString(v), ' ', dynamicType(v))"),
    Edges("Dynamic(max_types=2)", {"true": "true", "1": "1", '"x"': '"x"', "0.5": "0.5"}, {}, "toJSONString(v)"),
]  # fmt: skip


def decode(sink: ClickHouseSink, *records: str) -> tuple[pa.Table, dict[int, str]]:
    decoded = JsonDecoder(sink.target().schema()).decode(pa.array([each.encode() for each in records], pa.binary()))
    return decoded.table, {reject.index: reject.reason for reject in decoded.rejects}


def land(sink: ClickHouseSink, rows: pa.Table) -> None:
    given = block({name: rows.column(name) for name in rows.column_names})
    writer = sink.writer()
    assert writer.send(given, insert(sink.target(), "a")) is Reply.ACKNOWLEDGED, writer.said


def lines(server: LocalClickHouse, table: str, shown: str) -> list[str]:
    answer = server.ask(f"SELECT {shown} FROM {table} ORDER BY _offset FORMAT JSONCompactEachRow")
    return [json.loads(line)[0] for line in answer.splitlines()]


def unlike(sink: ClickHouseSink, rows: pa.Table) -> list[str]:
    """The columns in which the audit finds a row that differs."""
    values = ClickHouseRows(sink).values()
    (piece,) = values.read(Partition("t", 0), 0, 100, rows.column_names)
    found = []
    for name in rows.column_names:
        expected = values.comparable(name, rows.column(name).combine_chunks())
        if len(differing(expected, piece.rows.column(name).combine_chunks())):
            found.append(name)
    return found


@pytest.mark.parametrize("edges", EDGES, ids=lambda edges: edges.type)
def test_the_edges_of_every_type(clickhouse: LocalClickHouse, new_table: NewTable, edges: Edges) -> None:
    table = new_table()
    make(clickhouse, table, f"v {edges.type}")
    sink = sink_for(clickhouse, table)
    given = [*edges.good, *edges.bad]
    rows, rejects = decode(sink, *(f'{{"v": {literal}}}' for literal in given))
    assert {given[at] for at in rejects} == edges.bad.keys(), rejects
    for at, reason in rejects.items():
        assert edges.bad[given[at]] in reason
    land(sink, rows)
    assert lines(clickhouse, table, f"ifNull({edges.shown}, 'NULL')") == list(edges.good.values())
    assert unlike(sink, rows) == []
    other = rows.take([*range(1, rows.num_rows), 0]) if rows.num_rows > 1 else None
    assert other is None or unlike(sink, other) == ["v"]


def test_a_nested_column_takes_lists_of_objects(clickhouse: LocalClickHouse, new_table: NewTable) -> None:
    table = new_table()
    make(
        clickhouse,
        table,
        f"i Int64, n Nested(a Int8, `b c` Enum8('x' = 1)), `o.a` Array(UUID) DEFAULT [], `o.b` Array(Int8) DEFAULT [], "
        f"`p.a` Array(Int8) DEFAULT [i], `p.b` Array(String) DEFAULT ['{UUID}'], `d.e` Int64, `d.f` Array(Int8) ALIAS [1]",
        rest="PARTITION BY length(n.a) ORDER BY _offset",
    )
    sink = sink_for(clickhouse, table)
    o = f'"o": [{{"a": "{UUID}", "b": 1}}]'
    rows, rejects = decode(
        sink,
        f'{{"i": 1, "n": [{{"a": 1, "b c": "x"}}, {{"a": 2, "b c": "x"}}], {o}, "p": [{{"a": 7, "b": ""}}], "d.e": 5}}',
        '{"i": 2, "n": [], "o": null, "d.e": 6}',
        '{"i": 3, "n": [{"a": 1, "b c": "y"}], "d.e": 6}',
        '{"i": 3, "d.e": 6}',
        '{"i": 3, "n": []}',
        '{"i": 3, "n": [], "d.e": 6, "o": [{"a": null}]}',
    )
    assert list(rejects) == [2, 3, 4, 5]
    land(sink, rows)
    shown = "[toString(n.a), toString(n.`b c`), toString(o.a), toString(o.b), toString(p.a), toString(p.b), toString(`d.e`)]"
    assert lines(clickhouse, table, shown) == [
        ["[1,2]", "['x','x']", f"['{UUID}']", "[1]", "[7]", "['']", "5"],
        ["[]", "[]", "[]", "[]", "[2]", f"['{UUID}']", "6"],
    ]
    assert unlike(sink, rows.drop_columns("p")) == []
    probed = sink.writer().probe(block({name: rows.column(name) for name in rows.column_names}), RANGE)
    assert (probed.presence.expected, probed.presence.missing) == (2, 0)
    clickhouse.ask(f"ALTER TABLE {table} DELETE WHERE i = 2 SETTINGS mutations_sync = 1")
    probed = sink.writer().probe(block({name: rows.column(name) for name in rows.column_names}), RANGE)
    assert (probed.presence.missing, probed.presence.torn) == (1, False)  # the other row is in another partition


def test_a_default_of_any_type_fills_what_records_lack(clickhouse: LocalClickHouse, new_table: NewTable) -> None:
    """Each default is evaluated as ClickHouse would, over the columns' own types: an Enum is a number here, and a text in what is sent."""
    table = new_table()
    make(
        clickhouse,
        table,
        "i Int64, e Enum8('x' = 5), s String DEFAULT concat('s', toString(i)), l Array(Int64) DEFAULT [i, toInt8(e)], "
        f"m Map(String, UUID) DEFAULT map(s, '{UUID}'), t Tuple(a Int8, b UUID) DEFAULT (i, '{UUID}'), "
        "u Tuple(UInt8, UInt8) DEFAULT (y, y + 1), p Point DEFAULT (0.5, i), y Int8 MATERIALIZED i + 10, "
        "w Int256 DEFAULT -i, b BFloat16 DEFAULT 0.1, z Time DEFAULT '00:00:01', f FixedString(2) DEFAULT 'ab', "
        "h Map(String, Int8) DEFAULT map(), n Nullable(Tuple(a Int8)) DEFAULT tuple(1)",
    )
    sink = sink_for(clickhouse, table)
    given = f'"l": [9], "m": {{"k": "{UUID}"}}, "t": {{"a": 7, "b": "{UUID}"}}, "u": [3, 4], "p": [1, 2], "w": 3, "b": 1, "z": "00:00:02"'
    rows, rejects = decode(
        sink,
        '{"i": 1, "e": "x"}',
        f'{{"i": 2, "e": "x", "s": "k", {given}, "f": "", "h": {{"a": 1}}, "n": {{"a": 2}}}}',
        '{"i": 3, "e": "x", "l": null, "m": null, "t": null, "u": null, "p": null, "w": null, "b": null, "h": null, "n": null}',
    )
    assert not rejects
    land(sink, rows)
    names = ["l", "m", "t", "u", "p", "w", "z", "h"]
    shown = f"[{', '.join(f'toString({each})' for each in names)}, ifNull(toString(n), 'NULL'), toString(toFloat32(b) > 0.09)]"

    def filled(i: int) -> list[str]:
        return [f"[{i},5]", f"{{'s{i}':'{UUID}'}}", f"({i},'{UUID}')", f"({i + 10},{i + 11})", f"(0.5,{i})", f"-{i}", "00:00:01", "{}", "NULL", "1"]  # fmt: skip

    as_given = ["[9]", f"{{'k':'{UUID}'}}", f"(7,'{UUID}')", "(3,4)", "(1,2)", "3", "00:00:02", "{'a':1}", "(2)", "1"]
    assert lines(clickhouse, table, shown) == [filled(1), as_given, filled(3)]


UNKNOWN = (
    "AggregateFunction(sum, UInt64)",
    "AggregateFunction(quantiles(0.5, 0.9), Float64)",
    "Map(Array(Int8), String)",
    "Tuple()",
    "Array(Nullable(Tuple(u UUID)))",
    "Array(Dynamic)",
    "Map(String, Variant(Int8, String))",
    "JSON(a.b DateTime)",
    "JSON(SKIP REGEXP 'a.*')",
)


@pytest.mark.parametrize("type_", UNKNOWN)
def test_a_type_that_landonce_does_not_know_needs_a_default_and_nothing_else(
    clickhouse: LocalClickHouse, new_table: NewTable, type_: str
) -> None:
    table = new_table()
    escaped = type_.replace("'", "\\'")
    default = f"defaultValueOfTypeName('{escaped}')"
    make(
        clickhouse,
        table,
        f"i Int64, a {type_} DEFAULT {default}, b {type_} MATERIALIZED {default}, c {type_} ALIAS {default}, "
        f"d {type_} EPHEMERAL {default}, `n.a` Array({type_}) DEFAULT []",
    )
    sink = sink_for(clickhouse, table)
    findings = {each.what: each.level for each in sink.target().check()}
    assert "refused" not in findings.values()
    assert sum("always takes its DEFAULT" in what for what in findings) == 2
    rows, _ = decode(sink, '{"i": 1, "a": 5, "b": 6}')
    land(sink, rows)
    assert lines(clickhouse, table, "toString(i)") == ["1"]
    assert unlike(sink, rows) == []
    clickhouse.ask(f"ALTER TABLE {table} ADD COLUMN z {type_}")
    with pytest.raises(TableUnfit, match=r"z: "):
        sink.target().schema()


def test_the_page_has_every_type_of_the_server(clickhouse: LocalClickHouse, new_table: NewTable) -> None:
    page = (Path(__file__).parents[2] / "docs" / "clickhouse.md").read_text()
    types = page.partition("## ClickHouse types\n")[2].partition("\n## ")[0]
    table, _, others = types.partition("\nA column of another type")
    taken = [
        type_
        for line in table.splitlines()
        if line.startswith("| `")
        for type_ in re.findall("`(.+?)`", line.split(" | ")[0])
    ]
    refused = [
        type_ for type_ in re.findall("`(.+?)`", others) if type_[0].isupper() and type_ not in ("DEFAULT", "Nothing")
    ]
    named = {parse_type(each).name for each in [*taken, *refused]} | {"Nothing"}
    families = set(clickhouse.ask("SELECT name FROM system.data_type_families WHERE alias_to = ''").split())
    shorts = {
        "DateTime32",
        "Enum",
        *(each for each in families if each.startswith("Interval")),
    }  # stored as another one, or all alike
    assert families - named <= shorts
    assert {parse_type(each.type).name for each in EDGES} >= {parse_type(each).name for each in taken} - NOT_STORED
    for at, type_ in enumerate(taken):
        name = new_table()
        make(clickhouse, name, f"v {type_}")
        assert [each.name for each in sink_for(clickhouse, name).target().schema().fields] == ["v"], (at, type_)
    for type_ in refused:
        name = new_table()
        make(clickhouse, name, f"i Int8, v {type_}")
        with pytest.raises(TableUnfit, match="v: "):
            sink_for(clickhouse, name).target().schema()
