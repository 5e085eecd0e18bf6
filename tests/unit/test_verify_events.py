"""The audit of events: what it says of records with equal keys, against an oracle that looks at one event at a time."""

from __future__ import annotations

import itertools
from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from landonce.dedup.rule import KeyRule
from landonce.protocol.ranges import Partition
from landonce.read.decoding import Decoding
from landonce.read.schema.fields import Field, Schema
from landonce.verify.events import ABSENT, FILTERED, LANDED, LETTERED, EventAudit, Keyed, KeyReader, Remembered, states
from landonce.verify.judge import Bounds, Discrepancy, Fates

TTL, NOW = 100, 10_000
BOUNDS = tuple(Bounds(Partition("t", at), Partition("t", at), 0, 0, 100) for at in range(2))
record = st.tuples(st.integers(0, 4), st.integers(0, 3), st.sampled_from([ABSENT, LANDED, LETTERED, FILTERED]))
"""(the key, a timestamp in steps of the window, what is known)"""


def audit_of(records, *, late="dead_letter", shared=(), later=(), before=()):
    """`records`: per partition, (key, timestamp, state) by offset. `later`, `before`: keys; None among the latter: unknown."""
    audit = EventAudit(
        KeyReader(KeyRule(()), Schema((Field("id", pa.int64()),)), Decoding()), Remembered(TTL, late, NOW), shared
    )
    for bound, those in zip(BOUNDS, records, strict=True):
        audit.add(bound, keyed(those), np.array([state for _, _, state in those], np.uint8))
    return audit.judge(
        [keyed([(key, 0, 0) for key in later])],
        [ids([key for key in before if key is not None]), *(None for key in before if key is None)],
    )


def ids(keys):
    """Few high halves, so that ids share them."""
    return np.array([each % 2 << 60 for each in keys], np.uint64), np.array(keys, np.uint64)


def keyed(those):
    hi, lo = ids([key for key, _, _ in those])
    timestamps = np.array([at for _, at, _ in those], np.int64)
    return Keyed(np.arange(len(those)), np.ones(len(those), np.bool_), hi, lo, timestamps)


def found(judged):
    """{fault: {(partition, offset)}}"""
    return {
        fault: {(bound.partition.number, at) for bound in judged.bounds for at in judged.of(bound, fault).tolist()}
        for fault in (Discrepancy.MISSING, Discrepancy.TWICE)
    }


def oracle(records):
    events = defaultdict(list)
    for place, those in enumerate(records):
        for offset, (key, at, state) in enumerate(those):
            events[key].append((at, place, offset, state))
    missing, twice, copies, again = set(), set(), 0, 0
    for those in map(sorted, events.values()):
        accepted = [each for each in those if each[3] in (LANDED, LETTERED)]
        absent = [each for each in those if each[3] == ABSENT]
        if len(absent) == len(those):
            missing.add(those[0][1:3])
        copies += len(absent) - (len(absent) == len(those))
        for one, other in itertools.pairwise(accepted):
            if other[0] - one[0] > TTL:
                again += 1
            else:
                twice.add(other[1:3])
    return {Discrepancy.MISSING: missing, Discrepancy.TWICE: twice}, copies, again


@given(st.lists(record, max_size=12), st.lists(record, max_size=12))
def test_every_event_is_judged_as_the_oracle_does(one, other):
    records = [[(key, step * 60, state) for key, step, state in those] for those in (one, other)]
    judged = audit_of(records)
    wrong, copies, again = oracle(records)
    assert (found(judged), judged.report.copies, judged.report.again) == (wrong, copies, again)
    report = judged.report
    assert report.missing == len(wrong[Discrepancy.MISSING])
    assert report.twice == len(wrong[Discrepancy.TWICE])
    accounted = report.landed + report.dead_lettered + report.filtered + report.copies + report.missing
    assert report.records == accounted == len(one) + len(other)


ABSENT_TWICE = [[(1, NOW, ABSENT)], [(3, NOW, LANDED), (1, NOW, ABSENT)]]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"later": [1]}, "waiting"),
        ({"shared": ("other",)}, "elsewhere"),
        ({"before": [None]}, "below"),
    ],
)
def test_an_event_that_may_be_elsewhere_is_not_called_missing(options, why):
    judged = audit_of(ABSENT_TWICE, **options)
    assert found(judged)[Discrepancy.MISSING] == set()
    assert judged.report.unjudged[why] == 1


def test_an_event_that_landed_before_the_topic_begins_is_not_missing():
    judged = audit_of(ABSENT_TWICE, before=[5, 1])
    assert (judged.report.missing, judged.report.below, judged.report.copies) == (0, 1, 2)
    assert audit_of(ABSENT_TWICE, before=[5, 9]).report.missing == 1, (
        "other events below, and other ids with its high half"
    )


@pytest.mark.parametrize(
    ("late", "age", "missing"), [("drop", TTL + 1, 0), ("drop", TTL, 1), ("dead_letter", TTL + 1, 1)]
)
def test_only_what_is_old_enough_may_have_been_dropped(late, age, missing):
    judged = audit_of([[(1, NOW - age, ABSENT)], []], late=late)
    assert judged.report.missing == missing


@pytest.mark.parametrize(("late", "age", "twice"), [("accept", TTL + 1, 0), ("accept", TTL, 1), ("drop", TTL + 1, 1)])
def test_late_events_that_are_accepted_may_land_again(late, age, twice):
    judged = audit_of([[(1, NOW - age - 1, LANDED), (1, NOW - age, LANDED)], []], late=late)
    assert judged.report.twice == twice


def test_samples_name_the_first_records_and_their_keys():
    judged = audit_of([[(1, 5, ABSENT), (2, 0, LANDED)], [(1, 4, ABSENT), (2, 1, LANDED)]])
    missing, twice = judged.samples(lambda bound, offset: f"{bound.partition}:{offset}")
    assert (missing.fault, missing.partition.number, missing.offset, missing.key) == (
        Discrepancy.MISSING,
        1,
        0,
        "t[1]:0",
    )
    assert (twice.partition.number, twice.offset, twice.other, twice.other_offset) == (1, 1, Partition("t", 0), 1)


def test_what_is_known_of_a_record():
    fates = Fates(np.arange(6), np.array([0, 0, 1, 1, 0, 0], np.bool_), {"a": np.array([0, 1])})
    known = np.array([1, 1, 1, 1, 1, 0], np.bool_)
    assert states(fates, known, np.array([0]), np.array([2])).tolist() == [
        LANDED,
        ABSENT,
        LETTERED,
        ABSENT,
        FILTERED,
        FILTERED,
    ]
