"""Where a new pipeline begins whose file names a time, offsets or a consumer group. Pure.

It never begins at another place than the one that was asked for:

    start      of a partition                             it begins
    ─────────  ─────────────────────────────────────────  ─────────────────────────────────────────────────────────────
    timestamp  has a record of that time or a later one   at the first of them; at the stable end, where that comes first
               has none, another partition has            at its stable end: all that it has is older
               has none, nor has any other                refused, unless the topics are empty
    offsets    is named, the offset is within the topic   there
               is named, and lies outside                 refused
               is not named                               refused
               is named, and the topics lack it           refused
    group      the group has members                      refused: it goes on meanwhile
               it has committed an offset                 there, if it is within the topic
               it has none, or one with metadata          refused: nothing says where it stopped, or not that alone
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from landonce.errors import StartRefused
from landonce.protocol.ranges import Partition
from landonce.protocol.source import SourceView, StartAt


@dataclass(frozen=True)
class GroupOffsets:
    """A consumer group as it is now."""

    members: int
    committed: Mapping[Partition, int]
    metadata: Mapping[Partition, str]
    """What a client has committed beside the offset, where it is not empty."""


def begin_since(view: SourceView, start: StartAt, since: Mapping[Partition, int]) -> dict[Partition, int]:
    """`since`: the first offset of that time or a later one, asked after the ends of `view`."""
    held = [partition for partition, extent in view.extents if extent.stable_end > extent.start]
    if held and not since:
        raise _refused(
            f"no record of {_topics(view)} has a timestamp at or after that of `start` ({start}).",
            "correct the timestamp in {file}; `start: latest` begins at the end of the topics",
        )
    return {each: min(since.get(each, extent.stable_end), extent.stable_end) for each, extent in view.extents}


def begin_at(view: SourceView, start: StartAt) -> dict[Partition, int]:
    """At the offsets that the file names."""
    named = dict(start.offsets)
    if unknown := named.keys() - dict(view.extents).keys():
        raise _refused(f"`start.offsets` names {_listed(unknown)}, which the topics do not have.", _CORRECT)
    return _within(view, named, "`start.offsets`", _CORRECT)


def begin_after(view: SourceView, start: StartAt, group: GroupOffsets) -> dict[Partition, int]:
    """Where the group stopped."""
    if group.members:
        raise _refused(
            f"the consumer group {start.group!r} has {group.members} active members, so its offsets still move.",
            "stop its consumers, then: landonce run {file}",
        )
    for partition, text in sorted(group.metadata.items()):
        raise _refused(
            f"{partition}: the consumer group {start.group!r} committed metadata ({text[:40]!r}) with its offset. Some clients keep "
            "in it which later records they have processed, and landonce cannot read it.",
            "write the offsets to begin at into {file}: `start: {offsets: …}`",
        )
    return _within(
        view,
        group.committed,
        f"the consumer group {start.group!r}",
        "correct the group's name in {file}, or write the offsets to begin at: `start: {offsets: …}`",
    )


def _within(view: SourceView, named: Mapping[Partition, int], whose: str, command: str) -> dict[Partition, int]:
    if missing := [each for each, _ in view.extents if each not in named]:
        raise _refused(f"{whose} has no offset for {_listed(missing)}.", command)
    begins = {}
    for partition, extent in view.extents:
        begins[partition] = at = named[partition]
        if not extent.start <= at <= extent.stable_end:
            raise _refused(
                f"{partition}: {whose} has offset {at}, and the topic has [{extent.start}, {extent.stable_end}).",
                command,
            )
    return begins


def _topics(view: SourceView) -> str:
    return ", ".join(topic for topic, _ in view.topic_ids)


def _listed(partitions: Iterable[Partition]) -> str:
    return ", ".join(str(each) for each in sorted(partitions))


_CORRECT = "correct `source.kafka.start` in {file}: name every partition, with an offset that the topic has"


def _refused(what: str, command: str) -> StartRefused:
    return StartRefused(
        what, safe="Nothing was read or written, and the pipeline has no position yet.", command=command
    )
