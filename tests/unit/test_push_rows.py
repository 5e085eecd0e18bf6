"""What a push stands for, and how one that is large is cut: pure, before anything is opened."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example
from hypothesis import given as supposing
from hypothesis import strategies as st

import landonce
from landonce.errors import ConfigError, PushRefused
from landonce.protocol.match_ranges import pieces
from landonce.protocol.ranges import Partition, Range
from landonce.push.rows import Given, block_rows, given, partition_of
from landonce.push.sink import _lane_name

P = Partition("visits", 3)
ROWS = [{"_offset": 4, "page": "/"}, {"_offset": 9, "page": None}]


def made(rows: Any, schema: pa.Schema | None = None, **how: Any) -> Given:
    return given(P, rows, schema, **{"offset": "_offset", "first": None, "end": None, **how})


@pytest.mark.parametrize(
    "rows", [ROWS, pa.Table.from_pylist(ROWS), pa.RecordBatch.from_pylist(ROWS)], ids=["dicts", "table", "batch"]
)
def test_offsets_come_from_their_column(rows: Any) -> None:
    found = made(rows)
    assert found.range == Range(P, 4, 10)
    assert found.rows.to_pylist() == [
        {"_topic": "visits", "_partition": 3, "_offset": 4, "page": "/"},
        {"_topic": "visits", "_partition": 3, "_offset": 9, "page": None},
    ]


def test_offsets_are_counted_where_there_is_no_column() -> None:
    found = made([{"page": "/a"}, {"page": "/b"}], first=7)
    assert found.range == Range(P, 7, 9)
    assert found.offsets.tolist() == [7, 8]


def test_filtered_rows_may_hide_both_ends() -> None:
    assert made(ROWS, first=2, end=20).range == Range(P, 2, 20)
    assert made(pa.table({"page": pa.array([], pa.string())}), first=2, end=20).range == Range(P, 2, 20)
    assert made([], pa.schema([("page", pa.string())]), first=2, end=2).range is None


def test_another_column_may_hold_the_offsets() -> None:
    found = made([{"lsn": 5, "page": "/"}], offset="lsn")
    assert found.rows.column_names == ["_topic", "_partition", "_offset", "page"]
    assert found.range == Range(P, 5, 6)


def test_a_key_that_only_a_later_row_has_is_not_lost() -> None:
    assert made([{"_offset": 1, "a": 1}, {"_offset": 2, "b": 2}]).rows.column("b").to_pylist() == [None, 2]


def test_a_schema_gives_every_push_the_same_columns() -> None:
    schema = pa.schema([("page", pa.string()), ("n", pa.int16())])
    by_dicts, by_table = made(ROWS, schema), made(pa.table({"n": [1], "page": ["/"], "_offset": [4]}), schema)
    assert by_dicts.columns == by_table.columns
    assert by_dicts.fingerprint("s") == by_table.fingerprint("s") != by_table.fingerprint("another sink")


@pytest.mark.parametrize(
    ("rows", "how", "why"),
    [
        ([{"page": "/"}], {}, "nothing says which offsets its rows have"),
        ([{"_offset": 4}, {"_offset": 4}], {}, "its offsets do not grow: 4 comes after 4"),
        ([{"_offset": 4}, {"_offset": 3}], {}, "its offsets do not grow: 3 comes after 4"),
        ([{"_offset": "4"}], {}, "column '_offset' holds string, and not offsets"),
        ([{"_offset": 4}, {"page": 4}], {}, "column '_offset' holds nulls, and not offsets"),
        ([{"_offset": -1}], {}, "holds -1, which is no offset"),
        ([{"_offset": 2**63 - 1}], {}, "which is no offset"),
        (pa.table({"_offset": pa.array([2**63], pa.uint64())}), {}, "column '_offset': "),
        (ROWS, {"first": 5}, r"offset 4 lies outside of \[5, 10\)"),
        (ROWS, {"end": 9}, r"offset 9 lies outside of \[4, 9\)"),
        (ROWS, {"first": -1}, "`first` is -1, which is no offset"),
        (ROWS, {"end": True}, "`end` is True, which is no offset"),
        (pa.table({"a": pa.array([], pa.int8())}), {"first": 5, "end": 4}, "ends at offset 4, before it begins, at 5"),
        (
            pa.table({"a": pa.array([], pa.int8())}),
            {"end": 4},
            "does not say which offsets have none|there is no column",
        ),
        ([], {"first": 1, "end": 4}, "no rows that could say which columns there are"),
        ([{"_topic": "t", "_offset": 1}], {}, "has a column _topic, and landonce adds the coordinates itself"),
        (
            pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["_offset", "_offset"]),
            {},
            "column _offset is in it twice",
        ),
        ([{"_offset": 1, "a": 1}, {"_offset": 2, "a": "x"}], {}, "column 'a' cannot be made of its values"),
        ("rows", {}, "str is neither a pyarrow Table or RecordBatch nor a list of dicts"),
        ([1], {}, "not all of its rows are dicts"),
        (ROWS, {"schema": pa.schema([("n", pa.int8())])}, "`schema` has no column 'page'; it has n"),
        (pa.table({"_offset": [1]}), {"schema": pa.schema([("n", pa.int8())])}, "its rows lack n, which `schema` has"),
        (
            pa.table({"_offset": [1], "n": ["x"]}),
            {"schema": pa.schema([("n", pa.int8())])},
            "its rows are not of `schema`",
        ),
    ],
)
def test_a_mistake_is_named_before_anything_is_opened(rows: Any, how: dict[str, Any], why: str) -> None:
    schema = how.pop("schema", None)
    with pytest.raises(PushRefused, match=why):
        made(rows, schema, **how)


def test_partitions_have_a_number_or_a_name_or_both() -> None:
    assert partition_of("visits", 3) == Partition("visits", 3)
    assert partition_of("visits", "access.log") == Partition("access.log", 0)
    assert partition_of("visits", ("orders", 2)) == Partition("orders", 2)


@pytest.mark.parametrize(
    "wrong",
    [-1, True, 2**31, "", "a/b", "x" * 81, ("t", "1"), (1, 2), None, ("a",), (), ("a", 1, 2), "ab\n", ("ab\n", 1)],
)
def test_what_names_no_partition_is_refused(wrong: Any) -> None:
    with pytest.raises(PushRefused, match="names no partition"):
        partition_of("visits", wrong)


def test_a_block_gets_its_rows_and_the_label_of_its_topic() -> None:
    found = block_rows(made(ROWS).rows, Range(P, 5, 30), {"visits": "visits@2"})
    assert found.to_pylist() == [{"_topic": "visits@2", "_partition": 3, "_offset": 9, "page": None}]


class TestPieces:
    """Every cut of every small push: parts follow each other, hold few rows, and leave a pending block whole."""

    def test_all_small_pushes(self) -> None:
        offsets = [1, 2, 5, 6, 7]
        for first in range(9):
            for end in range(first + 1, 10):
                rows = [at for at in offsets if first <= at < end]
                for position in range(10):
                    for pending in {0, *range(position + 1, 10)}:
                        for most in (1, 2, 9):
                            self.holds(Range(P, first, end), rows, position, pending, most)

    @staticmethod
    def holds(whole: Range, rows: list[int], position: int, pending: int, most: int) -> None:
        found = pieces(whole, rows, position, pending, most)
        assert found[0].first == whole.first
        assert found[-1].end == whole.end
        assert all(one.end == other.first for one, other in pairwise(found))
        if whole.first <= position and pending > position:
            assert all(not position < each.end < pending for each in found[:-1]), "a pending block is cut"
        for each in found:
            new = [at for at in rows if max(each.first, position, pending) <= at < each.end]
            assert len(new) <= most

    def test_a_range_of_billions_is_one_piece(self) -> None:
        whole = Range(P, 0, 2**62)
        assert pieces(whole, [2**61], 0, 0, 100) == (whole,)


@pytest.mark.parametrize("kind", ["sql", "wrap"])
def test_a_name_that_is_too_long_for_the_ledger_is_refused_in_words(in_folder: Path, kind: str) -> None:
    del in_folder
    name, topic = "n" * 60, "t" * 37
    sink = (
        landonce.sql("sqlite:///x.db", "t", create=True)
        if kind == "sql"
        else landonce.wrap(lambda _: None, idempotent=True)
    )
    with landonce.ExactlyOnceSink(sink, None if kind == "sql" else "x.ledger", name=name) as once:
        assert once.position((topic, 9)) is None, "100 characters"
        for partition in ((topic, 10), topic + "t"):
            with pytest.raises(PushRefused, match="which has 101 characters, and may have 100"):
                once.position(partition)
            with pytest.raises(PushRefused, match="which has 101 characters, and may have 100"):
                once.push(partition, ROWS)


def test_mistakes_of_the_sink_are_named_at_once() -> None:
    sqlite = landonce.sql("sqlite:///x.db", "t")
    with pytest.raises(ConfigError, match="name: must be"):
        landonce.ExactlyOnceSink(sqlite, name="a b")
    with pytest.raises(ConfigError, match="block_rows"):
        landonce.ExactlyOnceSink(sqlite, name="a", block_rows=0)
    with pytest.raises(ConfigError, match="schema: a pyarrow Schema, not str"):
        landonce.ExactlyOnceSink(sqlite, name="a", schema="id BIGINT")
    with pytest.raises(ConfigError, match="ledger: say where the position is kept"):
        landonce.ExactlyOnceSink(landonce.clickhouse("http://h", "t"), name="a")
    with pytest.raises(ConfigError, match="the position is kept in the target database"):
        landonce.ExactlyOnceSink(sqlite, "sqlite:///l", name="a")


_NAMED = st.text("ab1.-", min_size=1, max_size=5).filter(lambda name: name[0] not in ".-")


@supposing(st.lists(st.tuples(_NAMED, _NAMED, st.integers(0, 11)), min_size=2, max_size=40))
@example([("a", "b", 1), ("a.b", "a.b", 1)])
@example([("a.", "b", 1), ("a", "b", 1)])
@example([("a", "b.c", 1), ("a.b", "c", 1)])
def test_no_two_partitions_share_an_entry_of_the_ledger(partitions: list[tuple[str, str, int]]) -> None:
    """Of sinks of any names: the one would be fenced by the other."""
    distinct = {*partitions}
    assert len({_lane_name(name, Partition(topic, number)) for name, topic, number in distinct}) == len(distinct)


def test_only_dots_change_a_name() -> None:
    assert _lane_name("shop", Partition("shop", 3)) == "shop.3"
    assert _lane_name("shop", Partition("visits", 0)) == "shop.visits.0"
    assert _lane_name("shop", Partition("access.log", 0)) == "shop.access..log.0"


def test_sinks_whose_names_differ_by_a_dot_do_not_fence_each_other(in_folder: Path) -> None:
    del in_folder
    sink = landonce.sql("sqlite:///x.db", "t", create=True)
    with landonce.ExactlyOnceSink(sink, name="a") as one, landonce.ExactlyOnceSink(sink, name="a.b") as other:
        for first in range(3):
            assert one.push(("b", 1), [{"n": 1}], first=first).landed == 1
            assert other.push(1, [{"n": 1}], first=first).landed == 1
