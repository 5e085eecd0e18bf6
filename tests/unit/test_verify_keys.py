"""Rows that records change: what the audit says of a table, against an oracle that replays the changes in a dict."""

import itertools
import random

import numpy as np
import pyarrow as pa
import pytest

from landonce.sinks.audit import OFFSET, PLACE, UNKNOWN, plain
from landonce.verify.judge import Discrepancy
from landonce.verify.keys import LAST, KeyLimits, LastChanges, judge_keys

KEYS = pa.schema([("id", pa.int64())])


def gathered(changes, identity=("id",), schema=KEYS, at_once=3):
    """`changes` are (place, offset, key, deleted), in offset order."""
    last = LastChanges(identity)
    for start in range(0, len(changes), at_once):
        for place, some in itertools.groupby(changes[start : start + at_once], key=lambda each: each[0]):
            listed = list(some)
            keys = pa.Table.from_pylist([dict(zip(identity, each[2], strict=True)) for each in listed], schema)
            offsets = np.array([each[1] for each in listed])
            last.add(keys, place, offsets, np.array([each[3] for each in listed]))
    table = last.table()
    empty = plain(schema.empty_table())
    none = pa.array([], pa.int64())
    return table if table is not None else empty.append_column(PLACE, none).append_column(LAST, none)


def rows(held, identity=("id",), schema=KEYS):
    """`held` are (place, offset, key)."""
    keys = plain(pa.Table.from_pylist([dict(zip(identity, each[2], strict=True)) for each in held], schema))
    places, offsets = (pa.array([each[at] for each in held], pa.int64()) for at in (0, 1))
    return keys.append_column(PLACE, places).append_column(OFFSET, offsets)


def judged(changes, held, *, later=(), start=0, end=100, compacted=False, places=1):
    limits = KeyLimits(np.full(places, start), np.full(places, end), np.full(places, compacted))
    deleted = plain(pa.Table.from_pylist([{"id": key} for key in later], KEYS))
    return judge_keys(("id",), gathered(changes), rows(held), deleted, limits)


def faults(result):
    """{fault: {(key, place, offset)}}"""
    return {
        fault: {
            (result.keys.column("id")[key].as_py(), place, offset)
            for key, place, offset in zip(
                faulty.keys.tolist(), faulty.places.tolist(), faulty.offsets.tolist(), strict=True
            )
        }
        for fault, faulty in result.faults.items()
    }


def change(offset, key, deleted=False, place=0):
    return place, offset, (key,), deleted


def row(offset, key, place=0):
    return place, offset, (key,)


def test_the_last_change_stands():
    result = judged([change(0, 1), change(1, 2), change(2, 1)], [row(2, 1), row(1, 2)])
    assert faults(result) == {}
    assert (result.expected.tolist(), result.landed.tolist()) == ([2], [2])


@pytest.mark.parametrize(
    ("changes", "held", "wrong"),
    [
        pytest.param([change(0, 1)], [], {Discrepancy.MISSING: {(1, 0, 0)}}, id="missing"),
        pytest.param([change(0, 1), change(5, 1)], [row(0, 1)], {Discrepancy.STALE: {(1, 0, 5)}}, id="stale"),
        pytest.param([change(0, 1)], [row(0, 1), row(0, 1)], {Discrepancy.DUPLICATED: {(1, 0, 0)}}, id="twice"),
        pytest.param(
            [change(0, 1), change(5, 1)], [row(0, 1), row(5, 1)], {Discrepancy.DUPLICATED: {(1, 0, 5)}}, id="both"
        ),
        pytest.param(
            [change(0, 1), change(5, 1, True)], [row(0, 1)], {Discrepancy.UNEXPECTED: {(1, 0, 0)}}, id="deleted"
        ),
        pytest.param([change(0, 1)], [row(0, 1), row(7, 2)], {Discrepancy.UNEXPECTED: {(2, 0, 7)}}, id="of no record"),
        pytest.param([], [row(7, 2)], {Discrepancy.UNEXPECTED: {(2, 0, 7)}}, id="of no record at all"),
        pytest.param([change(0, 1, True), change(1, 1)], [], {Discrepancy.MISSING: {(1, 0, 1)}}, id="back again"),
        pytest.param([change(0, 1, True)], [], {}, id="deleted and gone"),
        pytest.param(
            [change(3, 1)], [row(UNKNOWN, 1, UNKNOWN)], {Discrepancy.STALE: {(1, 0, 3)}}, id="somebody else's row"
        ),
        pytest.param([change(0, 1)], [row(4, 1)], {Discrepancy.UNEXPECTED: {(1, 0, 4)}}, id="of a later offset"),
        pytest.param([change(0, 1, True)], [row(0, 1)], {Discrepancy.UNEXPECTED: {(1, 0, 0)}}, id="of the deletion"),
        pytest.param([], [], {}, id="nothing"),
    ],
)
def test_each_fault_is_reported_by_its_coordinates(changes, held, wrong):
    assert faults(judged(changes, held)) == wrong


class TestBounds:
    def test_a_row_from_above_the_end_takes_the_place_of_any_other(self):
        result = judged([change(0, 1)], [row(120, 1)])
        assert faults(result) == {}
        assert result.in_flight.tolist() == [1]

    def test_a_key_that_was_deleted_since_is_not_missed(self):
        assert faults(judged([change(0, 1), change(1, 2)], [], later=[1])) == {Discrepancy.MISSING: {(2, 0, 1)}}

    def test_rows_from_below_the_start_are_judged_only_if_their_key_was_changed(self):
        result = judged([change(50, 1)], [row(3, 1), row(4, 2)], start=40)
        assert faults(result) == {Discrepancy.STALE: {(1, 0, 50)}}
        assert result.before.tolist() == [1]

    def test_in_a_compacted_topic_a_row_may_have_lost_its_record(self):
        result = judged([change(50, 1)], [row(50, 1), row(4, 2)], compacted=True)
        assert faults(result) == {}
        assert result.vanished.tolist() == [1]

    def test_in_a_compacted_topic_a_row_may_be_of_a_change_that_is_gone(self):
        result = judged([change(0, 1)], [row(4, 1)], compacted=True)
        assert faults(result) == {}
        assert result.vanished.tolist() == [1]

    def test_rows_of_others_are_counted(self):
        assert judged([], [row(UNKNOWN, 1, UNKNOWN)]).without == 1


class TestKeysInSeveralPartitions:
    changes = (change(0, 1, place=0), change(9, 1, place=1))

    @pytest.mark.parametrize("held", [[row(0, 1, place=0)], [row(9, 1, place=1)]])
    def test_the_last_change_of_any_may_stand(self, held):
        result = judged(list(self.changes), held, places=2)
        assert faults(result) == {}
        assert result.scattered == 1

    def test_one_must(self):
        assert set(faults(judged(list(self.changes), [], places=2))) == {Discrepancy.MISSING}

    def test_none_must_where_one_is_a_deletion(self):
        changes = [change(0, 1, place=0), change(9, 1, deleted=True, place=1)]
        assert faults(judged(changes, [], places=2)) == {}
        assert faults(judged(changes, [row(0, 1, place=0)], places=2)) == {}

    def test_an_older_one_must_not(self):
        changes = [change(0, 1, place=0), change(5, 1, place=0), change(9, 1, place=1)]
        assert set(faults(judged(changes, [row(0, 1, place=0)], places=2))) == {Discrepancy.STALE}


@pytest.mark.parametrize("seed", range(200))
def test_random_histories_and_one_accident(seed):
    """Replayed in a dict, the table is exact; and each accident is found, and nothing else."""
    luck = random.Random(seed)
    changes, table = [], {}
    for offset in range(luck.randint(1, 60)):
        key, deleted = luck.randint(0, 8), luck.random() < 0.3
        changes.append(change(offset, key, deleted))
        table[key] = None if deleted else offset
    live = {key: offset for key, offset in table.items() if offset is not None}
    held = [row(offset, key) for key, offset in live.items()]
    result = judged(changes, held)
    assert faults(result) == {}
    assert result.landed.tolist() == result.expected.tolist() == [len(live)]
    if not live:
        return
    victim, offset = luck.choice(sorted(live.items()))
    rest = [each for each in held if each[2] != (victim,)]
    assert faults(judged(changes, rest)) == {Discrepancy.MISSING: {(victim, 0, offset)}}
    assert faults(judged(changes, [*held, row(offset, victim)])) == {Discrepancy.DUPLICATED: {(victim, 0, offset)}}
    older = [at for _, at, key, _ in changes if key == (victim,) and at < offset]
    if older:
        assert faults(judged(changes, [*rest, row(older[0], victim)])) == {Discrepancy.STALE: {(victim, 0, offset)}}


def test_keys_of_several_columns_and_any_type():
    import datetime
    import uuid

    schema = pa.schema([("day", pa.date32()), ("name", pa.string()), ("who", pa.binary(16)), ("n", pa.int32())])
    other = pa.schema([("day", pa.date32()), ("name", pa.large_string()), ("who", pa.uuid()), ("n", pa.int64())])
    day, who = datetime.date(2026, 11, 1), uuid.UUID(int=7).bytes
    keys = [(day, "a", who, 1), (day, "a", who, 2), (day, "b", who, 1)]
    names = ("day", "name", "who", "n")
    last = gathered([(0, at, key, False) for at, key in enumerate(keys)], names, schema)
    held = rows([(0, at, key) for at, key in enumerate(keys[:2])], names, other)
    result = judge_keys(names, last, held, held.slice(0, 0), _limits())
    (missing,) = result.faults.values()
    assert missing.offsets.tolist() == [2]
    assert result.keys.column("name")[missing.keys[0]].as_py() == "b"


def _limits():
    return KeyLimits(np.array([0]), np.array([100]), np.array([False]))


def test_what_is_gathered_is_one_row_for_each_key(monkeypatch):
    """However often it is packed."""
    monkeypatch.setattr("landonce.verify.keys._OFTEN", 5)
    changes = [change(offset, offset % 4) for offset in range(100)]
    table = gathered(changes)
    assert sorted(zip(table.column("id").to_pylist(), table.column(LAST).to_pylist(), strict=True)) == [
        (0, 192),
        (1, 194),
        (2, 196),
        (3, 198),
    ]
