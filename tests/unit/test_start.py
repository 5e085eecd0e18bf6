"""Where a new pipeline begins: at the place that its file names, or nowhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from landonce.errors import ConfigError, StartRefused, TargetAhead
from landonce.protocol.ledger import LedgerState, Position
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.source import (
    Extent,
    GroupOffsets,
    SourceView,
    Start,
    StartAt,
    begin_after,
    begin_at,
    begin_since,
    bind,
)
from landonce.protocol.target import TargetView, ahead, below_start, refuse_below_start
from landonce.sinks.parts import open_parts
from landonce.sinks.pipeline_file import parse

P, Q = Partition("t", 0), Partition("t", 1)
VIEW = SourceView("c", (("t", "id"),), ((P, Extent(5, 20)), (Q, Extent(0, 9))))
EMPTY = replace(VIEW, extents=((P, Extent(0, 0)), (Q, Extent(3, 3))))
SINCE, AT, AFTER = StartAt(timestamp=1_000), StartAt(offsets=((P, 7), (Q, 9))), StartAt(group="g")
FRESH = LedgerState("p", "l")


def test_a_time_is_the_first_record_of_it_or_the_end_where_all_is_older() -> None:
    assert begin_since(VIEW, SINCE, {P: 12}) == {P: 12, Q: 9}
    assert begin_since(VIEW, SINCE, {P: 25, Q: 0}) == {P: 20, Q: 0}, "it lies beyond the last stable offset"
    assert begin_since(EMPTY, SINCE, {}) == {P: 0, Q: 3}


def test_a_time_after_every_record_is_refused() -> None:
    with pytest.raises(
        StartRefused, match=r"no record of t has a timestamp .* \(timestamp 1970-01-01T00:00:01Z\)"
    ) as caught:
        begin_since(VIEW, SINCE, {})
    assert "start: latest" in caught.value.command


def test_offsets_are_of_every_partition_and_within_the_topic() -> None:
    assert begin_at(VIEW, AT) == {P: 7, Q: 9}
    assert begin_at(VIEW, StartAt(offsets=((P, 5), (Q, 0)))) == {P: 5, Q: 0}
    for offsets, what in (
        (((P, 4), (Q, 0)), r"t\[0\]: `start.offsets` has offset 4, and the topic has \[5, 20\)"),
        (((P, 5), (Q, 10)), r"t\[1\]: `start.offsets` has offset 10, and the topic has \[0, 9\)"),
        (((P, 5),), r"`start.offsets` has no offset for t\[1\]\."),
        ((*AT.offsets, (Partition("u", 0), 0)), r"names u\[0\], which the topics do not have"),
    ):
        with pytest.raises(StartRefused, match=what):
            begin_at(VIEW, StartAt(offsets=offsets))


def test_a_group_is_one_that_has_stopped_and_says_where() -> None:
    assert begin_after(VIEW, AFTER, GroupOffsets(0, {P: 7, Q: 0}, {})) == {P: 7, Q: 0}
    for group, what in (
        (GroupOffsets(2, {P: 7, Q: 0}, {}), "the consumer group 'g' has 2 active members"),
        (GroupOffsets(0, {P: 7}, {}), r"the consumer group 'g' has no offset for t\[1\]"),
        (GroupOffsets(0, {}, {}), r"no offset for t\[0\], t\[1\]"),
        (GroupOffsets(0, {P: 7, Q: 0}, {Q: "bits"}), r"t\[1\]: the consumer group 'g' committed metadata \('bits'\)"),
        (GroupOffsets(0, {P: 21, Q: 0}, {}), r"t\[0\]: the consumer group 'g' has offset 21"),
    ):
        with pytest.raises(StartRefused, match=what):
            begin_after(VIEW, AFTER, group)


def test_only_a_new_pipeline_begins_there_and_later_partitions_begin_at_their_start() -> None:
    seen = replace(VIEW, begins=((P, 7), (Q, 9)))
    assert bind(FRESH, seen, AT).added == {P: 7, Q: 9}
    known = LedgerState("p", "l", cluster_id="c", topic_ids=(("t", "id"),), positions=((P, Position(7, 8)),))
    assert bind(known, VIEW, AT).added == {Q: 0}
    with pytest.raises(KeyError):  # never a silent `earliest`
        bind(FRESH, VIEW, AT)


def test_a_new_ledger_does_not_begin_behind_rows_of_a_lost_one() -> None:
    """What the target holds below the start came from a ledger that began earlier, and may have left holes there."""
    new = replace(FRESH, cluster_id="c", positions=((P, Position(7, 7)), (Q, Position(0, 0))))
    assert below_start(new, TargetView(()), AT) == ()
    assert below_start(new, TargetView(((P, 12),)), Start.EARLIEST) == ()
    assert below_start(new, TargetView(((P, 12),)), AT) == (Range(P, 0, 7),)
    refuse_below_start(0, AT)
    with pytest.raises(TargetAhead, match="would start at group g, but the target already holds 3 records"):
        refuse_below_start(3, AFTER)
    assert ahead(new, TargetView(((P, 12), (Q, 4))), VIEW, AT, unbound=True) == (Range(P, 7, 12), Range(Q, 0, 4))
    assert ahead(new, TargetView(((P, 6),)), VIEW, AT, unbound=True) == (), "what is below is counted"


FILE = "pipeline: p\nsource:\n  kafka: {{bootstrap_servers: b, topics: [t], start: {}}}\nsink: {{sql: {{url: sqlite:///t.db, table: t}}}}\n"


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", Start.EARLIEST),
        ("latest", Start.LATEST),
        ("{timestamp: 2026-11-01T00:00:00Z}", StartAt(timestamp=1_793_491_200_000)),
        ("{timestamp: '2026-11-01T01:00:00+01:00'}", StartAt(timestamp=1_793_491_200_000)),
        ("{timestamp: 2039-07-16T04:33:32.292Z}", StartAt(timestamp=2_194_403_612_292)),
        ("{timestamp: 1969-12-31T23:59:59.9995Z}", StartAt(timestamp=-1)),
        ("{offsets: {t: {1: 9, 0: 7}}}", AT),
        ("{group: g}", AFTER),
    ],
)
def test_what_a_file_says(text: str, start: Start | StartAt, tmp_path: Path) -> None:
    parts = open_parts(parse(FILE.format(text), tmp_path / "p.yaml"))
    assert parts.start == start
    if isinstance(start, Start):
        assert parts.begins(VIEW) is VIEW


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("first", "start: must be earliest, latest, {timestamp"),
        ("{edge: latest}", "start: must be earliest, latest, {timestamp"),
        ("{group: g, timestamp: 2026-11-01T00:00:00Z}", "start: must be earliest, latest, {timestamp"),
        ("{timestamp: 2026-11-01T00:00:00}", "timestamp: has no time zone"),
        ("{timestamp: soon}", "timestamp: "),
        ("{offsets: {t: {0: -1}}}", "offsets: partitions and offsets are 0 or more"),
        ("{group: ''}", "group: must not be empty"),
    ],
)
def test_what_a_file_may_not_say(text: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=what):
        parse(FILE.format(text), tmp_path / "p.yaml")
