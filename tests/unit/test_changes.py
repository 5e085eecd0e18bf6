"""Records that change rows: each way to say it, against a reading of the same records by the standard library."""

from __future__ import annotations

import json
import random
import uuid
from base64 import b64encode
from datetime import date, datetime, timezone
from hashlib import md5
from typing import Any

import pyarrow as pa
import pytest

from landonce.read import changes as changes_module
from landonce.read.changes import ChangeDecoder, Changes
from landonce.read.envelopes import OPERATION
from landonce.read.formats import Decoded
from landonce.read.formats.json import decode as decode_module
from landonce.read.schema.fields import JSON, Field, Schema

FILTERED = "filtered"
FIELDS = (
    Field("id", pa.int64()),
    Field("name", pa.string(), required=True),
    Field("at", pa.timestamp("us", "UTC"), scale=6),
    Field("tags", pa.list_(pa.string())),
)
MOMENT = datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=timezone.utc)
TICKS = 1_714_979_289_123_456


def decoder(how: Changes, *fields: Field, identity: tuple[str, ...] = ("id",), **options: Any) -> ChangeDecoder:
    return ChangeDecoder(Schema(fields or FIELDS, **options), identity, how)


def run(decoder: ChangeDecoder, records: list[Any], keys: list[bytes | None] | None = None) -> Decoded:
    values = [each if each is None or isinstance(each, bytes) else json.dumps(each).encode() for each in records]
    changed = decoder.decode(pa.array(values, pa.binary()), keys if keys is not None else [None] * len(values))
    changed.table.validate(full=True)
    assert changed.table.schema == decoder.arrow
    assert changed.table.column_names[0] == OPERATION
    assert changed.table.num_rows == len(changed.kept)
    kept, filtered = changed.kept.tolist(), changed.filtered.tolist()
    assert kept == sorted(kept)
    assert sorted([*kept, *filtered, *(each.index for each in changed.rejects)]) == list(range(len(records)))
    return changed


def outcome(changed: Decoded) -> list[Any]:
    """Per record: the row, the reason, or that it was filtered."""
    outcomes: dict[int, Any] = {each.index: each.reason for each in changed.rejects}
    outcomes |= dict.fromkeys(changed.filtered.tolist(), FILTERED)
    rows = (tuple(row.values()) for row in changed.table.to_pylist())
    outcomes |= dict(zip(changed.kept.tolist(), rows, strict=True))
    return [outcomes[index] for index in sorted(outcomes)]


# --------------------------------------------------------------------------------------------------- upsert


def test_an_upsert_is_an_update_and_a_tombstone_deletes_by_key() -> None:
    records = [{"id": 1, "name": "a"}, None, {"id": None, "name": "a"}, {"name": "a"}, {"id": 2}, b"nonsense", None]
    keys = [b"x", b'{"id": 7}', b"x", b"x", b"x", b"x", None]
    assert outcome(run(decoder(Changes("upsert")), records, keys)) == [
        ("U", 1, "a", None, None),
        ("D", 7, None, None, None),
        "missing identity field 'id'",
        "missing identity field 'id'",
        "missing required field 'name'",
        "not valid JSON: Expecting value at character 0",
        "a tombstone without a key",
    ]


TEXT = Field("id", pa.string())
DAY = Field("id", pa.date32())
UUID = Field("id", pa.uuid())


@pytest.mark.parametrize(
    ("field", "key", "meant"),
    [
        (Field("id", pa.int64()), b"42", 42),
        (Field("id", pa.int64()), b'{"id": 42, "other": 1}', 42),
        (Field("id", pa.int64()), b'"42"', "field 'id' should be BIGINT but is a string"),
        (Field("id", pa.int64()), b'42,"id":43', "a tombstone whose key is not BIGINT"),
        (Field("id", pa.int64()), b"42}{", "a tombstone whose key is not BIGINT"),
        (Field("id", pa.int64()), b"", "a tombstone whose key is not BIGINT"),
        (Field("id", pa.int64()), b'{"other": 1}', "missing required field 'id'"),
        (Field("id", pa.bool_()), b"true", True),
        (TEXT, b"plain", "plain"),
        (TEXT, b"42", "42"),
        (TEXT, b'"quo\\"ted"', 'quo"ted'),
        (TEXT, b'"a","id":"b"', '"a","id":"b"'),
        (TEXT, b'"open', '"open'),
        (TEXT, b"line\nbreak", "line\nbreak"),
        (TEXT, b"", ""),
        (TEXT, b"\xff", "a tombstone whose key is not valid UTF-8"),
        (DAY, b"2024-05-06", date(2024, 5, 6)),
        (DAY, b'"2024-05-06"', date(2024, 5, 6)),
        (DAY, b"2024-15-06", "field 'id' is not a valid DATE"),
        (UUID, str(uuid.UUID(int=5)).encode(), uuid.UUID(int=5)),
        (Field("id", pa.timestamp("us", "UTC"), scale=6), b"%d" % TICKS, MOMENT),
        (Field("id", pa.timestamp("us", "UTC"), scale=6), b"2024-05-06T07:08:09.123456Z", MOMENT),
        (Field("id", pa.int64(), aliases=("Key",)), b"42", 42),
        (Field("id", pa.int64(), aliases=("Key",)), b'{"Key": 42}', 42),
    ],
)
def test_keys(field: Field, key: bytes, meant: Any) -> None:
    """Each alone and among others that are read in other ways."""
    for keys in ([key], [None, key, b'{"id": null}', b"\xff"]):
        outcomes = outcome(run(decoder(Changes("upsert"), field), [None] * len(keys), keys))
        assert outcomes[keys.index(key)] == (meant if isinstance(meant, str) and " " in meant else ("D", meant))


def test_an_identity_of_two_fields_needs_an_object() -> None:
    fields = (Field("a", pa.int64()), Field("v", pa.string()), Field("b", pa.string()))
    changed = run(
        decoder(Changes("upsert"), *fields, identity=("b", "a")), [None] * 3, [b'{"b":"x","a":1}', b"1", b'{"a":1}']
    )
    assert outcome(changed) == [
        ("D", 1, None, "x"),
        "a tombstone whose key is not a JSON object",
        "missing required field 'b'",
    ]


# ------------------------------------------------------------------------------------------------ operation


def test_a_field_says_the_operation() -> None:
    how = Changes("operation", field="what", insert=("new",), update=("upd", "fix"), delete=("gone",))
    row = {"id": 1, "name": "a"}
    records = [
        {**row, "what": "new"},
        {**row, "what": "fix"},
        {**row, "what": "gone"},
        {"id": 2, "what": "gone"},
        {"id": "2", "what": "gone"},
        {"id": 2, "what": "gone", "name": 77, "at": "never"},
        {"id": 2, "what": "new", "name": 77},
        {"name": "a", "what": "gone"},
        {**row, "what": "GONE"},
        {**row, "what": None},
        row,
        None,
    ]
    assert outcome(run(decoder(how), records, [None] * 11 + [b"9"])) == [
        ("I", 1, "a", None, None),
        ("U", 1, "a", None, None),
        ("D", 1, None, None, None),
        ("D", 2, None, None, None),
        "field 'id' should be BIGINT but is a string",
        ("D", 2, None, None, None),
        "field 'name' should be STRING but is an integer",
        "missing identity field 'id'",
        "no known operation in 'what'",
        "no known operation in 'what'",
        "no known operation in 'what'",
        ("D", 9, None, None, None),
    ]


def test_the_operation_may_be_a_column_too() -> None:
    changes = decoder(Changes("operation"), Field("id", pa.int64()), Field("op", pa.string()))
    assert outcome(run(changes, [{"id": 1, "op": "insert"}, {"id": 1, "op": "d"}])) == [
        ("I", 1, "insert"),
        ("D", 1, None),
    ]


# ------------------------------------------------------------------------------------------------- debezium


def envelope(op: Any, before: Any, after: Any, wrapped: bool) -> dict[str, Any]:
    inner = {"before": before, "after": after, "op": op, "source": {"table": "t"}, "ts_ms": 5}
    return {"schema": {"type": "struct", "fields": [{"field": "before"}]}, "payload": inner} if wrapped else inner


@pytest.mark.parametrize("wrapped", [True, False])
def test_debezium(wrapped: bool) -> None:
    row = {"id": 1, "name": "a", "at": TICKS, "tags": ["x"]}
    landed = (1, "a", MOMENT, ["x"])
    records: list[Any] = [
        envelope("c", None, row, wrapped),
        envelope("r", None, row, wrapped),
        envelope("u", row, row, wrapped),
        envelope("u", None, row, wrapped),
        envelope("u", {**row, "name": 5, "tags": "?"}, row, wrapped),
        envelope("d", row, None, wrapped),
        envelope("d", {"id": 1, "name": None}, None, wrapped),
        None,
        envelope("d", None, None, wrapped),
        envelope("u", row, None, wrapped),
        envelope("u", {"id": 2}, row, wrapped),
        envelope("t", None, None, wrapped),
        envelope(None, None, row, wrapped),
        envelope("c", None, {**row, "name": None}, wrapped),
        envelope("c", None, {**row, "at": "2024-05-06T07:08:09.123456Z"}, wrapped),
        envelope("c", None, {**row, "at": "2024"}, wrapped),
        envelope("c", None, {**row, "name": "__debezium_unavailable_value"}, wrapped),
        envelope("c", None, {**row, "id": "1"}, wrapped),
    ]
    path = "payload.after.id" if wrapped else "after.id"
    assert outcome(run(decoder(Changes("debezium")), records)) == [
        ("I", *landed),
        ("I", *landed),
        ("U", *landed),
        ("U", *landed),
        ("U", *landed),
        ("D", 1, None, None, None),
        ("D", 1, None, None, None),
        FILTERED,
        "missing identity field 'id'",
        "missing identity field 'id'",
        "field 'id' is part of the identity and changed in place",
        "no known operation in 'op'",
        "no known operation in 'op'",
        "missing required field 'name'",
        ("I", *landed),
        "field 'at' is not a valid TIMESTAMP",
        "field 'name' was not sent by Debezium",
        f"field '{path}' should be BIGINT but is a string",
    ]


MARK = "__debezium_unavailable_value"
MARK_ID = str(uuid.UUID(bytes=md5(MARK.encode()).digest(), version=3))


@pytest.mark.parametrize(
    ("type_", "written", "sent"),
    [
        (pa.string(), MARK, "another"),
        (pa.binary(), b64encode(MARK.encode()).decode(), "AAEC"),
        (pa.list_(pa.string()), [MARK], [MARK, "another"]),
        (pa.list_(pa.string()), [MARK_ID], ["another"]),
        (pa.list_(pa.uuid()), [MARK_ID], [str(uuid.uuid4())]),
        (pa.list_(pa.binary()), [b64encode(MARK.encode()).decode()], ["AAEC"]),
        (pa.list_(pa.int32()), list(MARK.encode()), [*MARK.encode(), 1]),
        (pa.list_(pa.int64()), list(MARK.encode()), list(MARK.encode())[::-1]),
        (pa.map_(pa.string(), pa.string()), {MARK: MARK}, {"a": MARK}),
        (JSON, [MARK], [MARK, 1]),
        (JSON, list(MARK.encode()), []),
        (JSON, {MARK: MARK}, {}),
    ],
)
def test_what_debezium_did_not_send_lands_in_no_column(type_: pa.DataType, written: Any, sent: Any) -> None:
    changes = decoder(Changes("debezium"), Field("id", pa.int64()), Field("x", type_))
    values = [sent, written, None]
    records = [
        json.dumps(envelope("u", None, {"id": at, "x": value}, False), separators=(",", ":")).encode()
        for at, value in enumerate(values)
    ]
    found = changes.decode(pa.array(records, pa.binary()), [None] * 3)
    assert found.kept.tolist() == [0, 2]
    assert [str(each.reason) for each in found.rejects] == ["field 'x' was not sent by Debezium"]


def test_debezium_counts_days() -> None:
    changes = decoder(Changes("debezium"), Field("id", pa.int64()), Field("day", pa.date32()))
    days = [19_849, 2**31, "2024-05-06", None]
    assert outcome(run(changes, [envelope("c", None, {"id": 1, "day": day}, False) for day in days])) == [
        ("I", 1, date(2024, 5, 6)),
        "field 'day' is not a valid DATE",
        ("I", 1, date(2024, 5, 6)),
        ("I", 1, None),
    ]


# ------------------------------------------------------------------------------------------------------ dms


def test_dms() -> None:
    def record(operation: str, data: Any, kind: str = "data") -> dict[str, Any]:
        return {"data": data, "metadata": {"operation": operation, "record-type": kind, "table-name": "t"}}

    row = {"id": 1, "name": "a", "at": "2024-05-06T07:08:09.123456Z"}
    records = [
        record("load", row),
        record("insert", row),
        record("update", {**row, "at": TICKS}),
        record("delete", {"id": 1}),
        record("delete", {"id": 1, "name": 7}),
        record("create-table", None, "control"),
        {"metadata": {"operation": "drop-table", "record-type": "control"}, "control": {}},
        record("truncate", row),
        record("insert", None),
        {"data": row},
        None,
    ]
    assert outcome(run(decoder(Changes("dms")), records)) == [
        ("I", 1, "a", MOMENT, None),
        ("I", 1, "a", MOMENT, None),
        ("U", 1, "a", MOMENT, None),
        ("D", 1, None, None, None),
        ("D", 1, None, None, None),
        FILTERED,
        FILTERED,
        "no known operation in 'metadata.operation'",
        "missing identity field 'id'",
        "no known operation in 'metadata.operation'",
        "no value (a tombstone)",
    ]


# ---------------------------------------------------------------------------------------------- all of them

WIDE = (
    Field("k", pa.int32()),
    Field("kind", pa.string(), allowed=frozenset("abc")),
    Field("amount", pa.decimal128(10, 2)),
    Field("at", pa.timestamp("ms"), scale=3),
    Field("seen", pa.timestamp("ms"), scale=3),
    Field("who", pa.uuid()),
    Field("tree", pa.struct([("x", pa.int32()), ("y", pa.list_(pa.string()))])),
    Field("counts", pa.map_(pa.string(), pa.int64())),
)
HOW = {
    "upsert": Changes("upsert"),
    "operation": Changes("operation"),
    "debezium": Changes("debezium"),
    "dms": Changes("dms"),
}


def random_row(chance: random.Random) -> dict[str, Any]:
    row = {
        "k": chance.choice([*range(40), None, "1"]),
        "kind": chance.choice(["a", "b", "c", "d", None]),
        "amount": chance.choice(["1.25", 3, 1.5, "12345678.91", "123456789.00", None]),
        "at": chance.choice([1_000, "1970-01-01T00:00:01", "soon", None]),
        "seen": chance.choice([2_000, "1970-01-01T00:00:02", None]),
        "who": chance.choice([str(uuid.UUID(int=3)), "nobody", None]),
        "tree": chance.choice([{"x": 1, "y": ["ü", None]}, {"x": None}, None]),
        "counts": chance.choice([{"p": 1, "q": None}, {}, None]),
        "ignored": chance.random(),
    }
    return {name: value for name, value in row.items() if chance.random() > 0.05}


def random_record(chance: random.Random, mode: str) -> tuple[Any, bytes | None]:
    row = random_row(chance)
    key = json.dumps({"k": row["k"]}).encode() if row.get("k") is not None else None
    if chance.random() < 0.1:
        return None, key
    if mode == "upsert":
        return row, key
    if mode == "operation":
        return {**row, "op": chance.choice(["insert", "u", "d", "?"])}, key
    if mode == "dms":
        kind = chance.choice(["data", "data", "data", "control"])
        said = chance.choice(["load", "insert", "update", "delete", "?"])
        data = chance.choice([None, {**row, "k": 1}]) if kind == "control" else row
        return {"data": data, "metadata": {"operation": said, "record-type": kind}}, key
    op = chance.choice(["c", "r", "u", "d", "t"])
    before, after = (row, None) if op == "d" else (chance.choice([None, row]), row)
    return envelope(op, before, after, chance.random() < 0.5), key


def expected(record: Any, key: bytes | None, mode: str) -> Any:
    """By the standard library: the row, FILTERED, or None for a reject."""
    if record is None:
        if mode == "debezium":
            return FILTERED
        identity = json.loads(key)["k"] if key and mode != "dms" else None
        return ("D", identity, *[None] * 7) if type(identity) is int else None
    inner = record.get("payload", record) if mode == "debezium" else record
    said = {"upsert": "u", "operation": inner.get("op"), "debezium": inner.get("op")}.get(mode)
    row = inner
    if mode == "dms":
        if record["metadata"]["record-type"] == "control":
            return FILTERED
        said, row = record["metadata"]["operation"], record["data"]
    if mode == "debezium":
        row = inner["before"] if said == "d" else inner["after"]
    meant = {"c": "I", "r": "I", "insert": "I", "load": "I", "u": "U", "update": "U", "d": "D", "delete": "D"}.get(said)
    if meant is None or row is None or type(row.get("k")) is not int:
        return None
    return ("D", row["k"], *[None] * 7) if meant == "D" else expected_row(meant, row)


def expected_row(meant: str, row: dict[str, Any]) -> Any:
    times = {1_000: 1, "1970-01-01T00:00:01": 1, 2_000: 2, "1970-01-01T00:00:02": 2, None: None}
    if row.get("kind") == "d" or row.get("who") == "nobody" or row.get("at") == "soon":
        return None
    if row.get("amount") == "123456789.00":
        return None
    at, seen = (
        None if times[row.get(each)] is None else datetime(1970, 1, 1, 0, 0, times[row[each]])
        for each in ("at", "seen")
    )
    tree = row.get("tree")
    counts = row.get("counts")
    return (
        meant,
        row["k"],
        row.get("kind"),
        None if row.get("amount") is None else float(row["amount"]),
        at,
        seen,
        None if row.get("who") is None else uuid.UUID(row["who"]),
        None if tree is None else {"x": tree["x"], "y": tree.get("y")},
        None if counts is None else list(counts.items()),
    )


def comparable(value: Any) -> Any:
    return (
        tuple(float(each) if type(each).__name__ == "Decimal" else each for each in value)
        if isinstance(value, tuple)
        else value
    )


@pytest.mark.parametrize("mode", HOW)
def test_random_records_are_what_the_standard_library_says(mode: str) -> None:
    chance = random.Random(mode)
    changes = decoder(HOW[mode], *WIDE, identity=("k",))
    seen: list[Any] = []
    for _ in range(3):
        pairs = [random_record(chance, mode) for _ in range(500)]
        got = outcome(run(changes, [record for record, _ in pairs], [key for _, key in pairs]))
        for (record, key), each in zip(pairs, got, strict=True):
            wanted = expected(record, key, mode)
            rejected = isinstance(each, str) and each != FILTERED
            assert (None if rejected else comparable(each)) == wanted, (record, key)
            seen.append("rejected" if rejected else each[0] if isinstance(each, tuple) else each)
    kinds = {"rejected", "U"} | ({"I"} if mode != "upsert" else set()) | {"D"}
    assert kinds | ({FILTERED} if mode in ("debezium", "dms") else set()) == set(seen)


@pytest.mark.parametrize("mode", HOW)
def test_what_becomes_of_a_record_does_not_depend_on_its_neighbours(mode: str) -> None:
    chance = random.Random(mode)
    pairs = [random_record(chance, mode) for _ in range(100)]
    together = outcome(
        run(decoder(HOW[mode], *WIDE, identity=("k",)), [each for each, _ in pairs], [key for _, key in pairs])
    )
    changes = decoder(HOW[mode], *WIDE, identity=("k",))
    assert [outcome(run(changes, [record], [key]))[0] for record, key in pairs] == together


@pytest.mark.parametrize("mode", HOW)
def test_good_records_are_not_looked_at_one_by_one(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def record(number: int) -> dict[str, Any]:
        row = {"id": number, "name": "a", "at": TICKS, "tags": ["x"]}
        envelopes = {
            "operation": {**row, "op": "u"},
            "debezium": envelope("u", row, row, True),
            "dms": {"data": row, "metadata": {"operation": "update"}},
        }
        return envelopes.get(mode, row)

    parsed = 0

    def loads(*arguments: Any, **options: Any) -> Any:
        nonlocal parsed
        parsed += 1
        return json_loads(*arguments, **options)

    def explain(*_: Any) -> Any:
        raise AssertionError("a record was looked at by itself")

    json_loads = json.loads
    records = [record(number) for number in range(50_000)]
    monkeypatch.setattr(decode_module, "explain", explain)
    monkeypatch.setattr(changes_module.json, "loads", loads)
    changed = run(decoder(HOW[mode]), records)
    assert changed.table.num_rows == len(records)
    assert parsed <= 1


def test_the_way_times_are_written_is_learnt() -> None:
    """A topic that changes from text to numbers is read as numbers from the next call on."""
    changes = decoder(Changes("dms"))
    data = {"id": 1, "name": "a"}
    metadata = {"operation": "insert"}
    texts = [{"data": {**data, "at": "2024-05-06T07:08:09.123456Z"}, "metadata": metadata}] * 10
    numbers = [{"data": {**data, "at": TICKS}, "metadata": metadata}] * 20
    for records in (texts, [*texts, *numbers], numbers, texts):
        assert outcome(run(changes, records)) == [("I", 1, "a", MOMENT, None)] * len(records)


@pytest.mark.parametrize("mode", ["debezium", "dms", "operation", "upsert"])
def test_records_may_call_fields_by_other_names(mode: str) -> None:
    fields = (
        Field("id", pa.int64(), aliases=("ID", "key")),
        Field("at", pa.timestamp("us", "UTC"), scale=6, aliases=("AT",)),
        Field("tree", pa.struct([("x", pa.int32())]), inner_aliases=((("x",), ("X",)),)),
    )
    row = {"key": 1, "AT": TICKS, "tree": {"X": 5}}
    records = {
        "debezium": [envelope("c", None, row, True), envelope("d", row, None, False)],
        "dms": [{"data": row, "metadata": {"operation": op}} for op in ("insert", "delete")],
        "operation": [{**row, "op": op} for op in ("i", "d")],
        "upsert": [row, None],
    }[mode]
    changed = run(decoder(Changes(mode), *fields), records, [None, b'{"ID": 1}'])  # type: ignore[arg-type]
    assert outcome(changed) == [("U" if mode == "upsert" else "I", 1, MOMENT, {"x": 5}), ("D", 1, None, None)]


def test_case_may_be_ignored() -> None:
    changes = decoder(Changes("debezium"), *FIELDS, fold_case=True)
    record = envelope("c", None, {"ID": 1, "Name": "a", "AT": TICKS}, True)
    assert outcome(run(changes, [record])) == [("I", 1, "a", MOMENT, None)]


def test_an_empty_array_has_no_rows() -> None:
    for how in HOW.values():
        assert outcome(run(decoder(how), [])) == []


@pytest.mark.parametrize(
    ("fields", "identity", "how", "why"),
    [
        (FIELDS, (), Changes("upsert"), "at least one field"),
        (FIELDS, ("id", "id"), Changes("upsert"), "each of its fields once"),
        (FIELDS, ("nix",), Changes("upsert"), "not in the schema"),
        (FIELDS, ("tags",), Changes("upsert"), "cannot be ARRAY"),
        ((Field("id", pa.float64()),), ("id",), Changes("dms"), "cannot be DOUBLE"),
        ((*FIELDS, Field("_op", pa.string())), ("id",), Changes("upsert"), "is taken"),
        (FIELDS, ("id",), Changes("operation", field="id"), "must hold text"),
    ],
)
def test_what_cannot_work_is_refused_at_once(
    fields: tuple[Field, ...], identity: tuple[str, ...], how: Changes, why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        ChangeDecoder(Schema(fields), identity, how)


def test_a_word_means_one_operation() -> None:
    with pytest.raises(ValueError, match="one operation"):
        Changes("operation", insert=("x",), update=("x",))
