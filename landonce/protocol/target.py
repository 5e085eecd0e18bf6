"""What the target says when the driver looks at it, and what that means for the ledger. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from landonce import errors
from landonce.protocol.ledger import LedgerState
from landonce.protocol.ranges import NO_END, Partition, Range
from landonce.protocol.source import Extent, SourceView, Start, StartAt


@dataclass(frozen=True)
class TargetView:
    """Per partition, one past the highest offset that the target holds at or above the place that was asked for."""

    ends: tuple[tuple[Partition, int], ...]


def ahead(
    ledger: LedgerState, target: TargetView, source: SourceView, start: Start | StartAt, *, unbound: bool = False
) -> tuple[Range, ...]:
    """The ranges that the target holds though the ledger does not know: a stale, lost or foreign ledger.

    They can be reconciled exactly by reading them again and comparing, which takes that Kafka still has them. A new
    ledger that would begin at the latest offsets is refused where the target holds anything of the topics: nobody knows
    where the old one stood, not even in a partition of which the target holds nothing. One that was never bound is
    refused where the topic begins behind what the target holds: what was deleted in between may never have landed. One that
    begins in the middle of the topic is refused where the target holds anything below that (`below_start`).
    """
    extents = dict(source.extents)
    committed = ledger.committed()
    if target.ends and start is Start.LATEST and ledger.batch == 0:
        _nothing_skipped(committed, target)
    ranges = []
    for partition, end in target.ends:
        position = committed.get(partition)
        if unbound and position is not None and end < position and not isinstance(start, StartAt):
            raise _gap_behind(partition, end, position)
        if position is None or end <= position:
            continue
        _readable(partition, position, end, extents.get(partition))
        ranges.append(Range(partition, position, end))
    return tuple(ranges)


def _nothing_skipped(committed: Mapping[Partition, int], target: TargetView) -> None:
    """Not even where the target reaches up to the latest offset: a plan that was lost with the ledger may have left holes."""
    for partition, position in committed.items():
        if position > 0:
            raise _lost_ledger(partition, dict(target.ends).get(partition, 0), position)


def _readable(partition: Partition, position: int, end: int, extent: Extent | None) -> None:
    if extent is None or extent.start > position or extent.stable_end < end:
        has = f"has [{extent.start}, {extent.stable_end})" if extent else "does not have that partition"
        raise errors.TargetAhead(
            f"{partition}: the ledger is at offset {position}, the target holds offsets up to {end}, and Kafka {has}, "
            "so the two cannot be compared.",
            safe="Nothing was written. The ledger is older than the table, or belongs to another topic.",
            command="landonce state rebase {file}",
        )


def _lost_ledger(partition: Partition, end: int, position: int) -> errors.TargetAhead:
    skipped = f"[{end}, {position})" if end < position else f"whatever is missing below {position}"
    return errors.TargetAhead(
        f"{partition}: the ledger is new and would start at the latest offset {position}, but the target already holds "
        f"records of this pipeline's topics, of this partition up to {end}. To continue would skip {skipped}.",
        safe="Nothing was written. The ledger was probably lost.",
        command="set `start: earliest` in {file}: landonce recognises what the target holds and does not write it "
        "again",
    )


def _gap_behind(partition: Partition, end: int, start: int) -> errors.TargetAhead:
    return errors.TargetAhead(
        f"{partition}: the ledger is new, the target holds this topic up to {end}, and the topic now begins at "
        f"{start}: Kafka deleted [{end}, {start}), and these records may never have landed.",
        safe="Nothing was written. The ledger was probably lost.",
        command="landonce state accept-gap {file}",
    )


def below_start(ledger: LedgerState, target: TargetView, start: Start | StartAt) -> tuple[Range, ...]:
    """For a ledger that was never bound: what the target must hold nothing of, if it holds anything of the topics. A ledger that was
    lost may have begun earlier, and left holes there that nobody would fill."""
    if not isinstance(start, StartAt) or not target.ends:
        return ()
    return tuple(Range(partition, 0, at) for partition, at in ledger.committed().items() if at > 0)


def refuse_below_start(rows: int, start: Start | StartAt) -> None:
    """`rows`: what the target holds of `below_start`."""
    if rows:
        raise errors.TargetAhead(
            f"the ledger is new and would start at {start}, but the target already holds {rows} records of this pipeline's topics "
            "from before that. What is missing among them would never be delivered.",
            safe="Nothing was written. The ledger was probably lost.",
            command="set `start: earliest` in {file}: landonce recognises what the target holds and does not write it "
            "again. If another pipeline wrote these records, use another table",
        )


def above(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """From where these ranges begin, without an end."""
    return tuple(replace(each, end=NO_END) for each in ranges)


def nobody_else(table: str, ledger: LedgerState, rows: int | None, landed: int = 0) -> None:
    """`rows`: what the target holds, where this driver alone writes, and `landed` rows are its own; None if it was not counted.

    Tokens do not tell two drivers with different ledgers apart, and each of them is right by its own.
    """
    if rows is None or rows <= landed:
        return
    if ledger.pending is None:
        raise errors.AnotherWriter(
            f"the table {table} holds {rows} rows above the position of this driver, which did not write them. {_COPY}",
            safe="This driver wrote nothing more, and made no duplicates.",
            command=f"{_STOP}, then `landonce run {{file}}`: landonce recognises what the other driver wrote and does "
            "not write it again",
        )
    raise errors.AnotherWriter(
        f"the table {table} holds {rows} rows of batch {ledger.pending.batch}, and this driver wrote {landed}. {_COPY}",
        safe="The position did not move, and the plan is pending. Rows of this batch are in the table twice.",
        command=f"{_STOP}; remove the copies that `landonce verify {{file}}` lists; then `landonce run {{file}}`",
    )


_COPY = "Another driver writes this pipeline's records with another ledger, or something else writes its coordinates."
_STOP = "stop the other driver (with a relative path, a copy of {file} in another folder has another ledger)"
