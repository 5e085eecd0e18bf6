"""ClickHouse's types, columns, names, settings and answers, as far as they need no server."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

import landonce
from landonce.errors import ConfigError, TableUnfit, TargetRefused, TargetUnavailable
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.settle import Reply
from landonce.read.evolution import Evolution
from landonce.read.formats.json.decode import JsonDecoder
from landonce.read.schema.ddl import parse_schema
from landonce.read.schema.fields import Field, Schema, UnsupportedType, json_note
from landonce.read.schema.values import fit
from landonce.sinks.clickhouse import driver, evolve, settings, sink
from landonce.sinks.clickhouse.address import TableName, parse_table, parse_url, query_prefix, quoted
from landonce.sinks.clickhouse.nested import without_absent
from landonce.sinks.clickhouse.probe import Line, compare, where
from landonce.sinks.clickhouse.replies import LATE, PERMANENT, UNDECIDED, Answer, first_line, judge
from landonce.sinks.clickhouse.table import (
    Column,
    Layout,
    Table,
    coordinate_faults,
    create_statement,
    schema_of,
    structure,
    words,
)
from landonce.sinks.clickhouse.types import TypeName, column_type, map_type, parse_type
from landonce.sinks.contract import Guarantee

URL = "http://me:open%40sesame@host:8124/sales"


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ("Int8", "Int8", ()),
        ("DateTime64(3, 'Europe/Berlin')", "DateTime64", ("3", "'Europe/Berlin'")),
        ("Enum8('a,b' = 1, 'it\\'s)' = 2)", "Enum8", ("'a,b' = 1", "'it\\'s)' = 2")),
        ("Tuple(a Array(Int8), `b,)` Nullable(String))", "Tuple", ("a Array(Int8)", "`b,)` Nullable(String)")),
    ],
)
def test_type_names_are_read(text: str, name: str, arguments: tuple[str, ...]) -> None:
    assert parse_type(text) == TypeName(name, arguments)


@pytest.mark.parametrize(
    ("text", "arrow", "wire"),
    [
        ("LowCardinality(Nullable(String))", pa.string(), "Nullable(String)"),
        ("DateTime64(4)", pa.timestamp("us", tz="UTC"), "DateTime64(4)"),
        ("Decimal(39, 2)", pa.decimal256(39, 2), "Decimal(39, 2)"),
        ("Array(Nullable(UUID))", pa.list_(pa.string()), "Array(Nullable(String))"),
        (
            "Tuple(a Int8, `b c` Nullable(Float32))",
            pa.struct([pa.field("a", pa.int8(), nullable=False), pa.field("b c", pa.float32())]),
            "Tuple(`a` Int8, `b c` Nullable(Float32))",
        ),
    ],
)
def test_types_have_an_arrow_and_a_wire_type(text: str, arrow: pa.DataType, wire: str) -> None:
    mapped = map_type(text)
    assert (mapped.arrow, mapped.wire) == (arrow, wire)


@pytest.mark.parametrize(
    "text",
    [
        "Map(Array(Int8), Int8)",
        "AggregateFunction(sum, Int8)",
        "Tuple()",
        "Nullable(Nothing)",
        "Future[3]",
        "Decimal(x)",
    ],
)
def test_types_that_are_not_exact_are_refused(text: str) -> None:
    with pytest.raises(UnsupportedType):
        map_type(text)


@pytest.mark.parametrize(
    ("type_", "good", "bad"),
    [
        ("FixedString(2000)", ["", "é" * 1000], ["é" * 1000 + "a"]),
        ("FixedString(4)", ["", "abcd", "éé", "a\nb"], ["abcde", "ééa"]),
        ("UUID", ["61F0c404-5cb3-11e7-907b-a6006ad3dba0"], ["61f0c404", "61f0c404-5cb3-11e7-907b-a6006ad3dba0 "]),
        ("IPv4", ["0.0.0.0", "255.1.20.99"], ["256.0.0.1", "1.2.3", "1.2.3.4.", "01.2.3.4"]),
        (
            "IPv6",
            ["::", "::1", "1::", "2001:db8::8a2e:370:7334", "::ffff:1.2.3.4"],
            [":", "1:2", ":::", "1::2::3", "g::"],
        ),
        ("Enum8('a' = 1, 'b' = 2)", ["a", "b"], ["c", ""]),
    ],
)
def test_what_a_column_takes_is_known_before_it_is_sent(type_: str, good: list[str], bad: list[str]) -> None:
    decoder = JsonDecoder(schema_of([Column("v", type_)]))
    decoded = decoder.decode(pa.array([json.dumps({"v": text}).encode() for text in good + bad], pa.binary()))
    assert decoded.table.column("v").to_pylist() == good
    assert [reject.index for reject in decoded.rejects] == list(range(len(good), len(good) + len(bad)))


def test_which_columns_are_filled_and_which_are_required() -> None:
    columns = [
        Column("a", "Int64"),
        Column("b", "Nullable(Int64)"),
        Column("c", "String", "DEFAULT", "'x'"),
        Column("d", "Array(Int8)", "DEFAULT", "[]"),
        Column("e", "Array(Int8)", "DEFAULT", "[1]"),
        Column("f", "Map(String, String)", "DEFAULT", "map()"),
        Column("g", "Int8", "MATERIALIZED", "1"),
        Column("h", "Int8", "ALIAS", "a"),
        Column("_offset", "Int64"),
    ]
    assert {each.name: each.required for each in schema_of(columns).fields} == {
        "a": True,
        "b": False,
        "c": False,
        "d": False,
        "e": False,
        "f": False,
    }
    assert structure(columns[:4]) == "`a` Int64, `b` Nullable(Int64), `c` Nullable(String), `d` Array(Int8)"
    with pytest.raises(TableUnfit, match="m: Map"):
        schema_of([Column("m", "Map(Tuple(Int8), String)")])


def test_coordinates_need_a_place() -> None:
    good = [Column("_topic", "LowCardinality(String)"), Column("_partition", "Int32"), Column("_offset", "Int64")]
    assert coordinate_faults(good) == ()
    assert coordinate_faults([good[0], Column("_offset", "UInt32")]) == ("_partition is missing", "_offset is UInt32")


def test_a_created_table_has_what_the_guarantee_needs() -> None:
    declared = Schema((Field("we`ird", pa.int64(), required=True), Field("tags", pa.list_(pa.string()))))
    ddl = create_statement(TableName("d", "t"), declared)
    for part in ("`d`.`t`", "`we\\`ird` Int64,", "`tags` Array(Nullable(String)) DEFAULT []", "minmax",
                 "non_replicated_deduplication_window = 10000", "ORDER BY (_topic, _partition, _offset)"):  # fmt: skip
        assert part in ddl
    with pytest.raises(ConfigError, match="coordinates"):
        create_statement(TableName("d", "t"), Schema((Field("_offset", pa.int64()),)))
    with pytest.raises(UnsupportedType):
        column_type(pa.struct([pa.field("a", pa.int8(), nullable=False)]), required=False)


def test_absent_objects_and_lists_become_nulls_and_empty_lists_and_nothing_else() -> None:
    """Only in a column whose DEFAULT is just that, and where no value becomes a default of its type."""
    text = "Tuple(a Nullable(Int64), b Array(String), c Tuple(d Nullable(String)))"
    made = Column("x", text, "DEFAULT", "(NULL, [], tuple(NULL))")
    assert made.empty_default
    assert made.optional
    assert made.field().type.field("c").nullable
    for other in (
        Column("x", text),
        Column("x", text, "DEFAULT", "(1, [], tuple(NULL))"),
        Column("x", "Tuple(a Int64)", "DEFAULT", "tuple(NULL)"),
    ):
        assert not other.empty_default
        assert not any(each.nullable for each in other.field().type if each.name in "bc")
    values = pa.array(
        [None, {"a": 1, "b": None, "c": None}, {"a": None, "b": ["x"], "c": {"d": "y"}}], made.field().type
    )
    assert without_absent(values.slice(0), made.mapped.arrow).to_pylist() == [
        {"a": None, "b": [], "c": {"d": None}},
        {"a": 1, "b": [], "c": {"d": None}},
        {"a": None, "b": ["x"], "c": {"d": "y"}},
    ]
    assert without_absent(values.slice(1, 1), made.mapped.arrow).to_pylist() == [{"a": 1, "b": [], "c": {"d": None}}]


def test_the_comment_of_a_column_says_what_is_json_text() -> None:
    declared = parse_schema("j JSON, l ARRAY<STRUCT<x: JSON, y: INT>>")
    ddl = create_statement(TableName("d", "t"), declared)
    assert "`j` Nullable(String) COMMENT 'landonce: JSON text'" in ddl
    comment = json_note(declared.fields[1].type)
    kind = column_type(declared.fields[1].type, required=False)
    assert schema_of([Column("l", kind, "DEFAULT", "[]", comment=comment)]) == Schema(declared.fields[1:])
    assert schema_of([Column("j", "Nullable(String)", comment="JSON text of the user")]) == parse_schema("j STRING")


def test_a_url_is_read_and_its_password_never_shown() -> None:
    address = parse_url(URL)
    assert (address.user, address.password, address.host, address.port) == ("me", "open@sesame", "host", 8124)
    sink = landonce.clickhouse(URL, "t", settings={"max_memory_usage": 5, "async_insert": False}).to_sink("orders")
    shown = f"{address!r} {address} {sink!r} {sink} {sink.access!r}"
    assert "sesame" not in shown
    assert pickle.loads(pickle.dumps(sink)) == sink
    assert sink.guarantee is Guarantee.DEDUPLICATING
    assert hash(sink.access) == hash(pickle.loads(pickle.dumps(sink)).access)


@pytest.mark.parametrize(
    "url", ["tcp://me:sesame@h/d", "http:///d", "http://me:sesame@h/d?x=1", "http://me:sesame@h:port/d", "http://h/a/b"]
)
def test_a_bad_url_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        landonce.clickhouse(url, "t").to_sink("orders")
    assert "sesame" not in str(refused.value)


def test_tables_and_identifiers() -> None:
    assert parse_table("t", "d") == TableName("d", "t")
    assert parse_table("x.t", "d") == TableName("x", "t")
    assert parse_table("`a.b`.`c\\`d`", "d") == TableName("a.b", "c`d")
    for bad in ("", "a.b.c", "a.", "`a", "a b`"):
        with pytest.raises(ConfigError):
            parse_table(bad, "d")
    assert quoted("a`; DROP TABLE t; --\\") == "`a\\`; DROP TABLE t; --\\\\`"
    assert not query_prefix("a", TableName("d", "t:x")).startswith(query_prefix("a", TableName("d", "t")))


@pytest.mark.parametrize(
    "asked", [{"async_insert": 1}, {"insert_deduplicate": False}, {"query_id": "x"}, {"final": "1"}]
)
def test_a_setting_against_the_guarantee_is_refused(asked: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="belongs to the guarantee"):
        landonce.clickhouse(URL, "t", settings=asked).to_sink("orders")


def test_a_setting_is_sent_only_where_it_is_known_and_free() -> None:
    wanted = {"async_insert": "0", "deduplicate_insert": "enable", "final": "0"}
    known = {"async_insert": ("1", False), "final": ("0", True)}
    assert settings.to_send(wanted, known, "me") == {"async_insert": "0"}
    with pytest.raises(TargetRefused, match="fixes final"):
        settings.to_send(wanted, {**known, "final": ("1", True)}, "me")
    with pytest.raises(TargetRefused, match="does not know"):
        settings.to_send({"async_insert": "0"}, {}, "me")


@pytest.mark.parametrize(
    ("answer", "reply"),
    [
        (Answer(200, None, "q"), Reply.ACKNOWLEDGED),
        (Answer(200, None, "other"), Reply.LOST),
        (Answer(200, None, ""), Reply.LOST),
        (Answer(503), Reply.LOST),
        (Answer(500, 395, "q", f"Code: 395. DB::Exception: {LATE}: while".encode()), Reply.LATE),
        (Answer(500, 252, "q", b"too many parts"), Reply.REFUSED),
        (Answer(500, 241, "q", b"memory limit"), Reply.REFUSED),
        (Answer(500, 394, "q", b"cancelled"), Reply.REFUSED),
        *[(Answer(500, code, "q"), Reply.LOST) for code in sorted(UNDECIDED)],
    ],
)
def test_what_an_answer_means(answer: Answer, reply: Reply) -> None:
    assert judge(answer, "q", "d.t") is reply


@pytest.mark.parametrize("code", sorted(PERMANENT))
def test_permanent_codes_halt_with_a_command(code: int) -> None:
    with pytest.raises(TargetRefused, match=f"code {code}") as refused:
        judge(Answer(500, code, "q", b"Code: 1. DB::Exception: why. (NAME) (version 26.9)\nstack"), "q", "d.t")
    assert "why. (NAME)" in refused.value.what
    assert "{file}" in refused.value.command


def test_a_view_that_failed_is_named_however_long_the_message() -> None:
    long = b"Code: 6. DB::Exception: " + b"x" * 20_000 + b": while pushing to view d.mv (5c3-11). (NAME) (version 26.9)"
    assert Answer(500, 6, "q", long).view == "d.mv"
    assert Answer(500, 6, "q", b"Code: 6. DB::Exception: why: while pushing to view d.mv. (NAME)").view == "d.mv"
    assert Answer(500, 6, "q", b"Code: 6. DB::Exception: why").view == ""
    assert Answer(502, None, "", long).view == ""


def test_what_the_insert_itself_refused_is_reported_in_plain_words() -> None:
    late = Answer(500, 395, "q", f"Code: 395. DB::Exception: {LATE}: while executing 'FUNCTION throwIf(…)'".encode())
    assert late.said == "this insert came after its deadline"
    page = b"<html>\r\n<head><title>413 Request Entity Too Large</title></head>\r\n</html>"
    assert Answer(413, data=page).said == "HTTP status 413, not from ClickHouse itself: 413 Request Entity Too Large"
    assert Answer(502).said == "HTTP status 502, not from ClickHouse itself"
    quoted = Answer(500, 62, "q", f"Code: 62. DB::Exception: Syntax error: … throwIf(…, '{LATE}')".encode())
    with pytest.raises(TargetRefused, match="syntax error"):  # a statement that is quoted is not late
        judge(quoted, "q", "d.t")


def test_a_message_is_cut_to_what_helps() -> None:
    assert first_line("Code: 60. DB::Exception: no table. (UNKNOWN_TABLE) (version 26.9.2.1 (official))\n0. stack") == (
        "no table. (UNKNOWN_TABLE)"
    )


def test_ranges_become_a_condition_with_parameters() -> None:
    sql, parameters = where([(Partition("a'b", 3), 5, 9), (Partition("a'b", 4), 0, None)])
    assert sql == (
        "(_topic = {topic_0:String} AND _partition = 3 AND _offset >= 5 AND _offset < 9) OR "
        "(_topic = {topic_0:String} AND _partition = 4 AND _offset >= 0)"
    )
    assert parameters == {"topic_0": "a'b"}


def test_coordinates_are_numbers_in_one_line() -> None:
    ranges = [
        Range(Partition("b", 0), 2**62, 2**62 + 5),
        Range(Partition("a", 7), 10, 20),
        Range(Partition("a", 7), 30, 40),
    ]
    rows = pa.table({"_topic": ["a", "a", "b"], "_partition": [7, 7, 0], "_offset": [10, 39, 2**62 + 4]})
    assert Line.of(ranges).numbers(rows).tolist() == [0, 29, 34]
    with pytest.raises(ValueError, match="outside"):
        Line.of(ranges).numbers(pa.table({"_topic": ["c"], "_partition": [7], "_offset": [10]}))


def test_comparing_tells_missing_from_duplicated() -> None:
    seen = compare(np.array([1, 2, 3, 5]), np.array([5, 9, 2, 5, 9, 9]))
    assert seen.missing.tolist() == [True, False, True, False]
    assert (seen.found_any, seen.duplicated) == (True, 2)


def test_a_replacing_table_needs_a_version_from_the_record() -> None:
    def table(full: str, *columns: Column) -> Table:
        return Table(TableName("d", "t"), full.partition("(")[0], full, "", "", (), columns)

    path = "'/clickhouse/{uuid}', '{replica}'"
    assert table("ReplacingMergeTree(v) ORDER BY a", Column("v", "Int64")).resend_harmless
    assert table(f"ReplicatedReplacingMergeTree({path}, v, gone) ORDER BY a", Column("v", "Int64")).resend_harmless
    assert not table("ReplacingMergeTree ORDER BY (v)", Column("v", "Int64")).resend_harmless
    assert not table("ReplacingMergeTree(v) ORDER BY a", Column("v", "DateTime", "DEFAULT", "now()")).resend_harmless
    assert not table("MergeTree(v) ORDER BY a", Column("v", "Int64")).resend_harmless
    assert table("MergeTree ORDER BY a SETTINGS x_window = 5, window = 7").setting("window") == "7"


def test_names_in_an_expression_are_found_outside_of_strings() -> None:
    assert words("concat(`a b`, 'now()', toString(x))") == {"concat", "a b", "toString", "x"}


def test_a_text_that_is_not_one_json_value_is_no_value_of_a_variant() -> None:
    """Expressions give texts, too: one that would become two members of a record must not land as the first of them."""
    column = Column("v", "Variant(Int64, String)")
    texts = pa.array(["1", '1,"x":2', '1}{"v":2', '"a"', "a", "", "null", None, "NaN", "1 2"])
    _, faults = fit(texts, column.field())
    assert np.flatnonzero(np.logical_or.reduce([each.rows for each in faults])).tolist() == [1, 2, 4, 5, 6, 8, 9]
    _, faults = fit(pa.array([None], pa.string()), column.field())
    assert not faults


class Recorded:
    """A connection that says what it was asked to do. Inserts run until they are killed."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def do(self, sql: str) -> str:
        self.done.append(sql)
        return ""

    def ask(self, sql: str, parameters: object = None) -> pa.Table:
        del parameters
        running = "processes" in sql and not self.done
        if running:
            assert "FROM clusterAllReplicas('shards', system.processes)" in sql
        return pa.table({"query_id": ["landonce-1"] if running else pa.array([], pa.string())})

    def one(self, sql: str, parameters: object = None) -> int:
        del sql, parameters
        return 0


def test_every_statement_that_makes_alters_drops_or_kills_names_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster of several servers is not run in tests: this is what one is asked."""
    made = landonce.clickhouse("http://localhost/d", "t", create=True, cluster="shards").to_sink("p")
    there = Table(made.table_name, "MergeTree", "", "", "_offset", (), (Column("id", "Int32", "", ""),))
    recorded = Recorded()
    for module in (driver, sink):
        monkeypatch.setattr(module, "connect", lambda _: recorded)
    seen = iter([there, replace(there, columns=(Column("id", "Int64", "", ""),))])
    monkeypatch.setattr(evolve, "describe", lambda *_: next(seen))
    target = made.target()
    target.kill()
    target.take_back()
    target.create(parse_schema("id INT"))
    made.change("t", Evolution(widened=((("id",), pa.int64()),)))
    kill, drop, create, alter = recorded.done
    assert kill.startswith("KILL QUERY ON CLUSTER `shards` WHERE startsWith(query_id, ")
    assert drop == "DROP TABLE IF EMPTY `d`.`t` ON CLUSTER `shards`"
    assert create.startswith("CREATE TABLE IF NOT EXISTS `d`.`t` ON CLUSTER `shards`\n")
    assert alter == "ALTER TABLE `d`.`t` ON CLUSTER `shards` MODIFY COLUMN `id` Int64"


def test_a_table_that_does_not_show_its_alter_yet_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `alter_sync = 0` the answer comes first. Rows that were fitted to such a table would lack the new column."""
    made = landonce.clickhouse("http://localhost/d", "t").to_sink("p")
    there = Table(made.table_name, "ReplicatedMergeTree", "", "", "_offset", (), (Column("id", "Int32", "", ""),))
    monkeypatch.setattr(sink, "connect", lambda _: Recorded())
    monkeypatch.setattr(evolve, "describe", lambda *_: there)
    with pytest.raises(TargetUnavailable, match=r"does not show it yet: MODIFY COLUMN `id` Int64"):
        made.change("t", Evolution(widened=((("id",), pa.int64()),)))


@pytest.mark.parametrize(
    ("engine", "name"),
    [
        ("MergeTree", "_version"),
        ("MergeTree", "_is_deleted"),
        ("ReplacingMergeTree(v, gone)", "v"),
        ("ReplacingMergeTree(v, gone)", "gone"),
        ("CollapsingMergeTree(_sign)", "_sign"),
    ],
)
def test_no_field_has_the_name_of_a_column_that_landonce_fills(engine: str, name: str) -> None:
    """It would be there twice."""
    layout = Layout(engine=engine, key=("id",))
    with pytest.raises(ConfigError, match=f"cannot be called {name}"):
        create_statement(TableName("d", "t"), parse_schema(f"id INT, {name} INT"), layout)
    others = {"_version", "_is_deleted", "v", "gone", "_sign"} - dict(layout.change_columns).keys()
    statement = create_statement(
        TableName("d", "t"), parse_schema(f"id INT, {' INT, '.join(sorted(others))} INT"), layout
    )
    assert statement.count(f"`{name}`") == 1
