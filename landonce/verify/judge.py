"""The range of an audit, and the verdict on every offset in it. Pure.

The range of a partition is what the ledger says was delivered, as far as Kafka still holds it.

    record         in a table      in the dead letters   verdict
    ─────────────  ──────────────  ────────────────────  ─────────────────────────────────────────────
    lands          once            -                     fine
    is dead        -               once                  fine
    is refused     -               once                  fine: only the target can refuse it
    is filtered    -               -                     fine
    would land     -               once                  fine: another file made the letter, or other columns; a replay lands it
    lands          -                                     missing in the target
    is dead                        -                     missing in the dead letters
    any            twice or more                         duplicated in the target
    any                            twice or more         duplicated in the dead letters
    any            yes             yes                   duplicated, in both
    does not land  yes             -                     unexpected in the target
    is not dead    -               yes                   unexpected in the dead letters

With several tables, "lands" and "does not land" apply to each of them, and "-" in the verdicts of the dead letters
means "in no table". "Does not land" includes that there is no such record. An offset without a record is never missing.
In a compacted topic a row without a record is not unexpected: its record may have existed when it landed. It counts as
vanished.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import pyarrow as pa

from landonce.errors import ClusterChanged, TopicRecreated
from landonce.protocol.ledger import LedgerState
from landonce.protocol.operate import changed_topics
from landonce.protocol.ranges import Partition
from landonce.protocol.source import SourceView
from landonce.sinks.audit import CountedOffsets, Mask, Offsets


@dataclass(frozen=True)
class Bounds:
    """One partition: the first offset that the pipeline covers, and the range `[start, end)` that can be judged."""

    partition: Partition
    label: Partition
    """The partition under its label in the target."""
    first: int | None
    """None if unknown: there is no ledger, and the pipeline did not start at the beginning."""
    start: int
    end: int


def bounds(state: LedgerState | None, view: SourceView, *, to_end: bool, from_start: bool) -> tuple[Bounds, ...]:
    """`from_start`: without a ledger, assume that the pipeline starts where the topic starts."""
    if state is None or state.fresh:
        return tuple(
            Bounds(partition, partition, extent.start if from_start else None, extent.start, extent.stable_end)
            for partition, extent in view.extents
        )
    _same_source(state, view)
    positions = dict(state.positions)
    found = []
    for partition, extent in view.extents:
        position = positions.get(partition)
        first = position.first if position else extent.start
        committed = position.committed if position else extent.start
        end = extent.stable_end if to_end else min(committed, extent.stable_end)
        start = min(max(first, extent.start), max(end, first))
        label = state.labelled(partition)
        found.append(Bounds(partition, label, first, start, max(end, start)))
    return tuple(found)


def notes(state: LedgerState | None, view: SourceView, *, to_end: bool) -> tuple[str, ...]:
    """What a reader of the report must know about its bounds."""
    notes = []
    if state is None or state.fresh:
        notes.append("There is no ledger yet: everything up to the stable end of the topic was judged.")
        return tuple(notes)
    extents = dict(view.extents)
    for partition, position in state.positions:
        extent = extents.get(partition)
        if extent is None and partition.topic in dict(view.topic_ids):
            notes.append(f"{partition} is in the ledger and not in the topic: what it held cannot be proved.")
        elif extent is not None and position.committed > extent.stable_end:
            notes.append(
                f"{partition}: the ledger is at {position.committed} and the topic ends at {extent.stable_end}: "
                "what is in between cannot be proved."
            )
    if state.pending is not None and not to_end:
        notes.append(f"Batch {state.pending.batch} is pending: its rows are counted as in flight and not judged.")
    for of, label in state.labels:
        notes.append(f"{of} was rebased: only rows of it with _topic = {label!r} were judged.")
    return tuple(notes)


def _same_source(state: LedgerState, view: SourceView) -> None:
    safe = "Nothing was compared: offsets of one topic mean nothing in another."
    if state.cluster_id != view.cluster_id:
        raise ClusterChanged(
            f"the ledger belongs to Kafka cluster {state.cluster_id}, and these brokers are cluster {view.cluster_id}.",
            safe=safe,
            command="correct bootstrap_servers in {file}, or: landonce state rebase {file}",
        )
    for topic in sorted(changed_topics(state, view)):
        raise TopicRecreated(
            f"topic {topic!r} was deleted and created again since the ledger saw it.",
            safe=safe,
            command="landonce state rebase {file}",
        )


class Discrepancy(str, Enum):
    """How the target can differ from what was expected."""

    MISSING = "missing"
    DUPLICATED = "duplicated"
    UNEXPECTED = "unexpected"
    STALE = "stale"
    """If records change rows: a row is there, but not of the last change."""
    TWICE = "twice"
    """With `dedup`: an event is there from another record already."""
    CHANGED = "changed"
    """A row is there, and one of its values differs from its record. Only found if values are compared."""


FAULTS = (Discrepancy.MISSING, Discrepancy.DUPLICATED, Discrepancy.UNEXPECTED)
"""The faults that every table can have."""


class Whereabouts(str, Enum):
    """Where they differ."""

    TARGET = "target"
    DEAD_LETTERS = "dead letters"
    BOTH = "both"


@dataclass(frozen=True)
class Expected:
    """The records of a window that concern one table, in offset order: each of them lands in it, or is dead."""

    offsets: Offsets
    lands: Mask
    records: Offsets
    """All records of the window, whether they concern the table or not."""

    @staticmethod
    def none() -> Expected:
        return Expected(np.empty(0, np.int64), np.empty(0, np.bool_), np.empty(0, np.int64))


@dataclass(frozen=True)
class Fates:
    """The records of a window, in offset order, and what each should have become. Records that neither land nor
    are dead are filtered."""

    offsets: Offsets
    dead: Mask
    lands: Mapping[str, Offsets]
    """Which records each table should hold, by their index in the window, in order."""
    changes: Mapping[str, pa.Table] = field(default_factory=dict)
    """If records change rows: what these records do to the rows of each table."""
    rows: Mapping[str, pa.Table] = field(default_factory=dict)
    """Where records are rows: what these should hold, in the order of `lands`."""

    @property
    def landing(self) -> Mask:
        """Which records land in any table."""
        anywhere = np.zeros(len(self.offsets), np.bool_)
        for indexes in self.lands.values():
            anywhere[indexes] = True
        return anywhere

    def of(self, table: str) -> Expected:
        lands = np.zeros(len(self.offsets), np.bool_)
        lands[self.lands.get(table, np.empty(0, np.int64))] = True
        concerned = lands | self.dead
        return Expected(self.offsets[concerned], lands[concerned], self.offsets)

    def without(self, refused: Offsets) -> Fates:
        """The same, but these records are dead: the target refused them, which nothing else could predict."""
        gone = np.isin(self.offsets, refused)
        return self._but(gone, self.dead | gone)

    def left_out(self, gone: Mask) -> Fates:
        """The same, but these records neither land nor are dead."""
        return self._but(gone, self.dead & ~gone)

    def _but(self, gone: Mask, dead: Mask) -> Fates:
        if not gone.any():
            return self
        left = {table: ~gone[indexes] for table, indexes in self.lands.items()}
        return Fates(
            self.offsets,
            dead,
            {table: self.lands[table][kept] for table, kept in left.items()},
            {table: rows.filter(pa.array(left[table])) for table, rows in self.changes.items()},
            {table: rows.filter(pa.array(left[table])) for table, rows in self.rows.items()},
        )

    def between(self, first: int, end: int) -> Fates:
        low, high = (int(at) for at in np.searchsorted(self.offsets, (first, end)))
        if low == 0 and high == len(self.offsets):
            return self
        cuts = {table: np.searchsorted(indexes, (low, high)) for table, indexes in self.lands.items()}
        return Fates(
            self.offsets[low:high],
            self.dead[low:high],
            {table: self.lands[table][a:b] - low for table, (a, b) in cuts.items() if a < b},
            *(
                {table: rows[table].slice(a, b - a) for table, (a, b) in cuts.items() if a < b and table in rows}
                for rows in (self.changes, self.rows)
            ),
        )


@dataclass(frozen=True)
class JudgedOffsets:
    """Every known offset of the window, in order, and which of them are at fault, how and where."""

    offsets: Offsets
    right: int
    """Records that are where they should be."""
    vanished: int
    """Offsets of a compacted topic that the target or the dead letters hold, and Kafka no longer does."""
    faults: tuple[tuple[Discrepancy, Whereabouts, Mask], ...]


def judge_rows(
    expected: Expected, target: CountedOffsets, letters: CountedOffsets, *, compacted: bool = False
) -> JudgedOffsets:
    """One table: the verdicts in the target, and in both."""
    offsets = _union(expected.offsets, target.offsets)
    lands = _spread(offsets, expected.offsets, expected.lands)
    held = _spread(offsets, target.offsets, target.counts > 0)
    both = held & np.isin(offsets, letters.offsets)
    vanished = _vanished(offsets, expected.records, compacted) & held
    return _judged(
        offsets,
        lands & held,
        vanished,
        (Discrepancy.MISSING, Whereabouts.TARGET, lands & ~held),
        (Discrepancy.DUPLICATED, Whereabouts.TARGET, _spread(offsets, target.offsets, target.counts > 1)),
        (Discrepancy.DUPLICATED, Whereabouts.BOTH, both),
        (Discrepancy.UNEXPECTED, Whereabouts.TARGET, held & ~lands & ~both & ~vanished),
    )


def judge_letters(fates: Fates, held: Offsets, letters: CountedOffsets, *, compacted: bool = False) -> JudgedOffsets:
    """The verdicts in the dead letters. `held` is what any table holds."""
    offsets = _union(fates.offsets, letters.offsets)
    dead = _spread(offsets, fates.offsets, fates.dead)
    lettered = _spread(offsets, letters.offsets, letters.counts > 0)
    alone = lettered & ~np.isin(offsets, held)
    vanished = _vanished(offsets, fates.offsets, compacted) & alone
    return _judged(
        offsets,
        dead & lettered,
        vanished,
        (Discrepancy.MISSING, Whereabouts.DEAD_LETTERS, dead & ~lettered),
        (Discrepancy.DUPLICATED, Whereabouts.DEAD_LETTERS, _spread(offsets, letters.offsets, letters.counts > 1)),
        (Discrepancy.UNEXPECTED, Whereabouts.DEAD_LETTERS, alone & ~dead & ~vanished),
    )


def _judged(
    offsets: Offsets, right: Mask, vanished: Mask, *faults: tuple[Discrepancy, Whereabouts, Mask]
) -> JudgedOffsets:
    return JudgedOffsets(
        offsets=offsets,
        right=int(np.count_nonzero(right)),
        vanished=int(np.count_nonzero(vanished)),
        faults=tuple(each for each in faults if each[2].any()),
    )


def _vanished(offsets: Offsets, records: Offsets, compacted: bool) -> Mask:
    return ~np.isin(offsets, records) if compacted else np.zeros(len(offsets), np.bool_)


def _union(one: Offsets, other: Offsets) -> Offsets:
    """The union, in order. Both inputs are in order, and mostly equal."""
    if len(other) == 0 or np.array_equal(one, other):
        return one
    both = np.sort(np.concatenate((one, other)), kind="stable")
    return both[np.concatenate(([True], both[1:] != both[:-1]))]


def _spread(offsets: Offsets, of: Offsets, mask: Mask) -> Mask:
    """`mask`, which is about the offsets `of`, about all offsets."""
    wide = np.zeros(len(offsets), np.bool_)
    wide[np.searchsorted(offsets, of)] = mask
    return wide
