"""What records need of a table, against an oracle that walks each record in Python; and tables that are given it."""

from __future__ import annotations

import itertools
import json
import pickle
import struct
import threading
import time
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.schema import Schema as TableSchema
from pyiceberg.table import Table
from pyiceberg.types import LongType, StringType

from landonce.errors import ConfigError, NothingToInfer, TargetRefused
from landonce.read.evolution import Evolution, ValueShape, merge, merged, observed
from landonce.read.formats.json.decode import JsonDecoder
from landonce.read.schema.ddl import parse_schema
from landonce.read.schema.fields import JSON, Field, Schema
from landonce.sinks.iceberg import evolve
from landonce.sinks.iceberg.catalog import CatalogSpec
from landonce.sinks.iceberg.commit import TableBranch
from landonce.sinks.iceberg.evolve import schema_of_sample, steps
from landonce.sinks.iceberg.table import Creation, create_table, layout
from landonce.sinks.iceberg.types import schema_for


def apply(table, changes):
    """As the driver does it, on the table as it is in its catalog by now."""
    place = TableBranch(CatalogSpec("c", {}), lambda: table.catalog, ".".join(table.name()), "main", "p")
    evolve.apply(place, changes)
    return table.refresh()


def values(*records: Any) -> pa.BinaryArray:
    encoded = [each if isinstance(each, bytes) or each is None else json.dumps(each).encode() for each in records]
    return pa.array(encoded, pa.binary())


def opened(folder: Path) -> Catalog:
    return load_catalog("evolving", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    return opened(tmp_path_factory.mktemp("lake"))


def made(folder: Path, declared: str, **options: Any) -> Table:
    return create_table(opened(folder), "db.t", parse_schema(declared), Creation(**options))


def unknown_fields(payloads: pa.BinaryArray, schema: Schema, **identity: Any) -> Evolution | None:
    return observed([payloads], schema, **identity)


def evolved(table: Table, *records: Any) -> Table:
    found = unknown_fields(values(*records), schema_for(table, coordinates=True))
    return apply(table, found) if found else table


def types_of(table: Table) -> dict[str, str]:
    return types_in(opened_again(table).schema())


def types_in(schema: TableSchema) -> dict[str, str]:
    fields = {name: schema.find_field(name) for name in schema.column_names}
    return {
        name: f"{field.field_type}{' required' if field.required else ''}"
        for name, field in fields.items()
        if field.field_type.is_primitive and not name.startswith("_")
    }


def opened_again(table: Table) -> Table:
    """As someone sees it who was not there."""
    return opened(Path(table.location().removeprefix("file://")).parent.parent).load_table(table.name())


# ------------------------------------------------------------------------------------------------- what is needed

DECLARED = "i INT, f FLOAT, n DECIMAL(4, 2), s STRUCT<i: INT NOT NULL>, l ARRAY<STRUCT<i: INT>>, m MAP<STRING, INT>"


@pytest.mark.parametrize(
    ("record", "gets"),
    [
        ({"new": 1}, {"new": "long"}),
        ({"new": 1.5}, {"new": "double"}),
        ({"new": True}, {"new": "boolean"}),
        ({"new": "2026-01-01T00:00:00Z"}, {"new": "string"}),
        ({"new": [1, 2.5]}, {"new.element": "double"}),
        ({"new": [[1]]}, {"new.element.element": "long"}),
        ({"new": {"a": {"b": "x"}, "c": None}}, {"new.a.b": "string"}),
        ({"new": [{"a": 1}, {"b": "x"}]}, {"new.element.a": "long", "new.element.b": "string"}),
        ({"new": None}, {}),
        ({"new": {}}, {}),
        ({"new": []}, {}),
        ({"new": [None, {}, {}]}, {}),
        ({"new": [None, {}, []]}, {"new.element": "string"}),
        ({"new": {"a": None}}, {}),
        ({"s": {"i": 1, "new": 1}}, {"s.new": "long"}),
        ({"l": [{"new": "x"}]}, {"l.element.new": "string"}),
        ({"i": 2**31 - 1}, {}),
        ({"i": -(2**31)}, {}),
        ({"i": 2**31}, {"i": "long"}),
        ({"i": -(2**31) - 1}, {"i": "long"}),
        ({"i": 2**63}, {}),
        ({"i": 10**30}, {}),
        ({"i": 1.5}, {}),
        ({"i": 1e30}, {}),
        ({"i": "text"}, {}),
        ({"i": {"a": 1}}, {}),
        ({"i": [2**40]}, {}),
        (b'{"i" : 123456789012 , "x":null}', {"i": "long"}),
        ({"s": {"i": 2**40}}, {"s.i": "long required"}),
        ({"l": [{"i": 1}, {"i": 2**40}]}, {"l.element.i": "long"}),
        ({"m": {"a": 1, "b": 2**40}}, {"m.value": "long"}),
        ({"f": 0.1}, {}),
        ({"f": 3e38}, {}),
        ({"f": -4e38}, {"f": "double"}),
        ({"f": 10**39}, {"f": "double"}),
        ({"n": 99.99}, {}),
        ({"n": 100}, {"n": "decimal(5, 2)"}),
        ({"n": "-12345.67"}, {"n": "decimal(7, 2)"}),
        ({"n": 0.001}, {}),
        ({"n": 12345.678}, {}),
        ({"n": "text"}, {}),
        (b'{"n":1e35}', {"n": "decimal(38, 2)"}),
        (b'{"n":1e36}', {}),
        (b'{"n":1e70}', {}),
        ({"s": None}, {}),
        ({"s": {}}, {"s.i": "int"}),
        ({"s": {"i": None}}, {"s.i": "int"}),
        ({"_topic": "x", "_partition": 1, "_kafka_partition": 1, "_offset": 2}, {}),
        ({"": 1, " ": 2}, {}),
        ({"a.b": 1}, {"a.b": "long"}),
        (b'{"new": 1', {}),
        (b'{"new" 1}', {}),
        (b'[{"new":1}]', {}),
        (b'{"new":1}{"new":1}', {}),
        (None, {}),
        (rb'{"n\u0065w":1,"s":{"\u0069":2147483648}}', {"new": "long", "s.i": "long required"}),
    ],
    ids=lambda record: str(record)[:60],
)
def test_one_record(catalog: Catalog, record: Any, gets: dict[str, str]) -> None:
    table = create_table(catalog, f"db.t{uuid.uuid4().hex[:8]}", parse_schema(DECLARED), Creation())
    before = types_in(table.schema())
    evolved(table, {"i": 1}, record)
    after = types_in(catalog.load_table(table.name()).schema())
    assert {name: kind for name, kind in after.items() if before.get(name) != kind} == gets
    assert set(before) <= set(after)


def test_what_a_struct_in_a_map_lacks(tmp_path: Path) -> None:
    table = made(
        tmp_path, "m MAP<STRING, STRUCT<a: INT NOT NULL>>, r ARRAY<STRING NOT NULL>, v MAP<STRING, INT NOT NULL>"
    )
    after = types_of(
        evolved(table, {"m": {"k": {"b": [1]}, "j": None}}, {"r": ["x", None]}, {"v": {"a": None, "b": 2**40}})
    )
    assert after == {
        "m.key": "string required",
        "m.value.a": "int",
        "m.value.b.element": "long",
        "r.element": "string",
        "v.key": "string required",
        "v.value": "long",
    }


def test_a_required_field_that_records_lack_becomes_optional_and_identity_does_not(tmp_path: Path) -> None:
    table = made(tmp_path, "id BIGINT, who STRUCT<n: STRING>, r STRING NOT NULL", identity=("id", "who.n"))
    schema = schema_for(table, coordinates=True)
    assert unknown_fields(values({"id": 1, "who": {"n": "x"}, "r": "y"}), schema) is None
    lacking = values({"r": "x"}, {"id": None, "who": {}, "r": None})
    after = types_of(apply(table, unknown_fields(lacking, schema)))
    assert after == {"id": "long required", "who.n": "string required", "r": "string"}
    assert unknown_fields(lacking, schema_for(table, coordinates=True), identity=("id", "who.n")) is None


def test_names_in_any_case_are_one_column(tmp_path: Path) -> None:
    table = made(tmp_path, "Id INT")
    schema = schema_for(table, coordinates=True, fold_case=True)
    found = unknown_fields(values({"ID": 2**40, "New": 1}, {"id": 1, "NEW": 1.5}), schema)
    assert types_of(apply(table, found)) == {"Id": "long", "new": "double"}


def test_a_mapped_name_is_no_new_field_and_new_fields_get_into_the_mapping(tmp_path: Path) -> None:
    table = made(tmp_path, "id BIGINT, name STRING")
    with table.transaction() as change:
        change.set_properties({"schema.name-mapping.default": '[{"field-id": 1, "names": ["key"]}]'})
    after = evolved(table, {"key": 1, "name": "x", "new": 1}, {"id": "not meant"})
    assert types_of(after) == {"id": "long", "name": "string", "new": "long"}
    assert schema_for(after, coordinates=True).by_name()["id"].aliases == ("key",)
    assert unknown_fields(values({"key": 1, "new": 2}), schema_for(after, coordinates=True)) is None


# ------------------------------------------------------------------------------------------------- shapes and merging

LONG, DOUBLE, TEXT, TRUTH = (ValueShape(frozenset({kind})) for kind in ("long", "double", "string", "boolean"))


def test_kinds_that_agree_and_kinds_that_clash() -> None:
    assert merged([LONG, DOUBLE]).type() == pa.float64()
    assert merged([LONG, TEXT]).type() == JSON
    assert merged([TRUTH, LONG]).type() == JSON
    assert merged([ValueShape(), TRUTH]).type() == pa.bool_()
    inside = ValueShape(frozenset({"struct"}), (("a", LONG),))
    assert merged([LONG, DOUBLE, inside]).type() == JSON
    assert merged([TEXT, ValueShape(frozenset({"struct"}))]).type() == JSON
    assert merged([]).type() is None


def test_kinds_that_clash_are_kept_as_json_text(tmp_path: Path) -> None:
    records = [{"id": 1, "new": "x"}, {"id": 2, "new": 5, "s": {"in": [{}, 1]}}, {"id": 3, "s": {"in": []}}]
    for order in itertools.permutations(records):
        folder = tmp_path / "".join(str(each["id"]) for each in order)
        folder.mkdir()
        table = evolved(made(folder, "id INT"), *order)
        schema = schema_for(table, coordinates=True)
        decoded = JsonDecoder(schema).decode(values(*order))
        assert not decoded.rejects
        landed = {row["id"]: (row["new"], row["s"]) for row in decoded.table.to_pylist()}
        assert landed == {1: ('"x"', None), 2: ("5", {"in": ["{}", "1"]}), 3: (None, {"in": []})}
        assert unknown_fields(values(*order), schema) is None


trees = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, "x", 2**31, 1e300]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcs"), inner, max_size=3),
    max_leaves=8,
)
KNOWN = parse_schema("a INT, b STRUCT<a: FLOAT NOT NULL, s: ARRAY<INT NOT NULL>>, s STRING NOT NULL, n DECIMAL(3, 1)")
records_of = st.fixed_dictionaries(
    {},
    optional={
        "a": trees,
        "b": st.fixed_dictionaries({}, optional={"a": trees, "s": st.lists(trees, max_size=2) | trees, "c": trees}) | trees,
        "s": st.text("{}[],:\"\\", max_size=3) | st.none(),
        "n": st.sampled_from([1, 12.5, "123.4", 0.01, "x", None]),
        "new": trees,
        "é": trees,
    },
)  # fmt: skip


def oracle_shape(found: list[Any]) -> ValueShape:
    kinds = {bool: "boolean", int: "long", float: "double", str: "string", list: "list", dict: "struct"}
    objects = [each for each in found if type(each) is dict]
    elements = [item for each in found if type(each) is list for item in each]
    names = sorted({name for each in objects for name in each})
    return ValueShape(
        frozenset(kinds[type(each)] for each in found if each is not None),
        tuple((name, oracle_shape([each[name] for each in objects if name in each])) for name in names),
        oracle_shape(elements) if any(type(each) is list for each in found) else None,
    )


def oracle(records: list[dict[str, Any]]) -> tuple[dict[tuple[str, ...], Any], dict[tuple[str, ...], str], set[Any]]:
    added: dict[tuple[str, ...], Any] = {}
    widened: dict[tuple[str, ...], str] = {}
    optional: set[tuple[str, ...]] = set()

    def strangers(objects: list[Any], known: set[str], path: tuple[str, ...]) -> None:
        for name in {name for each in objects for name in each} - known:
            shape = oracle_shape([each[name] for each in objects if name in each])
            if shape.type() is not None:
                added[(*path, name)] = shape

    strangers(records, {"a", "b", "s", "n"}, ())
    if any(type(each.get("a")) is int and each["a"] >= 2**31 for each in records):
        widened["a",] = "int64"
    if any(each.get("s") is None for each in records):
        optional.add(("s",))
    numbers = [Decimal(str(each["n"])) for each in records if each.get("n") not in (None, "x")]
    if any(abs(each) >= 100 for each in numbers):
        widened["n",] = "decimal128(4, 1)"
    inner = [each["b"] for each in records if type(each.get("b")) is dict]
    strangers(inner, {"a", "s"}, ("b",))
    if any(type(each.get("a")) in (int, float) and needs_double(each["a"]) for each in inner):
        widened["b", "a"] = "double"
    if any(each.get("a") is None for each in inner):
        optional.add(("b", "a"))
    items = [item for each in inner if type(each.get("s")) is list for item in each["s"]]
    if any(type(each) is int and each >= 2**31 for each in items):
        widened["b", "s", "element"] = "int64"
    if None in items:
        optional.add(("b", "s", "element"))
    return added, widened, optional


def needs_double(number: float) -> bool:
    """Too large for a float, or an integer that a double holds exactly and a float does not."""
    if abs(number) > struct.unpack("f", b"\xff\xff\x7f\x7f")[0]:
        return True
    rounded = struct.unpack("f", struct.pack("f", number))[0]
    return type(number) is int and abs(number) < 2**53 and rounded != number


@pytest.mark.parametrize(("literal", "widens"), [("16777217", True), ("16777218", False), ("16777217.0", False),
                                                 ("-16777217", True), ("9007199254740993", False)])  # fmt: skip
def test_a_float_is_widened_for_an_integer_that_only_a_double_holds(literal: str, widens: bool) -> None:
    found = observed([values(f'{{"x":{literal}}}'.encode())], Schema((Field("x", pa.float32()),))) or Evolution()
    assert found.widened == (((("x",), pa.float64()),) if widens else ())


@given(st.lists(records_of, min_size=1, max_size=6), st.sampled_from([(",", ":"), (" , ", "\t: ")]), st.booleans())
def test_any_records_need_what_the_oracle_says(
    records: list[dict[str, Any]], separators: tuple[str, str], escaped: bool
) -> None:
    written = [json.dumps(each, separators=separators, ensure_ascii=escaped).encode() for each in records]
    added, widened, optional = oracle(records)
    found = observed([values(*written)], KNOWN) or Evolution()
    assert dict(found.added) == added
    assert {path: str(type_) for path, type_ in found.widened} == widened
    assert set(found.optional) == optional
    assert pickle.loads(pickle.dumps(found)) == found
    assert bool(found) == bool(added or widened or optional)


@settings(max_examples=50)
@given(st.lists(st.lists(records_of, min_size=1, max_size=2), min_size=2, max_size=4))
def test_merging_is_the_same_in_any_order_and_any_cut(blocks: list[list[dict[str, Any]]]) -> None:
    found = [observed([values(*block)], KNOWN) or Evolution() for block in blocks]
    together = observed([values(*block) for block in blocks], KNOWN) or Evolution()
    assert merge(found) == merge(found[::-1]) == merge([merge(found[:1]), merge(found[1:])]) == together
    assert merge([together, together]) == together


# ------------------------------------------------------------------------------------------------- tables


def test_rows_from_before_and_after_are_all_there(tmp_path: Path) -> None:
    table = made(tmp_path, "id INT NOT NULL, s STRUCT<a: INT>, r STRING NOT NULL, n DECIMAL(3, 1)")

    def land(*records: Any) -> None:
        decoded = JsonDecoder(schema_for(table, coordinates=True)).decode(values(*records))
        assert not decoded.rejects
        table.append(decoded.table)

    land({"id": 1, "s": {"a": 1}, "r": "x", "n": 1.5})
    later = ({"id": 2**40, "s": {"a": 2, "b": [1.5]}, "n": 12345.5, "t": {"u": True}}, {"id": 3, "r": "y"})
    apply(table, unknown_fields(values(*later), schema_for(table, coordinates=True)))
    land(*later)
    own = ("id", "s", "r", "n", "t")
    rows = {row["id"]: row for row in opened_again(table).scan(selected_fields=own).to_arrow().to_pylist()}
    assert rows == {
        1: {"id": 1, "s": {"a": 1, "b": None}, "r": "x", "n": Decimal("1.5"), "t": None},
        2**40: {"id": 2**40, "s": {"a": 2, "b": [1.5]}, "r": None, "n": Decimal("12345.5"), "t": {"u": True}},
        3: {"id": 3, "s": None, "r": "y", "n": None, "t": None},
    }


def test_all_changes_are_one_commit_and_done_only_once(tmp_path: Path) -> None:
    table = made(tmp_path, DECLARED)
    records = values({"i": 2**40, "new": {"a": 1}, "s": {}, "l": [{"x": 1}]}, {"other": [1]})
    found = unknown_fields(records, schema_for(table, coordinates=True))
    apply(table, found)
    assert len(opened_again(table).schemas()) == 2
    again = opened_again(table)
    assert steps(again.schema(), found) == ()
    assert apply(again, found).schema().schema_id == table.schema().schema_id
    assert len(opened_again(table).schemas()) == 2
    assert unknown_fields(records, schema_for(again, coordinates=True)) is None


def test_on_a_table_that_someone_else_changed_meanwhile(tmp_path: Path) -> None:
    table = made(tmp_path, "id INT, s STRUCT<a: INT>")
    found = unknown_fields(
        values({"id": 2**40, "mine": 1, "both": 1, "clash": 1, "inside": {"a": 1, "b": 2}, "s": {"x": 1}}),
        schema_for(table, coordinates=True),
    )
    with opened(tmp_path).load_table("db.t").update_schema() as update:
        update.add_column("theirs", StringType())
        update.add_column("both", LongType())
        update.add_column("clash", StringType())
        update.update_column("id", LongType())
    evolved(opened(tmp_path).load_table("db.t"), {"inside": {"a": "x"}})
    assert table.schema().column_names != opened_again(table).schema().column_names
    assert types_of(apply(table, found)) == {
        "id": "long",
        "s.a": "int",
        "s.x": "long",
        "theirs": "string",
        "both": "long",
        "clash": "string",
        "inside.a": "string",
        "inside.b": "long",
        "mine": "long",
    }


def test_many_drivers_at_once(tmp_path: Path) -> None:
    made(tmp_path, "id INT")
    together = threading.Barrier(4)
    failed: list[BaseException] = []

    def change(number: int) -> None:
        try:
            table = opened(tmp_path).load_table("db.t")
            found = unknown_fields(values({"same": 1, f"own{number}": "x"}), schema_for(table, coordinates=True))
            together.wait()
            apply(table, found)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=change, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert failed == []
    after = types_of(opened(tmp_path).load_table("db.t"))
    assert after == {"id": "int", "same": "long", **{f"own{number}": "string" for number in range(4)}}


def test_a_column_that_the_table_cannot_have_is_named(tmp_path: Path) -> None:
    table = made(tmp_path, "at TIMESTAMP", partition_by=("day(at)",))
    with pytest.raises(TargetRefused, match="at_day") as refused:
        evolved(table, {"at_day": "2026-01-01"})
    assert "evolve: false" in refused.value.command
    assert types_of(table) == {"at": "timestamptz"}


def test_a_name_with_a_dot_that_is_a_path_already_is_left_alone(tmp_path: Path) -> None:
    table = made(tmp_path, "a STRUCT<b: INT>")
    assert types_of(evolved(table, {"a.b": "x", "c.d": 1})) == {"a.b": "int", "c.d": "long"}


# ------------------------------------------------------------------------------------------------- samples and cost


def test_a_schema_from_records_that_do_not_agree() -> None:
    columns = {each.name: each.type for each in schema_of_sample([b'{"a": 1, "b": {"c": 1}}', b'{"a": 2}']).fields}
    assert columns == {"a": pa.int64(), "b": pa.struct([("c", pa.int64())])}
    mixed = [b'{"a": 1, "b": [1], "c": null}', b'{"a": "x", "b": [2.5]}', b"{broken"]
    assert schema_of_sample(mixed) == parse_schema("a JSON, b ARRAY<DOUBLE>, c JSON")
    with pytest.raises(NothingToInfer):
        schema_of_sample([b"{broken"])


def test_what_cannot_be_a_column_beside_the_others_is_left_out() -> None:
    odd = [b'{"id": 1, "a.b": 1, "a": {"b": 2}, "_offset": 3}', b'{"id": 2}']
    assert [each.name for each in schema_of_sample(odd).fields] == ["id", "a.b"]
    with pytest.raises(NothingToInfer):
        schema_of_sample([b'{"_offset": 1}'])


def test_new_columns_that_exclude_each_other_do_not_stop_the_rest(tmp_path: Path) -> None:
    table = made(tmp_path, "id INT")
    assert types_of(evolved(table, {"a.b": 1, "a": {"b": 1}, "c": 1})) == {"id": "int", "a.b": "long", "c": "long"}


TWINS = {
    "id": 1,
    "ID": 2,
    "new": 1,
    "NEW": 2,
    "s": {"a": 1, "A": 2, "n": 1, "N": 1},
    "t": {"x": 1, "X": 1},
    "_Topic": 1,
}


def test_no_two_columns_differ_in_case_alone(tmp_path: Path) -> None:
    """Spark cannot read a table that has such columns: one odd record would break it for all of its readers."""
    table = made(tmp_path, "id INT, s STRUCT<a: INT>, l ARRAY<STRUCT<a: INT>>")
    evolved(table, {**TWINS, "l": [{"A": 1, "b": 1, "B": 1}]})
    names = table.refresh().schema().column_names
    assert len({each.lower() for each in names}) == len(names)
    assert {"id", "NEW", "s.a", "s.N", "t.X", "l.element.B"} <= set(names)
    assert evolved(table, TWINS).schema().schema_id == table.schema().schema_id
    again = unknown_fields(values(TWINS), schema_for(table.refresh(), coordinates=False))
    assert again is None, "nor is the driver asked for it with every batch"


def test_changes_of_several_workers_make_no_two_columns_that_differ_in_case_alone(tmp_path: Path) -> None:
    table = made(tmp_path, "id INT")
    schema = schema_for(table, coordinates=False)
    found = merge(filter(None, (unknown_fields(values(each), schema) for each in ({"new": 1}, {"NEW": 1}))))
    assert [each.path for each in steps(table.schema(), found)] == [("NEW",)]


def test_a_new_column_that_iceberg_has_no_type_for_holds_text(tmp_path: Path) -> None:
    schema = made(tmp_path, "id INT").schema()
    fine = pa.struct([("at", pa.list_(pa.timestamp("ns"))), ("n", pa.decimal256(50, 2)), ("clock", pa.time64("us"))])
    found = Evolution((((("new",), ValueShape(known=fine))),))
    kinds = {by: str(steps(schema, found, by_spark=by)[0].type) for by in (False, True)}
    assert ("time>" in kinds[False], "time>" in kinds[True]) == (True, False)
    assert "list<string>" in kinds[False]
    assert "decimal" not in kinds[False]


def test_a_table_that_is_made_has_no_two_columns_that_differ_in_case_alone() -> None:
    sample = [json.dumps({**TWINS, "l": [{"a": 1, "A": 1}]}).encode()]
    assert [each.name for each in schema_of_sample(sample).fields] == ["id", "new", "s", "t", "l"]
    inner = schema_of_sample(sample).by_name()
    assert (inner["s"].type, inner["l"].type) == (JSON, pa.list_(JSON)), "all of their names are kept"
    for declared in ("name STRING, Name STRING", "s STRUCT<a: INT, A: INT>", "_OFFSET BIGINT"):
        with pytest.raises(ConfigError, match="differ only in upper and lower case"):
            layout(Schema(parse_schema(declared).fields), Creation())


@pytest.mark.timeout(60)
def test_looking_costs_no_loop_over_records(tmp_path: Path) -> None:
    records = pa.array(
        [b'{"i":%d,"new%d":{"a":[%d]},"m":{"k%d":1}}' % (at, at % 50, at, at) for at in range(60_000)], pa.binary()
    )
    schema = schema_for(made(tmp_path, DECLARED), coordinates=True)
    began = time.process_time()
    found = unknown_fields(records, schema)
    assert time.process_time() - began < 5
    assert found is not None
    assert len(found.added) == 50
