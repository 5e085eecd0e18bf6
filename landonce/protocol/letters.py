"""Dead letters that land in place: which of them may, and what their plan is made of. Pure.

    a letter's offset             then
    ────────────────────────────  ─────────────────────────────────────────────────────────────────────────────────────
    from the first offset to the  it may land: its record counted as dead-lettered, and nobody reads it again
    position
    at or above the position      refused: a run reads the record from Kafka, and lands it or writes its letter
    before the first offset       refused: this ledger never counted it
    of a topic that is read no    refused: the offset means nothing in the topic that has the name now
    more, or began again

A plan of letters is of the kind `letters`: PREPARE, write, commit, RECORD as any other, but no position moves. Its blocks cover the
letters' offsets and hold only these. Each block names the letters and their values by a digest (`shard`), so its token is a pure function
of the plan, and never the one of a block that was delivered before. The letters themselves are stored under the plan's name before PREPARE,
so that a plan that is written again writes the same rows, whatever became of the file they came from.

    PREPARE     the letters are stored: still dead letters
    write       rows may be in the target: looked for before they are sent
    commit      which of them cannot land even now, and why, is stored
    RECORD      they are no dead letters any more. From here on, and not before, they are taken out of their files
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from landonce.errors import PlanPending, ReplayRefused
from landonce.protocol.blocks import Block, Kind, Plan
from landonce.protocol.ledger import LedgerState
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.source import Extent, SourceView

Floors = tuple[tuple[Partition, int], ...]


@dataclass(frozen=True)
class LetterBatch:
    """The letters of one plan."""

    digest: str
    """Of their places, keys, values and headers."""
    ranges: tuple[Range, ...]
    """One for each block: from its first letter to its last one."""


def partition_of(state: LedgerState, label: Partition, offset: int) -> Partition | None:
    """The partition whose letter this is, if it may land in place. `label`: the partition as the target knows it."""
    for partition, position in state.positions:
        if state.labelled(partition) == label:
            return partition if position.first <= offset < position.committed else None
    return None


def topics_as_known(state: LedgerState) -> SourceView:
    """The topics as the ledger knows them: they end where the position is, or a pending plan, so nothing is to be read from them."""
    ends = state.pending.ends() if state.pending is not None else {}
    extents = ((each, Extent(at.first, max(at.committed, ends.get(each, 0)))) for each, at in state.positions)
    return SourceView(state.cluster_id, state.topic_ids, tuple(extents))


def covering(places: Iterable[tuple[Partition, int]], most: int) -> Iterator[Range]:
    """Ranges of at most so many letters each. The letters are in order, each once."""
    for partition, group in groupby(places, key=lambda place: place[0]):
        offsets = [offset for _, offset in group]
        for at in range(0, len(offsets), most):
            some = offsets[at : at + most]
            yield Range(partition, some[0], some[-1] + 1)


def letter_blocks(state: LedgerState, letters: LetterBatch, table: str) -> tuple[Block, ...]:
    """The blocks of their plan. Raises where a run would read one of them again, and land it twice."""
    positions = dict(state.positions)
    for each in letters.ranges:
        position = positions.get(each.partition)
        if position is None or each.first < position.first or each.end > position.committed:
            at = f"from {position.first} to {position.committed}" if position is not None else "of other partitions"
            raise ReplayRefused(
                f"{each}: these dead letters are not among the records that the ledger counts, which are {at}.",
                safe="Nothing was written.",
                command="landonce run {file} --once, which reads their records again",
            )
    return tuple(
        Block((each,), table, shard=letters.digest, number=number) for number, each in enumerate(letters.ranges)
    )


def landed_for_good(state: LedgerState, batch: int, lineage: str) -> bool:
    """Whether the letters of the plan with this batch and lineage are to be taken out of their files: it is the last plan that the ledger
    knows, and it is recorded."""
    return (state.batch, state.lineage) == (batch, lineage) and state.pending is None


def refuse_pending(plan: Plan | None) -> None:
    """Raises where a plan is pending that is not of letters: only a run settles it."""
    if plan is not None and plan.kind is not Kind.LETTERS:
        raise PlanPending(
            f"batch {plan.batch} is pending, and dead letters land only when everything before them is settled.",
            safe="Nothing was written.",
            command="landonce run {file} --once   (settles the plan), then the same command again",
        )


def refuse_counted(state: LedgerState, letters: int, wanted: int) -> None:
    """Raises where letters that landed in an earlier replay count as landed or filtered: then they are not to land again. The ledger tells
    it by its account: those that it counts as dead letters are more than there are. `letters`: those that are there, of what it counts."""
    forgotten = max(0, state.totals.dead_lettered - letters)
    if wanted > forgotten:
        raise ReplayRefused(
            f"{wanted:,} dead letters that were replayed have no row in the target, but the ledger has gone back behind the replay of only "
            f"{forgotten:,}. The others count as landed or filtered: a replay filtered them, or somebody removed their rows and not the "
            "ledger's account of them.",
            safe="Nothing was written.",
            command="if some are to land again, name them: landonce dead replay {file} TOPIC:PARTITION:OFFSET --again",
        )


def refuse_ahead(ends: Floors) -> None:
    """Raises where the target holds more than the ledger knows: a run compares it with Kafka first."""
    for partition, end in ends:
        raise ReplayRefused(
            f"{partition}: the target holds records up to {end}, and the ledger does not know all of them: it was restored.",
            safe="Nothing was written.",
            command="landonce run {file} --once   (compares them), then the same command again",
        )


def keep_letters(plan: Plan | None) -> None:
    """Raises where letters are about to land, or have: the plan is read from where they are stored, so nothing in Kafka can make it
    impossible."""
    if plan is not None and plan.kind is Kind.LETTERS:
        raise PlanPending(
            f"batch {plan.batch}, which is pending, lands dead letters. They are stored beside the others, so it needs no record of "
            "Kafka.",
            safe="Nothing was changed.",
            command="landonce dead replay {file}   (settles it), then the same command again",
        )
