"""Moving the position because an operator says so: forwards, which skips records, or backwards, which delivers them again. Pure.

    the new position    rows of the table          then
    ──────────────────  ─────────────────────────  ──────────────────────────────────────────────────────────────────────────
    behind the old one  are removed first          mark, remove, move: each record lands once, as the present file makes it
                        stay, and are compared     move: a start recognises what is there, and writes what is missing
                        stay, nobody compares      refused: they would be there twice
                        are changed by keys        refused: the table holds later versions than the position says
                        go with their commit       `roll_back`: the table returns to an earlier one
                        are none: all was skipped  move: the skip is taken back
    at the old one      are removed first          what lies at and above the position goes; the position stays
    ahead of the old    stay                       move: what is skipped is never delivered, and the journal says so; what an earlier
                                                   move back left in the target is counted again, for it is there

While rows are removed, the position is not true: it says that they are there. So a marker is pending, with the new position in it, from
before the first row goes until the position has moved. Every driver refuses to start meanwhile (`batch`), and the next `state seek` does
what the marker says. The marker takes the next epoch, so a driver that runs is fenced before anything is removed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from landonce.errors import NothingToDo, PlanPending, SeekRefused
from landonce.protocol.blocks import Kind, Plan
from landonce.protocol.ledger import LedgerState, Note, Position, Totals, taken
from landonce.protocol.operate.decision import Decision
from landonce.protocol.operate.topics import same_source
from landonce.protocol.ranges import Partition, Range, span_of, without
from landonce.protocol.seek_marker import from_text, interrupted, to_text
from landonce.protocol.source import SourceView

Offsets = Mapping[Partition, int]


@dataclass(frozen=True)
class Ability:
    """What a sink can do about rows that would be delivered again."""

    compares: bool = False
    """A start compares what the target holds above the position, and writes only what is missing."""
    no_removal: str = ""
    """Why rows cannot be removed by their coordinates, in one sentence. Empty: they can."""
    instead: str = "land the topic in a new target, under another `pipeline` name"
    """What to do then."""
    keyed: bool = False
    """Records change rows by a key."""
    versioned: bool = False
    """Each change keeps its position, so an older one that is made again does no harm."""


@dataclass(frozen=True)
class Seeking:
    """A move of the position, before it is made."""

    decision: Decision
    marked: LedgerState | None
    """What the ledger says while rows are removed. None: none are."""
    removed: tuple[Range, ...]
    """Rows and dead letters of these go first."""
    regained: tuple[Range, ...] = ()
    """What the target holds of these stayed when the position went back. It counts again."""
    filtered: bool = False
    """Some of their records were filtered."""


def seek(
    state: LedgerState,
    view: SourceView,
    to: Offsets,
    owner: str,
    able: Ability,
    *,
    remove: bool,
    before: Iterable[Range] = (),
    kept: Mapping[Range, bool] = MappingProxyType({}),
) -> Seeking:
    """Moves these partitions to these offsets. `remove`: rows at and above them go first. `before`: what operators skipped, of which no
    target holds anything. `kept`: as of `kept_ranges`."""
    if state.pending is not None and state.pending.kind is Kind.SEEK:
        raise interrupted(state.pending)
    if state.pending is not None:
        raise PlanPending(
            f"batch {state.pending.batch} is pending: some of its rows may be in the target.",
            safe="Nothing was changed.",
            command="landonce run {file} --once   (settles the plan first), then run this command again",
        )
    same_source(state, view)
    within(state, view, to)
    again, (skipped, regained, filtered) = _again(state, to), _passed(state, to, kept)
    there = tuple(piece for each in again for piece in without(each, before))
    if there and able.keyed and (remove or not able.versioned):
        raise SeekRefused(
            "the sink changes rows by a key. The table holds later versions of rows than an earlier position says, so changes "
            "cannot be made again from there.",
            safe="Nothing was changed.",
            command="land the topic in a new table, under another pipeline name",
        )
    if there and able.keyed and state.totals.filtered:
        raise SeekRefused(
            "the table shows only the last change of a key, and records were filtered, too: nobody can tell how many of those that are "
            "delivered again count as landed, so the totals would be wrong.",
            safe="Nothing was changed.",
            command="land the topic in a new table, under another pipeline name",
        )
    if remove and able.no_removal:
        raise SeekRefused(able.no_removal, safe="Nothing was changed.", command=able.instead)
    if there and not remove and not able.compares:
        raise SeekRefused(
            "records that are delivered again would be in the target twice: nothing there tells them apart.",
            safe="Nothing was changed.",
            command=able.instead if able.no_removal else "landonce state seek {file} … --remove-rows",
        )
    if not again and not skipped and not regained and not remove:
        raise NothingToDo("the pipeline is there already.", safe="Nothing was changed.", command="landonce run {file}")
    extents, committed = dict(view.extents), state.committed()
    # All that the target may hold at and above the new position: also what a ledger that was restored does not know.
    above = (
        Range(each, at, end)
        for each, at in sorted(to.items())
        if at < (end := max(committed[each], extents[each].stable_end))
    )
    removed = tuple(above) if remove else ()
    moved = replace(taken(state, owner), positions=_moved(state, to), lately=Totals())
    stays = () if remove else [left for each in counted_ranges(state, moved) for left in without(each, before)]
    does = (*_does(again, skipped, regained), *_said(_KEPT_IN_PART if state.totals.filtered else _KEPT, stays))
    costs = _costs(again, skipped, there, regained, remove=remove)
    decision = Decision("seek", moved, (*(does or (_STAYS,)), *_said(_REMOVED, removed)), costs, skipped)
    if not removed:
        return Seeking(decision, None, (), regained, filtered)
    marker = Plan(state.batch + 1, (), to_text(to, removed), 0, Kind.SEEK)
    marked = replace(taken(state, owner), pending=marker, batch=marker.batch)
    new = replace(moved, version=marked.version + 1, batch=marker.batch)
    return Seeking(replace(decision, new=new), marked, removed, regained, filtered)


def resume(state: LedgerState, owner: str, kept: Mapping[Range, bool] = MappingProxyType({})) -> Seeking:
    """What an earlier command decided and did not get to finish. It decides nothing: some rows may be gone already. `kept`: as of
    `kept_ranges`."""
    if state.pending is None or state.pending.kind is not Kind.SEEK:
        raise ValueError("no seek is pending")
    to, removed = from_text(state.pending.fingerprint)
    marked = taken(state, owner)
    new = replace(marked, version=marked.version + 1, positions=_moved(state, to), pending=None, lately=Totals())
    new = _uncounted(new, Totals(*json.loads(state.pending.fingerprint)["totals"]))
    again, (skipped, regained, _) = _again(state, to), _passed(state, to, kept)
    does = (*(_does(again, skipped, regained) or (_STAYS,)), *_said(_REMOVED, removed))
    costs = (
        "An earlier `landonce state seek` was interrupted: this finishes it.",
        *_costs(again, skipped, again, regained, remove=True),
    )
    return Seeking(Decision("seek", new, does, costs, skipped), marked, removed)


def uncounted(seeking: Seeking, totals: Totals) -> Seeking:
    """The same, where the totals forget these: what is delivered again is counted when it lands again. What counts again is taken away from
    them."""
    new, marked = _uncounted(seeking.decision.new, totals), seeking.marked
    counts = totals.listed
    if marked is not None and marked.pending is not None:
        document = {**json.loads(marked.pending.fingerprint), "totals": counts}
        marked = replace(marked, pending=replace(marked.pending, fingerprint=json.dumps(document)))
    return replace(seeking, decision=replace(seeking.decision, new=new), marked=marked)


def _uncounted(state: LedgerState, totals: Totals) -> LedgerState:
    left = state.totals.minus(totals)
    return replace(state, totals=Totals(max(0, left.landed), max(0, left.dead_lettered), max(0, left.filtered)))


def counted_ranges(state: LedgerState, new: LedgerState) -> tuple[Range, ...]:
    """What the totals cover, and the new position does not. What was skipped in there was never counted."""
    ends = new.committed()
    counted = ((each, max(ends[each], at.first), at.committed) for each, at in state.positions)
    return tuple(Range(each, first, end) for each, first, end in counted if first < end)


def counted_in(had: Totals, read: int, rows: int, letters: int) -> Totals:
    """What became of the records of some ranges, of which there are `read`. Where nothing was ever filtered, those that are no letters
    landed, though somebody may have removed rows since; else those that are neither rows nor letters were filtered."""
    letters = min(letters, read)
    landed = min(rows, read - letters) if had.filtered else read - letters
    return Totals(landed, letters, read - letters - landed)


def stay(state: LedgerState, last: LedgerState, owner: str) -> Decision:
    """The one table was rolled back, and what the rollback removed shall not come back: the position is that of the last commit.

    `state`: what the table says now. `last`: what its last commit said.
    """
    to = last.committed()
    skipped = _skipped(state, {each: at for each, at in to.items() if each in state.committed()})
    if not skipped:
        raise NothingToDo("the table was not rolled back.", safe="Nothing was changed.", command="landonce run {file}")
    new = replace(taken(state, owner), positions=_moved(state, to))
    does = ("The table stays as the rollback left it.", *(f"Skipped: {each}." for each in skipped))
    return Decision("seek", new, does, _costs((), skipped, (), (), remove=False), skipped)


_AGAIN, _SKIPPED, _REGAINED, _REMOVED = "Delivered again", "Skipped", "Counted again", "Removed"
_KEPT, _KEPT_IN_PART = "Stays in the target", "Stays in the target, but for what was filtered"
_LINE = re.compile(
    rf"({'|'.join((_AGAIN, _SKIPPED, _REGAINED, _REMOVED, _KEPT, _KEPT_IN_PART))}): (\S+)\[(\d+)\] \[(\d+), (\d+)\)\."
)
_REBASED = re.compile(r"Topic '([^']+)' has another id now|(\S+\[\d+\]) (?:is gone:|ends at \d+,)")


def skipped_ranges(journal: Iterable[Note]) -> tuple[Range, ...]:
    """What operators skipped and nobody has asked for since."""
    return tuple(sorted(each for each, word in _last_words(journal) if word == _SKIPPED))


def kept_ranges(journal: Iterable[Note]) -> dict[Range, bool]:
    """What stayed in the target when operators went back behind it; whether some of its records were filtered. Above the position, nothing
    of it is counted."""
    return {each: word == _KEPT_IN_PART for each, word in _last_words(journal) if word in (_KEPT, _KEPT_IN_PART)}


def _last_words(journal: Iterable[Note]) -> list[tuple[Range, str]]:
    """What was decided last of each offset. A rebase makes other offsets of the topics and partitions that it names."""
    found: list[tuple[Range, str]] = []
    for note in journal:
        if note.action == "rebase":
            gone = {name for names in _REBASED.findall(note.detail) for name in names}
            found = [each for each in found if gone.isdisjoint((each[0].partition.topic, str(each[0].partition)))]
        for word, topic, number, first, end in _LINE.findall(note.detail) if note.action == "seek" else ():
            each = Range(Partition(topic, int(number)), int(first), int(end))
            found = [(piece, before) for old, before in found for piece in without(old, (each,))]
            found.append((each, word))
    return found


def kept_notes(journal: Sequence[Note], most: int) -> tuple[Note, ...]:
    """The last notes, where no more are kept. What older ones skip stays skipped, and what they left in the target is there: one note before
    the others says it."""
    older, last = journal[:-most], tuple(journal[-most:])
    words = [
        f"{word}: {each}." for each, word in sorted(_last_words(older)) if word in (_SKIPPED, _KEPT, _KEPT_IN_PART)
    ]
    return (Note(older[-1].at, "seek", " ".join(words)), *last) if words else last


def _said(word: str, ranges: Iterable[Range]) -> tuple[str, ...]:
    return tuple(f"{word}: {each}." for each in ranges)


def said_again(ranges: Iterable[Range]) -> tuple[str, ...]:
    """So that the journal tells it."""
    return _said(_AGAIN, ranges)


def _does(again: Iterable[Range], skipped: Iterable[Range], regained: Iterable[Range]) -> tuple[str, ...]:
    return (*said_again(again), *_said(_SKIPPED, skipped), *_said(_REGAINED, regained))


def _passed(
    state: LedgerState, to: Offsets, kept: Mapping[Range, bool]
) -> tuple[tuple[Range, ...], tuple[Range, ...], bool]:
    """What a move forwards skips, and what it gives back: that was there before the position went back. And whether some of that was
    filtered."""
    ahead = _skipped(state, to)
    skipped = tuple(piece for each in ahead for piece in without(each, kept))
    regained = tuple(piece for each in ahead for piece in without(each, skipped))
    return skipped, regained, any(some and without(each, regained) != (each,) for each, some in kept.items())


def _again(state: LedgerState, to: Offsets) -> tuple[Range, ...]:
    return tuple(Range(p, to[p], at) for p, at in state.committed().items() if to.get(p, at) < at)


def _skipped(state: LedgerState, to: Offsets) -> tuple[Range, ...]:
    return tuple(Range(p, at, to[p]) for p, at in state.committed().items() if to.get(p, at) > at)


def _moved(state: LedgerState, to: Offsets) -> tuple[tuple[Partition, Position], ...]:
    return tuple(
        (each, Position(min(at.first, to[each]), to[each]) if each in to else at) for each, at in state.positions
    )


def within(state: LedgerState, view: SourceView, to: Offsets) -> None:
    """Raises where the pipeline has no such partition, or Kafka no such offset."""
    extents, known = dict(view.extents), state.committed()
    for partition, at in sorted(to.items()):
        extent = extents.get(partition)
        if extent is None or partition not in known:
            raise SeekRefused(
                f"the pipeline has no position in {partition}.",
                safe="Nothing was changed.",
                command="landonce state show {file}",
            )
        if not extent.start <= at <= extent.stable_end:
            raise SeekRefused(
                f"{partition}: Kafka has [{extent.start}, {extent.stable_end}), and offset {at} is not within that.",
                safe="Nothing was changed.",
                command="name an offset that the topic has",
            )


def _costs(
    again: tuple[Range, ...],
    skipped: tuple[Range, ...],
    there: tuple[Range, ...],
    regained: tuple[Range, ...],
    *,
    remove: bool,
) -> tuple[str, ...]:
    costs = []
    if remove:
        costs.append("Rows and dead letters at and above the new position are removed first.")
    if again:
        how = "" if remove or not there else " What the target holds of them is recognised, and not written twice."
        costs.append(f"At most {span_of(again)} records are delivered again.{how}")
    if skipped:
        costs.append(f"At most {span_of(skipped)} records are skipped and will never be delivered.")
    if regained:
        costs.append(
            f"At most {span_of(regained)} records are counted again as they were before the position went back. They are "
            "not delivered again."
        )
    return tuple(costs)


_STAYS = "The position stays where it is."
