"""Which rows are there: the probe against tables with and without partitions, with gaps, deletions and copies."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from clickhouse_tables import WINDOW, block, covering, insert, make, sink_for

from landonce.local import LocalClickHouse
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.settle import Presence, Reply
from landonce.sinks.clickhouse.sink import ClickHouseSink

pytestmark = pytest.mark.integration

NewTable = Callable[[], str]


def days(count: int) -> pa.Table:
    """Rows that alternate between two days."""
    stamps = [(at % 2) * 86_400_000 for at in range(count)]
    return block({"at": pa.array(stamps, pa.timestamp("ms", tz="UTC"))})


def land(sink: ClickHouseSink, rows: pa.Table, token: str) -> None:
    assert sink.writer().send(rows, insert(sink.target(), token)) is Reply.ACKNOWLEDGED


def test_gaps_and_rows_that_kafka_lost_since_do_not_matter(clickhouse: LocalClickHouse, new_table: NewTable) -> None:
    table = new_table()
    make(clickhouse, table, "id Int64")
    sink = sink_for(clickhouse, table)
    rows = block({"id": list(range(100))})
    land(sink, rows, "a")
    left = rows.take(list(range(0, 100, 3)))
    assert sink.writer().probe(left, covering(rows)).presence == Presence(34, 0)


def test_several_partitions_and_topics_in_one_block(clickhouse: LocalClickHouse, new_table: NewTable) -> None:
    table = new_table()
    make(clickhouse, table, "id Int64")
    sink = sink_for(clickhouse, table)
    blocks = [block({"id": [1, 2, 3]}, first=first, topic=topic, partition=number)
              for topic, number, first in [("a", 0, 5), ("a", 3, 0), ("b", 0, 2**62)]]  # fmt: skip
    rows = pa.concat_tables(blocks)
    ranges = [each for part in blocks for each in covering(part)]
    land(sink, pa.concat_tables([blocks[0], blocks[2]]), "a")
    probe = sink.writer().probe(rows, ranges)
    assert probe.missing.to_pylist() == [False] * 3 + [True] * 3 + [False] * 3
    assert probe.presence == Presence(9, 3, torn=True)


def test_a_row_outside_of_the_ranges_is_a_defect(clickhouse: LocalClickHouse, new_table: NewTable) -> None:
    table = new_table()
    make(clickhouse, table, "id Int64")
    with pytest.raises(ValueError, match="outside"):
        sink_for(clickhouse, table).writer().probe(block({"id": [1, 2]}), [Range(Partition("t", 0), 0, 1)])


def test_copies_are_counted_by_coordinate(clickhouse: LocalClickHouse, new_table: NewTable) -> None:
    table = new_table()
    make(clickhouse, table, "id Int64")
    sink = sink_for(clickhouse, table)
    rows = block({"id": list(range(10))})
    land(sink, rows, "a")
    land(sink, rows.slice(0, 4), "b")
    land(sink, rows.slice(0, 4), "c")
    assert sink.writer().probe(rows, covering(rows)).presence == Presence(10, 0, duplicated=4)


@pytest.mark.parametrize(
    ("columns", "key"),
    [
        ("at DateTime64(3)", "toYYYYMMDD(at)"),
        ("at DateTime64(3), day Date MATERIALIZED toDate(at)", "day"),
        ("at DateTime64(3), kind String DEFAULT toString(toDate(at))", "(kind, toYear(at))"),
        ("at DateTime64(3)", "toDayOfMonth(at) % 2, _partition"),
        ("at DateTime64(3), day Date MATERIALIZED toDate(at), month UInt32 MATERIALIZED toYYYYMMDD(day)", "month"),
        ("month UInt32 MATERIALIZED toYYYYMMDD(day), day Date MATERIALIZED toDate(at), at DateTime64(3)", "month"),
        ("at DateTime64(3), zone String EPHEMERAL 'UTC', day Date DEFAULT toDate(at, zone)", "day"),
        ("at DateTime64(3), plus UInt8 EPHEMERAL, day UInt32 MATERIALIZED toYYYYMMDD(at) + plus", "day"),
        ("at DateTime64(3), day Date ALIAS toDate(at), month UInt32 MATERIALIZED toYYYYMMDD(day)", "month"),
        ("at DateTime64(3), kind String DEFAULT 'x', word String MATERIALIZED concat(kind, toString(at))", "word"),
        (
            "at DateTime64(3), more Nullable(Int64), word String MATERIALIZED concat(toString(more IS NULL), toString(at))",
            "word",
        ),
        ("at DateTime64(3), now UInt32 MATERIALIZED toUInt32(at), `now()` UInt32 MATERIALIZED now % 7", "now, `now()`"),
    ],
)
def test_a_table_partition_is_there_whole_or_not_at_all(
    clickhouse: LocalClickHouse, new_table: NewTable, columns: str, key: str
) -> None:
    table = new_table()
    make(clickhouse, table, columns, rest=f"PARTITION BY ({key}) ORDER BY _offset")
    sink = sink_for(clickhouse, table)
    rows = days(10)
    writer = sink.writer()
    assert not writer.atomic
    first_day = rows.filter(pc.equal(rows.column("at").cast(pa.int64()), 0))
    if "kind" in columns:
        rows = rows.append_column("kind", pa.nulls(10, pa.string()))
        first_day = first_day.append_column("kind", pa.nulls(5, pa.string()))
    land(sink, first_day, "a")
    assert writer.probe(rows, covering(rows)).presence == Presence(10, 5, torn=False)
    clickhouse.ask(f"ALTER TABLE {table} DELETE WHERE _offset = 0 SETTINGS mutations_sync = 1")
    probe = writer.probe(rows, covering(rows))
    assert probe.presence == Presence(10, 6, torn=True)
    assert probe.missing.to_pylist()[:3] == [True, True, False]


def test_a_lightly_deleted_row_is_missing(clickhouse: LocalClickHouse, new_table: NewTable) -> None:
    table = new_table()
    make(clickhouse, table, "id Int64")
    sink = sink_for(clickhouse, table)
    rows = block({"id": [1, 2]})
    land(sink, rows, "a")
    clickhouse.ask(f"DELETE FROM {table} WHERE id = 1")
    assert sink.writer().probe(rows, covering(rows)).presence == Presence(2, 1, torn=True)
    assert sink.writer().atomic


def test_a_replacing_table_makes_a_resend_harmless(clickhouse: LocalClickHouse, new_table: NewTable) -> None:
    table = new_table()
    clickhouse.ask(
        f"CREATE TABLE {table} (id Int64, _topic String, _partition Int32, _offset Int64) "
        f"ENGINE = ReplacingMergeTree(_offset) ORDER BY id SETTINGS {WINDOW}"
    )
    sink = sink_for(clickhouse, table)
    rows = block({"id": [1, 1, 2]})
    land(sink, rows, "a")
    writer = sink.writer()
    assert writer.resend_harmless
    assert writer.probe(rows, covering(rows)).presence.complete  # nothing is merged while it is inserted
    land(sink, rows, "b")
    assert writer.probe(rows, covering(rows)).presence == Presence(3, 0)
    clickhouse.ask(f"OPTIMIZE TABLE {table} FINAL")
    assert writer.probe(rows, covering(rows)).presence == Presence(3, 1, torn=True)
