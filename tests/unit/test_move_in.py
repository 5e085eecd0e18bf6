"""Where another writer stopped, decided from what it left behind; every refusal beside a case that is fine."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from landonce.errors import ImportRefused, PartitionVanished, PositionBeyondEnd
from landonce.protocol.ledger import LedgerState, Position, bound
from landonce.protocol.operate.decision import nothing_known
from landonce.protocol.ranges import Partition
from landonce.protocol.source import Extent, SourceView, Start, bind
from landonce.sinks.iceberg.move_in import query
from landonce.sinks.iceberg.move_in.adopt import History, LastCommit, WriterCommits, adopt
from landonce.sinks.iceberg.move_in.connect import (
    Complete,
    Connector,
    ControlLog,
    Reported,
    Written,
    control_topic_in,
    covered,
    decode,
    event_of,
    stopped_at,
)
from landonce.sinks.iceberg.move_in.query import Checkpoint

P0, P1 = Partition("t", 0), Partition("t", 1)

# ------------------------------------------------------------------------------------------------------ Avro


def number(value: int) -> bytes:
    zigzag, out = (value << 1) ^ (value >> 63), b""
    while zigzag > 0x7F:
        out += bytes([zigzag & 0x7F | 0x80])
        zigzag >>= 7
    return out + bytes([zigzag])


def text(value: str) -> bytes:
    return number(len(value.encode())) + value.encode()


def message(schema: Any, value: bytes) -> bytes:
    text = json.dumps(schema).encode()
    return b"\xc2\x01" + len(text).to_bytes(2, "big") + text + value


def record(name: str, *fields: tuple[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": each, "type": kind} for each, kind in fields], **more}


FIXED = {"type": "fixed", "name": "id16", "namespace": "", "size": 2, "logicalType": "uuid"}


def test_values_of_all_kinds() -> None:
    schema = record(
        "All",
        ("id", FIXED),
        ("again", ["null", "id16"]),
        ("big", {"type": "long", "logicalType": "timestamp-micros"}),
        ("half", "double"),
        ("quarter", "float"),
        ("yes", "boolean"),
        ("raw", "bytes"),
        ("one", {"type": "enum", "name": "E", "symbols": ["A", "B"]}),
        ("list", {"type": "array", "items": record("Item", ("x", "int"))}),
        ("items", {"type": "array", "items": "Item"}),
        ("pairs", {"type": "map", "values": "string"}),
        namespace="a.b",
    )
    value = (
        b"\x01\x02"
        + number(1)
        + b"\x03\x04"
        + number(-(2**40))
        + b"\x00\x00\x00\x00\x00\x00\xe0\x3f"
        + b"\x00\x00\x80\x3e"
        + b"\x01"
        + number(3)
        + b"\x00\xff\x00"
        + number(1)
        + (number(2) + number(-7) + number(300) + number(0))
        + (number(-1) + number(1) + number(8) + number(0))
        + (number(1) + text("k") + text("grüße") + number(0))
    )
    assert decode(message(schema, value)) == {
        "id": b"\x01\x02",
        "again": b"\x03\x04",
        "big": -(2**40),
        "half": 0.5,
        "quarter": 0.25,
        "yes": True,
        "raw": b"\x00\xff\x00",
        "one": "B",
        "list": [{"x": -7}, {"x": 300}],
        "items": [{"x": 8}],
        "pairs": {"k": "grüße"},
    }


@pytest.mark.parametrize("broken", [b"", b"{}", b"\xc2\x01", message("string", number(5) + b"abc"), message("X", b"")])
def test_what_is_not_such_a_value_is_an_error(broken: bytes) -> None:
    with pytest.raises(ValueError):
        decode(broken)


FILE = record("File", ("file_path", "string"), ("record_count", "long"))
TABLE = record("Table", ("namespace", {"type": "array", "items": "string"}), ("name", "string"))
FILES = ["null", {"type": "array", "items": "File"}]
PLACE = record("Place", ("topic", "string"), ("partition", "int"), ("offset", ["null", "long"]))


def event(kind: int, payload: dict[str, Any], value: bytes, group: str = "g") -> bytes:
    schema = record("Event", ("id", FIXED), ("type", "int"), ("group_id", "string"), ("payload", payload))
    return message(schema, b"\x00\x00" + number(kind) + text(group) + value)


def written(*rows: int) -> bytes:
    payload = record(
        "Written",
        ("table_reference", TABLE),
        ("data_files", ["null", {"type": "array", "items": FILE}]),
        ("delete_files", FILES),
    )
    files = number(1) + number(len(rows)) + b"".join(text(f"f{each}") + number(each) for each in rows) + number(0)
    table = number(2) + text("a") + text("b") + number(0) + text("t")
    return event(1, payload, table + (files if rows else number(0)) + number(0))


def test_events_that_matter() -> None:
    assert event_of(written(5, 0, 7), "g") == Written("a.b.t", ("f5", "f7"), 12)
    assert event_of(written(), "g") == Written("a.b.t", (), 0)
    assert event_of(written(5), "other") is None
    places = number(2) + text("t") + number(0) + number(1) + number(9) + text("t") + number(1) + number(0) + number(0)
    complete = record("Complete", ("assignments", ["null", {"type": "array", "items": PLACE}]))
    assert event_of(event(2, complete, number(1) + places), "g") == Complete(((P0, 9), (P1, None)))
    assert event_of(event(0, record("Start"), b""), "g") is None


# ------------------------------------------------------------------------------------------------- Connect


def history(said: dict[str, int] | None = None, table: str = "db.t", *, whole: bool = True) -> History:
    return History(table, LastCommit(table, 7, 0, json.dumps(said)) if said is not None else None, whole)


def sink(**changes: Any) -> Connector:
    """Two commits: reported at 2 and 11, recorded at 4 and 13."""
    names = {"members", "offsets"}
    log = ControlLog(
        topic="control",
        starts={0: 0},
        ends={0: 20},
        reported=(reported(2), reported(11)),
        completed={P0: 100, P1: 90},
        assigned=frozenset({P0, P1}),
    )
    log = replace(log, **{name: value for name, value in changes.items() if name not in names})
    parts = {"members": 0, "offsets": {P0: 100, P1: 90}, **{name: changes[name] for name in names & changes.keys()}}
    return Connector("c", "connect-c", log=log, **parts)


def reported(offset: int, table: str = "db.t", *, partition: int = 0, files: int = 1) -> Reported:
    return Reported(partition, offset, Written(table, tuple(f"f{offset}.{each}" for each in range(files)), 50 * files))


def test_the_groups_offsets_count_where_nothing_waits() -> None:
    assert stopped_at(sink(), [history({"0": 13})], ["t"]) == {P0: 100, P1: 90}


@pytest.mark.parametrize(
    ("changes", "histories", "topics", "says"),
    [
        ({"members": 1}, [history({"0": 13})], ["t"], "is running"),
        ({"unfinished": frozenset({0})}, [history({"0": 13})], ["t"], "still open"),
        ({}, [history()], ["t"], "no snapshot"),
        ({}, [history({"0": 4})], ["t"], r"1 file\(s\) with 50 rows"),
        ({}, [history({"0": 11})], ["t"], "not in the table"),
        ({}, [history({"1": 13})], ["t"], r"2 file\(s\) with 100 rows"),
        ({"starts": {0: 14}, "reported": ()}, [history({"0": 13})], ["t"], "begins at 14 now"),
        ({"starts": {0: 0, 1: 3}}, [history({"0": 13})], ["t"], r"control\[1\]"),
        ({}, [history({"0": 13}), history(table="db.u", whole=False)], ["t"], "no snapshot of db.u"),
        (
            {"reported": (reported(2), reported(3, "db.u"))},
            [history({"0": 13}), history(table="db.u")],
            ["t"],
            "for db.u",
        ),
        ({"offsets": {P0: 100, P1: 80}}, [history({"0": 13})], ["t"], "Somebody moved"),
        ({"offsets": {P0: 120, P1: 90}}, [history({"0": 13})], ["t"], "Somebody moved"),
        ({"offsets": {}, "starts": {0: 5}}, [history({"0": 13})], ["t"], "has no offsets"),
        ({}, [history({"0": 13})], ["t", "u"], "does not read 'u'"),
        ({}, [history({"0": 13})], ["u"], "reads 't' too"),
    ],
)
def test_refused(changes: dict[str, Any], histories: list[History], topics: list[str], says: str) -> None:
    with pytest.raises(ImportRefused, match=says) as refused:
        stopped_at(sink(**changes), histories, topics)
    assert refused.value.safe == "Nothing was changed."
    assert refused.value.command
    assert refused.value.exit_code == 3


@pytest.mark.parametrize(
    ("changes", "histories", "positions"),
    [
        # Expired up to what the table records, and no further.
        ({"starts": {0: 13}, "reported": ()}, [history({"0": 13})], {P0: 100, P1: 90}),
        # The reports of an idle partition expired; the group still knows.
        ({"completed": {P0: 100}}, [history({"0": 13})], {P0: 100, P1: 90}),
        # The group's offsets expired as a whole; all reports are there.
        ({"offsets": {}}, [history({"0": 13})], {P0: 100, P1: 90}),
        # Nothing was ever read from a partition.
        ({"offsets": {P0: 100}, "completed": {P0: 100}}, [history({"0": 13})], {P0: 100}),
        # Files for other tables wait, or such that hold no rows.
        ({"reported": (reported(14, "db.u"), reported(15, files=0))}, [history({"0": 13})], {P0: 100, P1: 90}),
        # A table that never got anything.
        ({}, [history({"0": 13}), history(table="db.u")], {P0: 100, P1: 90}),
    ],
)
def test_fine(changes: dict[str, Any], histories: list[History], positions: dict[Partition, int]) -> None:
    assert stopped_at(sink(**changes), histories, ["t"]) == positions


def test_every_partition_of_the_control_topic_counts_for_itself() -> None:
    log = {"starts": {0: 0, 1: 0}, "reported": (reported(2), reported(5, partition=1))}
    assert stopped_at(sink(**log), [history({"0": 4, "1": 6})], ["t"])
    with pytest.raises(ImportRefused, match="offset 5 of partition 1"):
        stopped_at(sink(**log), [history({"0": 4, "1": 5})], ["t"])
    assert covered(sink(**log), history({"0": 4, "1": 5})) == {"f2.0"}


def test_the_control_topic_is_found_in_the_summary() -> None:
    summary = {"kafka.connect.offsets.my.control.connect-c": "{}", "kafka.connect.commit-id": "x"}
    assert control_topic_in(summary, "connect-c") == "my.control"
    assert control_topic_in(summary, "connect-d") is None


# --------------------------------------------------------------------------------------------------- Spark

CHECKPOINT = Checkpoint("/cp", "q", (1, 2, 3, 4), (1, 2, 3))


def table_at(batch: int | None) -> History:
    return History("db.t", LastCommit("db.t", 7, 0, str(batch)) if batch is not None else None)


def test_the_table_says_which_batch_is_the_last() -> None:
    assert query.last_batch(CHECKPOINT, [table_at(3)]) == 3
    assert "Batch 4 was planned" in query.notes_of(CHECKPOINT, 3)[1]
    assert query.last_batch(CHECKPOINT, [table_at(4)]) == 4  # the commit log lacks it, the table does not
    assert len(query.notes_of(CHECKPOINT, 4)) == 1
    assert query.last_batch(CHECKPOINT, [table_at(2)]) == 2
    assert "rolled back to batch 2" in query.notes_of(CHECKPOINT, 2)[1]


@pytest.mark.parametrize(
    ("checkpoint", "histories", "says"),
    [
        (CHECKPOINT, [table_at(None)], "no snapshot"),
        (CHECKPOINT, [table_at(0)], "batches 1 to 4"),
        (replace(CHECKPOINT, planned=()), [table_at(3)], "no batch at all"),
        (replace(CHECKPOINT, stateful=True), [table_at(3)], "keeps state"),
        (CHECKPOINT, [table_at(3), table_at(3)], "writes one table"),
    ],
)
def test_a_query_is_refused(checkpoint: Checkpoint, histories: list[History], says: str) -> None:
    with pytest.raises(ImportRefused, match=says):
        query.last_batch(checkpoint, histories)


def test_where_a_batch_ended() -> None:
    entry = 'v1\n{"batchWatermarkMs":0,"conf":{}}\n{"t":{"1":7,"0":12},"u":{"0":0}}'
    assert query.positions_of(CHECKPOINT, 3, entry) == {P0: 12, P1: 7, Partition("u", 0): 0}


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ('v1\n{}\n{"t":{"0":1}}\n{"u":{"0":1}}', "reads 2 sources"),
        ('v1\n{}\n{"t":{"0":1}}\n-', "reads 2 sources"),
        ("v1\n{}", "reads 0 sources"),
        ("v1\n{}\n-", "does not read from Kafka"),
        ('v1\n{}\n{"logOffset":3}', "does not read from Kafka"),
        ("v1\n{}\n17", "does not read from Kafka"),
        ('v2\n{}\n{"t":{"0":1}}', "does not know"),
        ("v1", "does not know"),
        ("", "does not know"),
    ],
)
def test_an_entry_that_says_something_else(entry: str, says: str) -> None:
    with pytest.raises(ImportRefused, match=says):
        query.positions_of(CHECKPOINT, 3, entry)


# --------------------------------------------------------------------------------------------------- adopting

VIEW = SourceView("cluster", (("t", "id"),), ((P0, Extent(5, 120)), (P1, Extent(40, 90))))
FRESH = LedgerState("p", lineage="l")


def found(**positions: int) -> WriterCommits:
    offsets = tuple((Partition("t", int(name[1:])), at) for name, at in sorted(positions.items()))
    return WriterCommits("the writer", (LastCommit("db.t", 7, 0, "x"),), offsets, notes=("Mind this.",))


def test_the_first_position_is_where_the_writer_stopped() -> None:
    decision = adopt(FRESH, found(p0=100, p1=90), VIEW, "me")
    new = decision.new
    assert new.positions == ((P0, Position(100, 100)), (P1, Position(90, 90)))
    assert (new.cluster_id, new.topic_ids, new.epoch, new.owner) == ("cluster", (("t", "id"),), 1, "me")
    assert (new.batch, new.totals.read, new.pending) == (0, 0, None)
    assert "t[0]: next offset 100, lag 20" in decision.does
    assert decision.costs[0] == "Mind this."
    assert bind(new, VIEW, Start.EARLIEST).added == {}


def test_a_partition_that_nothing_was_read_from_begins_at_its_start() -> None:
    decision = adopt(FRESH, found(p0=100), VIEW, "me")
    assert dict(decision.new.positions)[P1] == Position(40, 40)
    assert any("nothing was delivered from it yet" in line for line in decision.does)


def test_records_that_are_gone_are_named() -> None:
    costs = adopt(FRESH, found(p0=100, p1=30), VIEW, "me").costs
    assert any("t[1] [30, 40)" in line and "accept-gap" in line for line in costs)
    assert not any("accept-gap" in line for line in adopt(FRESH, found(p0=100, p1=40), VIEW, "me").costs)


def test_another_topic_by_that_name() -> None:
    with pytest.raises(PositionBeyondEnd, match="offset 91"):
        adopt(FRESH, found(p0=100, p1=91), VIEW, "me")
    with pytest.raises(PartitionVanished, match=r"t\[2\]"):
        adopt(FRESH, found(p0=100, p1=90, p2=0), VIEW, "me")


def test_a_pipeline_with_a_position_keeps_it() -> None:
    nothing_known(None)
    nothing_known(FRESH)
    with pytest.raises(ImportRefused, match="already, in its ledger"):
        nothing_known(bound(FRESH, "cluster", {"t": "id"}, {P0: 0}))
    with pytest.raises(ImportRefused, match=r"already, in the table db\.t"):
        nothing_known(None, "db.t")
