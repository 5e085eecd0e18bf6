"""Where ClickHouse's sink for Kafka Connect stopped, decided from its state; every refusal beside a case that is fine."""

from __future__ import annotations

import pytest

from landonce.errors import ImportRefused
from landonce.protocol.ledger import LedgerState, Position
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.source import Extent, GroupOffsets, SourceView, Start, bind
from landonce.sinks.clickhouse.address import TableName
from landonce.sinks.clickhouse.move_in import (
    AFTER,
    BEFORE,
    ComparedBatch,
    LastBatch,
    WriterStops,
    batches,
    begin,
    inserts_into,
    no_proof,
    readable,
    stop_of,
    stops_of,
)

P0, P1 = Partition("a-1", 0), Partition("a-1", 1)
VIEW = SourceView("cluster", (("a-1", "id"),), ((P0, Extent(5, 120)), (P1, Extent(40, 90))))
FRESH = LedgerState("p", lineage="l")


def test_keys_are_topic_and_partition() -> None:
    """Names with dashes are told apart by the last one; other topics share the table."""
    rows = [
        ("a-1-1", 40, 49, AFTER),
        ("a-1-0", 6, 9, BEFORE),
        ("a-0", 1, 2, AFTER),
        ("a-1-0-0", 1, 2, AFTER),
        ("x", 0, 0, AFTER),
    ]
    assert batches(rows, VIEW) == (LastBatch(P0, 6, 9, BEFORE), LastBatch(P1, 40, 49, AFTER))


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (("a-1-2", 0, 1, AFTER), "does not have that partition"),
        (("a-1-0", 0, 1, "NONE"), "not a state"),
        (("a-1-0", 3, 2, AFTER), "not a state"),
        (("a-1-0", -1, 2, AFTER), "not a state"),
        (("a-1-1", 3, 4, AFTER), "says two things"),
    ],
)
def test_rows_that_are_no_state(row: tuple[str, int, int, str], says: str) -> None:
    with pytest.raises(ImportRefused, match=says):
        batches([("a-1-1", 1, 2, AFTER), row], VIEW)


@pytest.mark.parametrize(
    ("compared", "landed", "at"),
    [
        (None, None, 20),
        (ComparedBatch(8, 8), None, 20),
        (ComparedBatch(8, 8), False, 20),
        (ComparedBatch(8, 0), None, 10),
        (ComparedBatch(8, 0), True, 10),
        (ComparedBatch(8, 3), True, 20),
        (ComparedBatch(8, 3), False, 10),
        (ComparedBatch(unknown="why"), True, 20),
        (ComparedBatch(unknown="why"), False, 10),
        (ComparedBatch(8, 3), None, None),
        (ComparedBatch(unknown="why"), None, None),
        (ComparedBatch(0, 0), True, 20),
        (ComparedBatch(0, 0), False, 10),
        (ComparedBatch(0, 0), None, None),
    ],
)
def test_where_a_partition_begins(compared: ComparedBatch | None, landed: bool | None, at: int | None) -> None:
    """What the table shows counts more than what a person says."""
    batch = LastBatch(P0, 10, 19, AFTER if compared is None else BEFORE)
    if at is None:
        with pytest.raises(ImportRefused, match="never learned"):
            stop_of(batch, compared, landed)
    else:
        assert stop_of(batch, compared, landed)[:2] == (P0, at)


def test_only_what_kafka_still_has_is_compared() -> None:
    assert readable(LastBatch(P0, 10, 19, BEFORE), Extent(5, 20)) == (Range(P0, 10, 20),)
    assert readable(LastBatch(P0, 10, 19, BEFORE), Extent(15, 20)) == (Range(P0, 15, 20),)
    assert readable(LastBatch(P0, 10, 19, BEFORE), Extent(20, 20)) == ()
    with pytest.raises(ImportRefused, match="ends at 19"):
        readable(LastBatch(P0, 10, 19, BEFORE), Extent(5, 19))


@pytest.mark.parametrize(
    ("named", "proof"),
    [
        ({"t": []}, True),
        ({"t": ["a-1", "b"]}, True),
        ({"t": [], "u": ["a-1"]}, True),
        ({"t": ["a-1", ""]}, False),
        ({"t": ["b"]}, False),
    ],
)
def test_rows_tell_only_if_they_have_coordinates(named: dict[str, list[str]], proof: bool) -> None:
    assert (no_proof(named, "a-1") == "") is proof


def test_the_ledger_begins_where_the_writer_stopped() -> None:
    new = begin(FRESH, WriterStops("w", ((P0, 100, ""), (P1, 90, ""))), VIEW, "me", None).new
    assert new.positions == ((P0, Position(100, 100)), (P1, Position(90, 90)))
    assert (new.epoch, new.owner, new.batch, new.totals.read, new.pending) == (1, "me", 0, 0, None)
    assert bind(new, VIEW, Start.EARLIEST).added == {}


@pytest.mark.parametrize(("missing", "at"), [(None, None), (Start.EARLIEST, 40), (Start.LATEST, 90)])
@pytest.mark.parametrize("stops", [((P0, 100, ""),), ((P0, 100, ""), (P1, 39, ""))])
def test_a_partition_without_a_position(
    stops: tuple[tuple[Partition, int, str], ...], missing: Start | None, at: int | None
) -> None:
    """The writer says nothing of it, or Kafka has deleted what comes next."""
    if at is None:
        with pytest.raises(ImportRefused, match=r"a-1\[1\]"):
            begin(FRESH, WriterStops("w", stops), VIEW, "me", missing)
    else:
        decision = begin(FRESH, WriterStops("w", stops), VIEW, "me", missing)
        assert decision.new.committed() == {P0: 100, P1: at}
        assert any(f"[39, {at}) is never delivered" in line for line in decision.does) is (len(stops) == 2)


@pytest.mark.parametrize("missing", [None, Start.EARLIEST])
def test_another_topic_by_that_name(missing: Start | None) -> None:
    with pytest.raises(ImportRefused, match="would be 91"):
        begin(FRESH, WriterStops("w", ((P0, 100, ""), (P1, 91, ""))), VIEW, "me", missing)


def test_a_group() -> None:
    assert [stop[:2] for stop in stops_of("g", GroupOffsets(0, {P1: 4, P0: 3}, {}))] == [(P0, 3), (P1, 4)]
    for group, says in (
        (GroupOffsets(1, {P0: 3}, {}), "active members"),
        (GroupOffsets(0, {P0: 3}, {P0: "x"}), "metadata"),
    ):
        with pytest.raises(ImportRefused, match=says):
            stops_of("g", group)


MINE = [
    "INSERT INTO events FORMAT RowBinary",
    "insert into shop.events (id) VALUES (1)",
    "INSERT INTO `shop` . `events`(`id`) SELECT 1",
    'INSERT INTO "events" SELECT * FROM other.x',
    "/* by a job */ INSERT INTO TABLE events -- now\nSELECT 1",
    "INSERT INTO FUNCTION remote('host', shop.events) SELECT 1",
    "INSERT INTO TABLE FUNCTION remote('host', shop.events) SELECT 1",
]
OTHERS = [
    "INSERT INTO other.events_old SELECT 1",
    "INSERT INTO other.events SELECT 1",
    "INSERT INTO events_old SELECT * FROM shop.events",
    "INSERT INTO `events_old` SELECT 'events'",
    "INSERT INTO archive SELECT * FROM events",
    "INSERT INTO `e``vents` SELECT * FROM events",
    "INSERT INTO FUNCTION file('x.csv') SELECT 1",
]


@pytest.mark.parametrize("query", MINE)
def test_an_insert_that_still_runs_is_found(query: str) -> None:
    assert inserts_into(TableName("shop", "events"), query, "shop")


@pytest.mark.parametrize("query", OTHERS)
def test_an_insert_into_another_table_is_not_taken_for_one(query: str) -> None:
    assert not inserts_into(TableName("shop", "events"), query, "shop")


def test_the_session_says_which_database_a_name_is_in() -> None:
    assert not inserts_into(TableName("shop", "events"), "INSERT INTO events SELECT 1", "other")
    assert inserts_into(TableName("s`hop", "ev\\ents"), "INSERT INTO `s``hop`.`ev\\\\ents` SELECT 1", "other")
