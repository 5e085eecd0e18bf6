"""Publishing a plan's dead letters: which of its files count, and whether some of them may count already."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from landonce.engine import dead_letters, replay
from landonce.engine.dead_letters import place_of
from landonce.engine.letter_topic import LetterTopic
from landonce.engine.replay import Entry, LetterRecords
from landonce.errors import RetentionOverrun
from landonce.protocol.blocks import Kind, Plan
from landonce.protocol.ledger import LedgerState, Note, require_owner
from landonce.protocol.letters import landed_for_good
from landonce.protocol.ranges import Partition, Range, without
from landonce.protocol.receipt import Receipt
from landonce.read.kafka.records import RecordSource
from landonce.sinks.worker import AnyRecipe

R = TypeVar("R", bound=AnyRecipe)


@dataclass
class Letters:
    """The dead letters of one pipeline, as its driver sees them."""

    folder: Path
    pipeline: str
    journal: Callable[[], tuple[Note, ...]] = tuple
    """What operators decided: a plan that one of them gave up is named there."""
    load: Callable[[], LedgerState | None] = lambda: None
    """The ledger as it is."""
    topic: LetterTopic | None = None
    """Where letters are sent before they count, beside the folder."""
    _spans: dict[str, tuple[Range, ...]] | None = None
    """Between which offsets the letters lie that count, file by file."""
    _handled: dict[Partition, int] | None = None
    _left_over: dict[str, tuple[Range, ...]] | None = None
    """Of plans that drivers before this one gave up: what they staged, with what of it was not read again yet."""
    _earlier: frozenset[str] = frozenset()
    _elsewhere: frozenset[str] = frozenset()
    """The same, in the folder of a plan that was made with another one."""
    _landing: Path | None = None
    """Lists letters of other plans whose records are landing in the plan in hand."""
    _again: bool = False
    """The plan in hand may have left out letters that count already, so that its files may be empty."""

    def begin(self) -> None:
        """Call it before a driver takes the pipeline. All files that exist now are of earlier drivers, or of earlier runs of this one. Later
        files may be a newer driver's, and this one must not remove them."""
        self._spans = self._handled = self._left_over = None
        self._earlier = dead_letters.found(self.folder, self.pipeline) | replay.found(self.folder, self.pipeline)

    def stem(self, plan: Plan, held: LedgerState) -> str:
        """What the plan's files are called."""
        return dead_letters.stem(self.pipeline, plan.batch, held.lineage)

    def landing(
        self,
        plan: Plan,
        held: LedgerState,
        receipts: Sequence[Receipt],
        records: RecordSource,
        require_mine: Callable[[], None],
    ) -> None:
        """Call it once every block of the plan is written, and before `publish`, which leaves out letters that it finds in other files.

        If the plan delivers offsets again, this lists the letters of other plans in its ranges. A record that was not rejected again has
        landed by now, or was filtered: its letter is removed once the plan is recorded. A letter stays if Kafka no longer has its record,
        because it may be the only copy, and if only tables that were rolled back get the record again."""
        folder, stem = self.folder_of(plan, held), self.stem(plan, held)
        wanted = self._delivered(plan, held, folder, stem)
        self._landing = None
        if not wanted and not replay.is_listed(folder, stem):
            return
        require_mine()
        named = {name for each in receipts for name in (each.dead_letters, each.refused) if name}
        self._landing = replay.list_landing(folder, stem, named, _read_again(plan, held, receipts, records, wanted))

    def _delivered(self, plan: Plan, held: LedgerState, folder: Path, stem: str) -> Mapping[Partition, Sequence[Entry]]:
        """The letters of other plans from the first offset of this one to its last, by partition and in order."""
        if plan.kind in (Kind.LETTERS, Kind.REPLAY) or not self._lettered_before(plan, held, folder):
            return {}
        earlier, hulls = self._earlier if folder == self.folder else self._elsewhere, _hulls(plan, held)

        def overlaps(span: Range) -> bool:
            hull = hulls.get(span.partition)
            return hull is not None and span.first < hull.end and hull.first < span.end

        spans = self._spans_of(folder).items()
        others = (each for each in spans if each[0] in earlier and dead_letters.plan_of(each[0]) != stem)
        found: dict[Partition, list[Entry]] = {}
        for entry in replay.letters_of(folder, [name for name, each in others if any(map(overlaps, each))]):
            label = Partition(entry["topic"], entry["partition"])
            if label in hulls and hulls[label].holds(entry["offset"]):
                found.setdefault(label, []).append(entry)
        return {label: sorted(entries, key=place_of) for label, entries in found.items()}

    def publish(self, plan: Plan, held: LedgerState, names: Iterable[str]) -> None:
        """Publishes these files, and removes what other attempts at the plan left. Blocks that an operator took out of the plan, because
        their records are gone, have no receipt: their letters count too. Letters of blocks that were cut off do not, because these follow
        in a later plan. In a replay, letters that still cannot land count already. Check ownership first: a newer driver may have recorded
        the plan, and a person may have landed its letters since. If only tables that were rolled back get records again, what people did
        to letters stays."""
        named = {name for name in names if name}
        stem, folder = self.stem(plan, held), self.folder_of(plan, held)
        if plan.kind is Kind.LETTERS:
            replay.keep_still_dead(folder, stem, named)
            return
        if named:
            require_owner(held, self.load())
        self._again = again = bool(named) and (plan.kind is Kind.REPLAY or self._lettered_before(plan, held, folder))
        handled = replay.handled_places(folder, self.pipeline) if named and plan.kind is Kind.REPLAY else frozenset()
        dead_letters.publish(folder, stem, named, read_again=again, but=handled, send=self._send(folder, stem, held))
        dead_letters.clear_staged_of(folder, stem, plan.late)
        if dead_letters.left(folder, stem) - named:
            others = {*(block.number for block in plan.blocks), *plan.late}
            dead_letters.publish_given_up(folder, stem, but=others, send=self._send(folder, stem, held))
            earlier = self._earlier if folder == self.folder else self._elsewhere
            dead_letters.put_away(folder, stem, named, _labelled(plan, held), earlier)
        self._put_away_given_up(stem, _labelled(plan, held))

    def _put_away_given_up(self, stem: str, read: Iterable[Range]) -> None:
        """A driver that is killed before `discard` leaves what it staged. It goes once plans have read all of its records again."""
        if self._left_over is None:
            others = (name for name in sorted(self._earlier) if dead_letters.plan_of(name) != stem)
            self._left_over = dead_letters.staged_ranges(self.folder, others)
        for name, left in list(self._left_over.items()):
            self._left_over[name] = tuple(piece for each in left for piece in without(each, read))
            if not self._left_over[name]:
                dead_letters.clear_staged(self.folder, [name])
                del self._left_over[name]

    def delivered_again(
        self, plan: Plan, held: LedgerState, require_mine: Callable[[], None], *, rows_stay: bool
    ) -> None:
        """Call it once the records of a plan are read, and before it is recorded: what people did to letters of earlier deliveries is
        forgotten.
        `rows_stay`: as in `replay.forget`. The files are read once: a command that changes them fences this driver. That may have happened
        before they were read, so `require_mine` is asked before anything is forgotten. If only tables that were rolled back get the
        records, nothing is forgotten: other tables may have rows of their letters."""
        if plan.kind in (Kind.LETTERS, Kind.REPLAY):
            return
        if self._handled is None:
            self._handled = replay.handled_ends(self.folder, self.pipeline)
        again = [each for each in _labelled(plan, held) if each.first < self._handled.get(each.partition, 0)]
        if again:
            require_mine()
            replay.forget(self.folder, self.pipeline, again, rows_stay=rows_stay)

    def discard(self, plan: Plan, held: LedgerState) -> None:
        """Of a plan that its own driver gave up: its records were just read, and are read again."""
        folder, stem = self.folder_of(plan, held), self.stem(plan, held)
        dead_letters.clear_staged(folder, dead_letters.left(folder, stem))
        replay.forget_landing(folder, stem)

    def folder_of(self, plan: Plan, held: LedgerState) -> Path:
        """Where the plan's letters are: in the folder that it was made with, if that holds any. The file may name another one by
        now, and a letter that is written again must not be in both."""
        before, stem = Path(plan.letters or self.folder), self.stem(plan, held)
        there = replay.replay_file(before, stem).exists() or bool(dead_letters.left(before, stem))
        return before if before != self.folder and there else self.folder

    def for_workers(self, recipe: R, plan: Plan, held: LedgerState) -> R:
        """The recipe with the folder of the plan's letters. A replay reads its letters from there. In a replay, and in records that a
        table gets again, the first bad record does not halt the run, whatever the file says: such a plan is never given up."""
        folder = self.folder_of(plan, held)
        made = replace(recipe, dead_letters=folder, halts=recipe.halts and plan.kind not in (Kind.LETTERS, Kind.REPLAY))
        if plan.kind is not Kind.LETTERS:
            return made
        frozen = made.records if made.records.freezes else None
        letters = LetterRecords(replay.replay_file(folder, self.stem(plan, held)), plan.blocks[0].shard, frozen)
        return replace(made, records=letters)

    def changed(self, plan: Plan, held: LedgerState) -> None:
        """Call it after a change of the ledger. Once the plan is recorded, letters whose records landed are removed."""
        if not landed_for_good(held, plan.batch, held.lineage):
            return
        if plan.kind is Kind.LETTERS:
            replay.settle(self.folder_of(plan, held), self.stem(plan, held))
            return
        if self._landing is not None:
            replay.take_landed(self._landing)
        if self._again:
            folder, stem = self.folder_of(plan, held), self.stem(plan, held)
            dead_letters.clear_empty(folder, dead_letters.left(folder, stem))
        self._landing, self._again = None, False

    def settle_left(self, state: LedgerState, *, owner: bool = False) -> None:
        """What was killed after its RECORD, or before its PREPARE, is put in order. `owner`: the caller has taken the pipeline since `begin`."""
        earlier = self._earlier if owner else frozenset()
        replay.settle_left(self.folder, self.pipeline, state, self.journal, earlier)
        pending = self.stem(state.pending, state) if state.pending is not None else ""
        letters = (name for name in earlier if name.endswith(".jsonl") and dead_letters.plan_of(name) != pending)
        dead_letters.clear_empty(self.folder, letters)

    def require(self, plan: Plan, held: LedgerState, names: Iterable[str]) -> None:
        """Before a commit that is to make them count: every file is here, where the driver can publish it."""
        if plan.kind is Kind.LETTERS:
            self.publish(plan, held, names)
        else:
            dead_letters.require(self.folder_of(plan, held), names)

    def publish_left(self, names: Iterable[str], where: str, held: LedgerState) -> None:
        """Publishes the files of a batch that an earlier driver committed and did not publish, from the folder that it staged them in.
        What it did publish stays as it is, because people may have changed it since. What it staged for a batch that it did not commit is
        removed."""
        listed = tuple(names)
        for folder in {self.folder, Path(where or self.folder)}:
            staged = [name for name in listed if dead_letters.is_staged(folder, name)]
            for plan in sorted({dead_letters.plan_of(name) for name in staged}):
                mine = [name for name in staged if dead_letters.plan_of(name) == plan]
                dead_letters.publish(folder, plan, mine, read_again=True, send=self._send(folder, plan, held))
        dead_letters.clear_staged(self.folder, self._earlier)

    def acquired(self, state: LedgerState) -> None:
        """Call it when a driver has taken the pipeline. If the last plan is over, what is staged of it comes from a zombie, and is removed
        if all of its letters count already. If an operator gave the plan up, its staged letters are published."""
        self.settle_left(state, owner=True)
        stem = dead_letters.stem(self.pipeline, state.batch, state.lineage)
        if state.pending is not None:
            self._elsewhere = dead_letters.found(self.folder_of(state.pending, state), self.pipeline)
        files = dead_letters.left(self.folder, stem) if state.pending is None else ()
        if files and any(stem in note.detail for note in self.journal()):
            self.publish_given_up(state, state)
        elif files:
            dead_letters.put_away(self.folder, stem, dead_letters.counting(files), (), ())

    def given_up(self, held: LedgerState) -> str:
        """What the journal says of a pending plan that is given up."""
        stem = dead_letters.stem(self.pipeline, held.batch, held.lineage)
        return f"Dead letters that are staged of it ({stem}) count from then on."

    def publish_given_up(self, held: LedgerState, now: LedgerState) -> None:
        """Publishes what is staged of the last plan, whose records are gone. `now`: the ledger after the decision."""
        folder = self.folder_of(held.pending, held) if held.pending is not None else self.folder
        stem = dead_letters.stem(self.pipeline, held.batch, held.lineage)
        replay.forget_landing(folder, stem)
        late = held.pending.late if held.pending is not None else ()
        dead_letters.publish_given_up(folder, stem, but=late, send=self._send(folder, stem, now))
        dead_letters.clear_staged_of(folder, stem, late)

    def _send(self, folder: Path, stem: str, held: LedgerState) -> dead_letters.Send | None:
        """How letters of a plan get to the topic, for whoever has the pipeline."""
        if self.topic is None:
            return None

        def owner() -> None:
            require_owner(held, self.load())

        return lambda letters: self.topic.send(folder, stem, letters, owner) if self.topic is not None else None

    def _lettered_before(self, plan: Plan, held: LedgerState, folder: Path) -> bool:
        """Whether a ledger that was lost, restored or rolled back may have dead-lettered some of this. Looked up once.

        The kind of the plan does not tell: records that cannot land may be above all that the target holds.
        """
        hulls = _hulls(plan, held)
        return any(
            hulls[each.partition].first < each.end
            for spans in self._spans_of(folder).values()
            for each in spans
            if each.partition in hulls
        )

    def _spans_of(self, folder: Path) -> dict[str, tuple[Range, ...]]:
        if folder != self.folder:
            return dead_letters.spans(folder, self.pipeline)
        if self._spans is None:
            self._spans = dead_letters.spans(folder, self.pipeline)
        return self._spans


class NoLetters(Letters):
    """Of a user's own query: every row must fit. What a pipeline of its name left is not touched."""

    def __init__(self) -> None:
        super().__init__(Path(), "")

    def begin(self) -> None: ...

    def stem(self, plan: Plan, held: LedgerState) -> str:
        del plan, held
        return ""

    def landing(
        self,
        plan: Plan,
        held: LedgerState,
        receipts: Sequence[Receipt],
        records: RecordSource,
        require_mine: Callable[[], None],
    ) -> None: ...

    def publish(self, plan: Plan, held: LedgerState, names: Iterable[str]) -> None: ...

    def delivered_again(
        self, plan: Plan, held: LedgerState, require_mine: Callable[[], None], *, rows_stay: bool
    ) -> None: ...

    def discard(self, plan: Plan, held: LedgerState) -> None: ...

    def folder_of(self, plan: Plan, held: LedgerState) -> Path:
        del plan, held
        return self.folder

    def require(self, plan: Plan, held: LedgerState, names: Iterable[str]) -> None: ...

    def changed(self, plan: Plan, held: LedgerState) -> None: ...

    def settle_left(self, state: LedgerState, *, owner: bool = False) -> None: ...

    def publish_left(self, names: Iterable[str], where: str, held: LedgerState) -> None: ...

    def acquired(self, state: LedgerState) -> None: ...


def _labelled(plan: Plan, held: LedgerState) -> list[Range]:
    """The plan's ranges under the names that the target knows the topics by."""
    return [
        Range(held.labelled(each.partition), each.first, each.end) for block in plan.blocks for each in block.ranges
    ]


def _hulls(plan: Plan, held: LedgerState) -> dict[Partition, Range]:
    """From the first offset of the plan in each partition to its last one, under the names that the target knows the topics by."""
    found: dict[Partition, Range] = {}
    for each in _labelled(plan, held):
        known = found.get(each.partition, each)
        found[each.partition] = replace(each, first=min(each.first, known.first), end=max(each.end, known.end))
    return found


def _read_again(
    plan: Plan,
    held: LedgerState,
    receipts: Sequence[Receipt],
    records: RecordSource,
    letters: Mapping[Partition, Sequence[Entry]],
) -> Iterator[Entry]:
    """Those of these letters whose records the plan read. A block that read as many records as it has offsets read all of them; of
    the others, what is there now was there."""
    for block, receipt in zip(plan.blocks, receipts, strict=True):
        for each in block.ranges:
            entries = letters.get(held.labelled(each.partition), ())
            here = entries[_before(entries, each.first) : _before(entries, each.end)]
            if here and receipt.read < block.span:
                there = _present(records, Range(each.partition, here[0]["offset"], here[-1]["offset"] + 1))
                here = [entry for entry in here if entry["offset"] in there]
            yield from here


def _before(entries: Sequence[Entry], offset: int) -> int:
    return bisect_left(entries, offset, key=lambda entry: int(entry["offset"]))


def _present(records: RecordSource, wanted: Range) -> set[int]:
    there: set[int] = set()
    with suppress(RetentionOverrun):  # what was deleted since is treated as what was deleted before
        for some in records.read((wanted,)):
            there.update(some.offsets.to_pylist())
    return there
