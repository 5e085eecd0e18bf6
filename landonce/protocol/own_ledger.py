"""A table as its own ledger: what its marks say of the pipeline, and whether a change may be made to it. Pure.

The newest mark in the branch's ancestry is the ledger's state. A copy of it lives in the table's properties, written by the
same commits. Properties do not roll back with the table, so the copy tells what the ancestry cannot:

    ancestry holds       copy                      then
    ───────────────────  ────────────────────────  ──────────────────────────────────────────────────────────────────
    a mark               the same, or none         that is the state
    a mark               of a later commit         rolled back: the mark's position, under numbers past the copy's
    none, down to the    there is one              rolled back to before the first commit: everything from the beginning
    first snapshot
    none, history is     of the snapshot before    the snapshots expired: the copy is the state
    cut off              the cut, or its rows are
                         there
    none, cut off        otherwise                 rolled back or expired, nobody can tell: `PositionUncertain`
    none                 none                      the table knows nothing of this pipeline
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from landonce import errors
from landonce.protocol.ledger import LedgerState, Totals, fenced, key
from landonce.protocol.marks import Mark, Verdict


@dataclass(frozen=True)
class OwnView:
    """The one table as it is now."""

    uuid: str
    mark: Mark | None = None
    copy: Mark | None = None
    whole: bool = True
    """The ancestry reaches down to the first snapshot."""
    vouched: bool = False
    """Where the ancestry is cut off: what is left shows that the copy's commit is part of it."""

    @property
    def last(self) -> Mark | None:
        """The last commit that this pipeline made to the table, whatever became of it."""
        if self.copy is None or (self.mark is not None and self.copy.state.version < self.mark.state.version):
            return self.mark
        return self.copy

    @property
    def valid(self) -> Mark | None:
        """The mark that counts: in the ancestry, or the copy of one that expired."""
        if self.mark is not None or self.whole or not self.vouched:
            return self.mark
        return self.copy

    @property
    def uncertain(self) -> bool:
        """Nobody can tell how far the table is."""
        return self.last is not None and self.valid is None and not self.whole

    @property
    def rolled_back(self) -> bool:
        return self.last is not None and (self.valid is None or key(self.valid.state) != key(self.last.state))


def own_state(view: OwnView) -> LedgerState | None:
    """The ledger's state. After a rollback its numbers go on past all that were ever used, and only the position goes back:
    the mark that is made next must not carry the number of a batch that it does not cover."""
    last, valid = view.last, view.valid
    if last is None:
        return None
    if not view.rolled_back:
        return last.state
    if view.uncertain:
        raise errors.PositionUncertain(
            f"the table's history is cut off, and the rest of it holds no commit of pipeline {last.state.pipeline!r}. "
            f"Its last commit was batch {last.batch}, snapshot {last.snapshot}. Either snapshots expired, or the table "
            "was rolled back and then snapshots expired: landonce cannot tell which.",
            safe="Nothing was written.",
            command="`landonce state accept-position {file} --by-rows` delivers again what the table's rows lack. "
            "Without --by-rows, the last commit counts as present",
        )
    base = valid.state if valid is not None else last.state
    batch = last.state.batch + 1
    if valid is None:
        firsts = tuple((each, replace(position, committed=position.first)) for each, position in base.positions)
        base = replace(base, positions=firsts, totals=Totals())
    return replace(base, epoch=last.state.epoch, version=last.state.version, batch=batch, owner=last.state.owner)


def own_verdict(expected: OwnView, seen: OwnView, new: LedgerState) -> Verdict:
    """May the state become `new` in a table that is `seen` so? `MOVED` means that the table was rolled back since.

    The copy shows whether somebody else took the table: a rollback may have removed the mark that would show it.
    """
    if seen.uuid != expected.uuid:
        raise errors.TableReplaced(
            f"the table was dropped and created again: it had UUID {expected.uuid}, and now has {seen.uuid}.",
            safe="Nothing was written to the new one.",
            command="start again to deliver everything to the new table: landonce run {file}",
        )
    last = seen.last
    if last is not None and key(last.state) == key(new):
        return Verdict.MOVED if seen.rolled_back else Verdict.DONE
    if _snapshot(last) != _snapshot(expected.last):
        return Verdict.FENCED if last is None or last.state.owner != new.owner else Verdict.MOVED
    same = _snapshot(seen.valid) == _snapshot(expected.valid) and seen.uncertain is expected.uncertain
    return Verdict.GO if same else Verdict.MOVED


def _snapshot(mark: Mark | None) -> int | None:
    return mark.snapshot if mark is not None else None


def refuse(verdict: Verdict, old: LedgerState, seen: OwnView) -> None:
    """Raises what a driver hears that may not go on."""
    if verdict is Verdict.FENCED:
        raise fenced(old, seen.last.state if seen.last else None)
    if verdict is Verdict.MOVED:
        raise errors.RolledBack(rollback_notice(seen), safe="Nothing was written on top of it.")


def rollback_notice(view: OwnView) -> str:
    """What happened, in words."""
    last, valid = view.last, view.valid
    assert last is not None
    restored = not view.rolled_back
    if restored:
        return f"the table was set back to batch {last.batch}: its catalog was restored. What came after that is delivered again."
    if view.uncertain:
        return "the table's history is cut off, so its position is not known."
    if valid is None:
        return f"the table was rolled back from batch {last.batch} to before the first batch; everything is delivered again."
    before, now = last.state.committed(), valid.state.committed()
    removed = sum(max(0, before[each] - now.get(each, 0)) for each in before)
    return (
        f"the table was rolled back from batch {last.batch} to batch {valid.batch}; "
        f"the removed ranges (at most {removed} offsets) are delivered again."
    )


def rollback_refused(tables: Iterable[str]) -> errors.RollbackRefused:
    """Where the file says that a rollback is not followed."""
    return errors.RollbackRefused(
        f"rolled back since the last commit: {', '.join(tables)}.",
        safe="Nothing was written.",
        command="set `rollback: follow` in {file} to deliver the removed ranges again, or roll forward",
    )
