"""Going back where rows go together with the commit that brought them: the table returns to one of its earlier commits. Pure.

It is the newest one whose position is at or before the wanted one in every partition. What the later ones brought is delivered again.

    a later commit               then
    brought records of this one  goes with its rows, and they are delivered again
    changed no rows              goes: what a compaction rewrote is there as it was before
    is of another writer         refused: nothing would bring its rows back

Where the wanted position lies between two commits, the position is that of the earlier one: a commit is there as a whole, or not at all. One
commit of its own makes the earlier one current, under a new epoch, so a driver that runs is fenced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from landonce.errors import NothingToDo, SeekRefused
from landonce.protocol.ledger import LedgerState, Position, Totals, taken
from landonce.protocol.marks import Mark, same_offsets
from landonce.protocol.operate.decision import Decision, listed
from landonce.protocol.operate.seek import said_again, within
from landonce.protocol.operate.topics import same_source
from landonce.protocol.ranges import Partition, Range, span_of, without
from landonce.protocol.source import SourceView

Positions = tuple[tuple[Partition, Position], ...]
_ELSEWHERE = "name a later position; or land the topic in a new table, under another pipeline name"


@dataclass(frozen=True)
class PastCommit:
    """One snapshot in the history of a table."""

    snapshot: int
    at: str
    """When it was made."""
    operation: str
    mark: Mark | None = None
    """Of this pipeline."""
    same_rows: bool = False
    """Whoever made it changed no rows."""


@dataclass(frozen=True)
class Return:
    """A table that returns to an earlier commit, before it does."""

    decision: Decision
    head: int
    """The snapshot that is current now."""
    base: int
    """The one that becomes current again."""
    mark: Mark
    """What that says of the pipeline."""


def roll_back(
    state: LedgerState,
    view: SourceView,
    to: Mapping[Partition, int],
    history: Sequence[PastCommit],
    owner: str,
    *,
    skipped: Iterable[Range] = (),
) -> Return:
    """`history`: the commits of the table, newest first, as far as they are kept. `skipped`: what operators skipped; what of it is below the
    wanted position stays so."""
    same_source(state, view)
    within(state, view, to)
    committed = state.committed()
    if any(at > committed[each] for each, at in to.items()):
        raise SeekRefused(
            "rows of this table go together with their snapshot, for all partitions at once, so one command goes back or forwards.",
            safe="Nothing was changed.",
            command="go back first, then forwards, without --remove-rows",
        )
    if all(at == committed[each] for each, at in to.items()):
        raise NothingToDo("the pipeline is there already.", safe="Nothing was changed.", command="landonce run {file}")
    wanted = {**committed, **to}
    base, mark, positions, later = _newest(state, wanted, history)
    _only_ours(base, later)
    _in_kafka(view, state, positions, base)
    again = _again(state, wanted, positions, skipped)
    new = replace(
        taken(state, owner), positions=positions, totals=mark.state.totals, lately=Totals(), batch=state.batch + 1
    )
    earlier = tuple((each, at) for each, at in positions if at.committed < wanted[each])
    does = (
        f"The table goes back to its snapshot {base.snapshot} of {base.at}. {len(later)} later snapshots are not current any more, and "
        "their rows go with them.",
        *(
            (f"That is earlier than was asked for, since no snapshot ends in between: {_listed(earlier)}.",)
            if earlier
            else ()
        ),
        *said_again(again),
    )
    counts: dict[Partition, int] = {}
    for each in again:
        counts[each.partition] = counts.get(each.partition, 0) + each.span
    by_partition = ", ".join(f"{count} of {each}" for each, count in counts.items())
    costs = (
        f"At most {span_of(again)} records are delivered again{f' ({by_partition})' if len(counts) > 1 else ''}.",
        "The later snapshots stay in the table until they expire.",
    )
    return Return(Decision("seek", new, does, costs), history[0].snapshot, base.snapshot, mark)


def refuse_undone(letters: Iterable[tuple[Partition, int]]) -> None:
    """Raises where dead letters of records that the earlier commit covers were replayed or dropped after it. Their rows would go, and nothing
    would deliver these records again."""
    if first := sorted(letters)[:1]:
        ((partition, offset),) = first
        raise SeekRefused(
            f"dead letters of records below that snapshot's position were replayed or dropped after it, the first of them {partition} {offset}. "
            "Their rows would go, and no run would deliver these records again.",
            safe="Nothing was changed.",
            command=f"go back to before them: landonce state seek {{file}} --to-offset {partition.topic}:{partition.number}:{offset} "
            "--remove-rows",
        )


def _newest(
    state: LedgerState, wanted: Mapping[Partition, int], history: Iterable[PastCommit]
) -> tuple[PastCommit, Mark, Positions, tuple[PastCommit, ...]]:
    """The newest commit that is not beyond the wanted position, what it says, where that is, and the later ones. One without a mark is where
    the one before it was. Never one from before offsets meant what they mean now, nor an older one: rows of records that Kafka has no more would go."""
    later: list[PastCommit] = []
    unmarked: list[PastCommit] = []
    oldest, older = "it has none of this pipeline", "Older ones expired, or there were none"
    for each in history:
        if each.mark is None:
            unmarked.append(each)
            continue
        positions = _positions(state, each.mark)
        if positions is None:
            older = "Older ones are of before a topic or partition began again: rows of its old records would go, and nothing would bring them back"
            break
        if all(at.committed <= wanted[partition] for partition, at in positions):
            return (unmarked or [each])[0], each.mark, positions, tuple(later)
        later += [*unmarked, each]
        unmarked = []
        oldest = f"the oldest one of this pipeline is of {each.at}, at {_listed(positions)}"
    raise SeekRefused(
        f"no snapshot that the table still has is at or before that position: {oldest}. {older}.",
        safe="Nothing was changed.",
        command=_ELSEWHERE,
    )


def _positions(state: LedgerState, mark: Mark) -> Positions | None:
    """Where every partition was then. One that was added later had not begun. None if offsets of one meant other records then: it began
    again since, or is gone."""
    then, known = dict(mark.state.positions), state.committed()
    if not all(each in known and same_offsets(state, mark, each) for each in then):
        return None
    return tuple((each, then.get(each, Position(at.first, at.first))) for each, at in state.positions)


def _only_ours(base: PastCommit, later: Iterable[PastCommit]) -> None:
    others = [each for each in later if each.mark is None and not each.same_rows]
    if others:
        named = listed(f"{each.snapshot} ({each.operation}, {each.at})" for each in reversed(others))
        raise SeekRefused(
            f"another writer committed to the table after snapshot {base.snapshot} of {base.at}: {named}. Its rows would go, and nothing would "
            "bring them back.",
            safe="Nothing was changed.",
            command="name a position after these snapshots. If their rows may go, roll the table back yourself; `landonce run {file}` delivers "
            "again what that removes",
        )


def _in_kafka(view: SourceView, state: LedgerState, positions: Positions, base: PastCommit) -> None:
    extents, committed = dict(view.extents), state.committed()
    for partition, at in positions:
        if at.committed >= committed[partition]:
            continue
        extent = extents.get(partition)
        if extent is None:
            raise SeekRefused(
                f"{partition}: the table would go back to its snapshot of {base.at}, at offset {at.committed}, and the pipeline does not read this "
                "partition any more: nobody would deliver what is between again.",
                safe="Nothing was changed.",
                command=f"name topic {partition.topic} in {{file}} again, then the same command; or {_ELSEWHERE}",
            )
        if at.committed < extent.start:
            raise SeekRefused(
                f"{partition}: the table would go back to its snapshot of {base.at}, at offset {at.committed}, and Kafka begins at "
                f"{extent.start} now. What is between would be lost.",
                safe="Nothing was changed.",
                command=_ELSEWHERE,
            )


def _again(
    state: LedgerState, wanted: Mapping[Partition, int], positions: Positions, skipped: Iterable[Range]
) -> tuple[Range, ...]:
    """What was skipped above the wanted position is delivered like the rest: that takes a skip back."""
    below = (each for each in skipped if each.first < wanted.get(each.partition, 0))
    stays = [replace(each, end=min(each.end, wanted[each.partition])) for each in below]
    committed = state.committed()
    behind = (Range(each, at.committed, committed[each]) for each, at in positions if at.committed < committed[each])
    return tuple(piece for each in behind for piece in without(each, stays))


def _listed(positions: Positions) -> str:
    return listed(f"{partition} {at.committed}" for partition, at in positions)
