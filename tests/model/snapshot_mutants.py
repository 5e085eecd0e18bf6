"""Bugs that were planted on purpose in the protocol of snapshots: each must be found. See `mutants`.

Some mistakes are not here, for another check makes good for them, and no schedule does harm: a verdict that does not look
at the property's batch or at the table's UUID (the mark's snapshot tells, and the catalog compares the UUID again), a lost
ledger that takes the oldest mark or counts the newest batch as known, or a position that goes back with a replay (a mark above
the ledger's position is a floor), batches that are numbered by the ledger alone, new offsets that come before tables that are
behind, epochs that are not raised past the marks (they only name files), and numbers that go back with a table that is
its own ledger (owners never repeat).
"""

from __future__ import annotations

from .mutants import (
    AGAIN,
    CHANGED,
    ENDLESS,
    FOLLOWED,
    LEDGER,
    LOST,
    OTHER_ROWS,
    STRANGER,
    SWAP,
    TWICE,
    UNCOMMITTED,
    UNCOVERED,
    halts,
    planted,
)

SNAPSHOT = "landonce.protocol.snapshot"
MARKS = "landonce.protocol.marks"
OWN = "landonce.protocol.own_ledger"
PACKING = "landonce.protocol.packing"

HELD = r"a plan is cut, and table \w holds some of it"
OTHER_PLAN = r"what is committed is not the plan that the ledger holds"
STARVED = r"is cut off again, and may never land"

_STATUS = "return TableStatus(view) if in_step else TableStatus(view, floors)"
_LAST = "mark, last = view.mark, max(known.batch if known else 0, view.latest)"
_DONE = "if last is not None and (last.owner, last.batch) == (after.owner, after.batch):"
_MOVED = "return self.look(replace(machine, receipts=(), opened=False, tables=None, untried=False))"

_VERDICT = (
    planted(
        "the verdict ignores the snapshot",
        "fan-out: rolled back twice",
        LOST,
        MARKS,
        "same = _snapshot(seen) == _snapshot(expected) and seen.latest",
        "same = seen.latest",
    ),
    planted(
        "the verdict takes a table whose history is cut off for one that was rolled back",
        "fan-out: set forward, and history expires",
        TWICE,
        MARKS,
        "if seen.uuid != expected.uuid or seen.uncertain:",
        "if seen.uuid != expected.uuid:",
    ),
    planted(
        "a commit without an answer is not recognised",
        "fan-out: one driver, answers are lost",
        AGAIN,
        MARKS,
        f"    {_DONE}\n        return Verdict.DONE\n",
        "",
    ),
    planted(
        "another driver's commit counts as mine",
        "fan-out: the ledger is restored under a driver",
        LOST,
        MARKS,
        _DONE,
        "if last is not None and last.batch == after.batch:",
    ),
    planted(
        "another batch counts as this one",
        "fan-out: nothing fails, two drivers",
        LOST,
        MARKS,
        _DONE,
        "if last is not None and last.owner == after.owner:",
    ),
)

_STATUSES = (
    planted(
        "the batch in the table's property is not asked",
        "fan-out: the ledger is lost, and tables are rolled back",
        LOST,
        MARKS,
        _LAST,
        "mark, last = view.mark, known.batch if known else 0",
    ),
    planted(
        "the batch in the ledger is not asked",
        "fan-out: rolled back and set forward",
        LOST,
        MARKS,
        _LAST,
        "mark, last = view.mark, view.latest",
    ),
    planted(
        "a table that was rolled back to before its first mark counts as new",
        "fan-out: rolled back twice",
        LOST,
        MARKS,
        "    if mark is None and last == 0:\n",
        "    if mark is None:\n",
    ),
    planted(
        "a table that is filled up in part counts as in step",
        "fan-out: rolled back twice",
        LOST,
        MARKS,
        "if mark.batch < last or mark.behind:",
        "if mark.batch < last:",
    ),
    planted(
        "a table that is ahead counts as in step",
        "fan-out: the ledger is restored",
        TWICE,
        MARKS,
        " and all(at <= committed[each] for each, at in floors)\n",
        "\n",
    ),
    planted("floors are ignored", "fan-out: rolled back", TWICE, MARKS, _STATUS, "return TableStatus(view)"),
    planted(
        "a table that was made again is the same one",
        "fan-out: a table is dropped and made again",
        STRANGER,
        MARKS,
        "    if view.uuid != known.uuid:\n",
        "    if not view.uuid:\n",
    ),
    planted(
        "a history that is cut off counts as a rollback",
        "fan-out: history expires",
        AGAIN,
        MARKS,
        "    if view.uncertain:\n        raise",
        "    if ledger is None:\n        raise",
    ),
    planted(
        "what a table missed while it was behind is forgotten",
        "fan-out: rolled back and set forward",
        LOST,
        MARKS,
        "if each.behind and plan.kind is not Kind.REPLAY:",
        "if each.behind and plan.kind is None:",
    ),
    planted(
        "the ledger learns nothing of the tables",
        "fan-out: a table is dropped and made again",
        LOST,
        LEDGER,
        "tables=tuple(sorted({**dict(state.tables), **(tables or {})}.items())),",
        "tables=state.tables,",
    ),
)

_REPLAYS = (
    planted(
        "a table that is behind takes new rows",
        "fan-out: rolled back twice",
        LOST,
        MARKS,
        "        return not each.behind\n",
        "        return True\n",
    ),
    planted(
        "a table that is in step takes part in a replay",
        "fan-out: rolled back twice",
        TWICE,
        MARKS,
        "return each.behind and all(first",
        "return all(first",
    ),
    planted(
        "a table takes part in a replay that begins above it",
        "fan-out: rolled back twice",
        LOST,
        MARKS,
        "return each.behind and all(first <= floors.get(partition, first) for partition, first in lowest.items())",
        "return each.behind",
    ),
    planted(
        "every block of a replay must begin below the table",
        "fan-out: many blocks",
        ENDLESS,
        MARKS,
        "lowest[each.partition] = min(each.first, lowest",
        "lowest[each.partition] = max(each.first, lowest",
    ),
    planted(
        "a replay begins where the table begins that lacks the least",
        "fan-out: the ledger is lost in the middle of a replay",
        LOST,
        MARKS,
        "lowest[partition] = min(floor, lowest",
        "lowest[partition] = max(floor, lowest",
    ),
    planted(
        "a replay of a part says that it reached the ledger",
        "fan-out: rolled back twice",
        LOST,
        MARKS,
        "reached = min(position.committed, ends.get(partition, 0)) if replay else position.committed",
        "reached = position.committed",
    ),
    planted(
        "a replay of a part counts as the whole",
        "fan-out: rolled back twice",
        LOST,
        MARKS,
        "behind = replay and any(at < whole[partition] for partition, at in own.committed().items())",
        "behind = False",
    ),
    planted(
        "a replay says that it began where the pipeline stood",
        "fan-out: the ledger is lost in the middle of a replay",
        LOST,
        MARKS,
        "    if replay:\n        lowest",
        "    if not replay:\n        lowest",
    ),
    planted(
        "the mark of a table that is ahead goes back",
        "fan-out: the ledger is restored",
        UNCOVERED,
        MARKS,
        "Position(position.first, max(floor, reached))",
        "Position(position.first, reached)",
    ),
    planted(
        "tables that are behind stay behind",
        "fan-out: rolled back twice",
        LOST,
        SNAPSHOT,
        "        return take(again, machine.world.limits.max_rows)\n",
        "        return ()\n",
    ),
    planted(
        "a rollback is followed whatever the file says",
        "fan-out: a rollback is not followed",
        FOLLOWED,
        SNAPSHOT,
        "        if behind and not self.follow:\n",
        "        if behind and self.follow is None:\n",
    ),
)

_STEPS = (
    planted(
        "files count though their table moved while another was made",
        "fan-out: tables are made as records name them",
        TWICE,
        SNAPSHOT,
        "receipts=(), opened=not new_tables",
        "opened=not new_tables",
    ),
    planted(
        "files count though a commit found the tables moved",
        "fan-out: nothing fails, two drivers",
        TWICE,
        SNAPSHOT,
        _MOVED,
        _MOVED.replace("receipts=(), ", ""),
    ),
    planted(
        "tables that moved are not looked at again",
        "fan-out: rolled back",
        ENDLESS,
        SNAPSHOT,
        _MOVED,
        "return self.write(replace(machine, receipts=(), opened=False), Mode.RESOLVE)",
    ),
    planted(
        "after a commit the tables count as they were before it",
        "fan-out: nothing fails, two drivers",
        AGAIN,
        SNAPSHOT,
        "        machine = replace(machine, tables=tables)\n",
        "",
    ),
    planted(
        "after a record the tables stand as they did before it",
        "fan-out: rolled back twice",
        TWICE,
        SNAPSHOT,
        "        tables = tuple(status_of(machine.state, each.view) for each in machine.tables or ())\n",
        "        tables = machine.tables\n",
    ),
    planted(
        "a driver that waits does not look at the tables",
        "fan-out: records arrive, drivers wait",
        LOST,
        SNAPSHOT,
        "due = machine.world.look and machine.state.pending is None",
        "due = machine.world.stop",
    ),
    planted(
        "a plan of another transform is written",
        "fan-out: the transform changes",
        OTHER_ROWS,
        *CHANGED,
    ),
    planted(
        "the position moves before the commit",
        "fan-out: nothing fails, two drivers",
        LOST,
        *UNCOMMITTED,
    ),
    planted(
        "the ledger compares nothing",
        "fan-out: dead letters, filtered records",
        LOST,
        SWAP,
        "return (state.pipeline, state.epoch, state.owner, state.version, state.lineage)",
        'return (state.pipeline, 0, "", 0, "")',
    ),
)

_LOST = (
    planted(
        "a lost ledger trusts the newest position",
        "fan-out: the ledger is lost, and tables are rolled back",
        LOST,
        MARKS,
        "started.get(partition, position.first)",
        "position.committed",
    ),
    planted(
        "a lost ledger begins again, whatever the tables say",
        "fan-out: the ledger is lost, and the pipeline begins at the end",
        LOST,
        SNAPSHOT,
        "    if found is not None:\n",
        "    if found is not None and not found.positions:\n",
    ),
    planted(
        "a lost ledger is bound before the tables are asked",
        "fan-out: the ledger is lost, and the pipeline begins at the end",
        LOST,
        SNAPSHOT,
        "return machine.state.fresh or machine.incoming is not None",
        "return False",
    ),
)

_OWN = (
    planted(
        "own: the copy is not asked",
        "own: rolled back",
        halts("LedgerUnreadable"),
        OWN,
        "    last = seen.last\n    if last is not None and key",
        "    last = seen.mark\n    if last is not None and key",
    ),
    planted(
        "own: whoever took the table is not asked",
        "own: nothing fails, two drivers",
        halts("RolledBack"),
        OWN,
        "    if _snapshot(last) != _snapshot(expected.last):\n",
        "    if last is None and expected.last is not None:\n",
    ),
    planted(
        "own: nobody hears that they were fenced",
        "own: nothing fails, two drivers",
        UNCOVERED,
        OWN,
        "    if verdict is Verdict.FENCED:\n",
        "    if verdict is Verdict.FENCED and seen.last is None:\n",
    ),
    planted(
        "own: a driver that is taking over is fenced by the one before it",
        "own: nothing fails, two drivers",
        halts("RolledBack"),
        OWN,
        "last.state.owner != new.owner else",
        "last.state.epoch >= new.epoch else",
    ),
    planted(
        "own: whoever takes the table keeps the name of the one before",
        "own: nothing fails, two drivers",
        halts("RolledBack"),
        LEDGER,
        "epoch=state.epoch + 1, owner=owner,",
        "epoch=state.epoch + 1, owner=state.owner or owner,",
    ),
    planted(
        "own: nobody hears of a rollback",
        "own: rolled back",
        LOST,
        OWN,
        "    if verdict is Verdict.MOVED:\n",
        "    if verdict is Verdict.MOVED and seen.last is None:\n",
    ),
    planted(
        "own: where the table stands is not asked",
        "own: rolled back",
        LOST,
        OWN,
        "    return Verdict.GO if same else Verdict.MOVED\n",
        "    return Verdict.GO\n",
    ),
    planted(
        "own: done counts, though it was rolled back since",
        "own: rolled back",
        LOST,
        OWN,
        "return Verdict.MOVED if seen.rolled_back else Verdict.DONE",
        "return Verdict.DONE",
    ),
    planted(
        "own: a commit without an answer is not recognised",
        "own: a driver dies, answers are lost",
        halts("RolledBack"),
        OWN,
        "    if last is not None and key(last.state) == key(new):\n",
        "    if last is not None and seen.rolled_back and key(last.state) == key(new):\n",
    ),
    planted(
        "own: another table by that name is written",
        "own: dropped and made again",
        halts("LedgerSetBack"),
        OWN,
        "    if seen.uuid != expected.uuid:\n",
        "    if not seen.uuid:\n",
    ),
    planted(
        "own: the position does not go back",
        "own: rolled back",
        LOST,
        OWN,
        "    if not view.rolled_back:\n",
        "    if not view.uncertain:\n",
    ),
    planted(
        "own: back to before the first commit, and the position stays",
        "own: rolled back",
        LOST,
        OWN,
        "replace(position, committed=position.first)",
        "position",
    ),
    planted(
        "own: a rollback is recognized by the owner",
        "own: rolled back",
        LOST,
        OWN,
        "key(self.valid.state) != key(self.last.state)",
        "self.valid.state.owner != self.last.state.owner",
    ),
    planted(
        "own: the number of a batch that was removed stays",
        "own: set forward, and history expires",
        UNCOVERED,
        OWN,
        "batch = last.state.batch + 1",
        "batch = last.state.batch",
    ),
    planted(
        "own: where history is cut off, the copy counts",
        "own: history expires",
        LOST,
        OWN,
        "if self.mark is not None or self.whole or not self.vouched:",
        "if self.mark is not None or self.whole:",
    ),
    planted(
        "own: the copy counts though nothing expired",
        "own: rolled back",
        LOST,
        OWN,
        "if self.mark is not None or self.whole or not self.vouched:",
        "if self.mark is not None:",
    ),
    planted(
        "own: where history is cut off, everything comes again",
        "own: history expires",
        UNCOVERED,
        OWN,
        "    if view.uncertain:\n        raise errors",
        "    if view.last is None:\n        raise errors",
    ),
    planted(
        "own: a history that is cut off looks like one that begins",
        "own: set forward, and history expires",
        UNCOVERED,
        OWN,
        " and seen.uncertain is expected.uncertain",
        "",
    ),
)

_CUT = "return change(machine, Step.REARM, states.amended(machine.state, cut))"
_SLOW = (
    planted(
        "a block goes ahead of an earlier one of its partition",
        "own: blocks are slow",
        LOST,
        PACKING,
        "        if not behind:\n",
        "        if behind is not None:\n",
    ),
    planted(
        "the position moves past blocks that were slow",
        "own: blocks are slow",
        LOST,
        SNAPSHOT,
        _CUT,
        "return do(machine, self.commit(replace(machine, ledger=machine.state), tuple(receipts.values())))",
    ),
    planted(
        "the tables of a fan-out get the position of blocks that were slow",
        "fan-out: blocks are slow",
        LOST,
        SNAPSHOT,
        _CUT,
        "return do(machine, self.commit(replace(machine, ledger=machine.state), tuple(receipts.values())))",
    ),
    planted(
        "a plan is cut in the driver's memory alone",
        "fan-out: blocks are slow",
        OTHER_PLAN,
        SNAPSHOT,
        _CUT,
        "return commit_or_recover(replace(machine, ledger=replace(machine.state, pending=cut)))",
    ),
    planted(
        "a plan is cut that was pending at the start",
        "fan-out: blocks are slow",
        HELD,
        SNAPSHOT,
        "taking, untried = _taking(machine), machine.untried",
        "taking, untried = _taking(machine), self.in_parts",
    ),
    planted(
        "a plan is cut that a table has taken",
        "fan-out: blocks are slow, and a table is rolled back",
        HELD,
        SNAPSHOT,
        "tables=None, untried=False)",
        "tables=None)",
    ),
    planted(
        "what was slow may be cut off again",
        "own: blocks are slow",
        STARVED,
        SNAPSHOT,
        "untried=self.in_parts and not machine.owes",
        "untried=self.in_parts",
    ),
    planted(
        "receipts keep the places that their blocks had",
        "own: blocks are slow",
        halts("ValueError"),
        SNAPSHOT,
        "kept = tuple((at, receipts[index])",
        "kept = tuple((index, receipts[index])",
    ),
    planted(
        "receipts stay of blocks that were cut off",
        "fan-out: blocks are slow, one driver",
        halts("ValueError"),
        SNAPSHOT,
        _CUT,
        _CUT.replace(
            "return change(machine, Step",
            "return change(replace(machine, receipts=tuple(enumerate(receipts.values()))), Step",
        ),
    ),
)

MUTANTS = _VERDICT + _STATUSES + _REPLAYS + _STEPS + _LOST + _OWN + _SLOW
